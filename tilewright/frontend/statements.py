"""Statements without loops: assignment, branches, return, assert."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tilewright import dtypes
from tilewright.errors import brief
from tilewright.frontend.analysis import assigned_names, leaves_inside, reads_of, returns_inside, returns_value
from tilewright.frontend.calls import Calls
from tilewright.frontend.values import identical, put_together, same_types, take_apart
from tilewright.ir.core import Operation, Region
from tilewright.language.aggregate import Aggregate
from tilewright.language.context import LanguageError
from tilewright.language.semantic.convert import bitcast, broadcast_to, constant, is_literal, to_tensor
from tilewright.language.tensor import tensor, type_text

_REJECTED: dict[type[ast.AST], tuple[str, str]] = {
    ast.Try: ("try", "kernels have no exceptions; use tl.device_assert"),
    ast.Raise: ("raise", "kernels have no exceptions; use tl.static_assert or tl.device_assert"),
    ast.FunctionDef: ("a nested function", "define it outside the kernel and decorate it with @tilewright.jit"),
    ast.AsyncFunctionDef: ("a nested function", "define it outside the kernel"),
    ast.ClassDef: ("a class", "define it outside the kernel"),
    ast.With: ("with", "kernels have no context managers; instead of tl.async_task: tl.range(…, warp_specialize=True)"),
    ast.Global: ("global", "kernels only read names from outside"),
    ast.Nonlocal: ("nonlocal", "kernels only read names from outside"),
    ast.Import: ("import", "import outside the kernel"),
    ast.ImportFrom: ("import", "import outside the kernel"),
    ast.Delete: ("del", "names end with the function"),
    ast.Match: ("match", "use if and elif"),
}

# A return inside a loop leaves the loop with these names bound; what follows the loop asks for them.
RETURNED, RETURN_VALUE = "<returned>", "<the returned value>"


ASSIGN_BEFORE = "assign it before the loop, or on every path through it"
_MIXED_RETURNS = ("some paths return a value and others do not", "return a value on every path")


@dataclass(frozen=True)
class Returned:
    """The statements ended in a return of this value."""

    value: Any


@dataclass(frozen=True)
class Left:
    """The statements ended this pass of the loop; `running` (a bool or an int1 scalar) says whether others follow."""

    running: Any


Outcome = Returned | Left | None  # None: the statements fell off their end


class Statements(Calls):
    """Runs statement nodes."""

    def execute(self, statements: list[ast.stmt]) -> Outcome:
        """Trace statements in order; says how they ended."""
        for position, statement in enumerate(statements):
            self.mark(statement)
            if isinstance(statement, ast.If):
                outcome, finished = self.guarded(statement, self._branch, statement, statements[position + 1 :])
                if finished:
                    return outcome
                continue
            if isinstance(statement, (ast.Break, ast.Continue)):
                return Left(isinstance(statement, ast.Continue))
            if isinstance(statement, ast.Return):
                return self.guarded(statement, self._return, statement)
            self.guarded(statement, self._simple, statement)
            if isinstance(statement, (ast.For, ast.While)) and returns_inside(statement.body):
                check = self._return_if_returned(statement)
                if _ends_by_return(statement):
                    return self.guarded(statement, self._return, check.body[0])
                outcome, finished = self.guarded(statement, self._branch, check, statements[position + 1 :])
                if finished:
                    return outcome
        return None

    @staticmethod
    def _return_if_returned(loop: ast.stmt) -> ast.If:
        """``if returned: return value``, at the place of the loop."""
        value = ast.Name(RETURN_VALUE, ast.Load()) if returns_value(loop) else None
        check = ast.If(ast.Name(RETURNED, ast.Load()), [ast.Return(value)], [])
        for node in ast.walk(check):
            ast.copy_location(node, loop)
        return check

    def _simple(self, statement: ast.stmt) -> None:
        method = getattr(self, f"run_{type(statement).__name__}", None)
        if method is None:
            construct, advice = _REJECTED.get(
                type(statement), (type(statement).__name__, "write it with assignments, branches and loops")
            )
            raise self.error(statement, f"'{construct}' is not part of the tile language", advice)
        method(statement)

    def run_Pass(self, statement: ast.Pass) -> None:
        return None

    def run_Expr(self, statement: ast.Expr) -> None:
        self.discarded = statement.value
        found = self.evaluate(statement.value)
        if isinstance(found, tensor) and found.handle.definition is not None:
            self._note_hint(found.handle.definition, found)

    def _note_hint(self, operation: Operation, result: tensor) -> None:
        """A hint as a statement, ``tl.multiple_of(x, 16)``, is about the value of the name: it is read with it."""
        if operation.opcode == "hint":
            (promised,) = operation.operands
            same = [
                name for name, value in self.names.items() if isinstance(value, tensor) and value.handle is promised
            ]
            self.names.update(dict.fromkeys(same, result))

    def run_Assert(self, statement: ast.Assert) -> None:
        condition = self.evaluate(statement.test)
        message = self.evaluate(statement.msg) if statement.msg is not None else ast.unparse(statement.test)
        self.mark(statement)
        self.assert_at_run_time(condition, message)

    def _return(self, statement: ast.Return) -> Outcome:
        value = None if statement.value is None else self.evaluate(statement.value)
        if self.loop is None:
            return Returned(value)
        if (value is not None) != returns_value(self.loop):
            raise LanguageError(*_MIXED_RETURNS)
        self.bind(RETURNED, True)
        if value is not None:
            self.bind(RETURN_VALUE, value)
        return Left(False)

    # Assignment

    def run_Assign(self, statement: ast.Assign) -> None:
        if len(statement.targets) != 1:
            raise LanguageError("one assignment has one target here", "write one assignment a line")
        self.assign(statement.targets[0], self.evaluate(statement.value))

    def run_AnnAssign(self, statement: ast.AnnAssign) -> None:
        if not isinstance(statement.target, ast.Name):
            raise LanguageError("only a name can be annotated", "bind the value to a name first")
        if statement.value is None:
            return
        value = self.evaluate(statement.value)
        if "constexpr" not in ast.unparse(statement.annotation):
            self.assign(statement.target, value)
            return
        known = self.known(value)
        if known is None:  # as in Triton, the annotation does not make a run-time value a constant
            self.assign(statement.target, value)
            return
        self.bind(statement.target.id, known[0])
        self.constants.add(statement.target.id)

    def run_AugAssign(self, statement: ast.AugAssign) -> None:
        if not isinstance(statement.target, ast.Name):
            raise LanguageError("items and attributes cannot be assigned", "kernel values do not change in place")
        name = ast.copy_location(ast.Name(statement.target.id, ast.Load()), statement.target)
        left, right = self.evaluate(name), self.evaluate(statement.value)
        self.mark(statement)
        fused = self.accumulated(statement.op, statement.value, left, right)
        value = self.binary(statement, statement.op, left, right) if fused is None else fused
        self.assign(statement.target, value)

    def assign(self, target: ast.expr, value: Any, keep: bool = False) -> None:
        """Bind a target; numbers become scalars (unless `keep`), as any variable may change at run time."""
        if isinstance(target, ast.Name):
            if target.id in self.constants:
                raise self.error(target, f"'{target.id}' is constexpr and cannot be assigned again", "use another name")
            self.bind(target.id, value if keep else self._variable(value))
        elif isinstance(target, (ast.Tuple, ast.List)):
            self._unpack(target, value, keep)
        elif isinstance(target, ast.Attribute) and isinstance(owner := self.evaluate(target.value), Aggregate):
            self.guarded(target, setattr, owner, target.attr, value)
        elif isinstance(target, (ast.Subscript, ast.Attribute)):
            raise self.error(
                target, "items and attributes cannot be assigned", "build a new block with tl.where, or store to memory"
            )
        else:
            raise self.error(target, "a starred target is not part of the tile language", "give each value a name")

    def _variable(self, value: Any) -> Any:
        if is_literal(value):
            return to_tensor(value)
        if isinstance(value, (tuple, list)):
            entries = [self._variable(entry) for entry in value]
            return type(value)(*entries) if hasattr(value, "_fields") else tuple(entries)
        return value

    def _unpack(self, target: ast.Tuple | ast.List, value: Any, keep: bool) -> None:
        if not isinstance(value, (tuple, list)):
            raise self.error(
                target,
                f"only a tuple can be unpacked, got {type_text(value)}",
                "split a block with tl.split, or index it",
            )
        if len(value) != len(target.elts):
            raise self.error(target, f"{len(value)} values for {len(target.elts)} names", "give each value a name")
        for entry, part in zip(target.elts, value, strict=True):
            self.assign(entry, part, keep)

    # Branches

    def _branch(self, statement: ast.If, rest: list[ast.stmt]) -> tuple[Outcome, bool]:
        """Trace an if. The flag is True when `rest` was traced too, because a branch may leave."""
        condition = self.evaluate(statement.test)
        known = self.known(condition)
        if known is not None:
            if known[0] is not None and not isinstance(known[0], (bool, int, float)):
                raise self.error(
                    statement.test,
                    f"a compile-time condition must be a bool, int or None, got {brief(known[0])}",
                    'compare explicitly, for example with `is not None` or == "name"',
                )
            live_body = statement.body if known[0] else statement.orelse
            if returns_inside(live_body) or leaves_inside(
                live_body
            ):  # a branch inside may leave on one of its sides only
                return self.execute([*live_body, *rest]), True
            return self.execute(live_body), False
        condition = self.branch_condition(statement.test, condition)
        body = [*statement.body, *statement.orelse]
        if self.loop is None and returns_inside(body):
            return self._returning_branch(statement, condition, rest), True
        if leaves_inside(body) or returns_inside(body):
            return self._leaving_branch(statement, condition, rest), True
        self._merging_branch(statement, condition)
        return None, False

    def _trace_branch(
        self, action: Callable[[list[ast.stmt]], Outcome], statements: list[ast.stmt]
    ) -> tuple[Region, dict[str, Any], dict[str, str], Outcome]:
        """A branch traced into its own region from the present names; gives the names it ends with."""
        saved = dict(self.names), dict(self.unbound)
        region = Region()
        with self.session.builder.at(region):
            outcome = action(statements)
        ended = self.names, self.unbound
        self.names, self.unbound = saved
        return region, ended[0], ended[1], outcome

    def _merging_branch(self, statement: ast.If, condition: tensor) -> None:
        location = self.location(statement)
        then, then_names, then_unbound, _ = self._trace_branch(self.execute, statement.body)
        other, other_names, other_unbound, _ = self._trace_branch(self.execute, statement.orelse)
        merged: list[str] = []
        for name in assigned_names([*statement.body, *statement.orelse]):
            if name not in then_names or name not in other_names:
                missing = "else" if name in then_names else "if"
                reason = f"the '{missing}' branch at line {statement.lineno} does not assign it"
                if name not in then_names and name not in other_names:
                    reason = then_unbound.get(name) or other_unbound.get(name) or reason
                self.unbind(name, reason)
            elif identical(then_names[name], other_names[name]):
                self.bind(name, then_names[name])
            elif not self.needed_after(name, statement):
                self.unbind(name, f"the branches at line {statement.lineno} give it different values")
            else:
                merged.append(name)
        self.session.builder.location = location
        values = [{f"'{name}'": names[name] for name in merged} for names in (then_names, other_names)]
        for name, value in self.merge_branches(condition, [then, other], values).items():
            self.bind(name.strip("'"), value)

    def needed_after(self, name: str, statement: ast.stmt) -> bool:
        """Whether a name may be read after a statement, in this pass or the next of a loop around it."""
        if self.loop is not None and self.loop is not statement:
            first = (self.loop.lineno, self.loop.col_offset)
            if reads_of(self.definition).last_read.get(name, (0, 0)) >= first:
                return True
        return reads_of(self.definition).after(name, statement)

    def _returning_branch(self, statement: ast.If, condition: tensor, rest: list[ast.stmt]) -> Returned:
        """``if c: return x`` followed by more: the rest runs in the branches that do not return."""
        location = self.location(statement)
        traced = [self._trace_branch(self.execute, [*body, *rest]) for body in (statement.body, statement.orelse)]
        values = [outcome.value if isinstance(outcome, Returned) else None for _, _, _, outcome in traced]
        if (values[0] is None) != (values[1] is None):
            raise LanguageError(*_MIXED_RETURNS)
        if identical(values[0], values[1]) and not take_apart(values[0])[1]:
            named: list[dict[str, Any]] = [{}, {}]
        else:
            named = [{"the returned value": value} for value in values]
        self.session.builder.location = location
        merged = self.merge_branches(condition, [entry[0] for entry in traced], named)
        return Returned(merged.get("the returned value", values[0]))

    def _leaving_branch(self, statement: ast.If, condition: tensor, rest: list[ast.stmt]) -> Left:
        """``if c: break`` (or continue, or return) followed by more: the rest of the pass runs in the other branch.

        What the loop carries on, and whether it runs on, is merged from both.
        """
        location = self.location(statement)
        traced = [self._trace_branch(self.execute, [*body, *rest]) for body in (statement.body, statement.orelse)]
        running = [outcome.running if isinstance(outcome, Left) else True for _, _, _, outcome in traced]
        self.session.builder.location = location
        return Left(self._merge_passes(condition, traced, running))

    def _merge_passes(self, condition: tensor, traced: list[Any], running: list[Any]) -> Any:
        """Merge two ends of a pass: the names that the loop carries, and whether it runs on, which is returned."""
        merged: list[dict[str, Any]] = [{}, {}]
        if not identical(running[0], running[1]):
            merged = [{"running": value} for value in running]
        self._fill_in_return_value(traced)
        for name in self.carried:
            ends = [names[name] for _, names, _, _ in traced if name in names]
            if len(ends) < 2:
                missing = next(unbound for _, names, unbound, _ in traced if name not in names)
                reason = missing.get(name, "not every path through the loop assigns it")
                if not self.unrolled:
                    raise LanguageError(f"'{name}' may have no value at the end of the loop: {reason}", ASSIGN_BEFORE)
                self.unbind(name, reason)
            elif identical(ends[0], ends[1]):
                self.bind(name, ends[0])
            elif self.unrolled and not same_types(ends[0], ends[1]):
                self.unbind(name, "the paths through the unrolled loop give it different types")
            else:
                merged[0][f"'{name}'"], merged[1][f"'{name}'"] = ends
        values = self.merge_branches(condition, [entry[0] for entry in traced], merged)
        runs_on = values.pop("running", running[0])
        for name, value in values.items():
            self.bind(name[1:-1], value)
        return runs_on

    def _fill_in_return_value(self, traced: list[Any]) -> None:
        """Where one side returned a value, the other side gets some value of its types, which nobody will read."""
        known = [names[RETURN_VALUE] for _, names, _, _ in traced if RETURN_VALUE in names]
        if len(known) != 1 or RETURN_VALUE not in self.carried:
            return
        for region, names, _, _ in traced:
            if RETURN_VALUE not in names:
                with self.session.builder.at(region):
                    names[RETURN_VALUE] = self.filler(known[0])

    def filler(self, value: Any) -> Any:
        """Zeros with the structure and types of a value."""
        shape, leaves = take_apart(value)
        handles = []
        for leaf in leaves:
            if leaf.is_pointer:
                zero = bitcast(constant(0, dtypes.int64, ()), leaf.element)
                handles.append(broadcast_to(zero, leaf.shape).handle)
            else:
                handles.append(constant(0, leaf.number, leaf.shape).handle)
        return put_together(shape, iter(handles))


def _ends_by_return(loop: ast.For | ast.While) -> bool:
    """``while True`` without a break: what follows is not reached."""
    endless = isinstance(loop, ast.While) and isinstance(loop.test, ast.Constant) and bool(loop.test.value)
    return endless and not leaves_inside(loop.body, (ast.Break,))
