"""Runs kernels as Python, one program instance after another, for debuggers and print.

The kernel's function (`launch.rewriting`) runs in ordinary frames, so that breakpoints, single steps and variables
work as in any Python code; its values hold NumPy arrays.  What an expression means is decided by the same rules that
trace it (`FunctionTracer`), and each operation is carried out by the interpreter as soon as it is created
(`ir.eager`).  Functions of `tl` that are themselves written in the language, and the combine functions of reductions,
are traced as usual.
"""

from __future__ import annotations

import ast
import os
import pdb
import re
import sys
from bdb import BdbQuit
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType, ModuleType, TracebackType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from tilewright.errors import CompilationError, ExecutionError, TilewrightError
from tilewright.frontend.session import TraceSession
from tilewright.frontend.tracer import FunctionTracer, bind_call, bind_parameters, leaf_types, run_called
from tilewright.ir.checks import Checks
from tilewright.ir.core import Location, Parameter
from tilewright.ir.diagnostics import located_execution_error, render, step_error, waiting_error
from tilewright.ir.eager import EagerBuilder, EagerValue
from tilewright.ir.interpreter import argument_value, instances
from tilewright.ir.memory import LaunchMemory
from tilewright.ir.types import TensorType
from tilewright.language import core
from tilewright.language.context import activate
from tilewright.language.function import SourceFunction
from tilewright.language.tensor import tensor
from tilewright.launch.arguments import as_memory, stored_array
from tilewright.launch.compiled import full_grid
from tilewright.launch.eager_loops import WatchedLoop
from tilewright.launch.launching import RunTimeArguments
from tilewright.launch.rewriting import RewrittenFunction, evaluated, filled, is_breakpoint
from tilewright.runtime.tensors import raise_versions
from tilewright.settings import settings

_MACHINERY = ("tilewright.frontend.", "tilewright.launch.", "tilewright.language.", "tilewright.ir.")
_rewritten: WeakKeyDictionary[SourceFunction, RewrittenFunction] = WeakKeyDictionary()
_files: set[str] = set()  # where functions that run eagerly come from


def runs_eagerly(kernel: SourceFunction, constants: Mapping[str, Any]) -> bool:
    """Whether an interpreted kernel is run by Python itself.

    So it is when the settings say so, when a debugger is at work, and when it, or a function of the language that it
    reaches, calls ``breakpoint()``.  Kernels of explicit GPU operations, whose parts run at once, are not.
    """
    if settings.interpret == "eager":
        return True
    reached = list(_reached([kernel, *constants.values()]))
    if any(map(_is_explicit, reached)):
        return False
    return _debugger_at_work() or any(
        is_breakpoint(node) for function in reached for node in ast.walk(function.definition)
    )


def _debugger_at_work() -> bool:
    trace = sys.gettrace()
    owner = getattr(trace, "__self__", None)
    bdb = sys.modules.get("bdb")
    if owner is not None and bdb is not None and isinstance(owner, bdb.Bdb):
        return True
    return trace is not None and "pydevd" in str(getattr(trace, "__module__", ""))


def _reached(pending: list[Any]) -> Iterator[SourceFunction]:
    """The functions of the language among some values, and those that they reach; not those of `tl` itself."""
    seen: set[int] = set()
    while pending:
        function = pending.pop()
        if isinstance(function, (tuple, list)):
            pending.extend(function)
        if not isinstance(function, SourceFunction) or id(function) in seen or _of_the_language(function):
            continue
        seen.add(id(function))
        yield function
        pending.extend(value for _, value in function.captured_values())


def _is_explicit(function: SourceFunction) -> bool:
    """Whether a function names the module of explicit operations, or something of it."""
    for name in function.function.__code__.co_names:
        value = function.captured(name, default=None)
        home = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", "")
        if str(home).startswith("tilewright.language.explicit"):
            return True
    return False


def _of_the_language(function: SourceFunction) -> bool:
    return function.__module__.startswith("tilewright.language")


class EagerLaunch:
    """A signature of a kernel that Python runs."""

    kernel = None

    def __init__(
        self,
        owner: SourceFunction,
        types: Mapping[str, Any],
        constants: Mapping[str, Any],
        described: Mapping[str, Parameter],
        debug: bool,
    ) -> None:
        self.owner, self.types, self.constants, self.debug = owner, types, constants, debug
        self.interface = RunTimeArguments(owner.name, owner.argument_names, types, frozenset())
        named = [leaf for name in owner.argument_names if name in types for leaf in leaf_types(name, types[name])]
        self.leaves = [
            (kind, replace(described.get(name, Parameter(name)), name=leaf_name))
            for (name, kind), leaf_name in zip(named, self.interface.flat_names, strict=True)
        ]

    def run(self, grid: Any, arguments: tuple[Any, ...], slots: Sequence[Any]) -> None:
        memory = LaunchMemory()
        arrays = dict(zip(self.interface.flat_names, self.interface.flat(arguments), strict=True))
        values = [
            argument_value(kind, facts, as_memory(value) if kind.is_pointer else value, memory)
            for (kind, facts), value in zip(self.leaves, arrays.values(), strict=True)
        ]
        checks = Checks(memory) if settings.interpret == "check" else None
        extents = full_grid(grid)
        try:
            with _stepping():
                for index in instances(extents):
                    self._instance(EagerBuilder(memory, index, extents, checks), values)
        finally:
            raise_versions(
                stored_array(arrays[buffer.name]) for buffer in memory.buffers if buffer.stored and buffer.name
            )

    def _instance(self, builder: EagerBuilder, values: list[np.ndarray]) -> None:
        session = EagerSession(builder, self.debug)
        stream = iter(values)
        with activate(session):
            bindings = bind_parameters(
                self.owner, self.types, self.constants, lambda name, kind: tensor(builder.value(kind, next(stream)))
            )
            function = EagerFunction(session, self.owner, bindings, None)
            if function.run() is not None:
                raise function.error(
                    self.owner.definition,
                    "a kernel returns nothing",
                    "store results through a pointer argument with tl.store",
                )


class EagerSession(TraceSession):
    """One program instance at work; functions of the user that it calls get frames of their own."""

    def __init__(self, builder: EagerBuilder, debug: bool) -> None:
        super().__init__(builder, run_called, debug)
        self.eager = builder

    def inline(
        self, function: SourceFunction, arguments: Sequence[Any], keywords: Mapping[str, Any], caller: Location | None
    ) -> Any:
        if _of_the_language(function) or not self.eager.evaluates:
            return super().inline(function, arguments, keywords, caller)
        self.check_depth(function)
        bindings = bind_call(function, arguments, keywords)
        saved = self.builder.location
        self.depth += 1
        try:
            return EagerFunction(self, function, bindings, caller).run()
        finally:
            self.depth -= 1
            self.builder.location = saved


class EagerFunction(FunctionTracer):
    """One call of a function. Its methods are what the rewritten code calls; `number` is that of a syntax node."""

    session: EagerSession

    def run(self) -> Any:
        """Call the function; gives what it returns."""
        rewritten = _rewritten.get(self.function)
        if rewritten is None:
            rewritten = _rewritten[self.function] = RewrittenFunction(self.function)
            _files.add(self.function.file)
        self.nodes = rewritten.nodes
        self.undecided: list[Any] = []  # operands of `and` and `or` on their way
        self.loops: dict[ast.While, WatchedLoop] = {}  # those that have begun
        self.choices: list[bool] = []  # of conditional expressions: whether the condition is a run-time value
        python = rewritten.bound_to(self)
        arguments = [self.names[name] for name in self.function.argument_names]
        self.names.clear()  # from here on they are Python's; the rules of assignment pass names through it
        try:
            return python(*arguments)
        except (TilewrightError, BdbQuit):
            raise
        except Exception as error:
            raise self._in_the_kernel(error) from error

    def _in_the_kernel(self, error: Exception) -> CompilationError:
        """An exception of Python as an error at the line of the kernel where it came up."""
        message, advice = f"{type(error).__name__}: {error}", ""
        if isinstance(error, UnboundLocalError):
            name = re.search(r"'(\w+)'", str(error))  # `error.name` is not set for local variables
            message, advice = f"'{name and name[1]}' may have no value here", "assign it on every path"
        place = Location(self.function.file, self.function.first_line, 0, self.function.name, self.caller)
        trace = error.__traceback__
        while trace is not None:
            code = trace.tb_frame.f_code
            if code.co_filename == self.function.file:
                line, _, column, end = list(code.co_positions())[trace.tb_lasti // 2]
                start = (column or 0) + self.function.indentation
                width = (end or 0) - (column or 0)
                place = Location(code.co_filename, line or trace.tb_lineno, start, code.co_name, self.caller, width)
            trace = trace.tb_next
        found = CompilationError(render(message, place, max(1, place.width), advice))
        found.message, found.advice, found.location = message, advice, place
        return found

    def guarded(self, node: ast.AST, action: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return super().guarded(node, action, *arguments)
        except CompilationError as error:
            if isinstance(error.__cause__, (ExecutionError, BdbQuit)):
                raise error.__cause__ from None
            raise

    # Expressions

    def visit_Evaluated(self, node: Any) -> Any:
        return node.value

    visit_EvaluatedCall = visit_Evaluated

    def evaluate_parts(self, number: int, *values: Any) -> Any:
        """An expression, from the values of its parts."""
        return self.evaluate(filled(self.nodes[number], iter(values)))

    def refuse(self, number: int) -> Any:
        """An expression that the language does not have: raises."""
        return self.evaluate(self.nodes[number])

    def outer(self, number: int) -> Any:
        """A name from outside of the function."""
        return self.evaluate(self.nodes[number])

    def decides(self, number: int, value: Any) -> bool:
        """Whether `and` or `or` is decided by this operand, without the ones that follow; keeps the operand."""
        self.undecided.append(value)
        known = self.known(value)
        return known is not None and bool(known[0]) != isinstance(self.nodes[number].op, ast.And)

    def decided(self, number: int) -> Any:
        """The operand that decided."""
        return self.undecided.pop()

    def logical(self, number: int, right: Any) -> Any:
        """The operand that did not decide joined with the next one."""
        node, left = self.nodes[number], self.undecided.pop()
        if self.known(left) is not None:
            return right
        values = [evaluated(node, left), evaluated(node, right)]
        return self.evaluate(ast.copy_location(ast.BoolOp(node.op, values), node))

    def chooses(self, number: int, value: Any) -> bool:
        """The condition of ``a if c else b``."""
        node = self.nodes[number]
        holds, run_time = self.guarded(node, self._truth, node.test, value)
        self.choices.append(run_time)
        return bool(holds)

    def chosen(self, number: int, value: Any) -> Any:
        """The value of a conditional expression: a choice at run time makes numbers run-time values."""
        return self._variable(value) if self.choices.pop() else value

    def holds(self, number: int, value: Any) -> bool:
        """The condition of an if, a while or a comprehension."""
        node = self.nodes[number]
        return bool(self.guarded(node, self._truth, node, value)[0])

    def begins(self, number: int) -> None:
        """A ``while`` that comes next."""
        loop = self.nodes[number]
        self.loops[loop] = WatchedLoop(loop, self.session.eager.memory)

    def proceeds(self, number: int, value: Any) -> bool:
        """The condition of a ``while``; raises where a pass has changed nothing, so that no later one will."""
        loop = self.nodes[number]
        holds = bool(self.guarded(loop.test, self._truth, loop.test, value)[0])
        if holds and self.loops[loop].waits(sys._getframe(1)):
            raise located_execution_error(waiting_error(), "while", self.location(loop), self.session.eager.index)
        return holds

    def _truth(self, node: ast.expr, value: Any) -> tuple[bool, bool]:
        """Whether a condition holds, and whether it is known at run time only."""
        if isinstance(value, core.condition):
            value = value.condition
        known = self.known(value)
        if known is not None:
            return bool(known[0]), False
        handle = self.branch_condition(node, value).handle
        assert isinstance(handle, EagerValue)
        return bool(handle.array), True

    def items(self, number: int, value: Any) -> list[Any]:
        """What a comprehension runs over."""
        node = self.nodes[number]
        items: list[Any] = self.guarded(node, self.static_items, node, value)
        return items

    def tuple_of(self, number: int) -> Callable[[Any], tuple[Any, ...]]:
        """Comprehensions give tuples."""
        return tuple

    # Statements

    def run_statement(self, number: int) -> None:
        """A statement that needs no values: a declaration, or one that the language does not have, which raises."""
        self.guarded(self.nodes[number], self._simple, self.nodes[number])

    def assigned(self, number: int, value: Any) -> Any:
        """The value as variables take it: numbers become scalars."""
        statement = self.nodes[number]
        target = statement.targets[0]
        self.guarded(statement, self.assign, target, value)
        return self._popped(target)

    def _popped(self, target: ast.expr) -> Any:
        if isinstance(target, ast.Name):
            return self.names.pop(target.id)
        assert isinstance(target, (ast.Tuple, ast.List))
        return tuple(self._popped(entry) for entry in target.elts)

    def assign_attribute(self, number: int, owner: Any, value: Any) -> None:
        """``self.x = value``, in an aggregate's constructor."""
        statement = self.nodes[number]
        target = filled(statement.targets[0], iter([owner]))
        self.guarded(statement, self.assign, target, value)

    def declared(self, number: int, value: Any) -> Any:
        """``x: tl.constexpr = value``"""
        statement = self.nodes[number]
        target = ast.copy_location(
            ast.AnnAssign(statement.target, statement.annotation, evaluated(statement.value, value), 1), statement
        )
        self.guarded(statement, self._simple, target)
        return self.names.pop(statement.target.id)

    def augmented(self, number: int, present: Any, value: Any) -> Any:
        """``x += value``"""
        statement = self.nodes[number]
        self.names[statement.target.id] = present
        line = ast.AugAssign(statement.target, statement.op, evaluated(statement.value, value))
        self.guarded(statement, self._simple, ast.copy_location(line, statement))
        return self.names.pop(statement.target.id)

    def check_assertion(self, number: int, condition: Any, message: Any) -> None:
        """``assert condition, message``"""
        statement = self.nodes[number]
        line = ast.Assert(evaluated(statement.test, condition), evaluated(statement.test, message))
        self.guarded(statement, self._simple, ast.copy_location(line, statement))

    def passes(self, number: int, iterator: Any) -> Any:
        """What a loop runs over: run-time scalars, or the items of an unrolled loop."""
        statement = self.nodes[number]
        if not isinstance(iterator, core.range):
            return self.guarded(statement, self.static_items, statement.iter, iterator)
        if not isinstance(statement.target, ast.Name):
            raise self.error(statement.target, "the index of a run-time loop is one name")
        lower, upper, step, backward = self.guarded(statement, self._bounds, statement, iterator)
        first, last, width = (int(value.handle.array) for value in (lower, upper, step))
        if width <= 0:
            error = step_error(width)
            raise located_execution_error(error, "for", self.location(statement), self.session.eager.index)
        return self._indices(lower.handle.type, range(first, last, width), first + last if backward else None)

    def _indices(self, kind: TensorType, numbers: range, mirrored: int | None) -> Iterator[tensor]:
        for number in numbers:
            position = number if mirrored is None else mirrored - number
            yield tensor(self.session.eager.value(kind, np.asarray(position, kind.dtype.numpy)))


# Debuggers


@contextmanager
def _stepping() -> Iterator[None]:
    """``breakpoint()`` starts a debugger that steps through kernels and not through what carries them out.

    Another debugger that the program or PYTHONBREAKPOINT chose stays in its place.
    """
    if sys.breakpointhook is not sys.__breakpointhook__ or os.environ.get("PYTHONBREAKPOINT"):
        yield
        return
    sys.breakpointhook = _break
    try:
        yield
    finally:
        sys.breakpointhook = sys.__breakpointhook__


def _break(*arguments: Any, **keywords: Any) -> None:
    KernelDebugger().set_trace(sys._getframe().f_back)


class KernelDebugger(pdb.Pdb):
    """pdb, which sees the frames of kernels and of the program around them only."""

    def stop_here(self, frame: FrameType) -> bool:
        return bool(super().stop_here(frame)) and not _inside_machinery(frame)

    def get_stack(self, f: FrameType | None, t: TracebackType | None) -> tuple[list[tuple[FrameType, int]], int]:
        stack, chosen = super().get_stack(f, t)
        visible = [not _is_machinery(frame) for frame, _ in stack]
        return [entry for entry, keep in zip(stack, visible, strict=True) if keep], sum(visible[: chosen + 1]) - 1


def _inside_machinery(frame: FrameType) -> bool:
    """Whether a frame belongs to tilewright, or was called by it (NumPy, say), rather than by a kernel."""
    current: FrameType | None = frame
    while current is not None and current.f_code.co_filename not in _files:
        if _is_machinery(current):
            return True
        current = current.f_back
    return False


def _is_machinery(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith(_MACHINERY)


__all__ = ["EagerFunction", "EagerLaunch", "EagerSession", "KernelDebugger", "runs_eagerly"]
