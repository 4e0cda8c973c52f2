"""`tl.make_block_ptr` and `tl.make_tensor_descriptor`: tiles of a strided tensor, loaded and stored whole."""

from __future__ import annotations

from typing import Any, NamedTuple

from tilewright import dtypes
from tilewright.language.context import LanguageError
from tilewright.language.core import builtin
from tilewright.language.semantic import arithmetic, memory, tiled
from tilewright.language.semantic.convert import cast
from tilewright.language.semantic.shape import static_shape
from tilewright.language.semantic.tiled import StridedTensor, block_pointer
from tilewright.language.tensor import tensor, type_text
from tilewright.language.types import dtype, unwrap, wrap


@builtin
def make_block_ptr(base: tensor, shape: Any, strides: Any, offsets: Any, block_shape: Any, order: Any) -> block_pointer:
    """A pointer to a tile of `block_shape` at `offsets` in a tensor of `shape` and `strides` (in elements).

    `tl.load` and `tl.store` take it, with ``boundary_check=(axes…)`` and ``padding_option="zero"`` or ``"nan"``.
    `order` lists the axes from the fastest in memory on; it is a hint.  Arithmetic is in 64 bits.
    """
    view = tiled.strided_tensor(base, shape, strides, block_shape, "zero", "a block pointer")
    rank = len(view.form.extents)
    axes = static_shape(order)
    if sorted(axes) != list(range(rank)):
        raise LanguageError(
            f"order must be a permutation of the {rank} axes, got {list(axes)}",
            "row-major tensors have the last axis first: (1, 0)",
        )
    return block_pointer(view, tiled.wide_integers(offsets, rank, "the offsets of a block pointer"))


@builtin
def advance(base: block_pointer, offsets: Any) -> block_pointer:
    """A block pointer moved by a number of elements along each axis."""
    pointer = unwrap(base)
    if not isinstance(pointer, block_pointer):
        raise LanguageError(f"advance needs a block pointer, got {type_text(pointer)}", "tl.make_block_ptr makes one")
    steps = tiled.wide_integers(offsets, len(pointer.offsets), "the offsets of advance")
    moved = (arithmetic.add(offset, step) for offset, step in zip(pointer.offsets, steps, strict=True))
    return block_pointer(pointer.view, tuple(moved))


setattr(block_pointer, "advance", advance)  # also as a method: ``pointer.advance((0, 16))``  # noqa: B010


class tensor_descriptor(NamedTuple):
    """A tensor in memory that is read and written by tiles; made by `make_tensor_descriptor`."""

    view: StridedTensor

    @property
    def dtype(self) -> dtype:
        return wrap(tiled.element_of(self.view))

    @property
    def block_shape(self) -> tuple[int, ...]:
        return self.view.form.extents

    @property
    def shape(self) -> tuple[tensor, ...]:
        return tuple(cast(extent, dtypes.int32) for extent in self.view.extents)

    @property
    def strides(self) -> tuple[tensor, ...]:
        return self.view.strides

    def _indices(self, offsets: Any) -> list[tensor]:
        rank = len(self.block_shape)
        return tiled.tile(self.view, tiled.wide_integers(offsets, rank, "the offsets of a descriptor"))

    @property
    def _axes(self) -> range:
        return range(len(self.block_shape))

    @builtin
    def load(self, offsets: Any) -> tensor:
        """The tile at some offsets; what lies outside the tensor is zero, or NaN."""
        return tiled.load(self.view, self._indices(offsets), self._axes, self.view.form.padding)

    @builtin
    def store(self, offsets: Any, value: Any) -> None:
        """Write a tile; what lies outside the tensor is left out."""
        tiled.store(self.view, self._indices(offsets), self._axes, value)

    @builtin
    def gather(self, x_offsets: tensor, y_offset: Any) -> tensor:
        """Rows ``x_offsets[i]``, columns from `y_offset` on; the tile must be ``[1, columns]``."""
        indices = self._rows(x_offsets, y_offset, "gather")
        return tiled.load(self.view, indices, self._axes, self.view.form.padding)

    @builtin
    def scatter(self, value: tensor, x_offsets: tensor, y_offset: Any) -> None:
        """Write the rows of a block to rows ``x_offsets[i]``, columns from `y_offset` on."""
        tiled.store(self.view, self._rows(x_offsets, y_offset, "scatter"), self._axes, value)

    def _rows(self, x_offsets: Any, y_offset: Any, function: str) -> list[tensor]:
        if len(self.block_shape) != 2 or self.block_shape[0] != 1:
            raise LanguageError(
                f"{function} needs a descriptor of block shape [1, columns], got {list(self.block_shape)}",
                "describe rows: block_shape=[1, columns]",
            )
        rows = unwrap(x_offsets)
        if not isinstance(rows, tensor) or rows.rank != 1 or rows.is_pointer or not rows.number.is_integer:
            raise LanguageError(
                f"{function} needs a block of integers as x offsets, got {type_text(rows)}", "tl.arange makes one"
            )
        (column,) = tiled.wide_integers(y_offset, 1, f"the y offset of {function}")
        return [tiled.along(cast(rows, dtypes.int64), 0, 2), tiled.span(column, self.block_shape[1], 1, 2)]

    def _update(self, kind: str, offsets: Any, value: Any) -> None:
        indices = self._indices(offsets)
        mask = tiled.inside(self.view, indices, self._axes)
        memory.atomic_update(kind, tiled.pointers(self.view, indices), value, mask, None, None)

    @builtin
    def atomic_add(self, offsets: Any, value: Any) -> None:
        """Add a tile to memory, each element as one step."""
        self._update("add", offsets, value)

    @builtin
    def atomic_max(self, offsets: Any, value: Any) -> None:
        """Raise a tile of memory to at least `value`."""
        self._update("max", offsets, value)

    @builtin
    def atomic_min(self, offsets: Any, value: Any) -> None:
        """Lower a tile of memory to at most `value`."""
        self._update("min", offsets, value)

    @builtin
    def atomic_and(self, offsets: Any, value: Any) -> None:
        """Bitwise and into a tile of memory."""
        self._update("and", offsets, value)

    @builtin
    def atomic_or(self, offsets: Any, value: Any) -> None:
        """Bitwise or into a tile of memory."""
        self._update("or", offsets, value)

    @builtin
    def atomic_xor(self, offsets: Any, value: Any) -> None:
        """Bitwise exclusive or into a tile of memory."""
        self._update("xor", offsets, value)


@builtin
def make_tensor_descriptor(
    base: tensor, shape: Any, strides: Any, block_shape: Any, padding_option: str = "zero"
) -> tensor_descriptor:
    """A descriptor of a tensor of `shape` and `strides` (in elements) that is read and written by tiles.

    1 to 5 axes; the last stride is the constant 1 and the last extent of a tile at least 16 bytes.  Bounds are always
    checked.  Methods: ``load(offsets)``, ``store(offsets, value)``, ``gather``, ``scatter``, ``atomic_add`` and so on.
    """
    view = tiled.strided_tensor(base, shape, strides, block_shape, "zero", "a tensor descriptor")
    element = tiled.element_of(view)
    if view.strides[-1].constant != 1:
        raise LanguageError(
            "the last stride of a tensor descriptor must be the constant 1", "describe the transposed tensor instead"
        )
    if view.form.extents[-1] * element.itemsize < 16:
        raise LanguageError(
            f"the last extent of a descriptor's tile must be at least 16 bytes, got {view.form.extents[-1]} of "
            f"{wrap(element)}",
            f"use at least {16 // element.itemsize} elements",
        )
    form = tiled.TileForm(view.form.extents, tiled.padding_of(padding_option, element))
    return tensor_descriptor(view._replace(form=form))


def _descriptor(value: Any) -> tensor_descriptor:
    value = unwrap(value)
    if not isinstance(value, tensor_descriptor):
        raise LanguageError(
            f"a tensor descriptor is needed here, got {type_text(value)}", "tl.make_tensor_descriptor makes one"
        )
    return value


@builtin
def load_tensor_descriptor(desc: tensor_descriptor, offsets: Any) -> tensor:
    """``desc.load(offsets)``"""
    return _descriptor(desc).load(offsets)


@builtin
def _experimental_descriptor_load(desc_pointer: Any, offsets: Any, shape: Any, dtype: Any) -> tensor:
    """The old name of ``desc.load(offsets)``; shape and dtype are the descriptor's own."""
    return _descriptor(desc_pointer).load(offsets)


@builtin
def _experimental_descriptor_store(desc_pointer: Any, value: Any, offsets: Any) -> None:
    """The old name of ``desc.store(offsets, value)``."""
    _descriptor(desc_pointer).store(offsets, value)


_experimental_make_tensor_descriptor = make_tensor_descriptor


@builtin
def store_tensor_descriptor(desc: tensor_descriptor, offsets: Any, value: Any) -> None:
    """``desc.store(offsets, value)``"""
    _descriptor(desc).store(offsets, value)
