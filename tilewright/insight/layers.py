"""Compares the result of each kernel of an engine with a reference, to find the layer that differs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.build.builder import build
from tilewright.build.tuning import Tuning
from tilewright.dtypes import HOST_ONLY, DType, float64
from tilewright.engine.engine import Engine
from tilewright.graph import reference
from tilewright.graph.build import plain_name
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.rewrite import PERMUTED
from tilewright.insight.difference import difference
from tilewright.symbolic import evaluate


@dataclass(frozen=True)
class LayerTensor:
    """A tensor that a kernel stores.

    `difference` is the largest difference from the peer, `own` the largest from float64 on what the engine itself
    computed before: the part that this layer adds.  Both are relative to the largest value there; `difference` is None
    where the peer has no such tensor.
    """

    step: str
    name: str
    source: str
    dtype: str
    shape: tuple[int, ...]
    difference: float | None
    own: float


@dataclass(frozen=True)
class LayeredParts:
    """A graph that is cut into parts, and for each part an engine whose outputs are all that its kernels store."""

    graph: Graph
    engines: Sequence[Engine]


def with_layers(engine: Engine) -> Engine | LayeredParts:
    """The engine built again, with the same fusion and kernels, so that all that kernels store are outputs."""
    tuning = Tuning(effort=0, recorded=engine.timings, quick=engine.is_quick)

    def built(graph: Graph) -> Engine:
        return build(graph, engine.target, None, engine.source, tuning, layers=True, precision=engine.precision)

    graph = engine.source_graph()
    return LayeredParts(graph, [built(part) for part in graph.parts]) if graph.parts else built(graph)


def compare_layers(
    engine: Engine | LayeredParts, inputs: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray] | None = None
) -> list[LayerTensor]:
    """The layers of what `with_layers` gives, the one that adds the largest error first.

    `theirs` are tensors of a peer by name; without it the peer is float64 on the whole graph.  Layers have the peer's
    names, and outputs the model's, where values of graphs cannot have them.  Of a part that runs several times, in a
    loop, each layer is shown as it was in the run in which it added most.
    """
    peer = None if theirs is None else _by_name(theirs)
    names = {plain: name for name in theirs or () if (plain := plain_name(name)) != name}
    if isinstance(engine, LayeredParts):
        found = _of_parts(engine, inputs, peer, names)
    else:
        found, _ = _of_engine(
            engine, inputs, _reference(engine.source_graph(), inputs) if peer is None else peer, names
        )
    return sorted(found, key=lambda layer: -layer.own)


def _of_engine(
    engine: Engine, inputs: Mapping[str, np.ndarray], exact: Mapping[str, np.ndarray], names: Mapping[str, str]
) -> tuple[list[LayerTensor], dict[str, Any]]:
    """The layers of one engine, compared with a peer's tensors, and its results by name."""
    graph = engine.source_graph()
    symbols = reference.bind_symbols(graph, inputs)
    results = engine.run({name: array.copy() for name, array in inputs.items()})  # which may update inputs in place
    stored = {value: results[name] for name, value in zip(graph.output_names, graph.outputs, strict=True)}
    ours = {value: found if value.dtype in HOST_ONLY else np.asarray(found) for value, found in stored.items()}
    available = {value: inputs[value.name] for value in graph.inputs} | ours
    producers = graph.producers()
    steps = _steps(engine)
    names = {**names, **{plain: name for name in graph.output_names if (plain := plain_name(name)) != name}}
    found = []
    for value in graph.outputs:
        if value not in producers or value.dtype in HOST_ONLY:  # lists and text are the host's, which only moves them
            continue
        peer = _of_peer(value.name, exact)
        part = _part(graph, value, available, producers)
        arrays = [available[item] for item in part.inputs]
        own = reference.run_graph(part, arrays, dict(symbols), float64)[value]
        array = ours[value]
        apart = None if peer is None or peer.shape != array.shape else difference(array, peer)[1]
        added = difference(array, own)[1]
        place = (steps.get(value.name, ""), _as_in_the_model(value.name, names), producers[value].source)
        found.append(LayerTensor(*place, value.dtype.name, array.shape, apart, added))
    return found, results


def _of_parts(
    parts: LayeredParts,
    inputs: Mapping[str, np.ndarray],
    theirs: Mapping[str, np.ndarray] | None,
    names: Mapping[str, str],
) -> list[LayerTensor]:
    """The layers of all parts, which run as they would in one engine."""
    exact = iter(_references(parts, inputs)) if theirs is None else itertools.repeat(theirs)
    worst: dict[tuple[int, str], LayerTensor] = {}

    def run_part(node: Node, arrays: Sequence[Any], symbols: Mapping[str, int]) -> list[np.ndarray]:
        number = node.attributes["number"]
        part, peer = parts.graph.parts[number], next(exact, {})
        feeds = _feeds(part, arrays, symbols)
        if _is_empty(feeds):
            return reference.interpret_part(part, arrays, symbols)
        layers, results = _of_engine(parts.engines[number], feeds, peer, names)
        for layer in layers:
            known = worst.setdefault((number, layer.name), layer)
            if layer.own > known.own:
                worst[number, layer.name] = layer
        return [results[name] for name in part.output_names]

    _run_parts(parts.graph, inputs, None, run_part)
    return list(worst.values())


def _references(parts: LayeredParts, inputs: Mapping[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    """float64 on the whole graph: for each run of a part what its kernels would store, by name."""
    found: list[dict[str, np.ndarray]] = []

    def run_part(node: Node, arrays: Sequence[Any], symbols: Mapping[str, int]) -> list[np.ndarray]:
        number = node.attributes["number"]
        part, source = parts.graph.parts[number], parts.engines[number].source_graph()
        feeds = _feeds(part, arrays, symbols)
        place = len(found)
        found.append({})
        if _is_empty(feeds):
            return reference.interpret_part(part, arrays, symbols, float64)
        values = reference.run_graph(
            source, [feeds[value.name] for value in source.inputs], reference.bind_symbols(source, feeds), float64
        )
        found[place] = {value.name: values[value] for value in source.outputs}
        by_output = dict(zip(source.output_names, source.outputs, strict=True))
        return [values[by_output[name]] for name in part.output_names]

    _run_parts(parts.graph, inputs, float64, run_part)
    return found


def _feeds(part: Graph, arrays: Sequence[Any], symbols: Mapping[str, int]) -> dict[str, np.ndarray]:
    """What a part reads, by name, with the inputs that only stand for sizes."""
    sizes = [np.zeros(evaluate(value.shape[0], symbols), np.bool_) for value in part.inputs[len(arrays) :]]
    return {value.name: np.asarray(array) for value, array in zip(part.inputs, [*arrays, *sizes], strict=True)}


def _is_empty(feeds: Mapping[str, np.ndarray]) -> bool:
    """Whether NumPy runs a part, as engines do it: there is next to nothing to compute."""
    return any(0 in array.shape for array in feeds.values())


def _run_parts(
    graph: Graph, inputs: Mapping[str, np.ndarray], working: DType | None, run_part: reference.PartRunner
) -> None:
    read = {value.name: reference.read_input(inputs, value) for value in graph.inputs}
    symbols = reference.bind_symbols(graph, read)
    reference.run_graph(graph, list(read.values()), symbols, working, run_part)


def _part(graph: Graph, value: Value, available: Mapping[Value, np.ndarray], producers: Mapping[Value, Node]) -> Graph:
    """The nodes that make `value` from what kernels stored before."""
    needed: set[Node] = set()
    read: dict[Value, None] = {}
    pending = [value]
    while pending:
        item = pending.pop()
        if item is not value and (item in available or item in graph.constants):
            read[item] = None
            continue
        node = producers[item]
        if node not in needed:
            needed.add(node)
            pending += [other for other in node.inputs if other is not None]
    constants = {item: graph.constants[item] for item in read if item in graph.constants}
    inputs = [item for item in read if item not in constants]
    nodes = [node for node in graph.nodes if node in needed]
    return Graph(value.name, graph.symbols, inputs, [value], [value.name], nodes, constants)


def _steps(engine: Engine) -> dict[str, str]:
    """The step that computes each value, by the value's name: the last one whose operations have it."""
    return {
        text.partition("%")[2].partition(" ")[0]: step.name for step in engine.plan.steps for text in step.operations
    }


def _as_in_the_model(name: str, names: Mapping[str, str]) -> str:
    """The name that a value's was made of, by the names of values; with the mark of one with channels last."""
    plain, mark, rest = name.partition(PERMUTED)
    return names[name] if name in names else names.get(plain, plain) + mark + rest


def _of_peer(name: str, exact: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """A peer's tensor; that of a value with channels last in the same order."""
    plain, permuted, _ = name.partition(PERMUTED)
    if name in exact or not permuted:
        return exact.get(name)
    found = exact.get(plain)
    return None if found is None or found.ndim < 3 else np.moveaxis(found, 1, -1)


def _reference(graph: Graph, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """float64 on the whole graph: its outputs by the names of their values."""
    results = reference.run(graph, inputs)
    return {value.name: results[name] for name, value in zip(graph.output_names, graph.outputs, strict=True)}


def _by_name(theirs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A peer's tensors of numbers by the names that graphs give them."""
    tensors = {name: array for name, array in theirs.items() if isinstance(array, np.ndarray)}
    return {plain_name(name): array for name, array in tensors.items() if array.dtype.kind != "O"}
