"""The machine's limits, and what bounds a step: memory, arithmetic, or launch cost.

Peaks of GPUs are those of the usual card of an architecture, from its data sheet; those of a CPU are estimates by its
vector width and the number of threads.  A step that finds its operands in a cache may be faster than its bound.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.targets.machine import Machine


@dataclass(frozen=True)
class Bound:
    """The least seconds that a step takes, and why: ``memory``, ``tensor``, ``arithmetic`` or ``launch``."""

    kind: str
    seconds: float


def bound_of(machine: Machine, moved: int, operations: int, bits: int) -> Bound:
    """The bound of a step that moves so many bytes; `bits` are those of a product's operands, 0 where there is none."""
    peak, launch = machine.peak, machine.launches.overlapped
    on_tensor_cores = bool(peak.tensor) and 0 < bits <= 16
    rate = peak.tensor * 16 / max(bits, 8) if on_tensor_cores else peak.float32
    work, traffic = operations / rate, moved / peak.memory
    if max(work, traffic) < launch:
        return Bound("launch", launch)
    if work > traffic:
        return Bound("tensor" if on_tensor_cores else "arithmetic", work)
    return Bound("memory", traffic)
