"""Adaptive pools of the largest elements on GPUs: one reduction for all parts of an axis.

    concat(reduce_max(slice(x, 0:11)), reduce_max(slice(x, 10:22)), ...)  ->  reduce_max(gather(x, places [parts, 12]))

Importers write a reduction for each part, which CPUs do well; on GPUs each is a launch.  The places of shorter parts
name their last element again, which changes no extreme.  Parts that follow each other and are of one size need no
places.
"""

from __future__ import annotations

import numpy as np

from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.rewrite import GraphRewriter, apply_rules

_EXTREMES = ("reduce_max", "reduce_min")
_FEWEST = 3  # parts
_MOST_READ = 4  # times the elements of the axis that are read, of the longest part for each

Part = tuple[int, int]  # its first element, and the one after its last


def extremes_of_parts(graph: Graph) -> Graph:
    """The graph with such reductions; the same graph when it has none."""
    if not any(node.op == "concat" for node in graph.nodes):
        return graph
    return apply_rules(graph, {"concat": [_joined]})


def _joined(node: Node, rewriter: GraphRewriter) -> Value | None:
    reduction = rewriter.producer(node.inputs[0], *_EXTREMES)
    if reduction is None or len(node.inputs) < _FEWEST:
        return None
    first = rewriter.producer(reduction.inputs[0], "slice")
    axis, source = node.attributes["axis"], first.inputs[0] if first is not None else None
    found = [_part(item, axis, reduction.op, source, rewriter) for item in node.inputs]
    parts = [part for part in found if part is not None]
    if source is None or len(parts) < len(found):
        return None
    members = _members(source, axis, parts, rewriter)
    if members is None:
        return None
    rewriter.remark(f"{len(parts)} {reduction.op} of parts of %{source.name} are one")
    return rewriter.op(reduction.op, [members], axes=(axis + 1,), keepdims=False)


def _part(item: Value | None, axis: int, op: str, source: Value | None, rewriter: GraphRewriter) -> Part | None:
    """The part of an axis of `source` that a value is the extreme of."""
    node = rewriter.producer(item, op)
    if item is None or node is None or rewriter.uses(item) > 1:
        return None
    seen = rewriter.producer(node.inputs[0], "slice")
    if tuple(node.attributes["axes"]) != (axis,) or not node.attributes["keepdims"] or seen is None:
        return None
    start, stop = seen.attributes["start"], seen.attributes["stop"]
    whole = isinstance(start, int) and isinstance(stop, int) and seen.attributes["step"] == 1
    return (start, stop) if whole and seen.attributes["axis"] == axis and seen.inputs[0] is source else None


def _members(source: Value, axis: int, parts: list[Part], rewriter: GraphRewriter) -> Value | None:
    """The parts' elements as [..., parts, elements, ...]; None where that is too many."""
    extent, width = source.shape[axis], max(stop - start for start, stop in parts)
    if parts == [(place * width, (place + 1) * width) for place in range(len(parts))] and extent == len(parts) * width:
        shape = (*source.shape[:axis], len(parts), width, *source.shape[axis + 1 :])
        return rewriter.op("reshape", [source], shape=shape)
    if not isinstance(extent, int) or len(parts) * width > _MOST_READ * extent:
        return None
    starts, stops = (np.array(ends)[:, None] for ends in zip(*parts, strict=True))
    places = np.minimum(starts + np.arange(width), stops - 1).astype(np.int64)
    return rewriter.op("gather", [source, rewriter.new_constant(places, "places")], axis=axis)
