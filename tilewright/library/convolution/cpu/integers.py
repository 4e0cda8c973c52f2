"""Convolutions of 8-bit integers on CPUs: windows are gathered as rows, which a matrix product multiplies.

Images come with their padding, which stands for the zero point, so that no window leaves them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tilewright.graph.core import Graph, Value
from tilewright.graph.fusion import Group
from tilewright.library.binding import bind_sizes
from tilewright.library.candidate import Candidate, KernelCall, Operand, PackedConstant, Stage
from tilewright.library.convolution.cpu.gather_kernel import gather_windows
from tilewright.library.cpu_work import rows_per_program
from tilewright.library.matmul.cpu import gemm_candidate
from tilewright.library.matmul.problem import GraphProduct
from tilewright.library.packing import taps_recipe
from tilewright.library.slots import epilogue_slots
from tilewright.library.weights import pairs_fit
from tilewright.library.windows import window_constants, window_sizes
from tilewright.symbolic import ceil_divide, lower_bound, product
from tilewright.targets.base import Target


def integer_convolution(group: Group, graph: Graph, target: Target, x: Value, w: Value, direct: bool) -> Candidate:
    """The candidate of a convolution of uint8 by constant int8 without padding; `direct`: windows are pixels."""
    anchor = group.anchor
    assert anchor is not None
    pixels, depth = product(anchor.output.shape[:-1]), product(w.shape[1:])
    assert isinstance(depth, int) and w in graph.constants and anchor.attributes["groups"] == 1
    fits = pairs_fit(graph.constants[w], 1)
    width, steps = target.microtile(x.dtype)[1], target.panel_group(x.dtype, lower_bound(pixels), depth, fits)
    weights = PackedConstant(w, taps_recipe(width, group=steps))
    rows = x if direct else Value(f"{x.name}.windows", x.dtype, (pixels, depth))
    problem = GraphProduct(pixels, w.shape[0], depth, rows, weights, depth, 1, 0, 0, width, steps,
                      pairs_fit=fits)  # fmt: skip
    found = gemm_candidate(problem, epilogue_slots(group, graph), group, target)
    if direct:
        return replace(found, name="pointwise convolution as matmul")
    sizes = window_sizes(x, anchor.output)
    block = rows_per_program(pixels, depth)
    constants: dict[str, Any] = {**window_constants(w.shape[2:], anchor.attributes), "CHANNELS": w.shape[1],
                                 "ROWS": block}  # fmt: skip
    operands: dict[str, Operand] = {"x": x, "out": rows}
    types: dict[str, str] = {}
    bind_sizes(sizes, operands, types, constants)
    gather = Stage((KernelCall(gather_windows, operands, types, constants, (ceil_divide(pixels, block), 1, 1)),))
    return replace(found, name="gathered windows as matmul", stages=(gather, *found.stages), temporaries=(rows,))
