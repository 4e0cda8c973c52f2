"""Accesses whose lanes are mostly next to each other, or mostly one element, by numbers known at run time only.

    x + i // length             one factor for all elements of a channel
    x + i // n * stride + i % n rows one after the other

A quotient never falls (`affine.Drift`).  So where the addresses of the first lane and the last are equal, or as far
apart as the lanes, one element or a vector is accessed; elsewhere the lanes are gathered or scattered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tilewright.ir.core import Operation, SSAValue
from tilewright.targets.cpu.affine import constant_of
from tilewright.targets.llvm.builder import Block, LLVMValue, vector_type
from tilewright.targets.llvm.conversions import memory_type

if TYPE_CHECKING:
    from tilewright.targets.cpu.evaluate import Evaluator, Indices


def usual_step(evaluator: Evaluator, pointer: SSAValue, indices: Indices) -> int | None:
    """0 or 1 where the lanes of a pointer block are mostly one element, or next to each other; else None."""
    place = next(place for place, index in enumerate(indices) if index.lanes > 1)
    drift = evaluator.analysis.drift(pointer, place)
    if drift is None or len(drift.quotients) != 1 or drift.step not in (0, 1):
        return None
    ((_, divisor),) = drift.quotients
    known = constant_of(divisor)
    return drift.step if known is None or known >= 2 * indices[place].lanes else None


def load_mostly(
    evaluator: Evaluator, operation: Operation, indices: Indices, mask: LLVMValue | None, other: LLVMValue, step: int
) -> LLVMValue:
    """The load, whose addresses are computed for all lanes only where they are not as usual."""
    builder, pointer, element = evaluator.builder, operation.operands[0], operation.result.type.element
    lanes = max(index.lanes for index in indices)
    memory, size = vector_type(memory_type(element), lanes), element.itemsize
    masks = [part for part in (mask, evaluator.existing(indices, lanes)) if part is not None]
    combined = evaluator.all_of(masks, lanes) if masks else builder.constant(vector_type("i1", lanes), True)
    passthrough = evaluator.to_memory(builder.splat(other, lanes), element)
    first, usual = _first_lane(evaluator, pointer, indices, size, step)
    if step == 0:  # the first lane's address is the one that is read
        usual = builder.binary("and", usual, builder.extract(combined, 0))

    def together() -> LLVMValue:
        if step:
            return builder.masked_load(memory, first, combined, passthrough, size)
        loaded = builder.splat(builder.load(memory_type(element), first, size), lanes)
        return builder.select(combined, loaded, passthrough)

    def apart() -> LLVMValue:
        return builder.gather(memory, evaluator.vector(pointer, indices, lanes), combined, passthrough, size)

    with _branches(evaluator, indices, usual, together, apart) as (done, incoming):
        result = evaluator.from_memory(builder.phi(done, memory, incoming), element)
    evaluator.know(result)
    return result


def store_mostly(
    evaluator: Evaluator, pointer: SSAValue, indices: Indices, stored: LLVMValue, combined: LLVMValue, size: int
) -> None:
    """The store of lanes that are mostly next to each other."""
    builder = evaluator.builder
    first, usual = _first_lane(evaluator, pointer, indices, size, 1)

    def together() -> LLVMValue:
        builder.masked_store(stored, first, combined, size)
        return first

    def apart() -> LLVMValue:
        builder.scatter(stored, evaluator.vector(pointer, indices, stored.lanes), combined, size)
        return first

    with _branches(evaluator, indices, usual, together, apart):
        pass


def _first_lane(
    evaluator: Evaluator, pointer: SSAValue, indices: Indices, size: int, step: int
) -> tuple[LLVMValue, LLVMValue]:
    """The address of the first lane, and whether the last one's is where the step puts it."""
    builder, lanes = evaluator.builder, max(index.lanes for index in indices)
    first, last = (evaluator.address(pointer, evaluator.at_lane(indices, lane)) for lane in (0, lanes - 1))
    expected = builder.gep(first, step * (lanes - 1) * size, "i8") if step else first
    return first, builder.compare("eq", expected, last)


@contextmanager
def _branches(
    evaluator: Evaluator,
    indices: Indices,
    usual: LLVMValue,
    together: Callable[[], LLVMValue],
    apart: Callable[[], LLVMValue],
) -> Iterator[tuple[Block, list[tuple[LLVMValue, Block]]]]:
    """Code for both cases; then the block after them, with the value of each."""
    builder = evaluator.builder
    before = builder.block
    one, many, done = (builder.new_block(f"mostly.{name}") for name in ("together", "apart", "end"))
    builder.branch_if(usual, one, many)
    builder.start(one)
    incoming = [(together(), one)]
    builder.branch(done)
    builder.start(many)
    moving = [index.base for index in indices if index.lanes > 1 and index.base.text.startswith("%")]
    with evaluator.scope(before, *moving):
        value = apart()
    incoming.append((value, builder.block))
    builder.branch(done)
    builder.start(done)
    yield done, incoming
