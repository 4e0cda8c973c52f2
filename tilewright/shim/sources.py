"""Names of `triton.runtime.jit` about a function's source: its location and dependencies."""

from __future__ import annotations

import ast
import builtins
import hashlib
from collections.abc import Mapping
from types import ModuleType
from typing import Any, TypeVar

from tilewright.language.function import SourceFunction, describe
from tilewright.language.types import ConstexprFunction, unwrap

T = TypeVar("T")


def get_jit_fn_file_line(fn: SourceFunction) -> tuple[str, int]:
    """The file of a kernel, and the line of its ``def``."""
    function = fn
    while not isinstance(function, SourceFunction):  # autotuned, or with heuristics
        function = function.fn
    return function.file, function.definition.lineno


def get_full_name(fn: Any) -> str:
    """Module and name of a Python function."""
    return f"{fn.__module__}.{fn.__qualname__}"


def convert_to_tuple_if_list(item: Any) -> Any:
    """Lists as tuples, those inside them too."""
    return tuple(map(convert_to_tuple_if_list, item)) if isinstance(item, list) else item


class DependenciesFinder(ast.NodeVisitor):
    """A digest, `ret`, of a function's text and of what it names outside: functions of the language, values.

    ``finder.visit(tree)`` reads a parsed function, whose text is `src`; `used_global_vals` has the values by name and
    the identity of the dictionary that holds them.
    """

    def __init__(
        self, name: str, globals: Mapping[str, Any], nonlocals: Mapping[str, Any] | None = None, src: str = ""
    ) -> None:
        super().__init__()
        self.name, self.globals, self.nonlocals = name, globals, nonlocals or {}
        self.used_global_vals: dict[tuple[str, int], tuple[Any, Mapping[str, Any]]] = {}
        self._parts = [hashlib.sha256(src.encode()).hexdigest()]

    @property
    def ret(self) -> str:
        """The digest of what was found until now."""
        return hashlib.sha256("\n".join(sorted(self._parts)).encode()).hexdigest()

    def visit_Name(self, node: ast.Name) -> None:
        for space in (self.nonlocals, self.globals):
            if isinstance(node.ctx, ast.Load) and node.id in space:
                self._use(node.id, space[node.id], space)
                return

    def visit_Attribute(self, node: ast.Attribute) -> None:
        owner = node.value
        found = self.globals.get(owner.id) if isinstance(owner, ast.Name) else None
        member = getattr(found, node.attr, None)
        if isinstance(member, (SourceFunction, ConstexprFunction)):
            self._use(f"{owner.id}.{node.attr}", member, self.globals)  # type: ignore[attr-defined]
        else:
            self.generic_visit(node)

    def _use(self, name: str, value: Any, space: Mapping[str, Any]) -> None:
        if isinstance(value, (SourceFunction, ConstexprFunction)):
            self._parts.append(f"{name}: {describe(value, set())}")
        elif not hasattr(builtins, name) and not callable(unwrap(value)) and not isinstance(value, ModuleType):
            self._parts.append(f"{name}: {describe(unwrap(value), set())}")
            self.used_global_vals[name, id(space)] = value, space
