"""Moves loop-invariant operations out of `for` loops.

A loop whose author asked for it (``tl.range(disable_licm=True)``) keeps everything.  Only operations move that do no
harm when the loop runs zero times (`ir.ops.is_speculatable`).  `while` bodies keep theirs: a condition is run at least
once, so the gain is small.
"""

from __future__ import annotations

from tilewright.ir.core import Function, Operation, Region, SSAValue
from tilewright.ir.ops import is_speculatable
from tilewright.ir.rewrite import Rebuilder, Replacement


def hoist_loop_invariants(function: Function) -> Function:
    """`function` with loop-invariant pure operations before their loops; the same object when there are none."""
    return _Hoister().run(function) if any(map(_may_lose, function.walk())) else function


def _may_lose(operation: Operation) -> bool:
    """Whether it is a loop out of which operations may move."""
    return operation.opcode == "for" and not operation.attributes["disable_licm"]


class _Hoister(Rebuilder):
    def visit(self, operation: Operation) -> Replacement:
        if _may_lose(operation):
            self.hoist(operation.regions[0])
        return None

    def hoist(self, body: Region) -> None:
        """Move operations of a body (a copy of ours, inner loops already done) to the current region."""
        inside = set(body.arguments)
        staying = []
        for operation in body.operations:
            if is_speculatable(operation) and not _free_values(operation) & inside:
                self.current.operations.append(operation)
                self.changed = True
            else:
                staying.append(operation)
                inside.update(operation.results)
        body.operations = staying


def _free_values(operation: Operation) -> set[SSAValue]:
    """The values that an operation, with its regions, takes from around it."""
    used: set[SSAValue] = set()
    own: set[SSAValue] = set()
    for inner in operation.walk():
        used.update(inner.operands)
        if inner is not operation:
            own.update(inner.results)
        for region in inner.regions:
            own.update(region.arguments)
    return used - own
