"""Typed access to operations' attributes."""

from __future__ import annotations

from tilewright.ir.core import Operation


def integer(operation: Operation, name: str) -> int:
    """An attribute that is an int."""
    value = operation.attributes[name]
    assert isinstance(value, int)
    return value


def integers(operation: Operation, name: str) -> tuple[int, ...]:
    """An attribute that is a tuple of ints."""
    value = operation.attributes[name]
    assert isinstance(value, tuple)
    return tuple(item for item in value if isinstance(item, int))


def number(operation: Operation, name: str = "value") -> bool | int | float:
    """An attribute that is a number."""
    value = operation.attributes[name]
    assert isinstance(value, (bool, int, float))
    return value
