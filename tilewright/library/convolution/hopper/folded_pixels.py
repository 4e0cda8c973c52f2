"""Convolutions of few channels: several pixels as one row of a product.

Tensor copies take their time for each row, however short.  Neighbouring pixels lie one after the other in the result,
and those of 1x1 convolutions in the image: as one row of a product, by weights along a diagonal, they are one row of a
copy.  What the zeros beside the diagonal cost is time of tensor cores that would wait for memory.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.fusion import Group
from tilewright.library.binding import divides
from tilewright.library.candidate import Candidate, PackedConstant
from tilewright.library.convolution.problem import convolution_of
from tilewright.library.matmul.hopper.candidates import hopper_products
from tilewright.library.matmul.problem import GraphProduct
from tilewright.library.matmul.simt import product_cost
from tilewright.library.packing import diagonal_recipe
from tilewright.library.slots import epilogue_slots
from tilewright.symbolic import floor_divide, lift, product, simplify
from tilewright.targets.base import Target

_ROW = 64  # channels of a row of a copy
_LEAST = 2


def folded_pixels(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    """Candidates for a 1x1 convolution whose bias is in its epilogue; none where pixels are no whole rows."""
    anchor, x, w = convolution_of(group)
    columns, channels = w.shape[:2]
    assert isinstance(columns, int) and isinstance(channels, int)
    fold = _ROW // channels
    fold = 1 << max(0, fold.bit_length() - 1)
    while fold >= _LEAST and not divides(fold, x.shape[-2]):
        fold //= 2
    if fold < _LEAST or w not in graph.constants or len(group.outputs) != 1:
        return []
    moved = in_rows_of_pixels(group, fold)
    try:
        slots = epilogue_slots(moved, graph)
    except NotImplementedError:
        return []
    weights, depth = PackedConstant(w, diagonal_recipe(fold)), fold * channels
    problem = GraphProduct(
        floor_divide(product(anchor.output.shape[:-1]), fold), fold * columns, depth, x, weights, depth, 1, 1, depth, 0
    )
    pixels = product(anchor.output.shape[:-1])
    return [
        replace(
            candidate,
            name=f"{fold} pixels a row as {candidate.name}",
            cost=product_cost(group, pixels, columns, channels, 1, candidate.cost.seconds),
        )
        for candidate in hopper_products(problem, slots, group, target)
    ]


def in_rows_of_pixels(group: Group, count: int) -> Group:
    """The group of a convolution whose anchor has `count` neighbouring pixels, which divide a line, as one of as many
    times the columns; what follows reads them as they were."""
    anchor = group.anchor
    assert anchor is not None
    *pixels, width, columns = anchor.output.shape
    shape = (*pixels, floor_divide(width, count), simplify(lift(columns) * count))
    result = Value(f"{anchor.output.name}.folded", anchor.output.dtype, shape)
    inner = Node("conv", anchor.inputs, [result], anchor.attributes, anchor.source)
    back = Node("reshape", [result], [anchor.output], {"shape": anchor.output.shape}, anchor.source)
    return Group(group.kind, [inner, back, *group.epilogue], group.inputs, group.outputs, inner, group.name)
