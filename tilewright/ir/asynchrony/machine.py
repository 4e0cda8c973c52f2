"""The machine: CTAs of a cluster, their agents, in-flight operations, and the order of events."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from tilewright.errors import ExecutionError, LaunchError
from tilewright.ir.asynchrony.agents import Agent, Wait
from tilewright.ir.asynchrony.hazard_messages import END_LOADS
from tilewright.ir.asynchrony.memory import Box, BufferAccess, SharedBuffer, SharedTile, name_of, poison
from tilewright.ir.asynchrony.operations import HANDLERS
from tilewright.ir.asynchrony.synchronisation import ClusterBarrier, Mbarrier, NamedBarrier
from tilewright.ir.core import Function, Operation, SSAValue
from tilewright.ir.diagnostics import user_place
from tilewright.ir.explicit import GREATEST_CTA_THREADS, INTERPRETED_WARP_THREADS
from tilewright.ir.types import SharedType

_FILLING = {
    "tma_load": "wait for the barrier of every copy, of those that nobody uses too; or load what is used",
    "copy_async": "wait for all copies of the threads, copy_wait {all = true}, of tiles that nobody uses too",
}
_STAY = "let CTAs stay until their peers are done with them: tx.cluster_arrive(); tx.cluster_wait() at the end"


@dataclass(eq=False)
class Event:
    """Something in flight: what happens when it comes due."""

    action: Callable[[], None]
    agent: Agent
    operation: Operation
    done: bool = False

    def happen(self) -> None:
        """Let it happen, once."""
        if self.done:
            return
        self.done = True
        try:
            self.action()
        except ExecutionError as error:
            raise self.agent.located(error, self.operation) from None


@dataclass(eq=False)
class Cta:
    """One CTA: its memory and barriers."""

    index: tuple[int, int, int]
    rank: int
    buffers: dict[Operation, SharedBuffer] = field(default_factory=dict)
    barriers: dict[Operation, list[Mbarrier]] = field(default_factory=dict)
    named: dict[int, NamedBarrier] = field(default_factory=dict)
    exited: bool = False
    # By other CTAs: the bit of each, of a load that of its beginning, who, and what.
    visits: list[tuple[int, int, Agent, Operation]] = field(default_factory=list)


def run_explicit(
    function: Function,
    values: Mapping[SSAValue, Any],
    extents: tuple[int, int, int],
    instance: Callable[..., Any],
    order: int = 0,
    warp_threads: int = INTERPRETED_WARP_THREADS,
) -> None:
    """Run an explicit kernel over a grid, cluster by cluster; `instance` makes the interpreter of one CTA's agent.

    `order` is the seed of the order in which roles run and copies and products complete; a warp has `warp_threads`.
    Raises `ExecutionError` for what is not synchronised, and `LaunchError` for a grid that is not made of clusters.
    """
    shape = function.attributes.get("cluster", (1, 1, 1))
    assert isinstance(shape, tuple)
    cluster = tuple(int(extent) for extent in shape)  # type: ignore[arg-type]
    if any(extent % size for extent, size in zip(extents, cluster, strict=True)):
        raise LaunchError(
            f"the grid {extents} of '{function.name}' is not made of clusters of {cluster}; round its extents up to "
            "multiples of the cluster's"
        )
    counts = [extent // size for extent, size in zip(extents, cluster, strict=True)]
    for number in range(prod(counts)):
        place = (number % counts[0], number // counts[0] % counts[1], number // counts[0] // counts[1])
        first = tuple(position * size for position, size in zip(place, cluster, strict=True))
        draw = random.Random(f"{order}.{number}")
        _AsynchronousMachine(function, values, extents, instance, draw, warp_threads).run(first, cluster)


class _AsynchronousMachine:
    """One cluster being run."""

    handlers = HANDLERS

    def __init__(
        self, function: Function, values: Mapping[SSAValue, Any], extents: tuple[int, int, int],
        instance: Callable[..., Any], draw: random.Random, warp_threads: int,
    ) -> None:  # fmt: skip
        self.warp_threads = warp_threads
        self.function, self.values, self.extents, self.instance, self.draw = function, values, extents, instance, draw
        self.ctas: list[Cta] = []
        self.agents: dict[Agent, Any] = {}  # that have not ended, with the coroutine of each
        self.everyone: list[Agent] = []
        self.events: list[Event] = []
        self.cluster = ClusterBarrier(0)
        self.bits = 0
        # The temper of this order: how often what is in flight comes due while agents could go on, and how long an
        # agent goes on before another has its turn.
        self.eagerness = draw.choice((0.0, 0.1, 0.5, 0.95))
        self.patience = draw.choice((0.0, 0.5, 0.9, 0.99))
        self.slow = draw.random()  # part of the agents that only run when no other can

    # Running

    def run(self, first: Sequence[int], cluster: Sequence[int]) -> None:
        """Run the CTAs of the cluster that begins at `first`."""
        threads = cta_threads(self.function, self.warp_threads)
        for rank in range(prod(cluster)):
            offset = (rank % cluster[0], rank // cluster[0] % cluster[1], rank // cluster[0] // cluster[1])
            x, y, z = (start + move for start, move in zip(first, offset, strict=True))
            cta = Cta((x, y, z), rank)
            self.ctas.append(cta)
            name = "all threads" + (f" of CTA {rank}" if prod(cluster) > 1 else "")
            agent = Agent(name, self, cta, threads, self.instance(cta.index, dict(self.values)), top=True)
            self.start(agent, self.function.region)
        self.cluster.threads = threads * len(self.ctas)
        current: Agent | None = None
        while self.agents:
            current = self.step(current)
        while self.events:  # what has been read is written by the end of the kernel
            self.complete(self.draw.choice(self.events))

    def start(self, agent: Agent, region: Any, arguments: Sequence[Any] = ()) -> None:
        """Begin a coroutine."""
        agent.slow = self.draw.random() < self.slow * 0.5
        self.agents[agent] = agent.run(region, arguments)
        self.everyone.append(agent)

    def start_roles(self, parent: Agent, operation: Operation) -> list[Agent]:
        """The agents of a `warp_roles`, in the CTA of `parent`."""
        attributes: Any = operation.attributes
        agents = []
        for number, region in enumerate(operation.regions):
            copies = attributes["copies"][number]
            for copy in range(copies):
                name = f"role '{role_name(region, number)}'" + (f", copy {copy}" if copies > 1 else "")
                name += f" of CTA {parent.cta.rank}" if len(self.ctas) > 1 else ""
                agent = Agent(
                    name,
                    self,
                    parent.cta,
                    self.warp_threads * attributes["warps"][number],
                    self.instance(parent.cta.index, dict(parent.instance.values)),
                    elected=bool(attributes["elected"][number]),
                    known=parent.known.with_more(0),
                )
                self.start(agent, region, [np.asarray(copy, np.int32)])
                agents.append(agent)
        return agents

    def step(self, current: Agent | None) -> Agent | None:
        """Let one thing happen; gives the agent that may go on next."""
        if self.events and self.draw.random() < self.eagerness:
            self.complete(self.draw.choice(self.events))
            return current
        ready = [agent for agent in self.agents if agent.waiting is None or agent.waiting.ready()]
        if not ready:
            if not self.events:
                raise self.deadlock()
            self.complete(self.draw.choice(self.events))
            return None
        if current not in ready or self.draw.random() >= self.patience:
            fast = [agent for agent in ready if not agent.slow]
            current = self.draw.choice(fast or ready)
        assert current is not None
        try:
            current.waiting = next(self.agents[current])
        except StopIteration:
            self.finish(current)
        return current

    def complete(self, event: Event) -> None:
        """Let something in flight happen."""
        self.events.remove(event)
        event.happen()

    def finish(self, agent: Agent) -> None:
        """An agent has come to its end."""
        del self.agents[agent]
        agent.finished = True
        if agent.cluster_arrival is not None and not agent.top:
            error = ExecutionError(
                "a role ends after an arrival at the cluster's barrier that it has not waited for",
                "tx.cluster_wait() after every tx.cluster_arrive()",
            )
            raise agent.located(error, agent.cluster_arrival)
        if agent.top:
            self.check_exit(agent)
            agent.cta.exited = True
            self.cluster.exit(agent.threads, agent.of_all.done)

    def check_exit(self, agent: Agent) -> None:
        """Copies and other CTAs must be done with the CTA's memory before it ends, and be known to be."""
        for store in [store for group in (*agent.stores, agent.open_stores) for store in group]:
            if not store.read_known:
                error = ExecutionError(
                    f"the kernel ends while a copy may still read {store.tile.name}",
                    "end the role with tx.tma_wait(0, read=True), after tx.tma_commit()",
                )
                raise store.agent.located(error, store.operation)
        done = agent.of_all.done
        for name, access in [(b.name, access) for b in agent.cta.buffers.values() for access in b.accesses]:
            if access.operation.opcode in _FILLING and not access.bit & done:
                error = ExecutionError(
                    f"the kernel ends while a copy may still fill {name}", _FILLING[access.operation.opcode]
                )
                raise access.agent.located(error, access.operation)
        for bit, begun, visitor, operation in agent.cta.visits:
            if not bit & (done | agent.over):
                error = ExecutionError(
                    f"CTA {agent.cta.rank} of the cluster has ended, and {visitor.name} may not be done with it",
                    END_LOADS if begun & (done | agent.over) else _STAY,
                )
                raise visitor.located(error, operation)

    def deadlock(self) -> ExecutionError:
        """Nobody can go on: who waits for what."""
        waits: list[tuple[Agent, Wait]] = [(agent, agent.waiting) for agent in self.agents if agent.waiting is not None]
        inner = [entry for entry in waits if not entry[0].top] or waits
        details = []
        for agent, wait in inner:
            where = user_place(wait.operation.location)
            place = f" at {where}" if where is not None else ""
            details.append(f"{agent.name} waits for {wait.text()}{place}")
        agent, wait = inner[0]
        error = ExecutionError(
            f"deadlock: {cause(self.ctas)}",
            "every phase that is waited for needs its arrivals and its bytes; turns must alternate",
            tuple(details),
        )
        return agent.located(error, wait.operation)

    # What operations need

    def new_bit(self) -> int:
        """The bit of a new access."""
        self.bits += 1
        return 1 << self.bits

    def access(self, agent: Agent, operation: Operation, box: Box, writes: bool, asynchronous: bool) -> BufferAccess:
        """A new access."""
        return BufferAccess(self.new_bit(), box, writes, asynchronous, operation, agent.name, agent, agent.last_wait)

    def event(self, agent: Agent, operation: Operation, action: Callable[[], None]) -> Event:
        """Something that will happen at some time from now on."""
        event = Event(action, agent, operation)
        self.events.append(event)
        return event

    def hasten(self, event: Event) -> None:
        """It has to have happened by now."""
        if not event.done:
            self.complete(event)

    def buffer(self, cta: Cta, operation: Operation) -> SharedBuffer:
        """The memory of an allocation in a CTA; made when it is first asked for."""
        if operation not in cta.buffers:
            kind = operation.results[0].type.handle
            assert isinstance(kind, SharedType)
            data = np.empty(kind.shape, kind.element.numpy)
            poison(data)
            name = name_of(operation.location, f"shared memory {len(cta.buffers)}")
            buffer = SharedBuffer(name, kind, cta, data, np.zeros(kind.shape, np.bool_))
            buffer.family = [buffer]
            if operation.operands:
                below = operation.operands[0].definition
                assert below is not None
                buffer.family = self.buffer(cta, below).family
                buffer.family.append(buffer)
            cta.buffers[operation] = buffer
        return cta.buffers[operation]

    def mbarriers(self, cta: Cta, operation: Operation) -> list[Mbarrier]:
        """The barriers of an allocation in a CTA."""
        if operation not in cta.barriers:
            attributes: Any = operation.attributes
            name = name_of(operation.location, f"barriers {len(cta.barriers)}")
            where = f" of CTA {cta.rank}" if len(self.ctas) > 1 else ""
            cta.barriers[operation] = [
                Mbarrier(f"{name}[{number}]{where}", attributes["arrivals"], cta)
                for number in range(attributes["count"])
            ]
        return cta.barriers[operation]

    def peer(self, rank: int, access: str) -> Cta:
        """A CTA of the cluster that has not ended."""
        if not 0 <= rank < len(self.ctas):
            raise ExecutionError(
                f"{access}: there is no CTA {rank} in a cluster of {len(self.ctas)}",
                "tx.cluster says how many there are",
            )
        if self.ctas[rank].exited:
            raise ExecutionError(
                f"{access}: CTA {rank} of the cluster has ended",
                _STAY,
            )
        return self.ctas[rank]

    def tile(self, buffer: SharedBuffer) -> SharedTile:
        """A whole buffer."""
        return SharedTile(buffer, tuple((0, extent) for extent in buffer.kind.shape))


def cause(ctas: Sequence[Cta]) -> str:
    """What most likely holds everybody up."""
    barriers = [barrier for cta in ctas for listed in cta.barriers.values() for barrier in listed]
    for barrier in barriers:
        if barrier.bytes_due > 0 and not barrier.in_flight:
            return (
                f"byte mismatch: {barrier.name} waits for {barrier.bytes_due} bytes more than the copies bring"
                f" ({barrier.state()})"
            )
        if barrier.bytes_due < 0:
            return f"missing expect: {-barrier.bytes_due} bytes have come to {barrier.name} that nobody expects"
    for cta in ctas:
        for named in cta.named.values():
            if named.arrived:
                return f"unmatched barrier: {named.name} has {named.arrived} of {named.threads} threads"
    for barrier in barriers:
        if 0 < barrier.arrived < barrier.count:
            return f"arrival count mismatch: {barrier.name}: {barrier.state()}"
    return "every role waits for another"


def cta_threads(function: Function, warp_threads: int) -> int:
    """Threads of a CTA: those of its roles, or of the warps that the launch asks for.

    Raises `LaunchError` for more than a CTA may have.
    """
    threads = warp_threads * _warps(function)
    if threads > GREATEST_CTA_THREADS:
        raise LaunchError(
            f"a CTA of '{function.name}' has {threads} threads, it may have {GREATEST_CTA_THREADS}: fewer warps"
        )
    return threads


def _warps(function: Function) -> int:
    for operation in function.walk():
        if operation.opcode == "warp_roles":
            attributes: Any = operation.attributes
            return sum(w * c for w, c in zip(attributes["warps"], attributes["copies"], strict=True))
    warps = function.attributes.get("num_warps", 4)
    assert isinstance(warps, int)
    return warps


def role_name(region: Any, number: int) -> str:
    """The function that a role runs."""
    for operation in region.operations:
        place = operation.location
        while place is not None and place.caller is not None and place.caller.caller is not None:
            place = place.caller
        if place is not None and place.caller is not None:
            return str(place.function)
    return str(number)
