"""Ranges and shape operations."""

from __future__ import annotations

from typing import Any

from tilewright.language.context import LanguageError
from tilewright.language.semantic.convert import broadcast, check_shape, to_tensor
from tilewright.language.tensor import emit, emit_many, tensor, type_text
from tilewright.language.types import unwrap


def static_int(value: Any, what: str) -> int:
    """A compile-time integer; raises `LanguageError` naming `what` otherwise."""
    value = unwrap(value)
    if isinstance(value, tensor) and isinstance(value.constant, int):
        value = value.constant
    if isinstance(value, bool) or not isinstance(value, int):
        raise LanguageError(
            f"{what} must be a compile-time integer, got {type_text(value)}",
            "make it a tl.constexpr parameter, or compute it from constants",
        )
    return value


def static_shape(values: Any) -> tuple[int, ...]:
    """A shape argument: an int or a sequence of ints, all known at compile time."""
    values = unwrap(values)
    extents = values if isinstance(values, (tuple, list)) else [values]
    return tuple(static_int(extent, "every extent of a shape") for extent in extents)


def shape_arguments(values: tuple[Any, ...]) -> tuple[int, ...]:
    """The shape of ``f(x, 4, 8)``, ``f(x, (4, 8))`` or ``f(x, [4, 8])``."""
    single = len(values) == 1 and isinstance(unwrap(values[0]), (tuple, list))
    return static_shape(values[0] if single else list(values))


def axis_of(value: tensor, axis: Any, what: str = "axis", extra: int = 0) -> int:
    """A non-negative axis of `value` (or of a result with `extra` more axes)."""
    number = static_int(axis, what)
    rank = value.rank + extra
    if not -rank <= number < rank:
        raise LanguageError(f"{what} {number} is out of range for a block of rank {rank}")
    return number % rank


def arange(start: Any, end: Any) -> tensor:
    first, last = static_int(start, "the start of arange"), static_int(end, "the end of arange")
    if last <= first:
        raise LanguageError(f"arange needs end > start, got {first} and {last}")
    check_shape((last - first,))
    if not -(2**31) <= first <= last <= 2**31:
        raise LanguageError(f"arange({first}, {last}) leaves the range of int32")
    return emit("arange", [], {"start": first, "end": last})


def expand_dims(value: tensor, axis: Any) -> tensor:
    axes = unwrap(axis)
    if not isinstance(axes, (tuple, list)):
        axes = [axes]
    positions = sorted(axis_of(value, entry, extra=len(axes)) for entry in axes)
    if len(set(positions)) != len(positions):
        raise LanguageError(f"expand_dims got the same axis twice: {list(axes)}")
    for position in positions:
        if value.rank == 0:
            value = emit("splat", [value], {"shape": (1,)})
        else:
            value = emit("expand_dims", [value], {"axis": position})
    return value


def index(value: tensor, slices: Any) -> tensor:
    """``x[:, None]``: full slices keep an axis, None inserts one."""
    slices = unwrap(slices)
    entries = list(slices) if isinstance(slices, tuple) else [slices]
    if Ellipsis in entries:
        position = entries.index(Ellipsis)
        missing = value.rank - sum(entry is not None and entry is not Ellipsis for entry in entries)
        entries[position : position + 1] = [slice(None)] * missing
    kept = 0
    for position, entry in enumerate(entries):
        if entry is None:
            value = expand_dims(value, position)
        elif isinstance(entry, slice) and (entry.start, entry.stop, entry.step) == (None, None, None):
            kept += 1
        else:
            raise LanguageError(
                "a block is indexed with ':' and None only",
                "select elements with a mask and a reduction, or use tl.gather or tl.split",
            )
    if kept > value.rank - entries.count(None):
        raise LanguageError(f"too many indices for a block of rank {value.rank - entries.count(None)}")
    return value


def reshape(value: tensor, shape: tuple[int, ...]) -> tensor:
    count = 1
    for extent in shape:
        count *= extent
    if -1 in shape:
        known = -count
        if shape.count(-1) > 1 or known == 0 or value.numel % known:
            raise LanguageError(f"a block of shape {list(value.shape)} cannot be reshaped to {list(shape)}")
        shape = tuple(value.numel // known if extent == -1 else extent for extent in shape)
    elif count != value.numel:
        raise LanguageError(
            f"a block of shape {list(value.shape)} has {value.numel} elements, shape {list(shape)} has {count}"
        )
    if value.shape == shape:
        return value
    if value.rank == 0:
        return emit("splat", [value], {"shape": shape})
    return emit("reshape", [value], {"shape": shape})


def permute(value: tensor, order: tuple[int, ...]) -> tensor:
    axes = tuple(axis_of(value, axis, "every axis of a permutation") for axis in order)
    if sorted(axes) != list(range(value.rank)):
        raise LanguageError(f"{list(order)} is not a permutation of the {value.rank} axes")
    return value if axes == tuple(range(value.rank)) else emit("permute", [value], {"order": axes})


def transpose(value: tensor, order: tuple[int, ...]) -> tensor:
    """`tl.trans`: without an order the last two axes are swapped."""
    if not order:
        if value.rank < 2:
            raise LanguageError(f"trans needs a block of rank 2 or more, got {value.type}")
        order = (*range(value.rank - 2), value.rank - 1, value.rank - 2)
    return permute(value, order)


def join(left: Any, right: Any) -> tensor:
    first, second = _same_type(to_tensor(left), to_tensor(right), "join")
    return emit("join", [first, second])


def _same_type(first: tensor, second: tensor, what: str) -> list[tensor]:
    if first.element != second.element:
        raise LanguageError(f"{what} needs one dtype, got {first.dtype} and {second.dtype}", "cast one of them")
    return broadcast(first, second)


def split(value: tensor) -> tuple[tensor, tensor]:
    if value.rank == 0 or value.shape[-1] != 2:
        raise LanguageError(f"split needs a block whose last extent is 2, got {value.type}")
    first, second = emit_many("split", [value])
    return first, second


def cat(left: tensor, right: tensor, axis: Any) -> tensor:
    if left.element != right.element or left.shape != right.shape:
        raise LanguageError(f"cat needs two blocks of one type, got {left.type} and {right.type}")
    return emit("cat", [left, right], {"axis": axis_of(left, axis, "dim")})


def gather(source: tensor, indices: tensor, axis: Any) -> tensor:
    position = axis_of(source, axis)
    if indices.is_pointer or not indices.number.is_integer or indices.number.is_bool:
        raise LanguageError(f"gather needs integer indices, got {indices.dtype}")
    if source.rank != indices.rank:
        raise LanguageError(f"gather needs equal ranks, got {source.type} and {indices.type}")
    for number, (have, want) in enumerate(zip(source.shape, indices.shape, strict=True)):
        if number != position and have != want:
            raise LanguageError(f"shapes {list(source.shape)} and {list(indices.shape)} differ outside axis {position}")
    return emit("gather", [source, indices], {"axis": position})


def squeeze(value: tensor, axis: Any) -> tensor:
    position = axis_of(value, axis, "dim")
    if value.shape[position] != 1:
        raise LanguageError(f"squeeze needs an extent of 1 on axis {position}, got {list(value.shape)}")
    return reshape(value, value.shape[:position] + value.shape[position + 1 :])


def flip(value: tensor, axis: Any) -> tensor:
    """The elements of an axis in reverse order."""
    position = axis_of(value, axis, "dim")
    extent = value.shape[position]
    backwards = emit("arange", [], {"start": 1 - extent, "end": 1})
    reverse = emit("negate", [backwards])
    for number in range(value.rank):
        if number != position:
            reverse = expand_dims(reverse, number)
    return gather(value, emit("broadcast", [reverse], {"shape": value.shape}) if value.rank > 1 else reverse, position)


def item(value: tensor) -> tensor:
    """The only element of a block as a scalar."""
    if value.numel != 1:
        raise LanguageError(f"item needs a block of one element, got {value.type}")
    return value if value.rank == 0 else emit("reshape", [value], {"shape": ()})
