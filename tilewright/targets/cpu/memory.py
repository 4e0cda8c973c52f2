"""Stores of blocks to the user's memory."""

from __future__ import annotations

from tilewright.ir.core import Operation
from tilewright.ir.types import Element
from tilewright.targets.cpu.evaluate import Evaluator
from tilewright.targets.cpu.indices import Indices
from tilewright.targets.cpu.repeats import may_lie_together, store_mostly, store_together, usual_steps
from tilewright.targets.cpu.streams import fetch_ahead
from tilewright.targets.llvm.builder import LLVMBuilder, LLVMValue, vector_type
from tilewright.targets.llvm.conversions import memory_type

_NARROWEST_REGISTER, _WIDEST_REGISTER = 128, 512  # bits


def emit_store(evaluator: Evaluator, operation: Operation, indices: Indices, known: LLVMValue | None = None) -> None:
    """Store the elements of a `store` at `indices`: contiguous (also in reverse), single, or scattered.

    `known` is their value when the caller has computed it.
    """
    pointer, value = operation.operands[:2]
    mask = evaluator.evaluate(operation.operands[2], indices) if len(operation.operands) > 2 else None
    if mask is not None and mask.text == "false":
        return
    if mask is not None and mask.text == "true":
        mask = None
    place = next((position for position, index in enumerate(indices) if index.lanes > 1), None)
    lanes = 1 if place is None else indices[place].lanes
    element = value.type.element
    stored = evaluator.to_memory(known or evaluator.vector(value, indices, lanes), element)
    masks = [part for part in (mask, evaluator.existing(indices, lanes)) if part is not None]
    if place is None:
        evaluator.note_access(operation, "single", indices, mask)
        _store_single(evaluator, evaluator.address(pointer, indices), stored, mask, element)
        return
    fact = evaluator.analysis.along(pointer, place)
    builder = evaluator.builder
    combined = evaluator.all_of(masks, lanes) if masks else None
    if fact.step in (1, -1) and fact.covers(lanes):
        evaluator.note_access(operation, "contiguous" if fact.step == 1 else "reversed", indices, mask)
        address = evaluator.address(pointer, tuple(index.first for index in indices))
        if fact.step == 1 and (distance := evaluator.next_row(operation)) is not None:
            fetch_ahead(builder, address, lanes * element.itemsize, distance, write=True)
        if fact.step == -1:
            address = builder.gep(address, 1 - lanes, memory_type(element))
            stored = builder.reversed(stored)
            combined = None if combined is None else builder.reversed(combined)
        if combined is None and evaluator.streams and operation.attributes["cache"] == "cs":
            register = 4 * evaluator.elementwise.register_lanes
            _stream(builder, stored, address, min(lanes * element.itemsize, register), element.itemsize)
        elif combined is None:
            builder.store(stored, address, element.itemsize)
        else:
            builder.masked_store(apart(builder, stored), address, combined, element.itemsize)
        return
    evaluator.note_access(operation, "scatter", indices, mask)
    chosen = combined or builder.constant(vector_type("i1", lanes), True)
    if 1 in usual_steps(evaluator, pointer, indices):
        store_mostly(evaluator, pointer, indices, apart(builder, stored), chosen, element.itemsize)
        return
    if may_lie_together(evaluator, pointer, indices):
        store_together(evaluator, pointer, indices, apart(builder, stored), chosen, element.itemsize)
        return
    pointers = evaluator.vector(pointer, indices, lanes)
    builder.scatter(stored, pointers, chosen, element.itemsize)


def apart(builder: LLVMBuilder, stored: LLVMValue) -> LLVMValue:
    """The value as LLVM cannot look through it, where its AVX-512 code would go wrong (seen with LLVM 22): a truncation
    and a masked store become one instruction, and if only one lane's mask turns out to be true, a plain store of the
    wide element, over its neighbours."""
    element = stored.element
    if element not in ("i8", "i16", "i32") or "avx512f" not in builder.module.features:
        return stored
    whole = _WIDEST_REGISTER // int(element[1:])
    if stored.lanes > whole:
        half = stored.lanes // 2
        parts = [apart(builder, builder.shuffle(stored, None, range(at, at + half))) for at in (0, half)]
        return builder.shuffle(parts[0], parts[1], range(stored.lanes))
    least = _NARROWEST_REGISTER // int(element[1:])
    if stored.lanes < least:
        return builder.with_lanes(apart(builder, builder.with_lanes(stored, least)), stored.lanes)
    return builder.emit(f'call {stored.type} asm "", "=v,0"({stored})', stored.type)


def _stream(builder: LLVMBuilder, stored: LLVMValue, address: LLVMValue, size: int, align: int) -> None:
    """A store around the caches, which need not fetch the lines first; only where the address is a multiple of
    `size`, the bytes that one instruction stores, which the hardware asks for."""
    place = builder.cast("ptrtoint", address, "i64")
    aligned = builder.compare("eq", builder.binary("and", place, builder.integer(size - 1)), 0)
    around, through, after = (builder.new_block(hint) for hint in ("around", "through", "stored"))
    builder.branch_if(aligned, around, through)
    builder.start(around)
    builder.store(stored, address, size, f", !nontemporal {builder.module.metadata('!{i32 1}')}")
    builder.branch(after)
    builder.start(through)
    builder.store(stored, address, align)
    builder.branch(after)
    builder.start(after)


def _store_single(
    evaluator: Evaluator, address: LLVMValue, stored: LLVMValue, mask: LLVMValue | None, element: Element
) -> None:
    builder = evaluator.builder
    if mask is None:
        builder.store(stored, address, element.itemsize)
        return
    single = f"<1 x {memory_type(element)}>"
    value = builder.insert(builder.poison(single), stored, 0)
    builder.masked_store(value, address, builder.insert(builder.poison("<1 x i1>"), mask, 0), element.itemsize)
