"""Positions of extremes and running combinations on GPUs, along the last dimension or a middle one.

The input is seen as [outer, reduced, inner]. A CTA takes a tile, along the reduced dimension as much of it as its part
holds; where there are several parts (`share` elements each, the last one what is left), a second launch puts them
together, in order.  Masked-out elements are `INITIAL`, which no element is worse than.  The slots are those of
`library.rows.kernel`.
"""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl
from tilewright.library.masks import and_masks, within
from tilewright.library.reduce.kernel import combine, first_largest, first_smallest, read_slot, reduce_axis


@tilewright.jit
def own_rows(reduced, share, ROWS: tl.constexpr, PARTS: tl.constexpr):
    """The rows, the part and its elements [start, stop) of this CTA.  Grid: (blocks of rows * parts,)."""
    own = tl.program_id(0)
    part = own % PARTS
    start = part * share
    row = (own // PARTS * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    return row, part, start, tl.minimum(start + share, reduced)


@tilewright.jit
def own_columns(reduced, inner, share, BLOCK: tl.constexpr, PARTS: tl.constexpr):
    """The columns, the part, the outer index and the part's elements [start, stop) of this CTA.

    Grid: (column blocks * parts * outer,).
    """
    strips = tl.cdiv(inner, BLOCK).to(tl.int32)
    own = tl.program_id(0)
    part = own // strips % PARTS
    start = part * share
    column = own % strips * BLOCK + tl.arange(0, BLOCK)
    return column, part, (own // strips // PARTS).to(tl.int64), start, tl.minimum(start + share, reduced)


@tilewright.jit
def better(value, best, LARGEST: tl.constexpr):
    """Where a later element is to be taken in place of an earlier one: beyond it, or the first NaN."""
    if LARGEST:
        beyond = value > best
    else:
        beyond = value < best
    if value.dtype.is_floating():
        beyond = beyond | ((value != value) & (best == best))
    return beyond


@tilewright.jit
def first_extreme_of(value, place, AXIS: tl.constexpr, LARGEST: tl.constexpr):
    """The extreme of a block along an axis and its place, the first one of equals."""
    if LARGEST:
        result, found = tl.reduce((value, place), AXIS, first_largest)
    else:
        result, found = tl.reduce((value, place), AXIS, first_smallest)
    return result, found


@tilewright.jit
def extreme_of_rows(out, values, rows, reduced, share, *extra, ROWS: tl.constexpr, BLOCK: tl.constexpr,
                    PARTS: tl.constexpr, LARGEST: tl.constexpr, INITIAL: tl.constexpr, TYPE: tl.constexpr,
                    PLACE: tl.constexpr, PROLOGUE: tl.constexpr, EPILOGUE: tl.constexpr):  # fmt: skip
    """out[row] = EPILOGUE(where the extreme of PROLOGUE(row, :) is); of several parts where that of each is, as it is,
    and values[row, part] what it is.

    Grid: (blocks of rows * parts,).
    """
    row, part, start, stop = own_rows(reduced, share, ROWS, PARTS)
    exists = row[:, None] < rows
    column = start + tl.arange(0, BLOCK)[None, :]
    inside = column < stop
    best = read_slot(PROLOGUE, row[:, None], column, exists & inside, extra, inside, INITIAL, TYPE)
    best = tl.broadcast_to(best, (ROWS, BLOCK))
    place = tl.broadcast_to(tl.where(column < stop, column, reduced).to(PLACE), (ROWS, BLOCK))
    for first in range(start + BLOCK, stop, BLOCK):
        column = first + tl.arange(0, BLOCK)[None, :]
        inside = column < stop
        value = read_slot(PROLOGUE, row[:, None], column, exists & inside, extra, inside, INITIAL, TYPE)
        later = better(value, best, LARGEST)
        best = tl.where(later, value, best)
        place = tl.where(later, column.to(PLACE), place)
    result, found = first_extreme_of(best, place, 1, LARGEST)
    inside = row < rows
    if PARTS > 1:
        tl.store(values + row * PARTS + part, result, mask=inside)
        tl.store(out + row * PARTS + part, found, mask=inside)
    else:
        tl.store(out + row, EPILOGUE(found.to(tl.int64), row, 0, inside, extra), mask=inside)


@tilewright.jit
def extreme_of_columns(out, values, reduced, inner, share, *extra, BLOCK_R: tl.constexpr, BLOCK: tl.constexpr,
                       PARTS: tl.constexpr, LARGEST: tl.constexpr, INITIAL: tl.constexpr, TYPE: tl.constexpr,
                       PLACE: tl.constexpr, PROLOGUE: tl.constexpr, EPILOGUE: tl.constexpr):  # fmt: skip
    """The same along a middle dimension, whose prologue's rows count [outer, reduced] together.

    Grid: (column blocks * parts * outer,).
    """
    index, part, outer, start, stop = own_columns(reduced, inner, share, BLOCK, PARTS)
    column = index[None, :]
    exists = column < inner
    step = start + tl.arange(0, BLOCK_R)[:, None]
    inside = step < stop
    best = read_slot(PROLOGUE, outer * reduced + step, column, exists & inside, extra, inside, INITIAL, TYPE)
    best = tl.broadcast_to(best, (BLOCK_R, BLOCK))
    place = tl.broadcast_to(tl.where(step < stop, step, reduced).to(PLACE), (BLOCK_R, BLOCK))
    for first in range(start + BLOCK_R, stop, BLOCK_R):
        step = first + tl.arange(0, BLOCK_R)[:, None]
        inside = step < stop
        value = read_slot(PROLOGUE, outer * reduced + step, column, exists & inside, extra, inside, INITIAL, TYPE)
        later = better(value, best, LARGEST)
        best = tl.where(later, value, best)
        place = tl.where(later, step.to(PLACE), place)
    result, found = first_extreme_of(best, place, 0, LARGEST)
    target = (outer * PARTS + part) * inner + index
    inside = index < inner
    if PARTS > 1:
        tl.store(values + target, result, mask=inside)
        tl.store(out + target, found, mask=inside)
    else:
        tl.store(out + target, EPILOGUE(found.to(tl.int64), outer, index, inside, extra), mask=inside)


@tilewright.jit
def extreme_of_parts(places, values, out, inner, *extra, LANES: tl.constexpr, BLOCK: tl.constexpr,
                     PARTS: tl.constexpr, LARGEST: tl.constexpr, INITIAL: tl.constexpr, LAST: tl.constexpr,
                     EPILOGUE: tl.constexpr):  # fmt: skip
    """out[outer, inner] = EPILOGUE(the place of the extreme of all parts).  `LAST`: beyond all places.

    Grid: (column blocks * outer,).
    """
    strips = tl.cdiv(inner, BLOCK).to(tl.int32)
    index = tl.program_id(0) % strips * BLOCK + tl.arange(0, BLOCK)
    outer = (tl.program_id(0) // strips).to(tl.int64)
    lane = tl.arange(0, LANES)[:, None]
    mask = (lane < PARTS) & (index < inner)[None, :]
    source = (outer * PARTS + lane) * inner + index[None, :]
    value = tl.load(values + source, mask=mask, other=INITIAL)
    place = tl.load(places + source, mask=mask, other=LAST)
    result, found = first_extreme_of(value, place, 0, LARGEST)
    inside = index < inner
    tl.store(out + outer * inner + index, EPILOGUE(found.to(tl.int64), outer, index, inside, extra), mask=inside)


@tilewright.jit
def totals_of_rows(totals, rows, reduced, share, *extra, ROWS: tl.constexpr, BLOCK: tl.constexpr,
                   PARTS: tl.constexpr, INITIAL: tl.constexpr, TYPE: tl.constexpr, COMBINE: tl.constexpr,
                   PROLOGUE: tl.constexpr):  # fmt: skip
    """totals[row, part] = all elements of a part of PROLOGUE(row, :) combined.  Grid: (blocks of rows * parts,)."""
    row, part, start, stop = own_rows(reduced, share, ROWS, PARTS)
    total = tl.full((ROWS, BLOCK), INITIAL, TYPE)
    for first in range(start, stop, BLOCK):
        column = first + tl.arange(0, BLOCK)[None, :]
        inside = column < stop
        mask = (row[:, None] < rows) & inside
        total = COMBINE(total, read_slot(PROLOGUE, row[:, None], column, mask, extra, inside, INITIAL, TYPE))
    tl.store(totals + row * PARTS + part, tl.reduce(total, 1, COMBINE), mask=row < rows)


@tilewright.jit
def block_start(start, stop, step, BLOCK: tl.constexpr, REVERSE: tl.constexpr):
    """The first element of a part's block that is `step` elements after its first block, or before its last one.

    Both are at `start` where the part is empty: a block before it would lie inside another row."""
    if REVERSE:
        first = start + (tl.maximum(tl.cdiv(stop - start, BLOCK), 1) - 1) * BLOCK - step
    else:
        first = start + step
    return first


@tilewright.jit
def parts_before(lane, part, PARTS: tl.constexpr, REVERSE: tl.constexpr):
    """Which parts come before one in the order of a running sum."""
    if REVERSE:
        before = (lane > part) & (lane < PARTS)
    else:
        before = lane < part
    return before


@tilewright.jit
def cumulative_rows(out, totals, rows, reduced, share, *extra, ROWS: tl.constexpr, BLOCK: tl.constexpr,
                    PARTS: tl.constexpr, LANES: tl.constexpr, INITIAL: tl.constexpr, TYPE: tl.constexpr,
                    COMBINE: tl.constexpr, REVERSE: tl.constexpr, WHOLE: tl.constexpr, PROLOGUE: tl.constexpr,
                    EPILOGUE: tl.constexpr):  # fmt: skip
    """out[row, i] = EPILOGUE(PROLOGUE(row, 0), .. PROLOGUE(row, i) combined), with `REVERSE` the elements from i to the
    last one; of several parts, after `totals_of_rows`.

    `WHOLE`: a row is one block.  Grid: (blocks of rows * parts,).
    """
    row, part, start, stop = own_rows(reduced, share, ROWS, PARTS)
    row = row[:, None]
    lanes = tl.arange(0, BLOCK)[None, :]
    column = block_start(start, stop, 0, BLOCK, REVERSE) + lanes
    inside = column < stop
    mask = (row < rows) & inside
    coming = read_slot(PROLOGUE, row, column, mask, extra, inside, INITIAL, TYPE)
    coming = tl.broadcast_to(coming, (ROWS, BLOCK))
    if WHOLE:
        result = EPILOGUE(tl.associative_scan(coming, 1, COMBINE, REVERSE), row, column, mask, extra)
        tl.store(out + row * reduced + column, result, mask=mask)
    else:
        lane = tl.arange(0, LANES)[None, :]
        before = tl.full((ROWS, LANES), INITIAL, TYPE)
        if PARTS > 1:
            earlier = parts_before(lane, part, PARTS, REVERSE)
            before = tl.load(totals + row * PARTS + lane, mask=(row < rows) & earlier, other=INITIAL)
        total = tl.reduce(before, 1, COMBINE)[:, None]
        for step in range(0, stop - start, BLOCK):
            value = coming
            column = block_start(start, stop, step, BLOCK, REVERSE) + lanes
            mask = (row < rows) & (column < stop)
            ahead = block_start(start, stop, step + BLOCK, BLOCK, REVERSE) + lanes
            inside = (ahead >= start) if REVERSE else (ahead < stop)
            coming = read_slot(PROLOGUE, row, ahead, (row < rows) & inside, extra, inside, INITIAL, TYPE)
            coming = tl.broadcast_to(coming, (ROWS, BLOCK))
            found = tl.associative_scan(value, 1, COMBINE, REVERSE)
            first = (part == (PARTS - 1 if REVERSE else 0)) & (step == 0)  # nothing comes before
            found = tl.where(first, found, COMBINE(total, found))
            tl.store(out + row * reduced + column, EPILOGUE(found, row, column, mask, extra), mask=mask)
            total = COMBINE(total, tl.reduce(value, 1, COMBINE)[:, None])


@tilewright.jit
def totals_of_columns(totals, reduced, inner, share, *extra, BLOCK_R: tl.constexpr, BLOCK: tl.constexpr,
                      PARTS: tl.constexpr, INITIAL: tl.constexpr, TYPE: tl.constexpr, COMBINE: tl.constexpr,
                      PROLOGUE: tl.constexpr):  # fmt: skip
    """totals[outer, part, inner] = the same of a middle dimension.  Grid: (column blocks * parts * outer,)."""
    index, part, outer, start, stop = own_columns(reduced, inner, share, BLOCK, PARTS)
    column = index[None, :]
    total = tl.full((BLOCK_R, BLOCK), INITIAL, TYPE)
    for first in range(start, stop, BLOCK_R):
        step = first + tl.arange(0, BLOCK_R)[:, None]
        inside = step < stop
        mask = (column < inner) & inside
        x = read_slot(PROLOGUE, outer * reduced + step, column, mask, extra, inside, INITIAL, TYPE)
        total = COMBINE(total, x)
    target = (outer * PARTS + part) * inner + index
    tl.store(totals + target, tl.reduce(total, 0, COMBINE), mask=index < inner)


@tilewright.jit
def cumulative_columns(out, totals, reduced, inner, share, *extra, BLOCK_R: tl.constexpr, BLOCK: tl.constexpr,
                       PARTS: tl.constexpr, LANES: tl.constexpr, INITIAL: tl.constexpr, TYPE: tl.constexpr,
                       COMBINE: tl.constexpr, REVERSE: tl.constexpr, ONE_BLOCK: tl.constexpr, PROLOGUE: tl.constexpr,
                       EPILOGUE: tl.constexpr):  # fmt: skip
    """The same along a middle dimension, whose slots' rows count [outer, reduced] together; of several parts, after
    `totals_of_columns`.  `ONE_BLOCK`: no part has more.  Grid: (column blocks * parts * outer,)."""
    index, part, outer, start, stop = own_columns(reduced, inner, share, BLOCK, PARTS)
    column = index[None, :]
    exists = column < inner
    before = tl.full((LANES, BLOCK), INITIAL, TYPE)
    if PARTS > 1:
        lane = tl.arange(0, LANES)[:, None]
        place = (outer * PARTS + lane) * inner + column
        earlier = parts_before(lane, part, PARTS, REVERSE)
        before = tl.load(totals + place, mask=exists & earlier, other=INITIAL)
    total = tl.reduce(before, 0, COMBINE)[None, :]
    lanes = tl.arange(0, BLOCK_R)[:, None]
    place = block_start(start, stop, 0, BLOCK_R, REVERSE) + lanes
    row = outer * reduced
    inside = place < stop
    coming = read_slot(PROLOGUE, row + place, column, exists & inside, extra, inside, INITIAL, TYPE)
    coming = tl.broadcast_to(coming, (BLOCK_R, BLOCK))
    if ONE_BLOCK:
        found = tl.associative_scan(coming, 0, COMBINE, REVERSE)
        if PARTS > 1:
            found = tl.where(part == (PARTS - 1 if REVERSE else 0), found, COMBINE(total, found))
        mask = exists & inside
        tl.store(out + (row + place) * inner + column, EPILOGUE(found, row + place, column, mask, extra), mask=mask)
    else:
        for step in range(0, stop - start, BLOCK_R):
            value = coming
            place = block_start(start, stop, step, BLOCK_R, REVERSE) + lanes
            mask = exists & (place < stop)
            ahead = block_start(start, stop, step + BLOCK_R, BLOCK_R, REVERSE) + lanes
            inside = (ahead >= start) if REVERSE else (ahead < stop)
            coming = read_slot(PROLOGUE, row + ahead, column, exists & inside, extra, inside, INITIAL, TYPE)
            coming = tl.broadcast_to(coming, (BLOCK_R, BLOCK))
            found = tl.associative_scan(value, 0, COMBINE, REVERSE)
            first = (part == (PARTS - 1 if REVERSE else 0)) & (step == 0)  # nothing comes before
            found = tl.where(first, found, COMBINE(total, found))
            result = EPILOGUE(found, row + place, column, mask, extra)
            tl.store(out + (row + place) * inner + column, result, mask=mask)
            total = COMBINE(total, tl.reduce(value, 0, COMBINE)[None, :])


@tilewright.jit
def reduce_rows(out, rows, columns, *extra, ROWS: tl.constexpr, BLOCK: tl.constexpr, KIND: tl.constexpr,
                INITIAL: tl.constexpr, TYPE: tl.constexpr, MASK: tl.constexpr,
                PROLOGUE: tl.constexpr, EPILOGUE: tl.constexpr):  # fmt: skip
    """out[row] = EPILOGUE(reduction of PROLOGUE(row, :)), chunks of `BLOCK` columns combined in order.

    `INITIAL` is the reduction's neutral element and `TYPE` the element type it is done in.
    """
    index = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    row = index[:, None]
    partial = tl.full((ROWS, BLOCK), INITIAL, TYPE)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)[None, :]
        inside = within(column, columns, MASK)
        mask = and_masks(within(row, rows, MASK), inside)
        x = read_slot(PROLOGUE, row, column, mask, extra, inside, INITIAL, TYPE)
        partial = combine(partial, x, KIND)
    value = reduce_axis(partial, 1, KIND)
    if KIND == "mean":
        value = value / columns
    inside = within(index, rows, MASK)
    tl.store(out + index, EPILOGUE(value, index, 0, inside, extra), mask=inside)


@tilewright.jit
def reduce_columns(out, reduced, inner, *extra, BLOCK_R: tl.constexpr, BLOCK: tl.constexpr, KIND: tl.constexpr,
                   INITIAL: tl.constexpr, TYPE: tl.constexpr, MASK_R: tl.constexpr, MASK: tl.constexpr,
                   PROLOGUE: tl.constexpr, EPILOGUE: tl.constexpr):  # fmt: skip
    """out[outer, inner] = EPILOGUE(reduction of PROLOGUE over the middle dimension), row by row in registers.

    The prologue's rows count [outer, reduced] together.  Grid: (column blocks, outer).
    """
    outer = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    partial = tl.full((BLOCK_R, BLOCK), INITIAL, TYPE)
    for start in range(0, reduced, BLOCK_R):
        step = start + tl.arange(0, BLOCK_R)[:, None]
        row = outer * reduced + step
        inside = within(step, reduced, MASK_R)
        mask = and_masks(inside, within(column[None, :], inner, MASK))
        x = read_slot(PROLOGUE, row, column[None, :], mask, extra, inside, INITIAL, TYPE)
        partial = combine(partial, x, KIND)
    value = reduce_axis(partial, 0, KIND)
    if KIND == "mean":
        value = value / reduced
    inside = within(column, inner, MASK)
    tl.store(out + outer * inner + column, EPILOGUE(value, outer, column, inside, extra), mask=inside)
