"""Convolutions of images of few channels, as a photograph's, without tensor cores: an image is read as it comes."""

from __future__ import annotations

from dataclasses import replace
from math import gcd
from typing import Any

from tilewright.graph.core import Graph
from tilewright.graph.fusion import Group
from tilewright.library.binding import bind_extra, bind_sizes
from tilewright.library.candidate import Candidate, KernelCall, Operand, PackedConstant, Stage
from tilewright.library.convolution.operands import Moves
from tilewright.library.convolution.problem import convolution_of
from tilewright.library.convolution.simt.depthwise_kernel import few_channels as kernel
from tilewright.library.cost import expected
from tilewright.library.generated.expressions import language_type
from tilewright.library.generated.index import dense_strides
from tilewright.library.matmul.simt import product_cost
from tilewright.library.packing import order_recipe
from tilewright.library.slots import Slots
from tilewright.library.windows import window_constants, window_sizes
from tilewright.symbolic import ceil_divide, lift, product, simplify, upper_bound
from tilewright.targets.base import Target

_MOST_FEW_CHANNELS = 4
_MOST_DEPTH = 64  # products of an element, all of which are unrolled
_FEW_CHANNEL_RUNS = (8, 4)  # pixels of a thread
_VECTOR_COLUMNS = 8  # columns of a thread
_ITEMS = 128  # threads of a CTA
_PRODUCT_ISSUES = 1.6  # instructions for each product, with those that load and widen


def few_channels(group: Group, moves: Moves, graph: Graph, slots: Slots, target: Target) -> list[Candidate]:
    """Candidates for an image of few channels, through a permute that alone stands before it; else none."""
    anchor, x, w = convolution_of(group)
    columns, channels, depth = w.shape[0], w.shape[1], product(w.shape[1:])
    assert isinstance(columns, int) and isinstance(channels, int) and isinstance(depth, int)
    small = x.rank == 4 and channels <= _MOST_FEW_CHANNELS and depth <= _MOST_DEPTH and anchor.attributes["groups"] == 1
    if not small or w not in graph.constants or upper_bound(product(x.shape[1:])) >= 2**31:
        return []
    source, order = x, tuple(range(4))
    if moves.nodes:
        if [node.op for node in moves.nodes] != ["permute"] or moves.nodes[0].inputs[0] is None:
            return []
        source, order = moves.nodes[0].inputs[0], moves.nodes[0].attributes["order"]
    dense = dense_strides(source.shape)
    names = ("image_step", "row_step", "column_step", "channel_step")
    steps = {name: dense[axis] for name, axis in zip(names, order, strict=True)}
    sizes = window_sizes(x, anchor.output)
    pixels = sizes.pop("pixels")
    vector = gcd(columns, _VECTOR_COLUMNS)
    constants: dict[str, Any] = {
        **window_constants(w.shape[2:], anchor.attributes), "CHANNELS": channels, "ITEMS": _ITEMS, "VECTOR": vector,
        "TYPE": language_type(x.dtype), "EPILOGUE": slots.rounded().function,
    }  # fmt: skip
    operands: dict[str, Operand] = {
        "x": source, "w": PackedConstant(w, order_recipe((2, 3, 1, 0))), "out": slots.stored
    }  # fmt: skip
    types: dict[str, str] = {}
    bind_sizes({**sizes, **steps, "images": x.shape[0], "columns": columns}, operands, types, constants)
    bind_extra(slots.extra, operands, types)
    machine = target.machine()
    work = (
        expected(pixels)
        * columns
        * depth
        * _PRODUCT_ISSUES
        / (machine.processors * machine.float32 / 2 * machine.clock)
    )
    cost = product_cost(group, pixels, columns, depth, 1, machine.launches.kernel)
    cost = replace(cost, seconds=machine.launches.kernel + max(work, expected(cost.bytes) / machine.memory))
    found = []
    for run in _FEW_CHANNEL_RUNS:
        lines = lift(product(anchor.output.shape[:-2])) * ceil_divide(anchor.output.shape[-2], run)
        grid = (ceil_divide(simplify(lines * (columns // vector)), _ITEMS), 1, 1)
        call = KernelCall(
            kernel, operands, types, {**constants, "RUN": run}, grid, threads=_ITEMS
        )  # fmt: skip
        found.append(Candidate("few channels", (Stage((call,)),), cost, (), {"block": f"{vector} x {run} pixels"}))
    return found
