"""Blocks in shared memory that products read from there: a tile is a layout with the one input `offset`."""

from __future__ import annotations

from tilewright.layout import LinearLayout

OFFSET = "offset"
PLACE_ATTRIBUTE = "gpu.place"  # of a `shared_alloc`: bytes from the start of the kernel's shared memory


def is_tile(layout: LinearLayout) -> bool:
    """Whether a layout is one in shared memory."""
    return layout.input_names == (OFFSET,)


def tile_axis(layout: LinearLayout) -> int:
    """The axis along which a tile runs."""
    first = layout.vectors(OFFSET)[0]
    return next(axis for axis, step in enumerate(first) if step)
