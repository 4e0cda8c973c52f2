"""Programs for NVIDIA GPUs: the records of each cubin in the manifest, and the session that runs them.

The session is imported when such a program is run: engines for CPUs need none of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from tilewright.engine import gpu_entries
from tilewright.engine.file import Package
from tilewright.engine.gpu_entries import member, program_from_json
from tilewright.engine.plan_json import plan_from_json
from tilewright.errors import DeviceError, MissingDependencyError
from tilewright.runtime.cuda import device as devices
from tilewright.runtime.extern import extern_name, is_extern
from tilewright.runtime.gpu_program import runs_on
from tilewright.runtime.plan import Plan

if TYPE_CHECKING:
    from tilewright.runtime.cuda.session import CudaSession


def on_device() -> bool:
    """Yes: programs run on a GPU, in its memory."""
    return True


def misfit(target: Mapping[str, Any]) -> str | None:
    """Why no GPU of this machine runs a program for `target`; None when the current one does."""
    architecture = str(target["architecture"])
    try:
        device = devices.current_device()
    except (DeviceError, MissingDependencyError) as error:
        return f"it was built for cuda:{architecture}, and {error}"
    if runs_on(architecture, device.capability):
        return None
    major, minor = device.capability
    return f"it was built for cuda:{architecture}, and {device.name} has compute capability {major}.{minor}"


def symbol(program: Mapping[str, Any], weights: Mapping[str, int]) -> str:
    """The digest of everything that a program's kernels are launched with."""
    return gpu_entries.symbol(program["plan"], program["kernels"], weights)


def session(program: Mapping[str, Any], signature: Plan, package: Package) -> CudaSession:
    """The program on the current GPU: code loaded, weights uploaded.

    Raises `DeviceError`, and `ValueError` and the like for a manifest that is malformed.
    """
    from tilewright.runtime.cuda.session import CudaSession

    weights, kernels, plan = package.weights, program["kernels"], plan_from_json(program["plan"])
    used = {choice.kernel for step in plan.steps for choice in step.choices if not is_extern(choice.kernel)}
    programs = {
        key: program_from_json(kernels[key]["launch"], package.objects[member(key)], kernels[key]["name"])
        for key in used
    }
    places = {name: (weights.address + entry.offset, entry.bytes) for name, entry in weights.entries.items()}
    return CudaSession(plan, programs, places, devices.current_device())


def on_device_of(values: Iterable[Any]) -> AbstractContextManager[None]:
    """Make the GPU current on which the first of PyTorch's tensors among `values` is."""
    return devices.on_gpu_of(values)


def library_name(key: str) -> str | None:
    """The readable name of another library's function in a plan; None for kernels."""
    return extern_name(key) if is_extern(key) else None
