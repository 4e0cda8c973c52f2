"""Reductions: a tree in each thread, butterflies between lanes, one exchange through shared memory between warps.

The order of combination is fixed by the layout, so results are the same in every run.
"""

from __future__ import annotations

from tilewright.ir.core import Operation, Value
from tilewright.layout import LinearLayout
from tilewright.targets.llvm.builder import LLVMValue
from tilewright.targets.nvidia.combine import (
    Combiner,
    Partial,
    WarpExchange,
    WarpSlots,
    flagged,
    slot_widths,
    warp_slots,
)
from tilewright.targets.nvidia.layouts import Assignment
from tilewright.targets.nvidia.lowering import KernelLowering, Rule, cached_live_registers


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
        partials[element] = _over_lanes(combiner, combiner.tree(parts), layout, axis)
    slots = _slots(layout, axis, len(partials))
    if slots.along:
        partials = _over_warps(lowering, operation, combiner, partials, slots)
    for place, result in enumerate(operation.results):
        lowering.define(result, [partials[element].registers[place] for element in _elements(lowering, result)])


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


def _over_lanes(combiner: Combiner, part: Partial, layout: LinearLayout, axis: int) -> Partial:
    """Butterflies over the lane bits along the axis, from the lowest: every lane has the whole in the end."""
    vectors = layout.vectors("lane")
    for bit in sorted((bit for bit, vector in enumerate(vectors) if vector[axis]), key=lambda bit: vectors[bit][axis]):
        part = combiner.merge(part, combiner.partner(part, bit))
    return part


def _over_warps(
    lowering: KernelLowering, operation: Operation, combiner: Combiner, partials: dict[int, Partial], slots: WarpSlots
) -> dict[int, Partial]:
    exchanged = WarpExchange(lowering, operation, slots).exchange(flagged(list(partials.values()), lowering))
    return {element: combiner.tree(several) for element, several in zip(partials, exchanged, strict=True)}


def _elements(lowering: KernelLowering, result: Value) -> list[int]:
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
    return slots.bytes(slot_widths([value.type for value in operands], _is_flagged(layout, shape, axis)))


RULES: dict[str, Rule] = {"reduce": reduce}
