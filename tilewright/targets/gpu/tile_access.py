"""Copies to tiles in shared memory and reads of them: the address of each access, and which elements one moves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright.ir.core import Operation
from tilewright.layout import SharedLayout
from tilewright.layout.distributed import REGISTER_INPUTS
from tilewright.targets.gpu.accesses import item_size
from tilewright.targets.gpu.conversions import register_type
from tilewright.targets.gpu.exchange import from_bits, load_shared
from tilewright.targets.gpu.layouts import CONVERSION_ATTRIBUTE, is_copied
from tilewright.targets.gpu.lowering import KernelLowering
from tilewright.targets.gpu.memory import pieces
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


class TileAccess:
    """Places in a tile that the threads of a kernel reach."""

    def __init__(self, lowering: KernelLowering) -> None:
        self.lowering = lowering
        self.builder = lowering.builder

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


class TileCopy(TileAccess, ABC):
    """The copies of one `copy_async`."""

    def __init__(self, lowering: KernelLowering, operation: Operation) -> None:
        super().__init__(lowering)
        self.operation = operation

    def emit(self, start: LLVMValue, offset: int) -> None:
        """Start them, to the tile that begins `offset` bytes from `start`."""
        lowering, builder = self.lowering, self.builder
        size = item_size(self.operation)
        pointer, tile, condition = self.operation.operands[:3]
        layout = lowering.layout(pointer)
        pointers, numbers = lowering.registers(pointer), lowering.numbers(pointer)
        places = SharedLayout(lowering.layout(tile)).addresses(layout)
        thread = self.thread_place(places.bases(REGISTER_INPUTS[1]), places.bases(REGISTER_INPUTS[2]), size)
        base = builder.add(start, lowering.i32(offset))
        owner = lowering.first_holder(layout)
        for piece in pieces(lowering, self.operation, pointer, once=False):
            first = piece.positions[0]
            count = len(piece.positions) * size
            to = self.place(base, thread, places.element(register=numbers[first]) * size)
            inside = lowering.conjunction(lowering.scalar(condition), piece.condition)
            assert inside is not None
            self.start(to, pointers[first], count, owner, inside)

    @abstractmethod
    def start(self, to: Place, source: LLVMValue, count: int, owner: LLVMValue | None, inside: LLVMValue) -> None:
        """Start a copy of `count` bytes of global memory, by owners alone; of zeros where `inside` does not hold."""


class TileRead(TileAccess):
    """The reads of one `shared_load`."""

    def __init__(self, lowering: KernelLowering, operation: Operation) -> None:
        super().__init__(lowering)
        self.operation = operation
        self.layout = lowering.layout(operation.result)
        self.tile = SharedLayout(lowering.layout(operation.operands[0]))

    def emit(self, base: LLVMValue) -> None:
        """A block out of the tile at `base`: for a product each part of it when the product comes to it."""
        lowering, result = self.lowering, self.operation.result
        if CONVERSION_ATTRIBUTE not in self.operation.attributes:  # at once: branches may follow that need it or do not
            self.define(*self.vectors(base))
            lowering.define(result, lowering.registers(result))
        elif is_copied(self.operation):
            lowering.reads[result] = lambda axis, length, part: self.read_part(base, axis, length, part)
        else:
            self.read_whole(base)

    def read_whole(self, base: LLVMValue) -> None:
        """The block as registers, each loaded when it is first asked for; a GPU may have better instructions."""
        self.define(*self.vectors(base))

    def read_part(self, base: LLVMValue, axis: int, length: int, part: LLVMValue) -> None:
        """The registers of a part of the operand, `length` along an axis; they are numbered as those of part 0."""
        layout = self.layout
        beyond = [number for number, vector in enumerate(layout.vectors("register")) if vector[axis] >= length]
        beyond.sort(key=lambda number: layout.vectors("register")[number][axis])
        self.define(*self.vectors(base, (part, beyond)))

    def define(self, load: Load, groups: Sequence[tuple[int, ...]]) -> None:
        """Define a block whose registers are loaded, a group at once, when somebody asks for one."""
        lowering, result = self.lowering, self.operation.result
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
        self, base: LLVMValue, part: tuple[LLVMValue, Sequence[int]] | None = None
    ) -> tuple[Load, list[tuple[int, ...]]]:
        """Neighbours in memory that are neighbours in the thread by one instruction; as `matrices`.

        Of a `part`, a number and the register bits that it stands for.
        """
        lowering, bits = self.lowering, element_bits(self.operation.result)
        size = bits // 8
        places = self.tile.addresses(self.layout)
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
