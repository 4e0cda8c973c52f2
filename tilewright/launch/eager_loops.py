"""Loops of kernels run as Python whose iterations change nothing: they wait for another instance, in vain."""

from __future__ import annotations

import ast
from types import FrameType
from typing import Any

from tilewright.ir.eager import EagerValue
from tilewright.ir.memory import LaunchMemory
from tilewright.language.tensor import tensor

_PATIENCE = 64  # passes without a change of memory until variables are compared


class WatchedLoop:
    """A ``while`` at work: how many of its passes have changed no memory, and what its variables were then."""

    def __init__(self, loop: ast.While, memory: LaunchMemory) -> None:
        self.loop, self.memory = loop, memory
        self.changes, self.quiet = memory.changes, 0
        self.names: set[str] | None = None
        self.before: dict[str, Any] | None = None

    def waits(self, frame: FrameType) -> bool:
        """Whether the pass that has just ended in `frame`, and so every later one, is as the one before it."""
        if self.changes != self.memory.changes:
            self.changes, self.quiet, self.before = self.memory.changes, 0, None
            return False
        self.quiet += 1
        if self.quiet < _PATIENCE:
            return False
        if self.names is None:
            self.names = deciding_names(self.loop)
        present = {name: _comparable(value) for name, value in frame.f_locals.items() if name in self.names}
        before, self.before = self.before, present
        return before == present


def deciding_names(loop: ast.While) -> set[str]:
    """The variables on which it depends whether a loop ends, and what it does; not a count of its passes."""
    pending: list[ast.AST] = [loop.test]
    assigned: list[tuple[set[str], ast.AST]] = []
    for node in (entry for statement in loop.body for entry in ast.walk(statement)):
        if isinstance(node, (ast.Call, ast.Subscript)):
            pending.append(node)
        elif isinstance(node, (ast.If, ast.While, ast.IfExp, ast.Assert)):
            pending.append(node.test)
        elif isinstance(node, ast.For):
            pending.append(node.iter)
        elif isinstance(node, ast.Assign):
            assigned.append((_names(*node.targets), node.value))
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign)) and node.value is not None:
            assigned.append((_names(node.target), node.value))
    found = _names(*pending)
    while True:
        more = {name for targets, value in assigned if targets & found for name in _names(value)} - found
        if not more:
            return found
        found |= more


def _names(*nodes: ast.AST) -> set[str]:
    return {entry.id for node in nodes for entry in ast.walk(node) if isinstance(entry, ast.Name)}


def _comparable(value: Any) -> Any:
    """What two values of a variable are compared by: blocks bit by bit."""
    if isinstance(value, (tuple, list)):
        return [_comparable(entry) for entry in value]
    if isinstance(value, tensor) and isinstance(value.handle, EagerValue):
        return str(value.handle.type), value.handle.array.tobytes()
    return repr(value) if isinstance(value, (bool, int, float, str)) else id(value)
