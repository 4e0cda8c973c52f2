"""Copies of whole tiles between global and shared memory by the copy engine (TMA)."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.targets.llvm.builder import LLVMBuilder, LLVMValue
from tilewright.targets.nvidia.explicit.ptx import call, cluster_pointer, pointer

# Policies as the hardware encodes them: all of the accessed lines in this class.
EVICTION = {"evict_first": 0x12F0000000000000, "evict_last": 0x14F0000000000000}
TMA_REDUCTIONS = ("add", "min", "max", "and", "or", "xor")


def prefetch_map(builder: LLVMBuilder, tensor_map: LLVMValue) -> None:
    """Bring a tensor map (a pointer to the kernel's parameter) near before its first use."""
    call(builder, "prefetch.tensormap.p0", tensor_map)


def prefetch(builder: LLVMBuilder, address: LLVMValue, size: LLVMValue) -> None:
    """Bring `size` bytes (i32, a multiple of 16) of global memory to the L2 cache; nobody is told when."""
    policy, hinted = builder.integer(0, "i64"), builder.constant("i1", False)
    call(builder, "cp.async.bulk.prefetch.L2", address, size, policy, hinted)


def prefetch_box(builder: LLVMBuilder, tensor_map: LLVMValue, coordinates: Sequence[LLVMValue]) -> None:
    """Bring the map's box at `coordinates` (i32, slowest first) to the L2 cache; nobody is told when."""
    name = f"cp.async.bulk.tensor.prefetch.tile.{len(coordinates)}d"
    call(builder, name, tensor_map, *reversed(coordinates), _policy(builder, ""), builder.constant("i1", False))


def load(
    builder: LLVMBuilder,
    tensor_map: LLVMValue,
    coordinates: Sequence[LLVMValue],
    place: LLVMValue,
    barrier: LLVMValue,
    multicast: LLVMValue | None = None,
    eviction: str = "",
) -> None:
    """Copy the map's box at `coordinates` (i32, slowest first) to `place`; its bytes complete on `barrier`.

    With `multicast` (i16, one bit a CTA of the cluster) every named CTA gets the box at the same place and its own
    barrier is told.  Elements outside the tensor are filled.
    """
    flags = [builder.constant("i1", multicast is not None), builder.constant("i1", bool(eviction))]
    call(
        builder,
        f"cp.async.bulk.tensor.g2s.tile.{len(coordinates)}d",
        cluster_pointer(builder, place),
        pointer(builder, barrier),
        tensor_map,
        *reversed(coordinates),
        multicast or builder.integer(0, "i16"),
        _policy(builder, eviction),
        *flags,
        builder.integer(0, "i32"),
    )


def store(
    builder: LLVMBuilder, tensor_map: LLVMValue, coordinates: Sequence[LLVMValue], place: LLVMValue, kind: str = "",
    eviction: str = "",
) -> None:  # fmt: skip
    """Copy the box at `place` to the tensor, or combine it with what is there (`kind` of `TMA_REDUCTIONS`).

    Elements outside the tensor are left out.  The copy belongs to the group that the next `commit` closes.
    """
    form = f"cp.async.bulk.tensor.reduce.{kind}.tile" if kind else "cp.async.bulk.tensor.s2g.tile"
    call(
        builder,
        f"{form}.{len(coordinates)}d",
        pointer(builder, place),
        tensor_map,
        *reversed(coordinates),
        _policy(builder, eviction),
        builder.constant("i1", bool(eviction)),
    )


def commit(builder: LLVMBuilder) -> None:
    """Close a group of stores of this thread."""
    call(builder, "cp.async.bulk.commit.group")


def wait(builder: LLVMBuilder, outstanding: int, read: bool) -> None:
    """Wait until at most `outstanding` newer groups of this thread go on; with `read`, until they only write."""
    call(builder, f"cp.async.bulk.wait.group{'.read' if read else ''}", builder.integer(outstanding, "i32"))


def _policy(builder: LLVMBuilder, eviction: str) -> LLVMValue:
    return builder.integer(EVICTION[eviction] if eviction else 0, "i64")
