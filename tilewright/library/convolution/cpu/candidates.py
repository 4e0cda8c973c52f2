"""Convolution groups: pure matrix product, implicit matrix product, runs of few channels, depthwise."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Any

from tilewright.dtypes import float32
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.fusion import Group
from tilewright.library.binding import bind_extra, bind_sizes, divides
from tilewright.library.candidate import Candidate, KernelCall, Operand, Stage
from tilewright.library.convolution.cpu.integers import integer_convolution
from tilewright.library.convolution.cpu.kernel import convolution, convolution_few_channels
from tilewright.library.convolution.cpu.runs import (
    depthwise_runs_candidate,
    direct_candidate,
    direct_columns,
    direct_pixels,
    lanes_of,
)
from tilewright.library.convolution.cpu.tiles import PixelTile, is_sparse, pixel_tile
from tilewright.library.convolution.cpu.winograd import is_winograd, winograd_candidate
from tilewright.library.convolution.depthwise import depthwise_candidate
from tilewright.library.convolution.operands import preceded_by, with_bias_in_epilogue, with_image_moved
from tilewright.library.convolution.problem import checked_convolution, convolution_of, is_pointwise
from tilewright.library.cost import estimate
from tilewright.library.generated.elementwise import chain_operations, total_bytes
from tilewright.library.generated.expressions import language_type
from tilewright.library.generated.generate import next_power_of_2
from tilewright.library.matmul.blocks import MatmulBlocks, row_ranges
from tilewright.library.matmul.cpu import gemm_candidate
from tilewright.library.matmul.cpu_blocks import choose_blocks
from tilewright.library.matmul.problem import GraphProduct
from tilewright.library.packing import order_recipe, taps_recipe
from tilewright.library.slots import Slots, epilogue_slots
from tilewright.library.weights import packed_weights
from tilewright.library.windows import window_constants, window_sizes
from tilewright.symbolic import Size, ceil_divide, lift, product, round_up, simplify
from tilewright.targets.base import Target

_FEW_CHANNELS = 8
WIDEST_DIRECT = 5  # windows of images of few channels: the products of a line of taps are written out
LONGEST_LINE = 32  # taps: kernels that run along lines of pixels write out those of a line, at edges of the image
MOST_DIRECT_DEPTH = 576  # of the weights of a direct convolution: a vector of columns takes 36 KiB
DEEP_CHANNELS = 64  # of one tap: a matrix product copies them faster than a direct convolution reads them
DEEPEST_NARROW = 2304  # weights of a vector of columns, which come from level 2
SHALLOW = 32  # channels: a matrix product adds its sums to memory after each tap
TAP_START = 8  # channels that the time of doing so is worth
FULLER = 1.2  # times as full vectors outweigh what a direct convolution loses at the edges of the image
_DEPTH_BLOCK = 256  # of the depth


def convolution_candidates(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    """The candidates of a group whose anchor is a convolution.

    Raises `NotImplementedError` for channels-first images.
    """
    anchor, _, w = checked_convolution(group)
    if anchor.attributes["dtype"] is not None:
        return [integer_convolution(with_bias_in_epilogue(group), graph, target, w)]
    group, moves = with_image_moved(with_zeros_around(with_bias_in_epilogue(group), target), graph, target)
    anchor, x, w = checked_convolution(group)
    slots = epilogue_slots(group, graph)
    groups = anchor.attributes["groups"]
    lanes = lanes_of(target)
    found: list[Candidate] = []
    if w.shape[1] == 1 and w.shape[0] == groups and groups > 1:
        weights = packed_weights(w, order_recipe((*range(2, w.rank), 1, 0)), graph, target)
        short = isinstance(w.shape[-1], int) and w.shape[-1] <= LONGEST_LINE
        depthwise = depthwise_runs_candidate if lanes and short else depthwise_candidate
        found.append(preceded_by(weights, depthwise(group, slots, weights.operand, target)))
    elif not lanes or not is_direct(anchor, x, w):
        weights = packed_weights(w, taps_recipe(target.microtile(x.dtype)[1], groups), graph, target)
        make = _pointwise if is_pointwise(anchor, w) else _implicit
        found.append(preceded_by(weights, make(group, slots, weights.operand, target)))
    if lanes and (not found or not target.quick and is_narrow(anchor, x, w, target)):
        width = direct_columns(w, groups, target)
        weights = packed_weights(w, taps_recipe(width, groups), graph, target)
        found.append(preceded_by(weights, direct_candidate(group, slots, weights.operand, width, target)))
    if lanes and not target.quick and is_winograd(anchor, x, w, graph):
        found.append(winograd_candidate(group, slots, target))
    return [preceded_by(moves, candidate) for candidate in found]


def is_direct(anchor: Node, x: Value, w: Value) -> bool:
    """Whether a CPU multiplies pixel by pixel: what a matrix product would first copy, or pad to its wide tiles.

    That is few channels (in groups or in the image), and windows that lie beside each other; the weights of a vector of
    columns must stay in level 1.
    """
    depth, channels, across, attributes = product(w.shape[1:]), w.shape[1], w.shape[-1], anchor.attributes
    assert isinstance(depth, int) and isinstance(channels, int) and isinstance(across, int)
    if (
        is_pointwise(anchor, w)
        or depth > MOST_DIRECT_DEPTH
        or across > LONGEST_LINE
        or not x.dtype.is_float
        or x.dtype.itemsize < 4
    ):
        return False
    if attributes["groups"] == 1 and depth == channels >= DEEP_CHANNELS:
        return False  # one tap: a product whose rows are pixels that lie apart
    inside = not any(low or high for low, high in attributes["padding"])
    few = channels <= _FEW_CHANNELS and across <= WIDEST_DIRECT
    return attributes["groups"] > 1 or few or inside


def is_narrow(anchor: Node, x: Value, w: Value, target: Target) -> bool:
    """Whether a direct convolution may beat a matrix product: taps are shallow, or columns leave wide tiles empty."""
    columns, depth = simplify(lift(w.shape[0]) // anchor.attributes["groups"]), product(w.shape[1:])
    assert isinstance(columns, int) and isinstance(depth, int)
    if w.shape[1] == 1 or is_pointwise(anchor, w) or x.dtype is not float32 or depth > DEEPEST_NARROW:
        return False
    if not isinstance(w.shape[-1], int) or w.shape[-1] > LONGEST_LINE:
        return False
    vector, width = min(lanes_of(target), next_power_of_2(columns)), target.microtile(x.dtype)[1]
    channels = w.shape[1]
    assert isinstance(channels, int)
    return channels <= SHALLOW or FULLER * vector * ceil(columns / vector) <= width * ceil(columns / width)


def _pointwise(group: Group, slots: Slots, weights: Operand, target: Target) -> Candidate:
    """A 1x1 convolution: pixels are rows of a plain matrix product."""
    anchor, x, w = convolution_of(group)
    width, channels = target.microtile(x.dtype)[1], x.shape[-1]
    problem = GraphProduct(product(x.shape[:-1]), w.shape[0], channels, x, weights, channels, 1, 0, 0, width)
    return replace(gemm_candidate(problem, slots, group, target), name="pointwise convolution as matmul")


def with_zeros_around(group: Group, target: Target) -> Group:
    """A group whose image of few channels is copied with the zeros around it on CPUs: no window leaves the copy then.

    Beyond the padding come as many as the last run of pixels of a line reads of windows that are not there.
    """
    anchor, x, w = convolution_of(group)
    copied = anchor.attributes["layout"] == "NHWC" and any(x in node.outputs for node in group.prologue)
    across, channels, width = anchor.output.shape[-2], w.shape[1], x.shape[-2]
    if not isinstance(across, int) or not isinstance(width, int) or not isinstance(channels, int):
        return group
    if not lanes_of(target) or not copied or channels > _FEW_CHANNELS or len(w.shape) > 4:
        return group
    if is_pointwise(anchor, w):
        return group  # its product takes every pixel of the image for one of the result
    attributes = anchor.attributes
    run = direct_pixels(across, direct_columns(w, attributes["groups"], target), target)
    windows = window_constants(w.shape[2:], attributes)
    reach = (ceil(across / run) * run - 1) * windows["STRIDE_X"] + 1
    reach += windows["DILATION_X"] * (windows["KERNEL_X"] - 1)
    *padding, (left, right) = attributes["padding"]
    unpadded = attributes | {"padding": tuple((0, 0) for _ in attributes["padding"])}
    inner = Node("conv", [x, *anchor.inputs[1:]], [anchor.output], unpadded, anchor.source)
    if not is_pointwise(inner, w):  # every pixel of the copy would be one of the result, also those of the last run
        right = max(right, reach - width - left)
    padding.append((left, right))
    pads = ((0, 0), *padding, (0, 0))
    shape = tuple(simplify(lift(extent) + low + high) for extent, (low, high) in zip(x.shape, pads, strict=True))
    around = Value(f"{x.name}.padded", x.dtype, shape)
    pad = Node("pad", [x], [around], {"pads": pads, "value": 0}, anchor.source)
    inner = Node("conv", [around, *anchor.inputs[1:]], [anchor.output], unpadded, anchor.source)
    nodes = [inner if node is anchor else node for node in group.nodes]
    nodes.insert(nodes.index(inner), pad)
    return Group(group.kind, nodes, group.inputs, group.outputs, inner, group.name)


def _implicit(group: Group, slots: Slots, weights: Operand, target: Target) -> Candidate:
    """The implicit matrix product, one variant for each range of output pixels."""
    anchor, x, w = convolution_of(group)
    machine = target.machine()
    groups = anchor.attributes["groups"]
    columns, depth, channels = simplify(lift(w.shape[0]) // groups), product(w.shape[1:]), w.shape[1]
    assert isinstance(channels, int)
    width = target.microtile(x.dtype)[1]
    pixels = product(anchor.output.shape[:-1])
    windows = window_constants(w.shape[2:], anchor.attributes)
    tile = pixel_tile(x, anchor.output, windows, anchor.attributes["padding"])
    calls: list[KernelCall] = []
    reasons: dict[str, Any] = {"epilogue": slots.function.__name__}
    for span in row_ranges(pixels):
        at_most = span.at_most
        blocks = choose_blocks(span.examples, columns, depth, groups, x.dtype, target, machine, width)
        blocks = blocks if tile is None else replace(blocks, rows=tile.pixels)
        condition = None if at_most is None else (pixels, at_most)
        calls.append(_implicit_call(group, slots, weights, blocks, width, condition, tile))
        reasons["pixels" if at_most is None else f"pixels <= {at_most}"] = str(blocks)
    if tile is not None:
        reasons["tiles"] = f"{tile.height} x {tile.width} pixels, which have {tile.share:.0%} of the taps"
        depth = ceil(depth * tile.share) if isinstance(depth, int) else depth
    padded = round_up(columns, width)
    flops = simplify(lift(product([pixels, padded, groups, depth])) * 2 + chain_operations(group.epilogue))
    efficiency = 0.75 * channels / (channels + TAP_START)
    moved = total_bytes(group.inputs, group.outputs)
    cost = estimate(machine, moved, flops, product(calls[-1].grid), x.dtype, efficiency)
    return Candidate("implicit matmul", (Stage(tuple(calls)),), cost, (), reasons)


def _implicit_call(
    group: Group, slots: Slots, weights: Operand, blocks: MatmulBlocks, width: int, condition: tuple[Size, int] | None,
    tile: PixelTile | None,
) -> KernelCall:  # fmt: skip
    """One launch of an implicit matrix product."""
    anchor, x, w = convolution_of(group)
    attributes, groups = anchor.attributes, anchor.attributes["groups"]
    channels, columns = w.shape[1], simplify(lift(w.shape[0]) // groups)
    assert isinstance(channels, int) and isinstance(columns, int)
    sizes = {**window_sizes(x, anchor.output), "columns": columns}
    pixels = sizes["pixels"]
    constants: dict[str, Any] = {
        **window_constants(w.shape[2:], attributes), "CHANNELS": channels, "BLOCK_M": blocks.rows,
        "BLOCK_N": blocks.columns, "WIDTH": width, "MASK_M": not divides(blocks.rows, pixels),
        "MASK_N": columns % blocks.columns != 0,
        "MASK_PANEL": -(-columns // width) % (blocks.columns // width) != 0, "TYPE": language_type(x.dtype),
        "EPILOGUE": slots.function,
    }  # fmt: skip
    if channels <= _FEW_CHANNELS and groups == 1 and attributes["dilation"][1] == 1:
        kernel = convolution_few_channels
        del constants["DILATION_X"]
    else:
        kernel = convolution
        constants |= {"GROUPS": groups, "BLOCK_C": _channel_block(channels),
                      "PADDED": any(low or high for low, high in attributes["padding"]),
                      "SPARSE": is_sparse(x, attributes["padding"]),
                      "TILE_X": 0 if tile is None else tile.width}  # fmt: skip
    operands: dict[str, Operand] = {"x": x, "w": weights, "out": slots.stored}
    types: dict[str, str] = {}
    bind_sizes(sizes, operands, types, constants)
    bind_extra(slots.extra, operands, types)
    grid = (ceil_divide(pixels, blocks.rows), ceil_divide(columns, blocks.columns), groups)
    return KernelCall(kernel, operands, types, constants, grid, condition)


def _channel_block(channels: int) -> int:
    """The largest divisor of the channels that is not above `_DEPTH_BLOCK`."""
    return next(block for block in range(min(channels, _DEPTH_BLOCK), 0, -1) if channels % block == 0)
