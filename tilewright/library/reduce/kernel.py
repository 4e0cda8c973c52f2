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
from tilewright.library.masks import and_masks, within


@tilewright.constexpr_function
def largest_finite(dtype):
    """The largest finite number of float32 or float64."""
    return 1.7976931348623157e308 if dtype.primitive_bitwidth == 64 else 3.4028234663852886e38


@tilewright.jit
def sum_of(left, right):
    """The combination of a sum."""
    return left + right


@tilewright.jit
def product_of(left, right):
    """The combination of a product."""
    return left * right


@tilewright.jit
def maximum_of(left, right):
    """The combination of a maximum that keeps NaN."""
    return tl.maximum(left, right, propagate_nan=tl.PropagateNan.ALL)


@tilewright.jit
def minimum_of(left, right):
    """The combination of a minimum that keeps NaN."""
    return tl.minimum(left, right, propagate_nan=tl.PropagateNan.ALL)


@tilewright.jit
def combine(left, right, KIND: tl.constexpr):
    """One step of the reduction `KIND`."""
    if KIND == "max":
        result = maximum_of(left, right)
    elif KIND == "min":
        result = minimum_of(left, right)
    elif KIND == "product":
        result = left * right
    else:
        result = left + right
    return result


@tilewright.jit
def reduce_axis(x, AXIS: tl.constexpr, KIND: tl.constexpr):
    """The reduction `KIND` of a block along one of its axes."""
    if KIND == "max":
        result = tl.reduce(x, AXIS, maximum_of)
    elif KIND == "min":
        result = tl.reduce(x, AXIS, minimum_of)
    elif KIND == "product":
        result = tl.reduce(x, AXIS, product_of)
    else:
        result = tl.reduce(x, AXIS, sum_of)
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
def cumulative_columns(x, out, length, inner, BLOCK: tl.constexpr, TYPE: tl.constexpr, COMBINE: tl.constexpr,
                       REVERSE: tl.constexpr):  # fmt: skip
    """out[outer, i, inner] = x[outer, 0, inner], .. x[outer, i, inner] combined, with `REVERSE` the elements from i to
    the last one.  Grid: (outer, column blocks).

    A sequential pass along the combined dimension, vectorised over the inner one.
    """
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = (column < inner) & (length > 0)
    first = tl.program_id(0).to(tl.int64) * length * inner + column
    stride = inner
    if REVERSE:
        first += (length - 1).to(tl.int64) * inner
        stride = -inner
    total = tl.load(x + first, mask=mask).to(TYPE)
    tl.store(out + first, total, mask=mask)
    for step in range(1, length):
        offsets = first + step.to(tl.int64) * stride
        total = COMBINE(total, tl.load(x + offsets, mask=mask).to(TYPE))
        tl.store(out + offsets, total, mask=mask)


@tilewright.jit
def cumulative_parts(x, out, length, LANES: tl.constexpr, TYPE: tl.constexpr, COMBINE: tl.constexpr,
                     INITIAL: tl.constexpr, REVERSE: tl.constexpr):  # fmt: skip
    """`cumulative_columns` of rows.  Grid: (rows,).

    The lanes of a vector walk through parts of the row, twice: for the parts' totals, and with what comes before each.
    """
    lane = tl.arange(0, LANES)
    part = tl.cdiv(length, LANES)
    begin = lane.to(tl.int64) * part
    count = tl.minimum(length - begin, part)
    first = tl.program_id(0).to(tl.int64) * length + begin
    stride = 1
    if REVERSE:
        first += length - 1 - 2 * begin
        stride = -1
    total = tl.full((LANES,), INITIAL, TYPE)
    for step in range(0, part):
        total = COMBINE(total, tl.load(x + first + step * stride, mask=step < count, other=INITIAL).to(TYPE))
    before = tl.gather(tl.associative_scan(total, 0, COMBINE), tl.maximum(lane - 1, 0), 0)
    total = tl.where(lane == 0, tl.full((LANES,), INITIAL, TYPE), before)
    for step in range(0, part):
        inside = step < count
        total = COMBINE(total, tl.load(x + first + step * stride, mask=inside, other=INITIAL).to(TYPE))
        tl.store(out + first + step * stride, total, mask=inside)
