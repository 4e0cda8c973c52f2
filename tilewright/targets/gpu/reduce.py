"""Reductions: a tree in each thread, butterflies between lanes, one exchange through shared memory between warps.

The order of combination is fixed by the layout, so results are the same in every run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from tilewright.dtypes import DType
from tilewright.ir.core import Operation, Region, SSAValue
from tilewright.layout import LinearLayout
from tilewright.targets.gpu import transfer
from tilewright.targets.gpu.combine import (
    Combiner,
    Partial,
    WarpExchange,
    WarpSlots,
    flagged,
    slot_widths,
    warp_slots,
)
from tilewright.targets.gpu.conversions import register_type
from tilewright.targets.gpu.exchange import from_bits, load_shared, store_shared, to_bits
from tilewright.targets.gpu.layouts import Assignment
from tilewright.targets.gpu.lowering import KernelLowering, Rule, cached_live_registers
from tilewright.targets.llvm.builder import LLVMValue


def _axis(operation: Operation) -> int:
    axis = operation.attributes["axis"]
    assert isinstance(axis, int)
    return axis


def _grouped(layout: LinearLayout, shape: tuple[int, ...], axis: int) -> dict[int, list[int]]:
    """Register numbers by the element of the result that they belong to, each list in the order of the axis."""
    reduced = layout.drop(axis)
    groups: dict[int, list[int]] = {}
    for number in cached_live_registers(layout, shape):
        groups.setdefault(reduced.element(register=number), []).append(number)
    for numbers in groups.values():
        numbers.sort(key=lambda number: layout.unpack(layout.element(register=number))[axis])
    return groups


def _slots(layout: LinearLayout, axis: int, registers: int) -> WarpSlots:
    """The exchange between the warps along the axis."""
    warps, lanes = layout.vectors("warp"), layout.vectors("lane")
    moving = sorted((bit for bit, vector in enumerate(warps) if vector[axis]), key=lambda bit: warps[bit][axis])
    return warp_slots(layout, moving, [bit for bit, vector in enumerate(lanes) if vector[axis]], registers)


def _is_flagged(layout: LinearLayout, shape: tuple[int, ...], axis: int) -> bool:
    """Whether a thread or a warp may hold nothing of the real block along the axis."""
    return layout.shape[axis] != shape[axis]


def reduce(lowering: KernelLowering, operation: Operation) -> None:
    operands, axis = operation.operands, _axis(operation)
    layout = lowering.layout(operands[0])
    shape = operands[0].type.shape
    combiner = Combiner(lowering, operation)
    positions = {number: place for place, number in enumerate(lowering.numbers(operands[0]))}
    registers = [lowering.registers(value) for value in operands]
    partials: dict[int, Partial] = {}
    for element, numbers in _grouped(layout, shape, axis).items():
        parts = (
            Partial(
                tuple(column[positions[number]] for column in registers),
                _inside_axis(lowering, layout, shape, axis, number),
            )
            for number in numbers
        )
        whole = _without_flag(lowering, operation, combiner.tree(parts))
        partials[element] = _over_lanes(lowering, operation, whole)
    slots = _slots(layout, axis, len(partials))
    if slots.along and is_handed_over(lowering.assignment, operation):
        wanted = Handover(lowering, operation, slots).parts(partials)
        lowering.define(operation.result, [combiner.tree(parts).registers[0] for parts in wanted])
        return
    if slots.along:
        partials = _over_warps(lowering, operation, combiner, partials, slots)
    for place, result in enumerate(operation.results):
        lowering.define(result, [partials[element].registers[place] for element in _elements(lowering, result)])


def is_handed_over(assignment: Assignment, operation: Operation) -> bool:
    """Whether the result is elsewhere than in the threads that have parts of it."""
    result = operation.results[0]
    reduced = transfer.reduced(assignment.layouts[operation.operands[0]], _axis(operation))
    return bool(result.type.rank) and assignment.layouts[result] != reduced


class Handover:
    """The exchange between warps of a result that other threads shall have than those with its parts.

    Each warp along the axis leaves its parts row by row, vectors where it has neighbours; then every thread fetches the
    parts of its own elements, from all of these warps.
    """

    def __init__(self, lowering: KernelLowering, operation: Operation, slots: WarpSlots) -> None:
        self.lowering, self.operation, self.slots = lowering, operation, slots
        layout = lowering.layout(operation.operands[0])
        self.source, self.target = layout.drop(_axis(operation)), lowering.layout(operation.result)
        self.count = math.prod(self.target.shape)
        self.width = slot_widths([operation.operands[0].type], False)[0]
        self.start = lowering.builder.add(lowering.group.scratch, lowering.i32(lowering.allocation.scratch[operation]))

    def parts(self, partials: dict[int, Partial]) -> list[list[Partial]]:
        """For each of the thread's results the parts of the warps, in order."""
        lowering, builder = self.lowering, self.lowering.builder
        registers = {element: part.registers[0] for element, part in partials.items()}
        kind = next(iter(registers.values())).type
        mine = WarpExchange(lowering, self.operation, self.slots).own_warp()
        own = builder.multiply(mine, lowering.i32(self.count * self.width))
        copies = builder.binary("and", lowering.group.lane, lowering.i32(self.slots.copies))
        with builder.when(builder.compare("eq", copies, 0), hint="parts"):
            for elements, pointer in self._places(self.source, list(registers), builder.add(self.start, own)):
                store_shared(lowering, pointer, [to_bits(lowering, registers[element]) for element in elements])
        lowering.synchronize()
        wanted = [self.target.element(register=number) for number in lowering.numbers(self.operation.result)]
        found: dict[int, list[Partial]] = {element: [] for element in wanted}
        for warp in range(self.slots.warps):
            start = lowering.plus(self.start, warp * self.count * self.width)
            for elements, pointer in self._places(self.target, wanted, start):
                loaded = load_shared(lowering, pointer, f"i{8 * self.width}", len(elements))
                for element, value in zip(elements, loaded, strict=True):
                    found[element].append(Partial((from_bits(lowering, value, kind),)))
        return [found[element] for element in wanted]

    def _places(
        self, layout: LinearLayout, elements: Sequence[int], start: LLVMValue
    ) -> Iterator[tuple[list[int], LLVMValue]]:
        """Neighbours among the elements of a thread's registers, up to 16 bytes, and where they are."""
        lowering, builder = self.lowering, self.lowering.builder
        thread = lowering.combine_bits(
            [(lowering.group.lane, layout.bases("lane")), (lowering.group.warp, layout.bases("warp"))]
        )
        moving = 0
        for vector in (*layout.bases("lane"), *layout.bases("warp")):
            moving |= vector
        left = sorted(set(elements))
        while left:
            first, count = left[0], 16 // self.width
            while moving & (count - 1) or first % count or left[:count] != [*range(first, first + count)]:
                count //= 2
            group, left = left[:count], left[count:]
            crossing = first & moving
            place = builder.binary("xor", thread, lowering.i32(first)) if crossing else lowering.plus(thread, first)
            distance = builder.multiply(place, lowering.i32(self.width))
            yield group, lowering.shared_pointer(builder.add(start, distance))


def _inside_axis(
    lowering: KernelLowering, layout: LinearLayout, shape: tuple[int, ...], axis: int, number: int
) -> LLVMValue | None:
    if not _is_flagged(layout, shape, axis):
        return None
    whole = tuple(
        extent if position == axis else full
        for position, (extent, full) in enumerate(zip(shape, layout.shape, strict=True))
    )
    return lowering.inside(layout, whole, number)


def _neutral(region: Region) -> float | None:
    """What a combination leaves every other operand as it is with, bit for bit; None where there is no such number, or
    none is known, or where registers hold floats as their bits."""
    first, *others = region.operations
    if len(others) != 1 or len(region.arguments) != 2 or set(first.operands) != set(region.arguments):
        return None
    element = first.result.type.element
    if isinstance(element, DType) and element.is_float and register_type(element) == f"i{element.bits}":
        return None
    if first.opcode in ("minimum", "maximum") and first.result.type.dtype.is_float:
        if not first.attributes.get("propagate_nan", False):
            return math.nan  # which loses to every number
        return math.inf if first.opcode == "minimum" else -math.inf
    return {"add": -0.0, "multiply": 1, "or": 0, "xor": 0}.get(first.opcode)


def _without_flag(lowering: KernelLowering, operation: Operation, part: Partial) -> Partial:
    """A thread's part, which is the neutral element where the thread holds nothing: a number and a flag would take
    twice as many exchanges between lanes as a number."""
    neutral = _neutral(operation.regions[0])
    if part.valid is None or neutral is None:
        return part
    builder, (register,) = lowering.builder, part.registers
    return Partial((builder.select(part.valid, register, builder.constant(register.type, neutral)),))


def _over_lanes(lowering: KernelLowering, operation: Operation, part: Partial) -> Partial:
    """Butterflies over the lane bits along the axis, from the lowest, or one instruction for all lanes: every lane has
    the whole in the end."""
    axis, vectors = _axis(operation), lowering.layout(operation.operands[0]).vectors("lane")
    along = sorted((bit for bit, vector in enumerate(vectors) if vector[axis]), key=lambda bit: vectors[bit][axis])
    if len(along) == len(vectors) and part.valid is None:
        whole = _at_once(lowering, operation, part)
        if whole is not None:
            return whole
    combiner = Combiner(lowering, operation)
    for bit in along:
        part = combiner.merge(part, combiner.partner(part, bit))
    return part


def _at_once(lowering: KernelLowering, operation: Operation, part: Partial) -> Partial | None:
    """Integers of 32 bits over all lanes of a warp, where the target has an instruction for it."""
    first, *others = operation.regions[0].operations
    arguments, element = operation.regions[0].arguments, operation.operands[0].type.element
    if len(others) != 1 or len(arguments) != 2 or set(first.operands) != set(arguments):
        return None
    if not isinstance(element, DType) or not element.is_integer or element.bits != 32:
        return None
    (word,) = part.registers
    whole = lowering.intrinsics.combined(lowering.builder, first.opcode, word, element.is_signed)
    return None if whole is None else Partial((whole,))


def _over_warps(
    lowering: KernelLowering, operation: Operation, combiner: Combiner, partials: dict[int, Partial], slots: WarpSlots
) -> dict[int, Partial]:
    exchange, given = WarpExchange(lowering, operation, slots), flagged(list(partials.values()), lowering)
    if exchange.pays_by_lanes:
        found = exchange.by_lanes(given)
        for bit in exchange.lane_bits:
            found = [combiner.merge(part, combiner.partner(part, bit)) for part in found]
        return dict(zip(partials, found, strict=True))
    exchanged = exchange.exchange(given)
    return {element: combiner.tree(several) for element, several in zip(partials, exchanged, strict=True)}


def _elements(lowering: KernelLowering, result: SSAValue) -> list[int]:
    if result.type.is_scalar:
        return [0]
    layout = lowering.layout(result)
    return [layout.element(register=number) for number in lowering.numbers(result)]


def reduce_bytes(assignment: Assignment, operation: Operation) -> int:
    """Scratch of a reduction: partial results of the warps along the axis."""
    operands, axis = operation.operands, _axis(operation)
    layout, shape = assignment.layouts[operands[0]], operands[0].type.shape
    slots = _slots(layout, axis, len(_grouped(layout, shape, axis)))
    if not slots.along:
        return 0
    with_flags = _is_flagged(layout, shape, axis) and _neutral(operation.regions[0]) is None
    return slots.bytes(slot_widths([value.type for value in operands], with_flags))


RULES: dict[str, Rule] = {"reduce": reduce}
