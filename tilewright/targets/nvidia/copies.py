"""Copies by cp.async, the waits for them, and tiles in shared memory in kernels whose products the compiler schedules.

Products by warpgroups read the tiles, others by ldmatrix where it fits.
"""

from __future__ import annotations

from tilewright.ir.core import Operation, SSAValue
from tilewright.ir.types import SharedType
from tilewright.layout import MatrixAccess, matrix_access
from tilewright.targets.gpu.exchange import unpack
from tilewright.targets.gpu.tile_access import Load, Place, TileCopy, TileRead
from tilewright.targets.gpu.tiles import PLACE_ATTRIBUTE
from tilewright.targets.gpu.transfer import element_bits
from tilewright.targets.llvm.builder import LLVMValue
from tilewright.targets.nvidia.explicit import matrix_moves, views
from tilewright.targets.nvidia.explicit.barriers import fence_async
from tilewright.targets.nvidia.intrinsics import assembly
from tilewright.targets.nvidia.lowering import NvidiaLowering, NvidiaRule

_LARGEST_COPY = 16  # bytes; copies of this size leave the L1 cache out


# Tiles -------------------------------------------------------------------------------------------


def _allocate(lowering: NvidiaLowering, operation: Operation) -> None:
    """Its place was planned (`gpu/memory_plan.py`)."""


def _index(lowering: NvidiaLowering, operation: Operation) -> None:
    """Where a stage begins, computed once for all tiles of it."""
    memory, stage = operation.operands
    kind, builder = operation.result.type.handle, lowering.builder
    assert isinstance(kind, SharedType)
    start = builder.multiply(lowering.scalar(stage), lowering.i32(kind.bytes))
    lowering.define(operation.result, [builder.add(start, lowering.i32(_place(memory)))])


def _place(memory: SSAValue) -> int:
    """Where an allocation begins."""
    assert memory.definition is not None
    place = memory.definition.attributes[PLACE_ATTRIBUTE]
    assert isinstance(place, int)
    return place


def _tile(lowering: NvidiaLowering, operation: Operation) -> None:
    """Where a tile begins; of one that is filled, the copy computes it after the thread's own place in it."""
    (memory,), kind = operation.operands, operation.result.type.handle
    assert isinstance(kind, SharedType)
    if operation in lowering.filled:
        return
    start = lowering.i32(0)
    if memory.definition is not None and memory.definition.opcode == "shared_alloc":
        start = lowering.i32(_place(memory) + _offset(operation))
    else:
        start = lowering.builder.add(lowering.scalar(memory), lowering.i32(_offset(operation)))
    lowering.views[operation.result] = views.whole(start, kind.shape, kind.element, kind.swizzle)


def _offset(tile: Operation) -> int:
    offset = tile.attributes["offset"]
    assert isinstance(offset, int)
    return offset


def _transpose(lowering: NvidiaLowering, operation: Operation) -> None:
    (tile,) = operation.operands
    if tile in lowering.views:  # of one that is filled, copies know the layout
        lowering.views[operation.result] = lowering.views[tile].transpose()


def _store(lowering: NvidiaLowering, operation: Operation) -> None:
    tile, block = operation.operands
    view = lowering.views[tile]
    chosen = matrix_moves.plan(lowering.layout(block), block.type.shape, view, stored=True)
    values = dict(zip(lowering.numbers(block), lowering.registers(block), strict=True))
    threads = matrix_moves.Threads(lowering.group.lane, lowering.group.warp)
    matrix_moves.store(lowering.builder, chosen, view, threads, values)
    lowering.note(operation, f"{block.type} is stored to shared memory for a product")


def _fence_async(lowering: NvidiaLowering, operation: Operation) -> None:
    fence_async(lowering.builder)


def _synchronize(lowering: NvidiaLowering, operation: Operation) -> None:
    lowering.synchronize()


# Copies ------------------------------------------------------------------------------------------


class _Copy(TileCopy):
    def start(self, to: Place, source: LLVMValue, count: int, owner: LLVMValue | None, inside: LLVMValue) -> None:
        target, apart = to
        cache = "cg" if count == _LARGEST_COPY else "ca"
        place = f"[$0+{apart}]" if apart else "[$0]"
        text = f"cp.async.{cache}.shared.global {place}, [$1], {count}, $2;"  # $2: zeros in place of what is there
        outside = self.builder.inverse(inside)
        arguments, constraints = [self.lowering.shared_pointer(target), source, outside], "r,l,b"
        if owner is not None:
            text, constraints = f"@$3 {text}", f"{constraints},b"
            arguments.append(owner)
        assembly(self.builder, text, constraints, arguments, [])


def _copy(lowering: NvidiaLowering, operation: Operation) -> None:
    tile = filled_tile(operation)
    _Copy(lowering, operation).emit(lowering.scalar(tile.operands[0]), _offset(tile))


def filled_tile(copy: Operation) -> Operation:
    """The `shared_tile` that a copy fills."""
    tile = copy.operands[1].definition
    while tile is not None and tile.opcode != "shared_tile":
        tile = tile.operands[0].definition
    assert tile is not None
    return tile


def _commit(lowering: NvidiaLowering, operation: Operation) -> None:
    assembly(lowering.builder, "cp.async.commit_group;", "", [], [])


def _wait(lowering: NvidiaLowering, operation: Operation) -> None:
    # No proxy fence: tiles have no other writers than copies, whose end each thread waits for before the barrier.
    outstanding, whole = operation.attributes["outstanding"], operation.attributes["all"]
    text = "cp.async.wait_all;" if whole else f"cp.async.wait_group {outstanding};"
    assembly(lowering.builder, text, "", [], [])


# Reads -------------------------------------------------------------------------------------------


class _Read(TileRead):
    def read_whole(self, base: LLVMValue) -> None:
        matrices = matrix_access(self.layout, self.tile, element_bits(self.operation.result))
        if matrices is not None:
            self.define(*self.matrices(matrices, base))
        else:
            super().read_whole(base)

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


def _load(lowering: NvidiaLowering, operation: Operation) -> None:
    _Read(lowering, operation).emit(lowering.views[operation.operands[0]].start)


RULES: dict[str, NvidiaRule] = {
    "shared_alloc": _allocate,
    "shared_index": _index,
    "shared_tile": _tile,
    "shared_transpose": _transpose,
    "shared_store": _store,
    "shared_load": _load,
    "fence_async": _fence_async,
    "group_sync": _synchronize,
    "copy_async": _copy,
    "copy_commit": _commit,
    "copy_wait": _wait,
}
