"""Reductions on GPUs whose rows or columns are divided into parts: the launch that reduces each part.

A part is one of `PARTS`, of `share` columns or rows; the last ones may be shorter, or empty.
"""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl
from tilewright.library.reduce.kernel import combine, read_slot, reduce_axis
from tilewright.library.reduce.simt_kernel import own_columns


@tilewright.jit
def own_part(columns, share, PARTS: tl.constexpr):
    """The row and the columns [start, stop) of this CTA, and its part.  Grid: (parts * rows,)."""
    part = tl.program_id(0) % PARTS
    start = part * share
    return (tl.program_id(0) // PARTS).to(tl.int64), start, tl.minimum(start + share, columns), part


@tilewright.jit
def reduce_parts(out, columns, share, *extra, BLOCK: tl.constexpr, PARTS: tl.constexpr, KIND: tl.constexpr,
                 INITIAL: tl.constexpr, TYPE: tl.constexpr, PROLOGUE: tl.constexpr):  # fmt: skip
    """out[row, part] = the reduction of a part of PROLOGUE(row, :); of a mean, its sum divided by all columns."""
    row, start, stop, part = own_part(columns, share, PARTS)
    partial = tl.full((BLOCK,), INITIAL, TYPE)
    for first in range(start, stop, BLOCK):
        column = first + tl.arange(0, BLOCK)
        mask = column < stop
        partial = combine(partial, read_slot(PROLOGUE, row, column, mask, extra, mask, INITIAL, TYPE), KIND)
    value = reduce_axis(partial, 0, KIND)
    if KIND == "mean":
        value = value / columns
    tl.store(out + row * PARTS + part, value)


@tilewright.jit
def reduce_column_parts(out, reduced, inner, share, *extra, BLOCK_R: tl.constexpr, BLOCK: tl.constexpr,
                        PARTS: tl.constexpr, KIND: tl.constexpr, INITIAL: tl.constexpr, TYPE: tl.constexpr,
                        PROLOGUE: tl.constexpr):  # fmt: skip
    """out[outer, part, inner] = the same of a part of PROLOGUE's middle dimension.

    The prologue's rows count [outer, reduced] together.  Grid: (column blocks * parts * outer,).
    """
    column, part, outer, start, stop = own_columns(reduced, inner, share, BLOCK, PARTS)
    partial = tl.full((BLOCK_R, BLOCK), INITIAL, TYPE)
    for first in range(start, stop, BLOCK_R):
        step = first + tl.arange(0, BLOCK_R)[:, None]
        inside = step < stop
        mask = inside & (column[None, :] < inner)
        x = read_slot(PROLOGUE, outer * reduced + step, column[None, :], mask, extra, inside, INITIAL, TYPE)
        partial = combine(partial, x, KIND)
    value = reduce_axis(partial, 0, KIND)
    if KIND == "mean":
        value = value / reduced
    tl.store(out + (outer * PARTS + part) * inner + column, value, mask=column < inner)
