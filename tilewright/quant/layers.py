"""The layers of a graph that can be quantized, and the graph with integers in their place."""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from tilewright.dtypes import bfloat16, float8e4nv, float16, float32, int8, uint8
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.kernel_facts import KernelFacts
from tilewright.graph.rewrite import PERMUTED, GraphRewriter
from tilewright.quant.observers import LEVELS, Range, affine
from tilewright.symbolic import product

STATIC, DYNAMIC, FP8, FP8_DYNAMIC = "int8", "int8-dynamic", "fp8", "fp8-dynamic"
INT8_WEIGHTS, INT4_WEIGHTS = "int8-weights", "int4-weights"
SCHEMES = {
    STATIC: "uint8 with a range from calibration by int8 weights with a scale for each column or feature",
    DYNAMIC: "uint8 (on GPUs int8) with a range for each row as it comes by int8 weights with a scale for each column; "
    "products only",
    FP8: "float8 e4m3 with a scale from calibration by e4m3 weights with a scale for each column or feature",
    FP8_DYNAMIC: "float8 e4m3 with a scale for each row as it comes by e4m3 weights likewise; products only",
    INT8_WEIGHTS: "floats by int8 weights with a scale for each column, or group of it; products only",
    INT4_WEIGHTS: "floats by int4 weights with a scale for each group of a column; products only",
}
WEIGHT_BITS = {INT8_WEIGHTS: 8, INT4_WEIGHTS: 4}
GROUPS = {INT8_WEIGHTS: 0, INT4_WEIGHTS: 64}  # of the depth that share a scale where nothing is said; 0: all of it
LARGEST_FP8 = float(ml_dtypes.finfo(float8e4nv.numpy).max)
_LARGEST_INT8 = 127


@dataclass(frozen=True)
class Layer:
    """A product or convolution by constant weights, by the name of its result."""

    name: str
    op: str
    source: str
    input: str  # the name of what its range is that of


def needs_data(scheme: str) -> bool:
    """Whether ranges of activations come from calibration data."""
    return scheme in (STATIC, FP8)


def is_fp8(scheme: str) -> bool:
    """Whether numbers are 8-bit floats."""
    return scheme in (FP8, FP8_DYNAMIC)


def layers_of(graph: Graph, scheme: str, kernels: KernelFacts) -> list[Layer]:
    """The layers that a scheme quantizes."""
    nodes = [node for node in graph.nodes if node.op in ("matmul", "conv")]
    return [
        Layer(name_of(node), node.op, node.source, node.inputs[0].name)
        for node in nodes
        if node.inputs[0] is not None and why_not(node, graph, scheme, kernels) is None
    ]


def name_of(node: Node) -> str:
    """What a layer is called: as the model has its result, in whatever order its dimensions are."""
    return node.output.name.removesuffix(PERMUTED)


def why_not(node: Node, graph: Graph, scheme: str, kernels: KernelFacts) -> str | None:
    """Why a product or convolution stays in floats; None where it does not."""
    x, w = node.inputs[:2]
    assert x is not None and w is not None
    if w not in graph.constants:
        return "its weights are no constant"
    if x.dtype not in (float32, float16, bfloat16) or w.dtype != x.dtype:
        return f"it is computed in {x.dtype}"
    if node.op == "matmul":
        depth = x.shape[-1]
        if scheme in WEIGHT_BITS and w.rank == 2 and graph.constants[w].size < kernels.weight_elements:
            return f"its {graph.constants[w].size} weights are few"
        if w.rank != 2:
            return f"its weights have {w.rank} dimensions, and are no matrix"
        if not isinstance(depth, int):
            return "its depth is no fixed number"
        if not kernels.takes_depth(depth) and scheme in (STATIC, DYNAMIC):
            return f"its depth is {depth}, which is no multiple of {kernels.narrow_depth}"
        return None
    if scheme in WEIGHT_BITS:
        return "convolutions have no kernels for quantized weights alone"
    if not needs_data(scheme):
        return "convolutions have ranges from calibration only"
    channels, taps = w.shape[1], product(w.shape[2:])
    groups = node.attributes["groups"]
    if x.rank > 4 or not isinstance(channels, int) or not isinstance(taps, int):
        return "its window has no fixed size, or it has more than two spatial dimensions"
    if kernels.takes_narrow(channels, taps, groups):
        return None
    if groups != 1:
        return f"its {channels * groups} channels come in groups of {channels}"
    if channels % kernels.narrow_depth:
        return f"its {channels} channels are no multiple of {kernels.narrow_depth}"
    return f"its {channels} channels are few"


def with_reasons(
    graph: Graph, layers: Sequence[Layer], excluded: Collection[str], scheme: str, kernels: KernelFacts
) -> Graph:
    """The graph with advice on each product and convolution that a scheme leaves in floats unasked."""
    narrow = {layer.name for layer in layers}

    def look(node: Node, rewriter: GraphRewriter) -> Value | None:
        name = name_of(node)
        reason = None if name in narrow or name in excluded else why_not(node, graph, scheme, kernels)
        if reason is not None:
            rewriter.advise(f"{node.op} {name} stays in floats: {reason}")
        return None

    return GraphRewriter(graph).run({"matmul": [look], "conv": [look]})


def quantized(graph: Graph, names: set[str], ranges: dict[str, Range], scheme: str, signed: bool = False) -> Graph:
    """The graph with the layers of these names computed of narrow numbers; `ranges` by the name of a layer's input.
    `signed`: integers of rows with ranges of their own are int8, without a zero point.

    What a convolution and a residual sum both read is stored as integers alone: the sum reads these. So is one of two
    convolutions that are added (`residuals_of`), if it has a range.  8-bit floats are too few for sums of many layers:
    these read what was rounded to them.
    """
    residuals = {layer.input for layer in residuals_of(graph, names)} & ranges.keys()
    read: dict[str, Value] = {}  # inputs as narrow numbers read as floats
    images = {node.inputs[0].name for node in graph.nodes
              if node.op == "conv" and name_of(node) in names and node.inputs[0] is not None}  # fmt: skip
    if is_fp8(scheme):
        residuals, images = set(), set()

    def rule(node: Node, rewriter: GraphRewriter) -> Value | None:
        x, w, *bias = node.inputs
        if name_of(node) not in names or x is None or w is None:
            return None
        if x.name not in read:
            read[x.name] = rewriter.cast(_read(x, ranges.get(x.name), scheme, signed, rewriter), x.dtype)
        axis = 0 if node.op == "conv" or node.attributes["transpose_b"] else 1
        numbers, scales = rounded_weights(rewriter.constants[w], axis, scheme)
        constants = [rewriter.new_constant(numbers, w.name), rewriter.new_constant(scales, f"{w.name}.scales")]
        weights = rewriter.cast(rewriter.op("dequantize", constants), x.dtype)
        return rewriter.op(node.op, [read[x.name], weights, *bias], **node.attributes)

    def of_integers(node: Node, rewriter: GraphRewriter) -> Value | None:
        for x in node.inputs:
            if x is not None and x.name in residuals and x.name not in read:
                read[x.name] = rewriter.cast(_read(x, ranges[x.name], scheme, signed, rewriter), x.dtype)
        inputs = [
            read[x.name] if x is not None and x.name in (images | residuals) & read.keys() else x for x in node.inputs
        ]
        return None if inputs == node.inputs else rewriter.op("add", inputs)

    return GraphRewriter(graph).run({"matmul": [rule], "conv": [rule], "add": [of_integers]})


def residuals_of(graph: Graph, names: Set[str]) -> list[Layer]:
    """Of each two convolutions of these names that are added, and read by nothing else, the result of the later one,
    which is stored: the kernel of the earlier one, as fusion goes, adds it."""
    producers, readers = graph.producers(), graph.users()
    found = []
    for node in graph.nodes:
        sources = [producers.get(item) for item in node.inputs if item is not None] if node.op == "add" else []
        convolutions = [
            source
            for source in sources
            if source is not None
            and source.op == "conv"
            and name_of(source) in names
            and readers[source.output] == [node]
        ]
        if len(convolutions) == len(sources) == 2 and convolutions[0] is not convolutions[1]:
            later = max(convolutions, key=graph.nodes.index)
            found.append(Layer(name_of(later), later.op, later.source, later.output.name))
    return found


def rounded_weights(weights: np.ndarray, axis: int, scheme: str = STATIC) -> tuple[np.ndarray, np.ndarray]:
    """int8 or float8 of the weights' shape, and float32 scales that broadcast with them, one for each position of
    `axis`."""
    weights = weights.astype(np.float32, copy=False)
    others = tuple(place for place in range(weights.ndim) if place != axis)
    largest = np.abs(weights).max(axis=others, keepdims=True, initial=0)
    most = LARGEST_FP8 if is_fp8(scheme) else _LARGEST_INT8
    scales = np.where(largest > 0, largest / np.float32(most), 1).astype(np.float32)
    if is_fp8(scheme):
        return np.clip(weights / scales, -most, most).astype(float8e4nv.numpy), scales
    return np.clip(np.rint(weights / scales), -most, most).astype(np.int8), scales


def rounded_input(x: np.ndarray, limits: Range | None, scheme: str, signed: bool = False) -> np.ndarray:
    """The input of a layer as its narrow numbers read, in float32: by one range, or by that of each row."""
    x = x.astype(np.float32, copy=False)
    if is_fp8(scheme) or (signed and limits is None):
        most = np.float32(LARGEST_FP8 if is_fp8(scheme) else _LARGEST_INT8)
        largest = np.abs(x).max(-1, keepdims=True, initial=0) if limits is None else _largest(limits)
        scale = np.where(largest > 0, largest / most, 1).astype(np.float32)
        numbers = x / scale
        numbers = np.clip(numbers, -most, most).astype(float8e4nv.numpy) if is_fp8(scheme) else np.rint(numbers)
        return numbers.astype(np.float32) * scale
    if limits is None:
        low, high = np.minimum(x.min(-1, keepdims=True), 0), np.maximum(x.max(-1, keepdims=True), 0)
        scale = np.where(high > low, (high - low) / LEVELS, 1).astype(np.float32)
        zero = np.rint(-low / scale)
    else:
        scale, zero = affine(*limits)  # type: ignore[assignment]
    return ((np.clip(np.rint(x / scale) + zero, 0, LEVELS) - zero) * scale).astype(np.float32)


def _largest(limits: Range) -> np.float32:
    return np.float32(max(map(abs, limits)))


def _read(x: Value, limits: Range | None, scheme: str, signed: bool, rewriter: GraphRewriter) -> Value:
    """A layer's input as narrow numbers, read as float32; without `limits` each row has a range of its own."""
    op = rewriter.op
    wide = rewriter.cast(x, float32)
    if limits is None and (is_fp8(scheme) or signed):
        scale = _scale_of_rows(x, LARGEST_FP8 if is_fp8(scheme) else _LARGEST_INT8, rewriter)
        if not is_fp8(scheme):
            return op("dequantize", [op("quantize", [x, scale], dtype=int8), scale])
        near = op("clip", [op("divide", [wide, scale])], low=-LARGEST_FP8, high=LARGEST_FP8)
        return op("dequantize", [rewriter.cast(near, float8e4nv), scale])
    if limits is None:
        parameters = _range_of_rows(wide, rewriter)
        return op("dequantize", [op("quantize", [x, *parameters], dtype=uint8), *parameters])
    # Times the inverse of the scale, and the zero point before rounding: what an epilogue has one instruction for.
    step, zero = _parameters(limits, scheme)
    near = op("multiply", [wide, rewriter.number(1 / float(step), float32)])
    if is_fp8(scheme):
        near = op("clip", [near], low=-LARGEST_FP8, high=LARGEST_FP8)
        return op("dequantize", [rewriter.cast(near, float8e4nv), rewriter.number(float(step), float32)])
    near = op("round", [op("add", [near, rewriter.number(float(zero), float32)]) if zero else near])
    integers = rewriter.cast(op("clip", [near], low=0.0, high=float(LEVELS)), uint8)
    return op("dequantize", [integers, rewriter.number(float(step), float32), rewriter.number(zero, uint8)])


def _parameters(limits: Range, scheme: str) -> tuple[np.float32, int]:
    """The scale of a range, and the integer that stands for zero."""
    if not is_fp8(scheme):
        return affine(*limits)
    largest = _largest(limits)
    return np.float32(largest / np.float32(LARGEST_FP8) if largest > 0 else 1), 0


def _scale_of_rows(x: Value, most: float, rewriter: GraphRewriter) -> Value:
    """By row of the last dimension: what its largest magnitude has to be divided by to be `most`; 1 for zeros."""
    op = rewriter.op
    largest = rewriter.cast(op("reduce_max", [op("absolute", [x])], axes=(-1,), keepdims=True), float32)
    scale = op("divide", [largest, rewriter.number(most, float32)])
    nothing = rewriter.number(0.0, float32)
    return op("where", [op("equal", [largest, nothing]), rewriter.number(1.0, float32), scale])


def _range_of_rows(x: Value, rewriter: GraphRewriter) -> tuple[Value, Value]:
    """Scale and zero point of each row of the last dimension, 0 in its range."""
    op = rewriter.op
    nothing = rewriter.number(0.0, float32)
    low = op("minimum", [op("reduce_min", [x], axes=(-1,), keepdims=True), nothing])
    high = op("maximum", [op("reduce_max", [x], axes=(-1,), keepdims=True), nothing])
    width = op("multiply", [op("subtract", [high, low]), rewriter.number(1 / LEVELS, float32)])
    scale = op("where", [op("equal", [width, nothing]), rewriter.number(1.0, float32), width])
    zero = op("clip", [op("round", [op("divide", [op("negate", [low]), scale])])], low=0.0, high=float(LEVELS))
    return scale, op("cast", [zero], dtype=uint8)
