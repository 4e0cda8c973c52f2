"""Dead code: nodes and constants that no result needs."""

from __future__ import annotations

from tilewright.graph.core import Graph
from tilewright.graph.rewrite import drop_dead


def eliminate_dead_code(graph: Graph) -> Graph:
    """The graph without what no output and no mutation needs; all ops are pure."""
    return drop_dead(graph)
