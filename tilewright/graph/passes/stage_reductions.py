"""Splits reductions of row operations' results over their axes and others into two steps.

sum(f(softmax(x)), all axes)      -> sum(sum(f(softmax(x)), rows), the rest)
mean(f(layer_norm(x)), all axes)  -> mean(mean(f(layer_norm(x)), rows), the rest)

The first step is computed where the row is; only one number of each row is written.  Sums of 16-bit floats are handed
over in float32.
"""

from __future__ import annotations

from tilewright.dtypes import float32
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.ops import kind_of
from tilewright.graph.rewrite import GraphRewriter, apply_rules
from tilewright.graph.row_spaces import ROW_OPS, ROW_REDUCTIONS, RowSpace, space_of

_MOST_BETWEEN = 32  # elementwise ops between a row operation and what is reduced


def stage_reductions(graph: Graph) -> Graph:
    """The graph with such reductions in two steps."""
    return apply_rules(graph, {op: [_staged] for op in ROW_REDUCTIONS})


def _staged(node: Node, rewriter: GraphRewriter) -> Value | None:
    source, space = node.inputs[0], space_of(node)
    if source is None or space is None:
        return None
    rows = _row_axes(source, space, rewriter)
    if rows is None:
        return None
    wide = source.dtype.is_float and source.dtype.bits < 32 and node.op not in ("reduce_max", "reduce_min")
    first = rewriter.op(node.op, [rewriter.cast(source, float32) if wide else source], axes=rows, keepdims=True)
    result = rewriter.op(node.op, [first], axes=node.attributes["axes"], keepdims=node.attributes["keepdims"])
    rewriter.remark(f"{node.op} %{node.output.name} is one of each row, and then one of those")
    return rewriter.cast(result, node.output.dtype)


def _row_axes(source: Value, space: RowSpace, rewriter: GraphRewriter) -> tuple[int, ...] | None:
    """The axes of a row operation that a value with its shape follows from, if more than these are reduced."""
    waiting, seen = [source], set[Value]()
    while waiting and len(seen) < _MOST_BETWEEN:
        value = waiting.pop()
        node = rewriter.producer(value)
        if node is None or value in seen:
            continue
        seen.add(value)
        own = space_of(node) if node.op in ROW_OPS else None
        if own is not None and own.shape == space.shape:
            return own.axes if set(own.axes) < set(space.axes) else None
        if kind_of(node.op) == "elementwise":
            waiting += [item for item in node.inputs if item is not None]
    return None
