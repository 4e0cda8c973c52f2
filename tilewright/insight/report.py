"""An engine's program as one JSON value: steps with times and bounds, memory, graph, choices."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tilewright import dtypes
from tilewright.engine.gpu_entries import threads_of
from tilewright.graph.ops import kind_of
from tilewright.graph.passes.memory import TENSOR_ALIGNMENT
from tilewright.insight.lanes import lanes
from tilewright.insight.roofline import bound_of
from tilewright.insight.search import search_of
from tilewright.settings import settings
from tilewright.symbolic import evaluate, from_json
from tilewright.targets.registry import machine_for

if TYPE_CHECKING:
    from tilewright.engine.engine import Engine
    from tilewright.runtime.plan import PlanStep
    from tilewright.symbolic import Symbol
    from tilewright.targets.machine import Machine

_OPERATION = re.compile(r"(\S+) %(\S+)(?: \((.*)\))?")
_VIEWS = ("reshape", "permute", "slice", "broadcast_to")
_PRODUCTS = ("matmul", "dequantized_matmul", "block_scaled_matmul", "conv", "attention")


def report(
    engine: Engine, sizes: Mapping[str, int], profile: Sequence[Mapping[str, Any]] | None = None
) -> dict[str, Any]:
    """The program of `engine` for known sizes of its symbols, as JSON values.

    `profile` are the rows of `Engine.profile`; without it the times of steps are those that were recorded when the
    engine was built, where kernels were chosen by time, and estimates elsewhere; each step tells which.  The part of
    the roofline that a step reaches is None where it is faster than that: its data came from caches.  Seconds, bytes
    and operations throughout.
    """
    machine = machine_for(engine.target, engine.features, settings.threads)
    graph = engine.graph_data()
    types = {output[0]: output[1] for node in graph["nodes"] for output in node["outputs"]}
    steps = [_step(engine, number, step, sizes, machine, types) for number, step in enumerate(engine.plan.steps)]
    for step, row in zip(steps, profile or (), strict=False):
        step["seconds"], step["time_source"] = float(row["milliseconds"]) / 1e3, "profiled"
    total = sum(step["seconds"] for step in steps)
    for step in steps:
        step["share"] = step["seconds"] / total if total else 0.0
        reached = step["bound_seconds"] / step["seconds"] if step["seconds"] else 0.0
        step["reached"] = reached if reached <= 1 else None  # data in caches: memory was not the bound
    return {
        "name": engine.name,
        "source": engine.source,
        "target": engine.target,
        "precision": engine.precision,
        "targets": list(engine.targets),
        "producer": engine.producer,
        "sizes": dict(sizes),
        "machine": {"name": machine.name, "memory": machine.peak.memory, "tensor": machine.peak.tensor,
                    "arithmetic": machine.peak.float32, "launch": machine.launches.overlapped},
        "inputs": [_spec(spec) for spec in engine.inputs],
        "outputs": [_spec(spec) for spec in engine.outputs],
        "weight_bytes": engine.weight_bytes,
        "arena_bytes": evaluate(engine.plan.arena_bytes, sizes),
        "arena_least_bytes": least_arena_bytes(engine, sizes),
        "arena": _arena(engine, sizes),
        "transposes": transposes(steps),
        "seconds": total,
        "bound_seconds": sum(step["bound_seconds"] for step in steps),
        "steps": steps,
        "graph": _graph(graph, steps, engine.plan.symbols),
        "search": search_of(engine),
        "remarks": [*engine.remarks, *engine.fusion],
        "advice": list(engine.advice),
    }  # fmt: skip


def _spec(spec: Any) -> str:
    return f"{spec.name} {spec.dtype} [{', '.join(map(str, spec.shape))}]"


def short(operations: Sequence[str]) -> str:
    """Op names in order, repeats counted: ``gather x2, add, layer_norm``; views only where there is nothing else."""
    names = [operation.split(" ", 1)[0] for operation in operations]
    names = [name for name in names if name not in _VIEWS] or names
    runs = [(name, len(list(group))) for name, group in itertools.groupby(names)]
    return ", ".join(name if count == 1 else f"{name} x{count}" for name, count in runs)


def transposes(steps: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """How many steps do nothing but change the order of a tensor in memory, and the bytes that they move.

    `steps` have ``operations``, as texts or as entries of a report, and ``bytes``.
    """
    found = [step for step in steps if _only_transposes(step["operations"])]
    return {"steps": len(found), "bytes": sum(step["bytes"] for step in found)}


def _only_transposes(operations: Sequence[Any]) -> bool:
    names = [entry["op"] if isinstance(entry, Mapping) else entry.split(" ", 1)[0] for entry in operations]
    return "permute" in names and all(kind_of(name) in ("movement", "view") for name in names)


def _step(
    engine: Engine, number: int, step: PlanStep, sizes: Mapping[str, int], machine: Machine, types: Mapping[str, str]
) -> dict[str, Any]:
    choice = next(c for c in step.choices if c.at_most is None or evaluate(c.size, sizes) <= c.at_most)
    operations = [_operation(text) for text in step.operations]
    moved, work = evaluate(step.bytes, sizes), evaluate(step.flops, sizes)
    bits = _product_bits(operations, types)
    bound = bound_of(machine, moved, work, bits)
    seconds, source = _time(step, engine)
    facts = engine.kernel_facts(choice.kernel)
    return {
        "number": number,
        "name": step.name,
        "group": _group(step),
        "kernel": engine.kernel_name(choice.kernel),
        "grid": [evaluate(extent, sizes) for extent in choice.grid],
        "choices": len(step.choices),
        "lane": step.lane,
        "after": list(step.after),
        "operations": operations,
        "short": short(step.operations),
        "module": _module(operations),
        "bytes": moved,
        "flops": work,
        "seconds": seconds,
        "time_source": source,
        "bound": bound.kind,
        "bound_seconds": bound.seconds,
        "evidence": step.evidence,
        "constants": {name: _finite(value) for name, value in facts.get("constants", {}).items()},
        "resources": facts.get("resources"),
        "launch": _launch(facts["launch"]) if "launch" in facts else None,
    }


def _launch(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What a launch of a kernel for a GPU takes."""
    return {"threads": threads_of(facts), "shared_bytes": facts["shared_bytes"], "cluster": facts["cluster"]}


def _finite(value: Any) -> Any:
    """A number as JSON has it: infinities as texts."""
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value


def _operation(text: str) -> dict[str, str]:
    match = _OPERATION.fullmatch(text)
    op, value, source = match.groups() if match else (text, "", "")
    return {"op": op, "value": value, "source": source or ""}


def _module(operations: Sequence[Mapping[str, str]]) -> str:
    """Where in the user's model a step comes from: its product's source, else its last operation's."""
    products = [entry["source"] for entry in operations if entry["op"].startswith(_PRODUCTS)]
    sources = [entry["source"] for entry in operations if entry["source"]]
    return next((source for source in (*products, *sources[::-1]) if source), "")


def _product_bits(operations: Sequence[Mapping[str, str]], types: Mapping[str, str]) -> int:
    """The bits of a product's elements; 0 for a step without a product."""
    for entry in operations:
        if entry["op"].startswith(_PRODUCTS) and entry["value"] in types:
            return dtypes.BY_TEXT[types[entry["value"]]].bits
    return 0


def _time(step: PlanStep, engine: Engine) -> tuple[float, str]:
    """Seconds of a step by what the builder knew, and how: ``timed`` or ``estimated``."""
    candidates, choice = step.evidence.get("candidates", []), step.evidence.get("choice", {})
    if not candidates:
        return 0.0, "unknown"
    number = choice.get("number", 0)
    chosen = candidates[number] if number < len(candidates) else candidates[0]
    launches = sum(_group(other) == _group(step) for other in engine.plan.steps)
    if "microseconds" in chosen:
        return chosen["microseconds"] * 1e-6 / launches, "timed"
    return chosen["seconds"] / launches, "estimated"


def _group(step: PlanStep) -> str:
    """The group of a step: its name without the number of its launch."""
    return re.sub(r"\.\d+$", "", step.name)


def _arena(engine: Engine, sizes: Mapping[str, int]) -> list[dict[str, Any]]:
    """Tensors in the arena: name, offset, bytes, first and last step."""
    symbols = engine.plan.symbols
    return [
        {
            "name": name,
            "offset": evaluate(from_json(offset, symbols), sizes),
            "bytes": evaluate(from_json(size, symbols), sizes),
            "first": first,
            "last": last,
        }
        for name, offset, size, first, last in engine.arena
    ]


def least_arena_bytes(engine: Engine, sizes: Mapping[str, int]) -> int:
    """The most bytes of the arena that are alive at one step, for known sizes: no plan takes less.

    Tensors count as what they take of an arena whose places are aligned.
    """
    stays = [(stay["first"], stay["last"], -(-stay["bytes"] // TENSOR_ALIGNMENT) * TENSOR_ALIGNMENT)
             for stay in _arena(engine, sizes)]  # fmt: skip
    steps = {first for first, _, _ in stays}
    return max((sum(size for first, last, size in stays if first <= step <= last) for step in steps), default=0)


def _graph(
    graph: Mapping[str, Any], steps: Sequence[Mapping[str, Any]], symbols: Mapping[str, Symbol]
) -> dict[str, Any]:
    """The graph's nodes as rows, ordered by step, with lanes and the rows that each reads."""
    owner: dict[str, int] = {}
    for step in steps:
        for entry in step["operations"]:
            owner.setdefault(entry["value"], step["number"])
    nodes = [(node, owner.get(node["outputs"][0][0])) for node in graph["nodes"]]
    rows: list[dict[str, Any]] = [
        {"op": "input", "name": name, "type": _type(dtype, shape, symbols), "source": "", "step": None, "inputs": []}
        for name, dtype, shape in graph["inputs"]
    ]
    number_of = {name: row for row, (name, *_) in enumerate(graph["inputs"])}
    for node, number in _by_step(nodes):
        inputs = [number_of[name] for name in node["inputs"] if name in number_of]
        name, dtype, shape = node["outputs"][0]
        for output in node["outputs"]:
            number_of[output[0]] = len(rows)
        rows.append(
            {"op": node["op"], "name": name, "type": _type(dtype, shape, symbols), "source": node["source"],
             "step": number, "inputs": sorted(set(inputs))}
        )  # fmt: skip
    for row, lane in zip(rows, lanes([row["inputs"] for row in rows]), strict=True):
        row["lane"] = lane
    return {"rows": rows, "constants": len(graph["constants"])}


def _by_step(nodes: Sequence[tuple[Any, int | None]]) -> list[tuple[Any, int | None]]:
    """Nodes in the order of their steps, as far as what they read allows; views stay after what they show."""
    position = -1
    keyed = []
    for node, step in nodes:
        position = max(position, step) if step is not None else position
        keyed.append((step if step is not None else position, node, step))
    ordered = [(node, step) for _, node, step in sorted(keyed, key=lambda entry: entry[0])]
    produced = {output[0] for node, _ in nodes for output in node["outputs"]}
    seen: set[str] = set()
    for node, _ in ordered:
        if any(name in produced and name not in seen for name in node["inputs"]):
            return list(nodes)  # a view between two steps that read it: the graph's own order is right
        seen.update(output[0] for output in node["outputs"])
    return ordered


def _type(dtype: str, shape: Sequence[Any], symbols: Mapping[str, Symbol]) -> str:
    """``f16[1, 3, 224, 224]``."""
    return f"{dtype}[{', '.join(str(from_json(size, symbols)) for size in shape)}]"
