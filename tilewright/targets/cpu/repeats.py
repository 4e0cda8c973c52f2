"""Accesses whose lanes are mostly next to each other, or mostly one element, by numbers known at run time only.

    x + i // length             one factor for all elements of a channel
    x + i // n * stride + i % n rows one after the other
    x + i * stride              a broadcast array, whose stride is 0, or a reversed one

A quotient never falls (`affine.Drift`), and a stride is the same for all lanes.  So where the addresses of the first
lane and the last are equal, or as far apart as the lanes, one element or a vector is accessed; elsewhere the lanes are
gathered or scattered.

    x + where(i < 0, -i, i)            a mirrored border: elements are next to each other but for a few vectors

Of other addresses that no memory says (`is_computed`), those of all lanes that are accessed are compared, which takes
a small part of the time of a gather.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from tilewright.ir.core import Operation, SSAValue
from tilewright.ir.ops import ELEMENTWISE, REARRANGING
from tilewright.targets.cpu.affine import constant_of
from tilewright.targets.llvm.builder import Block, LLVMValue, vector_type
from tilewright.targets.llvm.conversions import memory_type

if TYPE_CHECKING:
    from tilewright.targets.cpu.evaluate import Evaluator
    from tilewright.targets.cpu.indices import Indices, LaneIndex


_COMPUTED = ELEMENTWISE | REARRANGING | {"arange", "constant"}


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
    lanes, memory, combined, passthrough = _masked(evaluator, operation, indices, mask, other)
    first, last = _ends(evaluator, pointer, indices)
    size = element.itemsize

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


def _masked(
    evaluator: Evaluator, operation: Operation, indices: Indices, mask: LLVMValue | None, other: LLVMValue
) -> tuple[int, str, LLVMValue, LLVMValue]:
    """Of a load of vectors: lanes, the type in memory, the lanes that are loaded, and what the others are there."""
    builder, element = evaluator.builder, operation.result.type.element
    lanes = max(index.lanes for index in indices)
    masks = [part for part in (mask, evaluator.existing(indices, lanes)) if part is not None]
    combined = evaluator.all_of(masks, lanes) if masks else builder.constant(vector_type("i1", lanes), True)
    passthrough = evaluator.to_memory(builder.splat(other, lanes), element)
    return lanes, vector_type(memory_type(element), lanes), combined, passthrough


def may_lie_together(evaluator: Evaluator, pointer: SSAValue, indices: Indices) -> bool:
    """Whether to compare the addresses of all lanes: where neither the analysis knows them nor memory says them."""
    place, lanes = next((place, index.lanes) for place, index in enumerate(indices) if index.lanes > 1)
    fact = evaluator.analysis.along(pointer, place)
    if fact.step is not None or fact.uniform or not is_computed(pointer):
        return False
    return evaluator.is_innermost(evaluator.vector(pointer, indices, lanes))


def is_computed(value: SSAValue) -> bool:
    """Whether a block is arithmetic with integers and positions alone: what floats place is mostly apart."""
    seen: set[SSAValue] = set()
    found = [value]
    while found:
        each = found.pop()
        if each in seen or each.type.rank == 0:
            continue
        seen.add(each)
        operation = each.definition
        if operation is None or operation.opcode not in _COMPUTED:
            return False
        if not each.type.is_pointer and each.type.dtype.is_float:
            return False
        found += operation.operands
    return True


def load_together(
    evaluator: Evaluator, operation: Operation, indices: Indices, mask: LLVMValue | None, other: LLVMValue
) -> LLVMValue:
    """The load: one vector if all active lanes are contiguous, else a gather."""
    builder, element = evaluator.builder, operation.result.type.element
    lanes, memory, combined, passthrough = _masked(evaluator, operation, indices, mask, other)
    pointers = evaluator.vector(operation.operands[0], indices, lanes)
    first, usual = _common_start(evaluator, pointers, combined, element.itemsize)

    def together() -> LLVMValue:
        return builder.masked_load(memory, first, combined, passthrough, element.itemsize)

    def apart() -> LLVMValue:
        return builder.gather(memory, pointers, combined, passthrough, element.itemsize)

    with _branches(evaluator, indices, [(usual, together)], apart) as (done, incoming):
        result = evaluator.from_memory(builder.phi(done, memory, incoming), element)
    evaluator.know(result)
    return result


def store_together(
    evaluator: Evaluator, pointer: SSAValue, indices: Indices, stored: LLVMValue, combined: LLVMValue, size: int
) -> None:
    """The store: one vector if all active lanes are contiguous, else a scatter."""
    builder = evaluator.builder
    pointers = evaluator.vector(pointer, indices, stored.lanes)
    first, usual = _common_start(evaluator, pointers, combined, size)

    def together() -> LLVMValue:
        builder.masked_store(stored, first, combined, size)
        return first

    def apart() -> LLVMValue:
        builder.scatter(stored, pointers, combined, size)
        return first

    with _branches(evaluator, indices, [(usual, together)], apart):
        pass


def _common_start(
    evaluator: Evaluator, pointers: LLVMValue, combined: LLVMValue, size: int
) -> tuple[LLVMValue, LLVMValue]:
    """Where a vector would begin that has the last lane in it, or else the first, and whether it has all others.

    Lanes at either end of a row may be masked, with any address; of a vector with gaps at its ends only few are.
    """
    builder, lanes = evaluator.builder, pointers.lanes
    starts = builder.gep(pointers, builder.multiply(builder.lane_numbers(lanes), -size), "i8")
    first, last = (builder.extract(starts, lane) for lane in (0, lanes - 1))
    start = builder.select(builder.extract(combined, lanes - 1), last, first)
    differs = builder.compare("ne", starts, builder.splat(start, lanes))
    wrong = builder.intrinsic("vector.reduce.or", [builder.binary("and", differs, combined)], "i1")
    return start, builder.binary("xor", wrong, builder.constant("i1", True))


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
