"""Loads, stores and atomics."""

from __future__ import annotations

from typing import Any

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.errors import brief
from tilewright.ir.core import Attribute
from tilewright.ir.types import PointerType
from tilewright.language.context import LanguageError, active, written
from tilewright.language.semantic.convert import (
    bitcast,
    broadcast_shapes,
    broadcast_to,
    cast,
    constant,
    is_literal,
    to_tensor,
)
from tilewright.language.tensor import emit, emit_many, tensor, type_text
from tilewright.language.types import unwrap, wrap

_LOAD_CACHES = ("", "ca", "cg", "cs", "cv")
_STORE_CACHES = ("", "wb", "cg", "cs", "wt")
_EVICTIONS = ("", "evict_normal", "evict_first", "evict_last")
_SEMANTICS = ("acquire", "release", "acq_rel", "relaxed")
_SCOPES = ("cta", "gpu", "sys")


def _pointer(value: Any, function: str) -> tensor:
    value = unwrap(value)
    if not isinstance(value, tensor) or not value.is_pointer:
        raise LanguageError(
            f"{function} needs a pointer, got {type_text(value)}",
            "pass the array itself to the kernel, and add offsets to its pointer",
        )
    return value


def _pointee(pointer: tensor) -> DType:
    assert isinstance(pointer.element, PointerType)
    return pointer.element.element


def _choice(value: Any, choices: tuple[str, ...], option: str) -> str:
    text = unwrap(value) or ""
    if isinstance(text, str):
        text = text.removeprefix(".")
    if text not in choices:
        raise LanguageError(
            f"{option} must be one of {', '.join(repr(entry) for entry in choices)}, got {brief(text)}",
            "leave it out for the default",
        )
    return text


def _mask(mask: Any, function: str) -> tensor | None:
    mask = unwrap(mask)
    if mask is None:
        return None
    mask = to_tensor(mask)
    if mask.is_pointer or not mask.number.is_integer:
        raise LanguageError(f"the mask of {function} must be int1, got {mask.type}", "use a comparison as the mask")
    return cast(mask, dtypes.int1)


def load(
    pointer: Any, mask: Any, other: Any, cache_modifier: Any = "", eviction_policy: Any = "", volatile: Any = False
) -> tensor:
    """The elements at the addresses; masked-off lanes are not accessed and hold `other`, or zero."""
    pointer = _pointer(pointer, "load")
    condition, other = _mask(mask, "load"), unwrap(other)
    attributes: dict[str, Attribute] = {
        "cache": _choice(cache_modifier, _LOAD_CACHES, "cache_modifier"),
        "eviction": _choice(eviction_policy, _EVICTIONS, "eviction_policy"),
        "volatile": bool(unwrap(volatile)),
    }
    if condition is None:
        if other is not None:
            raise LanguageError("load has `other` but no mask", "pass mask=..., or leave `other` out")
        return emit("load", [pointer], attributes)
    if not pointer.shape and condition.shape:
        raise LanguageError(
            f"a scalar pointer takes a scalar mask, got a mask of shape {list(condition.shape)}",
            "add a block of offsets to the pointer",
        )
    shape = broadcast_shapes(pointer.shape, condition.shape)
    operands = [broadcast_to(pointer, shape), broadcast_to(condition, shape)]
    if other is not None:
        operands.append(_fill(other, _pointee(pointer), shape))
    return emit("load", operands, attributes)


def _fill(other: Any, element: DType, shape: tuple[int, ...]) -> tensor:
    """The `other` operand in the element type and shape of the load."""
    if is_literal(other):
        if element.is_float and element.bits == 8 and not isinstance(other, float):
            raise LanguageError(f"an integer `other` cannot be converted to {wrap(element)}", f"write {float(other)}")
        value = constant(other, element)
    else:
        value = cast(to_tensor(other), element)
    if value.shape and not shape:
        raise LanguageError(
            f"a scalar load takes a scalar `other`, got shape {list(value.shape)}",
            "add a block of offsets to the pointer",
        )
    return broadcast_to(value, shape)


def store(pointer: Any, value: Any, mask: Any, cache_modifier: Any = "", eviction_policy: Any = "") -> None:
    """Write the value, cast to the element type, where the mask holds."""
    pointer = _writable(pointer, "store")
    value, condition = unwrap(value), _mask(mask, "store")
    operands = _stored(pointer, value, condition, "store")
    emit_many(
        "store",
        operands,
        {
            "cache": _choice(cache_modifier, _STORE_CACHES, "cache_modifier"),
            "eviction": _choice(eviction_policy, _EVICTIONS, "eviction_policy"),
        },
    )


def _writable(pointer: Any, function: str) -> tensor:
    pointer = _pointer(pointer, function)
    assert isinstance(pointer.element, PointerType)
    if pointer.element.const:
        raise LanguageError(f"{function} through a const pointer", "drop `const` from the parameter's annotation")
    return pointer


def _stored(pointer: tensor, value: Any, mask: tensor | None, function: str) -> list[tensor]:
    """Operands pointer, value and, if any, mask, all of the pointer's shape; the pointer is never widened."""
    element = _pointee(pointer)
    block = constant(value, element) if is_literal(value) else cast(to_tensor(value), element)
    operands = [pointer]
    for name, operand in (("value", block), ("mask", mask)):
        if operand is None:
            continue
        if broadcast_shapes(pointer.shape, operand.shape) != pointer.shape:
            raise LanguageError(
                f"{function} through pointers of shape {list(pointer.shape)} cannot take a {name} of shape "
                f"{list(operand.shape)}",
                "give the pointer the full shape: pointer + offsets[:, None] * stride + columns[None, :]",
            )
        operands.append(broadcast_to(operand, pointer.shape))
    return operands


def _order(sem: Any, scope: Any) -> dict[str, Attribute]:
    return {
        "semantics": _choice(unwrap(sem) or "acq_rel", _SEMANTICS, "sem"),
        "scope": _choice(unwrap(scope) or "gpu", _SCOPES, "scope"),
    }


def atomic_update(kind: str, pointer: Any, value: Any, mask: Any, sem: Any, scope: Any) -> tensor:
    """Read, combine, write as one step in each lane; gives the old values."""
    name = f"atomic_{kind}"
    pointer = _writable(pointer, name)
    element = _pointee(pointer)
    if element.is_float and kind in ("and", "or", "xor"):
        raise LanguageError(
            f"{name} needs integers, got {wrap(element)}",
            "bitcast the pointer to integers: p.to(tl.pointer_type(tl.int32))",
        )
    if element.is_bool:
        raise LanguageError(f"{name} is not defined for int1", "use int8 or int32 in memory")
    order = _order(sem, scope)
    operands = _stored(pointer, unwrap(value), _mask(mask, name), name)
    if element.is_float and element.bits == 8:
        return _update_float8(kind, operands, order)
    return emit("atomic_rmw", operands, {"kind": kind, **order})


def _update_float8(kind: str, operands: list[tensor], order: dict[str, Attribute]) -> tensor:
    """No machine updates 8-bit floats: an exchange moves their bytes, the others compare and swap."""
    pointer, value, *mask = operands
    assert isinstance(pointer.element, PointerType)
    if kind == "exchange":
        words = cast(pointer, PointerType(dtypes.uint8))
        old = emit("atomic_rmw", [words, bitcast(value, dtypes.uint8), *mask], {"kind": kind, **order})
        return bitcast(old, pointer.element.element)
    arguments = [pointer, value, mask[0] if mask else None, kind, order["semantics"], order["scope"]]
    result: tensor = active().call(written["update_float8"], arguments, {})
    return result


def atomic_cas(pointer: Any, expected: Any, value: Any, sem: Any, scope: Any, mask: Any = None) -> tensor:
    """Store `value` where memory holds `expected` and the mask holds; gives the old values."""
    pointer = _writable(pointer, "atomic_cas")
    if _pointee(pointer).is_bool:
        raise LanguageError("atomic_cas is not defined for int1", "use int8 or int32 in memory")
    first = _stored(pointer, unwrap(expected), None, "atomic_cas")[1]
    _, second, *condition = _stored(pointer, unwrap(value), _mask(mask, "atomic_cas"), "atomic_cas")
    return emit("atomic_cas", [pointer, first, second, *condition], _order(sem, scope))
