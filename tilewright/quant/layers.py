"""The layers of a graph that can be quantized, and the graph with integers in their place."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.dtypes import float32, uint8
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.passes.narrow_products import FEWEST_CHANNELS, GROUP
from tilewright.graph.rewrite import PERMUTED, Rewriter
from tilewright.quant.observers import LEVELS, Range, affine

STATIC, DYNAMIC = "int8", "int8-dynamic"
SCHEMES = {
    STATIC: "uint8 with a range from calibration by int8 weights with a scale for each column or feature",
    DYNAMIC: "uint8 with a range for each row as it comes by int8 weights with a scale for each column; products only",
}


@dataclass(frozen=True)
class Layer:
    """A product or convolution by constant weights, by the name of its result."""

    name: str
    op: str
    source: str
    input: str  # the name of what its range is that of


def layers_of(graph: Graph, scheme: str) -> list[Layer]:
    """The layers that a scheme quantizes."""
    return [
        Layer(name_of(node), node.op, node.source, node.inputs[0].name)
        for node in graph.nodes
        if node.op in ("matmul", "conv") and node.inputs[0] is not None and _fits(node, graph, scheme)
    ]


def name_of(node: Node) -> str:
    """What a layer is called: as the model has its result, in whatever order its dimensions are."""
    return node.output.name.removesuffix(PERMUTED)


def why_not(node: Node, graph: Graph, scheme: str) -> str | None:
    """Why a product or convolution stays in floats; None where it does not."""
    x, w = node.inputs[:2]
    assert x is not None and w is not None
    if w not in graph.constants:
        return "its weights are no constant"
    if x.dtype != float32 or w.dtype != float32:
        return f"it is computed in {x.dtype}"
    if node.op == "matmul":
        depth = x.shape[-1]
        if w.rank != 2 or not isinstance(depth, int) or depth % GROUP:
            return f"its weights are no matrix, or its depth is no multiple of {GROUP}"
        return None
    if scheme == DYNAMIC:
        return "convolutions have ranges from calibration only"
    channels = w.shape[1]
    if node.attributes["groups"] != 1 or x.rank > 4 or not isinstance(channels, int):
        return "its channels come in groups, or it has more than two spatial dimensions"
    if channels % GROUP or channels < FEWEST_CHANNELS:
        return f"its {channels} channels are few, or no multiple of {GROUP}"
    return None


def _fits(node: Node, graph: Graph, scheme: str) -> bool:
    return why_not(node, graph, scheme) is None


def quantized(graph: Graph, names: set[str], ranges: dict[str, Range], scheme: str) -> Graph:
    """The graph with the layers of these names computed of integers; `ranges` by the name of a layer's input."""
    read: dict[str, Value] = {}  # inputs as integers read as floats

    def rule(node: Node, rewriter: Rewriter) -> Value | None:
        x, w, *bias = node.inputs
        if name_of(node) not in names or x is None or w is None:
            return None
        if x.name not in read:
            if scheme == STATIC:
                scale, zero = affine(*ranges[x.name])
                parameters = (rewriter.number(float(scale), float32), rewriter.number(zero, uint8))
            else:
                parameters = _range_of_rows(x, rewriter)
            integers = rewriter.op("quantize", [x, *parameters], dtype=uint8)
            read[x.name] = rewriter.op("dequantize", [integers, *parameters])
        axis = 0 if node.op == "conv" or node.attributes["transpose_b"] else 1
        whole, scales = rounded_weights(rewriter.constants[w], axis)
        numbers = [rewriter.new_constant(whole, w.name), rewriter.new_constant(scales, f"{w.name}.scales")]
        return rewriter.op(node.op, [read[x.name], rewriter.op("dequantize", numbers), *bias], **node.attributes)

    return Rewriter(graph).run({"matmul": [rule], "conv": [rule]})


def rounded_weights(weights: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """int8 of the weights' shape and float32 scales that broadcast with them, one for each position of `axis`."""
    others = tuple(place for place in range(weights.ndim) if place != axis)
    largest = np.abs(weights).max(axis=others, keepdims=True, initial=0)
    scales = np.where(largest > 0, largest / 127, 1).astype(np.float32)
    return np.clip(np.rint(weights / scales), -127, 127).astype(np.int8), scales


def _range_of_rows(x: Value, rewriter: Rewriter) -> tuple[Value, Value]:
    """Scale and zero point of each row of the last dimension, 0 in its range."""
    op = rewriter.op
    nothing = rewriter.number(0.0, float32)
    low = op("minimum", [op("reduce_min", [x], axes=(-1,), keepdims=True), nothing])
    high = op("maximum", [op("reduce_max", [x], axes=(-1,), keepdims=True), nothing])
    width = op("multiply", [op("subtract", [high, low]), rewriter.number(1 / LEVELS, float32)])
    scale = op("where", [op("equal", [width, nothing]), rewriter.number(1.0, float32), width])
    zero = op("clip", [op("round", [op("divide", [op("negate", [low]), scale])])], low=0.0, high=float(LEVELS))
    return scale, op("cast", [zero], dtype=uint8)
