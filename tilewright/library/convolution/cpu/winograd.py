"""3x3 convolutions on CPUs by Winograd's F(2x2, 3x3): when, in which blocks, at what cost."""

from __future__ import annotations

from math import ceil
from typing import Any

from tilewright.dtypes import float32
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.fusion import Group
from tilewright.library.binding import bind_extra, bind_sizes
from tilewright.library.candidate import Candidate, KernelCall, Operand, PackedConstant, Stage
from tilewright.library.convolution.cpu.winograd_kernel import APART, winograd_convolution
from tilewright.library.convolution.problem import convolution_of
from tilewright.library.cost import estimate, expected
from tilewright.library.generated.elementwise import chain_operations, total_bytes
from tilewright.library.generated.expressions import language_type
from tilewright.library.packing import winograd_recipe
from tilewright.library.slots import Slots
from tilewright.library.windows import window_constants, window_sizes
from tilewright.symbolic import Size, ceil_divide, lift, product, simplify
from tilewright.targets.base import Target

FEWEST_WINOGRAD_CHANNELS = 8
MOST_COLUMNS = 128  # of a block: with more, what a block of tiles computes leaves level 2
ROW_TILES = 4  # register tiles in a block of tiles: each panel of the weights that level 1 holds is used so often
PROGRAMS_OF_TWO_THREADS = 8  # that the tiles are shared out to, by two threads at most; then four for each thread
TRANSFORM = 300  # operations that the transform of one channel of a tile takes the time of
WINOGRAD_EFFICIENCY = 0.75


def is_winograd(anchor: Node, x: Value, w: Value, graph: Graph) -> bool:
    """Whether a convolution has the form: 3x3 taps that are known, strides of 1, float32 that may be rounded."""
    attributes = anchor.attributes
    square = w.rank == 4 and tuple(w.shape[2:]) == (3, 3) and all(step == 1 for step in attributes["strides"])
    few = not isinstance(w.shape[1], int) or w.shape[1] < FEWEST_WINOGRAD_CHANNELS
    return square and not few and x.dtype == float32 and w in graph.constants and not attributes["exact"]


def winograd_candidate(group: Group, slots: Slots, target: Target) -> Candidate:
    """The convolution as 16 products of transformed tiles."""
    anchor, x, w = convolution_of(group)
    machine, attributes = target.machine(), anchor.attributes
    rows, width = target.microtile(x.dtype)
    groups, channels = attributes["groups"], w.shape[1]
    columns = simplify(lift(w.shape[0]) // groups)
    assert isinstance(columns, int) and isinstance(channels, int)
    windows = {key: value for key, value in window_constants(w.shape[2:], attributes).items()
               if not key.startswith(("KERNEL", "STRIDE"))}  # fmt: skip
    sizes = {**window_sizes(x, anchor.output), "columns": columns}
    for name, axis in (("down", "Y"), ("across", "X")):
        extent = sizes["out_height" if axis == "Y" else "out_width"]
        dilation = windows[f"DILATION_{axis}"]
        sizes[name] = simplify(ceil_divide(extent, 2 * dilation) * lift(dilation))
    del sizes["pixels"]
    tiles = sizes["tiles"] = simplify(product([x.shape[0], sizes["down"], sizes["across"]]))
    block = ROW_TILES * rows
    if isinstance(tiles, int):
        block = min(block, tiles)
    panels = ceil(columns / width)
    block_panels = next(n for n in range(max(1, MOST_COLUMNS // width), 0, -1) if panels % n == 0)
    most = max(PROGRAMS_OF_TWO_THREADS, 4 * machine.processors)
    column_runs = _column_runs(tiles, block, panels // block_panels, groups, machine.processors)
    blocks = simplify(ceil_divide(ceil_divide(tiles, block), most))
    runs = simplify(ceil_divide(ceil_divide(tiles, block), blocks)) if isinstance(blocks, int) else most
    sizes |= {"blocks": blocks, "column_blocks": ceil(panels // block_panels / column_runs)}
    constants: dict[str, Any] = {
        **windows, "CHANNELS": channels, "GROUPS": groups, "BLOCK_M": block, "BLOCK_N": block_panels * width,
        "WIDTH": width, "VECTOR": target.vector_bits // 32, "TYPE": language_type(x.dtype),
        "EPILOGUE": slots.function,
    }  # fmt: skip
    part = 16 * (block * (channels + block_panels * width) + 2 * APART.value)
    grid = (runs, column_runs, groups)
    scratch = Value(f"{anchor.output.name}.tiles", x.dtype, (product(grid), part))
    weights = PackedConstant(w, winograd_recipe(width, groups))
    operands: dict[str, Operand] = {"x": x, "w": weights, "out": slots.stored, "scratch": scratch}
    types: dict[str, str] = {}
    bind_sizes(sizes, operands, types, constants)
    bind_extra(slots.extra, operands, types)
    call = KernelCall(winograd_convolution, operands, types, constants, grid)
    products = 32 * channels * panels * width
    transforms = int(TRANSFORM * WINOGRAD_EFFICIENCY) * (channels * column_runs + columns)
    flops = simplify(lift(tiles) * (groups * (products + transforms)) + chain_operations(group.epilogue))
    taps = w.shape[0] * channels * (16 - 9) * 4
    bytes_moved = simplify(lift(total_bytes(group.inputs, group.outputs)) + taps)
    cost = estimate(machine, bytes_moved, flops, product(grid), x.dtype, WINOGRAD_EFFICIENCY)
    reasons = {"tiles": f"{block} of 2 x 2 pixels, {channels} deep, by {block_panels * width} columns"}
    return Candidate("Winograd F(2x2, 3x3)", (Stage((call,)),), cost, (scratch,), reasons)


def _column_runs(tiles: Size, block: int, column_blocks: int, groups: int, threads: int) -> int:
    """How many programs share the columns of a block of tiles: more than one where blocks are fewer than threads."""
    blocks = groups * ceil(expected(tiles) / block)
    runs = min(column_blocks, max(1, ceil(2 * threads / blocks))) if threads > 1 and blocks < 2 * threads else 1
    return ceil(column_blocks / ceil(column_blocks / runs))
