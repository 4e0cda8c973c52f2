"""Loads and stores: as wide as layout, alignment and mask allow, up to 16 bytes an instruction.

Accesses without a mask are LLVM's own, so that it may move them; those under a mask are one predicated PTX
instruction, without a branch.  A value that several threads hold is stored by one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.ir.core import Operation, Value
from tilewright.ir.types import PointerType
from tilewright.layout import Facts, LinearLayout, widest_access
from tilewright.targets.llvm.builder import LLVMValue
from tilewright.targets.nvidia.accesses import access_facts, access_operands
from tilewright.targets.nvidia.conversions import memory_type, register_type
from tilewright.targets.nvidia.exchange import from_bits, pack, to_bits, unpack
from tilewright.targets.nvidia.lowering import KernelLowering, Rule

_EVICTION = ("evict_first", "evict_last")  # others are how accesses are anyway


@dataclass(frozen=True)
class Piece:
    """One instruction: positions of the registers that it moves, in the order of memory, and its condition."""

    positions: tuple[int, ...]
    condition: LLVMValue | None


def pieces(
    lowering: KernelLowering, operation: Operation, value: Value, *, once: bool, widest: int = 16
) -> list[Piece]:
    """The instructions of an access; with `once`, each element is moved by one thread only.

    `value` is the block that is moved or, without one, of the pointers; `widest` is the most bytes of one instruction.
    """
    pointer, mask = access_operands(operation)
    masks = lowering.registers(mask) if mask is not None else None
    if pointer.type.is_scalar:
        condition = lowering.first_holder(None) if once and not lowering.group.elected else None
        return [Piece((0,), lowering.both(_meaningful(masks[0]) if masks else None, condition))]
    layout = lowering.layout(pointer)
    positions = {number: position for position, number in enumerate(lowering.numbers(pointer))}
    owner = lowering.first_holder(layout) if once else None
    result = []
    for group in _groups(lowering, operation, pointer, layout, positions, widest):
        chosen = tuple(positions[number] for number in group)
        condition = lowering.both(_meaningful(masks[chosen[0]]) if masks else None, owner)
        condition = lowering.both(condition, lowering.inside(layout, pointer.type.shape, group[0]))
        result.append(Piece(chosen, condition))
    return result


def _groups(
    lowering: KernelLowering,
    operation: Operation,
    pointer: Value,
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


_CONSTRAINTS = {"i8": "h", "i16": "h", "i32": "r", "i64": "l"}


def assembly_word(lowering: KernelLowering, word: LLVMValue) -> LLVMValue:
    """A word as an operand of inline assembly, which knows no 8-bit registers."""
    return lowering.builder.cast("zext", word, "i16") if word.type == "i8" else word


def vector_suffix(words: int, word_type: str) -> str:
    """``.v4.b32``"""
    return (f".v{words}" if words > 1 else "") + f".b{word_type[1:]}"


def operand_list(first: int, count: int) -> str:
    listed = ", ".join(f"${first + number}" for number in range(count))
    return f"{{{listed}}}" if count > 1 else listed


# Loads -------------------------------------------------------------------------------------------


def modifiers(lowering: KernelLowering, operation: Operation) -> str:
    """What stands between ``ld.global`` or ``st.global`` and the type."""
    cache, eviction = str(operation.attributes["cache"]), str(operation.attributes["eviction"])
    if eviction not in _EVICTION:
        return f".{cache}" if cache else ""
    if cache:
        lowering.note(operation, f"cache modifier '{cache}' leaves no room for an eviction policy, which is ignored")
        return f".{cache}"
    return f".L1::{eviction}.L2::cache_hint"


def with_policy(operation: Operation, note: str, instruction: str) -> str:
    """An access without its final semicolon; when its modifiers speak of the L2 cache, the policy for it is made in
    front (a constant in the end) and given as the last operand."""
    if not note.endswith("cache_hint"):
        return f"{instruction};"
    made = f"createpolicy.fractional.L2::{operation.attributes['eviction']}.b64 policy, 1.0"
    return f"{{ .reg .b64 policy; {made}; {instruction}, policy; }}"


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


def repeated(lowering: KernelLowering, value: Value, registers: dict[int, LLVMValue]) -> list[LLVMValue]:
    """All registers of a block, those that repeat another's element included."""
    if value.type.is_scalar:
        return [registers[0]]
    layout, numbers = lowering.layout(value), lowering.numbers(value)
    held = {layout.element(register=numbers[position]): register for position, register in registers.items()}
    return [held[layout.element(register=number)] for number in numbers]


def as_memory(lowering: KernelLowering, register: LLVMValue, value: Value) -> LLVMValue:
    """A register as memory has it: truth values are bytes."""
    wanted = memory_type(value.type.element)
    return lowering.builder.cast("zext", register, wanted) if register.type == "i1" else register


def from_memory(lowering: KernelLowering, register: LLVMValue, value: Value) -> LLVMValue:
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
    builder = lowering.builder
    type_text, width = fill[0].type, int(to_bits(lowering, fill[0]).type[1:])
    note = ".volatile" if operation.attributes["volatile"] else modifiers(lowering, operation)
    if condition is not None and not note and operation in lowering.deferred:
        note = ".nc"  # nobody writes it: the assembler may do it earlier
    total = width * len(fill)
    if condition is None and not note:
        unit = min(32, total) if width < 32 else width
        loaded = builder.load_each(f"i{unit}", total // unit, pointer, total // 8)
        return from_words(lowering, loaded, type_text, width)
    filled = to_words(lowering, fill)
    words, word_type = len(filled), filled[0].type
    if condition is None:
        filled = [LLVMValue(word.type, "undef") for word in filled]
    start = f"@${words + 1} " if condition is not None else ""
    space = f"ld{note}.global" if note == ".volatile" else f"ld.global{note}"
    text = f"{start}{space}{vector_suffix(words, word_type)} {operand_list(0, words)}, [${words}]"
    text = with_policy(operation, note, text)
    constraint = _CONSTRAINTS[word_type]
    constraints = ",".join([f"={constraint}"] * words + ["l"] + (["b"] if condition is not None else []))
    arguments = [pointer, *([condition] if condition is not None else [])]
    if condition is not None:
        constraints += "," + ",".join(map(str, range(words)))
        arguments += [assembly_word(lowering, word) for word in filled]
    results = assembly(lowering, text, constraints, arguments, [word_type] * words)
    return from_words(lowering, results, type_text, width)


def assembly(
    lowering: KernelLowering, text: str, constraints: str, arguments: Sequence[LLVMValue], results: Sequence[str]
) -> list[LLVMValue]:
    """Inline PTX that touches memory; results of 8 bits come in 16-bit registers."""
    builder = lowering.builder
    wide = ["i16" if type_text == "i8" else type_text for type_text in results]
    whole = "void" if not wide else wide[0] if len(wide) == 1 else "{" + ", ".join(wide) + "}"
    listed = ", ".join(map(str, arguments))
    clobbered = ",".join([*([constraints] if constraints else []), "~{memory}"])
    call = f'call {whole} asm sideeffect "{text}", "{clobbered}"({listed})'
    if not wide:
        builder.line(call)
        return []
    value = builder.emit(call, whole)
    parts = [value]
    if len(wide) > 1:
        parts = [builder.emit(f"extractvalue {whole} {value.text}, {n}", wide[n]) for n in range(len(wide))]
    return [
        builder.cast("trunc", part, type_text) if type_text != part.type else part
        for part, type_text in zip(parts, results, strict=True)
    ]


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
    builder = lowering.builder
    words = to_words(lowering, values)
    note = modifiers(lowering, operation)
    total = int(words[0].type[1:]) * len(words)
    if condition is None and not note:
        stored = words[0]
        if len(words) > 1:
            stored = builder.poison(f"<{len(words)} x {words[0].type}>")
            for lane, word in enumerate(words):
                stored = builder.insert(stored, word, lane)
        builder.store(stored, pointer, total // 8)
        return
    start = "@$1 " if condition is not None else ""
    first = 2 if condition is not None else 1
    text = f"{start}st.global{note}{vector_suffix(len(words), words[0].type)} [$0], {operand_list(first, len(words))}"
    text = with_policy(operation, note, text)
    constraints = ["l", *(["b"] if condition is not None else []), *[_CONSTRAINTS[words[0].type]] * len(words)]
    arguments = [pointer, *([condition] if condition is not None else [])]
    arguments += [assembly_word(lowering, word) for word in words]
    assembly(lowering, text, ",".join(constraints), arguments, [])


RULES: dict[str, Rule] = {"store": store}
