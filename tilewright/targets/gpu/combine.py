"""Shared code of reductions and scans: partial results, merging two of them, and passing them between warps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tilewright.ir.core import Operation
from tilewright.ir.types import TensorType
from tilewright.layout import LinearLayout
from tilewright.targets.gpu.exchange import butterfly, from_bits, load_shared, store_shared, to_bits
from tilewright.targets.gpu.lowering import KernelLowering
from tilewright.targets.llvm.builder import LLVMValue

_VECTOR_BYTES = 16
_WARPS_BY_LANES = 32  # warps from which butterflies over the lanes combine their parts


@dataclass(frozen=True)
class Partial:
    """The combination of some elements: one register for each operand, and whether there was any element.

    `valid` is None where there always is one.
    """

    registers: tuple[LLVMValue, ...]
    valid: LLVMValue | None = None


def flagged(parts: Sequence[Partial], lowering: KernelLowering) -> list[Partial]:
    """Partial results of which all have a flag when one has."""
    if all(part.valid is None for part in parts):
        return list(parts)
    true = lowering.builder.constant("i1", True)
    return [part if part.valid is not None else Partial(part.registers, true) for part in parts]


class Combiner:
    """Merges partial results by an operation's region, always the earlier elements on the left."""

    def __init__(self, lowering: KernelLowering, operation: Operation) -> None:
        self.lowering = lowering
        self.region = operation.regions[0]

    def merge(self, left: Partial, right: Partial) -> Partial:
        builder = self.lowering.builder
        given = [[register] for register in (*left.registers, *right.registers)]
        combined = tuple(result[0] for result in self.lowering.region(self.region, given))
        if right.valid is not None:
            combined = self._chosen(right.valid, combined, left.registers)
        if left.valid is not None:
            combined = self._chosen(left.valid, combined, right.registers)
        if left.valid is None or right.valid is None:
            return Partial(combined)
        return Partial(combined, builder.binary("or", left.valid, right.valid))

    def _chosen(
        self, flag: LLVMValue, then: Sequence[LLVMValue], otherwise: Sequence[LLVMValue]
    ) -> tuple[LLVMValue, ...]:
        select = self.lowering.builder.select
        return tuple(select(flag, one, other) for one, other in zip(then, otherwise, strict=True))

    def choose(self, flag: LLVMValue, then: Partial, otherwise: Partial) -> Partial:
        """One of two by a condition of the thread."""
        registers = self._chosen(flag, then.registers, otherwise.registers)
        if then.valid is None and otherwise.valid is None:
            return Partial(registers)
        yes = LLVMValue("i1", "true")
        valid = self.lowering.builder.select(flag, then.valid or yes, otherwise.valid or yes)
        return Partial(registers, valid)

    def tree(self, parts: Iterable[Partial]) -> Partial:
        """Of neighbours, then of neighbours of those: short chains, in a fixed order; each as soon as it can be."""
        waiting: list[tuple[int, Partial]] = []
        for part in parts:
            size = 1
            while waiting and waiting[-1][0] == size:
                part = self.merge(waiting.pop()[1], part)
                size *= 2
            waiting.append((size, part))
        _, whole = waiting.pop()
        while waiting:
            whole = self.merge(waiting.pop()[1], whole)
        return whole

    def partner(self, part: Partial, lane_bit: int) -> Partial:
        """The partial result of the lane whose number differs in one bit."""
        distance = self.lowering.i32(1 << lane_bit)
        moved = tuple(butterfly(self.lowering, register, distance) for register in part.registers)
        valid = butterfly(self.lowering, part.valid, distance) if part.valid is not None else None
        return Partial(moved, valid)


# Between warps -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class WarpSlots:
    """Where warps leave their partial results: `warps` neighbouring slots for each of `results` results.

    Bits of the thread that tell results apart number them (`lanes`, `others`: bit numbers); `along` are the warp bits
    that are combined over, from the lowest along the axis; `copies` a mask of lane bits that hold copies.
    """

    along: tuple[int, ...]
    lanes: tuple[int, ...]
    others: tuple[int, ...]
    copies: int
    registers: int  # results that one thread holds

    @property
    def warps(self) -> int:
        return 1 << len(self.along)

    @property
    def results(self) -> int:
        return self.registers << len(self.lanes) + len(self.others)

    def bytes(self, widths: Sequence[int]) -> int:
        """Scratch for operands of these widths (bytes)."""
        return sum(-(-self.results * self.warps * width // _VECTOR_BYTES) * _VECTOR_BYTES for width in widths)


def warp_slots(layout: LinearLayout, along: Sequence[int], finished: Sequence[int], registers: int) -> WarpSlots:
    """The slots of an exchange over the warp bits `along`, each thread having `registers` results.

    `finished` are the lane bits whose lanes have equal results already.
    """
    lanes, warps = layout.vectors("lane"), layout.vectors("warp")
    distinct_bits = tuple(bit for bit, vector in enumerate(lanes) if any(vector) and bit not in finished)
    others = tuple(bit for bit, vector in enumerate(warps) if any(vector) and bit not in along)
    copies = sum(1 << bit for bit in range(len(lanes)) if bit not in distinct_bits)
    return WarpSlots(tuple(along), distinct_bits, others, copies, registers)


def slot_widths(types: Sequence[TensorType], flagged: bool) -> list[int]:
    """Bytes of each operand's slots, and of the flags' where some partial results may be of no element."""
    widths = [max(8, type_.element.bits) // 8 for type_ in types]
    return [*widths, 1] if flagged else widths


@dataclass(frozen=True)
class _Left:
    """Where the warps' parts are: type, and (offset, width) in bytes, of each column; the flags' column is the last."""

    columns: tuple[tuple[str, tuple[int, int]], ...]
    start: LLVMValue
    row: LLVMValue
    flagged: bool


def _partial(values: Sequence[LLVMValue], flagged: bool) -> Partial:
    return Partial(tuple(values[:-1]), values[-1]) if flagged else Partial(tuple(values))


class WarpExchange:
    """Hands each warp the partial results of all warps along the axis, through scratch memory with one barrier."""

    def __init__(self, lowering: KernelLowering, operation: Operation, slots: WarpSlots) -> None:
        self.lowering = lowering
        self.operation = operation
        self.slots = slots

    def exchange(self, parts: Sequence[Partial], base: int = 0) -> list[list[Partial]]:
        """For each of the thread's results (in the order of its registers) the parts of the warps, in order."""
        left = self._leave(parts, base)
        loaded = [self._load(type_text, place, left.start, left.row) for type_text, place in left.columns]
        results = []
        for register in range(len(parts)):
            rows = zip(*(column[register] for column in loaded), strict=True)
            results.append([_partial(values, left.flagged) for values in rows])
        return results

    def by_lanes(self, parts: Sequence[Partial]) -> list[Partial]:
        """For each of the thread's results one warp's part: lanes with copies have the parts of all warps.

        `lane_bits` are those whose butterflies combine them.
        """
        left = self._leave(parts, 0)
        number = self._thread_bits(
            [(bit, 1 << place) for place, bit in enumerate(self.lane_bits)], self.lowering.group.lane
        )
        row = self.lowering.builder.add(left.row, number)
        loaded = [self._load(type_text, place, left.start, row, 1) for type_text, place in left.columns]
        return [_partial([column[register][0] for column in loaded], left.flagged) for register in range(len(parts))]

    @property
    def lane_bits(self) -> tuple[int, ...]:
        """The lowest lane bits that tell copies apart, as many as there are warp bits along the axis, or all."""
        copies = [bit for bit in range(self.slots.copies.bit_length()) if self.slots.copies >> bit & 1]
        return tuple(copies[: len(self.slots.along)])

    @property
    def pays_by_lanes(self) -> bool:
        """Whether many warps' parts are combined with fewer instructions by butterflies than by every thread alone.

        A thread alone loads all of them and combines them in the least time, but each of many warps does so.
        """
        return self.slots.warps >= _WARPS_BY_LANES and len(self.lane_bits) == len(self.slots.along)

    def _leave(self, parts: Sequence[Partial], base: int) -> _Left:
        """Store the thread's parts, and wait until all warps have."""
        lowering, slots = self.lowering, self.slots
        flagged = parts[0].valid is not None
        columns = [[*part.registers, *([part.valid] if part.valid is not None else [])] for part in parts]
        types = [register.type for register in columns[0]]
        row = self._row()
        mine = self.own_warp()
        start = lowering.builder.add(
            lowering.group.scratch, lowering.i32(lowering.allocation.scratch[self.operation] + base)
        )
        places, offset = [], 0
        for column, _ in enumerate(types):
            width = int(to_bits(lowering, columns[0][column]).type[1:]) // 8
            places.append((offset, width))
            offset += -(-slots.results * slots.warps * width // _VECTOR_BYTES) * _VECTOR_BYTES
        self._store(columns, places, start, row, mine)
        lowering.synchronize()
        return _Left(tuple(zip(types, places, strict=True)), start, row, flagged)

    def own_warp(self) -> LLVMValue:
        """The thread's own number among the warps that exchange."""
        return self._thread_bits(
            [(bit, 1 << place) for place, bit in enumerate(self.slots.along)], self.lowering.group.warp
        )

    def _thread_bits(self, bits: Sequence[tuple[int, int]], source: LLVMValue) -> LLVMValue:
        """The sum of one number for each set bit of `source`."""
        numbers = [0] * (1 + max((bit for bit, _ in bits), default=-1))
        for bit, number in bits:
            numbers[bit] = number
        return self.lowering.combine_bits([(source, numbers)])

    def _row(self) -> LLVMValue:
        """The number of the thread's first result; its further ones follow after all threads' first ones."""
        slots = self.slots
        lanes = [(bit, slots.warps << place) for place, bit in enumerate(slots.lanes)]
        others = [(bit, slots.warps << place + len(slots.lanes)) for place, bit in enumerate(slots.others)]
        return self.lowering.builder.add(
            self._thread_bits(lanes, self.lowering.group.lane), self._thread_bits(others, self.lowering.group.warp)
        )

    @property
    def _stride(self) -> int:
        """Slots between two results of one thread."""
        return self.slots.results * self.slots.warps // self.slots.registers

    def _store(
        self,
        columns: Sequence[Sequence[LLVMValue]],
        places: Sequence[tuple[int, int]],
        start: LLVMValue,
        row: LLVMValue,
        mine: LLVMValue,
    ) -> None:
        lowering, builder = self.lowering, self.lowering.builder
        slot = builder.add(row, mine)
        copies = builder.binary("and", lowering.group.lane, lowering.i32(self.slots.copies))
        with builder.when(builder.compare("eq", copies, 0), hint="partial"):
            for (offset, width), column in zip(places, range(len(places)), strict=True):
                first = builder.add(start, builder.multiply(slot, lowering.i32(width)))
                for register, values in enumerate(columns):
                    place = builder.add(first, lowering.i32(offset + register * self._stride * width))
                    store_shared(lowering, lowering.shared_pointer(place), [to_bits(lowering, values[column])])

    def _load(
        self, type_text: str, place: tuple[int, int], start: LLVMValue, row: LLVMValue, warps: int | None = None
    ) -> list[list[LLVMValue]]:
        """The first `warps` slots of each of the thread's results, or all."""
        lowering, builder = self.lowering, self.lowering.builder
        offset, width = place
        first = builder.add(start, builder.multiply(row, lowering.i32(width)))
        warps = warps or self.slots.warps
        at_once = min(warps, _VECTOR_BYTES // width)
        results = []
        for register in range(self.slots.registers):
            values: list[LLVMValue] = []
            for warp in range(0, warps, at_once):
                distance = offset + (register * self._stride + warp) * width
                pointer = lowering.shared_pointer(builder.add(first, lowering.i32(distance)))
                values += load_shared(lowering, pointer, f"i{8 * width}", at_once)
            results.append([from_bits(lowering, value, type_text) for value in values])
        return results
