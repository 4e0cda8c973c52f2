"""The form of errors with a source location: message, source line with caret, call chain, details, advice."""

from __future__ import annotations

import linecache
from collections.abc import Sequence
from pathlib import Path

from tilewright.errors import CompilationError, ExecutionError
from tilewright.ir.core import Location, Operation

_LANGUAGE = str(Path(__file__).parents[1] / "language")


def user_place(location: Location | None) -> Location | None:
    """A place outside of the language's own functions: where the user called them."""
    while location is not None and location.caller is not None and location.file.startswith(_LANGUAGE):
        location = location.caller
    return location


def source_line(location: Location) -> str:
    """The text of the line that a location points to, without its line end."""
    return linecache.getline(location.file, location.line).rstrip()


def excerpt(location: Location, width: int) -> list[str]:
    """The source line of a location, and a line that underlines `width` columns of it; nothing without source."""
    text = source_line(location)
    if not text:
        return []
    indent = len(text) - len(text.lstrip())
    start = max(location.column - indent, 0)
    span = max(1, min(width, len(text.lstrip()) - start))
    number = str(location.line)
    return [f"  {number} | {text.lstrip()}", f"  {' ' * len(number)} | {' ' * start}{'^' * span}"]


def render(message: str, location: Location, width: int = 1, advice: str = "", details: Sequence[str] = ()) -> str:
    """The full text of an error.

    scale.py:7:12: shapes [16] and [32] cannot be broadcast together
      7 | y = x + w
        |     ^^^^^
      in 'scale', called from 'kernel' at scale.py:12
      12 | scale(x, w)
         | ^^^^^^^^^^^
      help: extents must be equal or 1
    """
    lines = [f"{location}: {message}", *excerpt(location, width)]
    inner, caller = location, location.caller
    while caller is not None:
        lines.append(f"  in '{inner.function}', called from '{caller.function}' at {caller.file}:{caller.line}")
        lines.extend(excerpt(caller, len(source_line(caller))))
        inner, caller = caller, caller.caller
    lines.extend(f"  {detail}" for detail in details)
    if advice:
        lines.append(f"  help: {advice}")
    return "\n".join(lines)


def inline_asm_error(operation: Operation, place: str) -> CompilationError:
    """The error for machine text in a kernel that is to run where it means nothing."""
    return _placed_error(
        operation,
        f"inline assembly is instructions of one machine, which {place} cannot run",
        "write it with operations of the language, or choose by tl.target_info (is_cuda, is_hip) at compile time",
    )


def explicit_error(operation: Operation, place: str) -> CompilationError:
    """The error for an explicit operation in a kernel that is compiled for another machine than Hopper."""
    return _placed_error(
        operation,
        f"{operation.opcode} is an explicit operation of sm_90a, which {place} does not have",
        "write the kernel with tl alone to run it there; TILEWRIGHT_INTERPRET=1 runs explicit kernels on any machine",
    )


def unsupported_error(operation: Operation, place: str, reason: str) -> CompilationError:
    """The error for an operation that a target cannot lower, and why."""
    message = f"{place} cannot compile '{operation.opcode}': {reason}"
    return _placed_error(operation, message, "write this with other operations of the language")


def _placed_error(operation: Operation, message: str, advice: str) -> CompilationError:
    location = user_place(operation.location)
    text = f"{message}\n  help: {advice}" if location is None else render(message, location, location.width, advice)
    error = CompilationError(text)
    error.message, error.location, error.advice = message, location, advice
    return error


ASSERTED = "the kernel asserts this of its arguments and data: correct those, or the assertion"


def step_error(step: int | None = None) -> ExecutionError:
    """The error for a loop whose step is `step`, or not known any more but not positive."""
    advice = "count up with a positive step; a loop counts down when its step is a constant, such as a tl.constexpr"
    return ExecutionError(f"the step{'' if step is None else f' {step}'} is not positive", advice)


def waiting_error() -> ExecutionError:
    """The error for a loop of which a pass has changed nothing, so that no later one will."""
    return ExecutionError(
        "the loop never ends: a pass of it changed neither a value nor memory",
        "program instances run one after the other here, x fastest: wait only for those before this one",
    )


def all_waiting_error(kernel: str, seconds: float) -> ExecutionError:
    """The error for a loop of a compiled kernel that has waited so long, like every other instance that runs."""
    return ExecutionError(
        f"kernel '{kernel}' waits for ever: for {seconds:g} s no program instance has ended, and passes of this loop "
        "have changed neither a value nor memory",
        "as many program instances run at a time as there are threads, each to its end: wait only for those before "
        "this one, and release each lock",
    )


def located_execution_error(
    error: ExecutionError, opcode: str, location: Location | None, program_id: tuple[int, ...]
) -> ExecutionError:
    """An error of a running kernel with its place: operation, source line with caret, program instance."""
    message = f"{opcode} in program instance {program_id}: {error.message}"
    details = list(error.details)
    if error.element:
        details.insert(0, f"element {list(error.element)} of the block")
    if location is None:
        lines = [f"<unknown location>: {message}", *(f"  {detail}" for detail in details)]
        text = "\n".join([*lines, f"  help: {error.advice}"] if error.advice else lines)
    else:
        text = render(message, location, location.width, error.advice, details)
    located = ExecutionError(error.message, error.advice, tuple(details), error.element, error.address, text)
    located.location, located.program_id = location, program_id
    return located
