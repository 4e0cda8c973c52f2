"""Comparisons of blocks of indices that no lane fails become true: the lower bounds of block pointers.

    place = program_id(0) * 256 + arange(0, 256)
    load(x + place, (0 <= place) & (place < n))         ->      load(x + place, place < n)

What is left is a prefix, which ends the loop over the lanes (`nests.py`); with the other part, every vector is masked.
Arithmetic that overflows is not followed, as in `ranges.py`, but for numbers that are known not to fit their type.
"""

from __future__ import annotations

from tilewright.dtypes import DType
from tilewright.ir.core import Function, Operation, SSAValue
from tilewright.ir.rewrite import Rebuilder, Replacement, constant_of
from tilewright.targets.cpu.affine import AffineAnalysis
from tilewright.targets.cpu.ranges import Interval, Number, Ranges


def drop_known_bounds(function: Function) -> Function:
    """`function` with `true` in the place of such comparisons; the same object when there are none."""
    compares = [operation for operation in function.walk() if _compares_indices(operation)]
    if not compares:
        return function
    ranges = Ranges(function, AffineAnalysis(function))
    known = {operation.result for operation in compares if _holds(operation, ranges)}
    return _KnownBounds(known).run(function) if known else function


def _compares_indices(operation: Operation) -> bool:
    """Whether an operation compares indices with a known number."""
    if operation.opcode != "compare" or not operation.result.type.rank:
        return False
    kind = operation.operands[0].type.element
    known = any(constant_of(operand) is not None for operand in operation.operands)
    return known and isinstance(kind, DType) and kind.kind == "int"


def _holds(operation: Operation, ranges: Ranges) -> bool:
    left, right = operation.operands
    predicate = str(operation.attributes["predicate"])
    if predicate in ("gt", "ge"):
        left, right, predicate = right, left, {"gt": "lt", "ge": "le"}[predicate]
    if predicate not in ("lt", "le"):
        return False
    below, above = _bounds(left, ranges), _bounds(right, ranges)
    if below is None or above is None or not isinstance(below.high, int) or not isinstance(above.low, int):
        return False
    return below.high <= above.low if predicate == "le" else below.high < above.low


def _bounds(value: SSAValue, ranges: Ranges) -> Interval | None:
    """The bounds of a value's elements, if the known ones fit its type."""
    found, most = ranges.of(value), 1 << (value.type.dtype.bits - 1)
    return found if found is not None and all(_fits(number, most) for number in (found.low, found.high)) else None


def _fits(number: Number, most: int) -> bool:
    return not isinstance(number, int) or -most <= number < most


class _KnownBounds(Rebuilder):
    shares = True

    def __init__(self, known: set[SSAValue]) -> None:
        super().__init__()
        self._known = known

    def visit(self, operation: Operation) -> Replacement:
        """`true` for a comparison that is known to hold."""
        if not self._known.intersection(operation.results):
            return None
        return self.constant(True, operation.result.type.dtype, operation.result.type.shape)
