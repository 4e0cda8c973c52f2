"""Masks of blocks that may exceed a tensor; None masks nothing and costs nothing."""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl


@tilewright.jit
def within(index, extent, MASK: tl.constexpr):
    """Where an index is below an extent; None, for everywhere, when blocks never reach beyond it."""
    mask = None
    if MASK:
        mask = index < extent
    return mask


@tilewright.jit
def and_masks(first, second):
    """Where two masks hold, of which None holds everywhere."""
    if first is None:
        mask = second
    elif second is None:
        mask = first
    else:
        mask = first & second
    return mask


@tilewright.jit
def edge_mask(row, column, rows, columns, MASK_M: tl.constexpr, MASK_N: tl.constexpr):
    """The mask of a block's elements that exist; None when all of them do."""
    return and_masks(within(row, rows, MASK_M), within(column, columns, MASK_N))
