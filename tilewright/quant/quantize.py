"""`tilewright.quantize`: an engine of a model with 8-bit products, or with few-bit weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.build.builder import build
from tilewright.dtypes import float8e4nv, float32, from_numpy, int8
from tilewright.engine.engine import Engine
from tilewright.errors import InputError, UnsupportedOperationError
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.kernel_facts import KernelFacts
from tilewright.graph.partition import is_staged
from tilewright.graph.passes.weight_products import why_floats
from tilewright.graph.pipeline import optimize
from tilewright.graph.reference import bind_symbols, run_graph, run_node
from tilewright.graph.rewrite import GraphRewriter
from tilewright.graph.target_passes import TargetPasses
from tilewright.importers import import_model
from tilewright.importers.quantized_weights import place_not_finite
from tilewright.quant.calibration import Sample, samples_of
from tilewright.quant.layers import (
    GROUPS,
    SCHEMES,
    STATIC,
    WEIGHT_BITS,
    Layer,
    is_fp8,
    layers_of,
    name_of,
    needs_data,
    quantized,
    residuals_of,
    rounded_input,
    rounded_weights,
    why_not,
    with_reasons,
)
from tilewright.quant.metrics import LABEL
from tilewright.quant.observers import BINS, OBSERVERS, Histogram, Range
from tilewright.quant.rounding import AWQ, GPTQ, NEAREST, ROUNDING_METHODS, Moments, RoundedWeights
from tilewright.quant.stored_rounding import rounded_once
from tilewright.quant.weights import (
    matrix_of,
    shifts_of,
    smoothed,
    smoothing_factors,
    with_corrections,
    with_rounded_weights,
)
from tilewright.targets.base import Target
from tilewright.targets.registry import for_kernels_of, get_targets, graph_passes

Progress = Callable[[str, str, float], None]
MINMAX = "minmax"  # the observer where none is given
SMOOTH = "smooth"  # the method that moves magnitudes from inputs to weights


@dataclass(frozen=True)
class LayerReport:
    """What became of one product or convolution: `error` is the root mean square of what its result differs by, in
    that of the result, on the first sample, for inputs without error; `reason` says why it stays in floats, and
    `stored_as_floats` why its weights, though rounded, are stored as floats."""

    name: str
    op: str
    source: str
    range: Range | None = None
    error: float | None = None
    reason: str | None = None
    stored_as_floats: str | None = None


@dataclass(frozen=True)
class Quantization:
    """An engine of a quantized model, and a report: every layer, by output the root mean square of its difference
    from the model in floats, in that of the output, over all samples (none without data), and what else to know."""

    engine: Engine
    scheme: str
    layers: tuple[LayerReport, ...]
    errors: dict[str, float]
    remarks: tuple[str, ...] = ()


def quantize(
    model: Any,
    data: Any = None,
    scheme: str = STATIC,
    *,
    observer: str = MINMAX,
    method: str = NEAREST,
    group: int | None = None,
    correct_bias: bool = False,
    exclude: Sequence[str] = (),
    target: str | Sequence[str] = "auto",
    example_inputs: Any = None,
    dynamic_shapes: Any = None,
    trust: bool = False,
    progress: Progress | None = None,
) -> Quantization:
    """Build an engine with int8 products and convolutions, float8 products, or 8- or 4-bit weights.

    `model`, `example_inputs`, `dynamic_shapes`, `target` and `trust` are as for `tilewright.compile`.  `data` are
    samples of the inputs (`quant.calibration.samples_of`): a folder, an .npz file, or dicts, tuples or arrays.  The
    schemes ``int8`` and ``fp8`` use them to find the range of each layer's input; ``int8-dynamic`` and ``fp8-dynamic``
    find it at run time and need none.  Targets without 8-bit floats compute with the same numbers in wider ones, and
    `Quantization.remarks` says so.
    `observer` is ``minmax``, ``percentile``, ``mse`` or ``entropy`` (`quant.observers`).  `exclude` names layers that
    stay in floats, as in the report.  The same model and data give the same engine.

    The schemes ``int8-weights`` and ``int4-weights`` round only the weights of products, with a scale for each `group`
    inputs (0: for all of a column; by default that for int8 and 64 for int4).  The `method` is ``nearest``, which needs
    no data, ``gptq`` or ``awq`` (`quant.rounding`).  ``smooth`` is a method for the scheme ``int8``: it first moves
    magnitude from a product's inputs to its weights.  `correct_bias` corrects the mean shift that rounding the weights
    causes in results of products over the data.

    Raises `InputError` and `ShapeError` for data that does not fit the model, and as `tilewright.compile` does.
    """
    _check_names(scheme, observer, method)
    targets = get_targets([target] if isinstance(target, str) else list(target))
    kernels = (passes := for_kernels_of(targets)).kernels
    _check_method(scheme, method, group, correct_bias, data)
    report = progress or (lambda stage, item, seconds: None)
    graph = whole_graph(import_model(model, example_inputs, dynamic_shapes, trust=trust))
    samples = [] if data is None else samples_of(data, graph, extra_names=(LABEL,))
    plain = optimize(graph, passes)
    with_moments = method != NEAREST or correct_bias
    graph, layers, moments = _studied(plain, exclude, scheme, method, kernels, samples if with_moments else [], report)
    graph = with_reasons(graph, layers, exclude, scheme, kernels)
    residuals = residuals_of(graph, names := {layer.name for layer in layers})
    ranges = calibrate(graph, [*layers, *residuals], samples, observer, report) if needs_data(scheme) else {}
    signed = int8 in kernels.narrow_types
    weights = _rounded(graph, layers, scheme, method, group, moments, report)
    result = with_rounded_weights(graph, weights) if weights else quantized(graph, names, ranges, scheme, signed)
    if correct_bias:
        result = with_corrections(result, shifts_of(graph, layers, moments, _numbers_of(graph, weights, scheme)))
    remarks = _remarks(scheme, samples, targets, weights, method)
    engine = build(_with_remarks(result, remarks), targets, progress, source_of(model))
    engine.results_of = graph.results_of
    report("compare", "with the model in floats", 0.0)
    rows = _report(graph, layers, ranges, samples, scheme, set(exclude), signed, weights, kernels)
    rows = _with_storage(rows, graph, weights, graph_passes(targets))
    errors, not_read = _differences(plain, result, samples), _not_read(samples, graph, scheme, observer)
    return Quantization(engine, scheme, rows, errors, (*not_read, *remarks))


def whole_graph(graph: Graph) -> Graph:
    """The graph, which is one piece; raises `UnsupportedOperationError` for others."""
    if is_staged(graph) or graph.parts:
        raise UnsupportedOperationError(
            f"the model {graph.name} is cut into parts, as sizes in it depend on data: these are not quantized"
        )
    return graph


def _studied(
    graph: Graph, exclude: Sequence[str], scheme: str, method: str, kernels: KernelFacts, samples: Sequence[Sample],
    progress: Progress,
) -> tuple[Graph, list[Layer], dict[str, Moments]]:  # fmt: skip
    """The graph that is to be rounded, its layers, and the moments of their inputs over the samples."""
    layers = _layers_without(exclude, graph, scheme, kernels)
    _check_weights(graph, {layer.name for layer in layers})
    moments = collect(graph, layers, samples, method in (GPTQ, AWQ), progress)
    if method == SMOOTH:
        names = {layer.name for layer in layers if layer.op == "matmul"}
        graph = smoothed(graph, names, smoothing_factors(graph, layers, moments))
        layers = _layers_without(exclude, graph, scheme, kernels)
        moments = collect(graph, layers, samples, False, progress)
    return graph, layers, moments


def _layers_without(exclude: Sequence[str], graph: Graph, scheme: str, kernels: KernelFacts) -> list[Layer]:
    """The layers of a scheme but for some; raises `InputError` for names that none of them has."""
    layers = layers_of(graph, scheme, kernels)
    unknown = sorted(set(exclude) - {layer.name for layer in layers})
    if unknown:
        raise InputError(f"no quantized layer is called {unknown[0]!r}: there are {', '.join(i.name for i in layers)}")
    return [layer for layer in layers if layer.name not in exclude]


def _not_read(samples: Sequence[Sample], graph: Graph, scheme: str, observer: str) -> Iterator[str]:
    """What was given and is not read."""
    if LABEL not in {value.name for value in graph.inputs} and any(LABEL in sample for sample in samples):
        yield f"the samples' `{LABEL}` is not read: only the metric top1 of the search for a precision has a use for it"
    if observer != MINMAX and not needs_data(scheme):
        yield f"the observer {observer} is not used: the scheme {scheme} takes no ranges from data"


def _with_storage(
    rows: Sequence[LayerReport], graph: Graph, weights: Mapping[str, RoundedWeights], passes: TargetPasses
) -> tuple[LayerReport, ...]:  # fmt: skip
    """The rows, with why rounded weights are stored as floats where the target's kernels do not read them."""
    types = {name_of(node): node.inputs[0].dtype for node in graph.nodes if node.op == "matmul" and node.inputs[0]}
    found = {}
    for name, each in weights.items():
        codes, scales, depth = each.matrix.codes, each.matrix.scales, each.matrix.codes.shape[1]
        stored = (from_numpy(codes.dtype), from_numpy(scales.dtype))
        found[name] = why_floats(passes, types[name], *stored, depth // scales.shape[1], depth)
    return tuple(replace(row, stored_as_floats=found.get(row.name)) for row in rows)


def _check_weights(graph: Graph, names: set[str]) -> None:
    """Raise `InputError` where weights of these layers are infinite or not a number: rounding would hide it."""
    for node in graph.nodes:
        weights = node.inputs[1] if node.op in ("matmul", "conv") and name_of(node) in names else None
        place = None if weights is None else place_not_finite(graph.constants[weights])
        if weights is not None and place is not None:
            source = f" ({node.source})" if node.source else ""
            raise InputError(
                f"the weights {weights.name} of the layer {name_of(node)}{source} have "
                f"{graph.constants[weights][place]} at {list(place)}, which no integer stands for; mend the model, or "
                f"leave the layer in floats (--exclude {name_of(node)})"
            )


def _remarks(
    scheme: str, samples: Sequence[Sample], targets: Sequence[Target], weights: Mapping[str, RoundedWeights],
    method: str,
) -> tuple[str, ...]:  # fmt: skip
    """What else a user should know."""
    remarks = []
    if not samples:
        remarks.append(f"precision was lowered to {scheme} without data: nothing is known of what results lose")
    without = dict.fromkeys(each.name for each in targets if float8e4nv not in each.kernels.narrow_types)
    if is_fp8(scheme) and without:
        names = ", ".join(without)
        remarks.append(f"fp8 numbers are multiplied as wider floats on {names}: only GPUs from sm_89 on multiply fp8")
    nearest = [name for name, each in weights.items() if each.matrix.codes.shape[1] != each.matrix.depth]
    if method == GPTQ and nearest:
        remarks.append(
            f"weights of {', '.join(nearest)} are rounded to the nearest, not by gptq: their depth is no multiple of "
            "the group; choose a group that divides it"
        )
    return tuple(remarks)


def _with_remarks(graph: Graph, remarks: Sequence[str]) -> Graph:
    """The graph, whose engine says these."""
    rewriter = GraphRewriter(graph)
    for text in remarks:
        rewriter.remark(text)
    rewriter.changed = bool(remarks)
    return rewriter.run({})


def _check_names(scheme: str, observer: str, method: str) -> None:
    """Raise `InputError` for names that are none."""
    known: dict[str, tuple[str, Sequence[str]]] = {
        "scheme": (scheme, list(SCHEMES)), "observer": (observer, list(OBSERVERS)),
        "method": (method, [*ROUNDING_METHODS, SMOOTH]),
    }  # fmt: skip
    for kind, (name, names) in known.items():
        if name not in names:
            raise InputError(f"unknown {kind} {name!r}: choose one of {', '.join(names)}")


def _check_method(scheme: str, method: str, group: int | None, correct_bias: bool, data: Any) -> None:
    """Raise `InputError` for what does not go together."""
    if method in (GPTQ, AWQ) and scheme not in WEIGHT_BITS:
        raise InputError(f"the method {method} is for {' and '.join(WEIGHT_BITS)}, and the scheme is {scheme}")
    if method == SMOOTH and scheme != STATIC:
        raise InputError(f"the method {SMOOTH} is for the scheme {STATIC}, and the scheme is {scheme}")
    if group is not None and (scheme not in WEIGHT_BITS or type(group) is not int or group < 0 or group % 2):
        raise InputError(f"group is {group!r}: give an even number of inputs, or 0, with {' or '.join(WEIGHT_BITS)}")
    if data is None and (needs_data(scheme) or method != NEAREST or correct_bias):
        option = f"the scheme {scheme}" if needs_data(scheme) else f"the method {method}"
        option = "correct_bias" if correct_bias and method == NEAREST and not needs_data(scheme) else option
        raise InputError(f"{option} needs calibration data: inputs as the model will see them")


def _rounded(
    graph: Graph, layers: Sequence[Layer], scheme: str, method: str, group: int | None, moments: Mapping[str, Moments],
    progress: Progress,
) -> dict[str, RoundedWeights]:  # fmt: skip
    """By layer the weights of a scheme that rounds these alone."""
    if scheme not in WEIGHT_BITS:
        return {}
    nodes = {name_of(node): node for node in graph.nodes if node.op == "matmul"}
    found: dict[str, RoundedWeights] = {}
    for number, layer in enumerate(layers):
        progress("round weights", f"{layer.name}, {number + 1} of {len(layers)}", 0.0)
        size = GROUPS[scheme] if group is None else group
        matrix = matrix_of(nodes[layer.name], graph.constants)
        found[layer.name] = rounded_once(matrix, WEIGHT_BITS[scheme], size, method, moments.get(layer.input))
    return found


def _numbers_of(
    graph: Graph, weights: Mapping[str, RoundedWeights], scheme: str
) -> Callable[[Node], np.ndarray]:  # fmt: skip
    """What a product's weights are after rounding, [columns, depth]."""

    def numbers(node: Node) -> np.ndarray:
        if name_of(node) in weights:
            return weights[name_of(node)].numbers()
        whole, scales = rounded_weights(matrix_of(node, graph.constants), 0, scheme)
        return whole.astype(np.float32) * scales

    return numbers


def collect(
    graph: Graph, layers: Sequence[Layer], samples: Sequence[Sample], with_products: bool, progress: Progress
) -> dict[str, Moments]:
    """The moments of each layer's input, from the reference's values in float32 for all samples: a product's by its
    columns, a convolution's as one column."""
    products = {layer.input for layer in layers if layer.op == "matmul"}
    watched, values = watching(graph, list(dict.fromkeys(layer.input for layer in layers)))
    found: dict[str, Moments] = {}
    for number, sample in enumerate(samples):
        progress("calibrate", f"moments, sample {number + 1} of {len(samples)}", 0.0)
        for name, array in run_samples(watched, values, sample).items():
            if not np.isfinite(array).all():
                raise InputError(f"sample {number} makes %{name} of the model infinite or not a number")
            rows = array if name in products else array.reshape(-1, 1)
            if name not in found:
                found[name] = Moments.of(rows.shape[-1], with_products)
            found[name].add(rows)
    return found


def calibrate(
    graph: Graph, layers: Sequence[Layer], samples: Sequence[Sample], observer: str, progress: Progress
) -> dict[str, Range]:
    """The range of each layer's input, from the reference's values in float32 for all samples."""
    names = dict.fromkeys(layer.input for layer in layers)
    watched, values = watching(graph, list(names))
    limits: dict[str, Range] = {}
    for number, sample in enumerate(samples):
        progress("calibrate", f"ranges, sample {number + 1} of {len(samples)}", 0.0)
        for name, array in run_samples(watched, values, sample).items():
            if not np.isfinite(array).all():
                raise InputError(f"sample {number} makes %{name} of the model infinite or not a number")
            low, high = limits.get(name, (np.inf, -np.inf))
            limits[name] = min(low, float(array.min(initial=np.inf))), max(high, float(array.max(initial=-np.inf)))
    limits = {name: (pair if pair[0] <= pair[1] else (0.0, 0.0)) for name, pair in limits.items()}
    if observer == MINMAX:
        return limits
    counts = {name: np.zeros(BINS, np.int64) for name in names}
    for number, sample in enumerate(samples):
        progress("calibrate", f"histograms, sample {number + 1} of {len(samples)}", 0.0)
        for name, array in run_samples(watched, values, sample).items():
            if limits[name][0] < limits[name][1]:
                counts[name] += np.histogram(array, BINS, limits[name])[0]
    return {
        name: OBSERVERS[observer](Histogram(counts[name], *limits[name])) if counts[name].any() else limits[name]
        for name in names
    }


def watching(graph: Graph, names: Sequence[str]) -> tuple[Graph, dict[str, Value]]:
    """The graph with values of these names as its only outputs."""
    found = {value.name: value for value in (*graph.inputs, *(out for node in graph.nodes for out in node.outputs))}
    values = {name: found[name] for name in names}
    return replace(graph, outputs=list(values.values()), output_names=list(values), mutations={}), values


def run_samples(graph: Graph, values: dict[str, Value], sample: Sample) -> dict[str, np.ndarray]:
    """These values, those of float32 and narrower in float32; 8-bit floats stay what they are."""
    arrays = [np.asarray(sample[value.name]).astype(value.dtype.numpy, copy=False) for value in graph.inputs]
    halves = any(value.dtype.is_float and value.dtype.bits == 16 for value in (*graph.inputs, *graph.constants))
    found = run_graph(graph, arrays, bind_symbols(graph, sample), float32 if halves else None)
    return {name: found[value] for name, value in values.items()}


def _report(
    graph: Graph, layers: Sequence[Layer], ranges: dict[str, Range], samples: Sequence[Sample], scheme: str,
    excluded: set[str], signed: bool, weights: Mapping[str, RoundedWeights], kernels: KernelFacts,
) -> tuple[LayerReport, ...]:  # fmt: skip
    """A row for each product and convolution by weights."""
    layer_by_name = {layer.name: layer for layer in layers}
    inputs: dict[str, np.ndarray] = {}
    if samples:
        watched, values = watching(graph, list(dict.fromkeys(layer.input for layer in layers)))
        inputs = run_samples(watched, values, samples[0])
    rows: list[LayerReport] = []
    for node in graph.nodes:
        if node.op not in ("matmul", "conv"):
            continue
        name, layer = name_of(node), layer_by_name.get(name_of(node))
        if layer is None:
            reason = "it was left out" if name in excluded else why_not(node, graph, scheme, kernels)
            rows.append(LayerReport(name, node.op, node.source, reason=reason))
            continue
        error = None
        if layer.input in inputs:
            symbols = bind_symbols(graph, samples[0])
            x, w = (item.astype(np.float32) for item in (inputs[layer.input], graph.constants[node.inputs[1]]))  # type: ignore[index]
            rest: list[np.ndarray | None] = [graph.constants.get(item) for item in node.inputs[2:] if item is not None]
            if name in weights:
                numbers = weights[name].numbers()
                rounded_pair = [x, numbers if node.attributes["transpose_b"] else numbers.T]
            else:
                axis = 0 if node.op == "conv" or node.attributes["transpose_b"] else 1
                whole, scales = rounded_weights(w, axis, scheme)
                rounded_pair = [rounded_input(x, ranges.get(layer.input), scheme, signed),
                                whole.astype(np.float32) * scales]  # fmt: skip
            plain, found = (run_node(node, [*pair, *rest], symbols, float32) for pair in ([x, w], rounded_pair))
            error = _relative(found, plain)
        rows.append(LayerReport(name, node.op, node.source, ranges.get(layer.input), error))
    return tuple(rows)


def _differences(graph: Graph, result: Graph, samples: Sequence[Sample]) -> dict[str, float]:
    """By output of floats: how much the quantized graph differs, over all samples."""
    squares: dict[str, tuple[float, float]] = {}
    for sample in samples:
        plain, found = (run_samples(each, dict(zip(each.output_names, each.outputs, strict=True)), sample)
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


def source_of(model: Any) -> str:
    """What a model is called in files."""
    return Path(model).resolve().name if isinstance(model, (str, Path)) else type(model).__qualname__
