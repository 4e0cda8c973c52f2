"""Reductions in the tile language, over the last dimension or over a middle one.

The input is seen as [outer, reduced, inner]; `PROLOGUE` gives its blocks and `EPILOGUE` turns the
reduced values into what is stored (the slots of `library.rows.kernel`).  `KIND` is sum, mean, max, min or
product; maxima and minima propagate NaN as NumPy does.
"""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl
from tilewright.library.functions import maximum, minimum, times, total
from tilewright.library.masks import and_masks, within


@tilewright.constexpr_function
def largest_finite(dtype):
    """The largest finite number of float32 or float64."""
    return 1.7976931348623157e308 if dtype.primitive_bitwidth == 64 else 3.4028234663852886e38


@tilewright.jit
def combine(left, right, KIND: tl.constexpr):
    """One step of the reduction `KIND`."""
    if KIND == "max":
        result = maximum(left, right)
    elif KIND == "min":
        result = minimum(left, right)
    elif KIND == "product":
        result = left * right
    else:
        result = left + right
    return result


@tilewright.jit
def reduce_axis(x, AXIS: tl.constexpr, KIND: tl.constexpr):
    """The reduction `KIND` of a block along one of its axes."""
    if KIND == "max":
        result = tl.reduce(x, AXIS, maximum)
    elif KIND == "min":
        result = tl.reduce(x, AXIS, minimum)
    elif KIND == "product":
        result = tl.reduce(x, AXIS, times)
    else:
        result = tl.reduce(x, AXIS, total)
    return result


@tilewright.jit
def log_of_powers(total, shift):
    """The logarithm of a sum of powers from what that is of e^(x - shift); infinite where an element is."""
    return tl.where(shift == float("inf"), shift, tl.log(total) + shift)


@tilewright.jit
def read_slot(PROLOGUE: tl.constexpr, row, column, mask, extra, inside, OUTSIDE: tl.constexpr, TYPE: tl.constexpr):
    """A block of a prologue, which reads under `mask`; `OUTSIDE` where `inside` does not hold."""
    x = PROLOGUE(row, column, mask, extra).to(TYPE)
    if len(x.shape) == 0:  # one number everywhere
        x = tl.broadcast_to(x, (row + column).shape)
    if inside is not None:
        x = tl.where(inside, x, OUTSIDE)
    return x


@tilewright.jit
def reduce_rows(out, rows, columns, *extra, ROWS: tl.constexpr, BLOCK: tl.constexpr, KIND: tl.constexpr,
                INITIAL: tl.constexpr, TYPE: tl.constexpr, MASK: tl.constexpr,
                PROLOGUE: tl.constexpr, EPILOGUE: tl.constexpr):  # fmt: skip
    """out[row] = EPILOGUE(reduction of PROLOGUE(row, :)), in chunks of `BLOCK` columns.

    `INITIAL` is the reduction's neutral element and `TYPE` the element type it is done in.
    """
    first = tl.program_id(0) * ROWS
    for index in range(first, tl.minimum(first + ROWS, rows)):
        row = index.to(tl.int64)
        value = tl.full((), INITIAL, TYPE)
        for start in range(0, columns, BLOCK):
            column = start + tl.arange(0, BLOCK)
            mask = within(column, columns, MASK)
            x = read_slot(PROLOGUE, row, column, mask, extra, mask, INITIAL, TYPE)
            value = combine(value, reduce_axis(x, 0, KIND), KIND)
        if KIND == "mean":
            value = value / columns
        tl.store(out + row, EPILOGUE(value, row, 0, None, extra))


@tilewright.jit
def reduce_columns(out, reduced, inner, *extra, BLOCK_R: tl.constexpr, BLOCK: tl.constexpr, KIND: tl.constexpr,
                   INITIAL: tl.constexpr, TYPE: tl.constexpr, MASK_R: tl.constexpr, MASK: tl.constexpr,
                   PROLOGUE: tl.constexpr, EPILOGUE: tl.constexpr):  # fmt: skip
    """out[outer, inner] = EPILOGUE(reduction of PROLOGUE over the middle dimension).

    The prologue's rows count [outer, reduced] together.  Grid: (column blocks, outer).
    """
    outer = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    partial = tl.full((BLOCK,), INITIAL, TYPE)
    for start in range(0, reduced, BLOCK_R):
        step = start + tl.arange(0, BLOCK_R)[:, None]
        row = outer * reduced + step
        inside = within(step, reduced, MASK_R)
        mask = and_masks(inside, within(column[None, :], inner, MASK))
        x = read_slot(PROLOGUE, row, column[None, :], mask, extra, inside, INITIAL, TYPE)
        x = tl.broadcast_to(x, (BLOCK_R, BLOCK))  # equal rows come as one
        partial = combine(partial, reduce_axis(x, 0, KIND), KIND)
    if KIND == "mean":
        partial = partial / reduced
    mask = within(column, inner, MASK)
    tl.store(out + outer * inner + column, EPILOGUE(partial, outer, column, mask, extra), mask=mask)


@tilewright.jit
def first_extreme(left, left_index, right, right_index, LARGEST: tl.constexpr):
    """The larger (or smaller) of two values with its index; the first one on a tie, NaN before all."""
    if LARGEST:
        better = (left > right) | ((left == right) & (left_index < right_index))
    else:
        better = (left < right) | ((left == right) & (left_index < right_index))
    left_nan = left != left
    right_nan = right != right
    both_numbers = (left == left) & (right == right)
    take_left = (left_nan & (~right_nan | (left_index < right_index))) | (both_numbers & better)
    return tl.where(take_left, left, right), tl.where(take_left, left_index, right_index)


@tilewright.jit
def first_largest(left, left_index, right, right_index):
    """The combination of argmax."""
    return first_extreme(left, left_index, right, right_index, True)


@tilewright.jit
def first_smallest(left, left_index, right, right_index):
    """The combination of argmin."""
    return first_extreme(left, left_index, right, right_index, False)


@tilewright.jit
def arg_extreme(x, out, reduced, outer_stride, reduced_stride, inner, LARGEST: tl.constexpr,
                INITIAL: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """out[outer, inner] = index of the largest (smallest) x[outer, :, inner].  Grid: (outer * inner,)."""
    position = tl.program_id(0).to(tl.int64)
    base = x + (position // inner) * outer_stride + position % inner
    best = tl.full((), INITIAL, x.dtype.element_ty)
    best_index = tl.full((), reduced, tl.int64)
    for start in range(0, reduced, BLOCK):
        index = start + tl.arange(0, BLOCK).to(tl.int64)
        mask = index < reduced
        value = tl.load(base + index * reduced_stride, mask=mask, other=INITIAL)
        index = tl.where(mask, index, reduced)
        if LARGEST:
            block_best, block_index = tl.reduce((value, index), 0, first_largest)
            best, best_index = first_largest(best, best_index, block_best, block_index)
        else:
            block_best, block_index = tl.reduce((value, index), 0, first_smallest)
            best, best_index = first_smallest(best, best_index, block_best, block_index)
    tl.store(out + position, best_index)


@tilewright.jit
def first_step(length, inner, REVERSE: tl.constexpr):
    """Where the elements of a running operation begin in [length, inner], and the way from each to the next."""
    first = tl.program_id(0).to(tl.int64) * length * inner
    stride = inner
    if REVERSE:
        first += (length - 1).to(tl.int64) * inner
        stride = -inner
    return first, stride


@tilewright.jit
def cumulative_columns(x, out, length, inner, BLOCK: tl.constexpr, MASK: tl.constexpr, TYPE: tl.constexpr,
                       COMBINE: tl.constexpr, REVERSE: tl.constexpr):  # fmt: skip
    """out[outer, i, inner] = x[outer, 0, inner], .. x[outer, i, inner] combined, with `REVERSE` the elements from i to
    the last one.  Grid: (outer, column blocks).

    A sequential pass along the combined dimension, vectorised over the inner one.
    """
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = within(column, inner, MASK)
    first, stride = first_step(length, inner, REVERSE)
    first += column
    exists = and_masks(length > 0, mask)
    total = tl.load(x + first, mask=exists).to(TYPE)
    tl.store(out + first, total, mask=exists)
    for step in range(1, length):
        offsets = first + step.to(tl.int64) * stride
        total = COMBINE(total, tl.load(x + offsets, mask=mask).to(TYPE))
        tl.store(out + offsets, total, mask=mask)


@tilewright.jit
def longer_sum(level, scaled, rest, x):
    """The sum of exponentials e^level * (scaled + rest) with e^x added to it, in the same form.

    `level` is an element that no later one exceeds by more than 1, so that `scaled` is 0 or from 1 to a few times the
    count, and is rarely scaled down: then by enough that errors of the factor fade.  `rest`: what rounding it took.
    """
    above = x > level + 1
    distance = tl.where(above, level - x, x - level)
    power = tl.exp(tl.where(x == level, 0.0, distance))  # infinite ones may be equal
    before = tl.where(above, scaled * power, scaled)
    term = tl.where(above, 1.0, power)
    after = before + term
    grown = after - before
    lost = (before - (after - grown)) + (term - grown)
    return tl.where(above, x, level), after, tl.where(above, rest * power, rest) + lost


@tilewright.jit
def joined_sums(level, scaled, other_level, other_scaled):
    """The sum of two sums of exponentials, without rests."""
    largest = maximum(level, other_level)
    power = tl.exp(tl.where(level == largest, 0.0, level - largest))
    other_power = tl.exp(tl.where(other_level == largest, 0.0, other_level - largest))
    return largest, scaled * power.to(tl.float64) + other_scaled * other_power.to(tl.float64)


@tilewright.jit
def sums_before(lane, level, scaled, rest):
    """The sums of exponentials of all lanes in front of each."""
    level, wide = tl.associative_scan((level, scaled.to(tl.float64) + rest.to(tl.float64)), 0, joined_sums)
    source = tl.maximum(lane - 1, 0)
    level = tl.where(lane == 0, -largest_finite(level.dtype), tl.gather(level, source, 0)).to(level.dtype)
    wide = tl.where(lane == 0, 0.0, tl.gather(wide, source, 0))
    scaled = wide.to(level.dtype)
    return level, scaled, (wide - scaled.to(tl.float64)).to(level.dtype)


@tilewright.jit
def log_of_sum(level, scaled, rest):
    """The logarithm of a sum of exponentials."""
    near = scaled + rest
    return level + (tl.log(near) + tl.where(near < 2, rest - (near - scaled), 0.0))  # matters where that is small


@tilewright.jit
def running_log_columns(x, out, length, inner, BLOCK: tl.constexpr, MASK: tl.constexpr, TYPE: tl.constexpr,
                        REVERSE: tl.constexpr):  # fmt: skip
    """The same where elements are combined as log(e^a + e^b)."""
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = within(column, inner, MASK)
    first, stride = first_step(length, inner, REVERSE)
    first += column
    level = tl.full((BLOCK,), -largest_finite(TYPE), TYPE)
    scaled = tl.full((BLOCK,), 0, TYPE)
    rest = scaled
    for step in range(0, length):
        offsets = first + step.to(tl.int64) * stride
        level, scaled, rest = longer_sum(level, scaled, rest, tl.load(x + offsets, mask=mask).to(TYPE))
        tl.store(out + offsets, log_of_sum(level, scaled, rest), mask=mask)


@tilewright.jit
def running_log_rows(x, out, length, LANES: tl.constexpr, TYPE: tl.constexpr, REVERSE: tl.constexpr):
    """`running_log_columns` of rows.  Grid: (rows,).

    The lanes of a vector walk through parts of the row, twice: for the parts' sums, and with what comes before each.
    """
    lane = tl.arange(0, LANES)
    part = tl.cdiv(length, LANES)
    begin = lane.to(tl.int64) * part
    count = tl.minimum(length - begin, part)
    first, stride = first_step(length, 1, REVERSE)
    first += begin * stride
    level = tl.full((LANES,), -largest_finite(TYPE), TYPE)
    scaled = tl.full((LANES,), 0, TYPE)
    rest = scaled
    for step in range(0, part):
        value = tl.load(x + first + step * stride, mask=step < count, other=float("-inf")).to(TYPE)
        level, scaled, rest = longer_sum(level, scaled, rest, value)
    level, scaled, rest = sums_before(lane, level, scaled, rest)
    for step in range(0, part):
        inside = step < count
        value = tl.load(x + first + step * stride, mask=inside, other=float("-inf")).to(TYPE)
        level, scaled, rest = longer_sum(level, scaled, rest, value)
        tl.store(out + first + step * stride, log_of_sum(level, scaled, rest), mask=inside)
