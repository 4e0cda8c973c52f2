"""Pool groups on GPUs."""

from __future__ import annotations

from dataclasses import replace

from tilewright.graph.core import Graph
from tilewright.graph.fusion import Group
from tilewright.library.candidate import Candidate, Stage
from tilewright.library.pool import simt_kernel
from tilewright.library.pool.cpu import pool
from tilewright.library.slots import epilogue_slots
from tilewright.library.windows import window_cost
from tilewright.symbolic import Size, ceil_divide, lift, product, simplify, upper_bound
from tilewright.targets.base import Target

_CTA_ELEMENTS = 1024  # eight for each of 128 threads
_CHANNELS = 128  # at most, of a block


def channel_block(channels: Size) -> int:
    """The channels of a block: the power of two up to 128 that leaves the fewest over; the largest of equals."""
    if not isinstance(channels, int):
        return _CHANNELS
    blocks = [1 << power for power in range(_CHANNELS.bit_length())]
    return min(blocks, key=lambda block: (-(-channels // block) * block, -block))


def gpu_pool(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    """The candidates of a pooling group. Raises `NotImplementedError` for channels-first images."""
    (candidate,) = pool(group, graph, target)
    anchor = group.anchor
    assert anchor is not None and anchor.inputs[0] is not None
    x, out = anchor.inputs[0], anchor.output
    if upper_bound(product(x.shape[1:])) >= 2**31:
        return [candidate]
    ((call,),) = (stage.calls for stage in candidate.stages)
    block = channel_block(x.shape[-1])
    rows = max(1, _CTA_ELEMENTS // block)
    kernel = simt_kernel.max_pool if anchor.op == "max_pool" else simt_kernel.average_pool
    function = epilogue_slots(group, graph).rounded().function
    constants = {**call.constants, "ROWS": rows, "BLOCK": block, "EPILOGUE": function}
    del constants["MASK"]
    grid = (ceil_divide(product(out.shape[:-1]), rows), ceil_divide(x.shape[-1], block), 1)
    call = replace(call, kernel=kernel, constants=constants, grid=grid, options={"num_warps": _warps(rows * block)})
    flops = simplify(lift(product(out.shape)) * product(anchor.attributes["kernel"]))
    reasons = {"block": f"{rows} pixels x {block} channels"}
    return [Candidate("windows", (Stage((call,)),), window_cost(group, flops, target), (), reasons)]


def _warps(elements: int) -> int:
    return max(1, elements // 256)
