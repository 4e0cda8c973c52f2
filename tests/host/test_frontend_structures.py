"""Arguments made of several values: tuples, NamedTuples, and tensor descriptors made on the host."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tests.host.language_support import launch
from tilewright import TensorDescriptor
from tilewright.errors import LaunchError


class Span(NamedTuple):
    data: Any
    size: Any
    step: Any = 1


@tilewright.jit
def twice(value):
    return 2 * value


@tilewright.jit
def moved(span, by):
    """A NamedTuple in and out."""
    return Span(span.data + by, span.size - by, span.step)


@tilewright.jit
def over_spans(source, target, extra, N: tl.constexpr):
    i = tl.arange(0, N)
    source = moved(source, 2)
    tl.static_assert(isinstance(source, Span))
    value = tl.load(source.data + i * source.step, mask=i < source.size, other=0.0)
    function, (factor, bias), missing = extra
    if missing is None:
        value = function(value) * factor + bias
    tl.store(target[0] + i, value)


def test_nested_tuples_and_constants(rng: np.random.Generator) -> None:
    x, out = rng.normal(size=12).astype(np.float32), np.zeros(8, np.float32)
    launch(over_spans, (1,), Span(x, 8), (out,), (twice, (3, tl.constexpr(0.5)), None), N=8)
    expected = np.where(np.arange(8) < 6, x[2:10], 0) * 6 + 0.5
    np.testing.assert_allclose(out, expected, rtol=1e-6, atol=1e-6)  # the sum may cancel


@tilewright.jit
def which_kind(pair, out):
    if isinstance(pair, Span):
        tl.store(out, 1)
    else:
        tl.store(out, 2)


def test_a_named_tuple_is_no_tuple() -> None:
    out = np.zeros(1, np.int32)
    which_kind[(1,)](Span(3, 4, 5), out)
    assert out[0] == 1
    which_kind[(1,)]((3, 4, 5), out)
    assert out[0] == 2


def test_types_of_groups() -> None:
    function = over_spans.trace(
        {"source": Span("*f32", "i32", tl.constexpr(1)), "target": ("*f32",)}, {"extra": (twice, (3, 4), None), "N": 8}
    )
    assert [parameter.name for parameter in function.parameters] == ["source_data", "source_size", "target_0"]


def test_read_only_arrays_in_tuples(rng: np.random.Generator) -> None:
    x, out = rng.normal(size=12).astype(np.float32), np.zeros(8, np.float32)
    out.flags.writeable = False
    with pytest.raises(LaunchError, match="writes to argument 'target'"):
        over_spans[(1,)](Span(x, 8), (out,), (twice, (3, 4), None), N=8)


# Descriptors -------------------------------------------------------------------------------------


@tilewright.jit
def copy_tiles(source, target, M: tl.constexpr, N: tl.constexpr):
    tl.static_assert(source.block_shape[0] == M and source.dtype == tl.float32)
    row, column = tl.program_id(0) * M, tl.program_id(1) * N
    tile = source.load([row, column])
    target.store([row, column], tl.where(tile == tile, tile * 2, -1) + source.shape[1] - source.strides[0])


@pytest.mark.parametrize("padding", ["zero", "nan"])
def test_host_descriptors(padding: str, rng: np.random.Generator) -> None:
    whole = rng.normal(size=(10, 24)).astype(np.float32)
    x, out = whole[:, :20], np.zeros((16, 32), np.float32)
    source = TensorDescriptor(x, x.shape, (24, 1), [4, 8], padding)
    launch_tiles(copy_tiles, (4, 4), source, TensorDescriptor.from_tensor(out, [4, 8]), M=4, N=8)
    expected = np.full((16, 32), -1 if padding == "nan" else 0, np.float32)
    expected[:10, :20] = 2 * x
    np.testing.assert_allclose(out, expected + 20 - 24, rtol=1e-6, atol=5e-6)


def launch_tiles(kernel: Any, grid: Any, *arguments: Any, **keywords: Any) -> None:
    """Run compiled; what the interpreter, and Python itself, leave in a second array must be the same."""
    *inputs, target = arguments
    kernel[grid](*arguments, **keywords)
    for mode in (True, "eager"):
        other = np.zeros_like(target.base)
        described = TensorDescriptor(other, target.shape, target.strides, target.block_shape, target.padding)
        with tilewright.settings.settings.scope(interpret=mode):
            kernel[grid](*inputs, described, **keywords)
        np.testing.assert_array_equal(target.base, other)


def test_a_new_tile_is_a_new_kernel(rng: np.random.Generator) -> None:
    x, out = rng.normal(size=(8, 8)).astype(np.float32), np.zeros((8, 8), np.float32)
    source, target = (TensorDescriptor.from_tensor(array, [8, 8]) for array in (x, out))
    launch_tiles(copy_tiles, (1, 1), source, target, M=8, N=8)
    source.block_shape = target.block_shape = [4, 4]
    out[:] = 0
    copy_tiles[(2, 2)](source, target, M=4, N=4)
    np.testing.assert_allclose(out, 2 * x + 8 - 8, rtol=1e-6, atol=5e-6)


@tilewright.jit
def rows(source, out, order, N: tl.constexpr, C: tl.constexpr):
    i = tl.arange(0, N)
    index = tl.load(order + i)
    picked = source.gather(index, 4)
    out.scatter(picked, index, 0)


def test_gather_and_scatter(rng: np.random.Generator) -> None:
    x, out = rng.normal(size=(16, 12)).astype(np.float32), np.zeros((16, 12), np.float32)
    order = np.array([3, 15, 0, 7, 9, 2, 1, 20], np.int32)  # the last row is outside
    source, target = (TensorDescriptor.from_tensor(array, [1, 8]) for array in (x, out))
    rows[(1,)](source, target, order, N=8, C=8)
    expected = np.zeros((16, 12), np.float32)
    expected[order[:7], :8] = x[order[:7], 4:12]
    np.testing.assert_array_equal(out, expected)


@tilewright.jit
def update(target, KIND: tl.constexpr, N: tl.constexpr):
    value = (tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]).to(target.dtype)
    if KIND == "add":
        target.atomic_add([2, 0], value)
    elif KIND == "min":
        target.atomic_min([2, 0], value)
    elif KIND == "max":
        target.atomic_max([2, 0], value)
    elif KIND == "and":
        target.atomic_and([2, 0], value)
    elif KIND == "or":
        target.atomic_or([2, 0], value)
    else:
        target.atomic_xor([2, 0], value)


@pytest.mark.parametrize(
    ("kind", "function"),
    [("add", np.add), ("min", np.minimum), ("max", np.maximum), ("and", np.bitwise_and), ("or", np.bitwise_or),
     ("xor", np.bitwise_xor)],
)  # fmt: skip
def test_atomic_updates(kind: str, function: Any, rng: np.random.Generator) -> None:
    before = rng.integers(0, 20, (4, 8)).astype(np.int32)
    for interpret in (False, True):
        out = before.copy()
        with tilewright.settings.settings.scope(interpret=interpret):
            update[(1,)](TensorDescriptor.from_tensor(out, [4, 4]), KIND=kind, N=4)
        expected = before.copy()
        value = np.arange(16).reshape(4, 4)[:2]  # rows 4 and 5 are outside
        expected[2:, :4] = function(before[2:, :4], value)
        np.testing.assert_array_equal(out, expected)


def test_what_cannot_be_described() -> None:
    x = np.zeros((8, 12), np.float32)
    with pytest.raises(LaunchError, match="rank mismatch"):
        TensorDescriptor(x, (8, 12), (12,), (4, 4))
    with pytest.raises(LaunchError, match="stride must be 1"):
        TensorDescriptor.from_tensor(x.T, (4, 4))
    with pytest.raises(LaunchError, match="padding must be"):
        TensorDescriptor.from_tensor(x, (4, 4), padding="one")
    out = TensorDescriptor.from_tensor(np.zeros((8, 12), np.float32), (4, 4))
    for source, message in [
        (TensorDescriptor.from_tensor(x, (4, 2)), "at least 4 elements"),
        (TensorDescriptor(x[:, 1:], (8, 8), (12, 1), (4, 4)), "16-byte aligned"),
        (TensorDescriptor(np.zeros((4, 9), np.float32), (4, 9), (9, 1), (4, 4)), "16-byte aligned"),
        (TensorDescriptor(np.zeros((4, 8), np.int32), (4, 8), (8, 1), (4, 4), "nan"), "needs floats"),
    ]:
        with pytest.raises(LaunchError, match=message):
            copy_tiles[(1, 1)](source, out, M=4, N=4)
