"""Products with quantized weights only, or with smoothed inputs; the mean shift that rounding causes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set

import numpy as np

from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.rewrite import GraphRewriter
from tilewright.importers.quantized_weights import QuantizedMatrix
from tilewright.quant.layers import Layer, name_of
from tilewright.quant.rounding import Moments, RoundedWeights, smoothing


def matrix_of(node: Node, constants: Mapping[Value, np.ndarray]) -> np.ndarray:
    """The weights of a product [columns, depth] in float32."""
    assert node.inputs[1] is not None
    data = constants[node.inputs[1]].astype(np.float32)
    return data if node.attributes["transpose_b"] else np.ascontiguousarray(data.T)


def with_rounded_weights(graph: Graph, found: Mapping[str, RoundedWeights]) -> Graph:
    """The graph with these products, by layer, of floats by weights in few bits."""

    def rule(node: Node, rewriter: GraphRewriter) -> Value | None:
        rounded = found.get(name_of(node))
        x, w = node.inputs
        if rounded is None or x is None or w is None:
            return None
        if rounded.factors is not None:
            x = _divided(x, rounded.factors, rewriter)
        matrix = rounded.matrix
        filled = matrix.codes.shape[1]
        if matrix.depth and matrix.depth != filled:
            x = rewriter.op("pad", [x], pads=(*[(0, 0)] * (x.rank - 1), (0, filled - matrix.depth)))
        return rewriter.op("matmul", [x, rewriter.cast(_numbers(matrix, w.name, rewriter), x.dtype)], transpose_b=True)

    return GraphRewriter(graph).run({"matmul": [rule]})


def _numbers(matrix: QuantizedMatrix, name: str, rewriter: GraphRewriter) -> Value:
    columns, groups = matrix.scales.shape
    codes = rewriter.new_constant(matrix.codes.reshape(columns, groups, -1), name)
    scales = rewriter.new_constant(matrix.scales.reshape(columns, groups, 1), f"{name}.scales")
    return rewriter.op("reshape", [rewriter.op("dequantize", [codes, scales])], shape=matrix.codes.shape)


def _divided(x: Value, factors: np.ndarray, rewriter: GraphRewriter) -> Value:
    inverse = rewriter.new_constant((1 / factors).astype(x.dtype.numpy), f"{x.name}.factors")
    return rewriter.op("multiply", [x, inverse])


def smoothing_factors(graph: Graph, layers: Sequence[Layer], moments: Mapping[str, Moments]) -> dict[str, np.ndarray]:
    """By the name of an input what products divide it by.  Products of one input have the same factors."""
    names = {layer.name for layer in layers if layer.op == "matmul"}
    weights: dict[str, list[np.ndarray]] = {}
    for node in graph.nodes:
        if name_of(node) in names and node.inputs[0] is not None:
            weights.setdefault(node.inputs[0].name, []).append(matrix_of(node, graph.constants))
    return {name: smoothing(np.concatenate(found), moments[name].largest) for name, found in weights.items()}


def smoothed(graph: Graph, names: Set[str], factors: Mapping[str, np.ndarray]) -> Graph:
    """The graph with the inputs of these products, by layer, divided by factors (`smoothing_factors`) that their
    weights are multiplied by: the same but for rounding."""
    divided: dict[str, Value] = {}

    def rule(node: Node, rewriter: GraphRewriter) -> Value | None:
        x, w = node.inputs
        if name_of(node) not in names or x is None or w is None or x.name not in factors:
            return None
        if x.name not in divided:
            divided[x.name] = _divided(x, factors[x.name], rewriter)
        data = rewriter.constants[w]
        aside = factors[x.name] if node.attributes["transpose_b"] else factors[x.name][:, None]
        scaled = rewriter.new_constant((data.astype(np.float32) * aside).astype(data.dtype), w.name)
        return rewriter.op("matmul", [divided[x.name], scaled], **node.attributes)

    return GraphRewriter(graph).run({"matmul": [rule]})


def with_corrections(graph: Graph, shifts: Mapping[str, np.ndarray]) -> Graph:
    """The graph with these numbers [columns] added to the results of products, by layer."""

    def rule(node: Node, rewriter: GraphRewriter) -> Value | None:
        shift = shifts.get(name_of(node))
        if shift is None:
            return None
        result = rewriter.op("matmul", list(node.inputs), **node.attributes)
        added = rewriter.new_constant(shift.astype(result.dtype.numpy), f"{node.output.name}.shift")
        return rewriter.op("add", [result, added])

    return GraphRewriter(graph).run({"matmul": [rule]})


def shifts_of(
    graph: Graph, layers: Sequence[Layer], moments: Mapping[str, Moments], numbers: Callable[[Node], np.ndarray]
) -> dict[str, np.ndarray]:
    """By layer what products by exact weights are more, on average, than those by `numbers` [columns, depth]
    (Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction", 2019)."""
    inputs = {layer.name: layer.input for layer in layers if layer.op == "matmul"}
    return {
        name_of(node): (matrix_of(node, graph.constants) - numbers(node)) @ moments[inputs[name_of(node)]].mean
        for node in graph.nodes
        if node.op == "matmul" and name_of(node) in inputs
    }
