"""Rows longer than registers hold, on GPUs: each divided into parts, of which a CTA takes one.

A first launch puts every part together (`*_parts`), a second one does that with the numbers of a row's parts and
computes the results; where there are rows enough for all processors, one launch walks each row twice (`*_long`).
Parts are combined in order, so results do not vary.  The slots are those of `library.rows.kernel`; parts have `share`
columns, the last one what is left, and there may be empty ones.
"""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl
from tilewright.library.functions import maximum
from tilewright.library.reduce.kernel import largest_finite, log_of_powers
from tilewright.library.reduce.simt_parts_kernel import own_part
from tilewright.library.rows.kernel import store_softmax


@tilewright.jit
def sum_of_powers(row, start, stop, extra, BLOCK: tl.constexpr, TYPE: tl.constexpr, PROLOGUE: tl.constexpr):
    """The largest element of some columns, and the sum of e^(x - largest); a lane has its own of both until the end."""
    largest = tl.full((BLOCK,), -largest_finite(TYPE), TYPE)  # finite: no difference of infinities is taken
    total = tl.zeros((BLOCK,), TYPE)
    for first in range(start, stop, BLOCK):
        column = first + tl.arange(0, BLOCK)
        mask = column < stop
        x = tl.where(mask, PROLOGUE(row, column, mask, extra).to(TYPE), float("-inf"))
        larger = maximum(largest, x)
        total = total * tl.exp(largest - larger) + tl.exp(x - larger)
        largest = larger
    shift = tl.reduce(largest, 0, maximum)
    return shift, tl.sum(total * tl.exp(largest - shift), 0)


@tilewright.jit
def softmax_long(out, columns, *extra, BLOCK: tl.constexpr, LOG: tl.constexpr, TYPE: tl.constexpr,
                 PROLOGUE: tl.constexpr, EPILOGUE: tl.constexpr):  # fmt: skip
    """out[row, :] = EPILOGUE(softmax(PROLOGUE(row))); its logarithm when `LOG`.  Grid: (rows,)."""
    row = tl.program_id(0).to(tl.int64)
    shift, total = sum_of_powers(row, 0, columns, extra, BLOCK, TYPE, PROLOGUE)
    store_softmax(out, row, 0, columns, columns, shift, total, extra, BLOCK, LOG, TYPE, PROLOGUE, EPILOGUE)


@tilewright.jit
def powers_of_parts(largest, total, columns, share, *extra, BLOCK: tl.constexpr, PARTS: tl.constexpr,
                    TYPE: tl.constexpr, PROLOGUE: tl.constexpr):  # fmt: skip
    """largest[row, part] and total[row, part]: a part's largest element and its sum of powers."""
    row, start, stop, part = own_part(columns, share, PARTS)
    shift, powers = sum_of_powers(row, start, stop, extra, BLOCK, TYPE, PROLOGUE)
    place = row * PARTS + part
    tl.store(largest + place, shift)
    tl.store(total + place, powers)


@tilewright.jit
def powers_of_row(largest, total, row, PARTS: tl.constexpr, LANES: tl.constexpr):
    """What `powers_of_parts` left of a row, put together."""
    lane = tl.arange(0, LANES)
    inside = lane < PARTS
    tops = tl.load(largest + row * PARTS + lane, mask=inside, other=-largest_finite(largest.dtype.element_ty))
    sums = tl.load(total + row * PARTS + lane, mask=inside, other=0.0)
    shift = tl.reduce(tops, 0, maximum)
    return shift, tl.sum(sums * tl.exp(tops - shift), 0)


@tilewright.jit
def softmax_of_parts(out, largest, total, columns, share, *extra, BLOCK: tl.constexpr, PARTS: tl.constexpr,
                     LANES: tl.constexpr, LOG: tl.constexpr, TYPE: tl.constexpr, PROLOGUE: tl.constexpr,
                     EPILOGUE: tl.constexpr):  # fmt: skip
    """The second launch of a softmax in parts, after `powers_of_parts`."""
    row, start, stop, part = own_part(columns, share, PARTS)
    shift, powers = powers_of_row(largest, total, row, PARTS, LANES)
    store_softmax(out, row, start, stop, columns, shift, powers, extra, BLOCK, LOG, TYPE, PROLOGUE, EPILOGUE)


@tilewright.jit
def log_sum_of_parts(out, largest, total, *extra, PARTS: tl.constexpr, LANES: tl.constexpr, EPILOGUE: tl.constexpr):
    """out[row] = EPILOGUE(log(sum(exp(PROLOGUE(row))))), after `powers_of_parts`.  Grid: (rows,)."""
    row = tl.program_id(0).to(tl.int64)
    shift, powers = powers_of_row(largest, total, row, PARTS, LANES)
    tl.store(out + row, EPILOGUE(log_of_powers(powers, shift), row, 0, None, extra))


@tilewright.jit
def moments(row, start, stop, extra, BLOCK: tl.constexpr, CENTER: tl.constexpr, TYPE: tl.constexpr,
            PROLOGUE: tl.constexpr):  # fmt: skip
    """The mean of some columns, 0 without `CENTER`, and the sum of squares of what they differ from it.

    Blocks are put together by the formula of Chan, Golub and LeVeque, which loses nothing where the mean is large.
    """
    mean = tl.zeros((), TYPE)
    squares = tl.zeros((), TYPE)
    for first in range(start, stop, BLOCK):
        column = first + tl.arange(0, BLOCK)
        mask = column < stop
        x = tl.where(mask, PROLOGUE(row, column, mask, extra).to(TYPE), 0.0)
        if CENTER:
            before = (first - start).to(TYPE)
            count = tl.minimum(stop - first, BLOCK).to(TYPE)
            own = tl.sum(x, 0) / count
            x = tl.where(mask, x - own, 0.0)
            part = count / (before + count)
            squares += (own - mean) * (own - mean) * (before * part)
            mean += (own - mean) * part
        squares += tl.sum(x * x, 0)
    return mean, squares


@tilewright.jit
def store_normalized(out, row, start, stop, columns, mean, factor, extra, BLOCK: tl.constexpr, TYPE: tl.constexpr,
                     PROLOGUE: tl.constexpr, EPILOGUE: tl.constexpr):  # fmt: skip
    """(x - mean) * factor of some columns."""
    for first in range(start, stop, BLOCK):
        column = first + tl.arange(0, BLOCK)
        mask = column < stop
        x = PROLOGUE(row, column, mask, extra).to(TYPE) - mean
        tl.store(out + row * columns + column, EPILOGUE(x * factor, row, column, mask, extra), mask=mask)


@tilewright.jit
def normalize_long(out, columns, epsilon, *extra, BLOCK: tl.constexpr, CENTER: tl.constexpr, TYPE: tl.constexpr,
                   PROLOGUE: tl.constexpr, EPILOGUE: tl.constexpr):  # fmt: skip
    """out[row, :] = EPILOGUE((x - mean) / sqrt(variance + epsilon)); without `CENTER` the mean is 0.  Grid: (rows,)."""
    row = tl.program_id(0).to(tl.int64)
    mean, squares = moments(row, 0, columns, extra, BLOCK, CENTER, TYPE, PROLOGUE)
    factor = 1.0 / tl.sqrt(squares / columns + epsilon)
    store_normalized(out, row, 0, columns, columns, mean, factor, extra, BLOCK, TYPE, PROLOGUE, EPILOGUE)


@tilewright.jit
def moments_of_parts(means, squares, columns, share, *extra, BLOCK: tl.constexpr, PARTS: tl.constexpr,
                     CENTER: tl.constexpr, TYPE: tl.constexpr, PROLOGUE: tl.constexpr):  # fmt: skip
    """means[row, part] and squares[row, part]: a part's `moments`."""
    row, start, stop, part = own_part(columns, share, PARTS)
    mean, sum_of_squares = moments(row, start, stop, extra, BLOCK, CENTER, TYPE, PROLOGUE)
    place = row * PARTS + part
    tl.store(means + place, mean)
    tl.store(squares + place, sum_of_squares)


@tilewright.jit
def normalize_of_parts(out, means, squares, columns, share, epsilon, *extra, BLOCK: tl.constexpr, PARTS: tl.constexpr,
                       LANES: tl.constexpr, CENTER: tl.constexpr, TYPE: tl.constexpr, PROLOGUE: tl.constexpr,
                       EPILOGUE: tl.constexpr):  # fmt: skip
    """The second launch of a norm in parts, after `moments_of_parts`."""
    row, start, stop, part = own_part(columns, share, PARTS)
    lane = tl.arange(0, LANES).to(part.dtype)
    inside = lane < PARTS
    count = tl.maximum(tl.minimum(columns - lane * share, share), 0).to(TYPE)
    parts = tl.load(squares + row * PARTS + lane, mask=inside, other=0.0)
    mean = tl.zeros((), TYPE)
    if CENTER:
        own = tl.load(means + row * PARTS + lane, mask=inside, other=0.0)
        count = tl.where(inside, count, 0.0)
        mean = tl.sum(own * count, 0) / columns
        parts += count * (own - mean) * (own - mean)
    factor = 1.0 / tl.sqrt(tl.sum(parts, 0) / columns + epsilon)
    store_normalized(out, row, start, stop, columns, mean, factor, extra, BLOCK, TYPE, PROLOGUE, EPILOGUE)
