"""The results of an engine's kernels, one by one, and what they should be: which layer makes an engine differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tilewright.build.builder import build
from tilewright.build.tuning import Tuning
from tilewright.dtypes import float64
from tilewright.engine.engine import Engine
from tilewright.graph import reference
from tilewright.graph.build import plain_name
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.rewrite import PERMUTED
from tilewright.insight.difference import difference


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


def with_layers(engine: Engine) -> Engine:
    """The engine built again, with the same fusion and kernels, so that all that kernels store are outputs.

    Raises `UnsupportedOperationError` for a model that is cut into parts.
    """
    tuning = Tuning(effort=0, recorded=engine.timings, quick=engine.is_quick)
    graph, precision = engine.source_graph(), engine.precision
    return build(graph, engine.target, None, engine.source, tuning, layers=True, precision=precision)


def compare_layers(
    engine: Engine, inputs: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray] | None = None
) -> list[LayerTensor]:
    """The layers of an engine of `with_layers`, the one that adds the largest error first.

    `theirs` are tensors of a peer by name; without it the peer is float64 on the whole graph.  Layers have the peer's
    names, and outputs the model's, where values of graphs cannot have them.
    """
    graph = engine.source_graph()
    symbols = reference.bind_symbols(graph, inputs)
    exact = _reference(graph, inputs) if theirs is None else _by_name(theirs)
    results = engine.run({name: array.copy() for name, array in inputs.items()})  # which may update inputs in place
    ours = {value: np.asarray(results[name]) for name, value in zip(graph.output_names, graph.outputs, strict=True)}
    available = {value: inputs[value.name] for value in graph.inputs} | ours
    producers = graph.producers()
    steps = _steps(engine)
    names = {plain: name for name in [*graph.output_names, *(theirs or ())] if (plain := plain_name(name)) != name}
    found = []
    for value in graph.outputs:
        if value not in producers:
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
    return sorted(found, key=lambda layer: -layer.own)


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
    """A peer's tensors by the names that graphs give them."""
    return {plain_name(name): array for name, array in theirs.items()}
