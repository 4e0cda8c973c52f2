"""Convolutions on GPUs.

1x1                a matrix product over pixels
sm_90a, 16 bits    `library.convolution.hopper.kernel`: boxes of the image by tensor copies, several configs
few channels       the same on a copy whose channels are padded: a line of the window is one run of memory
few channels       each pixel by itself, if the window is small
depthwise          each channel by itself
channels first     the same of planes (`planes`), for types without tensor cores
others             an implicit product of `tl.dot`, for all that there is
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tilewright.dtypes import float32
from tilewright.graph.core import Graph, Node
from tilewright.graph.fusion import Group
from tilewright.library.binding import bind_extra, bind_sizes, divides
from tilewright.library.candidate import Candidate, KernelCall, Operand, Stage
from tilewright.library.convolution.hopper.candidates import (
    has_narrow_rows,
    has_short_rows,
    hopper_candidates,
    hopper_rows,
    is_mostly_zeros,
    is_padded,
)
from tilewright.library.convolution.hopper.folded_pixels import folded_pixels
from tilewright.library.convolution.operands import preceded_by, with_bias_in_epilogue, with_image_moved
from tilewright.library.convolution.problem import checked_convolution, convolution_of, image_ranges, is_pointwise
from tilewright.library.convolution.simt.depthwise import gpu_depthwise
from tilewright.library.convolution.simt.few_channels import few_channels
from tilewright.library.convolution.simt.kernel import convolution
from tilewright.library.convolution.simt.planes import PLANES, plane_convolution
from tilewright.library.convolution.simt.winograd import winograd_convolution
from tilewright.library.cost import expected
from tilewright.library.generated.expressions import language_type
from tilewright.library.matmul.problem import GraphProduct, sum_type
from tilewright.library.matmul.simt import (
    float32_on_tensor_cores,
    plain_tile,
    product_candidates,
    product_cost,
    tf32_constants,
)
from tilewright.library.matmul.simt_parts import in_parts
from tilewright.library.matmul.simt_tiles import SimtTile, simt_problem
from tilewright.library.packing import order_recipe
from tilewright.library.slots import Slots, epilogue_slots
from tilewright.library.weights import packed_weights
from tilewright.library.windows import window_constants, window_sizes
from tilewright.symbolic import Size, ceil_divide, lift, product, simplify, substitute
from tilewright.targets.base import Target


def gpu_convolution(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    """The candidates of a group whose anchor is a convolution.

    Raises `NotImplementedError` for channels-first images that no pass has given to `planes`.
    """
    if group.anchor is not None and group.anchor.attributes["layout"] == PLANES:
        return plane_convolution(group, graph, target)
    group, moves = with_image_moved(with_bias_in_epilogue(group), graph, target)
    anchor, x, w = checked_convolution(group)
    slots = epilogue_slots(group, graph)
    groups = anchor.attributes["groups"]
    weights = packed_weights(w, order_recipe((*range(2, w.rank), 1, 0)), graph, target)
    if w.shape[1] == 1 and w.shape[0] == groups and groups > 1:
        found = gpu_depthwise(group, slots, weights.operand, target)
        return [preceded_by(moves, preceded_by(weights, candidate)) for candidate in found]
    copied = hopper_candidates(group, moves, graph, slots, target)
    if copied and has_narrow_rows(anchor, x, w):
        copied += hopper_rows(group, moves, graph, target)
    if copied and has_short_rows(anchor, x, w, target):
        copied += hopper_candidates(group, moves, graph, slots, target, runs=True)
    found = []
    if is_pointwise(anchor, w):
        steps: tuple[Size, Size] = (w.shape[0], 1)  # of the depth and of columns
        if x.dtype.itemsize == 1:  # instructions take what they add side by side
            weights = packed_weights(w, order_recipe((0, *range(2, w.rank), 1)), graph, target)
            steps = (1, x.shape[-1])
        problem = GraphProduct(
            product(x.shape[:-1]), w.shape[0], x.shape[-1], x, weights.operand, x.shape[-1], 1, *steps, 0
        )
        # Tiles of `tl.dot` are for what tensor copies cannot move.
        products = product_candidates(problem, slots, group, target)
        if w in graph.constants:
            own = replace(problem, b=w, b_depth=1, b_column=x.shape[-1])
            products += float32_on_tensor_cores(own, slots, group, target, graph, products)
        found = [replace(candidate, name=f"pointwise convolution as {candidate.name}")
                 for candidate in products if not copied or candidate.name != "tiled matmul"]  # fmt: skip
        found += folded_pixels(group, graph, target)
    elif not copied or (w not in graph.constants and is_padded(x, w) and is_mostly_zeros(anchor, x, w)):
        found = _implicit(group, slots, weights.operand, target)
        found += winograd_convolution(group, slots, graph, target)
    found = [preceded_by(moves, preceded_by(weights, candidate)) for candidate in found]
    return [*found, *copied, *few_channels(group, moves, graph, slots, target)]


def _implicit(group: Group, slots: Slots, weights: Operand, target: Target) -> list[Candidate]:
    """The implicit matrix product: output pixels by columns, over taps and channels; in parts of the depth too."""
    anchor, x, w = convolution_of(group)
    groups = anchor.attributes["groups"]
    columns, depth = simplify(lift(w.shape[0]) // groups), product(w.shape[1:])
    assert isinstance(columns, int) and isinstance(depth, int)
    pixels = window_sizes(x, anchor.output)["pixels"]
    calls: list[KernelCall] = []
    tf32 = tf32_constants(x, target)
    reasons: dict[str, Any] = {"epilogue": slots.function.__name__, **({"precision": "tf32"} if tf32 else {})}
    for at_most, known in image_ranges(x.shape[0]):
        tile, _ = plain_tile((expected(substitute(pixels, known)),), (columns, depth, groups), x, target)
        call = _implicit_call(anchor, weights, tile, 1, slots, target)
        calls.append(call if at_most is None else replace(call, condition=(x.shape[0], at_most)))
        reasons["pixels" if at_most is None else f"images <= {at_most}"] = str(tile)
    _, seconds = plain_tile((expected(pixels),), (columns, depth, groups), x, target)
    cost = product_cost(group, pixels, columns, depth, groups, seconds)
    found = [Candidate("implicit matmul", (Stage(tuple(calls)),), cost, (), reasons)]
    if isinstance(pixels, int) and groups == 1 and x.dtype == float32:
        found += in_parts(
            simt_problem((pixels, columns, depth, 1), x.dtype, target), slots, group, target,
            replace(cost, seconds=0.0),
            lambda tile, parts, sums: _implicit_call(anchor, weights, tile, parts, sums, target),
        )  # fmt: skip
    return found


def _implicit_call(
    anchor: Node, weights: Operand, tile: SimtTile, parts: int, slots: Slots, target: Target
) -> KernelCall:
    """A launch in tiles, for so many parts of the depth."""
    x, w = anchor.inputs[:2]
    assert x is not None and w is not None
    groups, channels = anchor.attributes["groups"], w.shape[1]
    columns = simplify(lift(w.shape[0]) // groups)
    assert isinstance(columns, int) and isinstance(channels, int)
    sizes = {**window_sizes(x, anchor.output), "columns": columns}
    pixels = sizes["pixels"]
    constants: dict[str, Any] = {
        **window_constants(w.shape[2:], anchor.attributes), "CHANNELS": channels, "GROUPS": groups,
        "BLOCK_M": tile.rows, "BLOCK_N": tile.columns, "BLOCK_K": tile.depth,
        "MASK_M": not divides(tile.rows, pixels), "MASK_N": columns % tile.columns != 0, "PARTS": parts,
        "TYPE": language_type(sum_type(x.dtype)), **tf32_constants(x, target), "EPILOGUE": slots.function,
    }  # fmt: skip
    operands: dict[str, Operand] = {"x": x, "w": weights, "out": slots.stored}
    types: dict[str, str] = {}
    bind_sizes(sizes, operands, types, constants)
    bind_extra(slots.extra, operands, types)
    grid = (ceil_divide(pixels, tile.rows), ceil_divide(columns, tile.columns), groups * parts)
    return KernelCall(convolution, operands, types, constants, grid, threads=tile.threads, evenly=True)
