"""Pool groups: windows of channels-last images, with an elementwise epilogue."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.errors import UnsupportedOperationError
from tilewright.graph.core import Graph
from tilewright.graph.fusion import Group
from tilewright.library.binding import bind_extra, bind_sizes
from tilewright.library.candidate import Candidate, KernelCall, Operand, Stage
from tilewright.library.cost import estimate
from tilewright.library.generated.elementwise import total_bytes
from tilewright.library.generated.expressions import language_type
from tilewright.library.pool.kernel import average_pool, max_pool
from tilewright.library.slots import epilogue_slots
from tilewright.library.windows import window_blocks, window_constants, window_sizes
from tilewright.symbolic import ceil_divide, lift, product, simplify
from tilewright.targets.base import Target


def pool(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    """The candidates of a pooling group. Raises `NotImplementedError` for channels-first images."""
    anchor = group.anchor
    assert anchor is not None
    x = anchor.inputs[0]
    assert x is not None
    attributes = anchor.attributes
    if x.rank not in (3, 4):
        raise UnsupportedOperationError(
            f"{anchor.op} (from {anchor.source or 'the graph'}) of {x!r}: there are kernels for one and two spatial "
            "dimensions"
        )
    if attributes["layout"] != "NHWC" or any(x in node.outputs for node in group.prologue):
        raise NotImplementedError("channels-first pooling")
    slots = epilogue_slots(group, graph)
    channels = x.shape[-1]
    sizes = {**window_sizes(x, anchor.output), "channels": channels}
    rows, block, options = window_blocks(sizes["pixels"], channels, target)
    constants: dict[str, Any] = {
        **window_constants(attributes["kernel"], attributes), "ROWS": rows, "BLOCK": block,
        "MASK": simplify(lift(channels) % block) != 0, "TYPE": language_type(x.dtype), "EPILOGUE": slots.function,
    }  # fmt: skip
    if anchor.op == "max_pool":
        lowest = float("-inf") if x.dtype.is_float else int(np.iinfo(x.dtype.numpy).min)
        constants["LOWEST"] = lowest
        kernel = max_pool
    else:
        counted = attributes["padding"] if attributes["count_include_pad"] else ()
        for letter, (low, high) in zip("YX", (((0, 0), (0, 0)) + tuple(counted))[-2:], strict=True):
            constants[f"COUNT_{letter}"], constants[f"COUNT_END_{letter}"] = low, high
        kernel = average_pool
    operands: dict[str, Operand] = {"x": x, "out": slots.stored}
    types: dict[str, str] = {}
    bind_sizes(sizes, operands, types, constants)
    bind_extra(slots.extra, operands, types)
    grid = (ceil_divide(sizes["pixels"], rows), ceil_divide(channels, block), 1)
    call = KernelCall(kernel, operands, types, constants, grid, options=options)
    taps = int(np.prod(attributes["kernel"]))
    flops = simplify(lift(product(anchor.output.shape)) * taps)
    cost = estimate(target.machine(), total_bytes(group.inputs, group.outputs), flops, product(grid), x.dtype, 0.1)
    return [Candidate("windows", (Stage((call,)),), cost, (), {"block": f"{rows} pixels x {block} channels"})]
