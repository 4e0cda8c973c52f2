"""The function of a product of 8-bit integers whose right operand lies in rows or columns.

Each panel of it is copied with the steps of the depth in groups (`dot_groups.py`), behind a line that the sums begin
with; what follows is a product of 32-bit numbers over a depth of groups.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.targets.cpu.dot_group_pack import GroupPacker
from tilewright.targets.cpu.dot_grouped_function import GroupedDepth
from tilewright.targets.cpu.dot_groups import GroupSums, packed_sums
from tilewright.targets.cpu.dot_plan import DotPlan
from tilewright.targets.cpu.target import CPUTarget
from tilewright.targets.llvm.builder import LLVMValue, Module


def emit_packed_function(module: Module, target: CPUTarget, plan: DotPlan) -> None:
    """Add the function `plan.name` to the module; its parameters are those of `dot_function.emit_function`."""
    sums = packed_sums(target, plan.left, plan.right)
    assert sums is not None
    _PackedFunction(module, target, plan, sums).emit()


class _PackedFunction(GroupedDepth):
    """The depth is in groups; strides of both operands are in elements."""

    def __init__(self, module: Module, target: CPUTarget, plan: DotPlan, sums: GroupSums) -> None:
        grouped = replace(plan, shape=sums.in_groups(plan.shape), layout="columns")
        self.whole_groups = not plan.limits[2] and plan.shape.depth % sums.group == 0
        super().__init__(module, target, grouped, plan.name, sums)
        builder = self.builder
        self.in_rows = plan.layout == "rows"
        self.steps = self.depth if plan.limits[2] else builder.integer(plan.shape.depth)
        if plan.limits[2]:
            self.depth = builder.binary("udiv", builder.add(self.steps, sums.group - 1), builder.integer(sums.group))
        self.right_copy = builder.gep(self.right_copy, self.blocking.width, self.element)
        self.elements = self.steps  # of the run of the depth that is being written

    def _elements(self, start: LLVMValue, length: LLVMValue) -> LLVMValue:
        builder, group = self.builder, self.sums_of_groups.group
        whole = builder.multiply(length, group)
        if self.whole_groups:
            return whole
        return builder.minimum(whole, builder.subtract(self.steps, builder.multiply(start, group)))

    def _depth_run(self, start: LLVMValue, length: LLVMValue, accumulate: LLVMValue, rows: range) -> None:
        self.elements = self._elements(start, length)
        super()._depth_run(start, length, accumulate, rows)

    def _can_read_left(self) -> bool:
        return self.whole_groups and super()._can_read_left()

    def _can_read_right(self) -> bool:
        return False

    def _prepare_left(self, start: LLVMValue, length: LLVMValue) -> LLVMValue:
        if not self._left_is_transposed():
            return super()._prepare_left(start, length)
        builder, sums = self.builder, self.sums_of_groups
        first = builder.multiply(builder.multiply(start, sums.group), self.left_depth_stride)
        packer = GroupPacker(builder, sums, self.plan.left.is_signed, self.blocking.lanes, sums.flips)
        with builder.loop(builder.integer(0), self.rows, packer.lanes, hint="turned") as loop:
            packer.interleave(
                builder.gep(self.left, builder.add(first, loop.index), "i8"),
                self.left_depth_stride,
                builder.gep(self.scratch, loop.index, self.element),
                self.blocking.transposed_stride,
                self.elements,
                builder.subtract(self.rows, loop.index),
            )
        return self.scratch

    def _left_strides(self) -> tuple[int | None, int]:
        return (1, self.blocking.transposed_stride) if self._left_is_transposed() else super()._left_strides()

    def _right_place(self, column: LLVMValue, start: LLVMValue) -> LLVMValue:
        builder = self.builder
        step, across = builder.multiply(start, self.sums_of_groups.group), column
        if self.in_rows:
            step = builder.multiply(step, self.right_stride)
        else:
            across = builder.multiply(column, self.right_stride)
        return builder.gep(self.right, builder.add(step, across), "i8")

    def _copy_right(self, source: LLVMValue, available: LLVMValue, length: LLVMValue, width: int) -> None:
        builder, blocking, sums = self.builder, self.blocking, self.sums_of_groups
        packer = GroupPacker(builder, sums, self.plan.right.is_signed, blocking.lanes)
        for first in range(0, width, blocking.lanes):
            target = builder.gep(self.right_copy, first, self.element)
            left = builder.subtract(available, first)
            if self.in_rows:
                place = builder.gep(source, first, "i8")
                columns = None if self._is_whole(width) else left
                total = packer.interleave(place, self.right_stride, target, blocking.width, self.elements, columns)
            else:
                place = builder.gep(source, builder.multiply(self.right_stride, first), "i8")
                total = packer.transpose(place, self.right_stride, target, blocking.width, self.elements, left)
            if sums.flips:
                begin = builder.subtract(builder.zero(total.type), total)
                builder.store(begin, builder.gep(target, -blocking.width, self.element), align=4)
