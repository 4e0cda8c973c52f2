"""Scans: sequential along their axis, vectorised along the last axis when that is another one.

Every combination is rounded to its type, as the combine region says.
"""

from __future__ import annotations

from tilewright.ir.core import Operation, SSAValue
from tilewright.targets.cpu.attributes import integer
from tilewright.targets.cpu.evaluate import Evaluator, Indices, LaneIndex
from tilewright.targets.cpu.reduce import inline_region
from tilewright.targets.cpu.storage import Storage
from tilewright.targets.cpu.target import CPUTarget
from tilewright.targets.llvm.builder import LLVMValue


class ScanEmitter:
    """Emits `scan` operations into the buffers of their results."""

    def __init__(self, evaluator: Evaluator, storage: dict[SSAValue, Storage], target: CPUTarget) -> None:
        self.evaluator = evaluator
        self.builder = evaluator.builder
        self.storage = storage
        self.lanes = target.vector_bits // 32

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

        def at(position: LLVMValue) -> Indices:
            where = builder.subtract(builder.integer(extent - 1), position) if reverse else position
            return (*indices[:axis], LaneIndex(where), *indices[axis + 1 :])

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

    def _write(self, operation: Operation, indices: Indices, values: list[LLVMValue]) -> None:
        for result, value in zip(operation.results, values, strict=True):
            self.evaluator.write(self.storage[result], indices, value)
