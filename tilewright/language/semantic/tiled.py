"""Block pointers and tensor descriptors: tiles of a strided tensor, reached through pointers and masks.

Both are a tensor in memory with the extents of one tile.  An access becomes a block of pointers and, where bounds
are checked, a mask; offsets, extents and strides are 64-bit, so that addresses cannot overflow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.errors import brief
from tilewright.ir.types import PointerType
from tilewright.language.context import LanguageError
from tilewright.language.semantic import arithmetic, memory
from tilewright.language.semantic.convert import cast, check_shape, constant, is_literal, to_tensor
from tilewright.language.semantic.shape import expand_dims, static_int, static_shape
from tilewright.language.tensor import emit, tensor, type_text
from tilewright.language.types import dtype, unwrap

MAXIMUM_RANK = 5


@dataclass(frozen=True)
class TileForm:
    """What is known of a tile at compile time: its extents, and what lies outside the tensor."""

    extents: tuple[int, ...]
    padding: str = "zero"


class StridedTensor(NamedTuple):
    """A tensor in memory: its pointer, and one int64 extent and stride an axis."""

    base: tensor
    extents: tuple[tensor, ...]
    strides: tuple[tensor, ...]
    form: TileForm


def strided_tensor(base: Any, shape: Any, strides: Any, block_shape: Any, padding: str, subject: str) -> StridedTensor:
    """Check the parts of a block pointer or descriptor and widen them to 64 bits."""
    base = unwrap(base)
    if not isinstance(base, tensor) or not base.is_pointer or base.shape:
        raise LanguageError(
            f"{subject} needs a scalar pointer as its base, got {type_text(base)}",
            "pass the array itself; offsets belong to the access",
        )
    extents = static_shape(block_shape)
    check_shape(extents)
    rank = len(extents)
    if not 1 <= rank <= MAXIMUM_RANK:
        raise LanguageError(
            f"{subject} has 1 to {MAXIMUM_RANK} axes, got {rank}", "merge axes that lie one after the other in memory"
        )
    sizes = wide_integers(shape, rank, f"the shape of {subject}")
    return StridedTensor(
        base, sizes, wide_integers(strides, rank, f"the strides of {subject}"), TileForm(extents, padding)
    )


def wide_integers(values: Any, rank: int, subject: str) -> tuple[tensor, ...]:
    """One int64 scalar an axis."""
    values = unwrap(values)
    entries = list(values) if isinstance(values, (tuple, list)) else [values]
    if len(entries) != rank:
        raise LanguageError(
            f"{subject} must have one number for each of {rank} axes, got {len(entries)}",
            "pass a list with one entry an axis",
        )
    return tuple(_wide(entry, subject) for entry in entries)


def _wide(value: Any, subject: str) -> tensor:
    value = unwrap(value)
    if is_literal(value) and not isinstance(value, float):
        return constant(int(value), dtypes.int64)
    number = to_tensor(value)
    if number.shape or number.is_pointer or not number.number.is_integer:
        raise LanguageError(
            f"{subject} must be scalar integers, got {type_text(number)}", "pass numbers or integer scalars"
        )
    return cast(number, dtypes.int64)


def boundary_axes(checked: Any, rank: int) -> tuple[int, ...]:
    """The axes of `boundary_check`."""
    checked = unwrap(checked)
    entries = () if checked is None else checked if isinstance(checked, (tuple, list)) else (checked,)
    axes = tuple(static_int(entry, "every axis of boundary_check") for entry in entries)
    for axis in axes:
        if not 0 <= axis < rank:
            raise LanguageError(
                f"boundary_check names axis {axis}, the block pointer has {rank} axes", "axes count from 0"
            )
    return axes


def span(offset: tensor, extent: int, axis: int, rank: int) -> tensor:
    """The int64 numbers offset, offset + 1, … along an axis of a block of some rank."""
    numbers = cast(emit("arange", [], {"start": 0, "end": extent}), dtypes.int64)
    return along(arithmetic.add(offset, numbers), axis, rank)


def along(numbers: tensor, axis: int, rank: int) -> tensor:
    """A block of rank 1 as one axis of a block of some rank; the other extents are 1."""
    return expand_dims(numbers, tuple(other for other in range(rank) if other != axis)) if rank > 1 else numbers


def pointers(view: StridedTensor, indices: Sequence[tensor]) -> tensor:
    """Addresses of the elements at int64 indices, one broadcastable block an axis."""
    result = view.base
    for index, stride in zip(indices, view.strides, strict=True):
        result = arithmetic.add(result, arithmetic.multiply(index, stride))
    return result


def inside(view: StridedTensor, indices: Sequence[tensor], axes: Sequence[int]) -> tensor | None:
    """Where the indices of some axes lie in the tensor; None for no axes."""
    result: tensor | None = None
    for axis in axes:
        index, extent = indices[axis], view.extents[axis]
        within = arithmetic.logical("and", arithmetic.compare("ge", index, 0), arithmetic.compare("lt", index, extent))
        result = within if result is None else arithmetic.logical("and", result, within)
    return result


def element_of(view: StridedTensor) -> DType:
    """The element type in memory."""
    assert isinstance(view.base.element, PointerType)
    return view.base.element.element


def padding_of(option: Any, element: DType) -> str:
    """Check a padding option: "zero" (also "" and None), or "nan" for floats."""
    text = unwrap(option) or "zero"
    if text not in ("zero", "nan"):
        raise LanguageError(f"padding_option must be 'zero' or 'nan', got {brief(text)}", "leave it out for zero")
    if text == "nan" and not element.is_float:
        raise LanguageError(f"padding_option 'nan' needs floats, the elements are {element}", "use 'zero'")
    return str(text)


def load(view: StridedTensor, indices: Sequence[tensor], axes: Sequence[int], padding: str, *hints: Any) -> tensor:
    """The elements at some indices; outside the tensor, on the axes that are checked, `padding` ("" says nothing)."""
    mask = inside(view, indices, axes)
    zero = 0.0 if element_of(view).is_float else 0
    other = None if mask is None else {"zero": zero, "nan": float("nan")}.get(padding)
    return memory.load(pointers(view, indices), mask, other, *hints)


def store(view: StridedTensor, indices: Sequence[tensor], axes: Sequence[int], value: Any, *hints: Any) -> None:
    """Write elements; those outside the tensor are left out, on the axes that are checked."""
    memory.store(pointers(view, indices), value, inside(view, indices, axes), *hints)


def tile(view: StridedTensor, offsets: Sequence[tensor]) -> list[tensor]:
    """The indices of a tile's elements, one block an axis."""
    rank = len(offsets)
    return [
        span(offset, extent, axis, rank)
        for axis, (offset, extent) in enumerate(zip(offsets, view.form.extents, strict=True))
    ]


class block_pointer(NamedTuple):
    """A tile at an offset in a tensor; made by `make_block_ptr`, moved by `advance`."""

    view: StridedTensor
    offsets: tuple[tensor, ...]

    @property
    def type(self) -> dtype:
        """The type of a pointer to one element; ``pointer.dtype.element_ty`` is what lies in memory."""
        return self.view.base.dtype

    @property
    def dtype(self) -> dtype:
        return self.view.base.dtype

    @property
    def indices(self) -> list[tensor]:
        return tile(self.view, self.offsets)


def load_block(
    pointer: block_pointer, mask: Any, other: Any, boundary_check: Any, padding_option: Any, *hints: Any
) -> tensor:
    """`tl.load` through a block pointer."""
    _without_mask("load", mask, other)
    view = pointer.view
    axes = boundary_axes(boundary_check, len(pointer.offsets))
    padding = padding_of(padding_option, element_of(view)) if unwrap(padding_option) else ""
    return load(view, pointer.indices, axes, padding, *hints)


def store_block(pointer: block_pointer, value: Any, mask: Any, boundary_check: Any, *hints: Any) -> None:
    """`tl.store` through a block pointer."""
    _without_mask("store", mask, None)
    axes = boundary_axes(boundary_check, len(pointer.offsets))
    store(pointer.view, pointer.indices, axes, value, *hints)


def _without_mask(function: str, mask: Any, other: Any) -> None:
    if unwrap(mask) is not None or unwrap(other) is not None:
        raise LanguageError(
            f"{function} through a block pointer takes no mask", "name the axes to check: boundary_check=(0, 1)"
        )
