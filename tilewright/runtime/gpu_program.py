"""A kernel's code for a GPU, and what a launch must know of it: records that compilers fill, without a driver."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tilewright.dtypes import DType

LARGEST_GRID = (2**31 - 1, 65535, 65535)  # CTAs along each axis


@dataclass(frozen=True)
class Resources:
    """What a kernel's code takes: registers of a thread, and bytes of local and static shared memory."""

    registers: int
    spill_stores: int  # bytes
    spill_loads: int  # bytes
    stack: int  # bytes of a thread
    shared: int  # bytes of static shared memory of a CTA
    barriers: int  # hardware barriers of a CTA


@dataclass(frozen=True)
class TensorMapUse:
    """How a kernel reads or writes one tensor through the tensor memory accelerator.

    `parameter` counts the kernel's parameters; `box` is what one instruction copies, in elements, slowest axis
    first; `swizzle` the bytes of the pattern in shared memory (0: none, 32, 64, 128); `l2_promotion` the bytes that
    L2 fetches at least (0, 64, 128, 256); `fill` what is read outside the tensor: ``zero`` or ``nan``.
    """

    parameter: int
    box: tuple[int, ...]
    element: DType
    swizzle: int = 0
    l2_promotion: int = 128
    fill: str = "zero"


@dataclass(frozen=True)
class Program:
    """A kernel's code with everything that a launch must know; the fields are those of `GpuBinary`."""

    image: bytes  # cubin
    symbol: str
    parameters: tuple[str, ...]  # IR text of each parameter's type: "*f32", "i32", "tensormap<128x64xbf16>", …
    architecture: str  # "sm_90a"
    threads: int  # of a CTA
    shared_bytes: int  # dynamic, of one CTA
    cluster: tuple[int, int, int] = (1, 1, 1)
    tensor_maps: tuple[TensorMapUse, ...] = ()
    dependent_launch: bool = False
    cooperative: bool = False
    name: str = "kernel"  # for errors


def runs_on(architecture: str, capability: tuple[int, int]) -> bool:
    """Whether machine code of an architecture (``sm_86``, ``sm_90a``, ``sm_100f``) runs on a GPU.

    Code runs on later minor versions of its major version; with the suffix ``a`` on this one alone.
    """
    match = re.fullmatch(r"sm_(\d+)(\d)([af]?)", architecture)
    if match is None:
        raise ValueError(f"{architecture!r} is no architecture")
    major, minor = int(match[1]), int(match[2])
    return capability == (major, minor) if match[3] == "a" else capability[0] == major and capability[1] >= minor
