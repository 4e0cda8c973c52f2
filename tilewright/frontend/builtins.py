"""The Python builtins that kernels may use, with their meaning for compile-time and run-time values."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

from tilewright.language import core
from tilewright.language.context import LanguageError
from tilewright.language.internals import base_value
from tilewright.language.semantic import arithmetic
from tilewright.language.tensor import tensor, type_text
from tilewright.language.types import constexpr


class PythonBuiltin:
    """A builtin that the front end calls with already evaluated arguments."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.__name__ = name
        self.function = function


def constant_of(value: Any, subject: str) -> Any:
    """A compile-time value; scalars known at compile time count."""
    if isinstance(value, tensor):
        if value.constant is None:
            raise LanguageError(
                f"{subject} needs a compile-time value, got {value.type}",
                "make it a tl.constexpr parameter, or compute it from constants",
            )
        return value.constant
    return value


def _extremum(name: str) -> Callable[..., Any]:
    def choose(*values: Any) -> Any:
        entries = list(values[0]) if len(values) == 1 and isinstance(values[0], (tuple, list)) else list(values)
        if not entries:
            raise LanguageError(f"{name}() needs at least one value", "pass the values to choose from")
        if not any(isinstance(entry, tensor) for entry in entries):
            return getattr(builtins, name)(entries)
        result = entries[0]
        for entry in entries[1:]:
            result = arithmetic.extremum(f"{name}imum", result, entry)
        return result

    return choose


def _length(value: Any) -> int:
    if isinstance(value, tensor):
        if not value.shape:
            raise LanguageError("a scalar has no length", "blocks have one: x.shape[0]")
        return value.shape[0]
    return len(value)


def _convert(name: str, to: str) -> Callable[[Any], Any]:
    def convert(value: Any = 0) -> Any:
        if isinstance(value, tensor) and value.constant is None:
            raise LanguageError(f"{name}() is for compile-time values, got {value.type}", f"use .to(tl.{to})")
        return getattr(builtins, name)(constant_of(value, name))

    return convert


def _is_instance(value: Any, classes: Any) -> bool:
    listed = classes if isinstance(classes, (tuple, list)) else [classes]
    for entry in listed:
        if entry in (constexpr, base_value) and not isinstance(value, (tensor, type)):
            return True
        kind = entry if isinstance(entry, type) else getattr(entry, "instance_class", None)
        if kind is not None and isinstance(value, kind):
            return True
    return False


def _print(*values: Any, **keywords: Any) -> None:
    """``print("x", x)`` prints at run time, like `device_print`; what kernels cannot print, at compile time."""
    prefix, rest = (values[0], values[1:]) if values and isinstance(values[0], str) else ("", values)
    if keywords or not values or not all(isinstance(value, (tensor, bool, int, float)) for value in rest):
        core.static_print(*values, **keywords)
    else:
        core.device_print(prefix, *rest)


def _absolute(value: Any) -> Any:
    return arithmetic.absolute(value) if isinstance(value, tensor) else builtins.abs(value)


def _sequence(value: Any = ()) -> tuple[Any, ...]:
    if isinstance(value, tensor):
        raise LanguageError(
            f"{type_text(value)} cannot be turned into a tuple",
            "only tuples and ranges known at compile time become tuples",
        )
    return tuple(value)


def _breakpoint(*arguments: Any, **keywords: Any) -> None:
    raise LanguageError(
        "breakpoint() stops in a kernel that is interpreted, not in machine code",
        "run the program with TILEWRIGHT_INTERPRET=1, or take it out",
    )


def _range(*bounds: Any, **options: Any) -> core.range:
    """Python's range has three numbers at most; the options that tl.range takes after them go by name."""
    if len(bounds) > 3:
        raise LanguageError(
            f"range() takes a start, an end and a step, got {len(bounds)} values",
            "options go by name: tl.range(start, end, step, num_stages=3)",
        )
    return core.range(*bounds, **options)


def _has_attribute(value: Any, name: str) -> bool:
    return hasattr(value, name)


class ClassBuiltin(PythonBuiltin):
    """A builtin class: callable, and usable with isinstance."""

    def __init__(self, name: str, function: Callable[..., Any], instance_class: type) -> None:
        super().__init__(name, function)
        self.instance_class = instance_class


PYTHON_BUILTINS: dict[str, Any] = {
    "min": PythonBuiltin("min", _extremum("min")),
    "max": PythonBuiltin("max", _extremum("max")),
    "len": PythonBuiltin("len", _length),
    "abs": PythonBuiltin("abs", _absolute),
    "range": PythonBuiltin("range", _range),
    "print": PythonBuiltin("print", _print),
    "isinstance": PythonBuiltin("isinstance", _is_instance),
    "hasattr": PythonBuiltin("hasattr", _has_attribute),
    "int": ClassBuiltin("int", _convert("int", "int32"), int),
    "float": ClassBuiltin("float", _convert("float", "float32"), float),
    "bool": ClassBuiltin("bool", _convert("bool", "int1"), bool),
    "str": ClassBuiltin("str", lambda value="": builtins.str(constant_of(value, "str")), str),
    "tuple": ClassBuiltin("tuple", _sequence, tuple),
    "list": ClassBuiltin("list", _sequence, list),
    "breakpoint": PythonBuiltin("breakpoint", _breakpoint),
    "getattr": PythonBuiltin("getattr", lambda *arguments: arguments),  # evaluated by the tracer
}
