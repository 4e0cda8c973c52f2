"""What a kernel call is expected to take: the analytical model that ranks candidates.

seconds = launch + max(compute, memory) / parallel efficiency, with one table of machine constants.
The model ranks; it is not a promise of speed (law 11).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from tilewright.dtypes import DType, float32
from tilewright.settings import settings
from tilewright.symbolic import Size, evaluate, free_symbols
from tilewright.targets.base import Target
from tilewright.tune.gpu import GPU_CACHE_BYTES, GPU_CLOCK, LAUNCH, gpu_of


@dataclass(frozen=True)
class Cost:
    """Estimate for the sizes the builder expects: bytes moved, operations, seconds."""

    bytes: Size
    flops: Size
    seconds: float


@dataclass(frozen=True)
class Machine:
    """Constants of one machine, as far as ranking needs them."""

    threads: int
    flops: float  # fused multiply-adds count 2; one core, float32
    cache_bandwidth: float  # bytes a second and core, from L2
    memory_bandwidth: float  # bytes a second, all cores
    launch: float  # seconds to hand one kernel to the workers
    program: float  # seconds to start one program instance
    l1_bytes: int
    l2_bytes: int


CLOCK = 2.6e9  # a typical sustained clock; only ratios matter


def machine_of(target: Target) -> Machine:
    """The constants for a target; caches and vector width come from its capability table.

    A GPU's thread is a multiprocessor.
    """
    if hasattr(target, "multiprocessors"):
        gpu = gpu_of(target)
        cache = GPU_CLOCK * GPU_CACHE_BYTES
        return Machine(
            gpu.processors, GPU_CLOCK * gpu.float32, cache, gpu.memory, LAUNCH, 5e-8, gpu.shared_bytes, gpu.l2_bytes
        )
    lanes = getattr(target, "vector_bits", 128) // 32
    return Machine(
        threads=settings.threads,
        flops=CLOCK * 2 * 2 * lanes,  # two fused multiply-adds a cycle
        cache_bandwidth=CLOCK * 2 * lanes,
        memory_bandwidth=20e9,
        launch=2e-6,
        program=1e-7,
        l1_bytes=getattr(target, "l1_bytes", 32 << 10),
        l2_bytes=getattr(target, "l2_bytes", 512 << 10),
    )


def expected(size: Size) -> int:
    """A representative value of a size: each symbol at 64, kept inside its range."""
    symbols = {symbol.name: min(max(64, symbol.low), symbol.high) for symbol in free_symbols(size)}
    return evaluate(size, symbols)


def balance(programs: int, threads: int) -> float:
    """The part of the threads' time that is used when equal programs are shared out."""
    rounds = ceil(programs / threads)
    return programs / (rounds * threads)


def estimate(
    machine: Machine, bytes_moved: Size, flops: Size, programs: Size, dtype: DType = float32, efficiency: float = 1.0
) -> Cost:
    """The cost of one launch of `programs` equal program instances."""
    count = max(1, expected(programs))
    used = balance(count, machine.threads)
    peak = machine.flops * machine.threads * efficiency * 4 / max(dtype.itemsize, 4)
    compute = expected(flops) / peak
    memory = expected(bytes_moved) / machine.memory_bandwidth
    overhead = machine.launch + ceil(count / machine.threads) * machine.program
    return Cost(bytes_moved, flops, overhead + max(compute, memory) / used)
