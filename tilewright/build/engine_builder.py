"""The engine of one graph: optimised -> fused -> kernels chosen and compiled -> plan -> package."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from tilewright.build.concurrent_branches import LanePlace, TaskWork, places
from tilewright.build.index_ranges import check_constant_indices, index_ranges
from tilewright.build.kernels import KernelSet
from tilewright.build.manifest import TargetProgram, manifest_of, program_entry
from tilewright.build.shared_stages import with_shared_stages
from tilewright.build.size_conditions import size_conditions
from tilewright.build.storage import GroupTask, TaskAccess, TensorStorage, assign_storage, in_order
from tilewright.build.tuning import Tuner, Tuning, labels
from tilewright.build.weight_store import WeightStore
from tilewright.engine.engine import Engine
from tilewright.engine.file import Package
from tilewright.engine.graph_json import Placement, graph_to_json
from tilewright.engine.weights import Weights
from tilewright.errors import ShapeError
from tilewright.graph.core import Graph, Value
from tilewright.graph.fusion import FusedGraph, Group, with_results
from tilewright.graph.passes.fuse import fuse
from tilewright.graph.pipeline import optimize
from tilewright.library import packing
from tilewright.library.candidate import Candidate, Operand, PackedConstant, Stage
from tilewright.library.generated.elementwise import copy_candidate
from tilewright.library.generated.generate import Result, elementwise_call
from tilewright.library.select import candidates
from tilewright.measure.choosing import Choice
from tilewright.runtime.plan import BufferReference, Plan, PlanStep, TensorSpec, estimate_nanoseconds
from tilewright.symbolic import Size, evaluate, floor_divide, free_symbols, lift, simplify, to_json
from tilewright.targets.base import Target
from tilewright.targets.registry import graph_passes

Progress = Callable[[str, str, float], None]  # stage, item, seconds (0.0 when it begins)


@dataclass(frozen=True)
class Order:
    """What an engine is built for, and how."""

    targets: Sequence[Target]
    progress: Progress
    source: str
    tuning: Tuning
    layers: bool = False


class EngineBuilder:
    """Builds one graph; as a part of a larger one with weights that are stored with those of others, under `prefix`."""

    def __init__(self, graph: Graph, order: Order, weights: WeightStore | None = None, prefix: str = "") -> None:
        self.progress, self.tuning = order.progress, order.tuning
        self.source, self.targets, self.layers = order.source, order.targets, order.layers
        self.import_remarks = list(graph.remarks)  # passes add theirs, which the fusion's remarks have
        _check_symbols(graph)
        check_constant_indices(graph)
        self.conditions = size_conditions(graph)
        with self._stage("optimize", graph.name):
            self.graph = optimize(graph, graph_passes(order.targets))
        _check_sizes(self.graph)
        self.target = order.targets[0]  # and its kernels, while its program is made
        self.kernels = KernelSet(self.target, self.progress)
        self.weights = weights or WeightStore()
        self.prefix = prefix
        self.placements: dict[str, Placement] = {}

    @contextmanager
    def _stage(self, stage: str, item: str) -> Iterator[None]:
        self.progress(stage, item, 0.0)
        started = time.perf_counter()
        yield
        self.progress(stage, item, time.perf_counter() - started)

    def build(self) -> Engine:
        """The engine of the whole graph."""
        programs = self.programs()
        with self._stage("link", self.graph.name):
            return Engine(self._package(programs))

    def programs(self) -> list[TargetProgram]:
        """A program for each target; all weights are known then."""
        with self._stage("fuse", self.graph.name):
            fusions = {
                each: fuse(self.graph, each) for each in dict.fromkeys(target.kernels for target in self.targets)
            }
        self.fusion = list(dict.fromkeys(remark for fused in fusions.values() for remark in fused.remarks))
        if self.layers:
            self.graph = with_results(self.graph, [group for fused in fusions.values() for group in fused.groups])
        programs = [self._program(target, fusions[target.kernels]) for target in self.targets]
        self._store_remaining_constants()
        return programs

    def _program(self, target: Target, fused: FusedGraph) -> TargetProgram:
        """Kernels, places and steps for one target."""
        self.target, self.kernels = target, KernelSet(target, self.progress)
        tuner = Tuner(self.graph, target, self.tuning, self.progress)
        scheduled, evidence = self._choose(fused, tuner)
        with self._stage("plan memory", self.graph.name):
            storage = assign_storage(
                self.graph,
                with_shared_stages(self.graph, scheduled),
                self._copy,
                lambda accesses: self._spread(accesses, evidence),
            )
        plan, timings = self._plan(storage, evidence), tuple(tuner.used.values())
        return TargetProgram(target, plan, self.kernels, timings, _arena(storage))

    # -- Kernels --------------------------------------------------------------------------------

    def _choose(
        self, fused: FusedGraph, tuner: Tuner
    ) -> tuple[list[tuple[Group, Candidate | None]], dict[str, dict[str, Any]]]:
        """A candidate for every group (none for a view), and by group's name the reasons."""
        found: dict[str, Sequence[Candidate]] = {}
        for group in fused.groups:
            if group.kind != "view":
                with self._stage("choose kernels", group.name), _naming(group):
                    each = candidates(group, self.graph, self.target, self.tuning.libraries)
                found[group.name] = list(map(_for_all_sizes, each)) if self.target.quick else each
        computed = [group for group in fused.groups if group.name in found]
        choices = tuner.choose([(group, found[group.name]) for group in computed])
        chosen = {group.name: choice for group, (choice, _) in zip(computed, choices, strict=True)}
        found = {group.name: each for group, (_, each) in zip(computed, choices, strict=True)}
        scheduled = [
            (group, found[group.name][chosen[group.name].index] if group.name in found else None)
            for group in fused.groups
        ]
        return scheduled, {group.name: _evidence(group, found[group.name], chosen[group.name]) for group in computed}

    def _copy(self, source: Value, target: Value) -> GroupTask:
        """The task that copies one tensor to another."""
        group = Group("movement", [], [source], [target], None, f"copy-{target.name}")
        call = elementwise_call([], [Result(source, target)], self.graph.constants, self.target)
        return GroupTask(group, copy_candidate("copy", [(call,)], group, self.target))

    def _plan(self, storage: TensorStorage, evidence: dict[str, dict[str, Any]]) -> Plan:
        self.kernels.compile_ahead(
            [
                (call, partial(self._place, number, storage=storage))
                for number, task in enumerate(storage.tasks)
                for stage in task.candidate.stages
                for call in stage.calls
            ]
        )
        steps: list[PlanStep] = []
        known = [evidence.get(task.group.name, {"group": "copy"}) for task in storage.tasks]
        lanes = storage.lanes
        ends: list[int] = []  # the last step of each task
        for number, task in enumerate(storage.tasks):
            first, *others = self._steps(number, task, storage, known[number])
            after = tuple(ends[other] for other in lanes[number].after)
            others = [dataclasses.replace(step, lane=lanes[number].lane) for step in others]
            steps += [dataclasses.replace(first, lane=lanes[number].lane, after=after), *others]
            ends.append(len(steps) - 1)
        nanoseconds: Size = 0
        for step in steps:
            nanoseconds = simplify(lift(nanoseconds) + estimate_nanoseconds(step.bytes, step.flops))
        inputs = [
            TensorSpec(value.name, value.dtype.name, value.shape, value.name if value in self.graph.mutations else None)
            for value in self.graph.inputs
        ]
        scratch = max((entry.binary.scratch_bytes for entry in self.kernels.entries.values()), default=0)
        return Plan(
            symbols=dict(self.graph.symbols),
            inputs=inputs,
            outputs=storage.outputs,
            steps=steps,
            arena_bytes=storage.arena_bytes,
            scratch_bytes=scratch,
            nanoseconds=nanoseconds,
            index_ranges=index_ranges(self.graph),
            conditions=self.conditions,
        )

    def _spread(self, accesses: Sequence[TaskAccess], evidence: Mapping[str, Any]) -> list[LanePlace]:
        """A lane for each task: several where it pays to run kernels at once."""
        if not self.target.concurrent_kernels:
            return in_order(accesses)
        machine = self.target.machine()
        work = []
        for access in accesses:
            candidate = access.task.candidate
            fills = any(_ctas(call.grid) >= machine.processors for stage in candidate.stages for call in stage.calls)
            seconds = _seconds(candidate, evidence.get(access.task.group.name, {}))
            work.append(TaskWork(access.reads, access.writes, seconds, fills))
        return places(work, machine.launches.crossing)

    def _steps(self, number: int, task: GroupTask, storage: TensorStorage, evidence: dict[str, Any]) -> list[PlanStep]:
        """A step for each stage of the task's candidate."""
        stages = task.candidate.stages

        def place(operand: Operand) -> BufferReference:
            return self._place(number, operand, storage)

        with _naming(task.group):
            return [
                PlanStep(
                    name=task.group.name if len(stages) == 1 else f"{task.group.name}.{position}",
                    choices=tuple(self.kernels.choice(call, place) for call in stage.calls),
                    operations=_operations(task.group),
                    bytes=floor_divide(task.candidate.cost.bytes, len(stages)),
                    flops=floor_divide(task.candidate.cost.flops, len(stages)),
                    evidence=evidence,
                )
                for position, stage in enumerate(stages)
            ]

    # -- Constants ------------------------------------------------------------------------------

    def _place(self, task: int, operand: Operand, storage: TensorStorage) -> BufferReference:
        if isinstance(operand, PackedConstant):
            offset = operand.offset * operand.value.dtype.itemsize
            return BufferReference("weight", self._weight(operand.value, operand.recipe), offset)
        assert isinstance(operand, Value)
        root = storage.roots.get(operand, operand)
        if root in self.graph.constants:
            return BufferReference("weight", self._weight(root, None))
        return storage.place(task, operand)

    def _weight(self, value: Value, recipe: packing.Recipe | None) -> str:
        """The name of a constant's weight, stored in the order of first use."""
        name = value.name
        recipe = recipe or packing.bytes_recipe(value.dtype)
        if recipe is not None:
            name += "." + ".".join(str(entry) for _, entry in recipe)
        name = self.weights.add(self.prefix, name, self.graph.constants[value], recipe)
        array = self.graph.constants[value]
        if recipe is None or (value.name not in self.placements and packing.gives_back(recipe, array)):
            self.placements[value.name] = (name, recipe)
        return name

    def _store_remaining_constants(self) -> None:
        """Constants that kernels have in their code are kept for building the engine again."""
        for value in self.graph.constants:
            if value.name not in self.placements:
                self._weight(value, packing.dense_recipe(value.dtype))

    # -- The package ----------------------------------------------------------------------------

    def _package(self, programs: Sequence[TargetProgram]) -> Package:
        weights = Weights.pack(self.weights.sources)
        objects: dict[str, bytes] = {}
        entries = []
        for number, program in enumerate(programs):
            entry, images = program_entry(program, weights, "" if number == 0 else f"-{number}")
            entries.append(entry)
            objects |= images
        remarks = dict.fromkeys(remark for program in programs for remark in program.kernels.remarks)
        manifest = manifest_of(self.graph, self.source, [*self.import_remarks, *remarks], self.fusion, entries)
        return Package(manifest, weights, graph_to_json(self.graph, self.placements), objects)


def _for_all_sizes(candidate: Candidate) -> Candidate:
    """A candidate whose launches have no alternatives for small sizes: fewer kernels to compile."""
    return dataclasses.replace(candidate, stages=tuple(Stage(stage.calls[-1:]) for stage in candidate.stages))


def _arena(storage: TensorStorage) -> list[list[Any]]:
    """What lies in the arena during which steps, for people."""
    counts = [len(task.candidate.stages) for task in storage.tasks]
    starts = [sum(counts[:number]) for number in range(len(counts) + 1)]
    return [
        [stay.name, to_json(stay.offset), to_json(stay.bytes), starts[stay.first], starts[stay.last + 1] - 1]
        for stay in storage.arena
    ]


def _check_symbols(graph: Graph) -> None:
    """Every dynamic size must follow from the inputs' shapes."""
    known = {symbol.name for value in graph.inputs for size in value.shape for symbol in free_symbols(size)}
    missing = [name for name in graph.symbols if name not in known]
    if missing:
        raise ShapeError(
            f"the dynamic sizes {', '.join(missing)} are in no input's shape, so that a call cannot tell them; "
            "make them fixed, or add an input that has them"
        )


def _check_sizes(graph: Graph) -> None:
    """Kernels compute at least one element: tensors without any are refused, but as parts of a concat."""
    for symbol in graph.symbols.values():
        if symbol.low < 1:
            raise ShapeError(f"the dynamic size {symbol} may be {symbol.low}: its range must begin at 1 or later")
    computed = [value for node in graph.nodes for value in node.outputs]
    read = [value for node in graph.nodes if node.op != "concat" for value in node.inputs if value is not None]
    for value in (*read, *computed, *graph.outputs):
        if 0 in value.shape:
            kind = "input" if value in graph.inputs else "value"
            raise ShapeError(
                f"the {kind} {value!r} has a dimension of size 0: there is nothing to compute; "
                "build the engine for at least one element"
            )


def _evidence(group: Group, found: Sequence[Candidate], choice: Choice) -> dict[str, Any]:
    """Why a group is computed as it is, as JSON."""
    chosen = found[choice.index]
    middle = {symbol.name: (symbol.low + min(symbol.high, symbol.low + 512)) // 2
              for size in (*(c.cost.bytes for c in found), *(c.cost.flops for c in found))
              for symbol in free_symbols(size)}  # fmt: skip
    return {
        "group": group.kind,
        "chosen": chosen.name,
        "reasons": _jsonable(chosen.reasons),
        "choice": {"number": choice.index, "source": choice.source, "why": choice.reason},
        "candidates": [
            {
                "name": candidate.name,
                "label": label,
                "seconds": candidate.cost.seconds,
                **({"microseconds": choice.microseconds[number]} if number in choice.microseconds else {}),
                **({"failure": choice.failures[number]} if number in choice.failures else {}),
                "bytes": evaluate(candidate.cost.bytes, middle),
                "flops": evaluate(candidate.cost.flops, middle),
            }
            for number, (candidate, label) in enumerate(zip(found, labels(found), strict=True))
        ],
        "sizes": middle,
    }


def _seconds(candidate: Candidate, evidence: Mapping[str, Any]) -> float:
    """The time of a chosen candidate, measured if it was."""
    choice = evidence.get("choice")
    measured = evidence["candidates"][choice["number"]].get("microseconds") if choice else None
    return candidate.cost.seconds if measured is None else float(measured) * 1e-6


def _ctas(grid: tuple[Size, Size, Size]) -> float:
    """The CTAs of a launch; more than any number where it depends on sizes."""
    extents = [extent for extent in grid if isinstance(extent, int)]
    return math.prod(extents) if len(extents) == len(grid) else math.inf


def _jsonable(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _jsonable(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_jsonable(entry) for entry in value]
    return value if isinstance(value, (bool, int, float, str, type(None))) else str(value)


def _operations(group: Group) -> tuple[str, ...]:
    """The graph nodes of a group, for people."""
    return tuple(
        f"{node.op} %{node.output.name}" + (f" ({node.source})" if node.source else "") for node in group.nodes
    )


@contextmanager
def _naming(group: Group) -> Iterator[None]:
    """Errors inside tell which part of the model they are about."""
    try:
        yield
    except Exception as error:
        error.add_note(f"while building {group.name}: {', '.join(_operations(group))}")
        raise
