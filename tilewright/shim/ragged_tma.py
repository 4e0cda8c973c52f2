"""`triton.tools.ragged_tma`: rows of one tensor that belong to slices of any length, read and written by tiles.

    tiles = create_ragged_descriptor(x, [64, 32])
    block = load_ragged(tiles, start, size, [row, column])      # in a kernel: rows start + row, … below start + size

A tile that goes over the end of its slice is cut there: what lies beyond is zero when it is read and kept when it is
written.  Bounds of a descriptor are fixed, and start where its rows end.  So two more axes in front move the origin:
one goes forward to the start of the slice and one back by what the slice is shorter than the tensor, so that its last
row is the tensor's.
"""

# Bodies of kernels are tile language, which Python's type rules do not describe.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False, disable-error-code="assignment,operator"

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tilewright.language as tl
from tilewright.errors import LaunchError
from tilewright.launch.descriptor import TensorDescriptor
from tilewright.launch.jit import jit

_MOST_AXES = 3


def create_ragged_descriptor(T: Any, block_shape: Sequence[int], ragged_dim: int = 0) -> TensorDescriptor:
    """A descriptor for `load_ragged` and its siblings of a tensor of 2 or 3 axes, cut along `ragged_dim`, not the last.

    `block_shape` is the extents of a tile, one for each axis of the tensor.  Raises `LaunchError`.
    """
    whole = TensorDescriptor.from_tensor(T, list(block_shape))
    rank = len(whole.shape)
    axis = ragged_dim + rank if ragged_dim < 0 else ragged_dim
    if rank > _MOST_AXES or not 0 <= axis < rank - 1:
        raise LaunchError(
            f"a ragged descriptor is of a tensor of 2 or {_MOST_AXES} axes, cut along any but the last; got {rank} "
            f"axes and ragged_dim={ragged_dim}"
        )
    rows, stride = whole.shape[axis], whole.strides[axis]
    return TensorDescriptor(
        T, (rows + 1, rows + 1, *whole.shape), (stride, -stride, *whole.strides), [1, 1, *block_shape]
    )


@jit
def _place(tiles, start, size, coordinates, axis: tl.constexpr):
    tl.static_assert(len(tiles.shape) == len(coordinates) + 2, "this takes a descriptor of create_ragged_descriptor")
    missing = tiles.shape[axis + 2].to(tl.int32) - size
    row = coordinates[axis] + missing
    return (start, missing) + tuple(coordinates[:axis]) + (row,) + tuple(coordinates[axis + 1 :])


@jit
def load_ragged(TMA, slice_off, slice_size, coords, ragged_dim: tl.constexpr = 0):
    """The tile at `coords`, counted from row `slice_off`; zero from row `slice_off + slice_size` on."""
    block = TMA.load(_place(TMA, slice_off, slice_size, coords, ragged_dim))
    return tl.reshape(block, block.shape[2:])


@jit
def store_ragged(TMA, slice_off, slice_size, coords, data, ragged_dim: tl.constexpr = 0):
    """Write a tile at `coords`, counted from row `slice_off`; rows from `slice_off + slice_size` on are left alone."""
    block = tl.reshape(data, (1, 1) + data.shape)
    TMA.store(_place(TMA, slice_off, slice_size, coords, ragged_dim), block)


@jit
def atomic_add_ragged(TMA, slice_off, slice_size, coords, data, ragged_dim: tl.constexpr = 0):
    """Like `store_ragged`, but adds to what is there."""
    block = tl.reshape(data, (1, 1) + data.shape)
    TMA.atomic_add(_place(TMA, slice_off, slice_size, coords, ragged_dim), block)


__all__ = ["atomic_add_ragged", "create_ragged_descriptor", "load_ragged", "store_ragged"]
