"""Tensors in global memory that are moved by tiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.errors import ExecutionError, LaunchError
from tilewright.ir.types import TensorMapType

Array = np.ndarray
_COMBINE = {"add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
            "xor": np.bitwise_xor}  # fmt: skip


class GlobalTensor:
    """What a tensor map stands for: an array of any strides, the tile, and what lies outside.

    `steps`: along each axis, how far the elements of a tile are apart.
    """

    def __init__(
        self, array: Array, block: tuple[int, ...], padding: str = "zero", steps: tuple[int, ...] | None = None
    ) -> None:
        self.array, self.block, self.padding = array, block, padding
        self.rank = len(block)
        self.steps = steps or (1,) * self.rank

    def fetch(self, coordinates: Sequence[int], shape: tuple[int, ...]) -> Array:
        """The tile at some coordinates; zero or NaN outside the tensor."""
        fill = float("nan") if self.padding == "nan" else 0
        tile = np.full(self.block, fill, self.array.dtype)
        inside, place = self._inside(coordinates)
        tile[inside] = self.array[place]
        return tile.reshape(shape)

    def clip(self, coordinates: Sequence[int], tile: Array) -> Array:
        """The part of a tile that lies in the tensor."""
        inside, _ = self._inside(coordinates)
        return tile.reshape(self.block)[inside]

    def write(self, coordinates: Sequence[int], tile: Array, kind: str) -> None:
        """Store, or combine, the part of a tile that lies in the tensor."""
        inside, place = self._inside(coordinates)
        value = tile.reshape(self.block)[inside]
        if not self.array.flags.writeable:
            raise ExecutionError("a copy to a read-only array")
        self.array[place] = _COMBINE[kind](self.array[place], value) if kind else value

    def _inside(self, coordinates: Sequence[int]) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
        """Where the tile meets the tensor: in the tile, and in the tensor."""
        of_tile, of_tensor = [], []
        for start, extent, size, step in zip(coordinates, self.block, self.array.shape, self.steps, strict=True):
            first = min(max(-(start // step), 0), extent)  # the first element that is not before the tensor
            end = max(first, min(extent, -(-(size - start) // step)))
            of_tile.append(slice(first, end))
            of_tensor.append(slice(start + first * step, start + end * step, step) if end > first else slice(0, 0))
        return tuple(of_tile), tuple(of_tensor)


def global_tensor(name: str, kind: TensorMapType, given: Any) -> GlobalTensor:
    """The argument for a tensor map: an array, or a description with base (an array), shape, strides, padding, steps.

    Raises `LaunchError` when it does not fit the parameter.
    """
    padding = str(getattr(given, "padding", "zero"))
    block = getattr(given, "block_shape", None)
    array = given
    if not isinstance(given, np.ndarray):
        base = getattr(given, "base", None)
        if not isinstance(base, np.ndarray):
            raise LaunchError(f"argument {name}: expected an array or a TensorDescriptor, got {type(given).__name__}")
        strides = tuple(int(stride) * base.itemsize for stride in given.strides)
        bits = base.view(f"u{base.itemsize}")  # NumPy has no name for some of the 8-bit floats
        array = np.lib.stride_tricks.as_strided(bits, tuple(map(int, given.shape)), strides).view(base.dtype)
    if block is not None and tuple(block) != kind.block:
        raise LaunchError(f"argument {name}: its tiles are {tuple(block)}, the kernel moves {kind.block}")
    if array.ndim != len(kind.block):
        raise LaunchError(f"argument {name}: an array of {array.ndim} axes for {kind}")
    if array.dtype != kind.element.numpy:
        raise LaunchError(f"argument {name}: an array of {array.dtype} for {kind}")
    return GlobalTensor(array, kind.block, padding, getattr(given, "steps", None))
