"""Values that live through control flow: taken apart into tensors and put together again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tilewright.ir.core import Value
from tilewright.language.context import LanguageError
from tilewright.language.semantic.convert import is_literal, to_tensor
from tilewright.language.tensor import tensor


@dataclass(frozen=True)
class Leaf:
    """The place of one tensor inside a structure."""


@dataclass(frozen=True)
class Static:
    """A compile-time value inside a structure (a string, None, a dtype, a function)."""

    value: Any


@dataclass(frozen=True)
class Group:
    """A tuple; `kind` is its class, so that NamedTuples are rebuilt as such."""

    kind: type
    entries: tuple[Any, ...]


Shape = Leaf | Static | Group


def take_apart(value: Any) -> tuple[Shape, list[tensor]]:
    """The structure of a value and its tensors in order; numbers become tensors."""
    if isinstance(value, tensor):
        return Leaf(), [value]
    if is_literal(value):
        return Leaf(), [to_tensor(value)]
    if isinstance(value, (tuple, list)):
        parts = [take_apart(entry) for entry in value]
        kind = type(value) if isinstance(value, tuple) else tuple
        return Group(kind, tuple(part[0] for part in parts)), [leaf for part in parts for leaf in part[1]]
    return Static(value), []


def put_together(shape: Shape, handles: Iterator[Value]) -> Any:
    """The inverse of `take_apart`, on new IR values."""
    if isinstance(shape, Leaf):
        return tensor(next(handles))
    if isinstance(shape, Static):
        return shape.value
    entries = [put_together(entry, handles) for entry in shape.entries]
    return shape.kind(*entries) if hasattr(shape.kind, "_fields") else tuple(entries)


def identical(left: Any, right: Any) -> bool:
    """Whether two bindings are the same value, so that nothing has to be merged."""
    if isinstance(left, tensor) and isinstance(right, tensor):
        return left.handle is right.handle
    if isinstance(left, tensor) or isinstance(right, tensor):
        return False
    if isinstance(left, (tuple, list)) and isinstance(right, (tuple, list)):
        return len(left) == len(right) and all(identical(a, b) for a, b in zip(left, right, strict=True))
    return left is right or (type(left) is type(right) and bool(left == right))


def check_same(what: str, left: Any, right: Any, places: tuple[str, str]) -> None:
    """Raise `LanguageError` unless two values can take one place: equal structure and tensor types.

    `places` say where each value comes from: "before the loop", "after one pass".
    """
    left_shape, left_leaves = take_apart(left)
    right_shape, right_leaves = take_apart(right)
    types = [str(leaf.type) for leaf in left_leaves], [str(leaf.type) for leaf in right_leaves]
    if left_shape != right_shape or types[0] != types[1]:
        first = ", ".join(types[0]) or repr(left)
        second = ", ".join(types[1]) or repr(right)
        raise LanguageError(
            f"{what} is {first} {places[0]} and {second} {places[1]}", "make both one type, for example with .to(dtype)"
        )
