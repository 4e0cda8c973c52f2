"""Masks that are one number for a loop, lower bounds that always hold, and reductions that share a loop, on CPUs."""

# mypy: ignore-errors

from __future__ import annotations

import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tests.host.test_cpu_explain import notes, of
from tilewright.targets.cpu.passes.known_bounds import drop_known_bounds


@tilewright.jit
def one_row(x, out, rows, columns, C: tl.constexpr):
    """Each program has a block of one row: whether the row exists is one number."""
    r = tl.program_id(0) + tl.arange(0, 1)[:, None]
    c = tl.arange(0, C)[None, :]
    mask = (r < rows) & (c < columns)
    value = tl.load(x + r * columns + c, mask=mask, other=0.0)
    tl.store(out + r * columns + c, value / tl.sum(value, 1)[:, None], mask=mask)


@tilewright.jit
def line(x, out, limit, n, C: tl.constexpr):
    """A scalar in the mask; the sum does not need what the mask leaves out, and the second store needs all."""
    i = tl.program_id(0)
    c = tl.arange(0, C)
    mask = (c < n) & (i < limit)
    value = tl.load(x + i * C + c, mask=mask, other=0.0)
    tl.store(out + i * (C + 1) + 1 + c, value + 1)
    tl.store(out + i * (C + 1), tl.sum(value))


@tilewright.jit
def only_where(x, flags, out, n, C: tl.constexpr):
    i = tl.program_id(0)
    c = tl.arange(0, C)
    wanted = tl.load(flags + i) != 0
    tl.store(out + i * C + c, tl.load(x + i * C + c, mask=wanted) * 2, mask=wanted & (c < n))


@tilewright.jit
def shifted(x, out, n, offset, B: tl.constexpr):
    """Block pointers: the first begins at or after the start, the second perhaps before it."""
    p = tl.program_id(0)
    a = tl.make_block_ptr(x, (n,), (1,), (p * B,), (B,), order=(0,))
    b = tl.make_block_ptr(x, (n,), (1,), (p * B + offset,), (B,), order=(0,))
    o = tl.make_block_ptr(out, (n,), (1,), (p * B,), (B,), order=(0,))
    value = tl.load(a, boundary_check=(0,)) + tl.load(b, boundary_check=(0,), padding_option="zero")
    tl.store(o, value, boundary_check=(0,))


@tilewright.jit
def overflowing(out, B: tl.constexpr):
    """Products that leave 32 bits are negative."""
    place = tl.arange(0, B)
    tl.store(out + place, tl.where(place * 1000003000 >= 0, 1, 2))


@tilewright.jit
def two_sums(x, out, n, C: tl.constexpr):
    c = tl.arange(0, C)
    value = tl.load(x + tl.program_id(0) * n + c, mask=c < n, other=0.0)
    mean = tl.sum(value) / n
    square = tl.sum(value * value) / n
    tl.store(out + tl.program_id(0), square - mean * mean)


def test_a_row_that_does_not_exist(rng):
    types = {"x": "*f32", "out": "*f32", "rows": "i32", "columns": "i32"}
    found = notes(one_row, types, {"C": 256})
    assert "each lane by its mask" not in str(found)
    x = rng.uniform(1, 2, (3, 200)).astype(np.float32)
    out = np.zeros((5, 200), np.float32)
    one_row[(5,)](x, out, 3, 200, C=256)
    np.testing.assert_allclose(out[:3], x / x.sum(1, keepdims=True), rtol=1e-5)
    assert not out[3:].any()


def test_a_number_in_the_mask(rng):
    x = rng.standard_normal((4, 64)).astype(np.float32)
    out = np.full((4, 65), 9, np.float32)
    line[(4,)](x, out, 2, 50, C=64)
    expected = np.where((np.arange(64) < 50) & (np.arange(4)[:, None] < 2), x, 0)
    np.testing.assert_array_equal(out[:, 1:], expected + 1)
    np.testing.assert_allclose(out[:, 0], expected.sum(1), rtol=1e-5, atol=1e-5)


def test_a_flag_from_memory(rng):
    x = rng.standard_normal((4, 64)).astype(np.float32)
    flags = np.array([1, 0, 0, 3], np.int32)
    out = np.full((4, 64), 9, np.float32)
    only_where[(4,)](x, flags, out, 50, C=64)
    np.testing.assert_array_equal(out, np.where((np.arange(64) < 50) & (flags[:, None] != 0), x * 2, 9))


@pytest.mark.parametrize("offset", [-5, 0, 7, -300, 300])
def test_lower_bounds_of_block_pointers(offset, rng):
    types = {"x": "*f32", "out": "*f32", "n": "i32", "offset": "i32"}
    found = notes(shifted, types, {"B": 128})
    assert of(found, "tl.store(o") and "each lane by its mask" not in of(found, "tl.store(o")
    x, out = rng.standard_normal(300).astype(np.float32), np.zeros(300, np.float32)
    shifted[(3,)](x, out, 300, offset, B=128)
    other = np.arange(300) + offset
    inside = (other >= 0) & (other < 300)
    np.testing.assert_array_equal(out, x + np.where(inside, x[np.clip(other, 0, 299)], 0))


def test_products_that_overflow_are_compared():
    function = overflowing.trace({"out": "*i32"}, {"B": 16})
    assert drop_known_bounds(function) is function
    out = np.zeros(16, np.int32)
    overflowing[(1,)](out, B=16)
    expected = (np.arange(16, dtype=np.int64) * 1000003000).astype(np.int32) >= 0
    np.testing.assert_array_equal(out, np.where(expected, 1, 2))


def test_reductions_share_a_loop_past_arithmetic_with_their_results(rng):
    found = notes(two_sums, {"x": "*f32", "out": "*f32", "n": "i32"}, {"C": 1024})
    assert "in one loop nest with the reduction of line" in of(found, "mean =")
    x, out = rng.standard_normal((3, 1000)).astype(np.float32), np.zeros(3, np.float32)
    two_sums[(3,)](x, out, 1000, C=1024)
    np.testing.assert_allclose(out, x.astype(float).var(1), rtol=1e-4)


@tilewright.jit
def two_numbers(x, factors, out, batches, rows, columns, C: tl.constexpr):
    """One number in the masks of a block of several rows and of one that is broadcast to them."""
    batch = tl.program_id(1) // 2
    row = (tl.program_id(0) * 2 + tl.arange(0, 2))[:, None]
    column = tl.arange(0, C)[None, :]
    exists, inside = batch < batches, (row >= tl.program_id(1) - 3) & (row < rows)
    place = (batch * rows + row) * columns + column
    value = tl.load(x + place, mask=(column < columns) & inside & exists, other=0.0)
    factor = tl.load(factors + row + column * 0, mask=((column < columns) & exists) & inside, other=0.0)
    tl.store(out + place, value * factor, mask=(column < columns) & inside & exists)


def test_one_number_in_masks_of_several_shapes(rng):
    x, factors = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 5, 90), 5))
    out = np.zeros_like(x)
    two_numbers[(3, 6)](x, factors, out, 2, 5, 90, C=128)
    expected = x * factors[:, None]
    expected[1, 0] *= 1
    np.testing.assert_array_equal(out, expected)


@tilewright.jit
def repeated(x, factors, out, n, m, N: tl.constexpr, M: tl.constexpr):
    """One row of `x` for all rows of a tile that is transposed."""
    i, j = tl.arange(0, N), tl.arange(0, M)
    place = tl.broadcast_to(j[None, :], (N, M))
    inside = (i < n)[:, None] & (j < m)[None, :]
    row = tl.load(x + place, mask=inside & (place != n), other=2.0)
    value = row + tl.load(factors + (i * 7)[:, None] + j[None, :], mask=inside)
    tl.store(out + i[:, None] + j[None, :] * n, value, mask=inside)


@pytest.mark.parametrize("m", [1, 3, 4])
def test_rows_that_do_not_change_are_read_where_their_mask_is_known(m, rng):
    x, factors = rng.standard_normal(4).astype(np.float32), rng.standard_normal(300).astype(np.float32)
    out = np.zeros((m, 30), np.float32)
    repeated[(1,)](x, factors, out, 30, m, N=32, M=4)
    places = np.arange(30) * 7 + np.arange(m)[:, None]
    np.testing.assert_array_equal(out, x[:m, None] + factors[places])
