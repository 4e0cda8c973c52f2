"""Scans: sequential along their axis, vectorised along the last axis when that is another one.

Along the last axis, if elements lie next to each other, sums, products, minima and so on are vectorised too: the
elements of a vector are combined with those 1, 2, 4, … before them, then with what came before the vector.  Sums and
products of float32 and float64 are rounded in that order.  Every combination is rounded to its type, as the combine
region says, so those of narrower floats stay sequential.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd

from tilewright.ir.core import Operation, SSAValue
from tilewright.targets.cpu.attributes import integer
from tilewright.targets.cpu.evaluate import Evaluator
from tilewright.targets.cpu.indices import Indices, LaneIndex
from tilewright.targets.cpu.placement import Placement, identity_axes
from tilewright.targets.cpu.reduce import inline_region, known_combination
from tilewright.targets.cpu.storage import Storage
from tilewright.targets.cpu.target import CPUTarget
from tilewright.targets.llvm.builder import LLVMValue

_LEAST_LANES = 4  # of vectors along the scanned axis


class ScanEmitter:
    """Emits `scan` operations into the buffers of their results."""

    def __init__(
        self, evaluator: Evaluator, storage: dict[SSAValue, Storage], target: CPUTarget, placement: Placement
    ) -> None:
        self.evaluator = evaluator
        self.placement = placement
        self.builder = evaluator.builder
        self.storage = storage
        self.lanes = target.vector_bits // 32

    def is_vectorised(self, operation: Operation) -> bool:
        """Whether vectors run along the scanned axis: the last one, of elements that any order of combinations suits
        and that are read next to each other (to gather them takes as long as to combine them one by one)."""
        operand = operation.operands[0]
        known = known_combination(operation.regions[0]) if len(operation.operands) == 1 else None
        axis, value = integer(operation, "axis"), operand.type
        if known is None or axis != value.rank - 1 or value.shape[-1] % _LEAST_LANES or value.dtype.is_bool:
            return False
        if known in ("add", "multiply") and value.dtype.is_float and value.dtype.bits < 32:
            return False
        placement = self.placement
        reads = placement.walker.reads([(operand, identity_axes(operand))])
        steps = [
            placement.analysis.along(load.operands[0], axes.index(axis)).step
            for load, axes in reads.loads
            if axis in axes
        ]
        return all(step in (0, 1, -1) for step in steps)

    def emit(self, operation: Operation) -> None:
        """One scan over its whole block."""
        self.evaluator.reset()
        self._outer(operation, (), operation.operands[0].type.shape)

    def _outer(self, operation: Operation, indices: Indices, shape: tuple[int, ...]) -> None:
        """Loops over all axes but the scanned one."""
        place = len(indices)
        axis = integer(operation, "axis")
        if place == len(shape):
            self._scan(operation, indices, axis)
            return
        builder = self.builder
        if place == axis:
            self._outer(operation, (*indices, LaneIndex(builder.integer(0))), shape)
            return
        lanes = self.lanes if place == len(shape) - 1 and shape[place] % self.lanes == 0 else 1
        with builder.loop(builder.integer(0), builder.integer(shape[place]), lanes) as loop:
            with self.evaluator.scope(loop.guard, loop.index):
                self._outer(operation, (*indices, LaneIndex(loop.index, lanes)), shape)
            loop.next([])

    def _scan(self, operation: Operation, indices: Indices, axis: int) -> None:
        """Along the axis: the first element as it is, then one combination after the other."""
        builder = self.builder
        extent = operation.operands[0].type.shape[axis]
        reverse = bool(operation.attributes["reverse"])
        inside = gcd(self.lanes, extent) if self.is_vectorised(operation) else 1

        def at(position: LLVMValue) -> Indices:
            where = builder.subtract(builder.integer(extent - inside), position) if reverse else position
            return (*indices[:axis], LaneIndex(where, inside), *indices[axis + 1 :])

        if inside > 1:
            self._vectors(operation, at, inside)
            return
        lanes = max(index.lanes for index in indices)
        region = operation.regions[0]
        first = at(builder.integer(0))
        values = [self.evaluator.vector(operand, first, lanes) for operand in operation.operands]
        self._write(operation, first, values)
        with builder.loop(builder.integer(1), builder.integer(extent), 1, values) as loop:
            with self.evaluator.scope(loop.guard, loop.index, *loop.values):
                here = at(loop.index)
                for index in here:
                    self.evaluator.know(index.base)
                elements = [self.evaluator.vector(operand, here, lanes) for operand in operation.operands]
                combined = inline_region(self.evaluator, region, [*loop.values, *elements])
                self._write(operation, here, combined)
            loop.next(combined)

    def _vectors(self, operation: Operation, at: Callable[[LLVMValue], Indices], lanes: int) -> None:
        """Vectors along the axis: each is scanned by itself, and combined with the result before it."""
        builder, region, (operand,) = self.builder, operation.regions[0], operation.operands
        end = 0 if operation.attributes["reverse"] else lanes - 1  # the lane that has all of a vector
        first = at(builder.integer(0))
        value = self._scanned(operation, self.evaluator.vector(operand, first, lanes))
        self._write(operation, first, [value])
        extent, start = operand.type.shape[-1], [builder.extract(value, end)]
        with builder.loop(builder.integer(lanes), builder.integer(extent), lanes, start) as loop:
            with self.evaluator.scope(loop.guard, loop.index, *loop.values):
                here = at(loop.index)
                self.evaluator.know(here[-1].base)
                value = self._scanned(operation, self.evaluator.vector(operand, here, lanes))
                (before,) = loop.values
                following = inline_region(self.evaluator, region, [before, builder.extract(value, end)])
                value = inline_region(self.evaluator, region, [builder.splat(before, lanes), value])[0]
                self._write(operation, here, [value])
            loop.next(following)

    def _scanned(self, operation: Operation, value: LLVMValue) -> LLVMValue:
        """The scan of one vector."""
        builder, lanes = self.builder, value.lanes
        numbers, reverse = builder.lane_numbers(lanes, "i32"), bool(operation.attributes["reverse"])
        distance = 1
        while distance < lanes:
            if reverse:
                order = [min(lane + distance, lanes - 1) for lane in range(lanes)]
                limit = builder.splat(builder.integer(lanes - distance, "i32"), lanes)
                reached = builder.compare("slt", numbers, limit)
            else:
                order = [max(lane - distance, 0) for lane in range(lanes)]
                reached = builder.compare("sge", numbers, builder.splat(builder.integer(distance, "i32"), lanes))
            earlier = builder.shuffle(value, None, order)
            (combined,) = inline_region(self.evaluator, operation.regions[0], [earlier, value])
            value = builder.select(reached, combined, value)
            distance *= 2
        return value

    def _write(self, operation: Operation, indices: Indices, values: list[LLVMValue]) -> None:
        for result, value in zip(operation.results, values, strict=True):
            self.evaluator.write(self.storage[result], indices, value)
