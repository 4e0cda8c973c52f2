"""The manifest of an engine that was built, and the members that it names: what each target's program is as JSON."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import llvmlite

import tilewright
from tilewright.build import plan_codegen
from tilewright.build.kernels import KernelEntry, KernelSet
from tilewright.engine import gpu_entries
from tilewright.engine.cpu_program import plan_symbol
from tilewright.engine.file import FORMAT, VERSION, VERSION_OF_PARTS
from tilewright.engine.plan_json import plan_to_json
from tilewright.engine.weights import Weights
from tilewright.graph.core import Advice, Graph
from tilewright.measure.record import Timing, timing_to_json
from tilewright.runtime.plan import Plan
from tilewright.targets.base import HostBackend, Target
from tilewright.targets.gpu.binary import GpuBinary
from tilewright.targets.registry import backend_of


@dataclass(frozen=True)
class TargetProgram:
    """The plan of a target with its kernels."""

    target: Target
    plan: Plan
    kernels: KernelSet
    timings: tuple[Timing, ...]  # that decided
    arena: list[list[Any]]  # name, offset, bytes, first and last step of each tensor in it, as JSON


def manifest_of(
    graph: Graph, source: str, remarks: Sequence[str], fusion: Sequence[str], programs: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """The manifest of an engine, without its members."""
    manifest = {
        "format": FORMAT,
        "version": VERSION_OF_PARTS if graph.parts else VERSION,
        "producer": _producer(),
        "name": graph.name,
        "source": os.path.basename(source),  # a name only: folders are nobody else's business
        "remarks": [text for text in remarks if not isinstance(text, Advice)],
        "fusion": [text for text in fusion if not isinstance(text, Advice)],
        "advice": list(dict.fromkeys(text for text in (*remarks, *fusion) if isinstance(text, Advice))),
        "programs": list(programs),
    }
    if graph.fixed:
        manifest["fixed"] = {name: value for name, (_, value) in graph.fixed.items()}
        manifest["places"] = {name: place for name, (place, _) in graph.fixed.items()}
    if graph.seed is not None:
        manifest["seed"] = graph.seed
    return manifest


def program_entry(program: TargetProgram, weights: Weights, suffix: str) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The manifest's entry of a program, and its machine code by member name; `suffix` is for the plan's own."""
    make = _native_program if program.target.host_code else _launched_program
    return make(program, weights, suffix)


def _native_program(program: TargetProgram, weights: Weights, suffix: str) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The manifest's entry and the object files of a CPU's program, whose plan is a native function."""
    target, kernels = program.target, program.kernels.entries
    data = plan_to_json(program.plan)
    symbol = plan_symbol(data, weights.offsets)
    names = {key: entry.binary.symbol for key, entry in kernels.items()}
    text = plan_codegen.generate(program.plan, symbol, names, weights.offsets)
    objects = {f"kernels/{key}.o": entry.binary.image for key, entry in kernels.items()}
    objects[f"kernels/plan{suffix}.o"] = cast(HostBackend, backend_of(target)).assemble_plan(text)
    features = sorted({feature for entry in kernels.values() for feature in entry.binary.features})
    entry = {
        "target": {**target.facts, "features": features},
        "plan": data,
        "symbol": symbol,
        "objects": list(objects),
        "kernels": {key: _described(entry) for key, entry in kernels.items()},
        "arena": program.arena,
    }
    return entry, objects


def _launched_program(program: TargetProgram, weights: Weights, suffix: str) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The manifest's entry and the cubins of a GPU's program, whose plan the runtime walks."""
    target, kernels = program.target, program.kernels.entries
    data = plan_to_json(program.plan)
    described: dict[str, Any] = {}
    for key, entry in kernels.items():
        binary = cast(GpuBinary, entry.binary)
        launch = gpu_entries.program_to_json(binary.program(entry.name))
        resources = dataclasses.asdict(binary.resources)
        described[key] = {**_described(entry), "launch": json.loads(json.dumps(launch)), "resources": resources}
    objects = {gpu_entries.member(key): entry.binary.image for key, entry in kernels.items()}
    entry_data = {
        "target": {**target.facts, "features": [target.architecture]},
        "plan": data,
        "symbol": gpu_entries.symbol(data, described, weights.offsets),
        "objects": list(objects),
        "kernels": described,
        "arena": program.arena,
        "timings": [timing_to_json(timing) for timing in program.timings],
    }
    return entry_data, objects


def _described(entry: KernelEntry) -> dict[str, Any]:
    return {"name": entry.name, "constants": entry.constants}


def _producer() -> str:
    return f"tilewright {tilewright.__version__}, llvmlite {llvmlite.__version__}"
