"""Extremes whose places are asked for too: tensors are read once, by what finds the places.

    reduce_max(x, axis), argmax(x, axis)  ->  gather_elements(x, argmax(x, axis))

Only of tensors that are in memory in any case: what is computed where it is reduced would have to be stored.
"""

from __future__ import annotations

from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.ops import kind_of
from tilewright.graph.rewrite import GraphRewriter, apply_rules, drop_dead
from tilewright.symbolic import lower_bound

_PLACES = {"reduce_max": "argmax", "reduce_min": "argmin"}


def extremes_at_places(graph: Graph) -> Graph:
    """The graph with such extremes looked up; without nodes that nobody reads where there are places."""
    if not any(node.op in _PLACES.values() for node in graph.nodes):
        return graph
    return apply_rules(drop_dead(graph), {op: [_looked_up] for op in _PLACES})


def _looked_up(node: Node, rewriter: GraphRewriter) -> Value | None:
    source, axes = node.inputs[0], node.attributes["axes"]
    if source is None or len(axes) != 1 or not _is_stored(source, rewriter):
        return None
    op, (axis,) = _PLACES[node.op], axes
    if lower_bound(source.shape[axis]) < 1:  # where no element is, there is no place
        return None
    searches = (other for other in rewriter.old.nodes if other.op == op and other.inputs[0] is source)
    place = next((other for other in searches if other.attributes["axis"] == axis), None)
    if place is None:
        return None
    rewriter.remark(f"{node.op} %{node.output.name} is looked up at the places of %{place.output.name}")
    # As it is asked for, so that both are shared.
    found = rewriter.op(op, [source], **place.attributes)
    shape = (*source.shape[:axis], 1, *source.shape[axis + 1 :])
    value = rewriter.op("gather_elements", [source, rewriter.op("reshape", [found], shape=shape)], axis=axis)
    return rewriter.op("reshape", [value], shape=node.output.shape)


def _is_stored(value: Value, rewriter: GraphRewriter) -> bool:
    """Whether a value is given, a result, or computed by what stores it before others read it."""
    producer = rewriter.producer(value)
    return (
        producer is None or kind_of(producer.op) not in ("elementwise", "movement") or value in rewriter.old.results()
    )
