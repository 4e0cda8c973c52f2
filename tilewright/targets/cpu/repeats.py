"""Loads from addresses that rise or fall from lane to lane, and are often the same for all.

Such as one factor for all elements of a channel, whose length is known at run time only (`x + i // length`).  Where the
addresses of the first lane and the last are equal, one element is loaded for all; elsewhere the lanes are gathered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.ir.core import Operation, SSAValue
from tilewright.targets.llvm.builder import LLVMValue, vector_type
from tilewright.targets.llvm.conversions import memory_type

if TYPE_CHECKING:
    from tilewright.targets.cpu.evaluate import Evaluator, Indices


def is_often_repeated(evaluator: Evaluator, pointer: SSAValue, indices: Indices) -> bool:
    """Whether the lanes of a pointer block rise or fall, by what is divided."""
    place = next(place for place, index in enumerate(indices) if index.lanes > 1)
    if not evaluator.analysis.is_monotone(pointer, place):
        return False
    fact = evaluator.analysis.along(pointer, place)
    return fact.step is None and not fact.uniform  # equal steps that are not known are rarely 0


def repeated_or_gathered(
    evaluator: Evaluator, operation: Operation, indices: Indices, mask: LLVMValue | None, other: LLVMValue
) -> LLVMValue:
    """The load, whose addresses are computed for all lanes only where the first and the last differ."""
    builder, pointer, element = evaluator.builder, operation.operands[0], operation.result.type.element
    lanes = max(index.lanes for index in indices)
    memory = vector_type(memory_type(element), lanes)
    masks = [part for part in (mask, evaluator.existing(indices, lanes)) if part is not None]
    combined = evaluator.all_of(masks, lanes) if masks else builder.constant(vector_type("i1", lanes), True)
    passthrough = evaluator.to_memory(builder.splat(other, lanes), element)
    first, last = (evaluator.address(pointer, evaluator.at_lane(indices, lane)) for lane in (0, lanes - 1))
    # The first lane's address is the one that is read.
    alike = builder.binary("and", builder.compare("eq", first, last), builder.extract(combined, 0))
    before = builder.block
    one, many, done = (builder.new_block(f"repeat.{name}") for name in ("one", "many", "end"))
    builder.branch_if(alike, one, many)
    builder.start(one)
    loaded = builder.splat(builder.load(memory_type(element), first, element.itemsize), lanes)
    repeated = builder.select(combined, loaded, passthrough)
    builder.branch(done)
    builder.start(many)
    with evaluator.scope(before):
        pointers = evaluator.vector(pointer, indices, lanes)
        gathered = builder.gather(memory, pointers, combined, passthrough, element.itemsize)
    many_end = builder.block
    builder.branch(done)
    builder.start(done)
    result = evaluator.from_memory(builder.phi(done, memory, [(repeated, one), (gathered, many_end)]), element)
    evaluator.know(result)
    return result
