"""Sums of narrow integers and of truth values on GPUs, in 32 bits where those hold every sum.

    reduce_sum(cast(x, int64))  ->  cast(reduce_sum(cast(x, int32)), int64)

GPUs add 64 bits in two steps, and hand them over between threads in two.
"""

from __future__ import annotations

from tilewright.dtypes import DType, int32, int64
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.rewrite import GraphRewriter, apply_rules
from tilewright.symbolic import product, upper_bound


def narrow_sums(graph: Graph) -> Graph:
    """The graph with such sums; the same graph when it has none."""
    return apply_rules(graph, {"reduce_sum": [_narrow]})


def _narrow(node: Node, rewriter: GraphRewriter) -> Value | None:
    cast = rewriter.producer(node.inputs[0], "cast")
    x = cast.inputs[0] if cast is not None else None
    if x is None or node.output.dtype != int64:
        return None
    count = upper_bound(product([x.shape[axis] for axis in node.attributes["axes"]]))
    if not 0 < _largest(x.dtype) * count < 1 << 31:
        return None
    total = rewriter.op("reduce_sum", [rewriter.cast(x, int32)], **node.attributes)
    return rewriter.cast(total, int64)


def _largest(dtype: DType) -> int:
    """The largest size of an integer of at most 16 bits; 0 for other types."""
    if dtype.is_bool:
        return 1
    if not dtype.is_integer or dtype.bits > 16:
        return 0
    return 1 << (dtype.bits - dtype.is_signed)
