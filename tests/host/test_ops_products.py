"""Products on arrays in every form: integers of both kinds, results of 8 bits, and what the kernels of engines compute
where tensor copies cannot move the arrays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tilewright import ops
from tilewright.errors import LaunchError
from tilewright.settings import settings

BF16, FP8, FP8_WIDE = (np.dtype(getattr(ml_dtypes, name)) for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"))


@pytest.fixture(autouse=True)
def interpreted() -> Iterator[None]:
    with settings.scope(interpret=True):
        yield


def normal(rng: np.random.Generator, *shape: int, dtype: Any = BF16) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32).astype(dtype)


def integers(rng: np.random.Generator, dtype: Any, *shape: int) -> np.ndarray:
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, shape, endpoint=True).astype(dtype)


def wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64)


def check(result: np.ndarray, expected: np.ndarray, tolerance: float = 2.0**-8) -> None:
    assert result.shape == expected.shape
    assert np.linalg.norm(wide(result) - expected) <= tolerance * np.linalg.norm(expected)


def is_portable(*operands: np.ndarray, **arguments: Any) -> bool:
    return "kernel of engines" in ops.explain_matmul(*operands, **arguments)


@pytest.mark.parametrize("kinds", [(np.uint8, np.int8), (np.int8, np.uint8), (np.uint8, np.uint8)])
@pytest.mark.parametrize("depth", [64, 50])
def test_integers_of_both_kinds_are_exact(kinds: tuple[Any, Any], depth: int, rng: np.random.Generator) -> None:
    a, b = integers(rng, kinds[0], 33, depth), integers(rng, kinds[1], 48, depth)
    result = ops.matmul(a, b.T)
    assert result.dtype == np.int32 and np.array_equal(result, a.astype(np.int32) @ b.astype(np.int32).T)
    assert is_portable(a, b.T) == (depth == 50)


@pytest.mark.parametrize("depth", [64, 50])
def test_floats_of_two_kinds(depth: int, rng: np.random.Generator) -> None:
    a, b = normal(rng, 33, depth, dtype=FP8), normal(rng, 48, depth, dtype=FP8_WIDE)
    check(ops.matmul(a, b.T, out_dtype=np.float32), wide(a) @ wide(b).T, 1e-4)


@pytest.mark.parametrize("stored", [np.dtype(np.int8), np.dtype(np.uint8), FP8], ids=str)
@pytest.mark.parametrize("depth", [64, 50])
def test_results_of_8_bits(stored: Any, depth: int, rng: np.random.Generator) -> None:
    """Integers by integers, scaled, with a bias and an activation, then divided by their scale, rounded, saturated."""
    a, b = integers(rng, np.int8, 33, depth), integers(rng, np.int8, 48, depth)
    scale_a = rng.uniform(0.001, 0.002, 33).astype(np.float32)
    scale_b, bias = rng.uniform(0.01, 0.02, 48).astype(np.float32), normal(rng, 48, dtype=np.float32)
    given = {"scale_a": scale_a, "scale_b": scale_b, "bias": bias, "activation": "silu"}
    x = (wide(a) @ wide(b).T) * scale_a[:, None] * scale_b + bias
    exact = x / (1 + np.exp(-x)) / 0.05
    result = ops.matmul(a, b.T, **given, out_dtype=stored, out_scale=0.05)
    assert result.dtype == stored and is_portable(a, b.T) == (depth == 50)
    limits = ml_dtypes.finfo(stored) if stored == FP8 else np.iinfo(stored)
    exact = np.clip(exact, float(limits.min), float(limits.max))
    error = np.abs(wide(result) - exact)
    assert error.max() <= 0.501 if stored != FP8 else (error <= np.maximum(np.abs(exact) * 2.0**-4, 2.0**-9)).all()


def test_a_scale_of_wide_results_is_refused(rng: np.random.Generator) -> None:
    with pytest.raises(LaunchError, match="out_scale needs 8-bit results"):
        ops.matmul(normal(rng, 8, 16), normal(rng, 16, 8), out_scale=2.0)


def test_rows_of_all_batches_have_scales(rng: np.random.Generator) -> None:
    a, b = normal(rng, 3, 40, 64, dtype=FP8), normal(rng, 3, 48, 64, dtype=FP8)
    scale = rng.uniform(0.5, 2, 120).astype(np.float32)
    expected = wide(a) @ wide(b).swapaxes(1, 2) * scale.reshape(3, 40, 1)
    check(ops.matmul(a, b.swapaxes(1, 2), scale_a=scale), expected)
    check(ops.matmul(a[..., :50], b[..., :50].swapaxes(1, 2), scale_a=scale),
          wide(a)[..., :50] @ wide(b)[..., :50].swapaxes(1, 2) * scale.reshape(3, 40, 1))  # fmt: skip
    with pytest.raises(LaunchError, match="scale_a has one number, 120"):
        ops.matmul(a, b.swapaxes(1, 2), scale_a=scale[:40])


# What tensor copies cannot move


def test_gates(rng: np.random.Generator) -> None:
    a, gate, up = normal(rng, 40, 73), normal(rng, 48, 73), normal(rng, 48, 73)
    weights = ops.interleave_gate(gate, up).T
    left, right = wide(a) @ wide(gate).T, wide(a) @ wide(up).T
    assert is_portable(a, weights, gate="silu")
    check(ops.matmul(a, weights, gate="silu"), left / (1 + np.exp(-left)) * right)


@pytest.mark.parametrize("order", ["columns first", "depth first"])
def test_scales_of_blocks(order: str, rng: np.random.Generator) -> None:
    """Of a depth and columns that blocks do not divide."""
    a, b = normal(rng, 40, 200, dtype=FP8), normal(rng, 150, 200, dtype=FP8)
    left, right = (rng.uniform(0.5, 2, (count, 2)).astype(np.float32) for count in (40, 2))
    exact = (wide(a) * np.repeat(left, 128, 1)[:, :200]) @ (
        wide(b) * np.repeat(np.repeat(right, 128, 0)[:150], 128, 1)[:, :200]
    ).T
    weights = b.T if order == "columns first" else np.ascontiguousarray(b.T)
    given = {"scale_a": left, "scale_b": right, "out_dtype": np.float32}
    assert is_portable(a, weights, **given)
    check(ops.matmul(a, weights, **given), exact, 1e-5)
    with pytest.raises(LaunchError, match="a with scales of blocks must be contiguous"):
        ops.matmul(np.repeat(a, 2, 1)[:, ::2], weights, **given)


def spread(rng: np.random.Generator, values: np.ndarray) -> np.ndarray:
    """A matrix as rows of a larger one, which has other numbers between them, drawn."""
    before, after = (int(count) for count in rng.integers(0, 4, 2))
    larger = rng.uniform(3, 9, (len(values), before + values.shape[1] + after)).astype(values.dtype)
    larger[:, before : before + values.shape[1]] = values
    return larger[:, before : before + values.shape[1]]


@pytest.mark.parametrize("portable", [False, True])
@pytest.mark.parametrize("dtype", [FP8, np.dtype(np.int8), np.dtype(np.uint8)], ids=str)
@pytest.mark.parametrize("number", range(4))
def test_rows_of_scales_of_blocks_may_be_apart(
    number: int, dtype: Any, portable: bool, rng: np.random.Generator
) -> None:
    """Rows with drawn distances, and the one row of all; integers are scaled as floats are."""
    rows, columns = (int(count) for count in rng.integers(1, [40, 75]) * [1, 4])  # rows of whole tensor copies
    columns -= portable
    depth = int(rng.integers(1, 4)) * 128 + (8 if portable else 0)
    blocks = -(-depth // 128), -(-columns // 128)
    a, b = (
        normal(rng, count, depth, dtype=dtype) if dtype == FP8 else integers(rng, dtype, count, depth)
        for count in (rows, columns)
    )
    left, right = (rng.uniform(0.5, 2, (count, blocks[0])).astype(np.float32) for count in (rows, blocks[1]))
    left, right = spread(rng, left), spread(rng, right)
    if number == 0:
        left, right = (np.broadcast_to(scale[:1], scale.shape) for scale in (left, right))
    exact = (wide(a) * np.repeat(left, 128, 1)[:, :depth]) @ (
        wide(b) * np.repeat(np.repeat(right, 128, 0)[:columns], 128, 1)[:, :depth]
    ).T
    weights = np.ascontiguousarray(b.T) if portable else b.T
    given = {"scale_a": left, "scale_b": right, "out_dtype": np.float32}
    assert is_portable(a, weights, **given) == portable
    check(ops.matmul(a, weights, **given), exact, 1e-5)
    # Another call of these sizes, with other distances.
    again = {**given, "scale_a": np.ascontiguousarray(left), "scale_b": spread(rng, right)}
    check(ops.matmul(a, weights, **again), exact, 1e-5)


@pytest.mark.parametrize("depth", [256, 200])
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda scale: scale[::-1], "scale_a has one number, 8, or blocks"),
        (lambda scale: np.lib.stride_tricks.as_strided(scale, (8, 2), (4, 4)), "scale_a has one number, 8, or blocks"),
        (lambda scale: np.repeat(scale, 2, 1)[:, ::2], "scale_a has one number, 8, or blocks"),
        (lambda scale: np.ones((24, 2), np.float32), "for one matrix each, got 3 batches"),
    ],
)
def test_scales_of_blocks_that_are_refused(depth: int, change: Any, reason: str, rng: np.random.Generator) -> None:
    """By all kernels alike."""
    scale = change(np.ones((8, 2), np.float32))
    batches = (len(scale) // 8,) if len(scale) > 8 else ()
    a, b = normal(rng, *batches, 8, depth, dtype=FP8), normal(rng, *batches, 7, depth, dtype=FP8)
    with pytest.raises(LaunchError, match=reason):
        ops.matmul(a, b.swapaxes(-1, -2), scale_a=scale, scale_b=np.ones((1, 2), np.float32))


@pytest.mark.parametrize("kinds", [("row", "column"), ("row", ""), ("", "column")], ids=str)
@pytest.mark.parametrize("depth", [256, 200])
def test_scales_of_rows_and_columns_are_contiguous(
    kinds: tuple[str, str], depth: int, rng: np.random.Generator
) -> None:
    """Others are refused by all kernels alike."""
    a, b = normal(rng, 8, depth, dtype=FP8), normal(rng, 7, depth, dtype=FP8)
    numbers = {"scale_a": np.ones(16, np.float32)[::2], "scale_b": np.ones((7, 3), np.float32)[:, :1]}
    given = {name: numbers[name] for name, kind in zip(numbers, kinds, strict=True) if kind}
    with pytest.raises(LaunchError, match="contiguous"):
        ops.matmul(a, b.T, **given)


@pytest.mark.parametrize("dtype", [np.dtype(np.float32), BF16], ids=str)
def test_any_strides(dtype: Any, rng: np.random.Generator) -> None:
    """Operands, a residual and a result that are parts of larger arrays, in batches."""
    a, b = normal(rng, 3, 70, 45, dtype=dtype)[:, ::2, 3:28], normal(rng, 3, 25, 84, dtype=dtype)[:, :, ::2]
    residual, bias = normal(rng, 3, 35, 50, dtype=dtype)[..., :42], normal(rng, 42, dtype=dtype)
    out = np.zeros((3, 35, 60), dtype)[..., 5:47]
    result = ops.matmul(a, b, bias=bias, activation="gelu_tanh", residual=residual, out=out, precision="ieee")
    assert result is out
    x = wide(a) @ wide(b) + wide(bias)
    exact = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) + wide(residual)
    check(out, exact, 1e-5 if dtype == np.float32 else 2.0**-8)


def test_a_depth_of_nothing(rng: np.random.Generator) -> None:
    bias = normal(rng, 24)
    result = ops.matmul(np.zeros((5, 0), BF16), np.zeros((0, 24), BF16), bias=bias, activation="relu")
    check(result, np.maximum(np.broadcast_to(wide(bias), (5, 24)), 0))


# Convolutions


def convolved(x: np.ndarray, w: np.ndarray, stride: int, pad: int, groups: int) -> np.ndarray:
    """In float64, of images whose channels are last."""
    torch = pytest.importorskip("torch")
    image, taps = torch.from_numpy(wide(x)).permute(0, 3, 1, 2), torch.from_numpy(wide(w))
    y = torch.nn.functional.conv2d(image, taps, stride=stride, padding=pad, groups=groups)
    return y.permute(0, 2, 3, 1).numpy()


@pytest.mark.parametrize("kind", [np.int8, np.uint8])
@pytest.mark.parametrize(
    ("channels", "features", "size", "stride", "groups"),
    [(32, 48, 3, 1, 1), (16, 32, 1, 1, 1), (12, 20, 3, 2, 1), (20, 24, 1, 2, 1), (16, 32, 3, 1, 2), (8, 8, 3, 1, 8)],
)
def test_convolutions_of_integers(
    kind: Any, channels: int, features: int, size: int, stride: int, groups: int, rng: np.random.Generator
) -> None:
    """Their sums are exact; scaled, with a bias, a residual, an activation and the next quantization."""
    x, w = integers(rng, kind, 2, 9, 7, channels), integers(rng, np.int8, features, channels // groups, size, size)
    form = {"stride": stride, "padding": size // 2, "groups": groups}
    sums = convolved(x, w, stride, size // 2, groups)
    found = ops.conv2d(x, w, **form)
    assert found.dtype == np.int32 and np.array_equal(wide(found), sums)
    scale_x, scale_w = np.full(1, 0.01, np.float32), rng.uniform(1e-3, 2e-3, features).astype(np.float32)
    bias, residual = normal(rng, features, dtype=np.float32), normal(rng, *sums.shape)
    y = np.maximum(sums * wide(scale_x) * scale_w + bias + wide(residual), 0)
    given = {"scale_x": scale_x, "scale_w": scale_w, "residual": residual, "activation": "relu", **form}
    check(ops.conv2d(x, w, bias, **given, out_dtype=BF16), y)
    wide_result = ops.conv2d(x, w, bias, **given)
    assert wide_result.dtype == np.float32
    check(wide_result, y, 1e-6)
    stored = ops.conv2d(x, w, bias, **given, out_dtype=np.uint8, out_scale=0.1)
    assert stored.dtype == np.uint8 and np.abs(wide(stored) - np.clip(y / 0.1, 0, 255)).max() <= 0.51


@pytest.mark.parametrize("kinds", [(FP8, FP8), (FP8_WIDE, FP8), (FP8, FP8_WIDE)], ids=str)
@pytest.mark.parametrize(
    ("channels", "features", "size", "stride", "groups"),
    [(32, 48, 3, 1, 1), (16, 32, 1, 1, 1), (12, 20, 3, 2, 1), (20, 24, 1, 2, 1), (16, 32, 3, 1, 2), (8, 8, 3, 1, 8)],
)
def test_convolutions_of_8_bit_floats(
    kinds: Any, channels: int, features: int, size: int, stride: int, groups: int, rng: np.random.Generator
) -> None:
    """The same of 8-bit floats of both kinds, with sums in float32."""
    x = normal(rng, 2, 9, 7, channels, dtype=kinds[0])
    w = normal(rng, features, channels // groups, size, size, dtype=kinds[1])
    form = {"stride": stride, "padding": size // 2, "groups": groups}
    sums = convolved(x, w, stride, size // 2, groups)
    found = ops.conv2d(x, w, **form)
    assert found.dtype == np.float32
    check(found, sums, 1e-5)
    scale_x, scale_w = np.full(1, 0.3, np.float32), rng.uniform(0.1, 0.2, features).astype(np.float32)
    bias, residual = normal(rng, features, dtype=np.float32), normal(rng, *sums.shape)
    y = np.maximum(sums * wide(scale_x) * scale_w + bias + wide(residual), 0)
    given = {"scale_x": scale_x, "scale_w": scale_w, "residual": residual, "activation": "relu", **form}
    check(ops.conv2d(x, w, bias, **given, out_dtype=BF16), y)
    stored = ops.conv2d(x, w, bias, **given, out_dtype=kinds[0], out_scale=0.01)
    assert stored.dtype == kinds[0]
    bits, most = (2, 57344) if kinds[0] == FP8_WIDE else (3, 448)
    exact = np.minimum(y / 0.01, most)
    assert np.all(np.abs(wide(stored) - exact) <= 0.51 * 2.0**-bits * exact + 1e-2)


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"w": np.uint8}, "x int8 or uint8 and w int8"), ({"out_dtype": np.float64}, "not stored as"),
     ({"scale_x": np.zeros(3, np.float32)}, "float32 of 1 numbers"), ({"out_scale": 2.0}, "needs 8-bit results")],
)  # fmt: skip
def test_operands_of_convolutions_that_do_not_fit(change: dict[str, Any], reason: str) -> None:
    given = {"w": np.int8, **change}
    x, w = np.zeros((1, 5, 5, 16), np.int8), np.zeros((16, 16, 3, 3), given.pop("w"))
    with pytest.raises(LaunchError, match=reason):
        ops.conv2d(x, w, **given)
