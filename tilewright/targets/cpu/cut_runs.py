"""Loops over vectors that are cut where quotients by numbers known at run time change.

    x + i // n * stride + i % n        rows one after the other
    x + i // c % h, i % c              the dimensions of an array from the place of an element

Between two multiples of `n` the quotient is one number, and the remainder grows as `i` does.  So the loop over vectors
runs from cut to cut: quotients are computed once for each run, and what is affine in them and in remainders is reached
by plain vectors, as if nothing were divided.  Runs begin at any element and end with a masked vector.

A launch whose divisors are smaller than half of a vector takes the other version of the loop; smaller than two vectors
where that has short vectors, as of 8 lanes where 8 is known to divide them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilewright.ir.core import Function, Operation, SSAValue
from tilewright.targets.cpu.access import SCATTERED, Axes
from tilewright.targets.cpu.affine import UNKNOWN_STRIDE, AffineAnalysis, Along, constant_of
from tilewright.targets.cpu.indices import ZERO, Indices, LaneIndex
from tilewright.targets.cpu.wide_runs import scalar_of
from tilewright.targets.llvm.builder import LLVMValue

if TYPE_CHECKING:
    from tilewright.targets.cpu.evaluate import Evaluator
    from tilewright.targets.cpu.schedule import Root

_REGULAR = (-1, 0, 1)
_LEAST_LANES = 4


class RunAnalysis(AffineAnalysis):
    """What holds inside of runs; `cuts` are the quotients and remainders that end them, with their dividends' steps.

    Runs begin anywhere: facts of aligned elements alone do not hold in them.
    """

    def __init__(self, function: Function) -> None:
        self.cuts: dict[tuple[SSAValue, int], int] = {}
        super().__init__(function)

    def _compute(self, value: SSAValue) -> tuple[Along, ...]:
        return tuple(fact if fact.run == 0 else UNKNOWN_STRIDE for fact in super()._compute(value))

    def _quotient(self, operation: Operation, rule: Callable[[Along, int, bool], Along]) -> tuple[Along, ...]:
        left, right = operation.operands
        facts = list(super()._quotient(operation, rule))
        divisor = constant_of(right)
        if not left.type.dtype.is_signed or (scalar_of(right) is None if divisor is None else divisor <= 0):
            return tuple(facts)  # what has no sign may pass zero, and goes on from its greatest number
        for axis, fact in enumerate(facts):
            dividend = self.along(left, axis)
            if (fact.step is None or fact.run) and dividend.step is not None and dividend.step > 0:
                self.cuts[operation.result, axis] = dividend.step
                facts[axis] = Along(dividend.step if operation.opcode == "remainder" else 0, 0, 1)
        return tuple(facts)


def place_in_run(analysis: AffineAnalysis, value: SSAValue, indices: Indices) -> int | None:
    """The axis of a quotient or remainder along which an index lies in a run that it does not change in, or grows."""
    if isinstance(analysis, RunAnalysis):
        for place, index in enumerate(indices):
            if index.start is not None and (value, place) in analysis.cuts:
                return place
    return None


def in_run(evaluator: Evaluator, operation: Operation, indices: Indices, place: int) -> LLVMValue:
    """A quotient in a run where it is one number, or a remainder that grows there as the dividend does."""
    builder, start, dividend = evaluator.builder, indices[place].start, operation.operands[0]
    assert start is not None
    at = (*indices[:place], start, *indices[place + 1 :])
    with evaluator.without(evaluator.unwritten):
        first = evaluator.evaluate(operation.result, at)
        if operation.opcode == "divide":
            return first
        then = evaluator.evaluate(dividend, at)
    now = evaluator.evaluate(dividend, indices)
    moved = evaluator.emit_at([first, then], lambda: builder.subtract(first, then))
    parts = evaluator.matched([now, moved])
    return evaluator.emit_at(parts, lambda: builder.add(parts[0], parts[1]))


@dataclass(frozen=True)
class Cut:
    """A quotient or remainder that ends runs: its place among a root's axes, how its dividend grows, and the smallest
    divisor whose runs are long enough."""

    value: SSAValue
    root: Root
    axes: Axes
    step: int
    least: int

    @property
    def divisor(self) -> SSAValue:
        assert self.value.definition is not None
        return self.value.definition.operands[1]

    @property
    def scalar(self) -> SSAValue | None:
        """The divisor as a number; None if it is a constant."""
        return scalar_of(self.divisor)

    def follows(self, axes: Iterable[int]) -> bool:
        """Whether where runs end depends on one of a root's axes."""
        return not set(self.axes).isdisjoint(axes)

    def indices(self, places: Mapping[Root, Mapping[int, LaneIndex]]) -> Indices:
        """Those of the value, given those of the roots' axes."""
        return tuple(places[self.root][axis] if axis >= 0 else ZERO for axis in self.axes)


class CutRuns:
    """Decides where loops over vectors are cut."""

    def __init__(self, function: Function, lanes: int) -> None:
        operations = list(function.walk())
        divided = any(each.opcode in ("divide", "remainder") and each.result.type.rank for each in operations)
        whole = all(operation.opcode != "cat" for operation in operations)
        self.lanes = lanes
        self.analysis = RunAnalysis(function) if divided and whole else None

    def known_in_runs(self, function: Function, narrow: AffineAnalysis) -> set[SSAValue]:
        """What is known in runs alone of the quotients of addresses that become regular there, and of what comes of
        them, such as masks: a buffer of it would leave loops uncut.  Not of quotients of other addresses, too: these
        are computed for each lane."""
        if self.analysis is None:
            return set()
        pointers = [operation.operands[0] for operation in function.walk() if operation.opcode in ("load", "store")]
        regular = {pointer: self._becomes_regular_along(pointer, narrow) for pointer in pointers}
        found = self._quotients([pointer for pointer in pointers if regular[pointer]], narrow)
        found -= self._quotients([pointer for pointer in pointers if not regular[pointer]], narrow)
        for operation in function.walk() if found else ():
            if operation.opcode == "load" or found.isdisjoint(operation.operands):
                continue
            kinds = [result for result in operation.results if result.type.rank and _is_whole(result)]
            found.update(result for result in kinds if self._known_in_runs_alone(result, narrow))
        return found

    def _quotients(self, pointers: Sequence[SSAValue], narrow: AffineAnalysis) -> set[SSAValue]:
        """The quotients and remainders of addresses that are known in runs, and only there."""
        found: set[SSAValue] = set()
        seen: set[SSAValue] = set()
        pending = list(pointers)
        while pending:
            value = pending.pop()
            if value in seen or value.type.is_scalar or value.definition is None or value.definition.opcode == "load":
                continue
            seen.add(value)
            if value.definition.opcode in ("divide", "remainder") and self._known_in_runs_alone(value, narrow):
                found.add(value)
            pending += value.definition.operands
        return found

    def _known_in_runs_alone(self, value: SSAValue, narrow: AffineAnalysis) -> bool:
        assert self.analysis is not None
        pairs = zip(self.analysis.all_axes(value), narrow.all_axes(value), strict=True)
        return any(fact.step is not None and not other.covers(self.lanes) for fact, other in pairs)

    def _becomes_regular_along(self, pointer: SSAValue, narrow: AffineAnalysis) -> bool:
        return any(
            extent >= 2 * self.lanes
            and self._is_regular(self.analysis, pointer, axis)
            and not self._is_regular(narrow, pointer, axis)
            for axis, extent in enumerate(pointer.type.shape)
        )

    def cuts(self, roots: Sequence[Root], axes: Mapping[Root, int], narrow: AffineAnalysis) -> list[Cut]:
        """The cuts of a loop over vectors along an axis; none where cutting it makes nothing better."""
        long = 2 * self.lanes if self._has_short_vectors(roots, axes, narrow) else self.lanes // 2
        if self.analysis is None or any(root.reads.reshaped_along(axes[root]) for root in roots):
            return []
        if any(self._lies_in_buffers(root, axes[root], narrow) for root in roots):
            return []
        found: dict[tuple[Root, Axes, tuple[SSAValue, ...]], Cut] = {}
        worth = False
        for root in roots:
            for value, mapping in root.reads.quotients:
                for place, axis in enumerate(mapping):
                    step = self.analysis.cuts.get((value, place)) if axis == axes[root] else None
                    if step is None:
                        continue
                    if SCATTERED in mapping:
                        return []
                    assert value.definition is not None
                    found.setdefault(
                        (root, mapping, tuple(value.definition.operands)),
                        Cut(value, root, mapping, step, max(2, long * step)),
                    )
                    worth = worth or not narrow.along(value, place).covers(self.lanes)
            worth = worth or bool(found) and self._becomes_regular(root, axes[root], narrow)
        small = any(0 < (constant_of(cut.divisor) or cut.least) < cut.least for cut in found.values())
        return list(found.values()) if worth and not small else []

    def _lies_in_buffers(self, root: Root, axis: int, narrow: AffineAnalysis) -> bool:
        """Whether a buffer holds what is regular in runs alone: nothing says where its quotients change."""
        assert self.analysis is not None
        return any(
            self.analysis.along(value, place).step is not None and not narrow.along(value, place).covers(self.lanes)
            for value, mapping in root.reads.buffers
            for place, each in enumerate(mapping)
            if each == axis
        )

    def rows_lie_together(self, pointer: SSAValue, narrow: AffineAnalysis) -> bool:
        """Whether elements of a block's columns lie side by side in runs, but not those of its rows."""
        if self.analysis is None or narrow.along(pointer, 0).run == 0:
            return False
        rows, columns = (self.analysis.along(pointer, axis) for axis in (0, 1))
        whole = rows.run == 0 or self._is_regular(narrow, pointer, 0)
        return whole and rows.step == 1 and columns.step not in _REGULAR

    def _has_short_vectors(self, roots: Sequence[Root], axes: Mapping[Root, int], narrow: AffineAnalysis) -> bool:
        """Whether a loop that is not cut reaches everything by vectors, of fewer lanes."""
        accesses = [access for root in roots for access in self._accesses(root, axes[root])]
        facts = [narrow.along(pointer, place) for pointer, place in accesses]
        return all(fact.step in _REGULAR and fact.covers(_LEAST_LANES) for fact in facts)

    def _becomes_regular(self, root: Root, axis: int, narrow: AffineAnalysis) -> bool:
        return any(
            self._is_regular(self.analysis, pointer, place) and not self._is_regular(narrow, pointer, place)
            for pointer, place in self._accesses(root, axis)
        )

    @staticmethod
    def _accesses(root: Root, axis: int) -> list[tuple[SSAValue, int]]:
        """The pointers of a root that may change along an axis of its domain, and which of their own it is."""
        accesses = [(load.operands[0], mapping) for load, mapping in root.reads.loads]
        if root.kind == "store":
            accesses.append((root.operation.operands[0], tuple(range(len(root.domain)))))
        return [(pointer, place) for pointer, mapping in accesses for place, each in enumerate(mapping) if each == axis]

    def _is_regular(self, analysis: AffineAnalysis | None, pointer: SSAValue, place: int) -> bool:
        assert analysis is not None
        fact = analysis.along(pointer, place)
        return fact.step in _REGULAR and fact.covers(self.lanes)


def _is_whole(value: SSAValue) -> bool:
    """Whether a block has integers, or booleans."""
    return not value.type.is_pointer and value.type.dtype.is_integer


def long_enough(evaluator: Evaluator, cuts: Iterable[Cut]) -> LLVMValue | None:
    """Whether a launch's divisors are large enough; None where all are known to be."""
    builder, result = evaluator.builder, None
    for cut in cuts:
        if cut.scalar is not None:
            large = builder.compare("sge", evaluator.wide_scalar(cut.scalar), cut.least)
            result = large if result is None else builder.binary("and", result, large)
    return result


def run_length(evaluator: Evaluator, cuts: Iterable[Cut], places: Mapping[Root, Mapping[int, LaneIndex]]) -> LLVMValue:
    """How many elements from a position on lie in its run; `places` are the indices of the roots' axes there."""
    builder, length = evaluator.builder, None
    for cut in cuts:
        left = _elements_left(evaluator, cut, cut.indices(places))
        length = left if length is None else builder.minimum(length, left)
    assert length is not None
    return length


def _elements_left(evaluator: Evaluator, cut: Cut, indices: Indices) -> LLVMValue:
    """How many elements of a dividend, from these indices on, have its quotient.

    Negative dividends are rounded towards zero: the last of such a run is a multiple of the divisor.
    """
    builder, operation = evaluator.builder, cut.value.definition
    assert operation is not None
    left, right = operation.operands
    at = tuple(index.first for index in indices)
    divisor, value = evaluator.wide(right, at), evaluator.wide(cut.value, at)
    dividend = evaluator.wide(left, at)
    rest = value
    if operation.opcode == "divide":
        rest = builder.subtract(dividend, builder.multiply(value, divisor))
    positive = builder.compare("sge", dividend, 0)
    distance = builder.select(positive, builder.subtract(divisor, rest), builder.subtract(builder.integer(1), rest))
    if cut.step > 1:
        distance = builder.binary("udiv", builder.add(distance, cut.step - 1), builder.integer(cut.step))
    return distance
