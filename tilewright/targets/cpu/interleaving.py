"""Nests that write two or three elements side by side which they read far apart: vectors are interleaved in registers.

for i in steps of a vector along the read axis:
    a vector along i for each of the elements  ->  interleave  ->  one store of all

So a channels-first image of three channels becomes a channels-last one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.targets.cpu.affine import AffineAnalysis
from tilewright.targets.cpu.evaluate import Evaluator
from tilewright.targets.cpu.indices import ComparisonPhase, Indices, LaneIndex
from tilewright.targets.cpu.memory import apart
from tilewright.targets.cpu.schedule import Root
from tilewright.targets.cpu.transposition import irregular_reads, writes_along
from tilewright.targets.llvm.builder import LLVMBuilder, LLVMValue

_MOST_ELEMENTS = 3


@dataclass(frozen=True)
class Interleaving:
    """The domain axes that a store reads and writes along; of the latter all `count` elements are stored together."""

    read_axis: int
    written_axis: int
    count: int


def find_interleaving(analysis: AffineAnalysis, root: Root, axes: list[int], lanes: int) -> Interleaving | None:
    """How to interleave what a store of dense rows writes, when that saves gathers."""
    if root.kind != "store" or root.reads.reshapes or root.operation.opcode == "constant":
        return None
    for written in axes:
        count = root.domain[written]
        if not 2 <= count <= _MOST_ELEMENTS or not writes_along(analysis, root, written):
            continue
        irregular = irregular_reads(analysis, root, written)
        for read in axes:
            fact = analysis.along(root.operation.operands[0], read)
            dense = read != written and fact.step == count and fact.run == 0 and root.domain[read] >= lanes
            if dense and irregular_reads(analysis, root, read) < irregular:
                return Interleaving(read, written, count)
    return None


class Interleaver:
    """Emits the stores of one root. `end` is the run-time end of the read axis, `inside` what is known before it."""

    def __init__(
        self, evaluator: Evaluator, root: Root, found: Interleaving, lanes: int, end: LLVMValue,
        inside: ComparisonPhase | None,
    ) -> None:  # fmt: skip
        self.evaluator, self.builder = evaluator, evaluator.builder
        self.root, self.found, self.lanes, self.end, self.inside = root, found, lanes, end, inside

    def emit(self, bound: dict[int, LaneIndex]) -> None:
        """All of them; `bound` has the indices of all other axes."""
        builder = self.builder
        whole = builder.binary("and", self.end, builder.integer(-self.lanes))
        for first, last, ragged in ((builder.integer(0), whole, False), (whole, self.end, True)):
            with builder.loop(first, last, self.lanes, hint="interleave") as loop:
                with self.evaluator.scope(loop.guard, loop.index):
                    self._group(bound, loop.index, ragged)
                loop.next([])

    def _group(self, bound: dict[int, LaneIndex], start: LLVMValue, ragged: bool) -> None:
        builder, evaluator, found = self.builder, self.evaluator, self.found
        operation = self.root.operation
        pointer, value = operation.operands[:2]
        valid = None
        if ragged:
            valid = builder.lane_mask(builder.subtract(self.end, start), self.lanes)
            evaluator.know(valid)
        values, masks = [], []
        for number in range(found.count):
            element = LaneIndex(builder.integer(number))
            indices = self._indices(bound, LaneIndex(start, self.lanes, self.inside, valid), element)
            found_value = evaluator.vector(value, indices, self.lanes)
            values.append(evaluator.to_memory(found_value, value.type.element))
            parts = [valid] if valid is not None else []
            mask = evaluator.evaluate(operation.operands[2], indices) if len(operation.operands) > 2 else None
            parts += [mask] if mask is not None and mask.text != "true" else []
            masks.append(evaluator.all_of(parts, self.lanes) if parts else None)
        address = evaluator.address(pointer, self._indices(bound, LaneIndex(start), LaneIndex(builder.integer(0))))
        every = builder.constant(f"<{self.lanes} x i1>", True)
        known = [mask or every for mask in masks] if any(masks) else []
        parts_of_masks = interleaved(builder, known) if known else []
        itemsize, offset = value.type.element.itemsize, 0
        for place, stored in enumerate(interleaved(builder, values)):
            where = builder.gep(address, offset, stored.element)
            if known:
                builder.masked_store(apart(builder, stored), where, parts_of_masks[place], itemsize)
            else:
                builder.store(stored, where, itemsize)
            offset += stored.lanes

    def _indices(self, bound: dict[int, LaneIndex], read: LaneIndex, written: LaneIndex) -> Indices:
        places = {**bound, self.found.read_axis: read, self.found.written_axis: written}
        return tuple(places[axis] for axis in range(len(self.root.domain)))


def interleaved(builder: LLVMBuilder, vectors: Sequence[LLVMValue]) -> list[LLVMValue]:
    """The first lanes of two or three vectors one after the other, then their second ones, and so on: in vectors of
    powers of two."""
    lanes = vectors[0].lanes
    order = [number * lanes + lane for lane in range(lanes) for number in range(len(vectors))]
    if len(vectors) == 2:
        return [builder.shuffle(vectors[0], vectors[1], order)]
    pair, third = builder.shuffle(vectors[0], vectors[1], range(2 * lanes)), builder.with_lanes(vectors[2], 2 * lanes)
    return [builder.shuffle(pair, third, order[: 2 * lanes]), builder.shuffle(pair, third, order[2 * lanes :])]
