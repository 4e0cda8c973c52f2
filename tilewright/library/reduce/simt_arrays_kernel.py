"""Sums, means and extremes of arrays on GPUs, for operations on arrays: whole rows, or strips of columns in pieces."""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl
from tilewright.library.masked_loads import fetch, read_once
from tilewright.library.masks import and_masks, edge_mask, within
from tilewright.library.reduce.kernel import combine, reduce_axis


@tilewright.jit
def read_rows(x, rows, columns, row, first, INITIAL: tl.constexpr, BLOCK: tl.constexpr, MASK: tl.constexpr):
    """Columns `first`, … of some rows, [rows, BLOCK]; `INITIAL` outside."""
    column = first + tl.arange(0, BLOCK)[None, :]
    mask = edge_mask(row, column, rows, columns, MASK, MASK)
    return read_once(x, row.to(tl.int64) * columns + column, mask, INITIAL)


@tilewright.jit
def reduce_rows(x, out, rows, columns, factor, KIND: tl.constexpr, INITIAL: tl.constexpr, ROWS: tl.constexpr,
                BLOCK: tl.constexpr, WHOLE: tl.constexpr, MASK: tl.constexpr):  # fmt: skip
    """out[row] = reduction of x[row, :] * factor: the whole row at once, or chunks of `BLOCK` columns, in order."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    if WHOLE:
        total = read_rows(x, rows, columns, row, 0, INITIAL, BLOCK, MASK)
    else:
        total = tl.full((ROWS, BLOCK), INITIAL, tl.float32)
        for first in range(0, columns, BLOCK):
            total = combine(total, read_rows(x, rows, columns, row, first, INITIAL, BLOCK, MASK), KIND)
    result = reduce_axis(total, 1, KIND) * factor
    index = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    tl.store(out + index, result.to(out.dtype.element_ty), mask=index < rows)


@tilewright.jit
def lines_of(value, KIND: tl.constexpr, LINES: tl.constexpr):
    """Rows of a block put together to `LINES` rows of float32, which are all that is kept of it."""
    value = value.to(tl.float32)
    return reduce_axis(tl.reshape(value, (value.shape[0] // LINES, LINES, value.shape[1])), 0, KIND)


@tilewright.jit
def read_lines(place, row, end, column, inner, INITIAL: tl.constexpr, MASK_R: tl.constexpr, MASK: tl.constexpr):
    """Elements [rows, block] at `place`, `INITIAL` where there are no rows or columns."""
    mask = and_masks(within(row, end, MASK_R), within(column, inner, MASK))
    return fetch(place, 0, mask, INITIAL, "evict_first")


@tilewright.jit
def accumulate_rows(x, rows, inner, column, KIND: tl.constexpr, INITIAL: tl.constexpr, ROWS: tl.constexpr,
                    LINES: tl.constexpr, WHOLE: tl.constexpr, MASK_R: tl.constexpr, MASK: tl.constexpr):  # fmt: skip
    """The first `rows` rows of columns [1, block] from `x` on, every `LINES`-th of them put together: [LINES, block].

    `ROWS` rows are loaded at once: all of them (`WHOLE`), or the next ones while these are added.  `MASK_R` and `MASK`:
    some of the rows, the columns do not exist.
    """
    row = tl.arange(0, ROWS)[:, None]
    place = x + (row * inner + column)
    coming = read_lines(place, row, rows, column, inner, INITIAL, MASK_R, MASK)
    if not WHOLE:
        total = tl.full((LINES, column.shape[1]), INITIAL, tl.float32)
        for _ in range(ROWS, rows, ROWS):
            value = coming
            place += ROWS * inner
            row += ROWS
            coming = read_lines(place, row, rows, column, inner, INITIAL, MASK_R, MASK)
            total = combine(total, lines_of(value, KIND, LINES), KIND)
    result = lines_of(coming, KIND, LINES)
    if not WHOLE:
        result = combine(total, result, KIND)
    return result


@tilewright.jit
def reduce_columns(x, out, reduced, share, inner, factor, KIND: tl.constexpr, INITIAL: tl.constexpr,
                   ROWS: tl.constexpr, LINES: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr,
                   MASK_R: tl.constexpr, MASK: tl.constexpr, STEP: tl.constexpr = 0,
                   LARGE: tl.constexpr = False):  # fmt: skip
    """out[outer, piece, inner] = reduction over a piece of the rows of x[outer, reduced, inner] * factor.

    Grid: (column blocks, pieces, outer), counted together along its first axis where they are more than the others
    take or a block's rows are more than 2^31 elements apart (`LARGE`).  Pieces have `share` rows, the last one what is
    left, and are reduced by a second launch, in order: results do not vary.  That one (`STEP` 2) starts while the first
    (`STEP` 1) still runs, and waits for it.
    """
    if STEP == 1:
        tl.extra.cuda.gdc_launch_dependents()
    if STEP == 2:
        tl.extra.cuda.gdc_wait()
    strip = tl.program_id(0)
    if LARGE:
        inner = inner.to(tl.int64)
        strips, pieces = tl.cdiv(inner, BLOCK).to(tl.int32), tl.cdiv(reduced, share)
        strip, piece, outer = strip % strips, strip // strips % pieces, (strip // strips // pieces).to(tl.int64)
        column = strip * BLOCK + tl.arange(0, BLOCK)[None, :]
    else:
        column = strip * BLOCK + tl.arange(0, BLOCK)[None, :]
        piece, outer = tl.program_id(1), tl.program_id(2).to(tl.int64)
    start = piece * share
    x += (outer * reduced + start) * inner
    rows = tl.minimum(share, reduced - start)
    total = accumulate_rows(x, rows, inner, column, KIND, INITIAL, ROWS, LINES, WHOLE, MASK_R, MASK)
    result = reduce_axis(total, 0, KIND) * factor
    index = strip * BLOCK + tl.arange(0, BLOCK)
    if not LARGE:
        pieces = tl.num_programs(1)
    place = (outer * pieces + piece) * inner + index
    tl.store(out + place, result.to(out.dtype.element_ty), mask=index < inner)
