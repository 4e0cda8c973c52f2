"""Cross entropy: a softmax's logarithm of which only a few elements are read is never stored.

gather_elements(log_softmax(x), i)  ->  gather_elements(x, i) - log_sum_exp(x)
"""

from __future__ import annotations

from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.rewrite import GraphRewriter, apply_rules


def recognise_losses(graph: Graph) -> Graph:
    """Replace gathers out of logarithms of softmax; casts whose elements are gathered move after the gather."""
    return apply_rules(graph, {"gather_elements": [_of_log_softmax, _of_cast]})


def _of_log_softmax(node: Node, rewriter: GraphRewriter) -> Value | None:
    table, indices = node.inputs
    logarithm = rewriter.producer(table, "log_softmax")
    axis = node.attributes["axis"]
    if logarithm is None or indices is None or rewriter.uses(logarithm.output) > 1:
        return None
    last = logarithm.output.rank - 1
    if axis != last or logarithm.attributes["axis"] != last or indices.shape[:-1] != logarithm.output.shape[:-1]:
        return None
    chosen = rewriter.op("gather_elements", [logarithm.inputs[0], indices], axis=axis)
    total = rewriter.op("reduce_log_sum_exp", logarithm.inputs, axes=(axis,), keepdims=True)
    rewriter.remark(f"the log softmax %{logarithm.output.name} is computed where %{node.output.name} reads it")
    return rewriter.op("subtract", [chosen, total])


def _of_cast(node: Node, rewriter: GraphRewriter) -> Value | None:
    source = rewriter.producer(node.inputs[0], "cast")
    if source is None:
        return None
    chosen = rewriter.op("gather_elements", [source.inputs[0], node.inputs[1]], axis=node.attributes["axis"])
    return rewriter.op("cast", [chosen], **source.attributes)
