"""Objects of users' classes in kernels: dataclasses as arguments, and fields of compile-time objects."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from tilewright.language.types import constexpr

_OWN = __name__.partition(".")[0]


def is_users(value: Any) -> bool:
    """Whether a value is an instance of a class that is neither of Python's builtins nor of tilewright."""
    return not isinstance(value, type) and type(value).__module__.partition(".")[0] not in ("builtins", _OWN)


def is_record(value: Any) -> bool:
    """Whether a value is an instance of a user's dataclass."""
    return dataclasses.is_dataclass(value) and is_users(value)


def field_names(kind: type) -> tuple[str, ...]:
    """The fields of a dataclass in order."""
    return tuple(field.name for field in dataclasses.fields(kind))


def field_values(record: Any) -> tuple[Any, ...]:
    """The fields' values in order."""
    return tuple(getattr(record, name) for name in field_names(type(record)))


def argument_values(record: Any) -> tuple[Any, ...]:
    """The same as a kernel's arguments: fields annotated `tl.constexpr` are compile-time values."""
    values = []
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        fixed = field.type is constexpr or isinstance(field.type, str) and field.type.rpartition(".")[2] == "constexpr"
        values.append(constexpr(value) if fixed and not isinstance(value, constexpr) else value)
    return tuple(values)


def assembled(kind: type, values: Iterable[Any]) -> Any:
    """An instance of a dataclass with these fields, in order; its constructor does not run."""
    record: Any = object.__new__(kind)
    for name, value in zip(field_names(kind), values, strict=True):
        object.__setattr__(record, name, value)
    return record


def contents(value: Any) -> dict[str, Any]:
    """What an object of a user's class holds, by name: of its dictionary and its slots."""
    slots = [name for kind in type(value).__mro__ for name in _listed(kind.__dict__.get("__slots__", ()))]
    slot_values = {name: getattr(value, name) for name in slots if hasattr(value, name) and not name.startswith("__")}
    return {**slot_values, **getattr(value, "__dict__", {})}


def _listed(slots: Any) -> Iterable[str]:
    return (slots,) if isinstance(slots, str) else tuple(slots)
