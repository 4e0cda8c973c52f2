"""A kernel's machine code in a GPU's context, and what a launch must know of it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tilewright.dtypes import DType
from tilewright.errors import DeviceError, LaunchError
from tilewright.runtime.cuda.device import Device
from tilewright.runtime.cuda.driver import api, check
from tilewright.runtime.cuda.streams import not_captured


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
    """A kernel's code with everything that a launch must know; the fields are those of `CudaBinary`."""

    image: bytes  # cubin
    symbol: str
    parameters: tuple[str, ...]  # IR text of each parameter's type: "*f32", "i32", "tensormap<128x64xbf16>", …
    architecture: str  # "sm_90a"
    warps: int
    shared_bytes: int  # dynamic, of one CTA
    cluster: tuple[int, int, int] = (1, 1, 1)
    tensor_maps: tuple[TensorMapUse, ...] = ()
    dependent_launch: bool = False
    cooperative: bool = False
    name: str = "kernel"  # for errors

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return 32 * self.warps


def runs_on(architecture: str, capability: tuple[int, int]) -> bool:
    """Whether machine code of an architecture (``sm_86``, ``sm_90a``, ``sm_100f``) runs on a GPU.

    Code runs on later minor versions of its major version; with the suffix ``a`` on this one alone.
    """
    match = re.fullmatch(r"sm_(\d+)(\d)([af]?)", architecture)
    if match is None:
        raise ValueError(f"{architecture!r} is no architecture")
    major, minor = int(match[1]), int(match[2])
    return capability == (major, minor) if match[3] == "a" else capability[0] == major and capability[1] >= minor


def load(program: Program, device: Device) -> int:
    """The handle (CUfunction) of a program in a GPU's primary context; it stays loaded until the process ends, for
    graphs that were captured may launch it.

    Raises `DeviceError` when the code does not run on this GPU, `LaunchError` when it wants more shared memory
    than the GPU has.
    """
    if not runs_on(program.architecture, device.capability):
        major, minor = device.capability
        raise DeviceError(
            f"kernel '{program.name}' was compiled for {program.architecture} and does not run on GPU "
            f"{device.ordinal}, {device.name}, of compute capability {major}.{minor}: compile it for this GPU"
        )
    if program.shared_bytes > device.shared_bytes:
        raise LaunchError(
            f"kernel '{program.name}' needs {program.shared_bytes} bytes of shared memory for a CTA and "
            f"{device.name} has {device.shared_bytes}; use smaller blocks or fewer stages"
        )
    cuda = api()
    with device.active(), not_captured():
        module = check(cuda.cuModuleLoadData(program.image), f"loading kernel '{program.name}'")
        function = check(cuda.cuModuleGetFunction(module, program.symbol.encode()), f"finding '{program.symbol}'")
        attributes = cuda.CUfunction_attribute
        wanted = {}
        if program.shared_bytes > _SHARED_WITHOUT_ASKING:
            wanted[attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES] = program.shared_bytes
        x, y, z = program.cluster
        if x * y * z > _PORTABLE_CLUSTER:
            wanted[attributes.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED] = 1
        for attribute, value in wanted.items():
            check(cuda.cuFuncSetAttribute(function, attribute, value), f"preparing kernel '{program.name}'")
        check(cuda.cuFuncLoad(function), f"loading kernel '{program.name}'")
    return int(function)


_SHARED_WITHOUT_ASKING = 48 << 10
_PORTABLE_CLUSTER = 8
