"""Promises to the compiler, assertions, printing, barriers, program ids."""

from __future__ import annotations

from typing import Any

from tilewright import dtypes
from tilewright.errors import brief
from tilewright.ir.core import Attribute
from tilewright.language.context import LanguageError, active
from tilewright.language.semantic.arithmetic import where
from tilewright.language.semantic.convert import broadcast, cast, to_tensor
from tilewright.language.semantic.shape import static_int
from tilewright.language.tensor import emit, emit_many, tensor
from tilewright.language.types import unwrap


def grid_value(opcode: str, axis: Any) -> tensor:
    number = static_int(axis, "axis")
    if number not in (0, 1, 2):
        raise LanguageError(f"axis must be 0, 1 or 2, got {number}", "the grid has three axes")
    place = emit(opcode, [], {"axis": number})
    return cast(place, dtypes.int64) if active().wide_grid else place


def hint(value: Any, name: str, numbers: Any) -> Any:
    """Attach divisibility, contiguity or constancy, one number for each axis."""
    value, numbers = unwrap(value), unwrap(numbers)
    if not isinstance(value, tensor) or value.constant is not None:
        return value
    listed = list(numbers) if isinstance(numbers, (tuple, list)) else [numbers]
    counts = tuple(static_int(entry, "every number of a hint") for entry in listed)
    if len(counts) != max(1, value.rank):
        raise LanguageError(
            f"a hint on a block of rank {value.rank} needs {max(1, value.rank)} numbers, got {len(counts)}",
            "give one number for each axis",
        )
    if any(count < 1 for count in counts):
        raise LanguageError(
            f"a hint's numbers must be positive, got {list(counts)}", "leave the hint out where nothing is known"
        )
    if not value.is_pointer and (not value.number.is_integer or value.number.is_bool):
        raise LanguageError(
            f"hints are for integers and pointers, got {value.dtype}", "give it to the offsets or to the pointer"
        )
    return emit("hint", [value], {name: counts})


def assume(condition: Any) -> None:
    condition = unwrap(condition)
    if isinstance(condition, tensor):
        emit_many("assume", [cast(condition, dtypes.int1)])
    elif not condition:
        raise LanguageError(
            "assume got a condition that is false at compile time", "assume what holds, or leave it out"
        )


def device_assert(condition: Any, message: Any, mask: Any = None) -> None:
    condition = cast(to_tensor(condition), dtypes.int1)
    mask = unwrap(mask)
    if mask is not None:
        condition = where(cast(to_tensor(mask), dtypes.int1), condition, True)
    if condition.constant is True:
        return
    emit_many("assert", [condition], {"message": str(unwrap(message))})


def device_print(prefix: Any, values: tuple[Any, ...], hexadecimal: Any = False) -> None:
    text = unwrap(prefix)
    if not isinstance(text, str) or not text.isascii():
        raise LanguageError(
            f"device_print needs a literal ASCII prefix, got {brief(text)}", "pass the text first, then the values"
        )
    attributes: dict[str, Attribute] = {"prefix": text, "hex": bool(unwrap(hexadecimal))}
    emit_many("print", [to_tensor(value) for value in values], attributes)


def barrier() -> None:
    active().builder.create("barrier")


def expect_zero(value: tensor, mask: Any) -> tensor:
    """The value itself; debug builds check that it is zero under the mask."""
    broadcast(value, to_tensor(mask))
    return value
