"""`tilewright.quantize`: a model with 8-bit integers in place of the floats of its products, as an engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.build.builder import build
from tilewright.engine.engine import Engine
from tilewright.errors import InputError, UnsupportedOperationError
from tilewright.graph.core import Graph, Value
from tilewright.graph.partition import is_staged
from tilewright.graph.pipeline import optimize
from tilewright.graph.reference import bind_symbols, run_graph, run_node
from tilewright.importers import import_model
from tilewright.quant.data import Sample, samples_of
from tilewright.quant.layers import SCHEMES, STATIC, Layer, layers_of, name_of, quantized, rounded_weights, why_not
from tilewright.quant.observers import BINS, OBSERVERS, Histogram, Range, affine

Progress = Callable[[str, str, float], None]


@dataclass(frozen=True)
class LayerReport:
    """What became of one product or convolution: `error` is the root mean square of what its result differs by, in
    that of the result, on the first sample, for inputs without error; `reason` says why it stays in floats."""

    name: str
    op: str
    source: str
    range: Range | None = None
    error: float | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Quantization:
    """An engine of a quantized model, and a report: every layer, and by output the root mean square of its difference
    from the model in floats, in that of the output, over all samples (none without data)."""

    engine: Engine
    scheme: str
    layers: tuple[LayerReport, ...]
    errors: dict[str, float]


def quantize(
    model: Any,
    data: Any = None,
    scheme: str = STATIC,
    *,
    observer: str = "minmax",
    exclude: Sequence[str] = (),
    target: str | Sequence[str] = "auto",
    example_inputs: Any = None,
    dynamic_shapes: Any = None,
    trust: bool = False,
    progress: Progress | None = None,
) -> Quantization:
    """Build an engine whose matrix products and convolutions by constant weights are sums of 8-bit integers.

    `model`, `example_inputs`, `dynamic_shapes`, `target` and `trust` are as `tilewright.compile` has them.  `data` are
    samples of the inputs (`quant.data.samples_of`): a folder, an .npz file, or dicts, tuples or arrays; the scheme
    ``int8`` finds the range of each layer's input with them, ``int8-dynamic`` finds it in every run and needs none.
    `observer` is ``minmax``, ``percentile``, ``mse`` or ``entropy`` (`quant.observers`).  `exclude` are names of
    layers that stay in floats, as the report has them.  The same model and data give the same engine.

    Raises `InputError` and `ShapeError` for data that the model does not take, and as `tilewright.compile` does.
    """
    for kind, name, known in (("scheme", scheme, SCHEMES), ("observer", observer, OBSERVERS)):
        if name not in known:
            raise InputError(f"unknown {kind} {name!r}: choose one of {', '.join(known)}")
    if data is None and scheme == STATIC:
        raise InputError(f"the scheme {scheme} needs calibration data: inputs as the model will see them")
    report = progress or (lambda stage, item, seconds: None)
    graph = import_model(model, example_inputs, dynamic_shapes, trust=trust)
    samples = [] if data is None else samples_of(data, graph)
    if is_staged(graph) or graph.parts:
        raise UnsupportedOperationError(
            f"the model {graph.name} is cut into parts, as sizes in it depend on data: these are not quantized"
        )
    graph = optimize(graph)
    layers = layers_of(graph, scheme)
    unknown = sorted(set(exclude) - {layer.name for layer in layers})
    if unknown:
        raise InputError(f"no quantized layer is called {unknown[0]!r}: there are {', '.join(i.name for i in layers)}")
    layers = [layer for layer in layers if layer.name not in exclude]
    ranges = calibrate(graph, layers, samples, observer, report) if scheme == STATIC else {}
    result = quantized(graph, {layer.name for layer in layers}, ranges, scheme)
    engine = build(result, target, progress, _source(model))
    engine.results_of = graph.results_of
    report("compare", "with the model in floats", 0.0)
    rows = _report(graph, layers, ranges, samples, scheme, set(exclude))
    return Quantization(engine, scheme, tuple(rows), _differences(graph, result, samples))


def calibrate(
    graph: Graph, layers: Sequence[Layer], samples: Sequence[Sample], observer: str, progress: Progress
) -> dict[str, Range]:
    """The range of each layer's input, from the reference's values in float32 for all samples."""
    names = dict.fromkeys(layer.input for layer in layers)
    watched, values = _watching(graph, list(names))
    limits: dict[str, Range] = {}
    for number, sample in enumerate(samples):
        progress("calibrate", f"ranges, sample {number + 1} of {len(samples)}", 0.0)
        for name, array in _run(watched, values, sample).items():
            if not np.isfinite(array).all():
                raise InputError(f"sample {number} makes %{name} of the model infinite or not a number")
            low, high = limits.get(name, (np.inf, -np.inf))
            limits[name] = min(low, float(array.min(initial=np.inf))), max(high, float(array.max(initial=-np.inf)))
    limits = {name: (pair if pair[0] <= pair[1] else (0.0, 0.0)) for name, pair in limits.items()}
    if observer == "minmax":
        return limits
    counts = {name: np.zeros(BINS, np.int64) for name in names}
    for number, sample in enumerate(samples):
        progress("calibrate", f"histograms, sample {number + 1} of {len(samples)}", 0.0)
        for name, array in _run(watched, values, sample).items():
            if limits[name][0] < limits[name][1]:
                counts[name] += np.histogram(array, BINS, limits[name])[0]
    return {
        name: OBSERVERS[observer](Histogram(counts[name], *limits[name])) if counts[name].any() else limits[name]
        for name in names
    }


def _watching(graph: Graph, names: Sequence[str]) -> tuple[Graph, dict[str, Value]]:
    """The graph with values of these names as its only outputs."""
    found = {value.name: value for value in (*graph.inputs, *(out for node in graph.nodes for out in node.outputs))}
    values = {name: found[name] for name in names}
    return replace(graph, outputs=list(values.values()), output_names=list(values), mutations={}), values


def _run(graph: Graph, values: dict[str, Value], sample: Sample) -> dict[str, np.ndarray]:
    arrays = [np.asarray(sample[value.name]).astype(value.dtype.numpy, copy=False) for value in graph.inputs]
    found = run_graph(graph, arrays, bind_symbols(graph, sample))
    return {name: found[value] for name, value in values.items()}


def _report(
    graph: Graph, layers: Sequence[Layer], ranges: dict[str, Range], samples: Sequence[Sample], scheme: str,
    excluded: set[str],
) -> list[LayerReport]:  # fmt: skip
    """A row for each product and convolution by weights."""
    taken = {layer.name: layer for layer in layers}
    inputs: dict[str, np.ndarray] = {}
    if samples:
        watched, values = _watching(graph, list(dict.fromkeys(layer.input for layer in layers)))
        inputs = _run(watched, values, samples[0])
    rows: list[LayerReport] = []
    for node in graph.nodes:
        if node.op not in ("matmul", "conv"):
            continue
        name, layer = name_of(node), taken.get(name_of(node))
        if layer is None:
            reason = "it was left out" if name in excluded else why_not(node, graph, scheme)
            rows.append(LayerReport(name, node.op, node.source, reason=reason))
            continue
        error = None
        if layer.input in inputs:
            symbols = bind_symbols(graph, samples[0])
            x, w = inputs[layer.input], graph.constants[node.inputs[1]]  # type: ignore[index]
            axis = 0 if node.op == "conv" or node.attributes["transpose_b"] else 1
            whole, scales = rounded_weights(w, axis)
            rest: list[np.ndarray | None] = [graph.constants.get(item) for item in node.inputs[2:] if item is not None]
            plain = run_node(node, [x, w, *rest], symbols)
            found = run_node(node, [_rounded(x, ranges.get(layer.input)), whole * scales, *rest], symbols)
            error = _relative(found, plain)
        rows.append(LayerReport(name, node.op, node.source, ranges.get(layer.input), error))
    return rows


def _rounded(x: np.ndarray, limits: Range | None) -> np.ndarray:
    """The input of a layer as its integers read: by one range, or by that of each row."""
    if limits is None:
        low, high = np.minimum(x.min(-1, keepdims=True), 0), np.maximum(x.max(-1, keepdims=True), 0)
        scale = np.where(high > low, (high - low) / 255, 1).astype(np.float32)
        zero = np.rint(-low / scale)
    else:
        scale, zero = affine(*limits)  # type: ignore[assignment]
    return ((np.clip(np.rint(x / scale) + zero, 0, 255) - zero) * scale).astype(np.float32)


def _differences(graph: Graph, result: Graph, samples: Sequence[Sample]) -> dict[str, float]:
    """By output of floats: how much the quantized graph differs, over all samples."""
    squares: dict[str, tuple[float, float]] = {}
    for sample in samples:
        plain, found = (_run(each, dict(zip(each.output_names, each.outputs, strict=True)), sample)
                        for each in (graph, result))  # fmt: skip
        for name, array in plain.items():
            if array.dtype.kind == "f":
                error, total = squares.get(name, (0.0, 0.0))
                error += float(((found[name].astype(np.float64) - array) ** 2).sum())
                squares[name] = error, total + float((array.astype(np.float64) ** 2).sum())
    return {name: float(np.sqrt(error / total)) if total else 0.0 for name, (error, total) in squares.items()}


def _relative(found: np.ndarray, plain: np.ndarray) -> float:
    total = float((plain.astype(np.float64) ** 2).sum())
    return float(np.sqrt(((found.astype(np.float64) - plain) ** 2).sum() / total)) if total else 0.0


def _source(model: Any) -> str:
    return Path(model).resolve().name if isinstance(model, (str, Path)) else type(model).__qualname__
