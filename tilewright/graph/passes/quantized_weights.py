"""Integers that a model makes of its weights when it runs become constants.

    dequantize(cast(clip(round(w / scale))), scale)  ->  dequantize(integers, scale)

Models after quantization-aware training keep floats, and so do ONNX files with QuantizeLinear after a weight.  Each
step is rounded to its type, as the run would do it.
"""

from __future__ import annotations

import numpy as np

from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.ops import kind_of
from tilewright.graph.passes.fold_constants import SIZE_LIMIT
from tilewright.graph.reference import run_node
from tilewright.graph.rewrite import GraphRewriter
from tilewright.symbolic import Expression, product

_KINDS = frozenset({"elementwise", "view", "movement", "reduction", "source"})


def quantized_weights(graph: Graph) -> Graph:
    """The graph in which what `dequantize` reads is constant, if constants alone decide on it."""
    found = _Computed(graph)
    if not any(node.op == "dequantize" and node.inputs[0] in found.rounded for node in graph.nodes):
        return graph

    def rule(node: Node, rewriter: GraphRewriter) -> Value | None:
        x = node.inputs[0]
        if x is None or x not in found.rounded:
            return None
        return rewriter.op("dequantize", [rewriter.new_constant(found.array(x), x.name), *node.inputs[1:]])

    return GraphRewriter(graph).run({"dequantize": [rule]})


class _Computed:
    """What constants alone decide on, worked out when it is asked for; `rounded`: what is rounded on the way."""

    def __init__(self, graph: Graph) -> None:
        self._producers = graph.producers()
        self._arrays: dict[Value, np.ndarray] = dict(graph.constants)
        self._sizes = {value: data.nbytes for value, data in graph.constants.items()}  # of constants read, in bytes
        self.rounded: set[Value] = set()
        for node in graph.nodes:
            self._add(node)

    def _add(self, node: Node) -> None:
        if kind_of(node.op) not in _KINDS and node.op != "quantize":
            return
        if node.op == "random_bits" or not all(item is None or item in self._sizes for item in node.inputs):
            return
        if any(isinstance(size, Expression) for size in (*node.output.shape, *node.attributes.values())):
            return  # only the run knows them
        read = sum(self._sizes[item] for item in node.inputs if item is not None)
        size = product(node.output.shape)
        if not isinstance(size, int) or size * node.output.dtype.bits // 8 > max(SIZE_LIMIT, read):
            return
        self._sizes[node.output] = read
        if node.op in ("round", "quantize") or any(item in self.rounded for item in node.inputs):
            self.rounded.add(node.output)

    def array(self, value: Value) -> np.ndarray:
        """The elements, each step rounded to its type."""
        if value not in self._arrays:
            node = self._producers[value]
            inputs = [None if item is None else self.array(item) for item in node.inputs]
            self._arrays[value] = run_node(node, inputs, {})
        return self._arrays[value]
