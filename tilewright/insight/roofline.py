"""What a machine could do at best, and what bounds a step: memory, arithmetic, or the cost of starting it.

Peaks of GPUs are those of the usual card of an architecture, from its data sheet; those of a CPU are estimates by its
vector width and the number of threads.  A step that finds its operands in a cache may be faster than its bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# By the number in sm_90a: card, bytes a second, 16-bit operations a second of tensor cores (dense), float32 operations.
_GPUS = {
    80: ("A100", 2.0e12, 312e12, 19.5e12),
    86: ("A10", 0.6e12, 125e12, 31e12),
    89: ("L4", 0.3e12, 121e12, 30e12),
    90: ("H200", 4.8e12, 989e12, 67e12),
    100: ("B200", 8.0e12, 2250e12, 75e12),
    120: ("RTX 5090", 1.8e12, 210e12, 105e12),
}
_GPU_LAUNCH = 1.4e-6  # seconds of a kernel in a CUDA graph that starts while the one ahead ends, however short (H200)
_CPU_LAUNCH = 2e-6
_CPU_CLOCK = 2.6e9
_CPU_BYTES = 20e9  # of all cores, where nothing better is known
_LANES = (("avx512f", 16), ("avx2", 8), ("neon", 4))  # float32 numbers of a vector, two of which are multiplied a clock


@dataclass(frozen=True)
class Bound:
    """The least seconds that a step takes, and why: ``memory``, ``tensor``, ``arithmetic`` or ``launch``."""

    kind: str
    seconds: float


@dataclass(frozen=True)
class Machine:
    """Peaks: bytes and operations a second, and the seconds of an empty step; `name` tells whose they are."""

    name: str
    memory: float
    tensor: float  # operations on 16-bit operands; 0 without tensor cores
    arithmetic: float
    launch: float

    def bound(self, moved: int, operations: int, bits: int) -> Bound:
        """Of a step that moves so many bytes; `bits` are those of a product's operands, 0 where there is no product."""
        on_tensor_cores = bool(self.tensor) and 0 < bits <= 16
        rate = self.tensor * 16 / max(bits, 8) if on_tensor_cores else self.arithmetic
        work, traffic = operations / rate, moved / self.memory
        if max(work, traffic) < self.launch:
            return Bound("launch", self.launch)
        if work > traffic:
            return Bound("tensor" if on_tensor_cores else "arithmetic", work)
        return Bound("memory", traffic)


def machine_for(target: str, features: Sequence[str], threads: int) -> Machine:
    """The machine that a program is for: ``cuda:sm_90a``, or ``cpu`` with LLVM's names of its features."""
    family, _, architecture = target.partition(":")
    if family == "cuda":
        number = int("".join(character for character in architecture if character.isdigit()))
        nearest = max((known for known in _GPUS if known <= number), default=min(_GPUS))
        card, memory, tensor, arithmetic = _GPUS[nearest]
        return Machine(f"{card}, data sheet", memory, tensor, arithmetic, _GPU_LAUNCH)
    lanes = next((lanes for feature, lanes in _LANES if feature in features), 4)
    arithmetic = _CPU_CLOCK * 2 * 2 * lanes * threads
    return Machine(
        f"{threads} threads of {32 * lanes}-bit vectors, estimated", _CPU_BYTES, 0.0, arithmetic, _CPU_LAUNCH
    )
