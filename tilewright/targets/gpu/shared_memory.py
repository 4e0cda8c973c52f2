"""Shared memory: addresses of a kernel's buffers and of its operations' scratch, and the barriers between them.

Scratch belongs to one operation: what one thread hands to another in a conversion, a reduction or a scan.  Each such
operation writes its scratch, has a barrier, and reads it.  Memory that another thread may still be reading must not be
written again without a barrier between: `barriers` are the operations that begin with one.  Scratch goes round in a
ring, so that an operation rarely meets what the one before it read, and most need no barrier but their own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from tilewright.ir.core import Function, Operation, Region

SHARED_ALIGNMENT = 16
_RING_BYTES = 16 << 10  # scratch of this size may go round
_TWICE_BYTES = 24 << 10  # two operations of up to this size get places of their own; larger ones share one

Interval = tuple[int, int]


@dataclass(frozen=True)
class Allocation:
    """Byte offsets into the CTA's dynamic shared memory, and the bytes that it takes in all.

    `scratch` has the offset of each operation that needs scratch, `barriers` the operations that begin with a barrier
    because others may still read their place.
    """

    size: int
    scratch: Mapping[Operation, int]
    barriers: frozenset[Operation]


def allocate(
    function: Function,
    sizes: Mapping[Operation, int],
    base: int = 0,
    rings: Mapping[Operation, Interval] | None = None,
    early: Collection[Operation] | None = None,
) -> Allocation:
    """Places for the scratch of every operation in `sizes` (bytes), from `base` on.

    `rings` are the places that loops read in; operations that are not `early` come after all of them, and begin there.
    """
    rings = rings or {}
    parts = [{operation: size for operation, size in sizes.items() if early is None or operation in early}]
    parts.append({operation: size for operation, size in sizes.items() if operation not in parts[0]})
    start = min((start for start, _ in rings.values()), default=0)
    scratch, ends = dict[Operation, int](), list[int]()
    for part, first in zip(parts, (base, start), strict=True):
        places, end = _ring_offsets(function, part, first)
        scratch |= places
        ends.append(end)
    intervals = {operation: (place, place + sizes[operation]) for operation, place in scratch.items()}
    return Allocation(max(base, *ends), scratch, frozenset(_Hazards(intervals, rings).find(function.region)))


def _ring_offsets(function: Function, sizes: Mapping[Operation, int], base: int) -> tuple[dict[Operation, int], int]:
    """The places of operations one after the other in a ring from `base` on, and where they end."""
    largest = max(sizes.values(), default=0)
    ring = max(2 * largest if largest <= _TWICE_BYTES else largest, _RING_BYTES)
    scratch: dict[Operation, int] = {}
    cursor = end = 0
    for operation in function.walk():
        size = sizes.get(operation, 0)
        if not size:
            continue
        if cursor + size > ring:
            cursor = 0
        scratch[operation] = base + cursor
        end = max(end, cursor + size)
        cursor += -(-size // SHARED_ALIGNMENT) * SHARED_ALIGNMENT
    return scratch, base + end if scratch else 0


class _Hazards:
    """Follows the kernel's order with the places that may still be read since the last barrier."""

    def __init__(self, places: Mapping[Operation, Interval], rings: Mapping[Operation, Interval]) -> None:
        self.places, self.rings = places, rings
        self.barriers: dict[Operation, None] = {}

    def find(self, region: Region) -> dict[Operation, None]:
        self.region(region, frozenset())
        return self.barriers

    def region(self, region: Region, reading: frozenset[Interval]) -> frozenset[Interval]:
        """The places that are being read after a region, given those before it."""
        for operation in region.operations:
            reading = self.operation(operation, reading)
        return reading

    def operation(self, operation: Operation, reading: frozenset[Interval]) -> frozenset[Interval]:
        if operation.opcode in ("barrier", "group_sync"):
            return frozenset()
        place = self.places.get(operation)
        if place is not None:
            if any(start < place[1] and place[0] < end for start, end in reading):
                self.barriers[operation] = None
            return frozenset([place])  # its own barrier, between writing and reading, ends what was before
        if not operation.regions or operation.opcode in ("reduce", "scan", "map"):
            return reading
        if operation.opcode in ("for", "while"):
            after = self.loop(operation, reading)
            return after | {self.rings[operation]} if operation in self.rings else after
        return frozenset().union(*(self.region(region, reading) for region in operation.regions))

    def loop(self, operation: Operation, reading: frozenset[Interval]) -> frozenset[Interval]:
        """The end of a round comes before the beginning of the next one."""
        while True:
            after = reading
            for region in operation.regions:
                after = self.region(region, after)
            together = reading | after
            if together == reading:
                return together
            reading = together
