"""The device that host code sees: `driver.active`, `set_allocator`.

from tilewright.launch.driver import driver
driver.active.get_active_torch_device()          # device(type='cpu'), or the GPU where there is one
driver.active.utils.get_device_properties(0)["multiprocessor_count"]
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from tilewright.errors import TargetError, brief
from tilewright.measure.benchmark import do_bench
from tilewright.settings import settings
from tilewright.targets.base import Target
from tilewright.targets.families import FAMILIES, part
from tilewright.targets.registry import get_target, target_of_generation


@dataclass(frozen=True)
class GPUTarget:
    """A machine as kernels' host code tells machines apart: `backend` is ``cpu`` or ``cuda``, `arch` a CPU's name or
    a compute capability (90)."""

    backend: str
    arch: int | str
    warp_size: int

    @classmethod
    def of(cls, target: Target) -> GPUTarget:
        """The machine that a target compiles for."""
        return cls(target.name, target.generation, target.warp_threads)

    def target(self) -> Target:
        """The target that compiles for it; raises `TargetError` for a machine that there is no target for."""
        return target_of_generation(self.backend, self.arch)


def torch_module() -> Any:
    """PyTorch, which programs have that ask for its devices; raises `ImportError` without it."""
    return importlib.import_module("torch")


_GREATEST_WARPS = 32  # `num_warps` of a launch at most


class Utilities:
    """`driver.active.utils` of the CPU."""

    def get_device_properties(self, device: int = 0) -> dict[str, int]:
        """Sizes that occupancy formulas read: a worker thread stands for a multiprocessor, its L2 cache for shared
        memory, and its vector registers for the registers of one warp. Clocks and bus width are not known: 0.

        Formulas divide the registers by those of a kernel times its warps. A worker runs a kernel of any `num_warps`,
        so there are registers for as many warps as one may ask for.
        """
        target = get_target("cpu")
        return {
            "max_shared_mem": target.l2_bytes,
            "max_num_regs": target.vector_registers * _GREATEST_WARPS,
            "multiprocessor_count": settings.threads,
            "warpSize": 1,
            "sm_clock_rate": 0,
            "mem_clock_rate": 0,
            "mem_bus_width": 0,
        }


class Driver:
    """The CPU as a device: number 0, with one stream."""

    utils: Any = Utilities()

    @classmethod
    def is_active(cls) -> bool:
        """Whether this machine has such a device."""
        return True

    @classmethod
    def is_used_by_torch(cls) -> bool:
        """Whether PyTorch is there, and sees the device."""
        return True

    def get_current_target(self) -> GPUTarget:
        """The machine that kernels on this device's arrays are compiled for."""
        return GPUTarget.of(get_target("cpu"))

    def get_current_device(self) -> int:
        """The device's number."""
        return 0

    def set_current_device(self, device: int) -> None:
        """Choose the device; raises `ValueError` for another number than 0."""
        if device != 0:
            raise ValueError(f"there is one device, number 0, got {device}")

    def get_current_stream(self, device: int = 0) -> int:
        """The stream that launches go to; a launch on the CPU is done when it returns."""
        return 0

    def get_active_torch_device(self) -> Any:
        """Where kernels' tensors live, as PyTorch names it."""
        return torch_module().device("cpu")

    def get_device_interface(self) -> Any:
        """PyTorch's module for the device: ``torch.cpu``."""
        return torch_module().cpu

    def get_benchmarker(self) -> Callable[..., Any]:
        """What measures a call."""
        return do_bench

    def get_empty_cache_for_benchmark(self) -> Any:
        """Memory that is written between measured calls: none, since caches stay warm on the CPU."""
        return None

    def clear_cache(self, cache: Any) -> None:
        """Nothing to clear."""


class DriverConfig:
    """Which device host code is told of: `active`, which `set_active` changes and `reset_active` puts back."""

    def __init__(self) -> None:
        self._default: Any = None
        self._active: Any = None

    @property
    def default(self) -> Any:
        """The GPUs where PyTorch sees one, else the CPU; ``TRITON_DEFAULT_BACKEND`` (cpu, cuda) chooses."""
        if self._default is None:
            self._default = _default_driver()
        return self._default

    @property
    def active(self) -> Any:
        """The driver in use."""
        return self.default if self._active is None else self._active

    def set_active(self, driver: Any) -> None:
        """Use another driver."""
        self._active = driver

    def reset_active(self) -> None:
        """Use the default one again."""
        self._active = None


def _default_driver() -> Driver:
    chosen = os.environ.get("TRITON_DEFAULT_BACKEND", "")
    if chosen not in ("", *FAMILIES):
        raise TargetError(f"TRITON_DEFAULT_BACKEND={chosen!r}: choose {' or '.join(FAMILIES)}")
    drivers: dict[str, type[Driver]] = {name: part(row.launching).driver for name, row in FAMILIES.items()}
    wanted = [drivers[chosen]] if chosen else [kind for kind in drivers.values() if kind is not Driver]
    found = next((kind for kind in wanted if kind.is_active()), None)
    if found is None and chosen:
        raise TargetError(f"TRITON_DEFAULT_BACKEND={chosen}: there is no GPU with a driver on this machine")
    return found() if found is not None and found.is_used_by_torch() else Driver()


driver = DriverConfig()


def __getattr__(name: str) -> Any:
    if name == "active":  # so that the module itself may stand for `driver`
        return driver.active
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class AllocatedMemory(Protocol):
    """Memory that an allocator gives."""

    def data_ptr(self) -> int:
        """Its address."""
        ...


Allocator = Callable[[int, int, Any], Any]  # size and alignment in bytes, stream; returns an `AllocatedMemory`


class NullAllocator:
    """An allocator that gives nothing."""

    def __call__(self, size: int, alignment: int, stream: Any) -> Any:
        raise RuntimeError("no allocator was set: call triton.set_allocator")


def set_allocator(allocator: Allocator) -> None:
    """Accepted for kernels that want scratch memory on a device: here scratch memory is the launcher's."""
    if not callable(allocator):
        raise TypeError(f"an allocator is a function of size, alignment and stream, got {brief(allocator)}")
