"""Scans: the bits of the coordinate along the axis, from the lowest, wherever they are.

Before a bit is looked at, every aligned block of elements below it knows its total, and every element its prefix inside
the block.  Two blocks that differ in the bit become one: the total of the first goes in front of the second.

    register bit    both blocks are in the thread: nothing moves
    lane bit        the other block's total comes by a butterfly
    warp bits       the totals of all warps come by one exchange through shared memory

What comes from other threads is kept apart (the offset of a segment) and put in front of the elements once, at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.ir.core import Operation
from tilewright.layout import LinearLayout
from tilewright.targets.gpu.combine import (
    Combiner,
    Partial,
    WarpExchange,
    WarpSlots,
    flagged,
    slot_widths,
    warp_slots,
)
from tilewright.targets.gpu.layouts import Assignment
from tilewright.targets.gpu.lowering import KernelLowering, Rule, cached_live_registers
from tilewright.targets.llvm.builder import LLVMValue


@dataclass
class _Segment:
    """Registers with a common offset: what stands before them outside the thread."""

    members: list[int]
    offset: Partial | None = None


@dataclass
class _Block:
    """An aligned block of elements of the thread, or of several threads of which this is one."""

    segments: list[_Segment]
    total: Partial


@dataclass(frozen=True)
class _ScanStep:
    """Bits of the coordinate that are dealt with together: one register or lane bit, or some warp bits."""

    kind: str
    bits: tuple[int, ...]


def _steps(layout: LinearLayout, axis: int) -> list[_ScanStep]:
    found = sorted(
        (vector[axis], name, bit)
        for name in layout.input_names
        for bit, vector in enumerate(layout.vectors(name))
        if vector[axis]
    )
    steps: list[_ScanStep] = []
    for _, name, bit in found:
        if name == "warp" and steps and steps[-1].kind == "warp":
            steps[-1] = _ScanStep(name, (*steps[-1].bits, bit))
        else:
            steps.append(_ScanStep(name, (bit,)))
    return steps


def _axis(operation: Operation) -> int:
    axis = operation.attributes["axis"]
    assert isinstance(axis, int)
    return axis


def _exchanges(layout: LinearLayout, shape: tuple[int, ...], axis: int) -> list[tuple[_ScanStep, WarpSlots]]:
    """The exchanges between warps of a scan."""
    result = []
    finished: list[int] = []
    blocks = set(cached_live_registers(layout, shape))
    for step in _steps(layout, axis):
        if step.kind == "register":
            blocks = {number & ~(1 << step.bits[0]) for number in blocks}
        elif step.kind == "lane":
            finished += step.bits
        else:
            result.append((step, warp_slots(layout, step.bits, finished, len(blocks))))
    return result


class _Scan:
    def __init__(self, lowering: KernelLowering, operation: Operation) -> None:
        self.lowering = lowering
        self.operation = operation
        self.axis = _axis(operation)
        self.reverse = bool(operation.attributes["reverse"])
        self.layout = lowering.layout(operation.operands[0])
        self.shape = operation.operands[0].type.shape
        self.combiner = Combiner(lowering, operation)
        self.flagged = _is_flagged(operation, self.layout)
        self.prefixes: dict[int, Partial] = {}

    def run(self) -> None:
        lowering, operation = self.lowering, self.operation
        columns = [lowering.registers(value) for value in operation.operands]
        for place, number in enumerate(lowering.numbers(operation.operands[0])):
            valid = lowering.inside(self.layout, self.shape, number) if self.flagged else None
            self.prefixes[number] = Partial(tuple(column[place] for column in columns), valid)
        blocks = {number: _Block([_Segment([number])], part) for number, part in self.prefixes.items()}
        exchanges = iter(_exchanges(self.layout, self.shape, self.axis))
        scratch = 0
        for step in _steps(self.layout, self.axis):
            if step.kind == "register":
                blocks = self.register_bit(blocks, step.bits[0])
            elif step.kind == "lane":
                for block in blocks.values():
                    self.lane_bit(block, step.bits[0])
            else:
                _, slots = next(exchanges)
                self.warp_bits(list(blocks.values()), slots, scratch)
                scratch += slots.bytes(slot_widths([value.type for value in operation.operands], self.flagged))
        for block in blocks.values():
            self.put_in_front(block)
        for place, result in enumerate(operation.results):
            lowering.define(result, [self.prefixes[number].registers[place] for number in lowering.numbers(result)])

    def register_bit(self, blocks: dict[int, _Block], bit: int) -> dict[int, _Block]:
        result: dict[int, _Block] = {}
        for low in sorted({number & ~(1 << bit) for number in blocks}):
            high = low | 1 << bit
            if low not in blocks or high not in blocks:  # the other one is beyond the real extent
                result[low] = blocks[low] if low in blocks else blocks[high]
                continue
            first, second = (blocks[high], blocks[low]) if self.reverse else (blocks[low], blocks[high])
            result[low] = self.joined(first, second)
        return result

    def joined(self, first: _Block, second: _Block) -> _Block:
        """Two blocks of the thread as one."""
        merge = self.combiner.merge
        total = merge(first.total, second.total)
        if all(segment.offset is None for segment in (*first.segments, *second.segments)):
            members = [number for segment in second.segments for number in segment.members]
            for number in members:
                self.prefixes[number] = merge(first.total, self.prefixes[number])
            return _Block([_Segment([*first.segments[0].members, *members])], total)
        for segment in second.segments:
            segment.offset = first.total if segment.offset is None else merge(first.total, segment.offset)
        return _Block([*first.segments, *second.segments], total)

    def lane_bit(self, block: _Block, bit: int) -> None:
        builder, combiner = self.lowering.builder, self.combiner
        other = combiner.partner(block.total, bit)
        own = builder.binary("and", self.lowering.group.lane, self.lowering.i32(1 << bit))
        is_second = builder.compare("eq" if self.reverse else "ne", own, 0)  # the thread's block is the second one
        for segment in block.segments:
            segment.offset = self.offset_after(is_second, other, segment.offset)
        first = combiner.choose(is_second, other, block.total)
        second = combiner.choose(is_second, block.total, other)
        block.total = combiner.merge(first, second)

    def offset_after(self, is_second: LLVMValue, front: Partial, offset: Partial | None) -> Partial:
        """The offset of a segment with `front` before it where `is_second` holds."""
        if offset is None:
            return Partial(front.registers, self.lowering.conjunction(is_second, front.valid))
        return self.combiner.choose(is_second, self.combiner.merge(front, offset), offset)

    def warp_bits(self, blocks: Sequence[_Block], slots: WarpSlots, scratch: int) -> None:
        lowering, builder = self.lowering, self.lowering.builder
        exchange = WarpExchange(lowering, self.operation, slots)
        parts = exchange.exchange(flagged([block.total for block in blocks], lowering), scratch)
        place = exchange.own_warp()
        if self.reverse:
            place = builder.binary("xor", place, lowering.i32(slots.warps - 1))
        for block, several in zip(blocks, parts, strict=True):
            if self.reverse:
                several = several[::-1]
            total = several[0]
            before = Partial(total.registers, lowering.conjunction(builder.compare("ne", place, 0), total.valid))
            for number in range(1, slots.warps):
                if number > 1:
                    before = self.combiner.choose(builder.compare("uge", place, number), total, before)
                total = self.combiner.merge(total, several[number])
            for segment in block.segments:
                segment.offset = before if segment.offset is None else self.combiner.merge(before, segment.offset)
            block.total = total

    def put_in_front(self, block: _Block) -> None:
        for segment in block.segments:
            for number in segment.members if segment.offset is not None else ():
                assert segment.offset is not None
                self.prefixes[number] = self.combiner.merge(segment.offset, self.prefixes[number])


def _is_flagged(operation: Operation, layout: LinearLayout) -> bool:
    """Whether elements beyond the real extent come before others, as in a reverse scan."""
    axis = _axis(operation)
    return bool(operation.attributes["reverse"]) and layout.shape[axis] != operation.operands[0].type.shape[axis]


def scan(lowering: KernelLowering, operation: Operation) -> None:
    """The rule of `scan`."""
    _Scan(lowering, operation).run()


def scan_bytes(assignment: Assignment, operation: Operation) -> int:
    """Scratch of a scan."""
    operands, axis = operation.operands, _axis(operation)
    layout, shape = assignment.layouts[operands[0]], operands[0].type.shape
    widths = slot_widths([value.type for value in operands], _is_flagged(operation, layout))
    return sum(slots.bytes(widths) for _, slots in _exchanges(layout, shape, axis))


RULES: dict[str, Rule] = {"scan": scan}
