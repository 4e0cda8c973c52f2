"""The entry of an explicit kernel, before its first operation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.ir.types import TensorMapType
from tilewright.targets.nvidia.explicit import barriers, cluster, tma

if TYPE_CHECKING:
    from tilewright.targets.nvidia.explicit.lowering import ExplicitLowering


def enter(lowering: ExplicitLowering) -> None:
    """Before anything else: tensor maps brought near, barriers initialised and made known."""
    builder = lowering.builder
    maps = [value for value in lowering.function.region.arguments if isinstance(value.type.handle, TensorMapType)]
    allocations = [operation for operation in lowering.function.walk() if operation.opcode == "barrier_alloc"]
    if not maps and not allocations:
        return
    with builder.when(builder.compare("eq", lowering.group.thread, 0), hint="first"):
        for value in maps:
            tma.prefetch_map(builder, lowering.scalar(value))
        for operation in allocations:
            count, arrivals = operation.attributes["count"], operation.attributes["arrivals"]
            assert isinstance(count, int) and isinstance(arrivals, int)
            start = lowering.places.tiles[operation]
            for number in range(count):
                place = lowering.i32(start + number * barriers.BARRIER_BYTES)
                barriers.initialize(builder, place, arrivals)
        if allocations:
            barriers.fence_initialization(builder)
    lowering.reconverge()
    if not allocations:
        return
    if lowering.cluster_size > 1:  # relaxed: the fence has ordered what the others must see
        cluster.arrive(builder, relaxed=True, aligned=True)
        cluster.wait(builder, aligned=True)
    else:
        barriers.cta_sync(builder)
