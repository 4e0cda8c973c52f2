"""Loops of products on CPUs take several iterations at once."""

# mypy: ignore-errors

from __future__ import annotations

import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tilewright.ir.verifier import verify
from tilewright.passes.pipeline import run_passes, simplify
from tilewright.passes.uniform_increments import carry_uniform_increments
from tilewright.targets.cpu.passes.deepen_products import deepen_products


@tilewright.jit
def advancing(a, b, c, M, N, K, sa, sb, R: tl.constexpr, C: tl.constexpr, D: tl.constexpr):
    """Blocks of pointers advance, masks end at the depth."""
    rows, columns = tl.program_id(0) * R + tl.arange(0, R), tl.program_id(1) * C + tl.arange(0, C)
    depth = tl.arange(0, D)
    left, right = a + rows[:, None] * sa + depth[None, :], b + depth[:, None] * sb + columns[None, :]
    total = tl.zeros((R, C), tl.float32 if c.dtype.element_ty == tl.float32 else tl.int32)
    for k in range(0, tl.cdiv(K, D)):
        x = tl.load(left, mask=(rows[:, None] < M) & (depth[None, :] < K - k * D), other=0)
        y = tl.load(right, mask=(depth[:, None] < K - k * D) & (columns[None, :] < N), other=0)
        total = tl.dot(x, y, total)
        left += D
        right += D * sb
    tl.store(c + rows[:, None] * N + columns[None, :], total, mask=(rows[:, None] < M) & (columns[None, :] < N))


@tilewright.jit
def indexed(a, b, c, first, last, sa, sb, R: tl.constexpr, C: tl.constexpr, D: tl.constexpr):
    """Indices from the loop's own, which starts anywhere; no masks, the right operand transposed."""
    rows, columns = tl.arange(0, R), tl.arange(0, C)
    total = tl.zeros((R, C), tl.float32)
    for start in range(first, last, D):
        depth = start + tl.arange(0, D)
        x = tl.load(a + rows[:, None] * sa + depth[None, :])
        y = tl.load(b + columns[:, None] * sb + depth[None, :])
        total += tl.dot(x, tl.trans(y))
    tl.store(c + rows[:, None] * C + columns[None, :], total)


@tilewright.jit
def two(a, b, c, trips: tl.constexpr, R: tl.constexpr, C: tl.constexpr, D: tl.constexpr):
    """Two products with one left operand, a known number of iterations, numbers that are cast."""
    rows, columns, depth = tl.arange(0, R), tl.arange(0, C), tl.arange(0, D)
    one, other = tl.zeros((R, C), tl.float32), tl.zeros((R, C), tl.float32)
    K = trips * D
    for k in range(trips):
        x = tl.load(a + rows[:, None] * K + k * D + depth[None, :]).to(tl.float32)
        place = b + (k * D + depth)[:, None] * (2 * C) + columns[None, :]
        one += tl.dot(x, tl.load(place).to(tl.float32))
        other += tl.dot(x, tl.load(place + C).to(tl.float32))
    tl.store(c + rows[:, None] * C + columns[None, :], one)
    tl.store(c + R * C + rows[:, None] * C + columns[None, :], other)


@tilewright.jit
def unfit(a, b, c, scales, n, CASE: tl.constexpr, R: tl.constexpr, D: tl.constexpr):
    """Each case has something that several iterations at once would get wrong, or slower."""
    rows, depth = tl.arange(0, R), tl.arange(0, D)
    total, largest, skipped = tl.zeros((R, R), tl.float32), 0.0, 0
    for k in range(n):
        place = k * D + depth
        if CASE == "wrapped":
            place = place % 24
        elif CASE == "overlapping":
            place = k * (D - 1) + depth
        elif CASE == "growing":
            place = skipped + depth
        x = tl.load(
            a + rows[:, None] * 64 + place[None, :], mask=place[None, :] < 64, other=1.0 if CASE == "other" else 0.0
        )
        y = tl.load(b + place[:, None] * R + rows[None, :])
        product = tl.dot(x, y)
        if CASE == "scaled":
            product *= tl.load(scales + k)
        if CASE == "reused":
            largest = tl.maximum(largest, tl.max(tl.max(x, 1), 0))
        if CASE == "stores":
            tl.store(scales + k, 1.0)
        skipped += k
        total += product
        if CASE == "rounded":
            total = total.to(tl.float16).to(tl.float32)
    tl.store(c + rows[:, None] * R + rows[None, :], total + largest)


def _deepened(kernel, types, constants):
    function = run_passes(kernel.trace(types, constants), (simplify, carry_uniform_increments))
    found = deepen_products(function)
    verify(found)
    return function, found


def _depths(function) -> list[int]:
    return [dot.operands[0].type.shape[-1] for dot in function.walk() if dot.opcode == "dot"]


_ADVANCING = {"M": "i32", "N": "i32", "K": "i32", "sa": "i32", "sb": "i32"}
_BLOCKS = {"R": 16, "C": 16, "D": 32}


@pytest.mark.parametrize(("left", "sums", "depth"), [("f32", "f32", 256), ("bf16", "f32", 512), ("i8", "i32", 1024)])
def test_advancing_blocks_are_deepened(left, sums, depth):
    _, found = _deepened(advancing, {"a": f"*{left}", "b": f"*{left}", "c": f"*{sums}", **_ADVANCING}, _BLOCKS)
    assert _depths(found) == [depth]


def test_indices_and_known_numbers_of_iterations_are_deepened():
    arrays = {"a": "*f32", "b": "*f32", "c": "*f32"}
    _, found = _deepened(indexed, {**arrays, "first": "i32", "last": "i32", "sa": "i32", "sb": "i32"}, _BLOCKS)
    assert _depths(found) == [256]
    _, found = _deepened(two, {**arrays, "a": "*bf16", "b": "*bf16"}, {"trips": 3, **_BLOCKS})
    assert _depths(found) == [128, 128]


@pytest.mark.parametrize(
    "case", ["wrapped", "overlapping", "growing", "other", "scaled", "reused", "rounded", "stores"]
)
def test_other_loops_are_left_alone(case):
    types = {"a": "*f32", "b": "*f32", "c": "*f32", "scales": "*f32", "n": "i32"}
    before, after = _deepened(unfit, types, {"CASE": case, "R": 16, "D": 16})
    assert after is before
    assert _deepened(unfit, types, {"CASE": "", "R": 16, "D": 16})[1] is not before


@pytest.mark.parametrize(
    ("rows", "columns", "depth"), [(1, 1, 1), (17, 33, 31), (16, 16, 256), (5, 20, 300), (40, 9, 1100)]
)
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_advancing_blocks(dtype, rows, columns, depth, rng):
    # Values next to the matrices would change the sums if they were read.
    wide = np.full((rows, depth + 40), np.nan if dtype == "float32" else 99, dtype)
    tall = np.full((depth + 40, columns + 3), np.nan if dtype == "float32" else 99, dtype)
    wide[:, :depth] = rng.integers(-9, 9, (rows, depth))
    tall[:depth, :columns] = rng.integers(-9, 9, (depth, columns))
    c = np.zeros((rows, columns), "float32" if dtype == "float32" else "int32")
    grid = (-(-rows // 16), -(-columns // 16))
    advancing[grid](wide, tall, c, rows, columns, depth, wide.shape[1], tall.shape[1], **_BLOCKS)
    np.testing.assert_array_equal(c, wide[:, :depth].astype("int64") @ tall[:depth, :columns].astype("int64"))


@pytest.mark.parametrize(("first", "last"), [(0, 0), (0, 32), (3, 260), (7, 7 + 32 * 8), (1, 1 + 32 * 9), (5, 4)])
def test_indices_from_the_loop(first, last, rng):
    end = first + max(0, -(-(last - first) // 32)) * 32
    a, b = (np.full((16, 400), np.nan, np.float32) for _ in range(2))
    a[:, first:end], b[:, first:end] = rng.integers(-9, 9, (2, 16, end - first))
    c = np.ones((16, 16), np.float32)
    indexed[(1,)](a, b, c, first, last, 400, 400, **_BLOCKS)
    np.testing.assert_array_equal(c, a[:, first:end] @ b[:, first:end].T)


@pytest.mark.parametrize("trips", [1, 2, 3, 8, 11])
def test_two_products(trips, rng):
    a, b = (rng.integers(-9, 9, shape).astype(np.float16) for shape in ((16, trips * 32), (trips * 32, 32)))
    c = np.zeros((2, 16, 16), np.float32)
    two[(1,)](a, b, c, trips, **_BLOCKS)
    np.testing.assert_array_equal(c, np.stack(np.split(a.astype(np.float32) @ b.astype(np.float32), 2, axis=1)))
