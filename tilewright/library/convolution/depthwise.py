"""The depthwise convolution for any target."""

from __future__ import annotations

from typing import Any

from tilewright.graph.fusion import Group
from tilewright.library.binding import launch
from tilewright.library.candidate import Candidate, Operand, Stage
from tilewright.library.convolution.kernel import depthwise_convolution
from tilewright.library.convolution.problem import convolution_of
from tilewright.library.cost import estimate
from tilewright.library.generated.elementwise import total_bytes
from tilewright.library.generated.expressions import language_type
from tilewright.library.slots import Slots
from tilewright.library.windows import window_blocks, window_constants, window_sizes
from tilewright.symbolic import ceil_divide, lift, product, simplify
from tilewright.targets.base import Target


def depthwise_candidate(group: Group, slots: Slots, weights: Operand, target: Target) -> Candidate:
    """Each channel by itself, a pixel at a time, on any target: `runs` and
    `library.convolution.simt.depthwise` are faster where they can be."""
    anchor, x, w = convolution_of(group)
    columns = w.shape[0]
    assert isinstance(columns, int)
    sizes = {**window_sizes(x, anchor.output), "columns": columns}
    rows, block, threads = window_blocks(sizes["pixels"], columns, target)
    constants: dict[str, Any] = {**window_constants(w.shape[2:], anchor.attributes), "ROWS": rows, "BLOCK": block,
                                 "MASK": columns % block != 0, "TYPE": language_type(anchor.output.dtype),
                                 "EPILOGUE": slots.function}  # fmt: skip
    grid = (ceil_divide(sizes["pixels"], rows), ceil_divide(columns, block), 1)
    tensors = {"x": x, "w": weights, "out": slots.stored}
    call = launch(depthwise_convolution, tensors, sizes, constants, grid, slots.extra, threads)
    flops = simplify(lift(product(anchor.output.shape)) * product(w.shape[2:]) * 2)
    cost = estimate(target.machine(), total_bytes(group.inputs, group.outputs), flops, product(grid), x.dtype, 0.2)
    return Candidate("depthwise", (Stage((call,)),), cost, (), {"block": f"{rows} pixels x {block} channels"})
