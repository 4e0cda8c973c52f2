"""Products of 8-bit floats with a scale for each block of both operands: the Hopper product, which promotes the sums of
128 steps of the depth to float32, each times its scales."""

from __future__ import annotations

from dataclasses import replace

from tilewright.graph.core import Graph
from tilewright.graph.fusion import Group
from tilewright.graph.quantization import SCALE_BLOCK
from tilewright.library.candidate import Candidate
from tilewright.library.epilogue import block_promotion
from tilewright.library.generated.source import ExtraReferences
from tilewright.library.matmul.hopper.candidates import hopper_products
from tilewright.library.matmul.problem import GraphProduct
from tilewright.library.slots import epilogue_slots
from tilewright.symbolic import product
from tilewright.targets.base import Target


def hopper_block_scaled(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    """The candidates of a group whose anchor is a `block_scaled_matmul`.

    Raises `NotImplementedError` for targets without the kernel (`graph.passes.block_products` leaves them none).
    """
    anchor = group.anchor
    assert anchor is not None
    if target.without_wgmma:
        raise NotImplementedError(target.without_wgmma)
    x, w, left, right = anchor.inputs
    assert x is not None and w is not None and left is not None and right is not None
    rows, (columns, depth) = product(x.shape[:-1]), w.shape
    extra = ExtraReferences()
    places = [extra.place(value) for value in (left, right)]
    stride = extra.place(left.shape[-1])
    slots = epilogue_slots(group, graph, extra).promoted(block_promotion(*places, stride, stride, extra.place(rows)))
    problem = GraphProduct(rows, columns, depth, x, w, depth, 1, 1, depth, 0)
    return [
        replace(candidate, reasons={**candidate.reasons, "scales": f"of blocks of {SCALE_BLOCK}"})
        for candidate in hopper_products(problem, slots, group, target, graph)
    ]
