"""The plan of a kernel's shared memory: scratch, tiles of products, and the stages of loops that copy ahead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.ir.core import Operation
from tilewright.targets.gpu.layouts import Assignment
from tilewright.targets.gpu.pipelining import Pipeline, aligned, plan_pipelines, streams_of, tile_sizes
from tilewright.targets.gpu.scratch import SIZES, Size, scratch_sizes
from tilewright.targets.gpu.shared_memory import Allocation, allocate


@dataclass(frozen=True)
class SharedMemory:
    """Where everything lies: scratch, then `tiles` of products (by conversion), then the loops' stages from `ring` on.

    The stages of all loops are in one place, for none runs inside another.
    """

    scratch: Allocation
    tiles: Mapping[Operation, int]
    ring: int
    loops: Mapping[Operation, Pipeline]
    size: int


def plan_memory(assignment: Assignment, stages: int, limit: int, sizes: Mapping[str, Size] = SIZES) -> SharedMemory:
    """Shared memory of a kernel; loops copy ahead as far as `limit` bytes allow.

    `sizes` tell the scratch of the target's operations.
    """
    function = assignment.function
    whole = allocate(function, scratch_sizes(assignment, sizes)).size
    loops = plan_pipelines(assignment, stages, limit - whole)
    apart = sum(tile_sizes(assignment, loops).values())
    if apart:
        loops = plan_pipelines(assignment, stages, limit - whole - apart)
    copied = [stream.conversion for stream in streams_of(loops)]
    scratch = allocate(function, scratch_sizes(assignment, sizes, copied))
    cursor, tiles = aligned(scratch.size), {}
    for operation, size in tile_sizes(assignment, loops).items():
        tiles[operation] = cursor
        cursor += size
    size = max([cursor if tiles else scratch.size, *(cursor + plan.size for plan in loops.values())])
    return SharedMemory(scratch, tiles, cursor, loops, size)
