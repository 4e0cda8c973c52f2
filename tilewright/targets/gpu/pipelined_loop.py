"""Writes the loops of `pipelining.py` with their copies, waits and barriers as operations, each with a lowering rule.

    for k:  a = load pa              memory = shared_alloc {shape = [stages, bytes]}
            acc = dot(convert a, …)  group_sync
            pa += …              ->  for each of the first stages - 1: copy_async to a tile of it; copy_commit
                                     for k, …, pa ahead, stage:
                                         copy_wait {outstanding = stages - 2}; group_sync
                                         copy_async(pa ahead, tile of the stage before); copy_commit
                                         a = shared_load(tile of this stage)
                                         acc = dot(a, …)
                                     copy_wait {all}

Where products go on while an iteration ends (`Pipeline.late`), the copies follow them, between two barriers.  What is
written can be printed, verified and interpreted like any other kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from tilewright.dtypes import DType, uint8
from tilewright.ir.core import Attribute, Function, Operation, Region, SSAValue
from tilewright.ir.ops import effects_of
from tilewright.ir.rewrite import Rebuilder
from tilewright.ir.table import READ
from tilewright.layout import LinearLayout
from tilewright.passes.axis_info import AxisInfo
from tilewright.targets.gpu.accesses import access_operands
from tilewright.targets.gpu.layouts import CONVERSION_ATTRIBUTE, LAYOUT_ATTRIBUTE, Assignment
from tilewright.targets.gpu.lowering import KEPT_ATTRIBUTE, PIPELINED_ATTRIBUTE
from tilewright.targets.gpu.memory_plan import SharedMemory
from tilewright.targets.gpu.pipelining import Pipeline, Reader, Stream
from tilewright.targets.gpu.shared_memory import Allocation
from tilewright.targets.gpu.tiles import PLACE_ATTRIBUTE, tile_axis

Ahead = tuple[SSAValue, list[SSAValue]]  # the index of an iteration that is copied for, and the values carried for it

_VIEWS = ("shared_index", "shared_tile", "shared_transpose")  # of shared memory, which they do not touch


class LoopWriter(Rebuilder):
    """Writes a kernel again, whose pipelined loops `memory` has the plans and places of.

    A GPU's own writer does more at the hooks: `prepare`, `end_region`, `iteration` and `finish`.
    """

    def __init__(self, assignment: Assignment, memory: SharedMemory, warps: int) -> None:
        super().__init__()
        self.assignment, self.memory, self.warps = assignment, memory, warps
        self.layouts: dict[SSAValue, LinearLayout] = {}
        self.facts: dict[SSAValue, AxisInfo] = {}
        self.working: dict[Operation, LinearLayout] = {}
        self.copies: list[tuple[Operation, Operation]] = []  # operations, and what was written of them
        self.scratched: set[Operation] = set()  # written operations that have scratch of shared memory
        self.stages: dict[Operation, SSAValue] = {}  # the memory of each loop
        self.replaced: dict[Operation, Callable[[], None]] = {}  # what is written in place of operations of loops
        self.reading: SSAValue | None = None  # the stage of this iteration

    def write(self) -> tuple[Assignment, Allocation]:
        """The kernel that was written, and the places of its operations' scratch."""
        old = self.assignment.function
        region = self.region([value.type for value in old.region.arguments], [p.name for p in old.region.arguments])
        self.stand_for(old.region.arguments, region.arguments)
        with self.at(region):
            self.allocate()
            for operation in old.region.operations:
                self.copy(operation)
        attributes = {**old.attributes, "num_warps": self.warps}
        function = Function(old.name, region, list(old.parameters), attributes)
        written = replace(
            self.assignment, function=function, layouts=self.layouts, facts=self.facts, working=self.working
        )
        scratch = self.memory.scratch
        places = {copy: scratch.scratch[operation] for operation, copy in self.copies if operation in scratch.scratch}
        barriers = frozenset(copy for operation, copy in self.copies if operation in scratch.barriers)
        return written, Allocation(scratch.size, places, barriers)

    # Copies of operations ------------------------------------------------------------------------

    def stand_for(self, old: Sequence[SSAValue], new: Sequence[SSAValue]) -> None:
        """New values take the places of old ones."""
        self.mapping.update(zip(old, new, strict=True))
        self.describe(old, new)

    def describe(self, old: Sequence[SSAValue], new: Sequence[SSAValue]) -> None:
        """What is known of old values holds for new ones."""
        for before, value in zip(old, new, strict=True):
            if before in self.assignment.layouts:
                self.layouts[value] = self.assignment.layouts[before]
            if before in self.assignment.facts:
                self.facts[value] = self.assignment.facts[before]

    def mapped(self, values: Sequence[SSAValue]) -> list[SSAValue]:
        return [self.mapping[value] for value in values]

    def copy_region(self, region: Region) -> Region:
        copy = self.region([value.type for value in region.arguments], [value.name for value in region.arguments])
        self.stand_for(region.arguments, copy.arguments)
        with self.at(copy):
            self.operations(region)
            self.copy(region.terminator)
        return copy

    def operations(self, region: Region) -> None:
        """All of a region but its terminator."""
        for operation in region.operations[:-1]:
            self.copy(operation)

    def copy(self, operation: Operation) -> None:
        self.location = operation.location
        self.prepare(operation)
        instead = self.replaced.get(operation)
        if operation in self.memory.loops:
            instead = partial(self.loop, operation, self.memory.loops[operation])
        if instead is None:
            self.append(operation)
            return
        if operation in self.memory.scratch.barriers:
            self.synchronize()
        instead()

    def synchronize(self) -> None:
        """All threads wait for each other, unless none has used shared memory since they did."""
        for operation in reversed(self.current.operations):
            if operation.opcode == "group_sync":
                return
            if self.uses_shared_memory(operation):
                break
        self.create("group_sync")

    def uses_shared_memory(self, operation: Operation) -> bool:
        """Whether an operation that is written may read or write shared memory, or wait for what does."""
        if operation.regions or not effects_of(operation) <= READ or operation in self.scratched:
            return True
        return operation.opcode not in _VIEWS and any(value.type.is_handle for value in operation.operands)

    def append(self, operation: Operation) -> None:
        """A copy of an operation as it is."""
        super().copy(operation)
        copy = self.current.operations[-1]
        self.stand_for(operation.results, copy.results)
        self.copies.append((operation, copy))
        if operation in self.memory.scratch.scratch:
            self.scratched.add(copy)
        if operation in self.assignment.working:
            self.working[copy] = self.assignment.working[operation]

    def prepare(self, operation: Operation) -> None:
        """What a GPU has to see to before an operation: nothing here."""

    # Memory --------------------------------------------------------------------------------------

    def allocate(self) -> None:
        """The stages of each loop, at the start of the kernel; those of all loops are in one place."""
        below: list[SSAValue] = []
        for loop, plan in self.memory.loops.items():
            self.location = loop.location
            self.stages[loop] = self.memory_of((plan.stages, plan.stage_bytes), self.memory.ring, below)
            below = below or [self.stages[loop]]

    def memory_of(self, shape: tuple[int, ...], place: int, below: Sequence[SSAValue] = ()) -> SSAValue:
        """Bytes from the byte `place` of the kernel's shared memory on."""
        attributes: dict[str, Attribute] = {"shape": shape, "dtype": uint8, PLACE_ATTRIBUTE: place}
        return self.create("shared_alloc", below, attributes).result

    def tile(self, memory: SSAValue, offset: int, layout: LinearLayout, dtype: DType, swizzle: int) -> SSAValue:
        """A tile in memory of bytes as a block of a layout: the axis that it runs along is the last one in memory."""
        straight = tile_axis(layout) == 1
        attributes: dict[str, Attribute] = {
            "offset": offset, "shape": layout.shape if straight else layout.shape[::-1], "dtype": dtype,
            "swizzle": swizzle, LAYOUT_ATTRIBUTE: str(layout),
        }  # fmt: skip
        value = self.create("shared_tile", [memory], attributes).result
        if not straight:
            value = self.create("shared_transpose", [value], {LAYOUT_ATTRIBUTE: str(layout)}).result
        self.layouts[value] = layout
        return value

    def swizzle(self, layout: LinearLayout, dtype: DType) -> int:
        """Bytes of the swizzle by which products read a tile; 0 where the layout is no such one."""
        return 0

    def stream_tile(self, memory: SSAValue, stream: Stream, layout: LinearLayout) -> SSAValue:
        dtype = stream.load.result.type.dtype
        return self.tile(memory, stream.offset, layout, dtype, self.swizzle(layout, dtype) if stream.direct else 0)

    # Loops ---------------------------------------------------------------------------------------

    def loop(self, loop: Operation, plan: Pipeline) -> None:
        (body,), count = loop.regions, len(loop.results)
        self.synchronize()  # the tiles may still be read, by this loop's last run or another loop
        index, ahead = self.prologue(loop, plan)
        if plan.late:
            self.wait(plan.stages - 2)
        initial = [self.carried(value, plan, place) for place, value in enumerate(loop.operands[3:])]
        operands = [*self.mapped(loop.operands[:3]), *initial, index, *ahead, self.constant(0)]
        copy = self.region([index.type, *(value.type for value in operands[3:])])
        self.stand_for(body.arguments, copy.arguments[: 1 + count])
        index, stage = copy.arguments[1 + count], copy.arguments[-1]
        ahead = copy.arguments[2 + count : -1]
        self.describe([body.arguments[1 + place] for place in plan.carried], ahead)
        with self.at(copy):
            self.create("yield", self.iteration(loop, plan, (index, ahead), stage, copy.arguments[: 1 + count]))
        texts = tuple(str(self.layouts.get(value, "")) for value in copy.arguments[1:])
        attributes = {**loop.attributes, "unroll": 0, LAYOUT_ATTRIBUTE: texts, PIPELINED_ATTRIBUTE: True}
        self.location = loop.location
        written = self.create("for", operands, attributes, [copy])
        self.stand_for(loop.results, written.results[:count])
        self.create("copy_wait", [], {"all": True})  # those after the last iteration too: the memory has other uses
        self.finish(loop, plan)

    def carried(self, value: SSAValue, plan: Pipeline, place: int) -> SSAValue:
        """What a loop carries for the value at a place."""
        return self.mapping[value]

    def finish(self, loop: Operation, plan: Pipeline) -> None:
        """What is left to do after a loop: nothing for most."""

    def iteration(
        self, loop: Operation, plan: Pipeline, ahead: Ahead, stage: SSAValue, arguments: Sequence[SSAValue]
    ) -> list[SSAValue]:
        """Write one iteration; what it yields.  `arguments` stand for those of the loop's own body."""
        if not plan.late:
            self.wait(plan.stages - 2)
            ahead = self.copy_ahead(loop, plan, self.before(stage, plan.stages), *ahead)
            self.stand_for(loop.regions[0].arguments, arguments)
        self.reading = self.create("shared_index", [self.stages[loop], stage]).result
        self.replace_reads(plan)
        yielded = self.computed(loop, plan)
        self.location = loop.location
        if plan.late:
            self.synchronize()  # nobody reads the stage that is filled next
            ahead = self.copy_ahead(loop, plan, self.before(stage, plan.stages), *ahead)
            self.wait(plan.stages - 2)
        return [*yielded, ahead[0], *ahead[1], self.after(stage, plan.stages)]

    def computed(self, loop: Operation, plan: Pipeline) -> list[SSAValue]:
        """Write what an iteration computes; the values that it carries on."""
        (body,) = loop.regions
        self.operations(body)
        return self.mapped(body.terminator.operands)

    # Stages --------------------------------------------------------------------------------------

    def wait(self, outstanding: int) -> None:
        """Until all but so many copies are there, for all threads, none of which reads an older stage any more."""
        self.create("copy_wait", [], {"outstanding": outstanding})
        self.synchronize()

    def after(self, stage: SSAValue, stages: int) -> SSAValue:
        return self.wrapped(self.emit("add", stage, self.constant(1)), stages, 0)

    def before(self, stage: SSAValue, stages: int) -> SSAValue:
        """The stage that was read last, which is filled next."""
        return self.wrapped(self.emit("add", stage, self.constant(-1)), -1, stages - 1)

    def wrapped(self, stage: SSAValue, limit: int, value: int) -> SSAValue:
        at_limit = self.emit("compare", stage, self.constant(limit), predicate="eq")
        return self.emit("select", at_limit, self.constant(value), stage)

    # Copies --------------------------------------------------------------------------------------

    def prologue(self, loop: Operation, plan: Pipeline) -> Ahead:
        """The copies of the first iterations; index and carried values of the one after them."""
        initial = loop.operands[3:]
        ahead: Ahead = self.mapping[loop.operands[0]], [self.mapping[initial[place]] for place in plan.carried]
        for stage in range(plan.stages - 1):
            ahead = self.copy_ahead(loop, plan, self.constant(stage), *ahead)
        return ahead

    def copy_ahead(
        self, loop: Operation, plan: Pipeline, stage: SSAValue, index: SSAValue, ahead: Sequence[SSAValue]
    ) -> Ahead:
        """Start the copies of the iteration `index` to a stage and step on."""
        (body,) = loop.regions
        self.mapping[body.arguments[0]] = index
        for place, value in zip(plan.carried, ahead, strict=True):
            self.mapping[body.arguments[1 + place]] = value
        for operation in plan.slice:
            self.location = operation.location
            self.append(operation)
        self.location = loop.location
        inside = self.emit("compare", index, self.mapping[loop.operands[1]], predicate="lt")
        memory = self.create("shared_index", [self.stages[loop], stage]).result
        for stream in plan.streams:
            self.copy_tile(stream, memory, inside)
        self.location = loop.location
        self.create("copy_commit")
        following = self.mapped([body.terminator.operands[place] for place in plan.carried])
        step = {KEPT_ATTRIBUTE: True}  # addresses of a stage are computed from its own index
        return self.create("add", [index, self.mapping[loop.operands[2]]], step).result, following

    def copy_tile(self, stream: Stream, memory: SSAValue, inside: SSAValue) -> None:
        """Start the copies of one tile; of zeros, which nobody reads, after the last iteration: a condition of the
        instruction itself would make the assembler branch around each of them."""
        self.location = stream.load.location
        pointer, mask = access_operands(stream.load)
        tile = self.stream_tile(memory, stream, stream.tile.linear)
        masks = [mask] if mask is not None else []
        self.create("copy_async", [self.mapping[pointer], tile, inside, *self.mapped(masks)])

    # Reads ---------------------------------------------------------------------------------------

    def replace_reads(self, plan: Pipeline) -> None:
        """Nothing is written for the loads and what renames their elements; conversions read the stage."""
        for stream in plan.streams:
            for operation in (stream.load, *(step for reader in stream.readers for step in reader.steps)):
                self.replaced[operation] = _nothing
            for reader in stream.readers:
                self.replaced[reader.operation] = partial(self.read, stream, reader)

    def read(self, stream: Stream, reader: Reader) -> None:
        """A block out of this iteration's stage, or the tile itself for products that read it there."""
        assert self.reading is not None
        old = reader.operation.result
        tile = self.stream_tile(self.reading, stream, reader.view.linear)
        if reader.direct:
            self.mapping[old] = tile
            return
        names = (LAYOUT_ATTRIBUTE, CONVERSION_ATTRIBUTE)
        attributes = {name: value for name, value in reader.operation.attributes.items() if name in names}
        block = self.create("shared_load", [tile], attributes)
        self.stand_for([old], block.results)


def _nothing() -> None:
    """The block is in shared memory only."""
