"""What the lowering of kernels for NVIDIA's GPUs knows besides the registers of values: products that are under way.

Products by warpgroups are issued and left under way (`in_flight.py`); operations that need their results wait for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tilewright.ir.core import Operation, Region, SSAValue
from tilewright.runtime.gpu_program import TensorMapUse
from tilewright.targets.gpu.layouts import Assignment
from tilewright.targets.gpu.lowering import KernelLowering, Rule
from tilewright.targets.gpu.shared_memory import Allocation
from tilewright.targets.llvm.builder import LLVMValue, Module
from tilewright.targets.nvidia.explicit.ptx import call
from tilewright.targets.nvidia.explicit.views import SharedView
from tilewright.targets.nvidia.in_flight import Flight
from tilewright.targets.nvidia.intrinsics import NvidiaIntrinsics
from tilewright.targets.nvidia.target import NvidiaTarget

WAIT_ATTRIBUTE = "nvidia.waits_at_entry"  # of a function: it is started early, and waits for the kernels ahead of it


class NvidiaLowering(KernelLowering):
    """The lowering of one function.

    `tiles` are the byte offsets of tiles that products read, by the conversions to them, `views` the blocks that are
    such tiles, `flight` the products that are under way.
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
        self.tiles: Mapping[Operation, int] = {}
        self.views: dict[SSAValue, SharedView] = {}
        intrinsics = NvidiaIntrinsics(target)
        super().__init__(assignment, target, intrinsics, module, symbol, allocation, warps, rules, fuse=fuse)
        self.flight = Flight(self.builder)

    @property
    def starts_early(self) -> bool:
        waits = self.function.attributes.get(WAIT_ATTRIBUTE)
        return bool(waits) or any(operation.opcode == "grid_wait" for operation in self.function.walk())

    def enter(self) -> None:
        """Kernels that are started early let the next one start, and wait for those ahead of them."""
        if self.function.attributes.get(WAIT_ATTRIBUTE):
            for action in ("launch.dependents", "wait"):
                call(self.builder, f"griddepcontrol.{action}")

    # Products that are under way -----------------------------------------------------------------

    def prepare(self, operation: Operation) -> None:
        """Products that an operation needs the result of, or all before control flow, have to be done first.

        The accumulator of a product is left to its rule.
        """
        if operation.regions and operation.opcode not in ("reduce", "scan"):
            self.land()
        for operand in operation.operands[: 2 if operation.opcode == "dot" else None]:
            self.land_value(operand)

    def land(self, keep: int = 0) -> None:
        """Wait until the products of all but the `keep` newest groups of wgmma are done."""
        for value, registers in self.flight.land(keep).items():
            self.define(value, registers)

    def land_value(self, value: SSAValue) -> None:
        """Wait for the product that a value is the result of, if it is still under way."""
        if self.flight.holds(value):
            self.land(self.flight.newer(value))

    def region(self, region: Region, arguments: Sequence[Sequence[LLVMValue]]) -> list[list[LLVMValue]]:
        under_way = len(self.flight.groups)
        self.region_body(region, arguments)
        if len(self.flight.groups) > under_way:
            self.land()
        return [self.registers(value) for value in region.terminator.operands]


NvidiaRule = Callable[[NvidiaLowering, Operation], None]
