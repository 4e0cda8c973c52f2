"""The machine model of NVIDIA's GPUs.

The target gives the number of SMs, caches, registers and shared memory: those that the driver reports for this
machine's GPU, else those of the usual card of the architecture.  Memory and peak rates come from the data sheet of the
card, which the driver's name selects.  Other rates were fitted on an H200 and are used for all GPUs: ranking needs only
ratios.  docs/guide/tuning.md#the-machine-model lists the source of each figure.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from tilewright.targets.machine import Launches, Machine, Peak

if TYPE_CHECKING:
    from tilewright.targets.nvidia.target import NvidiaTarget


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
_MEASURED_L2 = 50 << 20  # bytes of its L2 cache
_L2_LEFT = 30e6
_FLOAT32 = {80: 128.0}  # operations a clock of an SM by architecture, 256 for all others
_L2_TOGETHER = 6e12  # bytes a second
_GPU_LAUNCHES = Launches(
    kernel=2.5e-6, overlapped=1.4e-6, program=5e-8, crossing=1.5e-6, hopper_product=1.5e-6, hopper_convolution=1.0e-6
)


@lru_cache(maxsize=64)
def nvidia_machine(target: NvidiaTarget) -> Machine:
    """The rates of a GPU by its target."""
    found, sms = card_of(target.sm, target.card), target.multiprocessors
    return Machine(
        name=f"{found.name.removeprefix('NVIDIA ')}, data sheet",
        processors=sms,
        clock=1.5e9,
        float32=_FLOAT32.get(target.sm, 256.0),
        l2=50.0,
        memory=found.peak.memory * 11 / 12,  # 4.4e12 of an H200's 4.8e12 were reached
        l2_bytes=target.l2_bytes,
        launches=_GPU_LAUNCHES,
        peak=found.peak,
        warp_threads=target.warp_threads,
        threads=target.threads_per_multiprocessor,
        schedulers=4,
        issue=0.87,
        registers=target.registers_per_multiprocessor,
        shared_bytes=target.shared_bytes,
        shared_bytes_of_sm=target.shared_bytes_per_multiprocessor,
        shared_bytes_reserved=target.reserved_shared_bytes,
        float32_clock=1.75e9,
        wgmma_clock=1.6e9,
        mma=found.mma,
        wgmma=found.wgmma,
        l2_tiles=58.0,
        l2_windows=60.0,
        l2_together=_L2_TOGETHER * sms / _MEASURED_SMS,
        l2_left=_L2_LEFT * target.l2_bytes / _MEASURED_L2,
        in_flight=90e3,
        early_flight=48 << 10,
        resident_clusters=tuple(
            (size, count * sms // _MEASURED_SMS) for size, count in _MEASURED_CLUSTERS if target.clusters
        ),
    )


def card_of(sm: int, name: str = "") -> Card:
    """The card of this name; of the usual one of its architecture, or of the nearest before it, where none is known."""
    named = [card for card in CARDS if card.name == name and card.sm == sm]
    nearest = max((card.sm for card in CARDS if card.sm <= sm), default=CARDS[0].sm)
    return (named or [card for card in CARDS if card.sm == nearest])[0]
