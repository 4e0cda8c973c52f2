"""Reports of findings: the most likely cause of an unordered pair of accesses, and what to do about it."""

from __future__ import annotations

from tilewright.errors import ExecutionError
from tilewright.ir.asynchrony.agents import Agent
from tilewright.ir.asynchrony.memory import BufferAccess, SharedTile
from tilewright.ir.asynchrony.synchronisation import Knowledge
from tilewright.ir.core import Operation
from tilewright.ir.diagnostics import user_place

_PARITY = (
    "take stage and parity from one ring_position; producers begin with producer_start, consumers with consumer_start"
)

END_LOADS = (
    "a shared_wait after the load, in its region, before what lets others go on: arrivals do not wait for loads "
    "(kernels of the tile language get it as they are traced)"
)


def conflict_error(
    agent: Agent, operation: Operation, tile: SharedTile, writes: bool, known: Knowledge, old: BufferAccess
) -> ExecutionError:
    """The error of an access that does not know an earlier one to be over."""
    title, advice = _diagnosis(agent, operation, tile, writes, known, old)
    verb = "writes" if writes else "reads"
    details = [f"{operation.opcode} {verb} {tile.name}, while this is not over: {old.text}"]
    if _is_overtaken(known, old):
        details.append(_overtaker(old))
    elif agent.last_wait[1] and operation.opcode != "tma_load" or agent.last_wait[0] == "again":
        details.append(agent.last_wait[1])
    elif old.suspect[1] and old.operation.opcode != "tma_load":
        details.append(f"of {old.actor}: {old.suspect[1]}")
    elif operation.opcode == "tma_load":
        details.extend(lost(agent))
    return ExecutionError(title, advice, tuple(details))


def _diagnosis(
    agent: Agent, operation: Operation, tile: SharedTile, writes: bool, known: Knowledge, old: BufferAccess
) -> tuple[str, str]:
    name, before = tile.name, old.operation.opcode
    if _is_overtaken(known, old):
        verb = "filled again" if operation.opcode == "tma_load" else "written"
        return f"load overtaken: {name} is {verb} while what it held may not have been read", END_LOADS
    if tile.remote and operation.opcode == "shared_load":
        return (
            f"remote read without a cluster barrier: {name} of CTA {tile.buffer.cta.rank}",
            "tx.cluster_arrive() after the peer's writes, tx.cluster_wait() before reading them",
        )
    if old.operation.opcode == "shared_load" and old.agent.cta is not tile.buffer.cta:
        return (
            f"race with a remote read of {name}",
            "let the peer arrive at the cluster's barrier after it has read",
        )
    if old.agent is agent and (old.bit | old.begun) & agent.of_all.done:
        return (
            f"race on {name}: the threads of the group are not in step",
            "tx.group_sync() between what each of them did and what uses the work of the others",
        )
    if before == "tma_store" and writes:
        return (
            f"store source rewritten: a copy out may still read {name}",
            "tx.tma_wait(outstanding, read=True) by the storing thread, then tx.group_sync(), before writing again",
        )
    if operation.opcode == "tma_load":
        if agent.last_wait[0] == "again":
            return f"wrong phase: {name} is filled again before it is empty", _PARITY
        if old.suspect[0] and before != "tma_load":
            return f"wrong phase: {name} was used before it was full", _PARITY
        if lost(agent):
            return f"wrong phase: {name} is filled again while it is in use", _PARITY
        return (
            f"early slot reuse: {name} is filled again while it is in use",
            "release a stage only after the products that read it have ended (wgmma_wait), and wait for it to be empty",
        )
    if before == "tma_load":
        if agent.last_wait[0]:
            return f"wrong phase: {name} is used before it is full", _PARITY
        if old.replaced & known.done:
            return (
                f"early slot reuse: {name} is filled again while it is in use",
                "release a stage after the last use of it, not before",
            )
        return f"use before wait: {name} is being filled", "wait for the barrier that the copy completes on"
    if before == "wgmma":
        return (
            f"operand in flight: {name} is written while a product may read it",
            "tx.wgmma_wait() until the group has ended, then a synchronisation, before writing",
        )
    return (
        f"race on {name}",
        "order the two: one arrives at a barrier after its access, the other waits before",
    )


def _is_overtaken(known: Knowledge, old: BufferAccess) -> bool:
    """Whether an earlier load is known to have begun, and only its end is not."""
    return bool(old.begun & known.done)


def _overtaker(load: BufferAccess) -> str:
    """What did not wait for a load."""
    if load.overtaken is None:
        return "nothing waits for the load before that"
    found = user_place(load.overtaken.location)
    place = f" at {found}" if found is not None else ""
    return f"{load.overtaken.opcode} of {load.actor}{place} does not wait for the load"


def unfenced(operation: Operation, tile: SharedTile, old: BufferAccess) -> ExecutionError:
    """The error of a copy or product that might not see, or might overtake, an ordinary store."""
    return ExecutionError(
        f"missing proxy fence: {operation.opcode} may not see what was stored to {tile.name}",
        "tx.fence_async() after the stores, before the synchronisation that precedes this",
        (f"the store: {old.text}",),
    )


def lost(agent: Agent) -> list[str]:
    """What other roles waited for that had long been over: one that runs ahead releases stages that it has not used."""
    return [f"of {other.name}: {other.again}" for other in agent.machine.everyone if other is not agent and other.again]


def wrong_count(agent: Agent, error: ExecutionError) -> ExecutionError:
    """An arrival too many: or is it that of an agent which did not wait where it meant to?"""
    if agent.last_wait[0] != "again":
        return error
    return ExecutionError(f"wrong phase: {error.message}", _PARITY, (agent.last_wait[1],))


def not_written(agent: Agent, tile: SharedTile) -> ExecutionError:
    """The error of reading memory that holds nothing."""
    if agent.last_wait[0]:
        return ExecutionError(f"wrong phase: {tile.name} is used before it is full", _PARITY, (agent.last_wait[1],))
    return ExecutionError(
        f"uninitialised shared memory: {tile.name} is read before anything was written there",
        "load or store it first, and wait for that",
    )
