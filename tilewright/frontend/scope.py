"""The state of one traced function: names, source location, and the trace it writes to."""

from __future__ import annotations

import ast
import builtins
import difflib
from collections.abc import Callable, Iterable
from types import FunctionType, ModuleType
from typing import Any

from tilewright.dtypes import DType
from tilewright.errors import CompilationError, ExecutionError, InvalidIRError
from tilewright.frontend.builtins import PYTHON_BUILTINS
from tilewright.frontend.diagnostics import located_error, node_width
from tilewright.frontend.session import TraceSession
from tilewright.ir.core import Location
from tilewright.language.aggregate import Aggregate
from tilewright.language.context import LanguageError
from tilewright.language.core import BUILTIN
from tilewright.language.function import SourceFunction
from tilewright.language.types import ConstexprFunction, block_type, constexpr, dtype, unwrap

UNDEFINED = object()
_INSTEAD = {
    **dict.fromkeys(
        ("enumerate", "zip", "map", "filter", "reversed", "sorted", "iter", "next"),
        "loop over positions: for i in tl.static_range(len(values)), and take values[i]",
    ),
    **dict.fromkeys(("any", "all"), "tl.max(mask.to(tl.int32)) tells whether any lane holds, tl.min whether all do"),
    "sum": "tl.sum adds up a block; a tl.static_range loop adds up a tuple",
    "pow": "use tl.math.pow, or multiply",
    "divmod": "write x // y and x % y",
    **dict.fromkeys(("set", "dict", "frozenset"), "use a tuple, a NamedTuple or an aggregate"),
}
FEW_CALLS = 8  # inside of each other: they cannot have used up Python's stack


class FunctionState:
    """Names bound in a function, with errors that point at the syntax node being traced."""

    def __init__(
        self, session: TraceSession, function: SourceFunction, bindings: dict[str, Any], caller: Location | None
    ) -> None:
        self.session = session
        self.function = function
        self.definition = function.definition
        self.caller = caller
        self.names: dict[str, Any] = dict(bindings)
        self.constants: set[str] = set()  # names declared ``x: tl.constexpr`` in the body
        self.unbound: dict[str, str] = {}  # why a name that is assigned somewhere has no value here
        self.loop: ast.stmt | None = None  # the outermost loop around the statement being traced
        self.carried: list[str] = []  # names whose values the innermost loop passes on
        self.discarded: ast.expr | None = None  # the expression that is a statement, when one is being traced
        self.unrolled = False  # whether the innermost loop is unrolled
        self.indices: list[str] = []  # of the run-time loops around the statement being traced

    # Places and errors

    def location(self, node: ast.AST) -> Location:
        line = getattr(node, "lineno", self.function.first_line)
        column = getattr(node, "col_offset", 0) + self.function.indentation
        return Location(self.function.file, line, column, self.function.name, self.caller, node_width(node))

    def mark(self, node: ast.AST) -> None:
        """Operations emitted from here on come from `node`."""
        self.session.builder.location = self.location(node)

    def error(self, node: ast.AST, message: str, advice: str = "") -> CompilationError:
        return located_error(message, self.location(node), node, advice)

    def guarded(self, node: ast.AST, action: Callable[..., Any], *arguments: Any) -> Any:
        """Run `action`; whatever goes wrong in it is a `CompilationError` at `node`."""
        try:
            return action(*arguments)
        except LanguageError as error:
            raise self.error(node, error.message, self._loop_advice(node, error.message) or error.advice) from None
        except (CompilationError, ExecutionError):
            raise
        except InvalidIRError as error:
            advice = error.advice or "cast or reshape the operands so that they fit together"
            raise self.error(node, error.rule, advice) from error
        except RecursionError:
            raise self._too_deep(node) from None
        except Exception as error:  # a malformed kernel must never show a traceback of ours
            advice = "this is a mistake of tilewright's if the kernel is right: please report it"
            raise self.error(node, f"{type(error).__name__}: {error}", advice) from error

    def _loop_advice(self, node: ast.AST, message: str) -> str:
        """What to do when a loop's index was used where a compile-time value is needed; empty otherwise."""
        if "compile-time" not in message:
            return ""
        used = {entry.id for entry in ast.walk(node) if isinstance(entry, ast.Name)}
        name = next((index for index in reversed(self.indices) if index in used), None)
        if name is None:
            return ""
        return f"'{name}' is the index of a run-time loop; in 'for {name} in tl.static_range(...)' it is a constant"

    def _too_deep(self, node: ast.AST) -> CompilationError:
        """What ran out of Python's stack: calls inside of calls, or where there are few of them one expression."""
        calls, place = 0, self.caller
        while place is not None:
            calls, place = calls + 1, place.caller
        if calls > FEW_CALLS:
            return self.error(node, "functions call each other too deeply", "recursion must end on a constexpr")
        message = "the expression, or the branches around it, are nested too deeply"
        return self.error(
            node, message, "split it into several statements; many terms add up in a tl.static_range loop"
        )

    # Names

    def lookup(self, node: ast.Name) -> Any:
        """The value of a name: local, then captured from outside, then a Python builtin."""
        name = node.id
        value = self.names.get(name, UNDEFINED)
        if value is not UNDEFINED:
            return value
        if name in self.unbound:
            raise LanguageError(f"'{name}' may have no value here: {self.unbound[name]}", "assign it on every path")
        value = self.function.captured(name, default=UNDEFINED)
        if value is not UNDEFINED:
            return self._admit(name, value)
        if name in PYTHON_BUILTINS:
            return PYTHON_BUILTINS[name]
        if hasattr(builtins, name):
            instead = _INSTEAD.get(name, "docs/guide/tile-language.md lists what there is")
            raise LanguageError(f"Python's '{name}' is not part of the tile language", instead)
        known = [*self.names, *self.function.function.__globals__, *PYTHON_BUILTINS]
        advice = nearest(name, known, "assign it, or make it a parameter")
        raise LanguageError(f"the name '{name}' is not defined", advice)

    def _admit(self, name: str, value: Any) -> Any:
        """A captured value, if kernels may read it."""
        if isinstance(value, (constexpr, DType)):
            return unwrap(value)
        if is_compile_time(value):
            return value
        if isinstance(value, FunctionType) or callable(value):
            return value  # refused, with better advice, when it is called
        raise LanguageError(
            f"the kernel reads '{name}' from outside, a value of type {type(value).__name__}",
            "kernels may capture numbers, strings, dtypes, constexpr values, tuples of these, modules and functions "
            "of the language; pass anything else as an argument",
        )

    def bind(self, name: str, value: Any) -> None:
        self.names[name] = value
        self.unbound.pop(name, None)

    def unbind(self, name: str, reason: str) -> None:
        self.names.pop(name, None)
        self.unbound[name] = reason


def nearest(name: str, known: Iterable[str], otherwise: str = "docs/guide/tile-language.md lists what there is") -> str:
    """Advice that names the most similar of `known`; `otherwise` where none is similar."""
    close = difflib.get_close_matches(name, [entry for entry in known if not entry.startswith("_")], 1)
    return f"did you mean '{close[0]}'?" if close else otherwise


def is_compile_time(value: Any) -> bool:
    """Whether a value is one that kernels may hold at compile time."""
    if value is None or isinstance(value, (bool, int, float, str, dtype, block_type, ModuleType, type)):
        return True
    if isinstance(value, (SourceFunction, ConstexprFunction)) or getattr(value, BUILTIN, False):
        return True
    if isinstance(value, (tuple, list)):
        return all(is_compile_time(unwrap(entry)) for entry in value)
    return isinstance(value, (constexpr, DType, Aggregate)) or hasattr(type(value), "__members__")
