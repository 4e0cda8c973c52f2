"""Copies ahead, products by warpgroups and waits as operations: they are in the text, mean the same, and are needed."""

# mypy: ignore-errors

from __future__ import annotations

import random

import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tilewright import dtypes
from tilewright.errors import ExecutionError
from tilewright.ir.core import Operation, Parameter
from tilewright.ir.interpreter import run
from tilewright.ir.parser import parse_function
from tilewright.ir.verifier import verify
from tilewright.passes.hazards import CtaLimits, check_hazards
from tilewright.targets.nvidia.options import NvidiaOptions
from tilewright.targets.nvidia.pipeline import lower
from tilewright.targets.nvidia.target import NvidiaTarget

ARCHITECTURES = ("sm_80", "sm_90a")
EXPLICIT = ("copy_async", "copy_commit", "copy_wait", "group_sync", "shared_load", "dot", "wgmma", "wgmma_wait")


@tilewright.jit
def product(
    a, b, out, k, STRIDES: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, SCALED: tl.constexpr,
    TWICE: tl.constexpr,
):  # fmt: skip
    """The block a @ b; SCALED: of 2 a; TWICE: and b transposed times b is added up."""
    row, column, depth = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    total, other = tl.zeros((M, N), tl.float32), tl.zeros((N, N), tl.float32)
    for first in range(0, k, K):
        inside = first + depth < k
        left = tl.load(a + row[:, None] * STRIDES[0] + (first + depth)[None, :] * STRIDES[1], mask=inside[None, :])
        right = tl.load(b + (first + depth)[:, None] * STRIDES[2] + column[None, :] * STRIDES[3], mask=inside[:, None])
        if SCALED:
            left = left * 2
        total += tl.dot(left, right, input_precision="tf32")
        if TWICE:
            other += tl.dot(tl.trans(right), right, input_precision="tf32")
    if TWICE:
        total += tl.sum(other)
    tl.store(out + row[:, None] * N + column[None, :], total)


@tilewright.jit
def attention(q, k, v, out, n, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr):
    row, column, feature = tl.arange(0, M), tl.arange(0, N), tl.arange(0, D)
    queries = tl.load(q + row[:, None] * D + feature[None, :])
    total, highest = tl.zeros((M, D), tl.float32), tl.full((M,), float("-inf"), tl.float32)
    weight = tl.zeros((M,), tl.float32)
    for first in range(0, n, N):
        keys = tl.load(k + (first + column)[None, :] * D + feature[:, None])
        scores = tl.dot(queries, keys)
        higher = tl.maximum(highest, tl.max(scores, 1))
        scores = tl.exp2(scores - higher[:, None])
        rescale = tl.exp2(highest - higher)
        weight = weight * rescale + tl.sum(scores, 1)
        values = tl.load(v + (first + column)[:, None] * D + feature[None, :])
        total = tl.dot(scores.to(values.dtype), values, total * rescale[:, None])
        highest = higher
    tl.store(out + row[:, None] * D + feature[None, :], total / weight[:, None])


def traced(kernel, types, constants):
    parameters = {name: Parameter(name, 16, kind.startswith("*")) for name, kind in types.items()}
    return kernel.trace(types, constants, parameters)


def lowered(function, architecture, warps, stages=3):
    """The lowered kernel, whose last IR is verified and checked, and reads back as it is printed."""
    target = NvidiaTarget.named(architecture)
    found = lower(function, target, NvidiaOptions.of_launch({"num_warps": warps, "num_stages": stages}))
    verify(found.assigned)
    limits = CtaLimits(target.warp_threads, target.registers_per_multiprocessor, target.shared_bytes)
    check_hazards(found.assigned, limits, warps)
    assert str(parse_function(str(found.assigned))) == str(found.assigned)
    return found


def of_product(kind="f16", m=128, n=64, k=32, strides=(192, 1, 64, 1), scaled=False, twice=False):
    types = {"a": f"*{kind}", "b": f"*{kind}", "out": "*f32", "k": "i32"}
    blocks = {"STRIDES": strides, "M": m, "N": n, "K": k, "SCALED": scaled, "TWICE": twice}
    return traced(product, types, blocks)


def aligned(array):
    buffer = np.zeros(array.nbytes + 16, np.uint8)
    start = -buffer.ctypes.data % 16
    placed = buffer[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    placed[...] = array
    return placed


def results(function, arguments, order=0):
    """What a kernel writes to its parameter `out`."""
    given = [aligned(value) if isinstance(value, np.ndarray) else value for value in arguments]
    run(function, given, order=order)
    names = [parameter.name for parameter in function.parameters]
    return given[names.index("out")]


def whole_numbers(rng, shape, kind):
    """Small whole numbers, whose products have exact sums."""
    dtype = next(found for found in dtypes.BY_NAME.values() if found.text == kind)
    return rng.integers(0 if dtype.kind == "uint" else -3, 4, shape).astype(dtype.numpy)


def drawn(seed):
    """A product of drawn types, extents, strides, warps and stages, and its arguments."""
    draw, rng = random.Random(seed), np.random.default_rng(seed)
    kind, architecture = draw.choice(("f16", "bf16", "f32", "i8", "f8e4nv")), draw.choice(ARCHITECTURES)
    m, n, k = draw.choice((64, 128)), draw.choice((32, 64, 128)), draw.choice((32, 64))
    scaled, twice = draw.random() < 0.3 and kind in ("f16", "bf16", "f32"), draw.random() < 0.3
    depth = 16 * draw.randrange(0, 14)
    strides = [draw.choice(((depth, 1), (1, m))), draw.choice(((n, 1), (1, depth)))]
    function = of_product(kind, m, n, k, (*strides[0], *strides[1]), scaled, twice)
    a, b = whole_numbers(rng, (m, depth), kind), whole_numbers(rng, (depth, n), kind)
    stored = [block if stride[1] == 1 else block.T.copy() for block, stride in zip((a, b), strides, strict=True)]
    arguments = [*stored, np.zeros((m, n), np.float32), depth]
    return function, architecture, draw.choice((1, 2, 4, 8)), draw.choice((2, 3, 4)), arguments


@pytest.mark.parametrize("seed", range(12))
def test_drawn_products_keep_their_results_in_any_order(seed):
    function, architecture, warps, stages, arguments = drawn(seed)
    written = lowered(function, architecture, warps, stages).assigned
    expected = results(function, arguments)
    for order in range(2):
        np.testing.assert_array_equal(results(written, arguments, order), expected)


def test_a_product_shows_its_copies_waits_and_instructions():
    text = {}
    for architecture in ARCHITECTURES:
        written = lowered(of_product(), architecture, 4).assigned
        (loop,) = loops(written)
        before = written.region.operations[: written.region.operations.index(loop)]
        assert [op.opcode for op in before if op.opcode in EXPLICIT].count("copy_commit") >= 2  # the first stages
        text[architecture] = [op.opcode for op in loop.regions[0].operations if op.opcode in EXPLICIT]
    copies = ["copy_async", "copy_async", "copy_commit"]
    assert text["sm_80"] == ["copy_wait", "group_sync", *copies, "shared_load", "shared_load", "dot"]
    assert text["sm_90a"] == ["wgmma", "wgmma_wait", "group_sync", *copies, "copy_wait", "group_sync"]


def loops(function):
    return [operation for operation in function.walk() if operation.opcode == "for"]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_attention_keeps_its_results(architecture):
    types = {"q": "*f16", "k": "*f16", "v": "*f16", "out": "*f32", "n": "i32"}
    function = traced(attention, types, {"M": 64, "N": 64, "D": 64})
    written = lowered(function, architecture, 4).assigned
    rng = np.random.default_rng(0)
    blocks = [rng.standard_normal((rows, 64)).astype(np.float16) for rows in (64, 320, 320)]
    arguments = [*blocks, np.zeros((64, 64), np.float32), 320]
    expected = results(function, arguments)
    for order in range(2):
        np.testing.assert_allclose(
            results(written, arguments, order), expected, rtol=1e-2, atol=1e-3
        )  # a score may be rounded otherwise
    if architecture == "sm_90a":  # scores are waited for before the softmax, sums before the next iteration
        inside = [op.opcode for op in loops(written)[0].regions[0].operations]
        assert inside.count("wgmma") == inside.count("wgmma_wait") == 2


def without(operation, function):
    """Take one operation, which nothing uses, out of a kernel."""
    for region in regions(function.region):
        region.operations[:] = [each for each in region.operations if each is not operation]


def regions(region):
    yield region
    for operation in region.operations:
        for inner in operation.regions:
            yield from regions(inner)


@pytest.mark.parametrize(("architecture", "stages"), [("sm_80", 3), ("sm_90a", 3), ("sm_90a", 2)])
def test_every_wait_and_barrier_of_a_loop_is_needed(architecture, stages):
    rng = np.random.default_rng(0)
    blocks = [whole_numbers(rng, (128, 192), "f16"), whole_numbers(rng, (192, 64), "f16")]
    arguments = [*blocks, np.zeros((128, 64), np.float32), 192]
    text = str(lowered(of_product(), architecture, 4, stages).assigned)
    places = [place for place, op in enumerate(inside(text)) if is_wait(op)]
    assert len(places) >= 2
    for place in places:
        mutant = parse_function(text)
        without(inside(mutant)[place], mutant)
        with pytest.raises(ExecutionError):
            for order in range(8):
                results(mutant, arguments, order)


def test_copies_that_nobody_uses_end_before_the_kernel():
    function = lowered(of_product(), "sm_80", 4).assigned
    (last,) = [operation for operation in function.walk() if operation.attributes.get("all")]
    without(last, function)
    arguments = [np.zeros(shape, np.float16) for shape in ((128, 192), (192, 64))]
    with pytest.raises(ExecutionError, match="the kernel ends while a copy may still fill"):
        results(function, [*arguments, np.zeros((128, 64), np.float32), 192])


def inside(kernel):
    function = parse_function(kernel) if isinstance(kernel, str) else kernel
    return loops(function)[0].regions[0].operations


def is_wait(operation: Operation):
    return operation.opcode in ("copy_wait", "group_sync", "wgmma_wait") and not operation.results
