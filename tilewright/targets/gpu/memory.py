"""Loads and stores: as wide as layout, alignment and mask allow, up to 16 bytes per instruction.

Accesses without a mask are LLVM's own, so that it may move them; those under a mask are the GPU's (`Intrinsics.load`).
A value that several threads hold is stored by one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.ir.core import Operation, SSAValue
from tilewright.ir.types import PointerType
from tilewright.layout import Facts, LinearLayout, widest_access
from tilewright.targets.gpu.accesses import access_facts, access_operands
from tilewright.targets.gpu.conversions import memory_type, register_type
from tilewright.targets.gpu.exchange import from_bits, pack, to_bits, unpack
from tilewright.targets.gpu.intrinsics import GlobalAccess, store_words
from tilewright.targets.gpu.lowering import KernelLowering, Rule
from tilewright.targets.llvm.builder import LLVMValue


@dataclass(frozen=True)
class Piece:
    """One instruction: positions of the registers that it moves, in the order of memory, and its condition."""

    positions: tuple[int, ...]
    condition: LLVMValue | None


def pieces(
    lowering: KernelLowering, operation: Operation, value: SSAValue, *, once: bool, widest: int = 16
) -> list[Piece]:
    """The instructions of an access; with `once`, each element is moved by one thread only.

    `value` is the block that is moved or, without one, of the pointers; `widest` is the most bytes of one instruction.
    """
    pointer, mask = access_operands(operation)
    masks = lowering.registers(mask) if mask is not None else None
    if pointer.type.is_scalar:
        condition = lowering.first_holder(None) if once and not lowering.group.elected else None
        return [Piece((0,), lowering.conjunction(_meaningful(masks[0]) if masks else None, condition))]
    layout = lowering.layout(pointer)
    positions = {number: position for position, number in enumerate(lowering.numbers(pointer))}
    owner = lowering.first_holder(layout) if once else None
    result = []
    for group in _groups(lowering, operation, pointer, layout, positions, widest):
        chosen = tuple(positions[number] for number in group)
        condition = lowering.conjunction(_meaningful(masks[chosen[0]]) if masks else None, owner)
        condition = lowering.conjunction(condition, lowering.inside(layout, pointer.type.shape, group[0]))
        result.append(Piece(chosen, condition))
    return result


def _groups(
    lowering: KernelLowering,
    operation: Operation,
    pointer: SSAValue,
    layout: LinearLayout,
    positions: dict[int, int],
    widest: int,
) -> list[tuple[int, ...]]:
    """Register numbers of each instruction; in blocks with rounded extents, only what is inside."""
    element = pointer.type.element
    assert isinstance(element, PointerType)
    facts = access_facts(operation, lowering.assignment.facts)
    width = max(1, widest // element.element.itemsize)
    if layout.shape != pointer.type.shape:
        # Runs must not reach over the real extent: they divide it, as the facts about it do.
        runs = tuple(
            min(run, extent & -extent) for run, extent in zip(facts.contiguity, pointer.type.shape, strict=True)
        )
        facts = Facts(runs, facts.divisibility, facts.mask_constancy)
    facts = Facts(tuple(min(run, width) for run in facts.contiguity), facts.divisibility, facts.mask_constancy)
    access = widest_access(layout, facts, element.element.itemsize)
    return [group for group in access.groups if all(number in positions for number in group)]


def _meaningful(mask: LLVMValue) -> LLVMValue | None:
    """A condition, or None when it is known to hold."""
    return None if mask.text == "true" else mask


# Words -------------------------------------------------------------------------------------------


def to_words(lowering: KernelLowering, values: Sequence[LLVMValue]) -> list[LLVMValue]:
    """Registers as the integers that one instruction moves: of 8, 16, 32 or 64 bits, equal ones."""
    bits = [to_bits(lowering, value) for value in values]
    width = int(bits[0].type[1:])
    unit = max(width, min(32, width * len(bits)))
    per = unit // width
    return [pack(lowering, bits[start : start + per], unit) for start in range(0, len(bits), per)]


def from_words(lowering: KernelLowering, words: Sequence[LLVMValue], type_text: str, width: int) -> list[LLVMValue]:
    """The registers of a type out of `to_words`; `width` are an element's bits."""
    per = int(words[0].type[1:]) // width
    parts = [part for word in words for part in unpack(lowering, word, per, width)]
    return [from_bits(lowering, part, type_text) for part in parts]


# Loads -------------------------------------------------------------------------------------------


def load(lowering: KernelLowering, operation: Operation) -> None:
    """Each piece by one instruction; where the mask is off, the registers hold `other` already."""
    if operation in lowering.deferred:
        _defer(lowering, operation)
        return
    lowering.define(
        operation.result, repeated(lowering, operation.result, load_pieces(lowering, operation, once=False))
    )


def _defer(lowering: KernelLowering, operation: Operation) -> None:
    """Load a piece when one of its registers is asked for."""
    result = operation.result
    layout, numbers = lowering.layout(result), lowering.numbers(result)
    elements = [layout.element(register=number) for number in numbers]
    holder = {
        elements[position]: piece
        for piece in pieces(lowering, operation, result, once=False)
        for position in piece.positions
    }
    found: dict[int, LLVMValue] = {}

    def register(position: int) -> LLVMValue:
        if elements[position] not in found:
            piece = holder[elements[position]]
            for place, loaded in zip(piece.positions, load_piece(lowering, operation, piece), strict=True):
                found[elements[place]] = loaded
        return found[elements[position]]

    lowering.define_later(result, register, len(numbers))


def load_pieces(lowering: KernelLowering, operation: Operation, *, once: bool) -> dict[int, LLVMValue]:
    """What a load gives, by the positions of registers; with `once`, of threads with copies only one loads."""
    registers: dict[int, LLVMValue] = {}
    for piece in pieces(lowering, operation, operation.result, once=once):
        registers.update(zip(piece.positions, load_piece(lowering, operation, piece), strict=True))
    return registers


def load_piece(lowering: KernelLowering, operation: Operation, piece: Piece) -> list[LLVMValue]:
    """The registers of one instruction."""
    result = operation.result
    others = lowering.registers(operation.operands[2]) if len(operation.operands) == 3 else None
    kind = memory_type(result.type.dtype)
    zero = LLVMValue(kind, lowering.builder.zero(kind).text)
    fill = [zero if others is None else as_memory(lowering, others[position], result) for position in piece.positions]
    pointer = lowering.registers(operation.operands[0])[piece.positions[0]]
    loaded = _load_piece(lowering, operation, pointer, fill, piece.condition)
    return [from_memory(lowering, register, result) for register in loaded]


def repeated(lowering: KernelLowering, value: SSAValue, registers: dict[int, LLVMValue]) -> list[LLVMValue]:
    """All registers of a block, those that repeat another's element included."""
    if value.type.is_scalar:
        return [registers[0]]
    layout, numbers = lowering.layout(value), lowering.numbers(value)
    register_of = {layout.element(register=numbers[position]): register for position, register in registers.items()}
    return [register_of[layout.element(register=number)] for number in numbers]


def as_memory(lowering: KernelLowering, register: LLVMValue, value: SSAValue) -> LLVMValue:
    """A register as memory has it: truth values are bytes."""
    wanted = memory_type(value.type.element)
    return lowering.builder.cast("zext", register, wanted) if register.type == "i1" else register


def from_memory(lowering: KernelLowering, register: LLVMValue, value: SSAValue) -> LLVMValue:
    if register_type(value.type.element) == "i1":
        return lowering.builder.compare("ne", register, 0)
    return register


def _load_piece(
    lowering: KernelLowering,
    operation: Operation,
    pointer: LLVMValue,
    fill: Sequence[LLVMValue],
    condition: LLVMValue | None,
) -> list[LLVMValue]:
    type_text, width = fill[0].type, int(to_bits(lowering, fill[0]).type[1:])
    total = width * len(fill)
    access = GlobalAccess(operation, pointer, condition, constant=operation in lowering.deferred)
    if access.is_plain:
        unit = min(32, total) if width < 32 else width
        words = lowering.builder.load_each(f"i{unit}", total // unit, pointer, total // 8)
    else:
        words = lowering.intrinsics.load(lowering, access, to_words(lowering, fill))
    return from_words(lowering, words, type_text, width)


# Stores ------------------------------------------------------------------------------------------


def store(lowering: KernelLowering, operation: Operation) -> None:
    pointer, value = operation.operands[:2]
    pointers, registers = lowering.registers(pointer), lowering.registers(value)
    for piece in pieces(lowering, operation, value, once=True):
        values = [as_memory(lowering, registers[position], value) for position in piece.positions]
        _store_piece(lowering, operation, pointers[piece.positions[0]], values, piece.condition)


def _store_piece(
    lowering: KernelLowering,
    operation: Operation,
    pointer: LLVMValue,
    values: Sequence[LLVMValue],
    condition: LLVMValue | None,
) -> None:
    words = to_words(lowering, values)
    access = GlobalAccess(operation, pointer, condition)
    if access.is_plain:
        store_words(lowering.builder, pointer, words)
    else:
        lowering.intrinsics.store(lowering, access, words)


RULES: dict[str, Rule] = {"store": store}
