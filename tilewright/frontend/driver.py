"""What host code asks of the device that kernels run on: `driver.active`, `set_allocator`.

triton.runtime.driver.active.get_active_torch_device()          # device(type='cpu')
driver.active.utils.get_device_properties(0)["multiprocessor_count"]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tilewright.settings import settings
from tilewright.targets.registry import get_target
from tilewright.testing import do_bench


@dataclass(frozen=True)
class GPUTarget:
    """The machine code's target as kernels' host code tells targets apart: by `backend`, ``cpu`` here."""

    backend: str
    arch: int | str
    warp_size: int


_GREATEST_WARPS = 32  # `num_warps` of a launch at most


class Utilities:
    """`driver.active.utils`."""

    def get_device_properties(self, device: int = 0) -> dict[str, int]:
        """Sizes that occupancy formulas read: a worker thread stands for a multiprocessor, its L2 cache for shared
        memory, and its vector registers for the registers of one warp. Clocks and bus width are not known: 0.

        Formulas divide the registers by those of a kernel times its warps. A worker runs a kernel of any `num_warps`,
        so there are registers for as many warps as one may ask for.
        """
        target = get_target("auto")
        return {
            "max_shared_mem": getattr(target, "l2_bytes", 1 << 20),
            "max_num_regs": getattr(target, "vector_registers", 16) * _GREATEST_WARPS,
            "multiprocessor_count": settings.threads,
            "warpSize": 1,
            "sm_clock_rate": 0,
            "mem_clock_rate": 0,
            "mem_bus_width": 0,
        }


class Driver:
    """The CPU as a device: number 0, with one stream."""

    utils = Utilities()

    def get_current_target(self) -> GPUTarget:
        """The machine that `kernel[grid]` compiles for."""
        target = get_target("auto")
        return GPUTarget(target.name, getattr(target, "cpu", ""), 1)

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
        import torch

        return torch.device("cpu")

    def get_device_interface(self) -> Any:
        """PyTorch's module for the device: ``torch.cpu``."""
        import torch

        return torch.cpu

    def get_benchmarker(self) -> Callable[..., Any]:
        """What measures a call."""
        return do_bench


active = Driver()


def set_allocator(allocator: Callable[[int, int, Any], Any]) -> None:
    """Accepted for kernels that want scratch memory on a device; on the CPU scratch memory is the launcher's."""
    if not callable(allocator):
        raise TypeError(f"an allocator is a function of size, alignment and stream, got {allocator!r}")
