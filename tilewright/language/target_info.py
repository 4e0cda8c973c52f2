"""Compile-time facts about the target: ``if tl.target_info.is_cuda():``"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from tilewright.language.core import builtin
from tilewright.language.types import constexpr_function


class KernelTarget(NamedTuple):
    """What a kernel is compiled for: `backend` is "cpu", "cuda" or "hip", `arch` a CPU's name, a compute capability
    (90), or "gfx942"."""

    backend: str
    arch: int | str
    warp_size: int


class _TargetState(threading.local):
    target: KernelTarget | None = None


_state = _TargetState()


@contextmanager
def compiling_for(target: Any) -> Iterator[None]:
    """Kernels traced in the block are for a target (`tilewright.targets.base.Target`)."""
    saved = _state.target
    _state.target = KernelTarget(target.name, target.generation, target.warp_threads)
    try:
        yield
    finally:
        _state.target = saved


@builtin
def current_target() -> KernelTarget:
    """What this kernel is compiled for; in the interpreter, the CPU."""
    return _state.target or KernelTarget("cpu", "", 1)


@constexpr_function
def is_cuda() -> bool:
    """Whether this is compiled for an NVIDIA GPU."""
    return current_target().backend == "cuda"


@constexpr_function
def cuda_capability_geq(major: int, minor: int = 0) -> bool:
    """Whether this is compiled for an NVIDIA GPU of at least this compute capability."""
    target = current_target()
    return target.backend == "cuda" and int(target.arch) >= 10 * major + minor


@constexpr_function
def is_hip() -> bool:
    """Whether this is compiled for an AMD GPU."""
    return current_target().backend == "hip"


@constexpr_function
def is_hip_cdna3() -> bool:
    """Whether this is compiled for gfx942."""
    return current_target().arch == "gfx942"


@constexpr_function
def is_hip_cdna4() -> bool:
    """Whether this is compiled for gfx950."""
    return current_target().arch == "gfx950"


@constexpr_function
def is_hip_gfx1250() -> bool:
    """Whether this is compiled for gfx1250."""
    return current_target().arch == "gfx1250"


__all__ = [
    "cuda_capability_geq", "current_target", "is_cuda", "is_hip", "is_hip_cdna3", "is_hip_cdna4", "is_hip_gfx1250",
]  # fmt: skip
