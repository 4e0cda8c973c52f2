"""Values carried through control flow: split into tensors and reassembled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tilewright.ir.core import SSAValue
from tilewright.language import records
from tilewright.language.aggregate import Aggregate, assembled, field_values
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
class ValueGroup:
    """A tuple, NamedTuple, dataclass, aggregate or host descriptor; `kind` says how entries make one."""

    kind: Any
    entries: tuple[Any, ...]

    def build(self, entries: Iterable[Any]) -> Any:
        """The value made of these entries."""
        if self.kind is tuple:
            return tuple(entries)
        if hasattr(self.kind, "_fields"):
            return self.kind(*entries)
        if isinstance(self.kind, type) and issubclass(self.kind, Aggregate):
            return assembled(self.kind, entries)
        return records.assembled(self.kind, entries) if isinstance(self.kind, type) else self.kind.build(entries)


Shape = Leaf | Static | ValueGroup


def members(value: Any) -> ValueGroup | None:
    """What a value of several parts is made of; None for other values."""
    if isinstance(value, (tuple, list)):
        return ValueGroup(type(value) if hasattr(value, "_fields") else tuple, tuple(value))
    if isinstance(value, Aggregate):
        return ValueGroup(type(value), field_values(value))
    return ValueGroup(type(value), records.field_values(value)) if records.is_record(value) else None


def take_apart(value: Any) -> tuple[Shape, list[tensor]]:
    """The structure of a value and its tensors in order; numbers become tensors."""
    if isinstance(value, tensor):
        return Leaf(), [value]
    if is_literal(value):
        return Leaf(), [to_tensor(value)]
    group = members(value)
    if group is None:
        return Static(value), []
    parts = [take_apart(entry) for entry in group.entries]
    return ValueGroup(group.kind, tuple(part[0] for part in parts)), [leaf for part in parts for leaf in part[1]]


def put_together(shape: Shape, handles: Iterator[SSAValue]) -> Any:
    """The inverse of `take_apart`, on new IR values."""
    if isinstance(shape, Leaf):
        return tensor(next(handles))
    if isinstance(shape, Static):
        return shape.value
    return shape.build([put_together(entry, handles) for entry in shape.entries])


def identical(left: Any, right: Any) -> bool:
    """Whether two bindings are the same value, so that nothing has to be merged."""
    if isinstance(left, tensor) and isinstance(right, tensor):
        return left.handle is right.handle
    if isinstance(left, tensor) or isinstance(right, tensor):
        return False
    first, second = members(left), members(right)
    if first is not None and second is not None:
        pairs = zip(first.entries, second.entries, strict=False)
        return first.kind == second.kind and len(first.entries) == len(second.entries) and all(
            identical(a, b) for a, b in pairs)  # fmt: skip
    return left is right or (type(left) is type(right) and bool(left == right))


def same_types(left: Any, right: Any) -> bool:
    """Whether two values can take one place: equal structure and tensor types."""
    left_shape, left_leaves = take_apart(left)
    right_shape, right_leaves = take_apart(right)
    types = [leaf.handle.type for leaf in left_leaves], [leaf.handle.type for leaf in right_leaves]
    return left_shape == right_shape and types[0] == types[1]


def check_same(subject: str, left: Any, right: Any, places: tuple[str, str]) -> None:
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
            f"{subject} is {first} {places[0]} and {second} {places[1]}",
            "make both one type, for example with .to(dtype)",
        )
