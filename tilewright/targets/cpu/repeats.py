"""Accesses whose lanes are mostly next to each other, or mostly one element, by numbers known at run time only.

    x + i // length             one factor for all elements of a channel
    x + i // n * stride + i % n rows one after the other
    x + i * stride              a broadcast array, whose stride is 0, or a reversed one

A quotient never falls (`affine.Drift`), and a stride is the same for all lanes.  So where the addresses of the first
lane and the last are equal, or as far apart as the lanes, one element or a vector is accessed; elsewhere the lanes are
gathered or scattered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from tilewright.ir.core import Operation, SSAValue
from tilewright.targets.cpu.affine import constant_of
from tilewright.targets.llvm.builder import Block, LLVMValue, vector_type
from tilewright.targets.llvm.conversions import memory_type

if TYPE_CHECKING:
    from tilewright.targets.cpu.evaluate import Evaluator
    from tilewright.targets.cpu.indices import Indices, LaneIndex


def usual_steps(evaluator: Evaluator, pointer: SSAValue, indices: Indices) -> tuple[int, ...]:
    """The steps, of 1, 0 and -1, that the lanes of a pointer block mostly have, or may have all at once."""
    place = next(place for place, index in enumerate(indices) if index.lanes > 1)
    steps = _possible_steps(evaluator, pointer, place, indices[place])
    if steps and not evaluator.is_innermost(evaluator.address(pointer, tuple(index.first for index in indices))):
        return ()  # one gather before a loop is as good
    return steps


def _possible_steps(evaluator: Evaluator, pointer: SSAValue, place: int, index: LaneIndex) -> tuple[int, ...]:
    """Those that the analysis leaves along an axis; none where nothing is known, as of indices that are loaded."""
    fact = evaluator.analysis.along(pointer, place)
    if fact.step is None and fact.uniform and fact.covers(index.lanes):
        is_rest = index.valid is not None or (index.phase is not None and index.phase.mask is not None)
        return () if is_rest else (0, -1, 1)  # one masked vector after a loop is not worth the code
    drift = evaluator.analysis.drift(pointer, place)
    if drift is None or len(drift.quotients) != 1 or drift.step not in (0, 1):
        return ()
    ((_, divisor),) = drift.quotients
    known = constant_of(divisor)
    return (drift.step,) if known is None or known >= 2 * index.lanes else ()


def load_mostly(
    evaluator: Evaluator,
    operation: Operation,
    indices: Indices,
    mask: LLVMValue | None,
    other: LLVMValue,
    steps: tuple[int, ...],
) -> LLVMValue:
    """The load, whose addresses are computed for all lanes only where they are not as usual."""
    builder, pointer, element = evaluator.builder, operation.operands[0], operation.result.type.element
    lanes = max(index.lanes for index in indices)
    memory, size = vector_type(memory_type(element), lanes), element.itemsize
    masks = [part for part in (mask, evaluator.existing(indices, lanes)) if part is not None]
    combined = evaluator.all_of(masks, lanes) if masks else builder.constant(vector_type("i1", lanes), True)
    passthrough = evaluator.to_memory(builder.splat(other, lanes), element)
    first, last = _ends(evaluator, pointer, indices)

    def together(step: int) -> LLVMValue:
        if step == 1:
            return builder.masked_load(memory, first, combined, passthrough, size)
        if step == -1:
            turned = builder.reversed(combined), builder.reversed(passthrough)
            return builder.reversed(builder.masked_load(memory, last, *turned, size))
        loaded = builder.splat(builder.load(memory_type(element), first, size), lanes)
        return builder.select(combined, loaded, passthrough)

    def apart() -> LLVMValue:
        return builder.gather(memory, evaluator.vector(pointer, indices, lanes), combined, passthrough, size)

    cases = []
    for step in steps:
        usual = _is_apart(evaluator, first, last, step * (lanes - 1) * size)
        if step == 0:  # the first lane's address is the one that is read
            usual = builder.binary("and", usual, builder.extract(combined, 0))
        cases.append((usual, partial(together, step)))
    with _branches(evaluator, indices, cases, apart) as (done, incoming):
        result = evaluator.from_memory(builder.phi(done, memory, incoming), element)
    evaluator.know(result)
    return result


def store_mostly(
    evaluator: Evaluator, pointer: SSAValue, indices: Indices, stored: LLVMValue, combined: LLVMValue, size: int
) -> None:
    """The store of lanes that are mostly next to each other."""
    builder = evaluator.builder
    first, last = _ends(evaluator, pointer, indices)
    usual = _is_apart(evaluator, first, last, (stored.lanes - 1) * size)

    def together() -> LLVMValue:
        builder.masked_store(stored, first, combined, size)
        return first

    def apart() -> LLVMValue:
        builder.scatter(stored, evaluator.vector(pointer, indices, stored.lanes), combined, size)
        return first

    with _branches(evaluator, indices, [(usual, together)], apart):
        pass


def _ends(evaluator: Evaluator, pointer: SSAValue, indices: Indices) -> tuple[LLVMValue, LLVMValue]:
    """The addresses of the first lane and the last."""
    lanes = max(index.lanes for index in indices)
    first, last = (evaluator.address(pointer, evaluator.at_lane(indices, lane)) for lane in (0, lanes - 1))
    return first, last


def _is_apart(evaluator: Evaluator, first: LLVMValue, last: LLVMValue, distance: int) -> LLVMValue:
    """Whether the last lane's address is so many bytes after the first one's."""
    builder = evaluator.builder
    return builder.compare("eq", builder.gep(first, distance, "i8") if distance else first, last)


@contextmanager
def _branches(
    evaluator: Evaluator,
    indices: Indices,
    cases: Sequence[tuple[LLVMValue, Callable[[], LLVMValue]]],
    otherwise: Callable[[], LLVMValue],
) -> Iterator[tuple[Block, list[tuple[LLVMValue, Block]]]]:
    """Code for the first case whose condition holds, or for none; then the block after them, with the value of each."""
    builder = evaluator.builder
    before, done, incoming = builder.block, builder.new_block("mostly.end"), []
    for condition, emit in cases:
        one, other = builder.new_block("mostly.together"), builder.new_block("mostly.apart")
        builder.branch_if(condition, one, other)
        builder.start(one)
        incoming.append((emit(), one))
        builder.branch(done)
        builder.start(other)
    moving = [index.base for index in indices if index.lanes > 1 and index.base.text.startswith("%")]
    with evaluator.scope(before, *moving):
        value = otherwise()
    incoming.append((value, builder.block))
    builder.branch(done)
    builder.start(done)
    yield done, incoming
