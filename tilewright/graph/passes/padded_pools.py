"""Means of few neighbours in padded images on GPUs, as sums: one generated kernel pads, adds and computes what follows.

A kernel of pools reads memory that a launch before it has padded.  Local response normalisation has five channels in
each window, of the squares of an image.
"""

from __future__ import annotations

from itertools import product as combinations

from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.rewrite import GraphRewriter, apply_rules
from tilewright.symbolic import lift, product, simplify

_MOST_TAPS = 9  # of a window


def padded_pools(graph: Graph) -> Graph:
    """The graph with such sums; the same graph when it has none."""
    if not any(node.op == "average_pool" for node in graph.nodes):
        return graph
    return apply_rules(graph, {"average_pool": [_sum]})


def _sum(node: Node, rewriter: GraphRewriter) -> Value | None:
    (x,) = node.inputs
    kernel, layout = node.attributes["kernel"], node.attributes["layout"]
    taps, padded = product(kernel), rewriter.producer(x, "pad")
    if x is None or layout != "NCHW" or not isinstance(taps, int) or taps > _MOST_TAPS or not x.dtype.is_float:
        return None
    if padded is None or any(pads != (0, 0) for pads in node.attributes["padding"]):
        return None
    if node.attributes["ceil_mode"]:  # windows may reach beyond the image
        return None
    x, axes = _without_ones(x, padded, rewriter)
    total: Value | None = None
    for tap in combinations(*map(range, kernel)):
        seen = _elements(node, x, axes, tap, rewriter)
        total = seen if total is None else rewriter.op("add", [total, seen])
    assert total is not None
    rewriter.remark(f"average_pool %{node.output.name} of {taps} elements each is a sum, which pads what it reads")
    mean = rewriter.op("multiply", [total, rewriter.number(1 / taps, x.dtype)])
    return mean if mean.shape == node.output.shape else rewriter.op("reshape", [mean], shape=node.output.shape)


def _without_ones(x: Value, padded: Node, rewriter: GraphRewriter) -> tuple[Value, list[int]]:
    """The padded image without axes of one element that a reshape gave it for the pool, so that what comes before and
    after has its shape; and which of its axes are left."""
    source, pads = padded.inputs[0], padded.attributes["pads"]
    assert source is not None
    axes = [axis for axis, extent in enumerate(source.shape) if extent != 1 or tuple(pads[axis]) != (0, 0)]
    reshaped = rewriter.producer(source, "reshape")
    before = reshaped.inputs[0] if reshaped is not None else None
    if before is None or before.shape != tuple(source.shape[axis] for axis in axes):
        return x, list(range(x.rank))
    own = tuple(pads[axis] for axis in axes)
    return rewriter.op("pad", [before], **{**padded.attributes, "pads": own}), axes


def _elements(node: Node, x: Value, axes: list[int], tap: tuple[int, ...], rewriter: GraphRewriter) -> Value:
    """The elements that all windows have at one of their taps; `axes` of the pool's input are those of `x`."""
    steps = zip(tap, node.attributes["strides"], node.attributes["dilation"], node.output.shape[2:], strict=True)
    for axis, (place, stride, dilation, count) in enumerate(steps, start=2):
        if axis not in axes:
            continue
        start = place * dilation
        stop = simplify((lift(count) - 1) * stride + (start + 1))
        x = rewriter.op("slice", [x], axis=axes.index(axis), start=start, stop=stop, step=stride)
    return x
