"""The plan of a kernel's shared memory: scratch, tiles of products, and the stages of pipelined loops."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.ir.core import Function, Operation
from tilewright.targets.gpu.layouts import Assignment
from tilewright.targets.gpu.pipelining import Pipeline, aligned, plan_pipelines, streams_of, tile_sizes
from tilewright.targets.gpu.scratch import SIZES, Size, scratch_sizes
from tilewright.targets.gpu.shared_memory import Allocation, allocate


@dataclass(frozen=True)
class SharedMemory:
    """Where everything lies: scratch, then `tiles` of products (by conversion), then the loops' stages from `ring` on.

    The stages of all loops are in one place, for none runs inside another. The scratch of what comes after the last of
    them lies there too.
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

    def early(loops: Mapping[Operation, Pipeline], copied: list[Operation]) -> dict[Operation, int]:
        needed, late = scratch_sizes(assignment, sizes, copied), after_loops(function, loops)
        return {operation: size for operation, size in needed.items() if operation not in late}

    whole = allocate(function, scratch_sizes(assignment, sizes)).size
    loops = plan_pipelines(assignment, stages, limit - whole)
    apart = sum(tile_sizes(assignment, loops).values())
    if loops:
        whole = allocate(function, early(loops, [])).size
        loops = plan_pipelines(assignment, stages, limit - whole - apart)
    copied = [conversion for stream in streams_of(loops) for conversion in stream.conversions]
    before = early(loops, copied)
    cursor, tiles = aligned(allocate(function, before).size), {}
    for operation, size in tile_sizes(assignment, loops).items():
        tiles[operation] = cursor
        cursor += size
    rings = {operation: (cursor, cursor + plan.size) for operation, plan in loops.items()}
    scratch = allocate(function, scratch_sizes(assignment, sizes, copied), rings=rings, early=frozenset(before))
    size = max([scratch.size, cursor if tiles else 0, *(end for _, end in rings.values())])
    return SharedMemory(scratch, tiles, cursor, loops, size)


def after_loops(function: Function, loops: Mapping[Operation, Pipeline]) -> set[Operation]:
    """The operations that run after all of the loops; none where a loop is inside of another operation."""
    body = function.region.operations
    places = [body.index(loop) if loop in body else len(body) for loop in loops]
    return {inner for operation in body[max(places, default=len(body)) + 1 :] for inner in operation.walk()}
