"""Aggregates: classes of several values that kernels pass around as one.

@tilewright.aggregate
class Interval:
    low: tl.tensor
    high: tl.tensor
    closed: tl.constexpr = tl.constexpr(True)

    @tilewright.jit
    def width(self):
        return self.high - self.low

An instance is made by calling the class, inside a kernel or (with compile-time fields only) outside.  Its fields
do not change afterwards; `aggregate_replace` makes a changed copy.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable
from typing import Any

from tilewright.language.context import LanguageError, in_kernel
from tilewright.language.core import builtin
from tilewright.language.function import SourceFunction
from tilewright.language.semantic.convert import is_literal, to_tensor
from tilewright.language.tensor import tensor, type_text
from tilewright.language.types import constexpr, unwrap

_MISSING = object()


class Aggregate:
    """What all classes made by `aggregate` are. Their own names are left to the user's fields and methods."""

    __aggregate_fields__: dict[str, Any] = {}  # annotations of the fields, in order
    __aggregate_defaults__: dict[str, Any] = {}
    __operand_advice__ = ""  # what to do when one is used as a number

    def __new__(cls, *arguments: Any, **keywords: Any) -> Any:
        return unsealed(cls)

    def __setattr__(self, name: str, value: Any) -> None:
        kind = type(self).__name__
        if self.__dict__["_sealed"]:
            raise _FieldError(
                f"cannot assign to field '{name}' on immutable aggregate {kind}; "
                "use aggregate_replace() to construct a modified copy",
                f"write x = tl.aggregate_replace(x, {name}=…)",
            )
        fields = self.__aggregate_fields__
        if name not in fields:
            raise _FieldError(f"{kind} has no attribute '{name}'", f"its fields are: {', '.join(fields)}")
        object.__setattr__(self, name, _fitted(kind, name, fields[name], value))

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={self.__dict__.get(name)!r}" for name in self.__aggregate_fields__)
        return f"{type(self).__name__}({fields})"


def unsealed(kind: type[Aggregate]) -> Any:
    """An instance whose fields may be assigned until it is sealed."""
    instance = object.__new__(kind)
    instance.__dict__["_sealed"] = False
    return instance


def seal(instance: Aggregate) -> None:
    """End construction; raises `LanguageError` when a field has no value."""
    for name in instance.__aggregate_fields__:
        if name not in instance.__dict__:
            raise LanguageError(
                f"the constructor of '{type(instance).__name__}' does not set the field '{name}'",
                f"assign self.{name} in __init__",
            )
    instance.__dict__["_sealed"] = True


def field_values(instance: Aggregate) -> tuple[Any, ...]:
    """The fields' values in order."""
    return tuple(instance.__dict__[name] for name in instance.__aggregate_fields__)


def assembled(kind: type[Aggregate], values: Iterable[Any]) -> Any:
    """An instance of given field values, in order; the constructor does not run."""
    instance = unsealed(kind)
    instance.__dict__.update(zip(kind.__aggregate_fields__, values, strict=True))
    instance.__dict__["_sealed"] = True
    return instance


class _FieldError(LanguageError, AttributeError):
    """A field that does not exist, or may not be assigned."""


class _CallError(LanguageError, TypeError):
    """Arguments that do not fit a constructor, or a value that does not fit its field."""


def _fitted(kind: str, name: str, wanted: Any, value: Any) -> Any:
    """A value as its field's annotation wants it; raises when it cannot be."""
    if wanted is constexpr or getattr(wanted, "__origin__", None) is constexpr:
        if isinstance(value, tensor):
            value = value.constant
            if value is None:
                raise _CallError(
                    f"the field '{name}' of {kind} is constexpr, its value is known at run time only",
                    f"annotate it as tl.tensor: {name}: tl.tensor",
                )
        return value if isinstance(value, constexpr) else constexpr(value)
    if not isinstance(wanted, type) or isinstance(value, wanted):
        return value
    if wanted is tensor:
        if not in_kernel():
            return value
        if is_literal(unwrap(value)):
            return to_tensor(value)
    raise _CallError(
        f"Expected {wanted.__name__} for attribute '{name}' of {kind}, got {type_text(unwrap(value))}",
        "change the annotation of the field, or convert the value",
    )


def _fields_in_order(kind: type) -> Callable[..., None]:
    """The constructor of an aggregate that defines none: its fields, by position or name."""

    def __init__(self: Aggregate, *arguments: Any, **keywords: Any) -> None:
        names = list(self.__aggregate_fields__)
        title = type(self).__name__
        if len(arguments) > len(names):
            raise _CallError(
                f"{title}() takes {len(names)} values, got {len(arguments)}", f"its fields are: {', '.join(names)}"
            )
        left = dict(keywords)
        for position, name in enumerate(names):
            if position < len(arguments):
                if name in left:
                    raise _CallError(f"{title}() got multiple values for the field '{name}'", "pass it once")
                value = arguments[position]
            else:
                value = left.pop(name, self.__aggregate_defaults__.get(name, _MISSING))
            if value is _MISSING:
                raise _CallError(
                    f"{title}() is missing a value for the field '{name}'", f"its fields are: {', '.join(names)}"
                )
            setattr(self, name, value)
        if left:
            raise _CallError(f"{title}() has no field '{next(iter(left))}'", f"its fields are: {', '.join(names)}")

    return __init__


def aggregate(cls: type) -> type[Aggregate]:
    """Decorator: make a class with annotated fields an aggregate. See the module.

    Field annotations: `tl.tensor`, `tl.constexpr`, `tl.tuple`, `tl.tensor_descriptor` or another aggregate.
    Without an ``__init__`` the constructor takes the fields in order, with the class's values as defaults.
    Methods may be jit functions, `constexpr_function`s, or plain functions that run while the kernel is traced.
    Raises `TypeError` for a base class that is not an aggregate.
    """
    fields: dict[str, Any] = {}
    defaults: dict[str, Any] = {}
    for base in cls.__bases__:
        if base is object:
            continue
        if not issubclass(base, Aggregate):
            raise TypeError(f"Aggregates can only inherit from other aggregates, but got non-aggregate base: {base}")
    for base in reversed(cls.__mro__[1:]):
        if base is not Aggregate and issubclass(base, Aggregate):
            fields.update(base.__aggregate_fields__)
            defaults.update(base.__aggregate_defaults__)
    for name, annotation in _annotations(cls).items():
        fields[name] = annotation
        if name in cls.__dict__:
            defaults[name] = cls.__dict__[name]
    inherits = any(issubclass(base, Aggregate) for base in cls.__bases__)
    namespace: dict[str, Any] = {
        "__aggregate_fields__": fields, "__aggregate_defaults__": defaults, "__module__": cls.__module__,
        "__qualname__": cls.__qualname__, "__doc__": cls.__doc__,
    }  # fmt: skip
    own = cls.__dict__.get("__init__")
    namespace["__init__"] = _sealing(_fields_in_order(cls) if own is None else own)
    made: Any = type(cls.__name__, (cls,) if inherits else (cls, Aggregate), namespace)
    return made


def _sealing(init: Any) -> Any:
    """A constructor that ends construction; jit functions are called, and sealed, by the tracer."""
    if isinstance(init, SourceFunction):
        return init

    def __init__(self: Aggregate, *arguments: Any, **keywords: Any) -> None:
        getattr(init, "function", init)(self, *arguments, **keywords)
        seal(self)

    __init__.__wrapped__ = getattr(init, "function", init)  # type: ignore[attr-defined]
    return __init__


def _annotations(cls: type) -> dict[str, Any]:
    """The class's own field annotations, strings resolved where their names are known."""
    own = dict(cls.__dict__.get("__annotations__", {}))
    try:
        resolved = typing.get_type_hints(cls)
    except (NameError, TypeError):
        resolved = {}
    return {name: resolved.get(name, annotation) for name, annotation in own.items()}


@builtin
def aggregate_replace(instance: Any, **changes: Any) -> Any:
    """A copy of an aggregate with some fields changed; its constructor does not run."""
    if not isinstance(instance, Aggregate):
        raise _CallError(
            f"aggregate_replace() expects an aggregate instance, got {type_text(unwrap(instance))}",
            "@tilewright.aggregate makes a class an aggregate",
        )
    kind = type(instance)
    fields = kind.__aggregate_fields__
    for name in changes:
        if name not in fields:
            raise _CallError(f"{kind.__name__} has no field '{name}'", f"its fields are: {', '.join(fields)}")
    given = {name: _fitted(kind.__name__, name, fields[name], value) for name, value in changes.items()}
    old = zip(fields, field_values(instance), strict=True)
    return assembled(kind, [given.get(name, value) for name, value in old])
