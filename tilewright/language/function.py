"""Functions written in the tile language: their source, signature and captured names.

`SourceFunction` is what the front end traces.  `tilewright.jit` makes a subclass that can also be
launched; the functions of `standard` need no more than this.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from types import FunctionType, ModuleType
from typing import Any

from tilewright.errors import CompilationError
from tilewright.language.types import NAMES, constexpr, dtype


@dataclass(frozen=True)
class ParameterInfo:
    """One parameter of a function: how it is bound and what its annotation fixes."""

    name: str
    kind: str  # "plain", "keyword", "variadic"
    default: Any = inspect.Parameter.empty
    constexpr: bool = False
    dtype: dtype | None = None  # the type fixed by an annotation such as ``n: tl.int64``
    const: bool = False  # a read-only pointer: ``x: tl.const``

    @property
    def has_default(self) -> bool:
        return self.default is not inspect.Parameter.empty


class SourceFunction:
    """A Python function whose source is tile language. Nothing is parsed before it is needed."""

    def __init__(self, function: Callable[..., Any]) -> None:
        if not isinstance(function, FunctionType):
            raise TypeError(f"a function defined with def is needed, got {function!r}")
        self.function: FunctionType = function
        self.name = function.__name__
        self.file = function.__code__.co_filename
        self.__name__ = function.__name__
        self.__qualname__ = function.__qualname__
        self.__module__ = function.__module__
        self.__doc__ = function.__doc__
        self.__wrapped__ = function

    @cached_property
    def _lines(self) -> tuple[list[str], int]:
        """Source lines (decorators included) and the number of the first in its file."""
        try:
            return inspect.getsourcelines(self.function)
        except (OSError, TypeError) as error:
            raise CompilationError(
                f"the source of kernel '{self.name}' is not available ({error})\n"
                "  help: define kernels in a file, or build them with JITFunction.from_source"
            ) from error

    @cached_property
    def source(self) -> str:
        """The text from ``def`` on, without decorators and indentation."""
        lines, _ = self._lines
        text = textwrap.dedent("".join(lines))
        return "\n".join(text.split("\n")[self.definition.lineno - self.first_line :])

    @cached_property
    def first_line(self) -> int:
        """Number in the file of the first source line."""
        return self._lines[1] or 1

    @cached_property
    def indentation(self) -> int:
        """Columns that were cut off every source line."""
        first = self._lines[0][0]
        return len(first) - len(first.lstrip())

    @cached_property
    def definition(self) -> ast.FunctionDef:
        """The parsed ``def``; line numbers are those of the file."""
        text = textwrap.dedent("".join(self._lines[0]))
        try:
            (node,) = ast.parse(text).body
        except (SyntaxError, ValueError) as error:
            raise CompilationError(f"the source of kernel '{self.name}' cannot be parsed: {error}") from error
        if not isinstance(node, ast.FunctionDef):
            raise CompilationError(f"'{self.name}' in {self.file} is not a plain function definition")
        ast.increment_lineno(node, self.first_line - 1)
        return node

    @cached_property
    def parameters(self) -> tuple[ParameterInfo, ...]:
        """All parameters in order."""
        return tuple(self._parameter(entry) for entry in inspect.signature(self.function).parameters.values())

    @cached_property
    def argument_names(self) -> tuple[str, ...]:
        return tuple(parameter.name for parameter in self.parameters)

    def _parameter(self, entry: inspect.Parameter) -> ParameterInfo:
        kinds: dict[Any, str] = {
            inspect.Parameter.VAR_POSITIONAL: "variadic",
            inspect.Parameter.KEYWORD_ONLY: "keyword",
        }
        if entry.kind is inspect.Parameter.VAR_KEYWORD:
            raise CompilationError(f"kernel '{self.name}' has a **{entry.name} parameter; kernels take no **keywords")
        annotation = self._annotation(entry.annotation)
        is_constexpr = annotation is constexpr or getattr(annotation, "__origin__", None) is constexpr
        fixed = NAMES.get(annotation) if isinstance(annotation, str) else annotation
        return ParameterInfo(
            entry.name,
            kinds.get(entry.kind, "plain"),
            entry.default,
            is_constexpr,
            fixed if isinstance(fixed, dtype) and not fixed.is_ptr() else None,
            annotation is const,
        )

    def _annotation(self, annotation: Any) -> Any:
        """An annotation's value; a string naming no dtype is looked up among the function's globals."""
        if not isinstance(annotation, str) or annotation in NAMES:
            return annotation
        text = annotation.strip("\"' ")
        if text in NAMES:
            return text
        head, *rest = text.split(".")
        value = self.captured(head, default=None)
        for name in rest:
            value = getattr(value, name, None)
        if value is None and text.endswith("constexpr"):
            return constexpr
        return value

    _MISSING = object()

    def captured(self, name: str, default: Any = _MISSING) -> Any:
        """The value of a name used inside but defined outside: a closure variable or a global."""
        code = self.function.__code__
        if name in code.co_freevars and self.function.__closure__ is not None:
            cell = self.function.__closure__[code.co_freevars.index(name)]
            try:
                return cell.cell_contents
            except ValueError:
                pass
        elif name in self.function.__globals__:
            return self.function.__globals__[name]
        if default is SourceFunction._MISSING:
            raise KeyError(name)
        return default

    @cached_property
    def captured_paths(self) -> tuple[tuple[str, ...], ...]:
        """Every outside name that the body mentions, with the attributes read from it: ``("tl", "load")``."""
        found: dict[tuple[str, ...], None] = {}
        code = self.function.__code__
        local = {*code.co_varnames, *code.co_cellvars}
        for node in self.definition.body:
            for entry in ast.walk(node):
                path = _dotted(entry)
                if path is None or path[0] in local:
                    continue
                if self.captured(path[0], default=None) is not None:
                    found[path] = None
        return tuple(found)

    def captured_values(self) -> Iterator[tuple[tuple[str, ...], Any]]:
        """The present values of `captured_paths`, modules and functions of the language left out."""
        for path in self.captured_paths:
            value = self.captured(path[0], default=None)
            depth = 1
            while isinstance(value, ModuleType) and depth < len(path):
                value = getattr(value, path[depth], None)
                depth += 1
            if not isinstance(value, ModuleType):
                yield path[:depth], value

    def fingerprint(self, seen: set[int] | None = None) -> str:
        """A hash of the source and of everything that it captures, transitively."""
        seen = set() if seen is None else seen
        seen.add(id(self))
        digest = hashlib.sha256(f"{self.name}\0{self.source}\0".encode())
        for path, value in self.captured_values():
            digest.update(f"{'.'.join(path)}={describe(value, seen)}\0".encode())
        for parameter in self.parameters:
            if parameter.has_default:
                digest.update(f"{parameter.name}={describe(parameter.default, seen)}\0".encode())
        return digest.hexdigest()

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        raise TypeError(f"'{self.name}' is a function of the tile language: call it inside a kernel")

    def __repr__(self) -> str:
        return f"<tile function {self.__module__}.{self.__qualname__}>"


class const:
    """Annotation of a read-only pointer parameter: ``x: tl.const``."""


class ConstexprFunction:
    """A plain Python function that kernels may call at compile time, on constants."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.__name__ = getattr(function, "__name__", "function")
        self.__doc__ = function.__doc__

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self.function(*arguments, **keywords)


def constexpr_function(function: Callable[..., Any]) -> ConstexprFunction:
    """Decorator: let kernels call a Python function at compile time, on constants."""
    return ConstexprFunction(function)


def language_function(function: Callable[..., Any]) -> SourceFunction:
    """Decorator: a function in the tile language that is only ever inlined, never launched."""
    return SourceFunction(function)


def describe(value: Any, seen: set[int]) -> str:
    """Text that changes when a captured value does; functions of the language by their source."""
    if isinstance(value, SourceFunction):
        return f"{value.name}<recursive>" if id(value) in seen else value.fingerprint(seen)
    if isinstance(value, constexpr):
        return f"constexpr({describe(value.value, seen)})"
    if isinstance(value, ConstexprFunction):
        return _python_source(value.function)
    if isinstance(value, (tuple, list)):
        return f"({', '.join(describe(entry, seen) for entry in value)})"
    if isinstance(value, (FunctionType, type)) or callable(value) and hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    return f"{type(value).__name__}:{value!r}" if not isinstance(value, dtype) else repr(value)


def _python_source(function: Any) -> str:
    """A compile-time function's text, and the plain values that it reads from outside."""
    code = function.__code__
    try:
        text = inspect.getsource(function)
    except (OSError, TypeError):
        text = f"{function.__module__}.{function.__qualname__}:{code.co_code.hex()}:{code.co_consts!r}"
    outside = {name: function.__globals__.get(name) for name in code.co_names}
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        outside[name] = cell.cell_contents
    plain = {name: value for name, value in outside.items() if isinstance(value, (bool, int, float, str, tuple))}
    return f"{text}{sorted(plain.items(), key=lambda item: item[0])!r}"


def _dotted(node: ast.AST) -> tuple[str, ...] | None:
    """``a.b.c`` as a path, or None for another node."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    return (node.id, *reversed(names))
