"""Ranges and shape operations."""

from __future__ import annotations

from typing import Any

from tilewright import dtypes
from tilewright.language.context import LanguageError, active
from tilewright.language.semantic.convert import broadcast, check_shape, constant, to_tensor
from tilewright.language.tensor import emit, emit_many, tensor, type_text
from tilewright.language.types import unwrap


def static_int(value: Any, subject: str) -> int:
    """A compile-time integer; raises `LanguageError` naming `subject` otherwise."""
    value = unwrap(value)
    if isinstance(value, tensor) and isinstance(value.constant, int):
        value = value.constant
    if isinstance(value, bool) or not isinstance(value, int):
        raise LanguageError(
            f"{subject} must be a compile-time integer, got {type_text(value)}",
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


def axis_of(value: tensor, axis: Any, subject: str = "axis", extra: int = 0) -> int:
    """A non-negative axis of `value` (or of a result with `extra` more axes)."""
    number = static_int(axis, subject)
    rank = value.rank + extra
    if not -rank <= number < rank:
        raise LanguageError(
            f"{subject} {number} is out of range for a block of rank {rank}", "axes count from 0, or from -1 backwards"
        )
    return number % rank


def arange(start: Any, end: Any) -> tensor:
    first, last = static_int(start, "the start of arange"), static_int(end, "the end of arange")
    if last <= first:
        raise LanguageError(
            f"arange needs end > start, got {first} and {last}", "pass the start, then the end, which is not included"
        )
    check_shape((last - first,))
    if not -(2**31) <= first <= last <= 2**31:
        raise LanguageError(
            f"arange({first}, {last}) leaves the range of int32", "start at 0 and add the offset in int64"
        )
    return emit("arange", [], {"start": first, "end": last})


def expand_dims(value: tensor, axis: Any) -> tensor:
    axes = unwrap(axis)
    if not isinstance(axes, (tuple, list)):
        axes = [axes]
    positions = sorted(axis_of(value, entry, extra=len(axes)) for entry in axes)
    if len(set(positions)) != len(positions):
        raise LanguageError(f"expand_dims got the same axis twice: {list(axes)}", "axes count in the result")
    for position in positions:
        if value.rank == 0:
            value = emit("splat", [value], {"shape": (1,)})
        else:
            value = emit("expand_dims", [value], {"axis": position})
    return value


def index(value: tensor, slices: Any) -> tensor:
    """``x[:, None]``: ``:`` keeps an axis, None inserts one, ``a:b:c`` takes a part of one, a number drops one.

    A number may be known at run time only; it must be in range then.
    """
    slices = unwrap(slices)
    entries = list(slices) if isinstance(slices, tuple) else [slices]
    entries = _without_ellipsis(entries, value.rank)
    if not value.rank:  # a scalar has no axes to keep: there ":" says nothing
        entries = [entry for entry in entries if not _is_whole(entry)]
    if sum(entry is not None for entry in entries) > value.rank:
        raise LanguageError(
            f"unsupported tensor index: too many indices for a block of rank {value.rank}",
            "one index for each axis; None adds one",
        )
    axis = 0
    for entry in entries:
        if entry is None:
            value = expand_dims(value, axis)
        elif isinstance(entry, slice):
            value = _part(value, axis, entry)
        else:
            value = _element(value, axis, entry)
            continue
        axis += 1
    return value


def _is_whole(entry: Any) -> bool:
    """Whether an index is ``:``."""
    return isinstance(entry, slice) and entry.start is entry.stop is entry.step is None


def _without_ellipsis(entries: list[Any], rank: int) -> list[Any]:
    positions = [number for number, entry in enumerate(entries) if entry is Ellipsis]
    if not positions:
        return entries
    if len(positions) > 1:
        raise LanguageError("an index has at most one '...'", 'write out the other axes with ":"')
    missing = rank - sum(entry is not None and entry is not Ellipsis for entry in entries)
    return [*entries[: positions[0]], *[slice(None)] * missing, *entries[positions[0] + 1 :]]


def _part(value: tensor, axis: int, part: slice) -> tensor:
    """A slice with compile-time bounds along an axis."""
    if _is_whole(part):
        return value
    bounds = [
        None if bound is None else static_int(bound, "a slice's bound") for bound in (part.start, part.stop, part.step)
    ]
    if bounds[2] == 0:
        raise LanguageError("the step of a slice must not be zero", "leave it out, or use 1 for every element")
    places = range(value.shape[axis])[slice(*bounds)]
    if not places:
        raise LanguageError(
            f"the slice {part.start}:{part.stop} of an axis of {value.shape[axis]} elements is empty",
            "a slice needs at least one element",
        )
    if len(places) == value.shape[axis] and places.step > 0:
        return value
    numbers = emit("arange", [], {"start": 0, "end": len(places)})
    shape = (len(places),)
    for opcode, number in (("multiply", places.step), ("add", places.start)):
        if number != (1 if opcode == "multiply" else 0):
            numbers = emit(opcode, [numbers, constant(number, numbers.number, shape)])
    return take(value, axis, numbers)


def _element(value: tensor, axis: int, place: Any) -> tensor:
    """The elements at one place of an axis, which is dropped."""
    extent = value.shape[axis]
    if not isinstance(place, tensor):
        number = static_int(place, "an index")
        if not -extent <= number < extent:
            message = f"index {number} is out of range for an axis of {extent} elements"
            raise LanguageError(message, f"indices go from {-extent} to {extent - 1}")
        place = constant(number % extent, dtypes.int32)
    if place.shape or place.is_pointer or not place.number.is_integer or place.number.is_bool:
        raise LanguageError(f"a block is indexed with ':', None and integers, got {place.type}", "use tl.gather")
    element = take(value, axis, emit("splat", [place], {"shape": (1,)}))
    return emit("reshape", [element], {"shape": value.shape[:axis] + value.shape[axis + 1 :]})


def take(value: tensor, axis: int, places: tensor) -> tensor:
    """`gather` with the same places for all other axes."""
    active().remark("note", "taking elements out of a block moves data between its lanes; a load may be cheaper")
    shape = value.shape[:axis] + places.shape + value.shape[axis + 1 :]
    for number in range(value.rank):
        if number != axis:
            places = emit("expand_dims", [places], {"axis": number})
    if places.shape != shape:
        places = emit("broadcast", [places], {"shape": shape})
    return gather(value, places, axis)


def reshape(value: tensor, shape: tuple[int, ...]) -> tensor:
    count = 1
    for extent in shape:
        count *= extent
    if -1 in shape:
        known = -count
        if shape.count(-1) > 1 or known == 0 or value.numel % known:
            raise LanguageError(
                f"a block of shape {list(value.shape)} cannot be reshaped to {list(shape)}",
                "the numbers of elements must be equal",
            )
        shape = tuple(value.numel // known if extent == -1 else extent for extent in shape)
    elif count != value.numel:
        raise LanguageError(
            f"a block of shape {list(value.shape)} has {value.numel} elements, shape {list(shape)} has {count}",
            "the numbers of elements must be equal",
        )
    if value.shape == shape:
        return value
    if value.rank == 0:
        return emit("splat", [value], {"shape": shape})
    return emit("reshape", [value], {"shape": shape})


def permute(value: tensor, order: tuple[int, ...]) -> tensor:
    numbers = [static_int(axis, "an axis of a permutation") for axis in order]
    axes = tuple(number % value.rank if -value.rank <= number < value.rank else -1 for number in numbers)
    if sorted(axes) != list(range(value.rank)):
        raise LanguageError(
            f"{numbers} is not a permutation of the {value.rank} axes",
            f"name every axis from 0 to {value.rank - 1} once; negative ones count from the last",
        )
    return value if axes == tuple(range(value.rank)) else emit("permute", [value], {"order": axes})


def transpose(value: tensor, order: tuple[int, ...]) -> tensor:
    """`tl.trans`: without an order the last two axes are swapped."""
    if not order:
        if value.rank < 2:
            raise LanguageError(
                f"trans needs a block of rank 2 or more, got {value.type}", "add an axis with x[:, None] first"
            )
        order = (*range(value.rank - 2), value.rank - 1, value.rank - 2)
    return permute(value, order)


def join(left: Any, right: Any) -> tensor:
    first, second = _same_type(to_tensor(left), to_tensor(right), "join")
    return emit("join", [first, second])


def _same_type(first: tensor, second: tensor, function: str) -> list[tensor]:
    if first.element != second.element:
        raise LanguageError(f"{function} needs one dtype, got {first.dtype} and {second.dtype}", "cast one of them")
    return broadcast(first, second)


def split(value: tensor) -> tuple[tensor, tensor]:
    if value.rank == 0 or value.shape[-1] != 2:
        raise LanguageError(
            f"split needs a block whose last extent is 2, got {value.type}",
            "bring it to that shape with tl.reshape and tl.permute",
        )
    first, second = emit_many("split", [value])
    return first, second


def cat(left: tensor, right: tensor, axis: Any) -> tensor:
    if left.element != right.element or left.shape != right.shape:
        raise LanguageError(
            f"cat needs two blocks of one type, got {left.type} and {right.type}",
            "cast one of them; tl.join stacks on a new axis",
        )
    return emit("cat", [left, right], {"axis": axis_of(left, axis, "dim")})


def gather(source: tensor, indices: tensor, axis: Any) -> tensor:
    position = axis_of(source, axis)
    if indices.is_pointer or not indices.number.is_integer or indices.number.is_bool:
        raise LanguageError(f"gather needs integer indices, got {indices.dtype}", "cast them with .to(tl.int32)")
    if source.rank != indices.rank:
        raise LanguageError(
            f"gather needs equal ranks, got {source.type} and {indices.type}",
            "insert axes with x[:, None], and broadcast",
        )
    for number, (have, want) in enumerate(zip(source.shape, indices.shape, strict=True)):
        if number != position and have != want:
            raise LanguageError(
                f"shapes {list(source.shape)} and {list(indices.shape)} differ outside axis {position}",
                "source and indices have equal extents on the other axes",
            )
    return emit("gather", [source, indices], {"axis": position})


def squeeze(value: tensor, axis: Any) -> tensor:
    position = axis_of(value, axis, "dim")
    if value.shape[position] != 1:
        raise LanguageError(
            f"squeeze needs an extent of 1 on axis {position}, got {list(value.shape)}",
            "reduce the axis first, or use tl.reshape",
        )
    return reshape(value, value.shape[:position] + value.shape[position + 1 :])


def flip(value: tensor, axis: Any) -> tensor:
    """The elements of an axis in reverse order."""
    position = axis_of(value, value.rank - 1 if unwrap(axis) is None else axis, "dim")
    return _part(value, position, slice(None, None, -1))


def item(value: tensor) -> tensor:
    """The only element of a block as a scalar."""
    if value.numel != 1:
        raise LanguageError(
            f"item needs a block of one element, got {value.type}", "reduce it first, for example with tl.sum"
        )
    return value if value.rank == 0 else emit("reshape", [value], {"shape": ()})
