"""Where values are, in the words of ONNX Runtime's Python interface."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from tilewright.errors import InputError, brief

_DEVICES = ("cpu", "cuda")  # by the number that ONNX Runtime has for them
_NVIDIA = 0x10DE  # the number of the vendor; CPUs have none


class OrtAllocatorType(IntEnum):
    """Whether memory is allocated from an arena; here always as a session of ONNX Runtime says: it is."""

    INVALID = -1
    ORT_DEVICE_ALLOCATOR = 0
    ORT_ARENA_ALLOCATOR = 1


class OrtMemType(IntEnum):
    """Whose memory it is: the device's own, or the host's for the inputs or outputs of a device."""

    CPU_INPUT = -2
    CPU_OUTPUT = -1
    CPU = -1
    DEFAULT = 0


class OrtDeviceMemoryType(IntEnum):
    """Whether the host can read a device's memory."""

    DEFAULT = 0
    HOST_ACCESSIBLE = 5


class OrtMemoryInfoDeviceType(IntEnum):
    """The kind of a device."""

    CPU = 0
    GPU = 1
    FPGA = 2
    NPU = 3


@dataclass(frozen=True)
class OrtDevice:
    """Where a value is: the name of a device, "cpu" or "cuda", and its number."""

    name: str
    number: int = 0

    @staticmethod
    def make(ort_device_name: str, device_id: int, vendor_id: int = -1) -> OrtDevice:
        """The device of that name and number. Raises `InputError` for another name than "cpu" or "cuda"."""
        if ort_device_name not in _DEVICES:
            raise InputError(f"the device is {brief(ort_device_name)}: expected 'cpu' or 'cuda'")
        return OrtDevice(ort_device_name, device_id)

    def device_type(self) -> int:
        """0 for a CPU, 1 for a GPU."""
        return _DEVICES.index(self.name)

    def device_id(self) -> int:
        """The device's number."""
        return self.number

    def device_mem_type(self) -> int:
        """0: the device's own memory."""
        return int(OrtDeviceMemoryType.DEFAULT)

    def device_vendor_id(self) -> int:
        """The number of the vendor on the PCI bus: NVIDIA's for a GPU, 0 for a CPU."""
        return _NVIDIA if self.name == "cuda" else 0


@dataclass(frozen=True)
class OrtMemoryInfo:
    """The memory of an input or output: "Cpu" or "Cuda", the number of the device, and whose memory it is."""

    name: str
    allocator_type: OrtAllocatorType
    device_id: int
    mem_type: OrtMemType

    @property
    def device_mem_type(self) -> OrtDeviceMemoryType:
        """Whether the host can read it as well: nothing else is said of it here."""
        return OrtDeviceMemoryType.DEFAULT

    @property
    def device_vendor_id(self) -> int:
        """The number of the device's vendor on the PCI bus; 0 for a CPU."""
        return _NVIDIA if self.name == "Cuda" else 0

    @staticmethod
    def of(device: OrtDevice) -> OrtMemoryInfo:
        """The memory of a device."""
        name = device.name.capitalize()
        return OrtMemoryInfo(name, OrtAllocatorType.ORT_ARENA_ALLOCATOR, device.number, OrtMemType.DEFAULT)
