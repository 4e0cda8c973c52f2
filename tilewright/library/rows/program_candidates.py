"""A row program as a candidate, and the groups that there would be without it, on every kind of machine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from tilewright.graph.core import Graph, Value
from tilewright.graph.fusion import Group, read_outside
from tilewright.graph.passes.fuse import fuse
from tilewright.library.candidate import Candidate, Stage
from tilewright.library.cost import Cost, estimate, expected
from tilewright.library.generated.elementwise import chain_operations, tensor_bytes, total_bytes
from tilewright.library.generated.generate import chain_name
from tilewright.library.generated.sectors import covered_by, times_used
from tilewright.library.generated.trace import Load
from tilewright.library.generated.trace import walk as parts_of
from tilewright.library.makers import Maker
from tilewright.library.rows.program import RowProgram
from tilewright.library.rows.program_text import ProgramConfig, Walk, launches
from tilewright.symbolic import Size, lift, product, simplify
from tilewright.targets.base import Target


@dataclass(frozen=True)
class _Traffic:
    """What the kernels of a program move and compute: all of it once, what is read of each element."""

    group: Group
    program: RowProgram
    walk: Walk
    config: ProgramConfig

    @property
    def once(self) -> Size:
        """All of it once, tensors with the elements of the space by the sectors that blocks read and write."""
        total = total_bytes(self.group.inputs, self.group.outputs, self.group.nodes)
        for value, times in self._times.items():
            if times > 1:
                total = simplify(lift(total) + int(expected(tensor_bytes(value)) * (times - 1)))
        return total

    @property
    def read(self) -> Size:
        total: Size = 0
        for value in self.program.full_loads():
            whole, more = tensor_bytes(value), self._times.get(value, 1.0)
            total = simplify(lift(total) + (whole if more == 1 else int(expected(whole) * more)))
        return total

    @cached_property
    def _times(self) -> dict[Value, float]:
        """How many bytes are moved for each byte of tensors with the elements of the space."""
        if not self.config.threads:  # on CPUs caches have what neighbouring rows share
            return {}
        covered = self._covered()
        found = {
            item.value: times_used(item.index, covered, item.value.dtype.itemsize)
            for item in self.program.stored
            if item.is_full
        }
        full = set(self.program.full_loads())
        for root in self.program.roots():
            for item in parts_of(root):
                if isinstance(item, Load) and item.value in full:
                    found[item.value] = times_used(item.index, covered, item.value.dtype.itemsize)
        return found

    def _covered(self) -> dict[int, int]:
        """How many elements a block has along each axis."""
        covered: dict[int, int] = {}
        for variables, elements in ((self.walk.lanes, self.config.lanes), (self.walk.columns, self.config.block)):
            axes = [axis for variable in variables for axis in variable.axes]
            extents = covered_by([self.program.space.shape[axis] for axis in axes], elements)
            covered |= {axes[place]: extent for place, extent in extents.items()}
        return covered

    @property
    def operations(self) -> Size:
        return simplify(lift(product(self.program.space.shape)) * 8 + chain_operations(self.group.nodes))


def separate(group: Group, graph: Graph, target: Target, candidates: Maker) -> Candidate:
    """The groups that there are without row programs, one after the other, each by its likeliest candidate."""
    constants = {value: graph.constants[value] for value in group.inputs if value in graph.constants}
    inputs = [value for value in read_outside(group.nodes) if value not in constants]
    names = [value.name for value in group.outputs]
    part = Graph(graph.name, graph.symbols, inputs, list(group.outputs), names, list(group.nodes), constants)
    part.mutations = {
        target: value for target, value in graph.mutations.items() if target in inputs and value in group.outputs
    }
    found = []
    stored: list[Value] = []
    for other in fuse(part, replace(target.kernels, row_programs=False)).groups:
        found.append(min(candidates(other, part, target), key=lambda candidate: candidate.cost.seconds))
        stored += other.outputs
    moved: Size = 0
    flops: Size = 0
    for candidate in found:
        moved, flops = simplify(lift(moved) + candidate.cost.bytes), simplify(lift(flops) + candidate.cost.flops)
    between = [value for value in stored if value not in group.outputs]
    return Candidate(
        "separate rows",
        tuple(stage for candidate in found for stage in candidate.stages),
        Cost(moved, flops, sum(candidate.cost.seconds for candidate in found)),
        (*between, *(value for candidate in found for value in candidate.temporaries)),
        {"kernels": [candidate.name for candidate in found]},
    )


def one_kernel(
    group: Group, program: RowProgram, walk: Walk, config: ProgramConfig, target: Target, factor: float = 1.0
) -> Candidate:
    """A program in a config; by `factor` it is ranked after others whose estimates are the same."""
    calls, temporaries = launches(program, walk, config, chain_name(group.nodes, "rows"))
    traffic, machine = _Traffic(group, program, walk, config), target.machine()
    again = program.levels - 1 + any(item.is_full for item in program.stored)
    if config.whole:
        moved = traffic.once
    else:  # rows are still in the L2 cache where few are on their way, or all of them fit it
        cached = config.parts == 1 or expected(traffic.read) <= machine.l2_bytes // 2
        moved = simplify(lift(traffic.once) + lift(traffic.read) * again // (3 if cached else 1))
    in_turns = not (config.whole or walk.along)
    cost = estimate(machine, moved, traffic.operations, calls[0].grid[0], efficiency=0.25, in_turns=in_turns)
    seconds = (cost.seconds + (len(calls) - 1) * machine.launches.kernel) * factor
    name = "rows at once" if config.whole else "rows in chunks" if config.parts == 1 else "rows in parts"
    reasons = {"levels": program.levels, "lanes": config.lanes, "block": config.block,
               "grid": [str(call.grid[0]) for call in calls]}  # fmt: skip
    if config.threads:
        reasons["threads"] = config.threads
    if config.parts > 1:
        reasons["parts"] = config.parts
    stages = tuple(Stage((call,)) for call in calls)
    return Candidate(name, stages, replace(cost, seconds=seconds), tuple(temporaries), reasons)


def with_failure(candidate: Candidate, reason: Exception) -> Candidate:
    """A candidate that says why it is the only one."""
    return replace(candidate, reasons={**candidate.reasons, "one kernel": f"not possible: {reason}"})
