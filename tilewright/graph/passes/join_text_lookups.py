"""Lookups of texts: one of the host finds the texts of a tensor in all tables, and parts read the tables of numbers.

    position(gather(x, columns), keys)   becomes   gather(table, gather(position(x, all keys), columns))

where `table` has the place in `keys` of each of all keys, and at its end -1, for a text that is none of them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.rewrite import GraphRewriter
from tilewright.symbolic import at_most, product

_MOVED = ("gather", "slice", "reshape", "permute")  # that only move texts, which are their first input


def join_text_lookups(graph: Graph) -> Graph:
    """The graph with the lookups in parts of one tensor of texts made at once, where these are no more texts."""
    producer = graph.producers().get
    lookups: dict[Value, list[Node]] = {}
    for node in graph.nodes:
        if node.op == "text_position":
            lookups.setdefault(_moves(node, producer)[0], []).append(node)
    joined = {source: nodes for source, nodes in lookups.items() if len(nodes) > 1 and _is_covered(source, nodes)}
    if not joined:
        return graph
    rewriter = GraphRewriter(graph, keeps_all=True)

    def look_up(node: Node, rewriter: GraphRewriter) -> Value | None:
        source, moves = _moves(node, rewriter.producer)
        if source not in joined:
            return None
        keys = tuple(dict.fromkeys(key for other in joined[source] for key in other.attributes["keys"]))
        if source not in rewriter.memory:
            rewriter.memory[source] = rewriter.op("text_position", [source], keys=keys)
        places = rewriter.memory[source]
        for move in moves:
            places = rewriter.op(move.op, [places, *move.inputs[1:]], **move.attributes)
        own = {key: place for place, key in enumerate(node.attributes["keys"])}
        table = np.array([*(own.get(key, -1) for key in keys), -1], np.int64)
        return rewriter.op("gather", [rewriter.new_constant(table, "places"), places], axis=0)

    return rewriter.run({"text_position": [look_up]})


def _moves(node: Node, producer: Callable[[Value], Node | None]) -> tuple[Value, list[Node]]:
    """The tensor whose texts a lookup finds, and what moves them, in order."""
    found: list[Node] = []
    while True:
        source = (found or [node])[-1].inputs[0]
        assert source is not None
        mover = producer(source)
        if mover is None or mover.op not in _MOVED:
            return source, found[::-1]
        found.append(mover)


def _is_covered(source: Value, nodes: list[Node]) -> bool:
    """Whether the lookups are of at least as many texts as there are."""
    looked_up = sum((product(node.output.shape) for node in nodes), start=0)
    return at_most(product(source.shape), looked_up)
