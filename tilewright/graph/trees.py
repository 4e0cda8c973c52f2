"""The graph op `tree_leaves`: the leaf of each tree of decisions that a row reaches; its type and meaning.

    x       [rows, columns] float32, float64 or int32: the numbers that nodes compare
    nodes   [nodes] int32 or int64: `column_bits` bits of a column, above them the place of the first child in its tree
    limits  [nodes], of the type of x
    roots   [trees] int32: the places of the first node of each tree, whose nodes follow each other
    depths  [trees] int32: the longest ways, falling
    result  [rows, trees] int32: places of nodes

From a node a row goes to the first child, or to the one after it if its number is greater than the limit (NaN is not).
A leaf is its own first child, and no number is greater than its limit.
"""

from __future__ import annotations

import numpy as np

from tilewright.dtypes import float32, float64, int32, int64
from tilewright.errors import ShapeError
from tilewright.graph.inference import Attributes, Inputs, Types, value
from tilewright.graph.semantics import Array, Arrays


def tree_leaves_type(inputs: Inputs, attributes: Attributes) -> Types:
    """Raises `ShapeError` for operands that are not of their types or do not fit together."""
    x, nodes, limits, roots, depths = (value(inputs, index) for index in range(5))
    if x.rank != 2 or x.dtype not in (float32, float64, int32) or limits.dtype != x.dtype:
        raise ShapeError(f"{x!r} and the limits {limits!r} are float32, float64 or int32, in rows of numbers")
    if nodes.dtype not in (int32, int64) or roots.dtype != int32 or depths.dtype != int32:
        raise ShapeError(f"the nodes {nodes!r} are int32 or int64, the roots {roots!r} and depths {depths!r} int32")
    if nodes.rank != 1 or limits.shape != nodes.shape or roots.rank != 1 or depths.shape != roots.shape:
        raise ShapeError(f"{nodes!r} and {limits!r}, or {roots!r} and {depths!r}, are no lists of one length")
    if not 0 < attributes["column_bits"] < nodes.dtype.bits:
        raise ShapeError(f"{attributes['column_bits']} bits of {nodes!r} say which column")
    return [(int32, (x.shape[0], roots.shape[0]))]


def tree_leaves(inputs: Arrays, attributes: Attributes) -> Array:
    """All trees take one step at a time."""
    x, nodes, limits, roots, depths = inputs
    bits = attributes["column_bits"]
    place = np.broadcast_to(roots.astype(np.int64), (len(x), len(roots)))
    for _ in range(int(depths.max(initial=0))):
        node = nodes[place].astype(np.int64)
        number = np.take_along_axis(x, node & ((1 << bits) - 1), axis=1)
        place = roots + (node >> bits) + (number > limits[place])
    return place.astype(np.int32)
