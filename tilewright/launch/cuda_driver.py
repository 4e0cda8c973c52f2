"""NVIDIA's GPUs as host code sees them (`driver.active`)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tilewright.launch.driver import Driver, GPUTarget, torch_module
from tilewright.runtime.cuda import device as devices
from tilewright.runtime.cuda.driver import is_available
from tilewright.targets.registry import target_of_device


class CudaUtilities:
    """`driver.active.utils` of a GPU."""

    def get_device_properties(self, device: int = 0) -> dict[str, int]:
        """Sizes that occupancy formulas read. Clocks and bus width are not asked for: 0."""
        found = devices.device(device)
        machine = target_of_device("cuda", found).machine()
        return {
            "max_shared_mem": found.shared_bytes,
            "max_num_regs": machine.registers,
            "multiprocessor_count": found.multiprocessors,
            "warpSize": machine.warp_threads,
            "sm_clock_rate": 0,
            "mem_clock_rate": 0,
            "mem_bus_width": 0,
        }


class CudaDriver(Driver):
    """The NVIDIA GPUs of this machine, with the device and the stream that are PyTorch's current ones."""

    utils = CudaUtilities()

    @classmethod
    def is_active(cls) -> bool:
        return is_available()

    @classmethod
    def is_used_by_torch(cls) -> bool:
        try:
            return bool(torch_module().cuda.is_available())
        except ImportError:
            return False

    def get_current_target(self) -> GPUTarget:
        gpu = devices.current_device()
        major, minor = gpu.capability
        return replace(GPUTarget.of(target_of_device("cuda", gpu)), arch=10 * major + minor)

    def get_current_device(self) -> int:
        return int(self.get_device_interface().current_device())

    def set_current_device(self, device: int) -> None:
        self.get_device_interface().set_device(device)

    def get_current_stream(self, device: int = 0) -> int:
        return int(self.get_device_interface().current_stream(device).cuda_stream)

    def get_active_torch_device(self) -> Any:
        return torch_module().device("cuda", self.get_current_device())

    def get_device_interface(self) -> Any:
        return torch_module().cuda
