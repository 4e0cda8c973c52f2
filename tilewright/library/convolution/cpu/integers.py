"""Convolutions of 8-bit integers on CPUs as matrix products.

Rows of the product are pixels (windows of one), windows that tile registers read where they lie, or windows that are
gathered first.  The last two read images with their padding in memory, so that no window leaves them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilewright.dtypes import DType
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.fusion import Group
from tilewright.ir.ops import PAIRS_FIT
from tilewright.library.binding import bind_extra, bind_sizes, divides
from tilewright.library.candidate import Candidate, KernelCall, Operand, PackedConstant, Stage
from tilewright.library.convolution.cpu.gather_kernel import (
    convolution_of_lines,
    gather_groups,
    gather_windows,
    lines_between_zeros,
    product_of_groups,
)
from tilewright.library.convolution.operands import Moves, preceded_by, with_image_moved
from tilewright.library.convolution.problem import convolution_of, is_pointwise
from tilewright.library.cost import estimate
from tilewright.library.cpu_work import rows_per_program
from tilewright.library.generated.elementwise import chain_operations, total_bytes
from tilewright.library.matmul.blocks import MatmulBlocks, row_ranges
from tilewright.library.matmul.cpu import gemm_candidate
from tilewright.library.matmul.cpu_blocks import choose_blocks, seconds_of
from tilewright.library.matmul.problem import GraphProduct
from tilewright.library.packing import taps_recipe
from tilewright.library.slots import epilogue_slots
from tilewright.library.weights import pairs_fit
from tilewright.library.windows import window_constants, window_sizes
from tilewright.symbolic import Size, ceil_divide, lift, lower_bound, product, round_up, simplify
from tilewright.targets.base import Target

_MOST_ROWS = 256  # of a block of windows
_PANELS = 8  # up to which a block may have any number of them


def integer_convolution(group: Group, graph: Graph, target: Target, w: Value) -> Candidate:
    """The candidate of a convolution of uint8 by constant int8."""
    anchor = group.anchor
    assert anchor is not None and w in graph.constants
    if anchor.attributes["groups"] > 1:
        group, moves = _with_padding(group, graph, target, 0)
        return preceded_by(moves, _gathered_groups(group, graph, target))
    channels = w.shape[1]
    assert isinstance(channels, int)
    if is_pointwise(anchor, w) and channels % target.kernels.narrow_depth == 0:
        group, moves = with_image_moved(group, graph, target)
        found = _product(group, graph, target, anchor.inputs[0], channels)
        return preceded_by(moves, replace(found, name="pointwise convolution as matmul"))
    extents = _Extents.of(anchor, w)
    if extents is not None and extents.fits(anchor, target):
        group, moves = _with_padding(group, graph, target, 1)
        return preceded_by(moves, _of_lines(group, graph, target, extents))
    group, moves = _with_padding(group, graph, target, 0)
    return preceded_by(moves, _gathered(group, graph, target))


def _with_padding(group: Group, graph: Graph, target: Target, more: int) -> tuple[Group, Moves]:
    """A group whose image has its padding in memory, zeros, and `more` lines below; and the copy that makes it."""
    anchor, x, _ = convolution_of(group)
    padding = anchor.attributes["padding"]
    if not more and not any(low or high for low, high in padding):
        return with_image_moved(group, graph, target)
    pads = ((0, 0), *padding, (0, 0))
    if x.rank == 4:
        pads = (*pads[:1], (pads[1][0], pads[1][1] + more), *pads[2:])
    shape = tuple(simplify(lift(extent) + low + high) for extent, (low, high) in zip(x.shape, pads, strict=True))
    around = Value(f"{x.name}.padded", x.dtype, shape)
    attributes = anchor.attributes | {"padding": tuple((0, 0) for _ in padding)}
    inner = Node("conv", [around, *anchor.inputs[1:]], [anchor.output], attributes, anchor.source)
    if all(isinstance(extent, int) for extent in x.shape[-2:]):
        group, moves = with_image_moved(group, graph, target)
        rest = [around if value is x else value for value in group.inputs]
        rest += [x] if any(x in node.inputs for node in group.epilogue) else []
        nodes = [inner if node is anchor else node for node in group.nodes]
        stages, values = (*moves.stages, _between_zeros(x, around, pads)), (*moves.temporaries, around)
        return _with_nodes(group, nodes, rest, inner), replace(moves, stages=stages, temporaries=values)
    pad = Node("pad", [x], [around], {"pads": pads, "value": 0}, anchor.source)
    nodes = [*group.prologue, pad, inner, *group.epilogue]
    return with_image_moved(_with_nodes(group, nodes, group.inputs, inner), graph, target)


def _with_nodes(group: Group, nodes: list[Node], inputs: list[Value], anchor: Node) -> Group:
    """A group with other nodes."""
    return Group(group.kind, nodes, inputs, group.outputs, anchor, group.name)


def _between_zeros(x: Value, around: Value, pads: Sequence[tuple[int, int]]) -> Stage:
    """The copy of images whose lines are of known lengths."""
    channels, width = (int(extent) for extent in x.shape[:-3:-1])  # type: ignore[arg-type]
    (top, _), (left, right) = ((0, 0), *pads[1:-1])[-2:]
    lines, (height, out_height) = product(around.shape[:-2]), (((1,) + each.shape[1:-2])[-1] for each in (x, around))
    line = (left + width + right) * channels
    block = rows_per_program(lines, line)
    constants: dict[str, Any] = {"TOP": top, "LEFT": left * channels, "LINE": width * channels,
                                 "RIGHT": right * channels, "ROWS": block}  # fmt: skip
    operands: dict[str, Operand] = {"x": x, "out": around}
    types: dict[str, str] = {}
    bind_sizes({"lines": lines, "height": height, "out_height": out_height}, operands, types, constants)
    return Stage((KernelCall(lines_between_zeros, operands, types, constants, (ceil_divide(lines, block), 1, 1)),))


def _product(group: Group, graph: Graph, target: Target, rows: Value | None, depth: int) -> Candidate:
    """A product whose rows are those of a tensor, `depth` elements each: its pixels, or windows that are filled up."""
    anchor, _, w = convolution_of(group)
    assert rows is not None
    pixels, whole = product(anchor.output.shape[:-1]), product(w.shape[1:])
    assert isinstance(whole, int)
    taps = np.moveaxis(graph.constants[w], 1, -1).reshape(-1, whole)
    fits = pairs_fit(np.pad(taps, ((0, 0), (0, whole % 2))), 1)
    width = target.microtile(rows.dtype)[1]
    steps = target.panel_group(rows.dtype, lower_bound(pixels), depth, fits)
    weights = PackedConstant(w, taps_recipe(width, group=steps, depth=depth if depth != whole else 0))
    problem = GraphProduct(pixels, w.shape[0], depth, rows, weights, depth, 1, 0, 0, width, steps, pairs_fit=fits)
    return gemm_candidate(problem, epilogue_slots(group, graph), group, target)


# Gathered windows ---------------------------------------------------------------------------------------


def _gathered(group: Group, graph: Graph, target: Target) -> Candidate:
    """Windows are gathered as rows, which a product reads."""
    anchor, x, w = convolution_of(group)
    pixels, depth = product(anchor.output.shape[:-1]), product(w.shape[1:])
    assert isinstance(depth, int)
    filled = gathered_depth(x, pixels, depth, target)
    rows = Value(f"{x.name}.windows", x.dtype, (pixels, filled))
    found = _product(group, graph, target, rows, filled)
    gather = _gather(group, rows, filled)
    return replace(found, name="gathered windows as matmul", stages=(gather, *found.stages), temporaries=(rows,))


def _gather(group: Group, rows: Value, filled: int) -> Stage:
    """The copy of windows to rows, of `filled` elements for each group of channels."""
    anchor, x, w = convolution_of(group)
    groups, depth = anchor.attributes["groups"], product(w.shape[1:])
    sizes = window_sizes(x, anchor.output)
    sizes["lines"] = lines = product(anchor.output.shape[:-2])
    del sizes["pixels"]
    windows = window_constants(w.shape[2:], anchor.attributes)
    block = rows_per_program(lines, simplify(lift(sizes["out_width"]) * depth * groups))
    constants: dict[str, Any] = {name: value for name, value in windows.items() if not name.startswith("PAD")}
    constants |= {"CHANNELS": w.shape[1], "DEPTH": filled, "LINES": block}
    constants |= {"GROUPS": groups} if groups > 1 else {}
    operands: dict[str, Operand] = {"x": x, "out": rows}
    types: dict[str, str] = {}
    bind_sizes(sizes, operands, types, constants)
    grid = (ceil_divide(lines, block), 1, 1)
    kernel = gather_groups if groups > 1 else gather_windows
    return Stage((KernelCall(kernel, operands, types, constants, grid),))


def _gathered_groups(group: Group, graph: Graph, target: Target) -> Candidate:
    """Windows of each group of channels are gathered as rows, which a product for each group reads."""
    anchor, x, w = convolution_of(group)
    slots, machine, groups = epilogue_slots(group, graph), target.machine(), anchor.attributes["groups"]
    pixels, depth, columns = product(anchor.output.shape[:-1]), product(w.shape[1:]), w.shape[0]
    assert isinstance(depth, int) and isinstance(columns, int)
    filled, columns = gathered_depth(x, pixels, depth, target), columns // groups
    rows = Value(f"{x.name}.windows", x.dtype, (groups, pixels, filled))
    taps = np.moveaxis(graph.constants[w], 1, -1).reshape(-1, depth)
    fits, width = pairs_fit(np.pad(taps, ((0, 0), (0, depth % 2))), 1), target.microtile(x.dtype)[1]
    steps = target.panel_group(x.dtype, lower_bound(pixels), filled, fits)
    weights = PackedConstant(w, taps_recipe(width, groups, steps, filled if filled != depth else 0))
    calls: list[KernelCall] = []
    reasons: dict[str, Any] = {"epilogue": slots.function.__name__}
    for span in row_ranges(pixels):
        blocks = choose_blocks(span.examples, columns, filled, groups, x.dtype, target, machine, width, steps)
        constants: dict[str, Any] = {
            "GROUPS": groups, "DEPTH": filled, "BLOCK_M": blocks.rows, "BLOCK_N": blocks.columns, "WIDTH": width,
            "GROUP": steps, "MASK_M": not divides(blocks.rows, pixels), "MASK_N": not divides(blocks.columns, columns),
            "MASK_PANEL": not divides(blocks.columns // width, -(-columns // width)),
            "PRECISION": PAIRS_FIT if fits else "ieee", "EPILOGUE": slots.function,
        }  # fmt: skip
        operands: dict[str, Operand] = {"a": rows, "w": weights, "out": slots.stored}
        types: dict[str, str] = {}
        bind_sizes({"pixels": pixels, "columns": columns}, operands, types, constants)
        bind_extra(slots.extra, operands, types)
        grid = (ceil_divide(pixels, blocks.rows), ceil_divide(columns, blocks.columns), groups)
        condition = None if span.at_most is None else (pixels, span.at_most)
        calls.append(KernelCall(product_of_groups, operands, types, constants, grid, condition))
        reasons["pixels" if span.at_most is None else f"pixels <= {span.at_most}"] = str(blocks)
    work = lift(product([pixels, groups, round_up(columns, width)])) * (2 * filled)
    flops = simplify(work + chain_operations(group.epilogue))
    moved = total_bytes(group.inputs, group.outputs)
    cost = estimate(machine, moved, flops, product(calls[-1].grid), x.dtype, 0.85)
    stages = (_gather(group, rows, filled), Stage(tuple(calls)))
    return Candidate("gathered groups as matmul", stages, cost, (rows,), reasons)


def gathered_depth(x: Value, pixels: Size, depth: int, target: Target) -> int:
    """The elements of a gathered window, with those of no meaning at its end: whole tiles, or groups that are added."""
    step = target.tile_depth(x.dtype, lower_bound(pixels)) or target.kernels.narrow_depth
    return -(-depth // step) * step


# Windows in place ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Extents:
    """Sizes of a convolution of images, all known: of the image with its padding, the result and the windows."""

    height: int
    across: int
    out_height: int
    out_width: int
    channels: int
    kernel: tuple[int, int]

    @staticmethod
    def of(anchor: Node, w: Value) -> _Extents | None:
        """Those of a two-dimensional convolution; None where some are known at run time only."""
        x, out = anchor.inputs[0], anchor.output
        assert x is not None
        sizes = [*x.shape[1:-1], *out.shape[1:-1], *w.shape[1:]]
        if x.rank != 4 or not all(isinstance(size, int) for size in sizes):
            return None
        height, across, out_height, out_width, channels, *kernel = (int(size) for size in sizes)  # type: ignore[arg-type]
        (top, bottom), (left, right) = anchor.attributes["padding"]
        height, across = height + top + bottom, across + left + right
        return _Extents(height, across, out_height, out_width, channels, (kernel[0], kernel[1]))

    def fits(self, anchor: Node, target: Target) -> bool:
        """Whether tile registers read windows in place: whole lines of the cache, one step from pixel to pixel."""
        x, attributes = anchor.inputs[0], anchor.attributes
        assert x is not None
        regular = tuple(attributes["strides"]) == (1, 1) and attributes["dilation"][1] == 1
        step = target.tile_depth(x.dtype, self.out_height * self.across)
        return regular and step > 0 and self.channels % step == 0

    def blocks(self, columns: int, depth: int, width: int, target: Target, dtype: DType) -> list[MatmulBlocks]:
        """Blocks of windows of whole lines, by whole panels of `width` columns."""
        divisors = [count for count in range(1, self.out_height + 1) if self.out_height % count == 0]
        enough = [count for count in divisors if target.tile_depth(dtype, count * self.across)]
        lines = [enough[0], *(count for count in enough[1:] if count * self.across <= _MOST_ROWS)]
        panels = -(-columns // width)
        parts = [count for count in range(1, panels + 1) if panels % count == 0 or count <= _PANELS]
        return [MatmulBlocks(count * self.across, part * width, depth) for count in lines for part in parts]


def _of_lines(group: Group, graph: Graph, target: Target, extents: _Extents) -> Candidate:
    """Windows are read where they lie."""
    anchor, x, w = convolution_of(group)
    slots, machine = epilogue_slots(group, graph), target.machine()
    columns, depth, images = w.shape[0], product(w.shape[1:]), x.shape[0]
    assert isinstance(columns, int) and isinstance(depth, int)
    width = target.microtile(x.dtype)[1]
    rows = simplify(lift(images) * (extents.out_height * extents.across))
    blocks = min(
        extents.blocks(columns, depth, width, target, x.dtype),
        key=lambda each: seconds_of(each, rows, columns, x.dtype, target, width),
    )
    steps, panels = target.panel_group(x.dtype, blocks.rows, depth), -(-columns // width)
    lines = blocks.rows // extents.across
    constants: dict[str, Any] = {
        "HEIGHT": x.shape[1], "ACROSS": extents.across, "OUT_HEIGHT": extents.out_height,
        "OUT_WIDTH": extents.out_width, "CHANNELS": extents.channels, "KERNEL_Y": extents.kernel[0],
        "KERNEL_X": extents.kernel[1], "DILATION_Y": anchor.attributes["dilation"][0], "LINES": lines,
        "BLOCK_N": blocks.columns, "WIDTH": width, "GROUP": steps, "MASK_N": not divides(blocks.columns, columns),
        "MASK_PANEL": not divides(blocks.columns // width, panels), "EPILOGUE": slots.function,
    }  # fmt: skip
    operands: dict[str, Operand] = {
        "x": x,
        "w": PackedConstant(w, taps_recipe(width, group=steps)),
        "out": slots.stored,
    }
    types: dict[str, str] = {}
    bind_sizes({"columns": columns}, operands, types, constants)
    bind_extra(slots.extra, operands, types)
    grid = (simplify(lift(images) * (extents.out_height // lines)), -(-columns // blocks.columns), 1)
    call = KernelCall(convolution_of_lines, operands, types, constants, grid)
    flops = simplify(lift(rows) * (2 * depth * round_up(columns, width)) + chain_operations(group.epilogue))
    moved = total_bytes(group.inputs, group.outputs)
    cost = estimate(machine, moved, flops, product(grid), x.dtype, 0.85)
    reasons = {"block": f"{lines} lines by {blocks.columns} columns", "epilogue": slots.function.__name__}
    return Candidate("windows in place as matmul", (Stage((call,)),), cost, (), reasons)
