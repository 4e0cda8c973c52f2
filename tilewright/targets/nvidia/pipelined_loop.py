"""Pipelined loops by cp.async; products by warpgroups read the tiles, others by ldmatrix where it fits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from tilewright.ir.core import Operation
from tilewright.layout import LinearLayout, MatrixAccess, matrix_access
from tilewright.targets.gpu.exchange import unpack
from tilewright.targets.gpu.lowering import KernelLowering, Rule
from tilewright.targets.gpu.pipelined_loop import Load, PipelinedLoop, Place
from tilewright.targets.gpu.pipelining import Pipeline, Reader
from tilewright.targets.gpu.tiles import is_tile
from tilewright.targets.gpu.transfer import element_bits
from tilewright.targets.llvm.builder import LLVMValue
from tilewright.targets.nvidia.intrinsics import assembly
from tilewright.targets.nvidia.lowering import NvidiaLowering
from tilewright.targets.nvidia.warpgroup import tile_view

_LARGEST_COPY = 16  # bytes; copies of this size leave the L1 cache out


class NvidiaPipelinedLoop(PipelinedLoop):
    """One loop whose products may be under way from one iteration to the next (`Pipeline.late`)."""

    lowering: NvidiaLowering

    def iteration(self, index: LLVMValue, carried: Sequence[Sequence[LLVMValue]]) -> list[list[LLVMValue]]:
        """The body, with accumulators that are still under way from the iteration before and at the end.

        All older products have retired when it ends, so that the stage that they read may be filled.
        """
        if not self.plan.late:
            return super().iteration(index, carried)
        lowering, yielded = self.lowering, self.body.terminator.operands
        for value, registers in zip(self.body.arguments, [[index], *carried], strict=True):
            lowering.define(value, registers)
        lowering.flight.carry({self.body.arguments[1 + p]: carried[p] for p in self.plan.flying})
        lowering.operations(self.body.operations[:-1])
        for position, value in enumerate(yielded):
            if position not in self.plan.flying:
                lowering.land_value(value)
        lowering.land(keep=lowering.flight.lasting())
        lowering.flight.clear()
        return [lowering.registers(value) for value in yielded]

    def finish(self, results: Sequence[Sequence[LLVMValue]]) -> None:
        if self.plan.late:
            carried = {self.operation.results[p]: results[p] for p in self.plan.flying}
            self.lowering.flight.carry(carried)
            self.lowering.land()

    # Copies --------------------------------------------------------------------------------------

    def wait(self, outstanding: int) -> None:
        # No proxy fence: tiles have no other writers than copies, whose end each thread waits for before the barrier.
        assembly(self.builder, f"cp.async.wait_group {outstanding};", "", [], [])
        self.lowering.synchronize()

    def commit(self) -> None:
        assembly(self.builder, "cp.async.commit_group;", "", [], [])

    def end_copies(self) -> None:
        assembly(self.builder, "cp.async.wait_all;", "", [], [])

    def start_copy(self, to: Place, source: LLVMValue, count: int, owner: LLVMValue | None, inside: LLVMValue) -> None:
        target, apart = to
        cache = "cg" if count == _LARGEST_COPY else "ca"
        place = f"[$0+{apart}]" if apart else "[$0]"
        text = f"cp.async.{cache}.shared.global {place}, [$1], {count}, $2;"  # $2: zeros in place of what is there
        outside = self.builder.binary("xor", inside, LLVMValue("i1", "true"))
        arguments, constraints = [self.lowering.shared_pointer(target), source, outside], "r,l,b"
        if owner is not None:
            text, constraints = f"@$3 {text}", f"{constraints},b"
            arguments.append(owner)
        assembly(self.builder, text, constraints, arguments, [])

    # Reads ---------------------------------------------------------------------------------------

    def read_whole(self, reader: Reader, layout: LinearLayout, base: LLVMValue) -> None:
        result = reader.operation.result
        if is_tile(layout):
            self.lowering.views[result] = tile_view(base, result.type, layout)
            return
        matrices = matrix_access(layout, reader.view, element_bits(result))
        if matrices is not None:
            self.define(reader, *self.matrices(matrices, base))
        else:
            super().read_whole(reader, layout, base)

    def matrices(self, access: MatrixAccess, base: LLVMValue) -> tuple[Load, list[tuple[int, ...]]]:
        """By ldmatrix: a function that emits instruction number i, and the registers that each gives."""
        lowering = self.lowering
        thread = self.thread_place(access.threads[: lowering.lane_bits], access.threads[lowering.lane_bits :], 2)
        suffix = f"x{access.matrices}{'.trans' if access.transposed else ''}"

        def load(number: int) -> list[LLVMValue]:
            pointer = self.pointer(base, thread, access.instructions[number].offset * 2)
            words = self.load_matrices(pointer, suffix, access.matrices)
            return [part for word in words for part in unpack(lowering, word, 2, 16)]

        groups = [
            tuple(register + member for register in instruction.registers for member in range(2))
            for instruction in access.instructions
        ]
        return load, groups

    def load_matrices(self, pointer: LLVMValue, suffix: str, count: int) -> list[LLVMValue]:
        listed = ", ".join(f"${number}" for number in range(count))
        text = f"ldmatrix.sync.aligned.m8n8.{suffix}.shared.b16 {{{listed}}}, [${count}];"
        constraints = ",".join(["=r"] * count + ["r"])
        return assembly(self.builder, text, constraints, [pointer], ["i32"] * count)


def pipelined_rule(plan: Pipeline, base: int) -> Rule:
    """The rule for the loop of a plan, whose tiles begin at byte `base` of shared memory."""

    def emit(lowering: KernelLowering, operation: Operation) -> None:
        NvidiaPipelinedLoop(cast(NvidiaLowering, lowering), operation, plan, base).emit()

    return emit
