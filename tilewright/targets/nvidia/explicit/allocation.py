"""Addresses of an explicit kernel's tiles and barriers in shared memory.

They live as long as the kernel: roles run at once, and what one of them still reads no order of the text tells.  An
author who knows says so, by allocating a tile in the memory of another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tilewright.ir.core import Function, Operation, Region
from tilewright.ir.types import SharedType
from tilewright.targets.gpu.shared_memory import SHARED_ALIGNMENT, Allocation, allocate
from tilewright.targets.nvidia.explicit import roles
from tilewright.targets.nvidia.explicit.barriers import BARRIER_BYTES
from tilewright.targets.nvidia.explicit.views import tile_bytes

_SWIZZLED_ALIGNMENT = 1024  # the pattern of a swizzle begins at such addresses
_TILE_ALIGNMENT = 128  # what TMA wants
_PRODUCT_ROWS = 64  # that wgmma reads of operand A, whatever the tile has


@dataclass(frozen=True)
class ExplicitAllocation(Allocation):
    """`tiles` are the offsets of tiles and barriers; `role_bytes` the scratch of one copy of each role, by number."""

    tiles: Mapping[Operation, int]
    role_bytes: Mapping[int, int]


def allocate_explicit(function: Function, sizes: Mapping[Operation, int]) -> ExplicitAllocation:
    """Places for everything: tiles, barriers, and the scratch (`sizes` in bytes) of each role's copies and of the rest.

    Roles run at once, so each has scratch of its own.
    """
    places = place(function)
    end = -(-places.size // SHARED_ALIGNMENT) * SHARED_ALIGNMENT
    parts, role_bytes = [], {}
    inside: set[Operation] = set()
    for operation in function.region.operations:
        if operation.opcode != "warp_roles":
            continue
        for role, region in zip(roles.table(operation), operation.regions, strict=True):
            own = _of_region(region, sizes)
            inside.update(own)
            part = allocate(Function(function.name, region, []), own, end)
            role_bytes[role.number] = -(-(part.size - end) // SHARED_ALIGNMENT) * SHARED_ALIGNMENT
            end += role.copies * role_bytes[role.number]
            parts.append(part)
    rest = {operation: size for operation, size in sizes.items() if operation not in inside}
    parts.append(allocate(function, rest, end) if rest else Allocation(end, {}, frozenset()))
    return ExplicitAllocation(
        size=parts[-1].size,
        scratch={operation: offset for part in parts for operation, offset in part.scratch.items()},
        barriers=frozenset(operation for part in parts for operation in part.barriers),
        tiles=places.offsets,
        role_bytes=role_bytes,
    )


def _of_region(region: Region, sizes: Mapping[Operation, int]) -> dict[Operation, int]:
    inner = (inner for operation in region.operations for inner in operation.walk())
    return {operation: sizes[operation] for operation in inner if operation in sizes}


@dataclass
class Places:
    """Byte offsets from the start of the CTA's shared memory, and the bytes in all."""

    offsets: dict[Operation, int] = field(default_factory=dict)
    size: int = 0

    def put(self, operation: Operation, size: int, alignment: int) -> None:
        start = -(-self.size // alignment) * alignment
        self.offsets[operation] = start
        self.size = start + size


def place(function: Function) -> Places:
    """Tiles in the order of their alignment, then barriers."""
    places = Places()
    tiles = [operation for operation in function.walk() if operation.opcode == "shared_alloc"]
    own = [operation for operation in tiles if not operation.operands]
    left = _left_operands(function)
    reach = 0
    for operation in sorted(own, key=lambda operation: not _tile(operation).swizzle):
        kind = _tile(operation)
        inside = [other for other in tiles if _memory_of(other) is operation]
        size = max(_bytes(_tile(other)) for other in inside)
        places.put(operation, size, _SWIZZLED_ALIGNMENT if kind.swizzle else _TILE_ALIGNMENT)
        if operation in left:
            reach = max(reach, *(places.offsets[operation] + _reach(_tile(other)) for other in inside))
    for operation in tiles:
        places.offsets[operation] = places.offsets[_memory_of(operation)]
    for operation in function.walk():
        if operation.opcode == "barrier_alloc":
            count = operation.attributes["count"]
            assert isinstance(count, int)
            places.put(operation, BARRIER_BYTES * count, BARRIER_BYTES)
    places.size = max(places.size, reach)
    return places


def _tile(operation: Operation) -> SharedType:
    kind = operation.result.type.handle
    assert isinstance(kind, SharedType)
    return kind


def _memory_of(operation: Operation) -> Operation:
    """The allocation whose memory a tile is in."""
    while operation.operands:
        definition = operation.operands[0].definition
        assert definition is not None
        operation = definition
    return operation


def _bytes(kind: SharedType) -> int:
    return tile_bytes(kind.shape, kind.element, kind.swizzle)


def _left_operands(function: Function) -> set[Operation]:
    """The allocations in whose memory operands A of products are."""
    found = set()
    for operation in function.walk():
        if operation.opcode == "wgmma" and operation.operands[0].type.is_handle:
            place = operation.operands[0].definition
            while place is not None and place.operands:
                place = place.operands[0].definition
            assert place is not None and place.opcode == "shared_alloc"
            found.add(place)
    return found


def _reach(kind: SharedType) -> int:
    """Bytes from the start of a tile to the end of what a product may read of it: 64 rows of the last one."""
    rows = kind.shape[-2] if len(kind.shape) > 1 else _PRODUCT_ROWS
    return _bytes(kind) + max(0, _PRODUCT_ROWS - rows) * kind.swizzle
