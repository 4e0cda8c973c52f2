"""Chooses a format for each layer, by measured time and error, within a bound on the model's loss.

Half of the samples decide: two thirds of them give ranges, and with all of them each layer is timed in every format by
an engine of its own, and its result compared with that of floats.  Steps to faster formats are then taken in the order
of time saved for the squared error they bring, as many as stay within the bound; where the next one does not, it is
left out and the others go on.  Where the engine is no faster than floats, the steps that save least are taken back:
layers that are faster alone may take apart what one kernel of floats does.

The other half of the samples is held back, and run through the engine itself.  If the bound does not hold there, half
of them join those that decide, and the search is made again with half of the bound: so the loss that is reported is
always one of samples that decided nothing.  It ends without an engine where no sample is left to hold back.

What is measured on the way is stored (`quant.stored_search`): a search that was interrupted goes on with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from math import ceil
from typing import Any, NoReturn

import numpy as np

from tilewright.build.builder import build
from tilewright.dtypes import int8
from tilewright.engine.engine import Engine
from tilewright.errors import InputError, PrecisionBoundError
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph, Node
from tilewright.graph.kernel_facts import KernelFacts
from tilewright.graph.pipeline import optimize
from tilewright.graph.reference import bind_symbols, run_node
from tilewright.importers import import_model
from tilewright.importers.quantized_weights import nearest
from tilewright.measure.timers import on_processor
from tilewright.quant.calibration import Sample, samples_of
from tilewright.quant.layers import (
    DYNAMIC,
    GROUPS,
    INT4_WEIGHTS,
    INT8_WEIGHTS,
    STATIC,
    WEIGHT_BITS,
    Layer,
    layers_of,
    name_of,
    quantized,
    rounded_input,
    rounded_weights,
    why_not,
)
from tilewright.quant.metrics import LABEL, METRICS, Drop, Outputs, Score, check_labels, of_score, predictions_of
from tilewright.quant.quantize import Progress, collect, run_samples, source_of, watching, whole_graph
from tilewright.quant.rounding import RoundedWeights
from tilewright.quant.stored_search import StoredSearch
from tilewright.quant.weights import matrix_of, smoothed, smoothing_factors, with_rounded_weights
from tilewright.settings import settings
from tilewright.targets.base import Target
from tilewright.targets.registry import for_kernels_of, get_targets

FLOAT = "float"
INT8_SMOOTH = "int8-smooth"  # int8 after magnitudes were moved from a product's inputs to its weights (SmoothQuant)
SEARCHED_FORMATS = (STATIC, INT8_SMOOTH, DYNAMIC, INT8_WEIGHTS, INT4_WEIGHTS)
_SCHEMES = {INT8_SMOOTH: STATIC}  # of `quant.layers`, where a format is not one itself
_LEAST_SAVED = 0.03  # of a layer's time: less is noise
_LEFT_OUT = 4  # steps that may fail before the search ends
_SAMPLES = 4  # that errors of layers are measured on
Assignment = dict[str, str]  # by layer the format, without those in floats
Step = tuple[str, str]  # a layer, and a format for it
Candidates = dict[str, dict[str, tuple[float, float]]]  # by layer and format the seconds and the relative error


@dataclass(frozen=True)
class LayerChoice:
    """A layer: by format its measured seconds and the relative error of its result; what was taken, and why."""

    name: str
    op: str
    source: str
    candidates: dict[str, tuple[float, float]]
    chosen: str
    why: str


@dataclass(frozen=True)
class Point:
    """What was tried: how many layers were in narrow numbers, the sum of all layers' seconds, the drop."""

    layers: int
    seconds: float
    drop: float


@dataclass(frozen=True)
class PrecisionSearch:
    """An engine within the bound; its drop on samples that did not decide, and how many these are; medians of the
    seconds of a run, of the model in floats and of the engine; every layer and every point that was tried; what else to
    know."""

    engine: Engine
    metric: str
    max_drop: float
    drop: float
    held_back: int
    float_seconds: float
    seconds: float
    layers: tuple[LayerChoice, ...]
    points: tuple[Point, ...]
    remarks: tuple[str, ...] = ()

    def as_data(self) -> dict[str, Any]:
        """All but the engine as JSON values."""
        layers = [
            {"name": row.name, "op": row.op, "source": row.source, "chosen": row.chosen, "why": row.why,
             "candidates": {name: list(pair) for name, pair in row.candidates.items()}}
            for row in self.layers
        ]  # fmt: skip
        points = [vars(point) for point in self.points]
        return {
            "metric": self.metric, "max_drop": self.max_drop, "drop": self.drop, "held_back": self.held_back,
            "float_seconds": self.float_seconds, "seconds": self.seconds, "layers": layers, "points": points,
            "remarks": list(self.remarks),
        }  # fmt: skip


def search_precision(
    model: Any,
    data: Any,
    *,
    max_drop: float = 0.005,
    metric: str | Score = "cosine",
    target: str | Sequence[str] = "auto",
    example_inputs: Any = None,
    dynamic_shapes: Any = None,
    trust: bool = False,
    progress: Progress | None = None,
    source: str | None = None,
) -> PrecisionSearch:
    """Build the fastest engine, by the choice of a format for each layer, that loses at most `max_drop`.

    `model` may also be a `Graph`.  `data` are at least two samples, as for `tilewright.quantize`; they may have a
    ``label`` besides the inputs.
    `metric` is ``cosine``, ``mse``, ``top1`` or a function ``score(outputs, inputs)`` of one sample's arrays by name,
    where larger is better (`quant.metrics`).  `source` is the model's origin in the engine, by default its file or
    name.  The rest is as for `tilewright.compile`, for a CPU that can run here.

    Raises `PrecisionBoundError`, with the smallest loss, if no layers are found that can be lowered within the bound,
    and `InputError` as `tilewright.quantize` does, if the metric is not finite for the model in floats, and if labels
    do not fit its predictions.
    """
    if not isinstance(max_drop, (int, float)) or isinstance(max_drop, bool) or not 0 <= max_drop < 1:
        raise InputError(f"max_drop is {max_drop!r}, expected a part from 0 to 1, such as 0.005")
    if isinstance(metric, str) and metric not in METRICS:
        raise InputError(f"unknown metric {metric!r}: choose one of {', '.join(METRICS)}, or give a function")
    given = model if isinstance(model, Graph) else import_model(model, example_inputs, dynamic_shapes, trust=trust)
    graph = whole_graph(given)
    samples = samples_of(data, graph, extra_names=(LABEL,))
    if len(samples) < 2:
        raise InputError("a search needs two samples at least: one half decides, the other one is held back")
    labelled = sum(LABEL in sample for sample in samples)
    if metric == "top1" and labelled not in (0, len(samples)):
        raise InputError(f"{labelled} of {len(samples)} samples have a `{LABEL}`: give each one, or none")
    targets = get_targets([target] if isinstance(target, str) else list(target))
    if not all(each.host_code for each in targets):
        raise InputError("precisions are searched for on CPUs; build for a GPU with a scheme of `tilewright quantize`")
    report = progress or (lambda stage, item, seconds: None)
    if source is None:
        source = model.name if isinstance(model, Graph) else source_of(model)
    passes = for_kernels_of(targets)
    plain = optimize(graph, passes)
    search = _Search(plain, samples, metric, float(max_drop), targets, passes.kernels, report, source)
    found = search.result()
    found.engine.results_of = graph.results_of
    found.engine.record_search(found.as_data())
    return found


@dataclass
class _Search:
    graph: Graph
    samples: Sequence[Sample]
    metric: str | Score
    max_drop: float
    targets: Sequence[Target]
    kernels: KernelFacts
    progress: Progress
    source: str
    points: list[Point] = field(default_factory=list)
    failed: dict[str, float] = field(default_factory=dict)  # by layer the drop that it was left out for
    slower: set[str] = field(default_factory=set)  # layers with which the engine was no faster
    beyond: list[tuple[float, int]] = field(default_factory=list)  # drops outside the bound, with how many layers

    def __post_init__(self) -> None:
        self.stored = StoredSearch(self.graph, self.samples, self.targets)
        self.deciding, self.verifying = list(self.samples[::2]), list(self.samples[1::2])
        self.bound = self.max_drop  # on the deciding samples
        self.drop: Drop = METRICS[self.metric] if isinstance(self.metric, str) else of_score(self.metric)
        self.signed = int8 in self.kernels.narrow_types
        self.layers: dict[str, list[Layer]] = {}
        for scheme in (STATIC, INT8_WEIGHTS, INT4_WEIGHTS):
            for layer in layers_of(self.graph, scheme, self.kernels):
                self.layers.setdefault(layer.name, []).append(layer)
        self.nodes = {name_of(node): node for node in self.graph.nodes if node.op in ("matmul", "conv")}
        self.times: dict[tuple[Any, ...], dict[str, float]] = {}  # of layers of one kind and size, by format
        self.weights: dict[tuple[str, str], RoundedWeights] = {}
        self.plain: dict[tuple[str, int], Outputs] = {}  # of floats, by "floats" or "runs" and a sample's identity
        self._measure_ranges()

    def _measure_ranges(self) -> None:
        """Ranges of all inputs of layers, of the deciding samples."""
        arrays = self.stored.arrays("ranges", len(self.deciding), self._ranges)
        parts: dict[str, dict[str, np.ndarray]] = {"range": {}, "smooth": {}, "factors": {}}
        for name, array in arrays.items():
            kind, _, called = name.partition(" ")
            parts[kind][called] = array
        self.factors = parts["factors"]
        self.ranges, self.smooth_ranges = (
            {name: (float(low), float(high)) for name, (low, high) in parts[kind].items()}
            for kind in ("range", "smooth")
        )

    def _ranges(self) -> Outputs:
        """By kind and name of an input: its range, what smoothing divides its columns by, and its range then."""
        ranging = self.deciding[: (2 * len(self.deciding) + 2) // 3]  # others show whether ranges hold
        every = [found[0] for found in self.layers.values()]
        moments = collect(self.graph, every, ranging, False, self.progress)
        factors = smoothing_factors(self.graph, every, moments)
        return {
            **{f"range {name}": np.array(each.range(), np.float64) for name, each in moments.items()},
            **{f"factors {name}": array for name, array in factors.items()},
            **{f"smooth {name}": np.array(moments[name].range(array), np.float64) for name, array in factors.items()},
        }

    def result(self) -> PrecisionSearch:
        """The whole search."""
        plain = build(self.graph, self.targets, self.progress, self.source)
        if self.metric == "top1":
            check_labels([*self._floats(), *self._runs(plain)], [*self.deciding, *self.verifying])
        while True:
            candidates = self._candidates()
            steps = self._steps(candidates)
            assignment, engine, seconds = self._no_slower(self._within(steps, candidates), candidates, plain)
            if not assignment and steps and not self.slower:
                self._refuse()
            drop = self._drop_on_unseen(plain, engine)
            if drop <= self.max_drop:
                break
            self.beyond.append((drop, len(assignment)))
            self._decide_with_more()
        metric = self.metric if isinstance(self.metric, str) else getattr(self.metric, "__name__", "script")
        rows = tuple(self._choice(node, candidates, assignment) for node in self.nodes.values())
        return PrecisionSearch(
            engine, metric, self.max_drop, drop, len(self.verifying), seconds[0], seconds[1], rows, tuple(self.points),
            self._remarks(plain),
        )  # fmt: skip

    def _no_slower(
        self, accepted: Sequence[Step], candidates: Candidates, plain: Engine
    ) -> tuple[Assignment, Engine, list[float]]:
        """What these steps assign, less what makes the engine no faster than floats; that engine, and the medians of
        the seconds of a run in floats and of the engine."""
        while True:
            assignment = self._assigned(accepted, candidates)
            engine = build(self._narrowed(assignment), self.targets, self.progress, self.source)
            measure = partial(_interleaved, [plain, engine], self._inputs(self.deciding[0]))
            times = self.stored.value("engines", self._which(assignment), measure)
            if not assignment or min(times[1]) < min(times[0]):
                return assignment, engine, [float(np.median(each)) for each in times]
            saving = self._that_save_most(assignment, candidates)
            self.slower |= assignment.keys() - saving
            accepted = [step for step in accepted if step[0] in saving]

    def _decide_with_more(self) -> None:
        """Begin again with half of the samples that were held back among those that decide, and half of the bound."""
        if len(self.verifying) == 1:
            self._refuse()
        self.deciding += self.verifying[::2]
        self.verifying = self.verifying[1::2]
        self.bound /= 2
        self.failed.clear()
        self.slower.clear()
        self._measure_ranges()

    # -- What layers take and lose ----------------------------------------------------------------

    def _candidates(self) -> Candidates:
        """By layer and format the seconds and the relative error."""

        @cache
        def inputs() -> list[dict[str, np.ndarray]]:
            names = dict.fromkeys(found[0].input for found in self.layers.values())
            watched, values = watching(self.graph, list(names))
            return [run_samples(watched, values, sample) for sample in self.deciding[-_SAMPLES:]]

        found: Candidates = {}
        for number, (name, layers) in enumerate(self.layers.items()):
            self.progress("measure layers", f"{name}, {number + 1} of {len(self.layers)}", 0.0)

            def given(layer: Layer = layers[0]) -> list[np.ndarray]:
                return [item[layer.input] for item in inputs()]

            found[name] = self._measured(self.nodes[name], given)
        return found

    def _measured(self, node: Node, inputs: Callable[[], list[np.ndarray]]) -> dict[str, tuple[float, float]]:
        """By format the seconds and the relative error of a layer; `inputs` gives those of some samples."""
        schemes = [each for each in (FLOAT, *SEARCHED_FORMATS) if each == FLOAT or self._takes(node, each)]
        errors = self.stored.value(
            "errors", [len(self.deciding), name_of(node)],
            lambda: {"shape": list(inputs()[0].shape),
                     "errors": {each: self._error(node, inputs(), each) for each in schemes}},
        )  # fmt: skip
        key = node.op, tuple(errors["shape"]), self._shape_of_weights(node), repr(node.attributes)
        if key not in self.times:
            self.times[key] = self.stored.value(
                "times", repr(key), lambda: self._seconds(node, inputs()[0], schemes)
            )  # fmt: skip
        return {each: (self.times[key][each], errors["errors"][each]) for each in schemes}

    def _takes(self, node: Node, scheme: str) -> bool:
        if scheme == INT8_SMOOTH and node.op != "matmul":
            return False
        return why_not(node, self.graph, _SCHEMES.get(scheme, scheme), self.kernels) is None

    def _shape_of_weights(self, node: Node) -> tuple[int, ...]:
        assert node.inputs[1] is not None
        return self.graph.constants[node.inputs[1]].shape

    def _seconds(self, node: Node, x: np.ndarray, schemes: Sequence[str]) -> dict[str, float]:
        """By format the least seconds of a run of an engine of this layer alone; the engines take turns."""
        b = GraphBuilder("layer")
        source = node.inputs[0]
        assert source is not None
        value = b.input("x", source.dtype, x.shape)
        others = [b.constant(self.graph.constants[item], f"c{n}") for n, item in enumerate(node.inputs[1:])
                  if item is not None and item in self.graph.constants]  # fmt: skip
        if len(others) != sum(item is not None for item in node.inputs[1:]):
            return dict.fromkeys(schemes, float("inf"))
        b.output(b.op(node.op, [value, *others], **node.attributes), "y")
        graph = b.finish()
        engines = []
        for scheme in schemes:
            narrow = graph
            if scheme != FLOAT:
                (name,) = (name_of(each) for each in graph.nodes)
                narrow = self._one(graph, {name: scheme}, {"x": source.name})
            engines.append(build(narrow, self.targets))
        seconds = _interleaved(engines, {"x": x.astype(source.dtype.numpy)})
        return {scheme: min(times) for scheme, times in zip(schemes, seconds, strict=True)}

    def _error(self, node: Node, inputs: Sequence[np.ndarray], scheme: str) -> float:
        """The relative error (root mean square) of the layer's results for exact inputs."""
        if scheme == FLOAT:
            return 0.0
        assert node.inputs[0] is not None and node.inputs[1] is not None
        w = self.graph.constants[node.inputs[1]].astype(np.float32)
        rest = [self.graph.constants.get(item) for item in node.inputs[2:] if item is not None]
        if scheme in WEIGHT_BITS:
            numbers = self._rounded(node, scheme).numbers()
            other = numbers if node.attributes["transpose_b"] else numbers.T
        else:
            axis = 0 if node.op == "conv" or node.attributes["transpose_b"] else 1
            whole, scales = rounded_weights(w * self._aside(node, scheme, axis), axis, STATIC)
            other = whole.astype(np.float32) * scales / self._aside(node, scheme, axis)
        error = total = 0.0
        for x, sample in zip(inputs, self.deciding[-_SAMPLES:], strict=True):
            near = x if scheme in WEIGHT_BITS else self._near(x, node.inputs[0].name, scheme)
            symbols = bind_symbols(self.graph, sample)
            plain, found = (run_node(node, [*pair, *rest], symbols) for pair in ((x, w), (near, other)))
            error += float(((found.astype(np.float64) - plain) ** 2).sum())
            total += float((plain.astype(np.float64) ** 2).sum())
        return float(np.sqrt(error / total)) if total else 0.0

    def _aside(self, node: Node, scheme: str, axis: int) -> np.ndarray | float:
        """What weights are multiplied by before they are rounded."""
        if scheme != INT8_SMOOTH or node.inputs[0] is None:
            return 1.0
        factors = self.factors[node.inputs[0].name]
        return factors if axis == 0 else factors[:, None]

    def _near(self, x: np.ndarray, name: str, scheme: str) -> np.ndarray:
        """A layer's input as a format of 8-bit integers has it."""
        if scheme == INT8_SMOOTH:
            factors = self.factors[name]
            return rounded_input(x / factors, self.smooth_ranges[name], STATIC) * factors
        return rounded_input(x, None if scheme == DYNAMIC else self.ranges[name], scheme, self.signed)

    def _rounded(self, node: Node, scheme: str) -> RoundedWeights:
        key = name_of(node), scheme
        if key not in self.weights:
            matrix = matrix_of(node, self.graph.constants)
            self.weights[key] = RoundedWeights(nearest(matrix, WEIGHT_BITS[scheme], GROUPS[scheme]))
        return self.weights[key]

    # -- Which layers -----------------------------------------------------------------------------

    def _steps(self, candidates: Candidates) -> list[Step]:
        """Layers and formats that are faster than floats, those that save most for their error first."""
        ranked = []
        for name, pairs in candidates.items():
            plain = pairs[FLOAT][0]
            for scheme, (seconds, error) in pairs.items():
                if scheme != FLOAT and plain - seconds > _LEAST_SAVED * plain:
                    ranked.append(((plain - seconds) / (error**2 + 1e-12), name, scheme))
        return [(name, scheme) for _, name, scheme in sorted(ranked, reverse=True)]

    def _within(self, steps: Sequence[Step], candidates: Candidates) -> list[Step]:
        """As many steps as stay within the bound on the deciding samples."""
        accepted: list[Step] = []
        rest = list(steps)
        for _ in range(_LEFT_OUT):
            assigned = self._assigned(accepted, candidates)
            rest = [step for step in rest if self._assigned([*accepted, step], candidates) != assigned]
            low, high = 0, len(rest)
            count = high
            while rest:
                if self._try(accepted + rest[:count], candidates) <= self.bound:
                    low = count
                else:
                    high = count - 1
                if low >= high:
                    break
                count = (low + high + 1) // 2
            accepted, failing, rest = accepted + rest[:low], rest[low : low + 1], rest[low + 1 :]
            self.failed |= {name: self.points[-1].drop for name, _ in failing}
            if not rest:
                break
        return accepted

    @staticmethod
    def _assigned(steps: Sequence[Step], candidates: Candidates) -> Assignment:
        """The formats after steps, each taken where it is faster than what its layer has by then."""
        found: Assignment = {}
        for name, scheme in steps:
            if candidates[name][scheme][0] < candidates[name][found.get(name, FLOAT)][0]:
                found[name] = scheme
        return found

    @staticmethod
    def _that_save_most(assignment: Assignment, candidates: Candidates) -> set[str]:
        """The half of the layers that save the most seconds."""

        def saved(name: str) -> float:
            return candidates[name][FLOAT][0] - candidates[name][assignment[name]][0]

        return set(sorted(assignment, key=saved, reverse=True)[: len(assignment) // 2])

    def _try(self, steps: Sequence[Step], candidates: Candidates) -> float:
        """The drop of an assignment on the deciding samples, by the reference; it is a point from then on."""
        assignment = self._assigned(steps, candidates)
        self.progress("search", f"{len(assignment)} layers in narrow numbers", 0.0)
        compute, which = partial(self._outputs, self._narrowed(assignment)), self._which(assignment)
        found = [self.stored.of_sample("outputs", which, each, partial(compute, each)) for each in self.deciding]
        drop = self._drop_of(self._floats(), found, self.deciding)
        seconds = sum(pairs[assignment.get(name, FLOAT)][0] for name, pairs in candidates.items())
        self.points.append(Point(len(assignment), seconds, drop))
        if drop > self.max_drop:
            self.beyond.append((drop, len(assignment)))
        return drop

    def _drop_of(self, floats: Sequence[Outputs], narrow: Sequence[Outputs], samples: Sequence[Sample]) -> float:
        """The drop; infinite where the metric gives no finite number, which the model in floats must have."""
        drop = self.drop(floats, narrow, samples)
        if np.isfinite(drop):
            return drop
        if not np.isfinite(self.drop(floats, floats, samples)):
            raise InputError(
                "the metric of the model in floats is not a finite number: look for NaN or infinity in its outputs, "
                "or in what the metric makes of them"
            )
        return float("inf")

    def _refuse(self) -> NoReturn:
        """Raise the error that says how near the search came."""
        drop, layers = min(self.beyond)
        bound, least = _distinct_percentages(self.max_drop, drop)
        raise PrecisionBoundError(
            f"the search found no layers for narrow numbers within a drop of {bound}: the least that was lost is "
            f"{least}, with {layers} of {len(self.layers)} layers. Allow more, or build in floats"
        )

    # -- Graphs and runs --------------------------------------------------------------------------

    def _narrowed(self, assignment: Assignment) -> Graph:
        return self._one(self.graph, assignment)

    def _one(self, graph: Graph, assignment: Assignment, sources: Mapping[str, str] | None = None) -> Graph:
        """A graph with its layers in these formats; `sources` are the names that inputs have in the model."""
        nodes = {name_of(node): node for node in graph.nodes if node.op in ("matmul", "conv")}
        own = {name: node.inputs[0].name for name, node in nodes.items() if node.inputs[0] is not None}
        called = {name: (sources or {}).get(name, name) for name in own.values()}
        weights = {}
        for name, scheme in assignment.items():
            if scheme in WEIGHT_BITS and graph is self.graph:
                weights[name] = self._rounded(nodes[name], scheme)
            elif scheme in WEIGHT_BITS:
                matrix = matrix_of(nodes[name], graph.constants)
                weights[name] = RoundedWeights(nearest(matrix, WEIGHT_BITS[scheme], GROUPS[scheme]))
        by = {scheme: {name for name, each in assignment.items() if each == scheme} for scheme in SEARCHED_FORMATS}
        ranges = self.ranges | {name: self.ranges[model] for name, model in called.items() if model in self.ranges}
        result = with_rounded_weights(graph, weights)
        if by[INT8_SMOOTH]:
            factors = {own[name]: self.factors[called[own[name]]] for name in by[INT8_SMOOTH]}
            result = smoothed(result, by[INT8_SMOOTH], factors)
            for node in result.nodes:
                if name_of(node) in by[INT8_SMOOTH] and node.inputs[0] is not None:
                    ranges[node.inputs[0].name] = self.smooth_ranges[called[own[name_of(node)]]]
        result = quantized(result, by[STATIC] | by[INT8_SMOOTH], ranges, STATIC, self.signed)
        return quantized(result, by[DYNAMIC], {}, DYNAMIC, self.signed) if by[DYNAMIC] else result

    def _which(self, assignment: Assignment) -> list[Any]:
        """What decides about the numbers of a graph in these formats: these, and the samples that ranges are of."""
        return [len(self.deciding), sorted(assignment.items())]

    def _floats(self) -> list[Outputs]:
        """What the model in floats gives for the deciding samples, by the reference."""
        return self._once("floats", self.deciding, partial(self._outputs, self.graph))

    def _runs(self, plain: Engine) -> list[Outputs]:
        """What the engine of floats gives for the samples that are held back."""
        return self._once("runs", self.verifying, lambda sample: plain.run(self._inputs(sample)))

    def _once(self, kind: str, samples: Sequence[Sample], compute: Callable[[Sample], Outputs]) -> list[Outputs]:
        """Results in floats, of which each is computed once in a search, whether it can be stored or not."""
        for sample in samples:
            if (kind, id(sample)) not in self.plain:
                found = self.stored.of_sample(kind, [], sample, partial(compute, sample))
                self.plain[kind, id(sample)] = found
        return [self.plain[kind, id(sample)] for sample in samples]

    def _outputs(self, graph: Graph, sample: Sample) -> Outputs:
        values = dict(zip(graph.output_names, graph.outputs, strict=True))
        return run_samples(graph, values, sample)

    def _inputs(self, sample: Sample) -> dict[str, np.ndarray]:
        return {item.name: np.asarray(sample[item.name]).astype(item.dtype.numpy) for item in self.graph.inputs}

    def _drop_on_unseen(self, plain: Engine, engine: Engine) -> float:
        self.progress("verify", f"on {len(self.verifying)} samples held back", 0.0)
        found = [engine.run(self._inputs(sample)) for sample in self.verifying]
        return self._drop_of(self._runs(plain), found, self.verifying)

    def _remarks(self, plain: Engine) -> tuple[str, ...]:
        """That samples are too few, where one wrong prediction is more than the bound."""
        if self.metric != "top1" or not self.max_drop:
            return ()
        count = predictions_of(self._runs(plain))
        enough = ceil(1 / self.max_drop)
        if not 0 < count < enough:
            return ()
        return (
            f"{count} predictions were held back, of which one is {1 / count:.2%}: too few to show a drop of "
            f"{self.max_drop:.3g}, for which samples have at least {2 * enough} predictions in all",
        )

    def _choice(self, node: Node, candidates: Candidates, assignment: Assignment) -> LayerChoice:
        name = name_of(node)
        pairs = candidates.get(name, {})
        chosen = assignment.get(name, FLOAT)
        if chosen != FLOAT:
            why = f"{1 - pairs[chosen][0] / pairs[FLOAT][0]:.0%} less time than floats"
        elif name in self.slower:
            why = "alone it is faster in other formats, but the engine with them is not"
        elif name in self.failed:
            why = f"with it the model lost {self.failed[name]:.3%}"
        elif not pairs:
            why = why_not(node, self.graph, STATIC, self.kernels) or "it has no other format"
        else:
            why = "no other format is faster, or steps before it took all of the bound"
        return LayerChoice(name, node.op, node.source, pairs, chosen, why)


def _distinct_percentages(*parts: float) -> list[str]:
    """Numbers that differ in percent, with digits enough to see it."""
    every = ([f"{100 * part:.{digits}g}%" for part in parts] for digits in range(3, 18))
    return next((texts for texts in every if len(set(texts)) == len(parts)), [str(part) for part in parts])


def _interleaved(engines: Sequence[Engine], inputs: Mapping[str, np.ndarray]) -> list[list[float]]:
    """Seconds of interleaved runs of each engine."""
    times = on_processor([partial(engine.run, inputs) for engine in engines], settings.threads == 1)
    return [[microseconds * 1e-6 for microseconds in each] for each in times]
