"""Tiles in shared memory as values of the lowering: their addresses and the layout of their elements.

A tile of rows x columns lies in panels: columns of `swizzle` bytes, all rows of one panel after the other, in which the
16-byte chunk c of row r stands in chunk c ^ (r * swizzle / 128) % (swizzle / 16).  Without swizzle a tile is one panel
as wide as a row.  Slices and transposes are other views of the same bytes, so the distance between panels is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from tilewright.dtypes import DType
from tilewright.layout.matrix import SWIZZLE_CODES, Descriptor
from tilewright.targets.llvm.builder import LLVMBuilder, LLVMValue
from tilewright.targets.nvidia.explicit import wgmma
from tilewright.targets.nvidia.explicit.ptx import offset

_UNIT = 16  # bytes that descriptors count in


@dataclass(frozen=True)
class SharedView:
    """A tile, or a ring of tiles, in shared memory.

    `start` is the i32 byte offset from the kernel's shared memory; `shape` has the stored order, columns (contiguous)
    last, also where the view is `transposed`; `panel_bytes` lie between panels; `peer` is the rank of another CTA.
    `row_bytes` lie between rows without swizzle where a view has a part of the columns, else 0.
    """

    start: LLVMValue
    shape: tuple[int, ...]
    element: DType
    swizzle: int
    panel_bytes: int
    transposed: bool = False
    peer: LLVMValue | None = None
    row_bytes: int = 0

    @property
    def rows(self) -> int:
        return self.shape[-2] if len(self.shape) > 1 else 1

    @property
    def columns(self) -> int:
        return self.shape[-1]

    @property
    def pitch(self) -> int:
        """Bytes between rows of a panel."""
        return self.swizzle or self.row_bytes or self.columns * self.element.itemsize

    @property
    def panel_columns(self) -> int:
        """Elements of a panel's row."""
        return self.pitch // self.element.itemsize

    @property
    def panels(self) -> int:
        return -(-self.columns // self.panel_columns)

    @property
    def contiguous(self) -> bool:
        """Whether its panels follow each other without a gap."""
        return self.panels == 1 or self.panel_bytes == self.rows * self.pitch

    def index(self, builder: LLVMBuilder, number: LLVMValue) -> SharedView:
        """One entry along the first axis."""
        start = offset(builder, self.start, scaled(builder, number, self._bytes_of(1)))
        return replace(self, start=start, shape=self.shape[1:])

    def _bytes_of(self, axis: int) -> int:
        """Bytes from one entry to the next along the axis before `axis`, which is none of the last one or two."""
        if not self.swizzle:
            return prod(self.shape[axis:-1]) * self.pitch
        return tile_bytes(self.shape[axis:], self.element, self.swizzle)

    def slice(self, builder: LLVMBuilder, first: LLVMValue, axis: int, extent: int) -> SharedView:
        """`extent` elements from `first` (i32) on along an axis of the view."""
        rank = len(self.shape)
        if self.transposed and axis >= rank - 2:
            axis = 2 * rank - 3 - axis
        shape = (*self.shape[:axis], extent, *self.shape[axis + 1 :])
        row_bytes = self.row_bytes
        if axis == rank - 1 and not self.swizzle:
            size, row_bytes = self.element.itemsize, self.pitch
        elif axis == rank - 1:  # whole panels
            size = self.panel_bytes // self.panel_columns
        elif axis == rank - 2:
            size = self.pitch
        else:
            size = self._bytes_of(axis + 1)
        start = offset(builder, self.start, scaled(builder, first, size))
        return replace(self, start=start, shape=shape, row_bytes=row_bytes)

    def transpose(self) -> SharedView:
        return replace(self, transposed=not self.transposed)


def tile_bytes(shape: Sequence[int], element: DType, swizzle: int) -> int:
    """Bytes of tiles of `shape`; the last panel takes its whole width."""
    columns = shape[-1] * element.itemsize
    width = swizzle or columns
    return prod(shape[:-1]) * -(-columns // width) * width


def whole(start: LLVMValue, shape: Sequence[int], element: DType, swizzle: int) -> SharedView:
    """The view of an allocation."""
    rows = shape[-2] if len(shape) > 1 else 1
    pitch = swizzle or shape[-1] * element.itemsize
    return SharedView(start, tuple(shape), element, swizzle, rows * pitch)


def scaled(builder: LLVMBuilder, number: LLVMValue, size: int) -> LLVMValue:
    if number.constant is not None:
        return builder.integer(number.constant * size, "i32")
    return builder.multiply(number, size)


def operand(
    builder: LLVMBuilder, view: SharedView, is_a: bool, slices: int = 1, groups: int = 1
) -> wgmma.SharedOperand:
    """A view as operand of wgmma: A is m x k, B is k x n.

    k runs along the columns of an A that is not transposed, and of a B that is.  Distances along k are constants, so
    are those of the `slices` of 64 rows of A; between two slices lie those of the other warpgroups of `groups`.
    """
    along_k = view.transposed != is_a
    depth = (view.columns if along_k else view.rows) * view.element.itemsize
    steps, rows = [], []
    for step in range(depth // 32):
        if along_k:
            panel, rest = divmod(32 * step, view.swizzle)
            steps.append(panel * view.panel_bytes + rest)
        else:
            steps.append(step * 16 * view.pitch)
    for part in range(0, slices * groups, groups):
        if along_k:
            rows.append(part * 64 * view.pitch)
        else:
            panel, rest = divmod(part * 64, view.panel_columns)
            rows.append(panel * view.panel_bytes + rest * view.element.itemsize)
    places = tuple(tuple((row + step) // _UNIT for step in steps) for row in rows)
    fields = Descriptor(0 if along_k else view.panel_bytes, 8 * view.pitch, SWIZZLE_CODES[view.swizzle], ())
    low, high = wgmma.descriptor(builder, view.start, fields.bits)
    return wgmma.SharedOperand(low, high, places, not along_k)
