"""Divisors known at run time that are seldom what limits a vector: loops for those that divide by more than is known.

    x + i // d * stride + i % d        where all that is known of d is that 8 divides it

Runs of 8 elements are next to each other, so vectors have 8 lanes.  Where the launch's d is a multiple of a whole
vector's lanes, a second version of the loop runs, whose vectors are whole (`nests.py`).
"""

from __future__ import annotations

from tilewright.ir.core import Function, SSAValue
from tilewright.ir.ops import REARRANGING
from tilewright.targets.cpu.affine import AffineAnalysis, constant_of

_LEAST_RUN = 4  # what is known to divide a divisor for vectors to be used at all


class WideRuns:
    """The divisors of a function's blocks that `lanes` may divide, and the facts if it divides all of them."""

    def __init__(self, function: Function, analysis: AffineAnalysis, lanes: int) -> None:
        found = [
            scalar_of(operation.operands[1])
            for operation in function.walk()
            if operation.opcode in ("divide", "remainder") and operation.result.type.rank
        ]
        self.divisors = [
            value
            for value in dict.fromkeys(found)
            if value is not None and not _divides(lanes, analysis, value) and _divides(_LEAST_RUN, analysis, value)
        ]
        self.analysis = AffineAnalysis(function, dict.fromkeys(self.divisors, lanes)) if self.divisors else analysis


def _divides(number: int, analysis: AffineAnalysis, value: SSAValue) -> bool:
    return analysis.multiple(value) % number == 0


def scalar_of(value: SSAValue) -> SSAValue | None:
    """The number that all elements of a block are, if it is one that only a launch knows."""
    while value.type.rank:
        operation = value.definition
        if operation is None or operation.opcode not in REARRANGING:
            return None
        value = operation.operands[0]
    return value if value.type.dtype.is_integer and constant_of(value) is None else None
