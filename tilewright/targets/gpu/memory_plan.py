"""The plan of a kernel's shared memory: scratch, tiles of products, and the stages of pipelined loops."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.ir.core import Function, Operation, Region, SSAValue
from tilewright.targets.gpu.layouts import Assignment
from tilewright.targets.gpu.pipelining import Pipeline, aligned, plan_pipelines, streams_of, tile_sizes
from tilewright.targets.gpu.scratch import SIZES, Size, scratch_sizes
from tilewright.targets.gpu.shared_memory import Allocation, allocate


@dataclass(frozen=True)
class SharedMemory:
    """Where everything lies: scratch, then `tiles` of products (by conversion), then the loops' stages from `ring` on.

    Tiles that are not read at the same time may share memory. The stages of all loops are in one place, for none runs
    inside another. The scratch of what comes after the last of them lies there too.
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
    _, apart = place_tiles(function, tile_sizes(assignment, loops))
    if loops:
        whole = allocate(function, early(loops, [])).size
        loops = plan_pipelines(assignment, stages, limit - whole - apart)
    copied = [conversion for stream in streams_of(loops) for conversion in stream.conversions]
    before = early(loops, copied)
    start = aligned(allocate(function, before).size)
    places, tile_bytes = place_tiles(function, tile_sizes(assignment, loops))
    tiles, cursor = {operation: start + place for operation, place in places.items()}, start + tile_bytes
    rings = {operation: (cursor, cursor + plan.size) for operation, plan in loops.items()}
    scratch = allocate(function, scratch_sizes(assignment, sizes, copied), rings=rings, early=frozenset(before))
    size = max([scratch.size, cursor if tiles else 0, *(end for _, end in rings.values())])
    return SharedMemory(scratch, tiles, cursor, loops, size)


def place_tiles(function: Function, sizes: Mapping[Operation, int]) -> tuple[dict[Operation, int], int]:
    """Byte offsets of tiles, by the conversions that write them, and the bytes of all.

    A tile takes the first place that no tile has which is read while it is: from its conversion to its last product, or
    to the end of the loop with that product that it comes from outside of.  Before a conversion writes its tile, all
    warps wait for the products under way (`warpgroup.store_tile`), so the memory of a tile that no later product reads
    may be written.
    """
    spans = _Spans(function)
    placed: list[tuple[range, range]] = []  # when a tile is read, and its bytes
    offsets = {}
    for operation, size in sizes.items():
        span = spans.of(operation)
        others = sorted(
            (bytes_.start, bytes_.stop) for when, bytes_ in placed if when.start < span.stop and span.start < when.stop
        )
        place = 0
        for start, stop in others:
            if place + size <= start:
                break
            place = max(place, stop)
        offsets[operation] = place
        placed.append((span, range(place, place + size)))
    return offsets, max((bytes_.stop for _, bytes_ in placed), default=0)


class _Spans:
    """From where to where in a kernel's order the result of an operation is needed."""

    def __init__(self, function: Function) -> None:
        self._first: dict[Operation, int] = {}
        self._last: dict[Operation, int] = {}
        self._region: dict[Operation, Region] = {}
        self._parent: dict[Region, Operation] = {}
        self._users: dict[SSAValue, list[Operation]] = {}
        self._visit(function.region)

    def _visit(self, region: Region) -> None:
        for operation in region.operations:
            self._first[operation] = len(self._first)
            self._region[operation] = region
            for value in operation.operands:
                self._users.setdefault(value, []).append(operation)
            for inner in operation.regions:
                self._parent[inner] = operation
                self._visit(inner)
            self._last[operation] = len(self._first) - 1

    def of(self, operation: Operation) -> range:
        """The operations during which the result must stay."""
        first, users = self._first[operation], self._users.get(operation.result, ())
        ends = [self._last[self._in_region_of(user, operation)] for user in users]
        return range(first, max(ends, default=first) + 1)

    def _in_region_of(self, user: Operation, operation: Operation) -> Operation:
        """A user, or what contains it in the operation's own region."""
        while self._region[user] is not self._region[operation]:
            user = self._parent[self._region[user]]
        return user


def after_loops(function: Function, loops: Mapping[Operation, Pipeline]) -> set[Operation]:
    """The operations that run after all of the loops; none where a loop is inside of another operation."""
    body = function.region.operations
    places = [body.index(loop) if loop in body else len(body) for loop in loops]
    return {inner for operation in body[max(places, default=len(body)) + 1 :] for inner in operation.walk()}
