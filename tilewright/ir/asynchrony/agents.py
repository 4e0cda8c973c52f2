"""An agent: one copy of a role (or all threads of a CTA, outside of roles), run as a coroutine.

It walks control flow itself, so that it can stop anywhere; ordinary operations are those of `ir.interpreter`, explicit
ones of `operations.py`.  A step ends before each explicit operation and wherever it has to wait.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.errors import ExecutionError
from tilewright.ir.asynchrony.memory import BufferAccess
from tilewright.ir.asynchrony.synchronisation import Knowledge
from tilewright.ir.core import Operation, Region
from tilewright.ir.diagnostics import located_execution_error, step_error, user_place

Steps = Generator["Wait | None", None, list[Any]]


@dataclass
class Wait:
    """What an agent waits for: whether it is there, and how to say it."""

    ready: Callable[[], bool]
    text: Callable[[], str]
    operation: Operation


@dataclass(eq=False)
class Agent:
    """A group of threads that run the same code together.

    `known` is what all its threads know, `own` what each of them did itself since they were last in step (each warp
    knows its part), `lead` what the one thread knows that starts and awaits copies.
    """

    name: str
    machine: Any
    cta: Any
    threads: int
    instance: Any
    elected: bool = False
    top: bool = False
    known: Knowledge = field(default_factory=Knowledge)
    own: int = 0
    lead: int = 0
    over: int = 0  # what was done before the cluster's barriers that this agent has waited for, relaxed ones too
    loading: list[list[BufferAccess]] = field(default_factory=list)  # loads under way, of each region being run
    passed_by: list[BufferAccess] = field(default_factory=list)  # those of them that no arrival has overtaken yet
    unordered: int = 0  # the `ordered` bits of loads under way, which arrivals at mbarriers do not pass on
    groups: list[Any] = field(default_factory=list)  # products in flight, oldest first
    copies: list[list[Any]] = field(default_factory=list)  # groups of its threads' copies in, oldest first
    open_copies: list[Any] = field(default_factory=list)  # since the last commit
    stores: list[list[Any]] = field(default_factory=list)  # groups of copies out, oldest first
    open_stores: list[Any] = field(default_factory=list)  # since the last commit
    phases: dict[Any, int] = field(default_factory=dict)  # the last phase seen of each mbarrier
    cluster_generation: int | None = None  # arrived at, not yet awaited
    cluster_arrival: Operation | None = None
    last_wait: tuple[str, str] = ("", "")  # how the last wait for an mbarrier went ("fresh", "again"), and its text
    again: str = ""  # how a wait went that passed on a phase which this agent had seen before
    waiting: Wait | None = None
    finished: bool = False
    slow: bool = False  # runs only when no other can

    @property
    def warps(self) -> int:
        """Its warps."""
        return int(self.threads // self.machine.warp_threads)

    # Knowledge

    def keep(self, bits: int) -> None:
        """Something this group did is over, as far as the threads that did it know."""
        if self.elected:
            self.known.done |= bits
        else:
            self.own |= bits

    def keep_lead(self, bits: int) -> None:
        """Something is over as far as the leader knows."""
        if self.elected:
            self.known.done |= bits
        else:
            self.lead |= bits

    @property
    def of_leader(self) -> Knowledge:
        """What the leader knows."""
        return self.known.with_more(self.lead)

    @property
    def of_all(self) -> Knowledge:
        """What the threads know together: what they leave when all of them arrive somewhere."""
        return self.known.with_more(self.lead | self.own)

    def in_step(self) -> None:
        """All threads have met."""
        self.known.done |= self.lead | self.own
        self.lead = self.own = 0

    # Loads under way

    def begin_load(self, access: BufferAccess, remote: bool) -> None:
        """A load of all threads, which is over at a later `shared_wait` of the same region."""
        access.begun = self.machine.new_bit()
        access.ordered = 0 if remote else self.machine.new_bit()
        self.keep(access.begun | access.ordered)
        self.unordered |= access.ordered
        self.loading[-1].append(access)
        self.passed_by.append(access)

    def end_loads(self, ended: Sequence[BufferAccess]) -> None:
        """Loads of this region are over."""
        self.loading[-1] = [access for access in self.loading[-1] if access not in ended]
        self.passed_by = [access for access in self.passed_by if access not in ended]
        for access in ended:
            self.keep(access.bit)
            self.unordered &= ~access.ordered

    def overtake(self, operation: Operation) -> None:
        """Others go on by an arrival, whether or not loads of this group are over."""
        for access in self.passed_by:
            access.overtaken = operation
        self.passed_by = []

    def arriving(self, knowledge: Knowledge) -> Knowledge:
        """What is left at an mbarrier of what threads know: loads under way are not ordered by it."""
        knowledge.done &= ~self.unordered
        return knowledge

    # Walking the code

    def run(self, region: Region, arguments: Sequence[Any] = ()) -> Steps:
        """Run a region; the operands of its terminator."""
        self.instance.values.update(zip(region.arguments, arguments, strict=False))
        self.loading.append([])
        for operation in region.operations[:-1]:
            yield from self.operation(operation)
        self.loading.pop()
        return [self.instance.values[value] for value in region.terminator.operands]

    def operation(self, operation: Operation) -> Generator[Wait | None, None, None]:
        control = _CONTROL.get(operation.opcode)
        if control is None and operation.opcode not in self.machine.handlers:
            self.instance.operation(operation)
            return
        values = self.instance.values
        operands = [values[value] for value in operation.operands]
        if control is not None:
            results = yield from control(self, operation, operands)
        else:
            yield None
            results = yield from self.explicit(operation, operands)
        values.update(zip(operation.results, results, strict=True))

    def explicit(self, operation: Operation, operands: list[Any]) -> Steps:
        """An operation of the explicit family; errors get their place."""
        try:
            results = self.machine.handlers[operation.opcode](self, operation, operands)
            if isinstance(results, Generator):
                results = yield from results
        except ExecutionError as error:
            raise self.located(error, operation) from None
        return list(results)

    def located(self, error: ExecutionError, operation: Operation) -> ExecutionError:
        """An error with its place in the source and the role that met it."""
        if error.program_id is not None:
            return error
        error.details = (*error.details, f"in {self.name} of kernel '{self.machine.function.name}'")
        return located_execution_error(error, operation.opcode, user_place(operation.location), self.cta.index)

    def for_loop(self, operation: Operation, operands: list[Any]) -> Steps:
        lower, upper, step = (int(bound) for bound in operands[:3])
        carried = operands[3:]
        if step <= 0:
            raise self.located(step_error(step), operation)
        for index in range(lower, upper, step):
            carried = yield from self.run(operation.regions[0], [np.asarray(index, operands[0].dtype), *carried])
        return carried

    def while_loop(self, operation: Operation, operands: list[Any]) -> Steps:
        before, after = operation.regions
        proceed, *values = yield from self.run(before, operands)
        while proceed:
            following = yield from self.run(after, values)
            proceed, *values = yield from self.run(before, following)
        return values

    def branch(self, operation: Operation, operands: list[Any]) -> Steps:
        return (yield from self.run(operation.regions[0 if operands[0] else 1]))

    def barrier(self, operation: Operation, operands: list[Any]) -> Steps:
        """`tl.debug_barrier`: all threads of the group meet."""
        self.in_step()
        yield None
        return []

    def roles(self, operation: Operation, operands: list[Any]) -> Steps:
        """Share out the threads; go on when all roles have ended, knowing what each of them knows."""
        if not self.top:
            raise self.located(ExecutionError("warp_roles stands inside a role"), operation)
        agents = self.machine.start_roles(self, operation)
        yield Wait(lambda: all(agent.finished for agent in agents), lambda: "the end of all roles", operation)
        seen = set.intersection(*(set(agent.known.phases) for agent in agents))
        ended = {barrier: min(agent.known.phases[barrier] for agent in agents) for barrier in seen}
        self.known = Knowledge(-1, -1, ended)
        for agent in agents:
            self.known.done &= agent.known.done
            self.known.fenced &= agent.known.fenced
            self.own |= agent.of_all.done
            self.over |= agent.over
            self.stores += agent.stores
            self.open_stores += agent.open_stores
        return []


_CONTROL: dict[str, Callable[[Agent, Operation, list[Any]], Steps]] = {
    "for": Agent.for_loop,
    "while": Agent.while_loop,
    "if": Agent.branch,
    "warp_roles": Agent.roles,
    "barrier": Agent.barrier,
}
