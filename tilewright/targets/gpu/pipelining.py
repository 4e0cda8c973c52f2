"""Pipelined loops: loads that feed products, as they are or computed with, are copied to shared memory ahead of time.

    for k:  a = load pa; b = load pb                  copies of the first stages - 1 iterations
            acc = dot(convert a, convert b, acc)  ->  for k:  wait until this iteration's copies are there; barrier
            pa += …; pb += …                                  copies of iteration k + stages - 1
                                                              acc = dot(tile a of this stage, tile b, acc)

What the addresses and masks depend on (the *slice*) is computed for the iteration ahead as well: its index and the
values that the loop carries for it run through the loop a second time, in advance.  Tiles are swizzled, so that copies
and reads are free of conflicts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tilewright.ir.core import Operation, Region, SSAValue
from tilewright.ir.ops import OPS, effects_of
from tilewright.ir.rewrite import constant_of
from tilewright.layout import LinearLayout, SharedExchange, SharedLayout, swizzled, unswizzled, widest_access
from tilewright.targets.gpu.accesses import access_facts, access_operands, item_size
from tilewright.targets.gpu.layouts import CONVERSION_ATTRIBUTE, SCALAR_REGIONS, Assignment, is_copied
from tilewright.targets.gpu.memory_order import PointerRoots, movable_loads
from tilewright.targets.gpu.tiles import is_tile, tile_axis
from tilewright.targets.gpu.transfer import conversion_plan, element_bits, is_padded

_LEAST_BYTES = 4  # of one copy
_LEAST_BYTES_SHARED = 8  # of a block that several read, which a load brings to registers once
_ROW_BYTES, _CHUNK_BYTES = 128, 16
_STAGE_ALIGNMENT = 1024
_REGISTERS_WITHOUT_SUMS = 56  # that a thread takes besides its accumulators, about


@dataclass(frozen=True)
class Reader:
    """One who reads a loaded block: the conversion for a product, or the load itself, for those who compute with it.

    `steps` are the operations from the load to `operation`, which only rename elements; `view` is the tile as the
    result of the last of them sees it.
    """

    steps: tuple[Operation, ...]
    operation: Operation
    view: SharedLayout
    direct: bool  # products read the tile itself


@dataclass(frozen=True)
class Stream:
    """A load that runs ahead; `tile` is how the loaded block lies in shared memory."""

    load: Operation
    readers: tuple[Reader, ...]
    tile: SharedLayout
    offset: int  # bytes from the start of a stage
    size: int  # bytes

    @property
    def direct(self) -> bool:
        """Whether products read the tile itself."""
        return any(reader.direct for reader in self.readers)

    @property
    def computed(self) -> bool:
        """Whether the block is read into registers to compute with it."""
        return any(reader.operation is self.load for reader in self.readers)

    @property
    def conversions(self) -> tuple[Operation, ...]:
        """The conversions that read the tile."""
        return tuple(reader.operation for reader in self.readers if reader.operation is not self.load)


@dataclass(frozen=True)
class Pipeline:
    """The streams of one loop, with the operations and the carried values (by position) that addresses need.

    `flying` are the positions of accumulators whose products may be under way when an iteration ends.
    """

    streams: tuple[Stream, ...]
    slice: tuple[Operation, ...]
    carried: tuple[int, ...]
    stages: int
    flying: tuple[int, ...] = ()

    @property
    def stage_bytes(self) -> int:
        return sum(stream.size for stream in self.streams)

    @property
    def size(self) -> int:
        return self.stages * self.stage_bytes

    @property
    def late(self) -> bool:
        """Whether copies start after the products, into the stage of the iteration before.

        Products that go on while an iteration ends leave their own stage free one iteration later.
        """
        return bool(self.flying) and self.stages > 2


def aligned(size: int) -> int:
    """Bytes rounded up to where a tile may begin."""
    return -(-size // _STAGE_ALIGNMENT) * _STAGE_ALIGNMENT


def plan_pipelines(assignment: Assignment, stages: int, limit: int) -> dict[Operation, Pipeline]:
    """Pipelines of `stages` stages for the loops of a kernel; fewer where they take more than `limit` bytes."""
    if not assignment.target.asynchronous_copies:
        return {}
    users: dict[SSAValue, list[Operation]] = {}
    for operation in assignment.function.walk():
        for value in operation.operands:
            users.setdefault(value, []).append(operation)
    plans: dict[Operation, Pipeline] = {}
    roots = PointerRoots(assignment.function)
    for operation in assignment.function.walk():
        if operation.opcode != "for":
            continue
        given = operation.attributes["num_stages"]
        wanted = given if isinstance(given, int) and given else stages
        movable = movable_loads(operation, roots)
        plan = _plan(assignment, operation, users, movable, wanted, limit - _STAGE_ALIGNMENT)
        if plan is not None:
            plans[operation] = plan
    # Loops share their memory, so that none may run inside another: the inner ones have it.
    outer = {loop for loop in plans for inner in loop.walk() if inner is not loop and inner in plans}
    return {loop: plan for loop, plan in plans.items() if loop not in outer}


def _plan(
    assignment: Assignment,
    loop: Operation,
    users: Mapping[SSAValue, Sequence[Operation]],
    movable: Collection[Operation],
    stages: int,
    limit: int,
) -> Pipeline | None:
    kind = loop.operands[0].type.dtype
    if kind.bits < 32 or not kind.is_signed or not movable:
        return None
    found = _streams(assignment, loop.regions[0], users, movable, computed=True)
    plan = _staged(assignment, loop.regions[0], users, found, stages, limit)
    if any(stream.computed for stream in found) and (plan is None or plan.stages < stages):
        # Products go first: what is computed with may as well be loaded when it is needed.
        found = _streams(assignment, loop.regions[0], users, movable, computed=False)
        plan = _staged(assignment, loop.regions[0], users, found, stages, limit)
    return plan


def _streams(
    assignment: Assignment,
    body: Region,
    users: Mapping[SSAValue, Sequence[Operation]],
    movable: Collection[Operation],
    computed: bool,
) -> list[Stream]:
    """The loads of a body that run ahead; those of blocks that are computed with only if `computed`."""
    found: list[Stream] = []
    for operation in body.operations:
        if operation not in movable:
            continue
        stream = _stream(assignment, body, operation, users, sum(stream.size for stream in found))
        if stream is not None and (computed or not stream.computed) and _slice(body, [stream]) is not None:
            found.append(stream)
    return found


def _staged(
    assignment: Assignment,
    body: Region,
    users: Mapping[SSAValue, Sequence[Operation]],
    found: Sequence[Stream],
    stages: int,
    limit: int,
) -> Pipeline | None:
    """The plan for these streams, with as many stages as fit."""
    stage_bytes = sum(stream.size for stream in found)
    flying = _flying(assignment, body, users) if any(stream.direct for stream in found) else ()
    if flying and stages > 2:
        stages += _spare_stage(assignment, body, stages, stage_bytes, assignment.target.shared_bytes - limit)
    stages = min(stages, limit // max(1, stage_bytes))
    if not found or stages < 2:
        return None
    sliced = _slice(body, found)
    assert sliced is not None  # each stream's own slice was
    return Pipeline(tuple(found), sliced[0], sliced[1], stages, flying)


def _spare_stage(assignment: Assignment, body: Region, stages: int, stage_bytes: int, others: int) -> int:
    """1 if one more stage, for the products that are under way, leaves room for as many CTAs as registers do.

    `others`: bytes of shared memory that a CTA takes besides its stages.
    """
    layouts = [assignment.layouts[operation.result] for operation in body.operations if operation.opcode == "dot"]
    threads = layouts[0].size("lane") * layouts[0].size("warp")
    needed = _REGISTERS_WITHOUT_SUMS + sum(layout.size("register") for layout in layouts)
    by_registers = max(1, assignment.target.registers_per_multiprocessor // (needed * threads))
    whole = assignment.target.shared_bytes_per_multiprocessor
    resident = [whole // (count * stage_bytes + others) for count in (stages, stages + 1)]
    return int(resident[1] >= min(by_registers, resident[0]))


def _flying(assignment: Assignment, body: Region, users: Mapping[SSAValue, Sequence[Operation]]) -> tuple[int, ...]:
    """Results of products from shared memory that are only carried to the next iteration."""
    found = []
    for position, value in enumerate(body.terminator.operands):
        product = value.definition
        if product is None or product.opcode != "dot" or product not in body.operations:
            continue
        tiles = all(is_tile(assignment.layouts[operand]) for operand in product.operands[:2])
        if tiles and len(users[value]) == 1 and value.type.dtype.bits == 32:
            found.append(position)
    return tuple(found)


def _stream(
    assignment: Assignment,
    body: Region,
    load: Operation,
    users: Mapping[SSAValue, Sequence[Operation]],
    offset: int,
) -> Stream | None:
    """A load as a stream, if its block goes to products, by conversions through shared memory or computed with."""
    if load.opcode != "load" or not load.result.type.rank or load.attributes["volatile"]:
        return None
    if len(load.operands) == 3 and constant_of(load.operands[2]) != 0:
        return None
    if not is_padded(load.result.type.shape):
        return None
    # Whatever may be copied at once: a small tile among many threads leaves each of them one element.
    size, pointers = item_size(load), assignment.layouts[load.operands[0]]
    width = widest_access(pointers, access_facts(load, assignment.facts), size).width * size
    ways = [_way(body, user, users) for user in users.get(load.result, ())]
    if width < (_LEAST_BYTES if len(ways) == 1 and ways[0] is not None else _LEAST_BYTES_SHARED):
        return None
    conversions = [way for way in ways if way is not None and _reads_shared_memory(assignment, way[-1])]
    if len(conversions) < len(ways) and not _reaches_product(body, load.result, users):
        return None
    direct = [_direct_tile(assignment, load, way) for way in conversions if _is_direct(assignment, way[-1])]
    tile = direct[0] if direct else _tile(assignment, load)
    if tile is None or any(other is None or other.linear != tile.linear for other in direct):
        return None
    readers = [
        Reader(tuple(way[:-1]), way[-1], _seen(tile, way[:-1]), _is_direct(assignment, way[-1])) for way in conversions
    ]
    if len(conversions) < len(ways):
        readers.append(Reader((), load, tile, False))
    return Stream(load, tuple(readers), tile, offset, aligned(prod(load.result.type.shape) * size)) if readers else None


def _way(body: Region, user: Operation, users: Mapping[SSAValue, Sequence[Operation]]) -> list[Operation] | None:
    """The operations from a load to a conversion that only products of the body read; None where another use is met."""
    way = [user]
    while user.opcode == "permute" and CONVERSION_ATTRIBUTE not in user.attributes:
        following = users.get(user.result, ())
        if len(following) != 1:
            return None
        (user,) = following
        way.append(user)
    if CONVERSION_ATTRIBUTE not in user.attributes:
        return None
    readers = users.get(user.result, ())
    if not readers or any(reader.opcode != "dot" or reader not in body.operations for reader in readers):
        return None
    return way


def _reads_shared_memory(assignment: Assignment, conversion: Operation) -> bool:
    """Whether a conversion would go through shared memory in any case."""
    source, target = (assignment.layouts[value] for value in (conversion.operands[0], conversion.result))
    if is_tile(target) or is_copied(conversion):
        return True
    return isinstance(conversion_plan(source, target, element_bits(conversion.result)), SharedExchange)


def _is_direct(assignment: Assignment, conversion: Operation) -> bool:
    return is_tile(assignment.layouts[conversion.result])


def _reaches_product(body: Region, value: SSAValue, users: Mapping[SSAValue, Sequence[Operation]]) -> bool:
    """Whether a product of the same iteration takes what is computed elementwise from a value."""
    stack, seen = [value], {value}
    while stack:
        for user in users.get(stack.pop(), ()):
            if user not in body.operations:
                continue
            if user.opcode == "dot":
                return True
            if (OPS[user.opcode].elementwise or user.opcode == "permute") and user.result not in seen:
                seen.add(user.result)
                stack.append(user.result)
    return False


def _seen(tile: SharedLayout, steps: Sequence[Operation]) -> SharedLayout:
    """A tile as what is renamed sees it."""
    seen = tile.linear
    for step in steps:
        seen = _named(seen.permute(_order(step)))
    return SharedLayout(seen, alignment=tile.alignment)


def _order(step: Operation) -> list[int]:
    order = step.attributes["order"]
    assert isinstance(order, tuple)
    return [axis for axis in order if isinstance(axis, int)]


def _named(layout: LinearLayout) -> LinearLayout:
    return LinearLayout(layout.inputs, tuple((f"dim{axis}", extent) for axis, extent in enumerate(layout.shape)))


def _direct_tile(assignment: Assignment, load: Operation, way: Sequence[Operation]) -> SharedLayout | None:
    """How a load fills a tile that products read; None when accesses along the tile's rows are too narrow to copy."""
    target = assignment.layouts[way[-1].result]
    for order in reversed([_order(step) for step in way[:-1]]):
        target = _named(target.permute([order.index(axis) for axis in range(len(order))]))
    size = item_size(load)
    if access_facts(load, assignment.facts).run(tile_axis(target), size) * size < _LEAST_BYTES:
        return None
    return SharedLayout(target, alignment=_STAGE_ALIGNMENT)


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
    stack: list[SSAValue] = []
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


def all_copied(assignment: Assignment, plans: Mapping[Operation, Pipeline]) -> bool:
    """Whether loops copy all operands ahead of which the layouts say so."""
    streamed = {conversion for stream in streams_of(plans) for conversion in stream.conversions}
    return all(operation in streamed for operation in assignment.function.walk() if is_copied(operation))


def tile_sizes(assignment: Assignment, plans: Mapping[Operation, Pipeline]) -> dict[Operation, int]:
    """Bytes of the tiles that products read and no loop copies ahead, by their conversion."""
    streamed = {conversion for stream in streams_of(plans) for conversion in stream.conversions}
    sizes = {}
    for operation in assignment.function.walk():
        if CONVERSION_ATTRIBUTE in operation.attributes and operation not in streamed:
            kind = operation.result.type
            if is_tile(assignment.layouts[operation.result]):
                sizes[operation] = aligned(kind.size * kind.dtype.itemsize)
    return sizes
