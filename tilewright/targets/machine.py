"""The machine model: the one description with rates that all estimates read.

machine = target.machine()                  # of a CPU or a GPU
machine.processors, machine.memory          # SMs or threads; bytes per second of all of them
machine.launches.kernel                     # seconds of a launch, however short

The figures of GPUs are in `targets/nvidia/machine.py`; docs/guide/tuning.md#the-machine-model lists the source of each.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from tilewright.dtypes import DType


@dataclass(frozen=True)
class Launches:
    """What starting work costs, in seconds: each a different thing."""

    kernel: float  # from the start of a kernel in a graph to that of the next, which waits for its end, at least
    overlapped: float  # the same where the next one starts while the first ends (programmatic dependent launch)
    program: float  # of one program instance on the processor that is to run it
    crossing: float = 0.0  # until a kernel starts that waits for one of another branch of a graph
    barrier: float = 0.0  # until threads of a CPU that share a step know of each other's end
    # What Hopper kernels take besides the clocks that their estimates count from the first copy to the last store.
    hopper_product: float = 0.0
    hopper_convolution: float = 0.0  # always with dependent launch


@dataclass(frozen=True)
class Peak:
    """The most that there is by a data sheet, a second: bytes of memory, operations on 16-bit operands of tensor cores
    (dense, sums in float32; 0 without tensor cores), float32 operations.  A multiplication and an addition are two."""

    memory: float
    tensor: float
    float32: float


@dataclass(frozen=True)
class Machine:
    """Rates of one CPU or GPU as kernels meet them; a processor is an SM of a GPU, or a thread of a CPU.

    Those "a clock" are of one processor; a multiplication and an addition are two operations.
    """

    name: str  # whose peaks there are, and where they are from
    processors: int
    clock: float  # hertz under load, of GPUs while mma.sync multiplies
    float32: float  # operations a clock
    l2: float  # bytes a clock that loads get from the L2 cache
    memory: float  # bytes a second, all processors together
    l2_bytes: int  # of a CPU's core; of all SMs together
    launches: Launches
    peak: Peak
    l1_bytes: int = 0  # of a CPU's core
    # Of GPUs alone:
    warp_threads: int = 1  # that run one instruction together
    threads: int = 1  # resident ones of a processor at most
    schedulers: int = 1  # of a processor, each of which starts an instruction of a warp
    issue: float = 1.0  # instructions that a scheduler of many warps starts a clock
    registers: int = 0  # of 32 bits, of an SM
    shared_bytes: int = 0  # the most that a CTA may have
    shared_bytes_of_sm: int = 0  # that all its CTAs have together, with `shared_bytes_reserved` for each
    shared_bytes_reserved: int = 0
    float32_clock: float = 0.0  # hertz while tensor cores rest
    wgmma_clock: float = 0.0  # hertz while wgmma multiplies
    mma: float = 0.0  # operations a clock of `tl.dot` on 16-bit operands, by mma.sync
    wgmma: float = 0.0  # the same of wgmma, from shared memory
    l2_tiles: float = 0.0  # bytes a clock that tensor copies of matrices get from the L2 cache
    l2_windows: float = 0.0  # the same of boxes of images, which overlap those of neighbours
    l2_together: float = 0.0  # bytes a second of the L2 cache, all SMs together
    l2_left: float = 0.0  # bytes of a kernel's results that are still in the L2 cache when the next one reads them
    in_flight: float = 0.0  # bytes that an SM must have asked for, to draw all of its share of the memory's rate
    early_flight: int = 0  # that it asks for before the kernels ahead have ended, so that theirs do not come last
    resident_clusters: tuple[tuple[int, int], ...] = ()  # (CTAs of a cluster, such clusters at once, a CTA an SM)

    @property
    def flops(self) -> float:
        """float32 operations a second of one processor."""
        return self.clock * self.float32

    @property
    def l2_bandwidth(self) -> float:
        """Bytes a second that one processor loads from the L2 cache."""
        return self.clock * self.l2

    def dot_rate(self, dtype: DType, tf32: bool = False) -> float:
        """Operations of an SM and clock in `tl.dot` on operands of a type; float32 as tf32 only where `tf32`."""
        if dtype.bits <= 16:
            return self.mma * 16 / max(8, dtype.bits)
        if tf32 and dtype.bits == 32:
            return self.mma / 2
        return self.float32 / (1 if dtype.bits <= 32 else 2)

    @property
    def lanes(self) -> int:
        """Threads for which a processor starts an instruction each clock."""
        return self.schedulers * self.warp_threads

    def warps(self, threads: int) -> int:
        """The warps that so many threads are, one at least."""
        return max(1, threads // self.warp_threads)

    def slots(self, cluster: int) -> int:
        """CTAs that run at once, in clusters of this size, with one on an SM; of a size that was not measured as many
        as of the next larger one."""
        if cluster == 1:
            return self.processors
        larger = (size * count for size, count in self.resident_clusters if size >= cluster)
        return next(larger, self.processors // 2) // cluster * cluster


# -- CPUs -------------------------------------------------------------------------------------------------------------

_CPU_CLOCK = 2.6e9  # a typical sustained one
_CPU_MEMORY = 20e9  # of all cores, as nothing better is known
_CPU_LAUNCHES = Launches(kernel=2e-6, overlapped=2e-6, program=1e-7, barrier=1e-6)


@lru_cache(maxsize=64)
def cpu_machine(vector_bits: int, l1_bytes: int, l2_bytes: int, threads: int) -> Machine:
    """A CPU by the capabilities of its target and the number of threads; its clock and memory are typical ones."""
    lanes = vector_bits // 32
    float32 = 2.0 * 2 * lanes  # two fused multiply-adds a clock
    return Machine(
        name=f"{threads} threads of {vector_bits}-bit vectors, estimated", processors=threads, clock=_CPU_CLOCK,
        float32=float32, l2=2.0 * lanes, memory=_CPU_MEMORY, l1_bytes=l1_bytes, l2_bytes=l2_bytes,
        launches=_CPU_LAUNCHES, peak=Peak(_CPU_MEMORY, 0.0, _CPU_CLOCK * float32 * threads),
    )  # fmt: skip
