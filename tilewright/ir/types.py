"""Types of the Tile IR: element types, pointers, tensors, and the handles of explicit kernels.

Every value is a `TensorType`: a block of compile-time shape whose elements are a `DType` or a
`PointerType`.  A scalar is a tensor of rank 0.  The textual forms are

    f32            scalar            <128x64xf32>    block of 128 x 64
    *f32           pointer scalar    <128x*f32>      block of pointers     *k f32  read-only pointer

Kernels of the explicit level (`ir.explicit`) have scalars of further kinds, which only its operations, loops and
branches take:

    shared<4x128x64xbf16,128>      a ring of four tiles in shared memory, swizzled by 128 bytes
    shared<64x128xbf16,128,t>      a tile seen transposed          shared<…,remote>   a tile of another CTA
    barriers<4>    barrier         four mbarriers, one of them
    tensormap<128x64xbf16>         a tensor in global memory that TMA moves by tiles of 128 x 64
    pending<64x256xf32>            the accumulator of wgmma groups that may still be in flight
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, Union, cast

from tilewright.dtypes import DType


@dataclass(frozen=True)
class PointerType:
    """A typed global-memory pointer; `const` pointers cannot be stored through."""

    element: DType
    const: bool = False

    bits = 64
    itemsize = 8

    def __str__(self) -> str:
        return f"*{'k ' if self.const else ''}{self.element}"


@dataclass(frozen=True)
class SharedType:
    """One tile or a ring of tiles in shared memory, `shape` and `element` as seen through this view.

    The last two axes are laid out by `layout.nvmma` with `swizzle` bytes (0: rows one after the other, unswizzled);
    rows of more than `swizzle` bytes are panels side by side.  `transposed`: the last two axes are swapped, so that
    memory runs along the last but one.  `remote`: it lies in another CTA of the cluster and can only be loaded.
    """

    shape: tuple[int, ...]
    element: DType
    swizzle: int = 0
    transposed: bool = False
    remote: bool = False

    bits = 32
    itemsize = 4

    @property
    def bytes(self) -> int:
        """Bytes of the elements."""
        return prod(self.shape) * self.element.itemsize

    def __str__(self) -> str:
        extents = "".join(f"{extent}x" for extent in self.shape)
        flags = f"{',t' if self.transposed else ''}{',remote' if self.remote else ''}"
        return f"shared<{extents}{self.element},{self.swizzle}{flags}>"


@dataclass(frozen=True)
class BarrierType:
    """`count` mbarriers in shared memory; None for one that was chosen of them."""

    count: int | None = None

    bits = 32
    itemsize = 4

    def __str__(self) -> str:
        return "barrier" if self.count is None else f"barriers<{self.count}>"


@dataclass(frozen=True)
class TensorMapType:
    """A tensor in global memory that TMA moves by tiles of `block` (slowest axis first)."""

    block: tuple[int, ...]
    element: DType

    bits = 64
    itemsize = 8

    def __str__(self) -> str:
        return f"tensormap<{''.join(f'{extent}x' for extent in self.block)}{self.element}>"


@dataclass(frozen=True)
class PendingType:
    """An accumulator block of wgmma groups that may still be in flight; `wgmma_wait` makes it a block."""

    shape: tuple[int, ...]
    element: DType

    @property
    def bits(self) -> int:
        return self.element.bits

    @property
    def itemsize(self) -> int:
        return self.element.itemsize

    @property
    def block(self) -> TensorType:
        """The block that it becomes."""
        return TensorType(self.shape, self.element)

    def __str__(self) -> str:
        return f"pending<{''.join(f'{extent}x' for extent in self.shape)}{self.element}>"


Handle = Union[SharedType, BarrierType, TensorMapType, PendingType]
HANDLES = (SharedType, BarrierType, TensorMapType, PendingType)
Element = Union[DType, PointerType]


@dataclass(frozen=True)
class TensorType:
    """A block of `shape` (compile-time ints, row-major meaning) of `element`; rank 0 is a scalar."""

    shape: tuple[int, ...]
    element: Element

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def is_scalar(self) -> bool:
        return not self.shape

    @property
    def is_pointer(self) -> bool:
        return isinstance(self.element, PointerType)

    @property
    def is_handle(self) -> bool:
        """True for what only explicit kernels have: shared memory, barriers, tensor maps, pending accumulators."""
        return isinstance(self.element, HANDLES)

    @property
    def handle(self) -> Handle | None:
        """The kind of handle, which stands in the place of the element; None for numbers and pointers."""
        element: Any = self.element
        return element if isinstance(element, HANDLES) else None

    @property
    def size(self) -> int:
        """Number of elements."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    @property
    def dtype(self) -> DType:
        """The element type; raises `TypeError` for pointers and handles."""
        if not isinstance(self.element, DType):
            raise TypeError(f"{self} is {'a pointer type' if self.is_pointer else 'not a type of numbers'}")
        return self.element

    def with_shape(self, shape: tuple[int, ...]) -> TensorType:
        return TensorType(tuple(shape), self.element)

    def with_element(self, element: Element) -> TensorType:
        return TensorType(self.shape, element)

    def __str__(self) -> str:
        if self.is_scalar:
            return str(self.element)
        return f"<{'x'.join(str(extent) for extent in self.shape)}x{self.element}>"


def scalar(element: Element | Handle) -> TensorType:
    """The rank-0 tensor type of `element`, which may be a handle."""
    return TensorType((), cast(Element, element))
