"""The explicit level of the tile language: schedules for one GPU architecture (sm_90a).

    import tilewright.language.explicit as tx

Blocks and types are those of `tl`.  Added are shared memory, barriers, copies in bulk (TMA), warpgroup products in
flight, roles of warps, clusters and dependent launch.  docs/guide/explicit.md explains them with a worked example; the
interpreter runs kernels written with them on any machine and finds what is not synchronised.
"""

from tilewright.language.explicit.objects import barrier, barrier_array, pending, shared_tile, tensor_map
from tilewright.language.explicit.operations import (
    accumulator,
    barriers,
    block_slice,
    cluster,
    cluster_arrive,
    cluster_rank,
    cluster_wait,
    fence_async,
    grid_launch_dependents,
    grid_wait,
    group_sync,
    named_arrive,
    named_sync,
    prefetch,
    role,
    shared,
    tma_commit,
    tma_load,
    tma_prefetch,
    tma_store,
    tma_wait,
    warp_any,
    warp_roles,
    wgmma,
    wgmma_wait,
)
from tilewright.language.explicit.pipeline import (
    consumer_start,
    make_ring,
    producer_start,
    ring_at,
    ring_barriers,
    ring_position,
)

__all__ = [
    "accumulator",
    "barrier",
    "barrier_array",
    "barriers",
    "block_slice",
    "cluster",
    "cluster_arrive",
    "cluster_rank",
    "cluster_wait",
    "consumer_start",
    "fence_async",
    "grid_launch_dependents",
    "grid_wait",
    "group_sync",
    "make_ring",
    "named_arrive",
    "named_sync",
    "prefetch",
    "pending",
    "producer_start",
    "ring_at",
    "ring_barriers",
    "ring_position",
    "role",
    "shared",
    "shared_tile",
    "tensor_map",
    "tma_commit",
    "tma_load",
    "tma_prefetch",
    "tma_store",
    "tma_wait",
    "warp_any",
    "warp_roles",
    "wgmma",
    "wgmma_wait",
]
