"""Canonicalization rules of running sums and their kin, used by `canonicalize`: what is shifted, cut or flipped after
them is shifted, cut or turned in front of them, where GPUs' kernels read through it."""

from __future__ import annotations

from tilewright.graph.core import Node, Value
from tilewright.graph.neutral import RUNNING_KINDS, neutral_element
from tilewright.graph.rewrite import GraphRewriter, Rule
from tilewright.symbolic import lift, simplify


def is_flip(node: Node | None) -> bool:
    """Whether a node is a slice that turns a whole dimension around."""
    if node is None or node.op != "slice" or node.inputs[0] is None:
        return False
    attributes, extent = node.attributes, node.inputs[0].shape[node.attributes["axis"]]
    whole = attributes["step"] == -1 and attributes["stop"] == -1
    return whole and simplify(lift(attributes["start"]) + 1) == extent


def flip_twice(node: Node, rewriter: GraphRewriter) -> Value | None:
    """A dimension that is turned around twice is as it was."""
    inner = rewriter.producer(node.inputs[0], "slice")
    if inner is None or not is_flip(node) or not is_flip(inner):
        return None
    return inner.inputs[0] if inner.attributes["axis"] == node.attributes["axis"] else None


def _running(value: Value | None, rewriter: GraphRewriter) -> Node | None:
    """The running sum, or one of its kin, that computes a value which nothing else reads."""
    inner = rewriter.producer(value, *RUNNING_KINDS)
    return inner if inner is not None and rewriter.uses(inner.output) == 1 else None


def _neutral(running: Node) -> float | int:
    """What changes no result of a running sum, or of one of its kin."""
    return neutral_element(RUNNING_KINDS[running.op], running.output.dtype)


def slice_of_running(node: Node, rewriter: GraphRewriter) -> Value | None:
    """A slice of a running sum is the sum of a slice: where it turns a dimension around, takes a part of another
    dimension, or ends the sum early."""
    inner = _running(node.inputs[0], rewriter)
    if inner is None:
        return None
    reverse, attributes = inner.attributes["reverse"], node.attributes
    if attributes["axis"] == inner.attributes["axis"]:
        extent = inner.output.shape[attributes["axis"]]
        if is_flip(node):
            reverse = not reverse
        elif attributes["step"] != 1 or (attributes["stop"] != extent if reverse else attributes["start"] != 0):
            return None
    source = rewriter.op("slice", inner.inputs, **attributes)
    return rewriter.op(inner.op, [source], axis=inner.attributes["axis"], reverse=reverse)


def pad_of_running(node: Node, rewriter: GraphRewriter) -> Value | None:
    """A running sum with zeros added in front of it alone: the sum of elements that follow zeros."""
    inner = _running(node.inputs[0], rewriter)
    if inner is None or node.attributes["value"] != _neutral(inner):
        return None
    pads, axis = node.attributes["pads"], inner.attributes["axis"]
    if any(low != 0 or high != 0 for place, (low, high) in enumerate(pads) if place != axis):
        return None
    if pads[axis][0 if inner.attributes["reverse"] else 1] != 0:
        return None
    source = rewriter.op("pad", inner.inputs, **node.attributes)
    return rewriter.op(inner.op, [source], **inner.attributes)


def concat_of_running(node: Node, rewriter: GraphRewriter) -> Value | None:
    """The same where the zeros are parts of a concat (an exclusive running sum)."""
    if len(node.inputs) != 2:
        return None
    for place, other in ((1, 0), (0, 1)):
        inner, repeated = _running(node.inputs[place], rewriter), rewriter.producer(node.inputs[other], "broadcast_to")
        number = rewriter.uniform(node.inputs[other] if repeated is None else repeated.inputs[0])
        if inner is None or number is None or number != _neutral(inner):
            continue
        axis, repeats = node.attributes["axis"], node.inputs[other]
        if inner.attributes["axis"] != axis or inner.attributes["reverse"] != (place == 0) or repeats is None:
            continue
        size = repeats.shape[axis]
        pair = (size, 0) if place == 1 else (0, size)
        pads = tuple(pair if dimension == axis else (0, 0) for dimension in range(node.output.rank))
        source = rewriter.op("pad", inner.inputs, pads=pads, value=number)
        return rewriter.op(inner.op, [source], **inner.attributes)
    return None


RUNNING_RULES: dict[str, list[Rule]] = {
    "slice": [flip_twice, slice_of_running],
    "pad": [pad_of_running],
    "concat": [concat_of_running],
}
