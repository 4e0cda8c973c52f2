"""The machine model: the one description with rates that all estimates read.

machine = target.machine()                  # of a CPU or a GPU
machine.processors, machine.memory          # SMs or threads; bytes per second of all of them
machine.launches.kernel                     # seconds of a launch, however short

The target gives the number of SMs, caches and shared memory: those that the driver reports for this machine's GPU, else
those of the usual card of the architecture.  Memory and peak rates come from the data sheet of the card, which the
driver's name selects.  Other rates were fitted on an H200 and are used for all GPUs: ranking needs only ratios.
docs/guide/tuning.md#the-machine-model lists the source of each figure.
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
    registers: int = 0  # of 32 bits
    shared_bytes: int = 0  # the most that a CTA may have
    float32_clock: float = 0.0  # hertz while tensor cores rest
    wgmma_clock: float = 0.0  # hertz while wgmma multiplies
    mma: float = 0.0  # operations a clock of `tl.dot` on 16-bit operands, by mma.sync
    wgmma: float = 0.0  # the same of wgmma, from shared memory
    l2_tiles: float = 0.0  # bytes a clock that tensor copies of matrices get from the L2 cache
    l2_windows: float = 0.0  # the same of boxes of images, which overlap those of neighbours
    l2_together: float = 0.0  # bytes a second of the L2 cache, all SMs together
    in_flight: float = 0.0  # bytes that an SM must have asked for, to draw all of its share of the memory's rate
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

    def warps(self, threads: int) -> int:
        """The warps that so many threads are, one at least."""
        return max(1, threads // self.warp_threads)

    def slots(self, cluster: int) -> int:
        """CTAs that run at once, in clusters of this size, with one on an SM."""
        if cluster == 1:
            return self.processors
        return dict(self.resident_clusters).get(cluster, self.processors // (2 * cluster)) * cluster


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


# -- NVIDIA -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Card:
    """A GPU by the driver's name: what its data sheet says, and operations a clock of an SM's tensor cores.

    `mma` and `wgmma` are dense 16-bit products with sums in float32, as the data sheet has them by SM and clock; but
    the `mma` of Hopper, whose tensor cores only wgmma can fill, is an estimate of mma.sync, which a B200 has as well.
    """

    sm: int
    name: str
    peak: Peak
    mma: float
    wgmma: float = 0.0


# The first of an architecture is the usual one: it stands for targets named by the architecture, and for other names.
CARDS = (
    Card(80, "NVIDIA A100-SXM4-80GB", Peak(2.039e12, 312e12, 19.5e12), 2048),
    Card(80, "NVIDIA A100-SXM4-40GB", Peak(1.555e12, 312e12, 19.5e12), 2048),
    Card(86, "NVIDIA A10", Peak(0.6e12, 125e12, 31.2e12), 1024),
    Card(89, "NVIDIA L4", Peak(0.3e12, 121e12, 30.3e12), 1024),
    Card(89, "NVIDIA L40S", Peak(0.864e12, 362e12, 91.6e12), 1024),
    Card(89, "NVIDIA GeForce RTX 4090", Peak(1.008e12, 165e12, 82.6e12), 512),
    Card(90, "NVIDIA H200", Peak(4.8e12, 989e12, 67e12), 2400, 4096),
    Card(90, "NVIDIA H100 80GB HBM3", Peak(3.35e12, 989e12, 67e12), 2400, 4096),
    Card(90, "NVIDIA H100 PCIe", Peak(2.0e12, 756e12, 51e12), 2400, 4096),  # 114 SMs
    Card(90, "NVIDIA H20", Peak(4.0e12, 148e12, 44e12), 1024, 1024),  # 78 SMs, with a quarter of the tensor cores
    Card(100, "NVIDIA B200", Peak(8.0e12, 2250e12, 75e12), 2400),
    Card(120, "NVIDIA RTX PRO 6000 Blackwell Workstation Edition", Peak(1.792e12, 503.8e12, 126e12), 1024),
    Card(120, "NVIDIA GeForce RTX 5090", Peak(1.792e12, 209.5e12, 104.8e12), 512),
)
_MEASURED_SMS = 132  # of the H200 that measurements are of
# Clusters of so many CTAs, each with an SM to itself, that were resident on it at once. GPCs have several numbers of
# SMs, of which clusters leave some over; GPUs with fewer SMs are taken to leave as large a part over.
_MEASURED_CLUSTERS = ((2, 66), (4, 30), (8, 15))
_FLOAT32 = {80: 128.0}  # operations a clock of an SM by architecture, 256 for all others
_L2_TOGETHER = 6e12  # bytes a second
_GPU_LAUNCHES = Launches(
    kernel=2.5e-6, overlapped=1.4e-6, program=5e-8, crossing=1.5e-6, hopper_product=1.5e-6, hopper_convolution=1.0e-6
)


@lru_cache(maxsize=64)
def nvidia_machine(sm: int, multiprocessors: int, shared_bytes: int, l2_bytes: int, card: str = "") -> Machine:
    """A GPU by its architecture, its number of SMs, its shared memory and L2 cache, and the driver's name of it."""
    found = card_of(sm, card)
    return Machine(
        name=f"{found.name.removeprefix('NVIDIA ')}, data sheet",
        processors=multiprocessors,
        clock=1.5e9,
        float32=_FLOAT32.get(sm, 256.0),
        l2=50.0,
        memory=found.peak.memory * 11 / 12,  # 4.4e12 of an H200's 4.8e12 were reached
        l2_bytes=l2_bytes,
        launches=_GPU_LAUNCHES,
        peak=found.peak,
        warp_threads=32,
        registers=65536,
        shared_bytes=shared_bytes,
        float32_clock=1.75e9,
        wgmma_clock=1.6e9,
        mma=found.mma,
        wgmma=found.wgmma,
        l2_tiles=58.0,
        l2_windows=60.0,
        l2_together=_L2_TOGETHER * multiprocessors / _MEASURED_SMS,
        in_flight=90e3,
        resident_clusters=tuple(
            (size, count * multiprocessors // _MEASURED_SMS) for size, count in _MEASURED_CLUSTERS if sm >= 90
        ),
    )


def card_of(sm: int, name: str = "") -> Card:
    """The card of this name; of the usual one of its architecture, or of the nearest before it, where none is known."""
    named = [card for card in CARDS if card.name == name and card.sm == sm]
    nearest = max((card.sm for card in CARDS if card.sm <= sm), default=CARDS[0].sm)
    return (named or [card for card in CARDS if card.sm == nearest])[0]
