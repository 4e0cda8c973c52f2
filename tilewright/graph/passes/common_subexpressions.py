"""Common subexpressions: equal ops on equal inputs are computed once; equal constants are stored once."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.rewrite import GraphRewriter

_COMPARED_BYTES = 4096  # constants up to this size are compared by content, larger ones by memory


def share_common_subexpressions(graph: Graph) -> Graph:
    """One node for each distinct computation; the same graph when there are no repetitions."""
    rewriter = GraphRewriter(graph)
    representative: dict[Any, Value] = {}
    for value, data in graph.constants.items():
        known = representative.setdefault(_constant_key(data), value)
        if known is not value:
            rewriter.replace(value, known)

    def share(node: Node, walk: GraphRewriter) -> Value | None:
        key = (node.op, tuple(map(id, node.inputs)), _attribute_key(node.attributes))
        known = representative.setdefault(key, node.output)
        return None if known is node.output else known

    return rewriter.run({node.op: [share] for node in graph.nodes})


def _constant_key(data: np.ndarray) -> Any:
    if data.nbytes <= _COMPARED_BYTES:
        return (data.dtype.str, data.dtype.name, data.shape, data.tobytes())
    pointer = data.__array_interface__["data"][0]
    return (data.dtype.name, data.shape, pointer, data.strides)


def _attribute_key(attributes: dict[str, Any]) -> Any:
    """Attributes as a hashable key; floats by their text, which keeps -0.0 and 0.0 apart."""
    return tuple((name, repr(item) if isinstance(item, float) else item) for name, item in sorted(attributes.items()))
