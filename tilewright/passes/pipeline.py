"""The order of the target-independent passes of a kernel."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from tilewright.ir.core import Function
from tilewright.ir.printer import print_function
from tilewright.ir.verifier import verify
from tilewright.passes.canonicalize import canonicalize
from tilewright.passes.common_subexpressions import merge_common_subexpressions
from tilewright.passes.dead_code import remove_dead_code
from tilewright.passes.loop_invariants import hoist_loop_invariants
from tilewright.settings import settings

Pass = Callable[[Function], Function]

SIMPLIFICATION: tuple[tuple[Pass, str], ...] = (
    (remove_dead_code, "first, because the front end carries more around loops than is used, which hides constants"),
    (canonicalize, "folds what specialisation made constant; branches and short loops disappear"),
    (merge_common_subexpressions, "after it, because equal things now look equal"),
    (hoist_loop_invariants, "after it, so that one of several equal things moves, and once"),
    (canonicalize, "loops that lost their bodies, operands that became the same object"),
    (merge_common_subexpressions, "what came out of a loop may equal something before it"),
    (remove_dead_code, "last: the rules above leave the operands of what they replaced"),
)


def simplify(function: Function) -> Function:
    """A kernel with the same meaning and less in it; the same object when there is nothing to gain."""
    return run_passes(function, tuple(step for step, _ in SIMPLIFICATION))


def run_passes(function: Function, passes: tuple[Pass, ...]) -> Function:
    """Apply passes in order.

    With `settings.verify` the kernel is verified before the first and after each that changed it; with
    `settings.dump_directory` its text is written there at the same places, as ``<kernel>.<hash>.<number>.<pass>.tile``.
    """
    stem = function.name
    if settings.dump_directory is not None:  # kernels of one name differ in their text
        stem += "." + hashlib.sha256(print_function(function).encode()).hexdigest()[:8]
    _observe(function, stem, "00.input")
    for number, step in enumerate(passes, 1):
        result = step(function)
        if result is not function:
            _observe(result, stem, f"{number:02}.{step.__name__}")
        function = result
    return function


def _observe(function: Function, stem: str, stage: str) -> None:
    if settings.verify:
        verify(function)
    if settings.dump_directory is not None:
        settings.dump(f"{stem}.{stage}.tile", print_function(function, locations=True))
