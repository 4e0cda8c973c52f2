"""Builds an engine of several parts: each part as a separate graph, all in one file.

A program of the manifest has a plan without steps, which says what the engine takes and gives, and ``parts``: the
programs of the parts by number.  ``graph.json`` holds what the host runs between them, and the parts' graphs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.build.engine_builder import EngineBuilder, Order
from tilewright.build.manifest import TargetProgram, manifest_of, program_entry
from tilewright.build.weight_store import WeightStore
from tilewright.dtypes import HOST_ONLY
from tilewright.engine.engine import MOST_MODEL_PARTS, Engine, staged_symbol
from tilewright.engine.file import Package
from tilewright.engine.graph_json import Placement, graph_entry
from tilewright.engine.plan_json import plan_to_json
from tilewright.engine.weights import Weights, WeightSource
from tilewright.errors import ShapeError, UnsupportedOperationError
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.ops import ON_HOST, kind_of
from tilewright.graph.partition import has_no_numbers, is_small
from tilewright.graph.passes.fuse import fuse
from tilewright.graph.pipeline import optimize
from tilewright.graph.reference import run_time_symbols
from tilewright.graph.serialize import to_data
from tilewright.library.select import candidates
from tilewright.runtime.plan import Plan, TensorSpec
from tilewright.symbolic import Symbol, free_symbols
from tilewright.targets.base import Target
from tilewright.targets.registry import graph_passes


def build_staged(graph: Graph, order: Order, missing: Sequence[str] = ()) -> Engine:
    """The engine of a graph that was cut; `missing` are remarks about nodes without a kernel. Raises as `build`."""
    _check_symbols(graph)
    if len(graph.parts) > MOST_MODEL_PARTS:
        raise UnsupportedOperationError(
            f"the model {graph.name} would be cut into {len(graph.parts)} parts, at most {MOST_MODEL_PARTS} are "
            "supported: let fewer sizes depend on data"
        )
    weights = WeightStore()
    builders = [EngineBuilder(part, order, weights, f"{number}/") for number, part in enumerate(graph.parts)]
    compiled = [builder.programs() for builder in builders]
    _, arrays = to_data(graph)
    placements: dict[str, Placement] = {name: (f"host/{name}", None) for name in arrays}
    sources = weights.sources | {f"host/{name}": WeightSource.of(np.asarray(array)) for name, array in arrays.items()}
    entry = graph_entry(graph, placements)
    entry["parts"] = [graph_entry(builder.graph, builder.placements) for builder in builders]
    for number, (part, builder) in enumerate(zip(graph.parts, builders, strict=True)):
        if part.at_zero is not None:
            entry["parts"][number]["at_zero"] = _entry_at_zero(part.at_zero, builder, sources, f"zero/{number}/")
    text, packed = json.dumps(entry).encode(), Weights.pack(sources)
    objects: dict[str, bytes] = {}
    programs = []
    for number in range(len(order.targets)):
        parts = [programs_of[number] for programs_of in compiled]
        program, images = _program(graph, order.targets[number], parts, packed, text, number)
        programs.append(program)
        objects |= images
    reported = {remark.partition(": ")[0] for remark in missing}
    between = [remark for remark in _remarks(graph) if remark.partition(": ")[0] not in reported]
    remarks = [*graph.remarks, *missing, *between, *_kernel_remarks(builders, compiled)]
    fusion = dict.fromkeys(remark for builder in builders for remark in builder.fusion)
    manifest = manifest_of(graph, order.source, list(dict.fromkeys(remarks)), list(fusion), programs)
    return Engine(Package(manifest, packed, text, objects))


def _entry_at_zero(
    part: Graph, builder: EngineBuilder, sources: dict[str, WeightSource], prefix: str
) -> dict[str, Any]:
    """The part as the host runs it at a size of 0: constants that are in the optimised part too are those of it, others
    join `sources`."""
    known = {id(array): value.name for value, array in builder.graph.constants.items()}
    placements: dict[str, Placement] = {}
    for value, array in part.constants.items():
        stored = builder.placements.get(known.get(id(array), ""))
        if stored is None:
            stored = (prefix + value.name, None)
            sources[stored[0]] = WeightSource.of(np.asarray(array))
        placements[value.name] = stored
    return graph_entry(part, placements)


def _program(
    graph: Graph, target: Target, parts: Sequence[TargetProgram], weights: Weights, text: bytes, number: int
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The entry of a target: the signature, and its parts."""
    entries: list[dict[str, Any]] = []
    objects: dict[str, bytes] = {}
    for place, part in enumerate(parts):
        entry, images = program_entry(part, weights, f"-{number}-{place}")
        entries.append(entry)
        objects |= images
    features = sorted({feature for entry in entries for feature in entry["target"]["features"]})
    facts = entries[0]["target"] if entries else dict(target.facts)
    plan = plan_to_json(_signature(graph))
    return {
        "target": {**facts, "features": features},
        "plan": plan,
        "symbol": staged_symbol(plan, [entry["symbol"] for entry in entries], text),
        "objects": list(objects),
        "kernels": {key: described for entry in entries for key, described in entry["kernels"].items()},
        "timings": [timing for entry in entries for timing in entry.get("timings", [])],
        "parts": entries,
    }, objects


def _signature(graph: Graph) -> Plan:
    """What the engine takes and gives."""
    mutated = graph.mutations
    inputs = [TensorSpec(v.name, v.dtype.name, v.shape, v.name if v in mutated else None) for v in graph.inputs]
    updated = {value: target.name for target, value in mutated.items()}
    outputs = [
        TensorSpec(name, value.dtype.name, value.shape, updated.get(value))
        for name, value in zip(graph.output_names, graph.outputs, strict=True)
    ]
    return Plan(dict(graph.symbols), inputs, outputs, steps=[], arena_bytes=0, scratch_bytes=0)


def _check_symbols(graph: Graph) -> None:
    """Every size must follow from the inputs' shapes, or from what is computed between the parts."""
    known = {symbol.name for value in graph.inputs for size in value.shape for symbol in free_symbols(size)}
    known |= run_time_symbols(graph)
    read = [value for node in graph.nodes for value in (*node.inputs, *node.outputs) if value is not None]
    sizes = [size for value in (*read, *graph.outputs) for size in value.shape]
    missing = sorted({symbol.name for size in sizes for symbol in free_symbols(size)} - known)
    if missing:
        raise ShapeError(
            f"the dynamic sizes {', '.join(missing)} are in no input's shape, so that a call cannot tell them; "
            "make them fixed, or add an input that has them"
        )


def _remarks(graph: Graph) -> list[str]:
    """What runs outside of the compiled parts, for the user."""
    found = []
    for node in graph.nodes:
        where = f" ({node.source})" if node.source else ""
        if any(value.dtype in HOST_ONLY for value in (*node.inputs, *node.outputs) if value is not None):
            if kind_of(node.op) not in ("part", "control"):
                found.append(f"{node.op} %{node.outputs[0].name}{where}: run by Python: it works on text or lists")
        elif kind_of(node.op) == "host" and node.op not in ("extent", "condition"):
            found.append(f"{node.op} %{node.outputs[0].name}{where}: run by NumPy, its result's size depends on data")
        elif kind_of(node.op) not in ON_HOST and not all(map(_is_size, node.outputs)):
            why = ": a few numbers" if all(map(is_small, node.outputs)) else ", slowly: no kernel computes it"
            found.append(f"{node.op} %{node.outputs[0].name}{where}: run by NumPy{why}")
        for key, item in node.attributes.items():
            if isinstance(item, Graph):
                found.append(f"{node.op} %{node.outputs[0].name}{where}: its {key} is run between the compiled parts")
                found += _remarks(item)
    count = len(graph.parts)
    return [*found, f"the model is cut into {count} compiled parts"] if count > 1 else found


def _is_size(value: Value) -> bool:
    """Whether a tensor is what sizes are made of: a few integers, or nothing at all."""
    return value.dtype.is_integer or 0 in value.shape


def _kernel_remarks(builders: Sequence[EngineBuilder], compiled: Sequence[Sequence[TargetProgram]]) -> list[str]:
    found = [remark for builder in builders for remark in builder.import_remarks]
    return found + [remark for programs in compiled for program in programs for remark in program.kernels.remarks]


# Nodes without a kernel ------------------------------------------------------------------------------


def without_kernels(graph: Graph, targets: Sequence[Target]) -> dict[Node, str]:
    """The nodes that no kernel of a target computes alone, and for each a remark: NumPy runs them."""
    found: dict[Node, str] = {}
    reasons: dict[Any, str] = {}
    for inside, symbols in _with_graphs_inside(graph, {}):
        for node in inside.nodes:
            if kind_of(node.op) in ON_HOST or has_no_numbers(node):
                continue
            key = (node.op, str(node.attributes), tuple((v.dtype, v.shape) if v else None for v in node.inputs))
            if key not in reasons:
                reasons[key] = _reason(_alone(inside, symbols, node), targets)
            if reasons[key]:
                where = f" ({node.source})" if node.source else ""
                found[node] = f"{node.op} %{node.outputs[0].name}{where}: run by NumPy, slowly: {reasons[key]}"
    return found


def _with_graphs_inside(graph: Graph, outer: Mapping[str, Symbol]) -> Iterator[tuple[Graph, dict[str, Symbol]]]:
    """The graph and those inside of it, each with the symbols that it sees."""
    symbols = {**outer, **graph.symbols}
    yield graph, symbols
    for node in graph.nodes:
        for item in node.attributes.values():
            if isinstance(item, Graph):
                yield from _with_graphs_inside(item, symbols)


def _alone(graph: Graph, symbols: Mapping[str, Symbol], node: Node) -> Graph:
    """A graph of one node, whose constants stay constants."""
    read = dict.fromkeys(value for value in node.inputs if value is not None)
    single = Graph(node.op, dict(symbols), [v for v in read if v not in graph.constants], list(node.outputs))
    single.output_names, single.nodes = [value.name for value in node.outputs], [node]
    single.constants = {value: graph.constants[value] for value in read if value in graph.constants}
    return single


def _reason(graph: Graph, targets: Sequence[Target]) -> str:
    """Why a target has no kernel for a graph; "" when all have."""
    optimized = optimize(graph, graph_passes(targets))
    for target in targets:
        for group in fuse(optimized, target.kernels).groups:
            if group.kind != "view":
                try:
                    candidates(group, optimized, target)
                except UnsupportedOperationError as error:
                    return str(error)
    return ""
