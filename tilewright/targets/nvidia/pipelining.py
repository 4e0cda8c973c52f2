"""Loops whose products are fed by loads: tiles are copied to shared memory some iterations ahead (cp.async).

    for k:  a = load pa; b = load pb                  copies of the first stages - 1 iterations
            acc = dot(convert a, convert b, acc)  ->  for k:  wait until this iteration's copies are there; barrier
            pa += …; pb += …                                  copies of iteration k + stages - 1
                                                              acc = dot(tile a of this stage, tile b, acc)

What the addresses and masks depend on (the *slice*) is computed for the iteration ahead as well: its index and the
values that the loop carries for it run through the loop a second time, in advance.  Tiles are swizzled, so that copies
and reads are free of conflicts; operands of 16 bits are read by ldmatrix.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tilewright.ir.core import Operation, Region, Value
from tilewright.ir.ops import Effect, effects_of
from tilewright.ir.rewrite import constant_of
from tilewright.layout import LinearLayout, SharedExchange, SharedLayout, swizzled, unswizzled
from tilewright.targets.nvidia.layouts import (
    CONVERSION_ATTRIBUTE,
    SCALAR_REGIONS,
    Assignment,
    access_facts,
    access_operands,
    item_size,
)
from tilewright.targets.nvidia.transfer import conversion_plan, element_bits, is_padded

_LEAST_BYTES = 4  # that cp.async copies
_ROW_BYTES, _CHUNK_BYTES = 128, 16
_ALIGNMENT = 1024


@dataclass(frozen=True)
class Stream:
    """A load that runs ahead: `steps` are the operations from it to `conversion`, which only rename elements.

    `tile` is how the loaded block lies in shared memory, `view` the same as the conversion's operand sees it.
    """

    load: Operation
    steps: tuple[Operation, ...]
    conversion: Operation
    tile: SharedLayout
    view: SharedLayout
    offset: int  # bytes from the start of a stage
    size: int  # bytes


@dataclass(frozen=True)
class Pipeline:
    """The streams of one loop, with the operations and the carried values (by position) that addresses need."""

    streams: tuple[Stream, ...]
    slice: tuple[Operation, ...]
    carried: tuple[int, ...]
    stages: int

    @property
    def stage_bytes(self) -> int:
        return sum(stream.size for stream in self.streams)

    @property
    def size(self) -> int:
        return self.stages * self.stage_bytes


def aligned(size: int) -> int:
    """Bytes rounded up to where a tile may begin."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def plan_pipelines(assignment: Assignment, stages: int, limit: int) -> dict[Operation, Pipeline]:
    """Pipelines of `stages` stages for the loops of a kernel; fewer where they take more than `limit` bytes."""
    users: dict[Value, list[Operation]] = {}
    for operation in assignment.function.walk():
        for value in operation.operands:
            users.setdefault(value, []).append(operation)
    plans: dict[Operation, Pipeline] = {}
    for operation in assignment.function.walk():
        if operation.opcode != "for":
            continue
        given = operation.attributes["num_stages"]
        wanted = given if isinstance(given, int) and given else stages
        plan = _plan(assignment, operation, users, wanted, limit - _ALIGNMENT)
        if plan is not None:
            plans[operation] = plan
    return plans


def _plan(
    assignment: Assignment,
    loop: Operation,
    users: Mapping[Value, Sequence[Operation]],
    stages: int,
    limit: int,
) -> Pipeline | None:
    kind = loop.operands[0].type.dtype
    if kind.bits < 32 or not kind.is_signed or Effect.WRITE in effects_of(loop):
        return None
    (body,) = loop.regions
    found: list[Stream] = []
    for operation in body.operations:
        stream = _stream(assignment, body, operation, users, sum(stream.size for stream in found))
        if stream is not None and _slice(body, [stream]) is not None:
            found.append(stream)
    stages = min(stages, limit // max(1, sum(stream.size for stream in found)))
    if not found or stages < 2:
        return None
    sliced = _slice(body, found)
    assert sliced is not None  # each stream's own slice was
    return Pipeline(tuple(found), sliced[0], sliced[1], stages)


def _stream(
    assignment: Assignment,
    body: Region,
    load: Operation,
    users: Mapping[Value, Sequence[Operation]],
    offset: int,
) -> Stream | None:
    """A load as a stream, if all that happens to its block is a conversion through shared memory for a product."""
    if load.opcode != "load" or not load.result.type.rank or load.attributes["volatile"]:
        return None
    if len(load.operands) == 3 and constant_of(load.operands[2]) != 0:
        return None
    steps: list[Operation] = []
    (operation, *others) = users.get(load.result, ()) or (load, load)
    while not others and operation.opcode == "permute" and CONVERSION_ATTRIBUTE not in operation.attributes:
        steps.append(operation)
        (operation, *others) = users.get(operation.result, ()) or (load, load)
    if others or CONVERSION_ATTRIBUTE not in operation.attributes:
        return None
    readers = users.get(operation.result, ())
    if not readers or any(user.opcode != "dot" or user not in body.operations for user in readers):
        return None
    source, target = assignment.layouts[operation.operands[0]], assignment.layouts[operation.result]
    plan = conversion_plan(source, target, element_bits(operation.result))
    if not isinstance(plan, SharedExchange) or not is_padded(load.result.type.shape):
        return None
    tile = _tile(assignment, load)
    if tile is None:
        return None
    view = tile.linear
    for step in steps:
        order = step.attributes["order"]
        assert isinstance(order, tuple)
        view = view.permute([axis for axis in order if isinstance(axis, int)])
    named = tuple((f"dim{axis}", extent) for axis, extent in enumerate(view.shape))
    size = aligned(prod(load.result.type.shape) * item_size(load))
    seen = SharedLayout(LinearLayout(view.inputs, named), alignment=tile.alignment)
    return Stream(load, tuple(steps), operation, tile, seen, offset, size)


def _tile(assignment: Assignment, load: Operation) -> SharedLayout | None:
    """Rows along the axis of the access, their 16-byte chunks swizzled; None when accesses are too narrow to copy."""
    size, shape = item_size(load), load.result.type.shape
    facts = access_facts(load, assignment.facts)
    axis = max(range(len(shape)), key=lambda candidate: (facts.run(candidate, size), candidate))
    if facts.run(axis, size) * size < _LEAST_BYTES or len(shape) != 2:
        return None
    order = (axis, 1 - axis)
    row = shape[axis] * size
    if row < 2 * _CHUNK_BYTES:
        return unswizzled(shape, order)
    phases = min(_ROW_BYTES, row) // _CHUNK_BYTES
    return swizzled(shape, _CHUNK_BYTES // size, max(1, _ROW_BYTES // row), phases, order)


def _slice(body: Region, streams: Sequence[Stream]) -> tuple[tuple[Operation, ...], tuple[int, ...]] | None:
    """The operations of a body that addresses and masks depend on, in order, and positions of the carried values.

    None when one of them does more than compute, or lies deeper.
    """
    carried = body.arguments[1:]
    following = body.terminator.operands
    inside = {result: operation for operation in body.operations for result in operation.results}
    needed: dict[Operation, None] = {}
    positions: dict[int, None] = {}
    stack: list[Value] = []
    for stream in streams:
        pointer, mask = access_operands(stream.load)
        stack += [pointer, *([mask] if mask is not None else [])]
    while stack:
        value = stack.pop()
        operation = inside.get(value)
        if operation is not None and operation not in needed:
            if effects_of(operation) or (operation.regions and operation.opcode not in SCALAR_REGIONS):
                return None
            if operation.opcode in ("reduce", "scan", "gather", "dot") or CONVERSION_ATTRIBUTE in operation.attributes:
                return None  # would exchange between threads twice
            needed[operation] = None
            stack += operation.operands
        elif value in carried and carried.index(value) not in positions:
            position = carried.index(value)
            positions[position] = None
            stack.append(following[position])
    ordered = tuple(operation for operation in body.operations if operation in needed)
    return ordered, tuple(sorted(positions))


def streams_of(plans: Mapping[Operation, Pipeline]) -> Iterator[Stream]:
    for plan in plans.values():
        yield from plan.streams
