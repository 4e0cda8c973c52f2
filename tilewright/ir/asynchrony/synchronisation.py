"""Barriers: mbarriers with phases, arrivals and bytes; numbered barriers; the barrier of a cluster.

Each passes knowledge on: who arrives leaves what it knows, who waits takes what all have left.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tilewright.errors import ExecutionError


@dataclass
class Knowledge:
    """Accesses that are over (`done`), and those of them whose stores copies and products see (`fenced`).

    `phases` holds the latest phase of each mbarrier that is known to have ended: seen by oneself, or by others before
    a synchronisation with them.
    """

    done: int = 0
    fenced: int = 0
    phases: dict[Any, int] = field(default_factory=dict)

    def join(self, other: Knowledge) -> None:
        """Add what another knows."""
        self.done |= other.done
        self.fenced |= other.fenced
        for barrier, phase in other.phases.items():
            self.saw(barrier, phase)

    def saw(self, barrier: Any, phase: int) -> None:
        """A phase of an mbarrier has ended."""
        self.phases[barrier] = max(phase, self.phases.get(barrier, -1))

    def with_more(self, done: int) -> Knowledge:
        """This and further accesses that are over."""
        return Knowledge(self.done | done, self.fenced, dict(self.phases))


@dataclass(eq=False)
class Mbarrier:
    """One mbarrier: `phase` counts those that have ended."""

    name: str
    count: int
    cta: Any
    phase: int = 0
    arrived: int = 0
    bytes_due: int = 0
    in_flight: int = 0  # bytes of copies that have begun and complete here
    left: Knowledge = field(default_factory=Knowledge)  # in the present phase
    visible: Knowledge = field(default_factory=Knowledge)  # of the phases that have ended
    brought: int = 0  # bytes that have come in the present phase
    waits: dict[int, list[tuple[int, str]]] = field(default_factory=dict)  # for each phase: the wait's bit, and whose

    def arrive(self, arrivals: int, knowledge: Knowledge) -> None:
        """Count arrivals; they must not run over into the next phase."""
        if self.arrived + arrivals > self.count:
            raise ExecutionError(
                f"arrival count mismatch: {self.name} takes {self.count} arrivals a phase, {self.arrived} are there "
                f"and {arrivals} come at once",
                "count the warps of all roles that arrive (one for an elected role) in arrivals=",
            )
        self.arrived += arrivals
        self.left.join(knowledge)
        self.settle()

    def expect(self, bytes_: int, knowledge: Knowledge) -> None:
        """One arrival that also announces bytes."""
        self.bytes_due += bytes_
        self.arrive(1, knowledge)

    def complete(self, bytes_: int, knowledge: Knowledge) -> None:
        """Bytes of a copy have come."""
        self.bytes_due -= bytes_
        self.in_flight -= bytes_
        self.brought += bytes_
        self.left.join(knowledge)
        self.settle()

    def settle(self) -> None:
        """End the phase when everything is there."""
        if self.arrived < self.count or self.bytes_due > 0:
            return
        if self.bytes_due < 0 or self.in_flight:
            expected = self.brought + self.bytes_due
            raise ExecutionError(
                f"byte mismatch: in phase {self.phase} of {self.name} {expected} bytes are expected, and copies bring "
                f"{self.brought + self.in_flight}",
                "expect the bytes of all copies that complete on the barrier (tile.bytes), before or as they begin",
            )
        self.passes_over()
        self.phase += 1
        self.arrived = self.brought = 0
        self.visible.join(self.left)
        self.left = Knowledge()

    def passes_over(self) -> None:
        """Whoever waits for the phase before must be known to be through: afterwards its parity says the opposite."""
        known = self.left.done | self.visible.done
        for bit, text in self.waits.pop(self.phase - 1, ()):
            if not bit & known:
                raise ExecutionError(
                    f"wrong phase: phase {self.phase} of {self.name} ends, but {text} may not have seen the one before",
                    "whoever waits for a phase must take part in what the next one waits for: count its arrivals, or "
                    "tx.group_sync() before one thread arrives for the group",
                )

    def state(self) -> str:
        """What the present phase is waiting for."""
        text = f"phase {self.phase} has {self.arrived} of {self.count} arrivals"
        if self.bytes_due > 0:
            text += f" and lacks {self.bytes_due} bytes"
        elif self.bytes_due < 0:
            text += f", and {-self.bytes_due} bytes have come that nobody expects"
        return text


@dataclass(eq=False)
class NamedBarrier:
    """A numbered barrier of a CTA: a generation ends when `threads` threads have arrived."""

    name: str
    threads: int = 0
    arrived: int = 0
    generation: int = 0
    arrivals: list[tuple[Any, str]] = field(default_factory=list)
    left: Knowledge = field(default_factory=Knowledge)
    passed: list[Knowledge] = field(default_factory=list)  # what was left in each generation

    def arrive(self, agent: Any, count: int, threads: int, knowledge: Knowledge) -> None:
        """Count an agent's threads."""
        advice = "every named_sync of one role needs one named_arrive (or named_sync) of its partner, and in turn"
        if self.arrived and threads != self.threads:
            raise ExecutionError(
                f"unmatched barrier: {self.name} is used for {threads} threads, and already for {self.threads}",
                "all uses of a numbered barrier agree on the number of threads",
            )
        if any(other is agent for other, _ in self.arrivals):
            raise ExecutionError(
                f"unmatched barrier: {agent.name} comes to {self.name} again, which still waits for others", advice
            )
        if self.arrived + count > threads:
            there = ", ".join(text for _, text in self.arrivals)
            raise ExecutionError(
                f"unmatched barrier: {self.name} is for {threads} threads; {there} and {agent.name} are more", advice
            )
        self.threads, self.arrived = threads, self.arrived + count
        self.arrivals.append((agent, agent.name))
        self.left.join(knowledge)
        if self.arrived == threads:
            self.generation += 1
            self.passed.append(self.left)
            self.left = Knowledge()
            self.arrived, self.arrivals = 0, []


@dataclass(eq=False)
class ClusterBarrier:
    """The barrier of all threads of a cluster; threads that have ended count as arrived."""

    threads: int  # that have not ended
    arrived: int = 0
    generation: int = 0
    left: Knowledge = field(default_factory=Knowledge)
    visible: Knowledge = field(default_factory=Knowledge)
    leaving: int = 0  # accesses that those who came had done, relaxed or not: enough to let a CTA end
    over: int = 0  # those of the generations that have ended

    def arrive(self, threads: int, knowledge: Knowledge, done: int) -> None:
        """Count threads that come, and have done so much."""
        self.arrived += threads
        self.left.join(knowledge)
        self.leaving |= done
        self.settle()

    def exit(self, threads: int, done: int) -> None:
        """Threads end."""
        self.threads -= threads
        self.leaving |= done
        self.settle()

    def settle(self) -> None:
        """Let all go on when all are there."""
        if self.threads and self.arrived >= self.threads:
            self.generation += 1
            self.arrived = 0
            self.over |= self.leaving
            self.visible.join(self.left)
            self.left = Knowledge()
