"""Merges matmuls of one input by several constant weights into one matmul with concatenated weights.

    q = x Wq + bq,  k = x Wk + bk,  v = x Wv + bv   ->   slices of x [Wq Wk Wv] + [bq bk bv]

One large product runs faster than three small ones and reads x once.  It is done where every result is
taken apart by views (heads of attention), and for the two projections of a gate:

    silu(x Wg) * (x Wu)   ->   silu(p[.., :n]) * p[.., n:]   of   p = x [Wg Wu]

whose halves `fuse` gives to the product as its epilogue.  Other results that go straight into elementwise
ops are better left to the epilogue of their own product.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.ops import kind_of
from tilewright.graph.rewrite import GraphRewriter
from tilewright.symbolic import Size

_VIEWS = {"reshape", "permute", "slice"}


@dataclass(frozen=True)
class _Projection:
    """A matmul with constant weights, the bias add after it if there is one, and their result."""

    product: Node
    result: Value
    bias: Value | None

    @property
    def width(self) -> Size:
        """Columns of the product."""
        return self.product.output.shape[-1]


def merge_matmuls(graph: Graph) -> Graph:
    """Merge projections of one input; the same graph when there are none."""
    families = _ProjectionSearch(graph).families()
    if not families:
        return graph
    by_first = {family[0].product.output: family for family in families}

    def merge(node: Node, rewriter: GraphRewriter) -> Value | None:
        family = by_first.get(node.output)
        if family is not None:
            _merge(family, node, rewriter)
        return None

    return GraphRewriter(graph).run({"matmul": [merge]})


def _merge(family: list[_Projection], node: Node, rewriter: GraphRewriter) -> None:
    """Emit the merged product where the first one stands, and let readers use slices of it."""
    transposed = node.attributes["transpose_b"]
    weights = [rewriter.constants[weight] for item in family if (weight := item.product.inputs[1]) is not None]
    joined = rewriter.new_constant(np.concatenate(weights, axis=0 if transposed else 1), "merged_weight")
    result = rewriter.op("matmul", [node.inputs[0], joined], **node.attributes)
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


class _ProjectionSearch:
    """What projections of a graph are read by."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.users = graph.users()
        self.results = set(graph.results())

    def families(self) -> list[list[_Projection]]:
        """Projections that become one product, each family in graph order."""
        viewed: dict[tuple[Any, ...], list[_Projection]] = {}
        gated: dict[tuple[Any, ...], list[_Projection]] = {}
        for node in self.graph.nodes:
            found = self._projection(node)
            if found is None or node.inputs[0] is None:
                continue
            x, w = node.inputs[:2]
            family = (x, node.attributes["transpose_b"], node.attributes["dtype"], None if w is None else w.dtype)
            readers = self.users.get(found.result, [])
            if all(reader.op in _VIEWS for reader in readers):
                viewed.setdefault(family, []).append(found)
                continue
            meeting = self._meeting(found.result)
            if meeting is not None:
                gated.setdefault((*family, meeting.output), []).append(found)
        pairs = [pair for pair in gated.values() if len(pair) == 2 and pair[0].width == pair[1].width]
        return [family for family in viewed.values() if len(family) > 1] + pairs

    def _projection(self, node: Node) -> _Projection | None:
        constants = self.graph.constants
        if node.op != "matmul" or node.inputs[1] not in constants or constants[node.inputs[1]].ndim != 2:
            return None
        if node.attributes["transpose_a"]:
            return None
        result, bias = node.output, None
        readers = self.users.get(result, [])
        if len(readers) == 1 and readers[0].op == "add" and result not in self.results:
            other = [item for item in readers[0].inputs if item is not result]
            if len(other) == 1 and other[0] in constants and other[0].shape == result.shape[-1:]:
                bias, result = other[0], readers[0].output
        return _Projection(node, result, bias) if result not in self.results else None

    def _meeting(self, value: Value) -> Node | None:
        """The elementwise node of two operands that a value reaches through ops of one operand and one reader."""
        while value not in self.results:
            readers = self.users.get(value, [])
            if len(readers) != 1 or kind_of(readers[0].op) != "elementwise" or readers[0].output.shape != value.shape:
                return None
            node = readers[0]
            operands = [item for item in node.inputs if item is not None and item.rank > 0]
            if len(operands) == 2 and all(item.shape == value.shape for item in operands):
                return node
            if len(operands) != 1:
                return None
            value = node.output
        return None
