"""Products of transposed left operands, for targets whose kernels read them in place.

    matmul(permute(a), b)  ->  matmul(a, b) {transpose_a=True}

for operands of known sizes whose rows are copied in whole vectors, of the types that the target says; of others a copy
is made first.
"""

from __future__ import annotations

from functools import partial

from tilewright.dtypes import DType
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.rewrite import GraphRewriter, apply_rules

_ALIGNED = 16  # bytes that rows in memory are multiples of


def transposed_products(graph: Graph, types: frozenset[DType]) -> Graph:
    """The graph with such products of operands of `types`; the same graph when there are none."""
    return apply_rules(graph, {"matmul": [partial(_transposed, types)]})


def _transposed(types: frozenset[DType], node: Node, rewriter: GraphRewriter) -> Value | None:
    left, right = node.inputs
    permute = rewriter.producer(left, "permute")
    if permute is None or left is None or right is None or node.attributes["transpose_a"]:
        return None
    source, rank = permute.inputs[0], left.rank
    if source is None or permute.attributes["order"] != (*range(rank - 2), rank - 1, rank - 2):
        return None
    rows, depth = left.shape[-2:]
    sizes = (rows, depth, node.output.shape[-1])
    known = all(isinstance(size, int) for size in sizes)
    whole = isinstance(rows, int) and rows * left.dtype.itemsize % _ALIGNED == 0
    together = left.shape[:-2] == right.shape[:-2]  # batches of their own, or none
    fits = left.dtype in types and right.dtype == left.dtype
    if not (known and whole and together and fits) or rewriter.uses(left) > 1:
        return None
    rewriter.remark(f"the left operand of matmul %{node.output.name} is read transposed, as it lies")
    return rewriter.op("matmul", [source, right], **{**node.attributes, "transpose_a": True})
