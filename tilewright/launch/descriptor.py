"""`TensorDescriptor`: a host tensor that a kernel reads and writes by tiles.

tiles = TensorDescriptor.from_tensor(x, [64, 32])
kernel[grid](tiles, …)                  # in the kernel: tiles.load([row, column]), tiles.store([row, column], block)

It is a plain record.  Kernels see its base pointer, shape and strides as run-time parameters; its tile and padding
belong to the signature.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright import dtypes
from tilewright.errors import LaunchError, brief
from tilewright.ir.types import PointerType
from tilewright.language.semantic.convert import cast, to_tensor
from tilewright.language.semantic.tiled import MAXIMUM_RANK, StridedTensor, TileForm
from tilewright.language.tiles import tensor_descriptor
from tilewright.runtime import dlpack

DESCRIPTOR_ALIGNMENT = 16  # bytes: of the base, of every stride but the last, and of a tile's last axis


@dataclass
class TensorDescriptor:
    """A tensor in memory and the tile that kernels move.

    `base` is an array (NumPy, PyTorch or DLPack), `shape` and `strides` are in elements, the last stride is 1.
    `block_shape` is the extents of a tile, `padding` what lies outside the tensor: "zero" or, for floats, "nan".
    `round_f32_to_tf32` lets hardware that multiplies tf32 round float32 elements when it loads them.
    `steps`: how far neighbours of a tile are apart along each axis; None for next to each other.
    Fields may be changed between launches (autotune hooks rewrite `block_shape`); they are checked at each launch.
    Raises `LaunchError` for a tensor that cannot be described.
    """

    base: Any
    shape: Sequence[int]
    strides: Sequence[int]
    block_shape: Sequence[int]
    padding: str = "zero"
    round_f32_to_tf32: bool = False
    steps: Sequence[int] | None = None

    def __post_init__(self) -> None:
        rank = len(self.shape)  # texts of errors are made when there is one: launches make descriptors, too
        if not 1 <= rank <= MAXIMUM_RANK:
            raise LaunchError(f"a tensor descriptor has 1 to {MAXIMUM_RANK} axes, got {rank}")
        for name, values in (("strides", self.strides), ("block_shape", self.block_shape), ("steps", self.steps)):
            if values is not None and len(values) != rank:
                raise LaunchError(f"rank mismatch: shape has {rank} axes, {name} {len(values)}")
        if min(self.shape) <= 0:
            raise LaunchError(f"shape must be positive, got {list(self.shape)}")
        if min(self.block_shape) <= 0:
            raise LaunchError(f"block_shape must be positive: {self.block_shape}")
        if self.strides[-1] != 1:
            raise LaunchError("the last axis of a tensor descriptor must be contiguous: its stride must be 1")
        if self.padding not in ("zero", "nan"):
            raise LaunchError(f"padding must be 'zero' or 'nan', got {brief(self.padding)}")

    @classmethod
    def from_tensor(
        cls, tensor: Any, block_shape: Sequence[int], padding: str = "zero", round_f32_to_tf32: bool = False
    ) -> TensorDescriptor:
        """A descriptor of a whole array, with its own shape and strides."""
        if not hasattr(tensor, "shape"):
            raise LaunchError(f"a descriptor is made of an array or a tensor, got {type(tensor).__name__}")
        return cls(tensor, tuple(tensor.shape), _strides(tensor), block_shape, padding, round_f32_to_tf32)


@dataclass(frozen=True)
class DescriptorForm:
    """What kernels are specialised on for a descriptor: rank, tile and padding."""

    block_shape: tuple[int, ...]
    padding: str

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the parts: ``base, shape_0, …, stride_0, …``."""
        axes = range(len(self.block_shape))
        return ("base", *(f"shape_{axis}" for axis in axes), *(f"stride_{axis}" for axis in axes))

    def build(self, entries: Iterable[Any]) -> tensor_descriptor:
        """The kernel's descriptor of a base pointer, extents and strides."""
        base, *numbers = entries
        rank = len(self.block_shape)
        wide = [cast(to_tensor(number), dtypes.int64) for number in numbers]
        form = TileForm(self.block_shape, self.padding)
        return tensor_descriptor(StridedTensor(base, tuple(wide[:rank]), tuple(wide[rank:]), form))


def parts(value: TensorDescriptor) -> tuple[Any, ...]:
    """Base, extents and strides, in the order of a kernel's parameters."""
    return (value.base, *(int(extent) for extent in value.shape), *(int(stride) for stride in value.strides))


def check(value: TensorDescriptor, element: PointerType, address: int) -> None:
    """Raise `LaunchError` unless hardware that moves tiles could move those of `value`."""
    value.__post_init__()
    size = element.element.itemsize
    _require(
        address % DESCRIPTOR_ALIGNMENT == 0,
        f"the base of a tensor descriptor must be {DESCRIPTOR_ALIGNMENT}-byte aligned",
    )
    for stride in value.strides[:-1]:
        _require(
            stride * size % DESCRIPTOR_ALIGNMENT == 0,
            f"strides of a tensor descriptor must be {DESCRIPTOR_ALIGNMENT}-byte aligned, got {stride} elements of "
            f"{size} bytes",
        )
    least = DESCRIPTOR_ALIGNMENT // size
    _require(
        value.block_shape[-1] * size >= DESCRIPTOR_ALIGNMENT,
        f"the last extent of a descriptor's tile must be at least {DESCRIPTOR_ALIGNMENT} bytes: use at least {least} "
        "elements",
    )
    if value.padding == "nan":
        _require(element.element.is_float, f"padding 'nan' needs floats, the elements are {element.element}")
    if value.round_f32_to_tf32:
        _require(element.element == dtypes.float32, "round_f32_to_tf32 is for float32 tensors only")


def _strides(value: Any) -> tuple[int, ...]:
    if isinstance(value, np.ndarray):
        return tuple(stride // value.itemsize for stride in value.strides)
    if hasattr(value, "stride") and callable(value.stride):
        return tuple(value.stride())
    array = dlpack.as_numpy(value)
    return tuple(stride // array.itemsize for stride in array.strides)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise LaunchError(message)
