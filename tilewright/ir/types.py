"""Types of the Tile IR: element types, pointers and tensors.

Every value is a `TensorType`: a block of compile-time shape whose elements are a `DType` or a
`PointerType`.  A scalar is a tensor of rank 0.  The textual forms are

    f32            scalar            <128x64xf32>    block of 128 x 64
    *f32           pointer scalar    <128x*f32>      block of pointers     *k f32  read-only pointer
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

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
    def size(self) -> int:
        """Number of elements."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    @property
    def dtype(self) -> DType:
        """The element type; raises `TypeError` for pointers."""
        if isinstance(self.element, PointerType):
            raise TypeError(f"{self} is a pointer type")
        return self.element

    def with_shape(self, shape: tuple[int, ...]) -> TensorType:
        return TensorType(tuple(shape), self.element)

    def with_element(self, element: Element) -> TensorType:
        return TensorType(self.shape, element)

    def __str__(self) -> str:
        if self.is_scalar:
            return str(self.element)
        return f"<{'x'.join(str(extent) for extent in self.shape)}x{self.element}>"


def scalar(element: Element) -> TensorType:
    """The rank-0 tensor type of `element`."""
    return TensorType((), element)
