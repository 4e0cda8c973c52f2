"""Masks that are the first rows and columns of a constant: `mask[:T, :T]`, for T that is known at run time.

Models store a mask for their longest input and read a corner of it. What is computed of a corner element by element is
computed here of the whole constant, whose form then tells that of every corner.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.graph.core import Node, Value
from tilewright.graph.ops import definition, kind_of
from tilewright.graph.rewrite import GraphRewriter
from tilewright.symbolic import Size, lift, simplify

_DEEPEST = 8  # operations nested deeper are not looked at; sums of sums would take exponential time
_LARGEST = 1 << 26  # elements of a constant that are computed to find a mask


@dataclass(frozen=True)
class Corner:
    """A matrix whose element (i, j) is that of `elements` in row `first` + i and column j."""

    elements: np.ndarray
    first: Size


def corner_of_mask(value: Value, rows: Size, keys: Size, rewriter: GraphRewriter) -> np.ndarray | None:
    """The whole constant of which a mask or bias [.., rows, keys] is a corner, its last row that of the last key."""
    found = corner_of(value, rewriter) if value.shape[-2:] == (rows, keys) else None
    if found is None or simplify(lift(keys) - rows - found.first) != 0:
        return None
    return found.elements


def corner_of(value: Value | None, rewriter: GraphRewriter, depth: int = _DEEPEST) -> Corner | None:
    """The corner that a value is, the same for every leading position; None where it is nothing of the kind."""
    if value is None or value.rank < 2 or depth == 0:
        return None
    data = rewriter.constant(value)
    if data is not None:
        matrix = data.shape[-2:]
        return Corner(data.reshape(matrix), 0) if data.size == np.prod(matrix) <= _LARGEST else None
    node = rewriter.producer(value)
    if node is None or len(node.outputs) != 1:
        return None
    if node.op == "slice":
        return _sliced(node, rewriter, depth)
    if node.op in ("reshape", "broadcast_to"):
        return corner_of(node.inputs[0], rewriter, depth - 1) if keeps_matrix(node) else None
    return _computed(node, rewriter, depth) if kind_of(node.op) == "elementwise" else None


def keeps_matrix(node: Node) -> bool:
    """Whether a broadcast or reshape only adds leading dimensions."""
    source = node.inputs[0]
    return source is not None and source.rank >= 2 and node.output.shape[-2:] == source.shape[-2:]


def _sliced(node: Node, rewriter: GraphRewriter, depth: int) -> Corner | None:
    found = corner_of(node.inputs[0], rewriter, depth - 1)
    start, axis = node.attributes["start"], node.attributes["axis"] - node.output.rank
    if found is None or node.attributes["step"] != 1 or (isinstance(start, int) and start < 0) or axis < -2:
        return None
    if axis == -1:
        return found if start == 0 else None
    return Corner(found.elements, simplify(lift(found.first) + start))


def _computed(node: Node, rewriter: GraphRewriter, depth: int) -> Corner | None:
    """An elementwise operation on corners of one place, and numbers."""
    operands: list[np.ndarray] = []
    corners: list[Corner] = []
    for item in node.inputs:
        number = rewriter.uniform(item)
        if item is None:
            return None
        if number is not None:
            operands.append(np.array(number, item.dtype.numpy))
            continue
        found = corner_of(item, rewriter, depth - 1)
        if found is None:
            return None
        corners.append(found)
        operands.append(found.elements)
    if not corners or any(each.elements.shape != corners[0].elements.shape for each in corners):
        return None
    if any(simplify(lift(each.first) - corners[0].first) != 0 for each in corners):
        return None
    with np.errstate(all="ignore"):
        result = np.asarray(definition(node.op).compute(operands, node.attributes))
    return Corner(result.astype(node.output.dtype.numpy), corners[0].first)
