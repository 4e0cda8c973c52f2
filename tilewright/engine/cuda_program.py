"""Programs of an engine for NVIDIA GPUs: what the manifest says of each cubin, and the session that runs them.

`runtime.cuda` is imported when such a program is looked at: engines for CPUs need none of it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from tilewright import dtypes
from tilewright.engine.file import Package
from tilewright.runtime.plan import Plan

if TYPE_CHECKING:
    from tilewright.runtime.cuda.session import CudaSession
    from tilewright.runtime.gpu_program import Program

_NOT_KEPT = ("image", "name")


def member(key: str) -> str:
    """The name of a cubin in the file."""
    return f"kernels/{key}.cubin"


def program_to_json(program: Program) -> dict[str, Any]:
    """What a launch must know of a cubin, as JSON values."""
    fields = {
        field.name: getattr(program, field.name) for field in dataclasses.fields(program) if field.name not in _NOT_KEPT
    }
    uses = [{**dataclasses.asdict(use), "element": use.element.name} for use in program.tensor_maps]
    return {**fields, "tensor_maps": uses}


def program_from_json(data: Mapping[str, Any], image: bytes, name: str) -> Program:
    """The inverse; raises `KeyError`, `TypeError` or `ValueError` for what `program_to_json` did not write."""
    from tilewright.runtime.gpu_program import Program, TensorMapUse

    uses = tuple(
        TensorMapUse(**{**use, "element": dtypes.BY_NAME[use["element"]], "box": tuple(use["box"])})
        for use in data["tensor_maps"]
    )
    x, y, z = data["cluster"]
    fields = {**data, "tensor_maps": uses, "cluster": (x, y, z), "parameters": tuple(data["parameters"])}
    return Program(image=image, name=name, **fields)


def symbol(plan: Any, kernels: Mapping[str, Any], weights: Mapping[str, int]) -> str:
    """A digest of everything that a program's cubins are launched with: what does not belong together is refused."""
    launches = {key: kernel["launch"] for key, kernel in kernels.items()}
    text = json.dumps([plan, launches, weights], sort_keys=True, separators=(",", ":"))
    return f"tilewright_plan_{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def misfit(target: Mapping[str, Any]) -> str | None:
    """Why no GPU of this machine runs a program for `target`; None when the current one does."""
    from tilewright.errors import DeviceError, MissingDependencyError
    from tilewright.runtime.cuda.device import current_device
    from tilewright.runtime.gpu_program import runs_on

    architecture = str(target["architecture"])
    try:
        device = current_device()
    except (DeviceError, MissingDependencyError) as error:
        return f"it was built for cuda:{architecture}, and {error}"
    if runs_on(architecture, device.capability):
        return None
    major, minor = device.capability
    return f"it was built for cuda:{architecture}, and {device.name} has compute capability {major}.{minor}"


def session(program: Mapping[str, Any], plan: Plan, package: Package) -> CudaSession:
    """The program on the current GPU: code loaded, weights uploaded.

    Raises `DeviceError`, and `ValueError` and the like for a manifest that is malformed.
    """
    from tilewright.runtime.cuda.device import current_device
    from tilewright.runtime.cuda.extern import is_extern
    from tilewright.runtime.cuda.session import CudaSession

    weights, kernels = package.weights, program["kernels"]
    used = {choice.kernel for step in plan.steps for choice in step.choices if not is_extern(choice.kernel)}
    programs = {
        key: program_from_json(kernels[key]["launch"], package.objects[member(key)], kernels[key]["name"])
        for key in used
    }
    places = {name: (weights.address + entry.offset, entry.bytes) for name, entry in weights.entries.items()}
    return CudaSession(plan, programs, places, current_device())


def beside(values: Iterable[Any]) -> AbstractContextManager[None]:
    """Make the GPU current on which the first of PyTorch's tensors among `values` is."""
    from tilewright.runtime.cuda.device import on_gpu_of

    return on_gpu_of(values)


def library_name(key: str) -> str | None:
    """The readable name of another library's function in a plan; None for kernels."""
    from tilewright.runtime.cuda.extern import extern_name, is_extern

    return extern_name(key) if is_extern(key) else None
