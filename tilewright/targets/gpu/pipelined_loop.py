"""Emits the loops of `pipelining.py`; each GPU defines how copies are issued and waited for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from tilewright.ir.core import Operation
from tilewright.layout import LinearLayout
from tilewright.layout.distributed import REGISTER_INPUTS
from tilewright.targets.gpu.accesses import item_size
from tilewright.targets.gpu.conversions import register_type
from tilewright.targets.gpu.exchange import from_bits, load_shared
from tilewright.targets.gpu.layouts import is_copied
from tilewright.targets.gpu.lowering import KernelLowering, Rule, grouped
from tilewright.targets.gpu.memory import pieces
from tilewright.targets.gpu.pipelining import Pipeline, Reader, Stream
from tilewright.targets.gpu.transfer import element_bits
from tilewright.targets.llvm.builder import LLVMValue

Load = Callable[[int], list[LLVMValue]]
Place = tuple[LLVMValue, int]  # bytes from the start of shared memory: an offset, and what is to be added to it

_VECTOR_BYTES = 16


@dataclass(frozen=True)
class ThreadPlace:
    """A byte offset in a tile that depends on the thread, and the bits that it may have."""

    offset: LLVMValue
    moving: int


class PipelinedLoop(ABC):
    """One loop; `emit` is what stands for the rule of `for`."""

    def __init__(self, lowering: KernelLowering, operation: Operation, plan: Pipeline, base: int) -> None:
        self.lowering = lowering
        self.builder = lowering.builder
        self.operation = operation
        self.plan = plan
        self.base = base  # bytes from the start of shared memory to the first stage
        self.body = operation.regions[0]
        self.lower, self.upper, self.step = (lowering.scalar(value) for value in operation.operands[:3])
        self.reading = lowering.i32(0)

    def emit(self) -> None:
        lowering, builder = self.lowering, self.builder
        initial = [lowering.registers(value) for value in self.operation.operands[3:]]
        late = self.plan.late
        for stream in self.plan.streams:
            lowering.note(stream.load, f"{stream.load.result.type} is copied {self.plan.stages - 1} iterations ahead")
        lowering.synchronize()  # the tiles may still be read, by this loop's last run or another loop
        index, ahead = self.prologue([initial[position] for position in self.plan.carried])
        if late:
            self.wait(self.plan.stages - 2)
        initial_registers = [register for registers in initial for register in registers]
        state = [
            *initial_registers,
            index,
            *(register for registers in ahead for register in registers),
            lowering.i32(0),
        ]
        with builder.loop(self.lower, self.upper, self.step, state, hint="pipeline") as loop:
            carried = grouped(loop.values[: len(initial_registers)], initial)
            rest = loop.values[len(initial_registers) :]
            index, stage = rest[0], rest[-1]
            ahead = grouped(rest[1:-1], ahead)
            if not late:
                self.wait(self.plan.stages - 2)
                index, ahead = self.copy(self.before(stage), index, ahead)
            self.reading = self.stage_offset(stage)
            with lowering.instead(self.replacements()):
                following = self.iteration(loop.index, carried)
            if late:
                lowering.synchronize()  # nobody reads the stage that is filled next
                index, ahead = self.copy(self.before(stage), index, ahead)
                self.wait(self.plan.stages - 2)
            flat = [register for registers in following for register in registers]
            flat += [index, *(register for registers in ahead for register in registers), self.after(stage)]
            loop.next(flat)
        self.end_copies()
        results = grouped(loop.results[: len(initial_registers)], initial)
        for value, registers in zip(self.operation.results, results, strict=True):
            lowering.define(value, registers)
        self.finish(results)

    def iteration(self, index: LLVMValue, carried: Sequence[Sequence[LLVMValue]]) -> list[list[LLVMValue]]:
        """The body, with its operands in the stage that is read; what it yields."""
        return self.lowering.region(self.body, [[index], *carried])

    def finish(self, results: Sequence[Sequence[LLVMValue]]) -> None:
        """What is left to do after the loop, whose results are defined: nothing for most."""
        return None

    def replacements(self) -> dict[Operation, Rule]:
        """The loads and what renames their elements emit nothing; conversions read the stage."""
        rules: dict[Operation, Rule] = {}
        for stream in self.plan.streams:
            for operation in (stream.load, *(step for reader in stream.readers for step in reader.steps)):
                rules[operation] = _nothing
            for reader in stream.readers:
                rules[reader.operation] = partial(self._read_rule, stream, reader)
        return rules

    def _read_rule(self, stream: Stream, reader: Reader, lowering: KernelLowering, operation: Operation) -> None:
        self.read(stream, reader)

    # Stages --------------------------------------------------------------------------------------

    def stage_offset(self, stage: LLVMValue) -> LLVMValue:
        start = self.builder.multiply(stage, self.lowering.i32(self.plan.stage_bytes))
        return self.builder.add(start, self.lowering.i32(self.base))

    def after(self, stage: LLVMValue) -> LLVMValue:
        return self.wrapped(self.builder.add(stage, 1), self.plan.stages, 0)

    def before(self, stage: LLVMValue) -> LLVMValue:
        """The stage that was read last, which is filled next."""
        less = self.builder.emit(f"add {stage}, -1", "i32")
        return self.wrapped(less, -1, self.plan.stages - 1)

    def wrapped(self, stage: LLVMValue, limit: int, value: int) -> LLVMValue:
        at_limit = self.builder.compare("eq", stage, limit)
        return self.builder.select(at_limit, self.lowering.i32(value), stage)

    @abstractmethod
    def wait(self, outstanding: int) -> None:
        """Until all but so many copies are there, for all threads, none of which reads an older stage any more."""

    @abstractmethod
    def end_copies(self) -> None:
        """Until this thread's copies are there, those after the last iteration too: the memory has other uses."""

    @abstractmethod
    def commit(self) -> None:
        """The copies that were started since the last call are one, for `wait`."""

    @abstractmethod
    def start_copy(self, to: Place, source: LLVMValue, count: int, owner: LLVMValue | None, inside: LLVMValue) -> None:
        """Start a copy of `count` bytes of global memory, by owners alone; of zeros where `inside` does not hold."""

    # Copies --------------------------------------------------------------------------------------

    def prologue(self, ahead: Sequence[Sequence[LLVMValue]]) -> tuple[LLVMValue, list[list[LLVMValue]]]:
        """The copies of the first iterations; index and carried values of the one after them."""
        index, state = self.lower, [list(registers) for registers in ahead]
        for stage in range(self.plan.stages - 1):
            index, state = self.copy(self.lowering.i32(stage), index, state)
        return index, state

    def copy(
        self, stage: LLVMValue, index: LLVMValue, ahead: Sequence[Sequence[LLVMValue]]
    ) -> tuple[LLVMValue, list[list[LLVMValue]]]:
        """Start the copies of the iteration `index` and step on."""
        lowering, builder = self.lowering, self.builder
        lowering.define(self.body.arguments[0], [index])
        for position, registers in zip(self.plan.carried, ahead, strict=True):
            lowering.define(self.body.arguments[1 + position], registers)
        for operation in self.plan.slice:
            lowering.operation(operation)
        inside = builder.compare("slt", index, self.upper)
        start = self.stage_offset(stage)
        for stream in self.plan.streams:
            self.copy_tile(stream, start, inside)
        self.commit()
        yielded = self.body.terminator.operands
        following = [list(lowering.registers(yielded[position])) for position in self.plan.carried]
        return builder.binary("add", index, self.step), following

    def copy_tile(self, stream: Stream, start: LLVMValue, inside: LLVMValue) -> None:
        """Start the copies of one tile; of zeros, which nobody reads, after the last iteration: a condition of the
        instruction itself would make the assembler branch around each of them."""
        lowering, builder = self.lowering, self.builder
        size = item_size(stream.load)
        pointer = stream.load.operands[0]
        layout = lowering.layout(pointer)
        pointers, numbers = lowering.registers(pointer), lowering.numbers(pointer)
        places = stream.tile.addresses(layout)
        thread = self.thread_place(places.bases(REGISTER_INPUTS[1]), places.bases(REGISTER_INPUTS[2]), size)
        base = builder.add(start, lowering.i32(stream.offset))
        owner = lowering.first_holder(layout)
        for piece in pieces(lowering, stream.load, stream.load.result, once=False):
            first = piece.positions[0]
            count = len(piece.positions) * size
            distance = places.element(register=numbers[first]) * size
            to = self.place(base, thread, distance)
            condition = lowering.conjunction(inside, piece.condition)
            assert condition is not None
            self.start_copy(to, pointers[first], count, owner, condition)

    # Places --------------------------------------------------------------------------------------

    def thread_place(self, lanes: Sequence[int], warps: Sequence[int], size: int) -> ThreadPlace:
        """Where in a tile the thread's register 0 is, from the offsets of lane and warp bits in units of `size`."""
        group = self.lowering.group
        parts = [[vector * size for vector in vectors] for vectors in (lanes, warps)]
        moving = 0
        for vector in (*parts[0], *parts[1]):
            moving |= vector
        return ThreadPlace(self.lowering.combine_bits([(group.lane, parts[0]), (group.warp, parts[1])]), moving)

    def moved(self, place: ThreadPlace, part: LLVMValue, numbers: Sequence[int]) -> ThreadPlace:
        """A place further on by one of the `numbers` for each bit of a part's number."""
        moving = place.moving
        for number in numbers:
            moving |= number
        distance = self.lowering.combine_bits([(part, numbers)])
        return ThreadPlace(self.builder.binary("xor", place.offset, distance), moving)

    def place(self, base: LLVMValue, place: ThreadPlace, distance: int) -> Place:
        """A tile's byte `distance` XOR the thread's own: where, and what is to be added; those are bits that no thread
        has."""
        mixed, apart = distance & place.moving, distance & ~place.moving
        start = place.offset
        if mixed:
            number = self.lowering.i32(mixed)
            start = self.lowering.once(
                ("swizzle", start.text, mixed), lambda: self.builder.binary("xor", place.offset, number)
            )
        return self.lowering.once(("place", base.text, start.text), lambda: self.builder.add(base, start)), apart

    def pointer(self, base: LLVMValue, place: ThreadPlace, distance: int) -> LLVMValue:
        """A pointer to it."""
        whole, apart = self.place(base, place, distance)
        return self.lowering.shared_pointer(self.lowering.plus(whole, apart))

    # Reads ---------------------------------------------------------------------------------------

    def read(self, stream: Stream, reader: Reader) -> None:
        """A block out of this iteration's stage: for a product each part of it when the product comes to it."""
        lowering = self.lowering
        result = reader.operation.result
        base = self.builder.add(self.reading, lowering.i32(stream.offset))
        if reader.operation is stream.load:  # at once, for branches may follow that need it or do not
            self.define(reader, *self.vectors(reader, lowering.layout(result), base))
            lowering.define(result, lowering.registers(result))
        elif is_copied(reader.operation):
            lowering.reads[result] = lambda axis, length, part: self.read_part(reader, base, axis, length, part)
        else:
            self.read_whole(reader, lowering.layout(result), base)

    def read_whole(self, reader: Reader, layout: LinearLayout, base: LLVMValue) -> None:
        """The operand as registers in a layout, out of the stage that begins at `base`."""
        self.define(reader, *self.vectors(reader, layout, base))

    def read_part(self, reader: Reader, base: LLVMValue, axis: int, length: int, part: LLVMValue) -> None:
        """The registers of a part of the operand, `length` along an axis; they are numbered as those of part 0."""
        layout = self.lowering.layout(reader.operation.result)
        beyond = [number for number, vector in enumerate(layout.vectors("register")) if vector[axis] >= length]
        beyond.sort(key=lambda number: layout.vectors("register")[number][axis])
        self.define(reader, *self.vectors(reader, layout, base, (part, beyond)))

    def define(self, reader: Reader, load: Load, groups: Sequence[tuple[int, ...]]) -> None:
        """Define an operand whose registers are loaded, a group at once, when somebody asks for one."""
        lowering = self.lowering
        result = reader.operation.result
        kind = register_type(result.type.element)
        numbers = lowering.numbers(result)
        position = {number: group for group, members in enumerate(groups) for number in members}
        loaded: dict[int, dict[int, LLVMValue]] = {}

        def register(place: int) -> LLVMValue:
            group = position[numbers[place]]
            if group not in loaded:
                values = load(group)
                loaded[group] = dict(zip(groups[group], values, strict=True))
            return from_bits(lowering, loaded[group][numbers[place]], kind)

        lowering.define_later(result, register, len(numbers))

    def vectors(
        self,
        reader: Reader,
        layout: LinearLayout,
        base: LLVMValue,
        part: tuple[LLVMValue, Sequence[int]] | None = None,
    ) -> tuple[Load, list[tuple[int, ...]]]:
        """Neighbours in memory that are neighbours in the thread by one instruction; as `matrices`.

        Of a `part`, a number and the register bits that it stands for.
        """
        lowering, bits = self.lowering, element_bits(reader.operation.result)
        size = bits // 8
        places = reader.view.addresses(layout)
        registers = places.bases("register")
        width = 1
        while width * size < _VECTOR_BYTES and width.bit_length() <= len(registers):
            if registers[width.bit_length() - 1] != width:
                break
            width *= 2
        others = [vector for name in REGISTER_INPUTS[1:] for vector in places.bases(name)]
        others += registers[width.bit_length() - 1 :]
        while any(vector % width for vector in others):
            width //= 2
        thread = self.thread_place(places.bases(REGISTER_INPUTS[1]), places.bases(REGISTER_INPUTS[2]), size)
        if part is not None:
            thread = self.moved(thread, part[0], [registers[bit] * size for bit in part[1]])
        groups = [tuple(range(first, first + width)) for first in range(0, 1 << len(registers), width)]

        def load(number: int) -> list[LLVMValue]:
            distance = places.element(register=groups[number][0]) * size
            return load_shared(lowering, self.pointer(base, thread, distance), f"i{bits}", width)

        return load, groups


def _nothing(lowering: KernelLowering, operation: Operation) -> None:
    """The block is in shared memory only."""
