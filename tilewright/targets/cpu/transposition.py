"""Nests that read along one axis and write along another: square tiles are transposed in registers.

for j in steps of T along the written axis, for i in steps of T along the read axis:
    T vectors along i (one for each position j + r)  ->  transpose  ->  T vectors along j, stored

Tiles that exist as a whole have code of their own, without the masks that end the axes: without AVX-512, a masked store
of elements of less than 32 bits is a branch for each of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.targets.cpu.affine import AffineAnalysis
from tilewright.targets.cpu.dot_pack import transposed
from tilewright.targets.cpu.evaluate import Evaluator
from tilewright.targets.cpu.indices import ComparisonPhase, Indices, LaneIndex
from tilewright.targets.cpu.memory import emit_store
from tilewright.targets.cpu.schedule import Root
from tilewright.targets.llvm.builder import LLVMValue

_LEAST_TILE = 4


@dataclass(frozen=True)
class Turn:
    """What a root is transposed over: the domain axes that it reads and writes along, and the tile's side."""

    read_axis: int
    written_axis: int
    side: int


def find_turn(analysis: AffineAnalysis, root: Root, axes: list[int], width: int) -> Turn | None:
    """How to transpose a root over two of its `axes`, when that saves gathers or scatters."""
    if root.kind == "reduce" or root.reads.reshapes or root.operation.opcode == "constant":
        return None
    large = [axis for axis in axes if root.domain[axis] >= _LEAST_TILE]
    for written in large:
        if not writes_along(analysis, root, written):
            continue
        irregular = irregular_reads(analysis, root, written)
        for read in large:
            if read != written and irregular_reads(analysis, root, read) < irregular:
                smallest = min(root.domain[read], root.domain[written], width)
                return Turn(read, written, 1 << (smallest.bit_length() - 1))
    return None


def writes_along(analysis: AffineAnalysis, root: Root, axis: int) -> bool:
    """Whether elements along an axis are written side by side."""
    if root.kind == "buffer":
        return root.storage is not None and root.storage.strides[axis] == 1
    fact = analysis.along(root.operation.operands[0], axis)
    return fact.step == 1 and fact.run == 0


def irregular_reads(analysis: AffineAnalysis, root: Root, axis: int) -> int:
    """Reads that are neither contiguous nor the same along an axis."""
    count = 0
    for load, axes in root.reads.loads:
        if axis in axes:
            fact = analysis.along(load.operands[0], axes.index(axis))
            count += fact.step not in (0, 1) or fact.run != 0
    for _, axes in root.reads.buffers:
        count += axis in axes and axes.index(axis) != len(axes) - 1
    return count


End = tuple[LLVMValue, ComparisonPhase | None]  # of an axis, and what is known of comparisons for positions before it


class Transposer:
    """Emits the tiles of one root. `read` and `written` are the run-time ends of these axes."""

    def __init__(self, evaluator: Evaluator, root: Root, turn: Turn, read: End, written: End) -> None:
        self.evaluator = evaluator
        self.builder = evaluator.builder
        self.root = root
        self.turn = turn
        (self.read_end, self.read_phase), (self.written_end, self.written_phase) = read, written

    def emit(self, bound: dict[int, LaneIndex]) -> None:
        """All tiles; `bound` has the indices of all other axes."""
        builder, side = self.builder, self.turn.side
        with builder.loop(builder.integer(0), self.written_end, side, hint="turn") as outer:
            with self.evaluator.scope(outer.guard, outer.index):
                with builder.loop(builder.integer(0), self.read_end, side, hint="turn") as inner:
                    with self.evaluator.scope(inner.guard, inner.index):
                        self._whole_or_ragged(bound, outer.index, inner.index)
                    inner.next([])
            outer.next([])

    def _whole_or_ragged(self, bound: dict[int, LaneIndex], written: LLVMValue, read: LLVMValue) -> None:
        """A tile that exists as a whole, one with all of its written axis, or any."""
        builder = self.builder
        fits_read, fits_written = self._fits(read, self.read_end), self._fits(written, self.written_end)
        ragged_read, ragged_written = builder.inverse(fits_read), builder.inverse(fits_written)
        forms = [(builder.binary("and", fits_read, fits_written), False, False)]
        forms += [(builder.binary("and", ragged_read, fits_written), True, False), (ragged_written, True, True)]
        before = builder.block
        for condition, *ragged in forms:
            if condition.truth is False:
                continue
            if condition.truth is True:
                self._tile(bound, written, read, *ragged)
                continue
            with builder.when(condition), self.evaluator.scope(before):
                self._tile(bound, written, read, *ragged)
            before = builder.block

    def _fits(self, start: LLVMValue, end: LLVMValue) -> LLVMValue:
        """Whether a tile from `start` on has all its positions along an axis."""
        if end.constant is not None and end.constant % self.turn.side == 0:
            return self.builder.constant("i1", True)
        return self.builder.compare("sle", self.builder.add(start, self.turn.side), end)

    def _tile(
        self, bound: dict[int, LaneIndex], written: LLVMValue, read: LLVMValue, ragged_read: bool, ragged_written: bool
    ) -> None:  # fmt: skip
        builder, turn = self.builder, self.turn
        read_lanes = self._lanes(read, self.read_end, self.read_phase, ragged_read)
        written_lanes = self._lanes(written, self.written_end, self.written_phase, ragged_written)
        last = builder.subtract(self.written_end, 1)
        rows = []
        for number in range(turn.side):
            place = builder.add(written, number)
            place = builder.minimum(place, last) if ragged_written else place
            self.evaluator.know(place)
            written_place = LaneIndex(place, 1, self.written_phase)
            rows.append(self._value({**bound, turn.read_axis: read_lanes, turn.written_axis: written_place}))
        for number, row in enumerate(transposed(builder, rows)):
            place = builder.add(read, number)
            self.evaluator.know(place)
            read_place = LaneIndex(place, 1, self.read_phase)
            indices = self._indices({**bound, turn.read_axis: read_place, turn.written_axis: written_lanes})
            self._put(place, indices, row, ragged_read)

    def _lanes(self, start: LLVMValue, end: LLVMValue, phase: ComparisonPhase | None, ragged: bool) -> LaneIndex:
        """The positions of a tile along an axis."""
        mask = self.builder.lane_mask(self.builder.subtract(end, start), self.turn.side) if ragged else None
        if mask is not None:
            self.evaluator.know(mask)
        return LaneIndex(start, self.turn.side, phase, mask)

    def _indices(self, places: dict[int, LaneIndex]) -> Indices:
        return tuple(places[axis] for axis in range(len(self.root.domain)))

    def _value(self, places: dict[int, LaneIndex]) -> LLVMValue:
        root, evaluator = self.root, self.evaluator
        value = root.value if root.kind == "buffer" else root.operation.operands[1]
        assert value is not None
        own = root.kind == "buffer" and evaluator.storage.get(value) is root.storage
        evaluator.through = value if own else None
        result = evaluator.vector(value, self._indices(places), self.turn.side)
        evaluator.through = None
        return result

    def _put(self, place: LLVMValue, indices: Indices, row: LLVMValue, ragged: bool) -> None:
        """Store one row of a turned tile, if its `place` on the read axis exists."""
        if not ragged:
            self._store(indices, row)
            return
        before = self.builder.block
        with self.builder.when(self.builder.compare("slt", place, self.read_end)), self.evaluator.scope(before):
            self._store(indices, row)

    def _store(self, indices: Indices, row: LLVMValue) -> None:
        if self.root.kind == "store":
            emit_store(self.evaluator, self.root.operation, indices, row)
        else:
            assert self.root.storage is not None
            self.evaluator.write(self.root.storage, indices, row)
