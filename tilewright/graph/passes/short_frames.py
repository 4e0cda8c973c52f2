"""Reductions of few neighbours on GPUs (moving averages), as elementwise operations: one kernel reads along memory.

    reduce_mean(frames(x, length=3), length)  ->  (x[0:n] + x[1:n + 1] + x[2:n + 2]) / 3

A kernel of rows would have a thread for each neighbour, whatever axis they lie along.
"""

from __future__ import annotations

from tilewright.dtypes import float32
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.ops import kind_of
from tilewright.graph.rewrite import GraphRewriter, apply_rules
from tilewright.symbolic import lift, lower_bound, simplify

_MOST_NEIGHBOURS = 9
_COMBINED = {"reduce_sum": "add", "reduce_mean": "add", "reduce_max": "maximum", "reduce_min": "minimum",
             "reduce_product": "multiply"}  # fmt: skip


def short_frames(graph: Graph) -> Graph:
    """The graph with such sums and extremes; the same graph when it has none."""
    if not any(node.op == "frames" for node in graph.nodes):
        return graph
    return apply_rules(graph, {op: [_by_element] for op in _COMBINED})


def _by_element(node: Node, rewriter: GraphRewriter) -> Value | None:
    frames, order = _frames_of(node.inputs[0], rewriter)
    if frames is None or [order[axis] for axis in node.attributes["axes"]] != [frames.attributes["axis"] + 1]:
        return None
    x, axis, length = frames.inputs[0], frames.attributes["axis"], frames.attributes["length"]
    if x is None or not isinstance(length, int) or not 0 < length <= _MOST_NEIGHBOURS or not _is_read(x, rewriter):
        return None
    if lower_bound(x.shape[axis]) < length:  # where slices end otherwise than all frames
        return None
    if node.output.dtype != x.dtype or (node.op == "reduce_mean" and not x.dtype.is_float):
        return None
    rewriter.remark(f"{node.op} %{node.output.name} of {length} neighbours each is elementwise")
    result = _combined(node.op, x, frames, rewriter)
    if node.op == "reduce_mean":
        result = rewriter.op("multiply", [result, rewriter.number(1 / length, result.dtype)])
    remaining = [place if place <= axis else place - 1 for place in order if place != axis + 1]
    result = rewriter.op("permute", [rewriter.cast(result, x.dtype)], order=tuple(remaining))
    return rewriter.op("reshape", [result], shape=node.output.shape)


def _frames_of(value: Value | None, rewriter: GraphRewriter) -> tuple[Node | None, tuple[int, ...]]:
    """The frames that a value is, read by nothing else, and the order of their axes."""
    if value is None or rewriter.uses(value) > 1:
        return None, ()
    moved = rewriter.producer(value, "permute")
    if moved is not None:
        frames, order = _frames_of(moved.inputs[0], rewriter)
        return frames, tuple(order[axis] for axis in moved.attributes["order"]) if frames is not None else ()
    return rewriter.producer(value, "frames"), tuple(range(value.rank))


def _is_read(x: Value, rewriter: GraphRewriter) -> bool:
    """Whether a value is in memory: what is computed would be computed again for each neighbour."""
    producer = rewriter.producer(x)
    return producer is None or kind_of(producer.op) != "elementwise"


def _combined(op: str, x: Value, frames: Node, rewriter: GraphRewriter) -> Value:
    """Of each frame of `x` all elements combined; sums and products of 16-bit floats in float32."""
    axis, step = frames.attributes["axis"], frames.attributes["step"]
    wide = x.dtype.is_float and x.dtype.bits < 32 and op not in ("reduce_max", "reduce_min")
    last = simplify((lift(frames.attributes["count"]) - 1) * step + 1)
    total: Value | None = None
    for start in range(frames.attributes["length"]):
        stop = simplify(lift(last) + start)
        seen = rewriter.op("slice", [x], axis=axis, start=start, stop=stop, step=step)
        seen = rewriter.cast(seen, float32) if wide else seen
        total = seen if total is None else rewriter.op(_COMBINED[op], [total, seen])
    assert total is not None
    return total
