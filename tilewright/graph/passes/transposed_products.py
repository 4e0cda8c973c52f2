"""Products of transposed left operands, for targets whose kernels read them in place.

    matmul(permute(a), b)  ->  matmul(a, b) {transpose_a=True}

for operands of known sizes and of the types that the target says. Rows in memory that are copied in whole vectors are
read so by any product. Others are read element by element, which costs less than a copy where the result has so few
columns that each element is read once; elsewhere a copy is made first.
"""

from __future__ import annotations

from functools import partial

from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.kernel_facts import KernelFacts
from tilewright.graph.rewrite import GraphRewriter, apply_rules
from tilewright.symbolic import upper_bound


def transposed_products(graph: Graph, kernels: KernelFacts) -> Graph:
    """The graph with such products of operands of `transposed_types`; the same graph when there are none.

    Rows are copied as tiles if they begin at multiples of `row_bytes`; others are read where a result has no more than
    the columns of one tile, so that they are read once: 58569 x 21 x 271 of 16 bits took 47 us to turn its left
    operand and 28 to multiply (H200, 2026-11-29).
    """
    return apply_rules(graph, {"matmul": [partial(_transposed, kernels)]})


def _transposed(kernels: KernelFacts, node: Node, rewriter: GraphRewriter) -> Value | None:
    source = read_in_place(node, rewriter, kernels)
    if source is None or source.dtype not in kernels.transposed_types:
        return None
    rewriter.remark(f"the left operand of matmul %{node.output.name} is read transposed, in place")
    return rewriter.op("matmul", [source, node.inputs[1]], **{**node.attributes, "transpose_a": True})


def read_in_place(node: Node, rewriter: GraphRewriter, kernels: KernelFacts) -> Value | None:
    """The matrix whose transpose is the left operand of a product, if kernels shall read it as it lies; odd rows only
    for the columns of one tile."""
    left, right = node.inputs
    permute = rewriter.producer(left, "permute")
    if permute is None or left is None or right is None or node.attributes["transpose_a"]:
        return None
    source, rank = permute.inputs[0], left.rank
    if source is None or permute.attributes["order"] != (*range(rank - 2), rank - 1, rank - 2):
        return None
    rows, depth, columns = *left.shape[-2:], node.output.shape[-1]
    known = all(isinstance(size, int) for size in (rows, depth, columns))
    together = left.shape[:-2] == right.shape[:-2]  # batches of their own, or none
    if not (known and together and right.dtype == left.dtype) or rewriter.uses(left) > 1:
        return None
    whole = has_whole_rows(source, kernels.row_bytes)
    return source if whole or upper_bound(columns) <= kernels.tile_columns else None


def has_whole_rows(matrix: Value, row_bytes: int) -> bool:
    """Whether the rows of a matrix begin at multiples of so many bytes."""
    row = matrix.shape[-1]
    return isinstance(row, int) and row * matrix.dtype.itemsize % row_bytes == 0
