"""max, min, argmax and argmin with NaNs and ties: alike in every way to run, whatever the order of the reduction."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.settings import settings

ROWS, COLUMNS = 8, 48
WAYS = (False, True, "eager")


@tilewright.jit
def extrema(x, greatest, greatest_at, least, least_at, largest, smallest,
            R: tl.constexpr, C: tl.constexpr, AXIS: tl.constexpr, LEFT: tl.constexpr):  # fmt: skip
    block = tl.load(x + tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :])
    place = tl.arange(0, R if AXIS == 1 else C)
    value, index = tl.max(block, AXIS, return_indices=True, return_indices_tie_break_left=LEFT)
    tl.store(greatest + place, value)
    tl.store(greatest_at + place, index)
    value, index = tl.min(block, AXIS, return_indices=True, return_indices_tie_break_left=LEFT)
    tl.store(least + place, value)
    tl.store(least_at + place, index)
    tl.store(largest + place, tl.max(block, AXIS).to(largest.dtype.element_ty))
    tl.store(smallest + place, tl.min(block, AXIS).to(smallest.dtype.element_ty))


@tilewright.jit
def masked_extrema(x, largest, smallest, rows, columns, R: tl.constexpr, C: tl.constexpr, AXIS: tl.constexpr):
    row, column = tl.arange(0, R)[:, None], tl.arange(0, C)[None, :]
    inside = (row < rows) & (column < columns)
    place = tl.arange(0, R if AXIS == 1 else C)
    low = tl.load(x + row * columns + column, mask=inside, other=-float("inf"))
    tl.store(largest + place, tl.max(low, AXIS))
    high = tl.load(x + row * columns + column, mask=inside, other=float("inf"))
    tl.store(smallest + place, tl.min(high, AXIS))


@tilewright.jit
def running(x, largest, smallest, C: tl.constexpr):
    place = tl.arange(0, C)
    block = tl.load(x + place)
    tl.store(largest + place, tl.associative_scan(block, 0, larger))
    tl.store(smallest + place, tl.associative_scan(block, 0, smaller))


@tilewright.jit
def larger(a, b):
    return tl.maximum(a, b)


@tilewright.jit
def smaller(a, b):
    return tl.minimum(a, b)


@tilewright.jit
def doubled_with_largest(x, out, C: tl.constexpr):
    place = tl.arange(0, C)
    block = tl.load(x + place) * 2
    tl.store(x + place, block)
    tl.store(out, tl.max(block, 0))


def few_numbers(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    """Many ties; of floats many NaNs, a row and a column of them, and infinities where the type has those."""
    values = rng.integers(-3 if dtype.is_signed or dtype.is_float else 0, 4, shape).astype(np.float64)
    if dtype.is_float:
        if dtype.bits > 8:
            values[rng.random(shape) < 0.1] = rng.choice([-np.inf, np.inf])
        values[rng.random(shape) < 0.3] = np.nan
        values[1], values[:, 2] = np.nan, np.nan
    return values.astype(dtype.numpy)


def found(x: np.ndarray, axis: int, sign: int) -> tuple[np.ndarray, np.ndarray]:
    """The greatest (or, with a sign of -1, least) number and its first place; NaN at place 0 where there is none."""
    wide = x.astype(np.float64)
    numbers = ~np.isnan(wide)
    best = np.where(numbers, sign * wide, -np.inf).max(axis, keepdims=True)
    there = np.where(numbers.any(axis, keepdims=True), sign * wide == best, True)
    places = there.argmax(axis)
    return np.take_along_axis(wide, np.expand_dims(places, axis), axis).squeeze(axis), places


@pytest.mark.slow(but_every=4)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", dtypes.DTYPES, ids=str)
def test_ties_and_nans(dtype: DType, axis: int, way: bool | str, rng: np.random.Generator) -> None:
    if dtype.is_bool:
        x = rng.integers(0, 2, (ROWS, COLUMNS)).astype(bool)
    else:
        x = few_numbers(rng, dtype, (ROWS, COLUMNS))
    count = ROWS if axis else COLUMNS
    for left in (True, False):
        kinds = x.dtype, np.int32, x.dtype, np.int32, x.dtype, x.dtype
        results = [np.empty(count, kind) for kind in kinds]
        with settings.scope(interpret=way):
            extrema[(1,)](x, *results, R=ROWS, C=COLUMNS, AXIS=axis, LEFT=left)
        for sign, (value, place, plain) in ((1, (0, 1, 4)), (-1, (2, 3, 5))):
            values, places = found(x, axis, sign)
            assert np.array_equal(results[place], places)
            np.testing.assert_array_equal(results[value].astype(np.float64), values)
            np.testing.assert_array_equal(results[plain].astype(np.float64), values)


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize(("rows", "columns"), [(8, 64), (8, 61), (5, 64), (5, 33), (8, 1), (1, 64), (8, 0), (0, 64)])
@pytest.mark.parametrize("axis", [0, 1])
def test_of_masked_rows_that_hold_nothing_but_nan(axis: int, rows: int, columns: int, rng: np.random.Generator) -> None:
    x = rng.integers(-3, 4, (rows, columns)).astype(np.float32)
    x[rng.random(x.shape) < 0.4] = np.nan
    x[2:3], x[:, 2:3] = np.nan, np.nan
    for sign in (1, -1):
        block = np.full((8, 64), -sign * np.inf)
        block[:rows, :columns] = x
        results = [np.empty(8 if axis else 64, np.float32) for _ in range(2)]
        with settings.scope(interpret=False):
            masked_extrema[(1,)](x, *results, rows, columns, R=8, C=64, AXIS=axis)
        np.testing.assert_array_equal(results[0 if sign == 1 else 1], found(block, axis, sign)[0])


def test_running_extrema_that_begin_with_nan(rng: np.random.Generator) -> None:
    x = few_numbers(rng, dtypes.float32, (64, 3))[:, 0].copy()
    x[:3] = np.nan
    results = [np.empty(64, np.float32) for _ in range(2)]
    with settings.scope(interpret=False):
        running[(1,)](x, *results, C=64)
    np.testing.assert_array_equal(results[0], np.fmax.accumulate(x))
    np.testing.assert_array_equal(results[1], np.fmin.accumulate(x))


@pytest.mark.parametrize("numbers", [[], [3], [3, 40]])
def test_the_largest_of_what_is_stored_in_the_same_loop(numbers: list[int]) -> None:
    x = np.full(64, np.nan, np.float32)
    x[numbers] = numbers
    expected = 2 * np.fmax.reduce(x)
    out = np.empty(1, np.float32)
    with settings.scope(interpret=False):
        doubled_with_largest[(1,)](x, out, C=64)
    np.testing.assert_array_equal(out[0], expected)
