"""The effect of each explicit operation on an agent and on the machine.

A handler takes the agent, the operation and its operands' values and gives the results; those that wait are coroutines.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilewright.dtypes import DType
from tilewright.errors import ExecutionError
from tilewright.ir.asynchrony.agents import Agent, Wait
from tilewright.ir.asynchrony.global_tensor import GlobalTensor
from tilewright.ir.asynchrony.hazard_messages import conflict_error, not_written, unfenced, wrong_count
from tilewright.ir.asynchrony.memory import BufferAccess, SharedTile, conflicts, overwrite, poison, record
from tilewright.ir.asynchrony.synchronisation import Knowledge, Mbarrier, NamedBarrier
from tilewright.ir.core import Operation
from tilewright.ir.explicit import slice_unit
from tilewright.ir.types import PendingType, SharedType

_COPIED_UNIT = 16  # bytes
Array = np.ndarray
Handler = Callable[[Agent, Operation, list[Any]], Any]
Waiting = Generator[Wait, None, list[Any]]


@dataclass(eq=False)
class TileStore:
    """A copy from a tile to global memory."""

    tile: SharedTile
    access: BufferAccess
    operation: Operation
    agent: Agent
    read: Any = None  # events
    write: Any = None
    data: Array | None = None
    read_known: bool = False


@dataclass(eq=False)
class ProductGroup:
    """One wgmma in flight: the accesses of its operands, and the event that computes it."""

    bits: int
    event: Any = None


@dataclass(eq=False)
class Pending:
    """An accumulator in flight."""

    group: ProductGroup | None = None
    before: Any = None  # the block or accumulator that it goes on from
    array: Array | None = None
    handed_on: str = ""  # who took it over


def use(
    agent: Agent, operation: Operation, tile: SharedTile, writes: bool, asynchronous: bool, known: Knowledge
) -> BufferAccess:
    """Note an access to a tile; raises `ExecutionError` when an earlier one that it conflicts with is not over."""
    for _, old in conflicts(tile, writes):
        if not old.is_over(known.done, asynchronous):
            raise conflict_error(agent, operation, tile, writes, known, old)
        if asynchronous and old.writes and not old.asynchronous and not old.bit & known.fenced:
            raise unfenced(operation, tile, old)
    access: BufferAccess = agent.machine.access(agent, operation, tile.box, writes, asynchronous)
    record(tile, access, known.done)
    return access


def _read(agent: Agent, operation: Operation, tile: SharedTile, asynchronous: bool) -> BufferAccess:
    """An access of all threads that reads."""
    access = use(agent, operation, tile, False, asynchronous, agent.known)
    if not tile.view(tile.buffer.written).all():
        raise not_written(agent, tile)
    return access


def _many_threads(agent: Agent) -> None:
    if agent.elected:
        raise ExecutionError(
            "an elected role is one thread, and this takes all threads of a group", "drop elected=True of the role"
        )


# Shared memory


def shared_alloc(agent: Agent, operation: Operation, operands: list[Any]) -> list[Any]:
    return [agent.machine.tile(agent.machine.buffer(agent.cta, operation))]


def shared_index(agent: Agent, operation: Operation, operands: list[Any]) -> list[Any]:
    return [operands[0].indexed(int(operands[1]))]


def shared_slice(agent: Agent, operation: Operation, operands: list[Any]) -> list[Any]:
    axis, extent = operation.attributes["axis"], operation.attributes["extent"]
    kind = operation.operands[0].type.handle
    assert isinstance(axis, int) and isinstance(extent, int) and isinstance(kind, SharedType)
    return [operands[0].sliced(axis, int(operands[1]), extent, slice_unit(kind, axis))]


def shared_transpose(agent: Agent, operation: Operation, operands: list[Any]) -> list[Any]:
    tile = operands[0]
    return [replace(tile, transposed=not tile.transposed)]


def _in_cta(agent: Agent, tile: SharedTile, cta: Any) -> SharedTile:
    """The same tile in another CTA."""
    operation = next(key for key, buffer in tile.buffer.cta.buffers.items() if buffer is tile.buffer)
    buffer = agent.machine.buffer(cta, operation)
    return SharedTile(buffer, tile.box, tile.dropped, tile.transposed, cta is not agent.cta)


def shared_remote(agent: Agent, operation: Operation, operands: list[Any]) -> list[Any]:
    cta = agent.machine.peer(int(operands[1]), f"{operands[0].name} of another CTA")
    return [_in_cta(agent, operands[0], cta)]


def _visit(agent: Agent, operation: Operation, cta: Any, bit: int, begun: int = 0) -> None:
    """Note what is done in the memory of another CTA, which must not end before; of a load the bit of its beginning."""
    if cta is not agent.cta:
        cta.visits.append((bit, begun, agent, operation))


def shared_load(agent: Agent, operation: Operation, operands: list[Any]) -> list[Any]:
    (tile,) = operands
    agent.machine.peer(tile.buffer.cta.rank, f"load of {tile.name}")
    access = _read(agent, operation, tile, asynchronous=False)
    agent.begin_load(access, remote=_from_others(operation))
    _visit(agent, operation, tile.buffer.cta, access.bit, access.begun)
    return [np.array(tile.view(tile.buffer.data))]


def _from_others(load: Operation) -> bool:
    kind = load.operands[0].type.handle
    assert isinstance(kind, SharedType)
    return kind.remote


def shared_wait(agent: Agent, operation: Operation, operands: list[Any]) -> list[Any]:
    remote = operation.attributes["remote"]
    agent.end_loads([access for access in agent.loading[-1] if _from_others(access.operation) == remote])
    return []


def shared_store(agent: Agent, operation: Operation, operands: list[Any]) -> list[Any]:
    tile, value = operands
    access = use(agent, operation, tile, True, False, agent.known)
    agent.keep(access.bit)
    overwrite(tile)
    tile.view(tile.buffer.data)[...] = value
    tile.view(tile.buffer.written)[...] = True
    return []


# Barriers


def barrier_alloc(agent: Agent, operation: Operation, operands: list[Any]) -> list[Any]:
    return [agent.machine.mbarriers(agent.cta, operation)]


def barrier_index(agent: Agent, operation: Operation, operands: list[Any]) -> list[Any]:
    barriers, index = operands[0], int(operands[1])
    if not 0 <= index < len(barriers):
        name = barriers[0].name.removesuffix("[0]")
        raise ExecutionError(f"index {index} is outside the {len(barriers)} barriers of {name}", "they count from 0")
    return [barriers[index]]


def _barrier_in(agent: Agent, barrier: Mbarrier, cta: Any) -> Mbarrier:
    """The same barrier in another CTA."""
    for operation, listed in barrier.cta.barriers.items():
        if barrier in listed:
            found: Mbarrier = agent.machine.mbarriers(cta, operation)[listed.index(barrier)]
            return found
    raise AssertionError("a barrier belongs to an allocation")


def barrier_arrive(agent: Agent, operation: Operation, operands: list[Any]) -> list[Any]:
    barrier = operands[0]
    if len(operands) > 1:
        barrier = _barrier_in(agent, barrier, agent.machine.peer(int(operands[1]), f"arrival at {barrier.name}"))
        bit = agent.machine.new_bit()
        agent.keep(bit)
        _visit(agent, operation, barrier.cta, bit)
    agent.overtake(operation)
    try:
        barrier.arrive(1 if agent.elected else agent.warps, agent.arriving(agent.of_all))
    except ExecutionError as error:
        raise wrong_count(agent, error) from None
    return []


def barrier_expect(agent: Agent, operation: Operation, operands: list[Any]) -> list[Any]:
    agent.overtake(operation)
    try:
        operands[0].expect(operation.attributes["bytes"], agent.arriving(agent.of_leader))
    except ExecutionError as error:
        raise wrong_count(agent, error) from None
    return []


def barrier_wait(agent: Agent, operation: Operation, operands: list[Any]) -> Waiting:
    barrier, parity = operands[0], int(operands[1])
    if parity not in (0, 1):
        raise ExecutionError(f"the parity of a phase is 0 or 1, not {parity}", "keep it with ring_position, or & 1")
    last = agent.known.phases.get(barrier, -1)
    target = last if last & 1 == parity else last + 1
    _check_phase(barrier, target, parity)
    yield Wait(lambda: barrier.phase > target, lambda: _waits(barrier, target, parity), operation)
    _check_phase(barrier, target, parity)
    if target == agent.phases.get(barrier):
        agent.again = f"a wait for parity {parity} of {barrier.name} passed on a phase that it had seen before"
        agent.last_wait = ("again", agent.again)
    elif target < 0:
        text = f"the last wait, for parity 1 of {barrier.name}, passed at once because no phase had ended yet"
        agent.last_wait = ("fresh", text)
    else:
        agent.last_wait = ("", "")
    agent.phases[barrier] = target
    agent.known.join(barrier.visible)
    agent.known.saw(barrier, target)
    bit = agent.machine.new_bit()
    agent.keep(bit)
    barrier.waits.setdefault(target, []).append((bit, agent.name))
    return []


def _check_phase(barrier: Mbarrier, target: int, parity: int) -> None:
    if barrier.phase > target + 1:
        raise ExecutionError(
            f"wrong phase: the wait for parity {parity} of {barrier.name} means phase {target}, which is over: "
            f"{barrier.phase} phases have ended",
            "a phase must not end before all have seen the one before: count arrivals, take the parity from the ring",
        )


def _waits(barrier: Mbarrier, target: int, parity: int) -> str:
    text = f"phase {max(target, 0)} (parity {parity}) of {barrier.name}: {barrier.state()}"
    if barrier.phase == target:
        return text
    return f"{text}; with parity {1 - parity} it would go on: a wrong phase"


def fence_async(agent: Agent, operation: Operation, operands: list[Any]) -> list[Any]:
    agent.known.fenced |= agent.of_all.done
    return []


def group_sync(agent: Agent, operation: Operation, operands: list[Any]) -> list[Any]:
    _many_threads(agent)
    agent.in_step()
    return []


def _named(agent: Agent, operation: Operation, number: int) -> NamedBarrier:
    _many_threads(agent)
    if not 0 <= number <= 15:
        raise ExecutionError(f"hardware barriers are numbered 1 to 15, not {number}")
    barrier: NamedBarrier = agent.cta.named.setdefault(number, NamedBarrier(f"barrier number {number}"))
    threads = operation.attributes["threads"]
    assert isinstance(threads, int)
    if threads % agent.machine.warp_threads:
        advice = f"count {agent.machine.warp_threads} threads for each warp"
        raise ExecutionError(f"{barrier.name} is for {threads} threads, which are no whole warps", advice)
    agent.overtake(operation)
    barrier.arrive(agent, agent.threads, threads, agent.of_all)
    return barrier


def named_sync(agent: Agent, operation: Operation, operands: list[Any]) -> Waiting:
    number = int(operands[0])
    barrier = agent.cta.named.get(number)
    generation = barrier.generation if barrier else 0
    barrier = _named(agent, operation, number)

    def text() -> str:
        return f"{barrier.name}: {barrier.arrived} of {barrier.threads} threads are there"

    yield Wait(lambda: barrier.generation > generation, text, operation)
    agent.known.join(barrier.passed[generation])
    agent.in_step()
    return []


def named_arrive(agent: Agent, operation: Operation, operands: list[Any]) -> list[Any]:
    _named(agent, operation, int(operands[0]))
    return []


# Copies by threads


def shared_tile(agent: Agent, operation: Operation, operands: list[Any]) -> list[Any]:
    kind = operation.results[0].type.handle
    assert isinstance(kind, SharedType)
    return [operands[0].typed(operation.attributes["offset"], kind)]


def copy_async(agent: Agent, operation: Operation, operands: list[Any]) -> list[Any]:
    pointer, tile, condition, *masks = operands
    _many_threads(agent)
    inside = np.logical_and(condition, masks[0]) if masks else np.broadcast_to(condition, pointer.shape)
    access = use(agent, operation, tile, True, False, agent.known)  # in order with the threads' ordinary accesses
    access.asynchronous = True  # but products see it without a fence
    overwrite(tile)
    view = tile.view(tile.buffer.data)
    poison(view)
    tile.view(tile.buffer.written)[...] = False
    memory = agent.instance.memory
    memory.resolve(pointer[inside], _copied(operation))

    def arrives() -> None:
        view[...] = np.zeros((), view.dtype)
        view[inside] = memory.read(pointer[inside], _copied(operation))
        tile.view(tile.buffer.written)[...] = True

    agent.open_copies.append((access.bit, agent.machine.event(agent, operation, arrives)))
    return []


def _copied(operation: Operation) -> DType:
    """The element type of what is copied."""
    kind = operation.operands[1].type.handle
    assert isinstance(kind, SharedType)
    return kind.element


def copy_commit(agent: Agent, operation: Operation, operands: list[Any]) -> list[Any]:
    agent.copies.append(agent.open_copies)
    agent.open_copies = []
    return []


def copy_wait(agent: Agent, operation: Operation, operands: list[Any]) -> list[Any]:
    outstanding = operation.attributes["outstanding"]
    assert isinstance(outstanding, int)
    if operation.attributes["all"]:
        copy_commit(agent, operation, operands)
    while len(agent.copies) > outstanding:
        for bit, event in agent.copies.pop(0):
            agent.machine.hasten(event)
            agent.keep(bit)
    return []


# Copies in bulk


def _check_place(coordinates: Sequence[int], tile: SharedTile) -> None:
    """Rows of a copy begin at multiples of 16 bytes: at other places the hardware traps."""
    begin = coordinates[-1] * tile.view(tile.buffer.data).itemsize
    if begin % _COPIED_UNIT:
        advice = "move along another dimension, or by whole multiples"
        raise ExecutionError(f"a copy begins {begin} bytes from the start of a row, no multiple of 16", advice)


def tma_load(agent: Agent, operation: Operation, operands: list[Any]) -> list[Any]:
    source, rest = operands[0], operands[1:]
    assert isinstance(source, GlobalTensor)
    coordinates = [int(entry) for entry in rest[: source.rank]]
    tile, barrier, *masks = rest[source.rank :]
    _check_place(coordinates, tile)
    ranks = [agent.cta.rank]
    if masks:
        ranks = [rank for rank in range(16) if int(masks[0]) >> rank & 1]
    for rank in ranks:
        _load_into(agent, operation, source, coordinates, tile, barrier, rank)
    return []


def _load_into(
    agent: Agent, operation: Operation, source: GlobalTensor, coordinates: list[int], tile: SharedTile,
    barrier: Mbarrier, rank: int,
) -> None:  # fmt: skip
    """Start a copy to the tile and barrier of one CTA."""
    cta = agent.machine.peer(rank, f"copy to {tile.name}")
    if cta is not agent.cta:
        tile, barrier = _in_cta(agent, tile, cta), _barrier_in(agent, barrier, cta)
    known = agent.of_leader
    access = use(agent, operation, tile, True, True, known)
    buffer = tile.buffer
    overwrite(tile)
    poison(tile.view(buffer.data))
    tile.view(buffer.written)[...] = False
    view = tile.view(buffer.data)
    barrier.in_flight += view.nbytes

    def arrives() -> None:
        view[...] = source.fetch(coordinates, view.shape)
        tile.view(buffer.written)[...] = True
        barrier.complete(view.nbytes, known.with_more(access.bit))

    agent.machine.event(agent, operation, arrives)


def tma_store(agent: Agent, operation: Operation, operands: list[Any]) -> list[Any]:
    target, rest = operands[0], operands[1:]
    assert isinstance(target, GlobalTensor)
    coordinates, tile = [int(entry) for entry in rest[:-1]], rest[-1]
    _check_place(coordinates, tile)
    access = use(agent, operation, tile, False, True, agent.of_leader)
    view = tile.view(tile.buffer.data)
    if not target.clip(coordinates, tile.view(tile.buffer.written)).all():
        raise not_written(agent, tile)
    store = TileStore(tile, access, operation, agent)
    machine, kind = agent.machine, str(operation.attributes["kind"])

    def read() -> None:
        store.data = np.array(view)

    def write() -> None:
        machine.hasten(store.read)
        assert store.data is not None
        target.write(coordinates, store.data, kind)

    store.read = machine.event(agent, operation, read)
    store.write = machine.event(agent, operation, write)
    agent.open_stores.append(store)
    return []


def tma_commit(agent: Agent, operation: Operation, operands: list[Any]) -> list[Any]:
    agent.stores.append(agent.open_stores)
    agent.open_stores = []
    return []


def tma_wait(agent: Agent, operation: Operation, operands: list[Any]) -> list[Any]:
    outstanding, only_read = operation.attributes["outstanding"], operation.attributes["read"]
    assert isinstance(outstanding, int)
    done = agent.stores[: len(agent.stores) - outstanding]
    for store in [store for group in done for store in group]:
        agent.machine.hasten(store.read if only_read else store.write)
        agent.machine.hasten(store.read)
        store.read_known = True
        agent.keep_lead(store.access.bit)
    if not only_read:
        agent.stores = agent.stores[len(done) :]
    return []


# Products


def wgmma_start(agent: Agent, operation: Operation, operands: list[Any]) -> list[Any]:
    return [Pending(array=operands[0])] if operands else [Pending()]


def _take(accumulator: Any, operation: Operation) -> Any:
    """Take over an accumulator, which nothing else may use from then on."""
    if isinstance(accumulator, Pending):
        if accumulator.handed_on:
            raise ExecutionError(
                f"an accumulator in flight is used again: {accumulator.handed_on} had taken it over",
                "go on with the result of that operation",
            )
        place = f" at {operation.location}" if operation.location is not None else ""
        accumulator.handed_on = f"{operation.opcode}{place}"
    return accumulator


def wgmma(agent: Agent, operation: Operation, operands: list[Any]) -> list[Any]:
    _many_threads(agent)
    a, b = operands[:2]
    if agent.threads % 128:
        raise ExecutionError(f"wgmma takes whole warpgroups, the role has {agent.warps} warps", "warps=4")
    bits = 0
    for tile in (a, b):
        if isinstance(tile, SharedTile):
            bits |= _read(agent, operation, tile, asynchronous=True).bit
    before = _take(operands[2], operation) if len(operands) > 2 else None
    if len(operands) > 3 and not operands[3]:
        before = None
    if isinstance(before, Pending) and before.array is None and before.group is None:
        raise ExecutionError("the accumulator has no value yet", "the first product of a loop needs keep=False")
    kind = operation.results[0].type.handle
    assert isinstance(kind, PendingType)
    result, machine = Pending(ProductGroup(bits)), agent.machine

    def compute() -> None:
        start = before
        if isinstance(before, Pending):
            if before.group is not None:
                machine.hasten(before.group.event)
            start = before.array
        result.array = _product(a, b, start, kind)

    assert result.group is not None
    result.group.event = machine.event(agent, operation, compute)
    agent.groups.append(result.group)
    return [result]


def _product(a: Any, b: SharedTile, start: Array | None, kind: PendingType) -> Array:
    """a @ b + start, in the accumulator's type; rows that a small operand A lacks are poison."""
    left = a.view(a.buffer.data) if isinstance(a, SharedTile) else a
    wide = np.int32 if kind.element.is_integer else np.float32
    with np.errstate(invalid="ignore", over="ignore"):
        product = left.astype(wide) @ b.view(b.buffer.data).astype(wide)
        if left.shape[0] < kind.shape[0]:
            whole = np.empty(kind.shape, wide)
            poison(whole)
            whole[: left.shape[0]] = product
            product = whole
        return np.asarray(product if start is None else product + start, wide)


def wgmma_wait(agent: Agent, operation: Operation, operands: list[Any]) -> list[Any]:
    outstanding = operation.attributes["outstanding"]
    assert isinstance(outstanding, int)
    while len(agent.groups) > outstanding:
        group = agent.groups.pop(0)
        agent.machine.hasten(group.event)
        agent.keep(group.bits)
    results = []
    for accumulator in operands:
        _take(accumulator, operation)
        if accumulator.group is None and accumulator.array is None:
            raise ExecutionError("the accumulator has no value: no product was started with it")
        if accumulator.group in agent.groups:
            newer = len(agent.groups) - agent.groups.index(accumulator.group) - 1
            raise ExecutionError(
                f"use before wait: the product may still be in flight, {newer} newer groups are under way and the wait "
                f"leaves {outstanding}",
                f"wait with outstanding={newer} or less",
            )
        results.append(accumulator.array)
    return results


# Clusters


def cluster_rank(agent: Agent, operation: Operation, operands: list[Any]) -> list[Any]:
    return [np.asarray(agent.cta.rank, np.int32)]


def cluster_arrive(agent: Agent, operation: Operation, operands: list[Any]) -> list[Any]:
    cluster = agent.machine.cluster
    if agent.cluster_generation is not None:
        raise ExecutionError("the second arrival at the cluster's barrier without a wait", "tx.cluster_wait() between")
    agent.cluster_generation, agent.cluster_arrival = cluster.generation, operation
    agent.overtake(operation)
    knowledge = agent.of_all
    cluster.arrive(agent.threads, Knowledge() if operation.attributes["relaxed"] else knowledge, knowledge.done)
    return []


def cluster_wait(agent: Agent, operation: Operation, operands: list[Any]) -> Waiting:
    cluster, generation = agent.machine.cluster, agent.cluster_generation
    if generation is None:
        raise ExecutionError("a wait for the cluster's barrier without an arrival", "tx.cluster_arrive() before")

    def text() -> str:
        return f"the cluster's barrier: {cluster.arrived} of {cluster.threads} threads are there"

    yield Wait(lambda: cluster.generation > generation, text, operation)
    agent.cluster_generation = agent.cluster_arrival = None
    agent.known.join(cluster.visible)
    agent.over |= cluster.over
    agent.in_step()
    return []


def nothing(agent: Agent, operation: Operation, operands: list[Any]) -> Sequence[Any]:
    return []


def warp_any(agent: Agent, operation: Operation, operands: list[Any]) -> list[Any]:
    return [np.asarray(np.any(operands[0]))]


HANDLERS: dict[str, Handler] = {
    handler.__name__: handler
    for handler in (
        shared_alloc, shared_index, shared_slice, shared_transpose, shared_remote, shared_load, shared_store,
        shared_wait, barrier_alloc, barrier_index, barrier_arrive, barrier_expect, barrier_wait, fence_async,
        group_sync, named_sync, named_arrive, tma_load, tma_store, tma_commit, tma_wait, wgmma_start, wgmma, wgmma_wait,
        cluster_rank, cluster_arrive, cluster_wait, warp_any,
    )
}  # fmt: skip
HANDLERS.update(grid_wait=nothing, grid_launch_dependents=nothing, prefetch=nothing, tma_prefetch=nothing)
HANDLERS.update(shared_tile=shared_tile, copy_async=copy_async, copy_commit=copy_commit, copy_wait=copy_wait)
