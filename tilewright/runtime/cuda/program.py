"""A kernel's machine code in a GPU's context."""

from __future__ import annotations

from tilewright.errors import DeviceError, LaunchError
from tilewright.runtime.cuda.device import Device
from tilewright.runtime.cuda.driver import api, check
from tilewright.runtime.cuda.streams import not_captured
from tilewright.runtime.gpu_program import Program, runs_on


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
