"""Blocks that loops add to, of which only the sum is wanted, are summed up pass by pass on CPUs; products and extrema
too."""

# mypy: ignore-errors

from __future__ import annotations

import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tilewright.ir.verifier import verify
from tilewright.targets.cpu.passes.sum_in_loops import sum_in_loops


@tilewright.jit
def mean_and_square(x, out, n, N: tl.constexpr):
    total, squares = tl.zeros((N,), tl.float32), tl.zeros((N,), tl.float32)
    for start in range(0, n, N):
        place = start + tl.arange(0, N)
        value = tl.load(x + place, mask=place < n, other=0.0)
        total += value
        squares = value * value + squares
    tl.store(out, tl.sum(total) / n)
    tl.store(out + 1, tl.sum(squares))


@tilewright.jit
def columns(x, out, n, R: tl.constexpr, C: tl.constexpr):
    total, column = tl.zeros((R, C), tl.float32), tl.arange(0, C)
    for start in range(0, n, R):
        row = (start + tl.arange(0, R))[:, None]
        total += tl.load(x + row * C + column, mask=row < n, other=0.0)
    tl.store(out + column, tl.sum(total, axis=0))


@tilewright.jit
def used_otherwise(x, out, n, N: tl.constexpr):
    """A block that the loop reads, one that is stored, one of few elements."""
    place = tl.arange(0, N)
    compensation, total = tl.zeros((N,), tl.float32), tl.zeros((N,), tl.float32)
    kept, few = tl.zeros((N,), tl.float32), tl.zeros((16,), tl.float32)
    for start in range(n):
        value = tl.load(x + start * N + place) - compensation
        following = total + value
        compensation = (following - total) - value
        total = following
        kept += value
        few += tl.load(x + start * N + tl.arange(0, 16))
    tl.store(out + place, kept)
    tl.store(out + N, tl.sum(total))
    tl.store(out + N + 1, tl.sum(kept))
    tl.store(out + N + 2, tl.sum(few))


@tilewright.jit
def last(x, out, n, N: tl.constexpr):
    """The total of the last pass, which the loop carries and does not read."""
    total, latest = tl.zeros((N,), tl.int32), tl.zeros((N,), tl.int32)
    for start in range(n):
        total += tl.load(x + start * N + tl.arange(0, N))
        latest = total
    tl.store(out, tl.sum(total))
    tl.store(out + 1, tl.sum(latest))


def carried(function):
    """The shapes of what each loop of a kernel carries."""
    return [[value.type.shape for value in loop.results] for loop in function.walk() if loop.opcode == "for"]


@pytest.mark.parametrize("n", [0, 5000, 4096])
def test_sums_of_a_row(n, rng):
    function = sum_in_loops(mean_and_square.trace({"x": "*f32", "out": "*f32", "n": "i32"}, {"N": 1024}))
    verify(function)
    assert carried(function) == [[(), ()]]
    x, out = rng.standard_normal(max(n, 1)).astype(np.float32), np.zeros(2, np.float32)
    mean_and_square[(1,)](x, out, n, N=1024)
    if n:
        np.testing.assert_allclose(out, [x.astype(float).mean(), (x.astype(float) ** 2).sum()], rtol=1e-5, atol=1e-6)
    else:
        assert out[1] == 0


def test_sums_of_columns(rng):
    function = sum_in_loops(columns.trace({"x": "*f32", "out": "*f32", "n": "i32"}, {"R": 16, "C": 32}))
    verify(function)
    assert carried(function) == [[(32,)]]
    x, out = rng.standard_normal((100, 32)).astype(np.float32), np.zeros(32, np.float32)
    columns[(1,)](x, out, 100, R=16, C=32)
    np.testing.assert_allclose(out, x.astype(float).sum(0), rtol=1e-5, atol=1e-5)


def test_blocks_that_are_used_otherwise_are_left_alone():
    function = used_otherwise.trace({"x": "*f32", "out": "*f32", "n": "i32"}, {"N": 1024})
    assert sum_in_loops(function) is function


@pytest.mark.parametrize("n", [0, 3])
def test_a_block_that_is_carried_and_not_read(n):
    x, out = np.arange(3 * 512, dtype=np.int32), np.full(2, -1, np.int32)
    last[(1,)](x, out, n, N=512)
    assert out.tolist() == [x[: n * 512].sum()] * 2


@tilewright.jit
def extrema(x, out, columns, R: tl.constexpr, C: tl.constexpr):
    """Of each row: the greatest, the least, the product, and what is greater than all of another start."""
    row = tl.arange(0, R)[:, None]
    most, least = tl.full((R, C), float("-inf"), tl.float32), tl.full((R, C), float("inf"), tl.float32)
    product, above = tl.full((R, C), 1.0, tl.float32), tl.full((R, C), 0.5, tl.float32)
    for start in range(0, columns, C):
        column = start + tl.arange(0, C)[None, :]
        mask = column < columns
        most = tl.maximum(most, tl.load(x + row * columns + column, mask=mask, other=float("-inf")))
        least = tl.minimum(least, tl.load(x + row * columns + column, mask=mask, other=float("inf")))
        product *= tl.load(x + row * columns + column, mask=mask, other=1.0)
        above = tl.maximum(above, tl.load(x + row * columns + column, mask=mask, other=float("-inf")))
    tl.store(out + row, tl.max(most, 1)[:, None])
    tl.store(out + R + row, tl.min(least, 1)[:, None])
    tl.store(out + 2 * R + row, tl.reduce(product, 1, multiplied)[:, None])
    tl.store(out + 3 * R + row, tl.max(above, 1)[:, None])


@tilewright.jit
def multiplied(a, b):
    return a * b


@tilewright.jit
def mixed(x, out, n, C: tl.constexpr):
    """A sum of maxima, and products from 2 on: neither is what the loop does."""
    place = tl.arange(0, C)
    most, product = tl.zeros((C,), tl.float32), tl.full((C,), 2.0, tl.float32)
    for start in range(n):
        value = tl.load(x + start * C + place)
        most = tl.maximum(most, value)
        product *= value
    tl.store(out, tl.sum(most))
    tl.store(out + 1, tl.reduce(product, 0, multiplied))


@pytest.mark.parametrize("columns", [0, 700, 1024])
def test_extrema_and_products_of_rows(columns, rng):
    function = sum_in_loops(extrema.trace({"x": "*f32", "out": "*f32", "columns": "i32"}, {"R": 4, "C": 256}))
    verify(function)
    assert carried(function) == [[(4,)] * 4]
    x = (1 + rng.standard_normal((4, columns)) / 8).astype(np.float32)
    if columns:
        x[1, 5] = np.nan
        x[3] = np.nan
    out = np.zeros((4, 4), np.float32)
    extrema[(1,)](x, out, columns, R=4, C=256)
    empty = np.full((4, 1), np.nan)
    wide = np.concatenate((x.astype(float), empty), 1)
    np.testing.assert_array_equal(out[0], np.fmax.reduce(wide, 1, initial=-np.inf))
    np.testing.assert_array_equal(out[1], np.fmin.reduce(wide, 1, initial=np.inf))
    np.testing.assert_allclose(out[2], x.astype(float).prod(1), rtol=1e-4)
    np.testing.assert_array_equal(out[3], np.fmax.reduce(wide, 1, initial=0.5))


def test_other_starts_and_reductions_are_left_alone():
    function = mixed.trace({"x": "*f32", "out": "*f32", "n": "i32"}, {"C": 256})
    assert sum_in_loops(function) is function
