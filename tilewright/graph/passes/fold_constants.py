"""Constant folding: ops on constants are computed now, unless that would store much more than it saves."""

from __future__ import annotations

import numpy as np

from tilewright.dtypes import float64
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.ops import kind_of
from tilewright.graph.reference import run_node
from tilewright.graph.rewrite import Rewriter, apply_rules
from tilewright.symbolic import Expression, product

SIZE_LIMIT = 1 << 16  # bytes that folding may add for one node; more only when the inputs are as large


def fold_constants(graph: Graph) -> Graph:
    """Replace every node whose inputs are all constant, within the size limit, by its value.

    Arithmetic is done in float64 and rounded once to the value's element type.
    """
    return apply_rules(graph, {node.op: [_fold] for node in graph.nodes})


def _fold(node: Node, rewriter: Rewriter) -> Value | None:
    arrays = [rewriter.constant(item) for item in node.inputs]
    if any(array is None and item is not None for array, item in zip(arrays, node.inputs, strict=True)):
        return None
    elements = product(node.output.shape)
    if any(map(_is_symbolic, node.attributes.values())) or not isinstance(elements, int):
        return None
    size = elements * node.output.dtype.itemsize
    if size > max(SIZE_LIMIT, sum(array.nbytes for array in arrays if array is not None)):
        return None
    if node.op == "broadcast_to" and size > sum(array.nbytes for array in arrays if array is not None):
        return None  # the reader broadcasts; repeated elements say nothing new
    moves = kind_of(node.op) in ("movement", "view")
    working = None if moves else float64
    arrays = [_widened(array, moves) for array in arrays]
    result = run_node(node, arrays, {}, working)
    # `order="C"` and not `ascontiguousarray`, which makes scalars one-dimensional.
    folded = np.array(result, node.output.dtype.numpy, order="C", copy=None)
    return rewriter.new_constant(folded, node.output.name)


def _widened(array: np.ndarray | None, moves: bool) -> np.ndarray | None:
    if array is None or moves or array.dtype.kind in "iub":
        return array
    return array.astype(np.float64)


def _is_symbolic(item: object) -> bool:
    if isinstance(item, tuple):
        return any(map(_is_symbolic, item))
    return isinstance(item, Expression)
