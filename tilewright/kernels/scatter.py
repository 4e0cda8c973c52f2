"""Slices of a tensor replaced at indices (index_copy, a static KV cache)."""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl


@tilewright.jit
def scatter_rows(updates, indices, out, count, extent, inner, BLOCK: tl.constexpr, MASK: tl.constexpr):
    """out[outer, indices[i], :] = updates[outer, i, :].  Grid: (outer, column blocks).

    One program does all indices of its part in order, so that the last of equal indices wins.
    Updates whose index is out of range are left out.
    """
    outer = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = None
    if MASK:
        mask = column < inner
    for position in range(0, count):
        index = tl.load(indices + position).to(tl.int64)
        index = tl.where(index < 0, index + extent, index)
        if (index >= 0) & (index < extent):
            value = tl.load(updates + (outer * count + position) * inner + column, mask=mask)
            tl.store(out + (outer * extent + index) * inner + column, value, mask=mask)
