"""The function of a product whose right operand has its depth in groups (`dot_groups.py`): one of 32-bit numbers."""

from __future__ import annotations

import math
from dataclasses import replace

from tilewright.targets.cpu.dot_function import CACHE_SETS, CROWDED, PAGE, DotFunction
from tilewright.targets.cpu.dot_groups import GroupSums, sums_of_layout
from tilewright.targets.cpu.dot_kernel import lines_of
from tilewright.targets.cpu.dot_pack import BlockCopy
from tilewright.targets.cpu.dot_plan import DotPlan
from tilewright.targets.cpu.target import CPUTarget
from tilewright.targets.llvm.builder import LLVMValue, Module


def emit_grouped_function(module: Module, target: CPUTarget, plan: DotPlan) -> None:
    """Add the function `plan.name` to the module; its parameters are those of `dot_function.emit_function`."""
    sums = sums_of_layout(target, plan.left, plan.right, plan.layout)
    assert sums is not None and not plan.limits[2], "panels in groups take no limit on the depth"
    _GroupedFunction(module, target, plan, sums).emit()


class GroupedDepth(DotFunction):
    """A function whose depth is in groups; so are the strides of copies."""

    def __init__(self, module: Module, target: CPUTarget, plan: DotPlan, name: str, sums: GroupSums) -> None:
        """`plan` has the depth in groups; `name` is the function's."""
        self.sums_of_groups = sums
        super().__init__(module, target, plan, name, sums)

    def _elements(self, start: LLVMValue, length: LLVMValue) -> LLVMValue:
        """Steps of the depth in `length` groups from group `start` on."""
        return self.builder.multiply(length, self.sums_of_groups.group)

    def _can_read_left(self) -> bool:
        """Where a row's groups are 32-bit numbers as they lie, at strides that are known."""
        plan, sums = self.plan, self.sums_of_groups
        stride = plan.left_row_stride
        if sums.left_bytes != plan.left.itemsize or sums.flips or plan.left_depth_stride != 1 or stride is None:
            return False
        if stride % sums.group or (plan.limits[0] and not self._left_can_overrun()):
            return False
        apart = stride * plan.left.itemsize
        distinct = CACHE_SETS // math.gcd(CACHE_SETS, lines_of(apart))
        return apart < PAGE and self.blocking.max_rows <= CROWDED * distinct

    def _prepare_left(self, start: LLVMValue, length: LLVMValue) -> LLVMValue:
        builder, sums = self.builder, self.sums_of_groups
        first = builder.multiply(start, sums.group)
        source = builder.gep(self.left, builder.multiply(first, self.left_depth_stride), self.left_type)
        if self.left_in_place:
            return source
        lanes = self.blocking.lanes * sums.group
        copy = BlockCopy(builder, self.left_type, self.plan.left.is_signed, sums.left, lanes, sums.flips)
        stride, elements = self.blocking.left_stride * sums.group, self._elements(start, length)
        if self.plan.left_depth_stride == 1:
            copy.copy_rows(source, self.left_row_stride, self.scratch, stride, self.rows, elements)
        else:
            strides = (self.left_row_stride, self.left_depth_stride)
            copy.copy_elements(source, strides, self.scratch, stride, self.rows, elements)
        return self.scratch

    def _left_strides(self) -> tuple[int | None, int]:
        if self.left_in_place:
            assert self.plan.left_row_stride is not None
            return self.plan.left_row_stride // self.sums_of_groups.group, 1
        return self.blocking.left_stride, 1


class _GroupedFunction(GroupedDepth):
    """The stride of the right operand, which lies in groups, is in groups too."""

    def __init__(self, module: Module, target: CPUTarget, plan: DotPlan, sums: GroupSums) -> None:
        known = None if plan.right_stride is None else plan.right_stride // sums.group
        grouped = replace(plan, shape=sums.in_groups(plan.shape), layout="panels", right_stride=known)
        super().__init__(module, target, grouped, plan.name, sums)
        self.right_type, self.right_itemsize = sums.right, sums.right_bytes
        if known is None:
            self.right_stride = self.builder.binary("udiv", self.right_stride, self.builder.integer(sums.group))

    def _can_read_right(self) -> bool:
        return True
