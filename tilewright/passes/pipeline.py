"""The target-neutral simplification of a kernel, to be read from top to bottom."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.ir.core import Function
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
    """A kernel with the same meaning and less in it; the same object when there is nothing to gain.

    With `settings.verify` the verifier runs before the first pass and after each.
    """
    return run_passes(function, tuple(step for step, _ in SIMPLIFICATION))


def run_passes(function: Function, passes: tuple[Pass, ...]) -> Function:
    """Apply passes in order, verified between when `settings.verify` is on."""
    if settings.verify:
        verify(function)
    for step in passes:
        result = step(function)
        if settings.verify and result is not function:
            verify(result)
        function = result
    return function
