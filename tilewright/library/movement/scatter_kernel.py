"""Slices of a tensor replaced at indices (index_copy, a static KV cache), the last of equal indices winning; or
combined with updates (scatter_add), in the order of the indices, so that results repeat bit by bit."""

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
def scatter_last(updates, indices, out, count, extent, inner, BLOCK: tl.constexpr, STEP: tl.constexpr):
    """The same with a program for every `BLOCK` elements of a slice of `out`, which looks for the last index that is
    theirs.  Grid: (outer, blocks of elements).
    """
    outer = tl.program_id(0).to(tl.int64)
    element = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    place = (element // inner)[:, None]
    last = tl.full((BLOCK,), -1, tl.int32)
    for start in range(0, count, STEP):
        position = start + tl.arange(0, STEP)[None, :]
        index = tl.load(indices + position, mask=position < count, other=extent).to(tl.int32)
        index = tl.where(index < 0, index + extent, index)
        mine = (index == place) & (position < count)
        last = tl.maximum(last, tl.max(tl.where(mine, position, -1), 1))
    found = (last >= 0) & (element < extent * inner)
    value = tl.load(updates + (outer * count + last) * inner + element % inner, mask=found)
    tl.store(out + outer * (extent * inner) + element, value, mask=found)


@tilewright.jit
def scatter_combined(
    updates, indices, out, count, extent, inner, BLOCK: tl.constexpr, STEP: tl.constexpr, REDUCTION: tl.constexpr,
    TYPE: tl.constexpr,
):  # fmt: skip
    """The combining form of `scatter_last`: every element takes the updates that are its own, in their order, in the
    wider type `TYPE`.  Grid: (outer, blocks of elements)."""
    outer = tl.program_id(0).to(tl.int64)
    element = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    exists = element < extent * inner
    target = out + outer * (extent * inner) + element
    total = tl.load(target, mask=exists, other=0).to(TYPE)
    for start in range(0, count, STEP):
        for step in tl.static_range(STEP):
            position = start + step
            index = tl.load(indices + position, mask=position < count, other=extent).to(tl.int64)
            index = tl.where(index < 0, index + extent, index)
            mine = exists & (element // inner == index)
            value = tl.load(updates + (outer * count + position) * inner + element % inner, mask=mine, other=0)
            total = tl.where(mine, combine(total, value.to(TYPE), REDUCTION), total)
    tl.store(target, total.to(out.dtype.element_ty), mask=exists)
