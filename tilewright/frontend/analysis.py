"""Facts about names in a function's syntax tree: what is assigned, what is read before that, what is read later."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import lru_cache


def target_names(target: ast.AST) -> Iterator[str]:
    """Names bound by an assignment target."""
    for node in ast.walk(target):
        if isinstance(node, ast.Name):
            yield node.id


def assigned_names(statements: Iterable[ast.AST]) -> list[str]:
    """Names that may be bound by running the statements, in order of appearance.

    Names annotated with constexpr are left out: they stay compile-time values.
    """
    found: dict[str, None] = {}
    inner: set[str] = set()  # a comprehension's own variable is not visible outside
    for statement in statements:
        assigned, of_comprehensions = _assigned_by(statement)
        found.update(dict.fromkeys(assigned))
        inner |= of_comprehensions
    return [name for name in found if name not in inner]


@lru_cache(maxsize=4096)
def _assigned_by(statement: ast.AST) -> tuple[tuple[str, ...], frozenset[str]]:
    """Names bound inside a statement, in order of appearance, and the variables of comprehensions."""
    found: dict[str, None] = {}
    inner: set[str] = set()
    for node in ast.walk(statement):
        if isinstance(node, ast.comprehension):
            inner.update(target_names(node.target))
        if isinstance(node, ast.AnnAssign) and _is_constexpr(node.annotation):
            continue
        for target in _targets(node):
            found.update(dict.fromkeys(target_names(target)))
    return tuple(found), frozenset(inner)


def _targets(node: ast.AST) -> list[ast.AST]:
    if isinstance(node, ast.Assign):
        return list(node.targets)
    if isinstance(node, (ast.AugAssign, ast.AnnAssign, ast.For, ast.NamedExpr)):
        return [node.target]
    return []


def _is_constexpr(annotation: ast.AST) -> bool:
    return "constexpr" in ast.unparse(annotation)


def loaded_names(node: ast.AST) -> set[str]:
    """Names read anywhere in a subtree; augmented assignment reads its target."""
    found = {entry.id for entry in ast.walk(node) if isinstance(entry, ast.Name) and isinstance(entry.ctx, ast.Load)}
    for entry in ast.walk(node):
        if isinstance(entry, ast.AugAssign) and isinstance(entry.target, ast.Name):
            found.add(entry.target.id)
    return found


def exposed_names(statements: Iterable[ast.stmt]) -> set[str]:
    """Names that may be read before the statements have assigned them."""
    exposed, _ = _exposed(statements)
    return exposed


def _exposed(statements: Iterable[ast.stmt]) -> tuple[set[str], set[str]]:
    """Names read before assignment, and names assigned on every path."""
    exposed: set[str] = set()
    assigned: set[str] = set()
    for statement in statements:
        read, written = _exposed_by(statement)
        exposed |= read - assigned
        assigned |= written
    return exposed, assigned


@lru_cache(maxsize=4096)
def _exposed_by(statement: ast.stmt) -> tuple[set[str], set[str]]:
    if isinstance(statement, ast.If):
        then, then_assigned = _exposed(statement.body)
        other, other_assigned = _exposed(statement.orelse)
        return loaded_names(statement.test) | then | other, then_assigned & other_assigned
    if isinstance(statement, ast.For):
        body, _ = _exposed(statement.body)
        return loaded_names(statement.iter) | (body - set(target_names(statement.target))), set()
    if isinstance(statement, ast.While):
        body, _ = _exposed(statement.body)
        return loaded_names(statement.test) | body, set()
    written = {name for target in _targets(statement) for name in target_names(target)}
    return loaded_names(statement), written


class NameReads:
    """Where each name of a function is read, to tell whether a value is needed after a statement."""

    def __init__(self, definition: ast.FunctionDef) -> None:
        self.last_read: dict[str, tuple[int, int]] = {}
        for statement in definition.body:
            for node in ast.walk(statement):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                    self._note(node.id, node)
                elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
                    self._note(node.target.id, node)

    def _note(self, name: str, node: ast.expr | ast.stmt) -> None:
        position = (node.lineno, node.col_offset)
        self.last_read[name] = max(position, self.last_read.get(name, position))

    def after(self, name: str, node: ast.stmt) -> bool:
        """Whether the name is read anywhere after the end of `node`."""
        end = (node.end_lineno or node.lineno, node.end_col_offset or 0)
        return name in self.last_read and self.last_read[name] >= end


@lru_cache(maxsize=1024)
def reads_of(definition: ast.FunctionDef) -> NameReads:
    return NameReads(definition)


def leaves_inside(statements: Iterable[ast.stmt], kinds: tuple[type, ...] = (ast.Break, ast.Continue)) -> bool:
    """Whether running the statements may reach a break or continue of the loop that they stand in."""
    for statement in statements:
        if isinstance(statement, kinds):
            return True
        if isinstance(statement, ast.If) and leaves_inside([*statement.body, *statement.orelse], kinds):
            return True
    return False


def returns_inside(statements: Iterable[ast.stmt]) -> bool:
    """Whether a return statement is reached by running the statements (nested functions do not count)."""
    return any(map(_returns, statements))


@lru_cache(maxsize=4096)
def _returns(statement: ast.stmt) -> bool:
    return any(isinstance(node, ast.Return) for node in ast.walk(statement))


@lru_cache(maxsize=1024)
def returns_value(statement: ast.stmt) -> bool:
    """Whether some return statement inside gives a value."""
    return any(isinstance(node, ast.Return) and node.value is not None for node in ast.walk(statement))
