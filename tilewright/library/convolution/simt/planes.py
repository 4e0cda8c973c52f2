"""Convolutions of channels-first images on GPUs by multiply-add: nothing is permuted before or after them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tilewright.dtypes import float32
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.fusion import Group
from tilewright.library.binding import bind_extra, bind_sizes, divides
from tilewright.library.candidate import Candidate, KernelCall, Operand, Stage
from tilewright.library.convolution.hopper.bf16x6 import bf16x6_convolutions
from tilewright.library.convolution.operands import preceded_by, with_bias_in_epilogue
from tilewright.library.convolution.problem import convolution_of, is_pointwise, reads_one_pixel
from tilewright.library.convolution.simt.few_planes import FewProblem, ranked_forms
from tilewright.library.convolution.simt.planes_kernel import few_planes, planes
from tilewright.library.convolution.simt.winograd import winograd_convolution
from tilewright.library.cost import expected
from tilewright.library.generated.expressions import language_type
from tilewright.library.generated.generate import next_power_of_2
from tilewright.library.generated.slot_functions import Chain
from tilewright.library.generated.source import ExtraReferences
from tilewright.library.matmul.hopper.candidates import hopper_products
from tilewright.library.matmul.problem import GraphProduct
from tilewright.library.matmul.simt import float32_on_tensor_cores, product_cost
from tilewright.library.matmul.simt_parts import in_parts
from tilewright.library.matmul.simt_tiles import SimtTile, ranked_tiles, simt_problem, varied_tiles
from tilewright.library.packing import order_recipe
from tilewright.library.slots import Slots, chain_slots
from tilewright.library.weights import packed_weights
from tilewright.library.windows import window_constants, window_cost
from tilewright.symbolic import Size, ceil_divide, lift, product, simplify, upper_bound
from tilewright.targets.base import Target

PLANES = "planes"  # the layout of a convolution that these kernels compute
_PLANE_TILES = 6  # tiles that become candidates
_FEWEST_ROWS = 4  # of a single group: tiles have 16 rows
_UNROLLED_TAPS = 32  # of a window that are written one after the other
_SMALL_IMAGE = 1024  # pixels of an image, below which blocks run over several images


def plane_convolution(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    """The candidates of a group whose anchor is a convolution with the layout `PLANES`."""
    group = with_bias_in_epilogue(group)
    anchor, x, w = convolution_of(group)
    slots = _slots(group, graph)
    weights = packed_weights(w, order_recipe((*range(2, w.rank), 1, 0)), graph, target)
    columns, kernels = simplify(lift(w.shape[0]) // anchor.attributes["groups"]), target.kernels
    grouped = anchor.attributes["groups"] > 1
    taps = w.shape[-1] if grouped else product(w.shape[2:])  # the depth of a single group can be divided
    most = kernels.plane_columns if grouped else _FEWEST_ROWS
    if upper_bound(columns) <= most and upper_bound(taps) <= kernels.plane_taps:
        return [preceded_by(weights, candidate) for candidate in _few(group, slots, weights.operand, target)]
    found = [preceded_by(weights, candidate) for candidate in _tiled(group, slots, weights.operand, target)]
    found += winograd_convolution(group, slots, graph, target)
    if reads_one_pixel(anchor, w):
        return [*found, *_pointwise(group, slots, graph, target, found)]
    return [*found, *bf16x6_convolutions(group, slots, graph, target, found)]


def _pointwise(
    group: Group, slots: Slots, graph: Graph, target: Target, others: Sequence[Candidate]
) -> list[Candidate]:
    """A convolution of single pixels as the weights times each image on tensor cores, where these take its type and
    tensor copies its rows."""
    anchor, x, w = convolution_of(group)
    if not is_pointwise(anchor, w):
        return []
    (columns, channels), images, pixels = w.shape[:2], x.shape[0], product(x.shape[2:])
    image = simplify(lift(channels) * pixels)
    problem = GraphProduct(
        columns, pixels, channels, w, x, channels, 1, pixels, 1, 0, 1, images, images, (0, 0), (0, image)
    )
    found = hopper_products(problem, slots, group, target, graph) if x.dtype != float32 else []
    found += float32_on_tensor_cores(problem, slots, group, target, graph, others)
    return [replace(candidate, name=f"pointwise convolution as {candidate.name}") for candidate in found]


def _slots(group: Group, graph: Graph) -> Slots:
    """The epilogue, whose rows are the channels of all images and whose columns are the pixels of an image."""
    assert group.anchor is not None
    output, stored = group.anchor.output, group.outputs[-1]
    rows = Value(f"{output.name}.planes", output.dtype, (*output.shape[:2], product(output.shape[2:])))
    view = Node("reshape", [rows], [output], {"shape": output.shape}, group.anchor.source)
    nodes = (*group.prologue, view, *group.epilogue)
    return chain_slots(Chain(nodes, rows, stored, graph.constants, tuple(group.outputs[:-1])), ExtraReferences())


def _volume(shape: tuple[Size, ...]) -> tuple[Size, Size, Size]:
    """Depth, height and width of an image or line [images, channels, ...]."""
    depth, height, width = ((1, 1, *shape[2:]))[-3:]
    return depth, height, width


def _bound(anchor: Node, weights: Operand, slots: Slots) -> tuple[dict[str, Operand], dict[str, str], dict[str, Any]]:
    """What both kernels take: operands, types of run-time sizes, constants."""
    x, w = anchor.inputs[:2]
    assert x is not None and w is not None
    depth, height, width = _volume(x.shape)
    out_depth, out_height, out_width = _volume(anchor.output.shape)
    groups = anchor.attributes["groups"]
    sizes = {
        "columns": simplify(lift(w.shape[0]) // groups), "depth": depth, "height": height, "width": width,
        "out_depth": out_depth, "out_height": out_height, "out_width": out_width,
    }  # fmt: skip
    padded = any(low > 0 or high > 0 for low, high in anchor.attributes["padding"])
    constants = {
        **window_constants(w.shape[2:], anchor.attributes, "ZYX"), "PADDED": padded, "CHANNELS": w.shape[1],
        "GROUPS": groups, "TYPE": language_type(x.dtype), "EPILOGUE": slots.function,
    }  # fmt: skip
    operands: dict[str, Operand] = {"x": x, "w": weights, "out": slots.stored}
    types: dict[str, str] = {}
    bind_sizes(sizes, operands, types, constants)
    return operands, types, constants


def _tiled(group: Group, slots: Slots, weights: Operand, target: Target) -> list[Candidate]:
    """The implicit matrix product in its likeliest tiles, and in parts of its depth."""
    anchor, x, w = convolution_of(group)
    groups, images, pixels = anchor.attributes["groups"], x.shape[0], product(anchor.output.shape[2:])
    columns, depth = simplify(lift(w.shape[0]) // groups), product(w.shape[1:])
    assert isinstance(columns, int) and isinstance(depth, int)
    flat = expected(pixels) < _SMALL_IMAGE
    across, batches = (
        (expected(images) * expected(pixels), groups) if flat else (expected(pixels), expected(images) * groups)
    )
    problem = simt_problem((columns, across, depth, batches), x.dtype, target)
    cost = product_cost(group, product([images, pixels]), columns, depth, groups, 0.0)
    epilogue = {"epilogue": slots.function.__name__}
    found = []
    for tile, seconds in varied_tiles(ranked_tiles((problem,), target.machine()), _PLANE_TILES):
        call = _call(anchor, weights, tile, 1, flat, slots)
        reasons = {**epilogue, "tile": str(tile)}
        found.append(Candidate("planes", (Stage((call,)),), replace(cost, seconds=seconds), (), reasons))
    if isinstance(images, int) and isinstance(pixels, int) and groups == 1 and x.dtype == float32:
        found += in_parts(
            problem, slots, group, target, cost,
            lambda tile, parts, sums: _call(anchor, weights, tile, parts, flat, sums),
            (images * columns, pixels),
        )  # fmt: skip
    return found


def _call(anchor: Node, weights: Operand, tile: SimtTile, parts: int, flat: bool, slots: Slots) -> KernelCall:
    """A launch in tiles, for so many parts of the depth."""
    w = anchor.inputs[1]
    assert w is not None
    operands, types, constants = _bound(anchor, weights, slots)
    images, pixels, columns = anchor.output.shape[0], product(anchor.output.shape[2:]), constants["columns"]
    across = product([images, pixels]) if flat else pixels
    bind_sizes({"images": images}, operands, types, constants)
    bind_extra(slots.extra, operands, types)
    constants |= {
        "FLAT": flat, "POINTWISE": reads_one_pixel(anchor, w),
        "BLOCK_M": tile.rows, "BLOCK_N": tile.columns, "BLOCK_K": tile.depth, "PARTS": parts,
        "MASK_M": not divides(tile.rows, columns), "MASK_N": not divides(tile.columns, across),
    }  # fmt: skip
    blocks = [ceil_divide(across, tile.columns), ceil_divide(columns, tile.rows), *([] if flat else [images])]
    grid = (product(blocks), anchor.attributes["groups"] * parts, 1)
    return KernelCall(planes, operands, types, constants, grid, threads=tile.threads, evenly=True)


def _few(group: Group, slots: Slots, weights: Operand, target: Target) -> list[Candidate]:
    """Groups of few output channels, each by itself, in the likeliest forms."""
    anchor = group.anchor
    assert anchor is not None
    operands, types, constants = _bound(anchor, weights, slots)
    bind_extra(slots.extra, operands, types)
    pixels, out = product(anchor.output.shape[2:]), anchor.output
    w = anchor.inputs[1]
    assert w is not None
    flops = simplify(lift(product(out.shape)) * product(w.shape[1:]) * 2)
    cost, machine = window_cost(group, flops, target), target.machine()
    constants["ROWS"] = next_power_of_2(constants["columns"])
    taps = expected(product(w.shape[2:]))
    planes_of_result = expected(out.shape[0]) * anchor.attributes["groups"]
    problem = FewProblem(
        constants["ROWS"], constants["CHANNELS"], taps, expected(pixels), planes_of_result, out.dtype.itemsize
    )
    found = []
    for form, seconds in ranked_forms(problem, machine):
        constants |= {"BLOCK": form.block, "PARTS": form.parts, "UNROLLED": taps <= _UNROLLED_TAPS}
        grid = (ceil_divide(pixels, form.block), anchor.attributes["groups"], out.shape[0])
        call = KernelCall(few_planes, operands, types, dict(constants), grid, threads=form.threads)
        priced = replace(cost, seconds=max(cost.seconds, seconds))
        found.append(Candidate("few planes", (Stage((call,)),), priced, (), {"form": str(form)}))
    return found
