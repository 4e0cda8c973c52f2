"""What the lowering of kernels for NVIDIA's GPUs knows besides registers of values: tiles, and products under way."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tilewright.ir.core import Operation, SSAValue
from tilewright.runtime.gpu_program import TensorMapUse
from tilewright.targets.gpu.layouts import Assignment
from tilewright.targets.gpu.lowering import KernelLowering, Rule
from tilewright.targets.gpu.shared_memory import Allocation
from tilewright.targets.llvm.builder import LLVMValue, Module
from tilewright.targets.nvidia.explicit.ptx import call
from tilewright.targets.nvidia.explicit.views import SharedView
from tilewright.targets.nvidia.intrinsics import NvidiaIntrinsics
from tilewright.targets.nvidia.target import NvidiaTarget

WAIT_ATTRIBUTE = "nvidia.waits_at_entry"  # of a function: it is started early, and waits for the kernels ahead of it


class NvidiaLowering(KernelLowering):
    """The lowering of one function.

    `views` are tiles in shared memory, `filled` the `shared_tile` operations of those that copies fill, and
    `left_operands` the registers that each group of wgmma under way reads as operand A, the oldest group first.
    """

    target: NvidiaTarget

    def __init__(
        self,
        assignment: Assignment,
        target: NvidiaTarget,
        module: Module,
        symbol: str,
        allocation: Allocation,
        warps: int,
        rules: Mapping[str, Rule],
        *,
        fuse: bool = True,
    ) -> None:
        self.tensor_maps: list[TensorMapUse] = []
        self.views: dict[SSAValue, SharedView] = {}
        self.filled: frozenset[Operation] = frozenset()
        self.left_operands: list[list[LLVMValue]] = []
        intrinsics = NvidiaIntrinsics(target)
        super().__init__(assignment, target, intrinsics, module, symbol, allocation, warps, rules, fuse=fuse)

    @property
    def starts_early(self) -> bool:
        waits = self.function.attributes.get(WAIT_ATTRIBUTE)
        return bool(waits) or any(operation.opcode == "grid_wait" for operation in self.function.walk())

    def enter(self) -> None:
        """Kernels that are started early let the next one start, and wait for those ahead of them."""
        if self.function.attributes.get(WAIT_ATTRIBUTE):
            for action in ("launch.dependents", "wait"):
                call(self.builder, f"griddepcontrol.{action}")


NvidiaRule = Callable[[NvidiaLowering, Operation], None]
