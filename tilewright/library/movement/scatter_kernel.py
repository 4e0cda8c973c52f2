"""Slices of a tensor replaced at indices (index_copy, a static KV cache), the last of equal indices winning; or
combined with updates (scatter_add): in the order of the indices, or by atomic operations in no fixed order."""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl
from tilewright.library.functions import maximum, minimum
from tilewright.library.masks import within


@tilewright.jit
def combine(old, new, REDUCTION: tl.constexpr):
    """Two numbers by the name of a reduction."""
    if REDUCTION == "add":
        result = old + new
    elif REDUCTION == "multiply":
        result = old * new
    elif REDUCTION == "maximum":
        result = maximum(old, new)
    else:
        result = minimum(old, new)
    return result


@tilewright.jit
def scatter_rows(
    updates, indices, out, count, extent, inner, BLOCK: tl.constexpr, MASK: tl.constexpr, REDUCTION: tl.constexpr
):
    """out[outer, indices[i], :] = updates[outer, i, :], or both combined.  Grid: (outer, column blocks).

    One program does all indices of its part in order, so that the last of equal indices wins.
    Updates whose index is out of range are left out.
    """
    outer = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = within(column, inner, MASK)
    for position in range(0, count):
        index = tl.load(indices + position).to(tl.int64)
        index = tl.where(index < 0, index + extent, index)
        if (index >= 0) & (index < extent):
            value = tl.load(updates + (outer * count + position) * inner + column, mask=mask)
            place = out + (outer * extent + index) * inner + column
            if REDUCTION != "none":
                value = combine(tl.load(place, mask=mask), value, REDUCTION).to(value.dtype)
            tl.store(place, value, mask=mask)


@tilewright.jit
def replaced_later(indices, index, number, first, count, extent, ROWS: tl.constexpr, STEP: tl.constexpr):
    """Whether an update from `first` on that comes behind `number` [ROWS] has the same index: 1 or 0.

    Lanes keep what they find to the end: in a reduction for each step threads would wait for each other.
    """
    later = tl.zeros((ROWS, STEP), tl.int32)
    for start in range(first, count, STEP):
        position = start + tl.arange(0, STEP)
        inside = position < count  # an index of a narrow type cannot say that it is none
        other = tl.load(indices + position, mask=inside, other=0).to(tl.int64)
        other = tl.where(other < 0, other + extent, other)
        same = (other[None, :] == index[:, None]) & (position[None, :] > number[:, None]) & inside[None, :]
        later = later | same.to(tl.int32)
    return tl.max(later, 1)


@tilewright.jit
def updates_of(indices, count, extent, ROWS: tl.constexpr):
    """A program's updates: the position before its own in `outer`, numbers and indices [ROWS], which of them count."""
    blocks = (count + ROWS - 1) // ROWS
    outer = (tl.program_id(0) // blocks).to(tl.int64)
    number = (tl.program_id(0) % blocks).to(tl.int32) * ROWS + tl.arange(0, ROWS)
    index = tl.load(indices + number, mask=number < count, other=0).to(tl.int64)
    index = tl.where(index < 0, index + extent, index)
    return outer, number, index, (number < count) & (index >= 0) & (index < extent)


@tilewright.jit
def scatter_each(
    updates, indices, out, count, extent, inner, ROWS: tl.constexpr, BLOCK: tl.constexpr, STEP: tl.constexpr
):
    """Replacing, with a program for every `ROWS` updates. Grid: (outer * blocks of updates, blocks of columns)."""
    outer, number, index, exists = updates_of(indices, count, extent, ROWS)
    column = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :]
    later = replaced_later(indices, index, number, tl.min(number, 0), count, extent, ROWS, STEP)
    inside = (exists & (later == 0))[:, None] & (column < inner)
    value = tl.load(updates + (outer * count + number)[:, None] * inner + column, mask=inside)
    tl.store(out + (outer * extent + index)[:, None] * inner + column, value, mask=inside)


@tilewright.jit
def any_update(indices, last, count, extent, ROWS: tl.constexpr):
    """last[index] = the number of one of its updates.  Grid: blocks of updates."""
    outer, number, index, exists = updates_of(indices, count, extent, ROWS)
    tl.store(last + index, number, mask=exists)


@tilewright.jit
def last_update(indices, last, count, extent, ROWS: tl.constexpr):
    """last[index] = the number of its last update; it holds one of them already.  Grid: blocks of updates."""
    outer, number, index, exists = updates_of(indices, count, extent, ROWS)
    tl.atomic_max(last + index, number, mask=exists, sem="relaxed")


@tilewright.jit
def scatter_last(updates, indices, last, out, count, extent, inner, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Replacing by the updates that `last` names.  Grid: (outer * blocks of updates, blocks of columns)."""
    outer, number, index, exists = updates_of(indices, count, extent, ROWS)
    stored = exists & (tl.load(last + index, mask=exists, other=0) == number)
    column = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :]
    inside = stored[:, None] & (column < inner)
    value = tl.load(updates + (outer * count + number)[:, None] * inner + column, mask=inside)
    tl.store(out + (outer * extent + index)[:, None] * inner + column, value, mask=inside)


@tilewright.jit
def scatter_swapped(
    updates, indices, out, count, extent, inner, ROWS: tl.constexpr, BLOCK: tl.constexpr, REDUCTION: tl.constexpr,
    BITS: tl.constexpr,
):  # fmt: skip
    """Combining in no fixed order, by comparing and swapping numbers as integers of the type `BITS`.

    Grid: (outer * blocks of updates, blocks of columns).
    """
    outer, number, index, exists = updates_of(indices, count, extent, ROWS)
    column = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :]
    inside = exists[:, None] & (column < inner)
    value = tl.load(updates + (outer * count + number)[:, None] * inner + column, mask=inside, other=0)
    words = (out + (outer * extent + index)[:, None] * inner + column).to(tl.pointer_type(BITS), bitcast=True)
    old = tl.load(words, mask=inside, other=0)
    new = combine(old.to(value.dtype, bitcast=True), value, REDUCTION).to(value.dtype).to(BITS, bitcast=True)
    waiting = inside & (new != old)
    while tl.max(tl.ravel(waiting).to(tl.int32), 0) > 0:
        seen = tl.atomic_cas(words, old, new, sem="relaxed", mask=waiting)
        missed = waiting & (seen != old)
        old = tl.where(missed, seen, old)
        new = combine(old.to(value.dtype, bitcast=True), value, REDUCTION).to(value.dtype).to(BITS, bitcast=True)
        waiting = missed & (new != old)


@tilewright.jit
def scatter_combined(
    updates, indices, out, count, extent, inner, BLOCK: tl.constexpr, STEP: tl.constexpr, REDUCTION: tl.constexpr,
    TYPE: tl.constexpr,
):  # fmt: skip
    """Combining, with a program for every `BLOCK` elements of a slice of `out`: every element takes the updates that
    are its own, in their order, in the wider type `TYPE`.  Grid: (outer, blocks of elements)."""
    outer = tl.program_id(0).to(tl.int64)
    element = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    exists = element < extent * inner
    target = out + outer * (extent * inner) + element
    total = tl.load(target, mask=exists, other=0).to(TYPE)
    for start in range(0, count, STEP):
        for step in tl.static_range(STEP):
            position = start + step
            index = tl.load(indices + position, mask=position < count, other=0).to(tl.int64)
            index = tl.where(index < 0, index + extent, index)
            mine = exists & (position < count) & (element // inner == index)
            value = tl.load(updates + (outer * count + position) * inner + element % inner, mask=mine, other=0)
            total = tl.where(mine, combine(total, value.to(TYPE), REDUCTION), total)
    tl.store(target, total.to(out.dtype.element_ty), mask=exists)
