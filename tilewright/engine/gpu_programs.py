"""The modules that run GPU engines, one for each family of targets: `cuda_program` for NVIDIA."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from tilewright.engine import cuda_program
from tilewright.engine.file import Package
from tilewright.runtime.plan import Plan
from tilewright.runtime.session import PlanSession


class GpuPrograms(Protocol):
    """The functions of such a module."""

    def misfit(self, target: Mapping[str, Any]) -> str | None:
        """Why no GPU of this machine runs a program for `target`; None when the current one does."""
        ...

    def session(self, program: Mapping[str, Any], plan: Plan, package: Package) -> PlanSession:
        """The program on the current GPU: code loaded, weights uploaded."""
        ...

    def on_gpu_of(self, values: Iterable[Any]) -> AbstractContextManager[None]:
        """Make the GPU current on which the first of other libraries' tensors is."""
        ...

    def library_name(self, key: str) -> str | None:
        """The readable name of another library's function in a plan; None for kernels."""
        ...


GPU_PROGRAMS: Mapping[str, GpuPrograms] = {"cuda": cuda_program}


def gpu_programs(target: Mapping[str, Any]) -> GpuPrograms | None:
    """What runs programs for a target of a manifest; None for CPUs, and for what this runtime does not know."""
    return GPU_PROGRAMS.get(target["name"])
