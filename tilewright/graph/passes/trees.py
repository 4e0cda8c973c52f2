"""Leaves of trees by lookups, for targets without a kernel: all trees of like depth take one step at a time."""

from __future__ import annotations

import numpy as np

from tilewright.dtypes import int32
from tilewright.errors import UnsupportedOperationError
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.rewrite import GraphRewriter, apply_rules

_MOST_TREE_PARTS = 4  # of trees of like depth
_PART_COST = 32  # trees that take a step in the time that a kernel takes to begin


def trees_as_steps(graph: Graph) -> Graph:
    """All of them. Raises `UnsupportedOperationError` for trees that are no constants."""
    return apply_rules(graph, {"tree_leaves": [_as_steps]})


def _as_steps(node: Node, rewriter: GraphRewriter) -> Value:
    x, nodes, limits, roots, depths = (value for value in node.inputs if value is not None)
    known = [rewriter.constant(value) for value in (nodes, roots, depths)]
    if any(data is None for data in known):
        raise UnsupportedOperationError(
            f"{node.source or 'the graph'}: trees that are computed have no kernel here; give constants, or use a CPU"
        )
    numbers, begins, longest = (np.asarray(data) for data in known)
    walk = _TreeSteps(rewriter, x, nodes, limits, numbers, int(node.attributes["column_bits"]))
    parts = [walk.leaves(begins[begin:end], int(longest[begin])) for begin, end in _like_depths(longest)]
    return parts[0] if len(parts) == 1 else rewriter.op("concat", parts, axis=1)


class _TreeSteps:
    """The steps of rows `x` through trees."""

    def __init__(
        self, rewriter: GraphRewriter, x: Value, nodes: Value, limits: Value, numbers: np.ndarray, column_bits: int
    ) -> None:
        self._rewriter, self._x, self._nodes, self._limits = rewriter, x, nodes, limits
        self._numbers, self._bits = numbers, column_bits

    def leaves(self, roots: np.ndarray, depth: int) -> Value:
        """The leaves of some trees; the columns of their roots are known."""
        rewriter, mask = self._rewriter, (1 << self._bits) - 1
        begins = rewriter.new_constant(roots.astype(np.int32), "roots")
        reached = rewriter.op("broadcast_to", [begins], shape=(self._x.shape[0], len(roots)))
        node = rewriter.new_constant(self._numbers[roots], "first")
        column = rewriter.new_constant((self._numbers[roots] & mask).astype(np.int32), "columns")
        number = rewriter.op("gather", [self._x, column], axis=1)
        for step in range(depth):
            if step > 0:
                node = rewriter.op("gather", [self._nodes, reached], axis=0)
                column = rewriter.op("bitwise_and", [node, rewriter.number(mask, node.dtype)])
                number = rewriter.op("gather_elements", [self._x, column], axis=1)
            beyond = rewriter.op("greater", [number, rewriter.op("gather", [self._limits, reached], axis=0)])
            child = rewriter.op("shift_right", [node, rewriter.number(self._bits, node.dtype)])
            child = rewriter.op("add", [begins, rewriter.cast(child, int32)])
            reached = rewriter.op("add", [child, rewriter.cast(beyond, int32)])
        return reached


def _like_depths(depths: np.ndarray) -> list[tuple[int, int]]:
    """Trees of falling depths in a few parts: those that take the fewest steps in all."""
    ends = [*(np.flatnonzero(np.diff(depths)) + 1).tolist(), len(depths)]
    begins = [0, *ends[:-1]]
    least: dict[int, tuple[int, tuple[int, ...]]] = {0: (0, ())}  # the steps to each end, and the ends of parts
    for _ in range(_MOST_TREE_PARTS):
        found = dict(least)
        for end in ends:
            for begin in (begin for begin in begins if begin < end and begin in least):
                steps = least[begin][0] + int(depths[begin]) * (end - begin + _PART_COST)
                if end not in found or steps < found[end][0]:
                    found[end] = (steps, (*least[begin][1], end))
        least = found
    parts = least[len(depths)][1]
    return list(zip((0, *parts[:-1]), parts, strict=True))
