"""Matmuls of one input with several constant weights become one matmul with the weights side by side.

    q = x Wq + bq,  k = x Wk + bk,  v = x Wv + bv   ->   slices of x [Wq Wk Wv] + [bq bk bv]

One large product runs faster than three small ones and reads x once.  It is done only where every
result is taken apart by views (heads of attention): results that go straight into elementwise ops
are better left to the epilogue of their own product (gate and up projections).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.rewrite import Rewriter

_VIEWS = {"reshape", "permute", "slice"}


@dataclass(frozen=True)
class _Projection:
    """A matmul with constant weights, the bias add after it if there is one, and their result."""

    product: Node
    result: Value
    bias: Value | None


def merge_matmuls(graph: Graph) -> Graph:
    """Merge projections of one input; the same graph when there are none."""
    families = [family for family in _families(graph).values() if len(family) > 1]
    if not families:
        return graph
    by_first = {family[0].product.output: family for family in families}

    def merge(node: Node, rewriter: Rewriter) -> Value | None:
        family = by_first.get(node.output)
        if family is not None:
            _merge(family, node, rewriter)
        return None

    return Rewriter(graph).run({"matmul": [merge]})


def _merge(family: list[_Projection], node: Node, rewriter: Rewriter) -> None:
    """Emit the merged product where the first one stands, and let readers use slices of it."""
    transposed = node.attributes["transpose_b"]
    weights = [rewriter.constants[weight] for item in family if (weight := item.product.inputs[1]) is not None]
    joined = rewriter.new_constant(np.concatenate(weights, axis=0 if transposed else 1), "merged_weight")
    result = rewriter.op("matmul", [node.inputs[0], joined], transpose_b=transposed)
    rewriter.remark(f"{len(family)} matmuls of one input are one, %{result.name}")
    widths = [weight.shape[0 if transposed else 1] for weight in weights]
    if any(item.bias is not None for item in family):
        parts = [
            np.zeros(width, joined.dtype.numpy) if item.bias is None else rewriter.constants[item.bias]
            for item, width in zip(family, widths, strict=True)
        ]
        result = rewriter.op("add", [result, rewriter.new_constant(np.concatenate(parts), "merged_bias")])
    start = 0
    for item, width in zip(family, widths, strict=True):
        piece = rewriter.op("slice", [result], axis=result.rank - 1, start=start, stop=start + width)
        rewriter.replace(item.result, piece)
        start += width


def _families(graph: Graph) -> dict[tuple[Value, bool], list[_Projection]]:
    """Projections by input and orientation of the weights, in graph order."""
    users = graph.users()
    results = set(graph.results())
    families: dict[tuple[Value, bool], list[_Projection]] = {}
    for node in graph.nodes:
        found = _projection(node, graph, users, results)
        if found is not None and node.inputs[0] is not None:
            families.setdefault((node.inputs[0], node.attributes["transpose_b"]), []).append(found)
    return families


def _projection(node: Node, graph: Graph, users: dict[Value, list[Node]], results: set[Value]) -> _Projection | None:
    if node.op != "matmul" or node.inputs[1] not in graph.constants or graph.constants[node.inputs[1]].ndim != 2:
        return None
    result, bias = node.output, None
    readers = users.get(result, [])
    if len(readers) == 1 and readers[0].op == "add" and result not in results:
        other = [item for item in readers[0].inputs if item is not result]
        if len(other) == 1 and other[0] in graph.constants and other[0].shape == result.shape[-1:]:
            bias, result = other[0], readers[0].output
    viewed = all(reader.op in _VIEWS for reader in users.get(result, []))
    return _Projection(node, result, bias) if viewed and result not in results else None
