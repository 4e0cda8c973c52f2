"""Calls: functions of the language are inlined, builtins emit operations, compile-time functions run."""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Mapping, Sequence
from enum import EnumMeta
from functools import lru_cache
from types import FunctionType
from typing import Any

import tilewright.language as language
from tilewright.frontend.builtins import PYTHON_BUILTINS, PythonBuiltin, constant_of
from tilewright.frontend.compile_time import compute
from tilewright.frontend.expressions import BoundMethod, Expressions
from tilewright.language import core
from tilewright.language.aggregate import Aggregate, seal, unsealed
from tilewright.language.context import LanguageError
from tilewright.language.core import BUILTIN
from tilewright.language.extra import libdevice
from tilewright.language.function import MUST_USE, SourceFunction
from tilewright.language.semantic import hint
from tilewright.language.tensor import tensor, type_text
from tilewright.language.types import (
    ConstexprFunction,
    block_type,
    constexpr,
    constexpr_type,
    dtype,
    pointer_type,
    tuple_type,
    unwrap,
)

_TYPES = (pointer_type, block_type, constexpr_type, tuple_type, dtype, slice)


@lru_cache(maxsize=512)
def _signature(function: Any) -> inspect.Signature:
    return inspect.signature(function)


def _check_arguments(function: Any, name: str, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> None:
    """Raise a readable error when a call does not fit a function's signature."""
    try:
        _signature(function).bind(*arguments, **keywords)
    except TypeError as error:
        names = ", ".join(entry for entry in _signature(function).parameters if entry != "self")
        raise LanguageError(f"{name}: {error}", f"its parameters are: {names}") from None


class Calls(Expressions):
    """Evaluates call nodes."""

    def visit_Call(self, node: ast.Call) -> Any:
        function = self.evaluate(node.func)
        if node is self.discarded:
            _check_result_may_be_dropped(function, ast.unparse(node.func))
        arguments = self._spread(node.args)
        keywords: dict[str, Any] = {}
        for keyword in node.keywords:
            if keyword.arg is None:
                raise self.error(keyword.value, "**keywords are not part of the tile language", "name every argument")
            keywords[keyword.arg] = self.evaluate(keyword.value)
        self.mark(node)
        return self.call(node, function, arguments, keywords)

    def call(self, node: ast.AST, function: Any, arguments: list[Any], keywords: dict[str, Any]) -> Any:
        """Call any kind of function that kernels may call."""
        if isinstance(function, BoundMethod):
            return self._call_method(node, function, arguments, keywords)
        if isinstance(function, type) and issubclass(function, Aggregate):
            return self._construct(node, function, arguments, keywords)
        if isinstance(function, Aggregate):
            return self._operator_method(node, function, "__call__", arguments)
        if isinstance(function, SourceFunction):
            return self.session.inline(function, arguments, keywords, self.location(node))
        if isinstance(function, PythonBuiltin):
            return self._call_python_builtin(function, arguments, keywords)
        if getattr(function, BUILTIN, False) and callable(function):  # instances have the mark of their class
            return self._call_builtin(function, arguments, keywords)
        if isinstance(function, ConstexprFunction):
            return self._call_constexpr(function, arguments, keywords)
        return self._call_other(function, arguments, keywords)

    def _call_method(self, node: ast.AST, bound: BoundMethod, arguments: list[Any], keywords: dict[str, Any]) -> Any:
        """A method of a tensor or aggregate. Plain functions among an aggregate's methods run while tracing."""
        function, given = bound.function, [*bound.first, *arguments]
        if not isinstance(function, FunctionType) or getattr(function, BUILTIN, False):
            return self.call(node, function, given, keywords)
        _check_arguments(function, function.__name__, given, keywords)
        try:
            return unwrap(function(*given, **keywords))
        except AssertionError as error:
            raise LanguageError(
                f"the method '{function.__name__}' failed: {error}",
                "the method runs while the kernel is compiled: its arguments are blocks and constants",
            ) from None

    def _construct(self, node: ast.AST, kind: Any, arguments: list[Any], keywords: dict[str, Any]) -> Any:
        """A new aggregate: its constructor runs on the values of the kernel."""
        init = kind.__init__
        if not isinstance(init, SourceFunction):
            _check_arguments(getattr(init, "__wrapped__", init), kind.__name__, [None, *arguments], keywords)
            return kind(*arguments, **keywords)
        instance = unsealed(kind)
        self.session.inline(init, [instance, *arguments], keywords, self.location(node))
        seal(instance)
        return instance

    def _call_builtin(self, function: Any, arguments: list[Any], keywords: dict[str, Any]) -> Any:
        level = "tx" if getattr(function, "__module__", "").startswith("tilewright.language.explicit") else "tl"
        name = f"{level}.{getattr(function, '__name__', 'function')}"
        _check_arguments(function, name, arguments, keywords)
        if function in (core.device_assert, core.expect_zero) and not self.session.debug:
            return arguments[0] if function is core.expect_zero else None
        return unwrap(function(*arguments, **keywords))

    def _call_python_builtin(self, function: PythonBuiltin, arguments: list[Any], keywords: dict[str, Any]) -> Any:
        if function is PYTHON_BUILTINS["getattr"]:
            return self._get_attribute(arguments)
        if function is PYTHON_BUILTINS["hasattr"]:
            return self._has_attribute(arguments)
        _check_arguments(function.function, f"{function.__name__}()", arguments, keywords)
        try:
            return function.function(*arguments, **keywords)
        except (TypeError, ValueError, OverflowError) as error:
            raise LanguageError(
                f"{function.__name__}(): {error}", "its arguments must be compile-time values of the right kind"
            ) from None

    def _get_attribute(self, arguments: list[Any]) -> Any:
        if len(arguments) not in (2, 3) or not isinstance(arguments[1], str):
            raise LanguageError(
                "getattr() takes a value, a constant name and maybe a default", 'write getattr(value, "name")'
            )
        if len(arguments) == 3 and not self._has_attribute(arguments[:2]):
            return arguments[2]
        return self.attribute(arguments[0], arguments[1])

    def _has_attribute(self, arguments: list[Any]) -> bool:
        if len(arguments) != 2 or not isinstance(arguments[1], str):
            raise LanguageError("hasattr() takes a value and a constant name", 'write hasattr(value, "name")')
        try:
            self.attribute(arguments[0], arguments[1])
        except LanguageError:
            return False
        return True

    @staticmethod
    def _call_constexpr(function: Any, arguments: list[Any], keywords: dict[str, Any]) -> Any:
        name = getattr(function, "__name__", "function")
        subject = f"every argument of the compile-time function '{name}'"
        constants = [_constants(value, subject) for value in arguments]
        named = {key: _constants(value, subject) for key, value in keywords.items()}
        try:
            return unwrap(function(*constants, **named))
        except LanguageError:
            raise
        except Exception as error:
            raise LanguageError(
                f"the compile-time function '{name}' failed: {type(error).__name__}: {error}",
                "it runs while the kernel is compiled, on the constants of this call",
            ) from error

    @staticmethod
    def _call_type(function: Any, arguments: list[Any], keywords: dict[str, Any]) -> Any:
        """Types of the language, slices and enumerations."""
        try:
            return function(*arguments, **keywords)
        except LanguageError:
            raise
        except (TypeError, ValueError, AttributeError) as error:
            raise LanguageError(f"{function.__name__}(): {error}", "pass it dtypes, shapes and numbers") from None

    def _call_other(self, function: Any, arguments: list[Any], keywords: dict[str, Any]) -> Any:
        """dtypes as casts, types of the language, methods of compile-time values, NamedTuples, `math`."""
        if isinstance(function, dtype):
            if len(arguments) != 1 or keywords:
                raise LanguageError(f"{function}() casts one value", "write tl.float32(x), or x.to(tl.float32)")
            return core.cast(arguments[0], function)
        if function is constexpr:
            if len(arguments) != 1 or keywords:
                raise LanguageError("constexpr() takes one value", "write tl.constexpr(x)")
            return constant_of(arguments[0], "constexpr()")
        if any(function is kind for kind in _TYPES) or isinstance(function, EnumMeta):
            return self._call_type(function, arguments, keywords)
        if isinstance(function, type) and issubclass(function, tuple) and hasattr(function, "_fields"):
            _check_arguments(function, function.__name__, arguments, keywords)
            return function(*arguments, **keywords)
        if function is tuple:
            return compute("tuple()", tuple, *arguments)
        owner = getattr(function, "__self__", None)
        if owner is math and any(isinstance(value, tensor) and value.constant is None for value in arguments):
            name = f"math.{function.__name__}"
            raise LanguageError(f"'{name}' computes with compile-time numbers only", _instead(function.__name__))
        if isinstance(owner, (dtype, block_type, str, tuple)) or owner is math:
            return self._call_constexpr(function, arguments, keywords)
        if callable(function):
            raise _not_of_the_language(function)
        raise LanguageError(
            f"{type_text(function)} cannot be called",
            "kernels call functions of the language, @tilewright.jit functions and dtypes",
        )

    def assert_at_run_time(self, condition: Any, message: Any) -> None:
        """``assert``: checked now when the condition is known, else at run time in debug builds."""
        known = self.known(condition)
        if known is not None:
            core.static_assert(known[0], message)
        elif self.session.debug:
            hint.device_assert(condition, message)


def _not_of_the_language(function: Any) -> LanguageError:
    """Why a function that Python could call cannot be called by a kernel."""
    library = str(getattr(function, "__module__", None) or type(function).__module__).partition(".")[0]
    if isinstance(function, FunctionType) and library not in ("numpy", "torch"):
        return LanguageError(
            f"'{function.__qualname__}' is a plain Python function, which kernels cannot call",
            "decorate it with @tilewright.jit, or with @tilewright.constexpr_function to run it at compile time",
        )
    name = getattr(function, "__name__", type(function).__name__)
    return LanguageError(f"'{name}' of {library} is not part of the tile language", _instead(name))


def _instead(name: str) -> str:
    """What to write in place of another library's function."""
    if name in language.__all__:
        return f"use tl.{name}"
    if name in libdevice.__all__:
        return f"use tl.extra.libdevice.{name}"
    return "write it with operations of the language, or compute it on the host and pass the result"


def _constants(value: Any, subject: str) -> Any:
    if isinstance(value, (tuple, list)):
        entries = [_constants(entry, subject) for entry in value]
        return type(value)(*entries) if hasattr(value, "_fields") else tuple(entries)
    return constant_of(value, subject) if isinstance(value, tensor) else value


def _check_result_may_be_dropped(function: Any, name: str) -> None:
    """Raise `LanguageError` for a call on its own of a function marked with `must_use_result`, written as `name`."""
    called = function.function if isinstance(function, BoundMethod) else function
    reason = getattr(called, MUST_USE, None)
    if reason is not None:
        raise LanguageError(f"The result of {name} is not being used. {reason}".rstrip(), "assign it, or drop the call")
