"""Makes every result a separate tensor: not an input, a constant, or another result.

A run writes its results into memory that its caller owns, so each must be computed by a node.  Where
that is not so, the result is a copy.
"""

from __future__ import annotations

from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.rewrite import GraphRewriter


def separate_outputs(graph: Graph) -> Graph:
    """Append a `copy` for each output that is an input, a constant or an output already."""
    computed = graph.producers()
    used: set[Value] = set()
    copied: list[int] = []
    for position, value in enumerate(graph.outputs):
        if value in used or _memory(value, computed) not in computed:
            copied.append(position)
        used.add(value)
    if not copied:
        return graph
    rewriter = GraphRewriter(graph)
    rewriter.run({})
    outputs = [rewriter.op("copy", [value]) if n in copied else value for n, value in enumerate(graph.outputs)]
    result = Graph(graph.name, graph.symbols, graph.inputs, outputs, graph.output_names, rewriter.nodes)
    result.constants = graph.constants
    result.keep_facts(graph)
    return result


def _memory(value: Value, computed: dict[Value, Node]) -> Value:
    """The value whose memory this is, seen through reshapes."""
    while value in computed and computed[value].op == "reshape":
        source = computed[value].inputs[0]
        assert source is not None
        value = source
    return value
