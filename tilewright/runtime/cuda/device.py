"""GPUs: what each one is, and its primary context, which all libraries of a process share.

device = current_device()
device.capability                          # (9, 0)
with device.active():                      # its primary context is current in this thread
    ...
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tilewright.errors import DeviceError
from tilewright.runtime.cuda.driver import api, check


@dataclass(frozen=True)
class Device:
    """One GPU of this machine. Sizes in bytes."""

    ordinal: int
    name: str
    capability: tuple[int, int]
    multiprocessors: int
    l2_bytes: int
    memory_bytes: int
    shared_bytes: int  # the most that one CTA may have
    cooperative: bool
    address: str = ""  # on the PCI bus: it tells the GPUs of a machine apart, whichever of them a process sees

    @contextmanager
    def active(self) -> Iterator[Any]:
        """Make the device's primary context current in this thread; on the way out the one before comes back.

        A thread that had none keeps it.
        """
        cuda, context = api(), primary_context(self.ordinal)
        before = int(check(cuda.cuCtxGetCurrent(), "asking for the current context"))
        if before == 0:
            check(cuda.cuCtxSetCurrent(context), f"using GPU {self.ordinal}")
        if before in (0, int(context)):
            yield context
            return
        check(cuda.cuCtxPushCurrent(context), f"using GPU {self.ordinal}")
        try:
            yield context
        finally:
            check(cuda.cuCtxPopCurrent(), f"leaving GPU {self.ordinal}")


@functools.cache
def device(ordinal: int) -> Device:
    """A GPU by number; raises `DeviceError` for one that is not there."""
    cuda = api()
    count = int(check(cuda.cuDeviceGetCount(), "counting GPUs"))
    if not 0 <= ordinal < count:
        raise DeviceError(f"there is no GPU number {ordinal}: this process sees {count}")
    handle = check(cuda.cuDeviceGet(ordinal), f"asking for GPU {ordinal}")
    kinds = cuda.CUdevice_attribute

    def attribute(name: str) -> int:
        kind = getattr(kinds, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(check(cuda.cuDeviceGetAttribute(kind, handle), f"asking GPU {ordinal} for {name}"))

    return Device(
        ordinal=ordinal,
        name=check(cuda.cuDeviceGetName(256, handle), "asking for a GPU's name").split(b"\0")[0].decode(),
        capability=(attribute("COMPUTE_CAPABILITY_MAJOR"), attribute("COMPUTE_CAPABILITY_MINOR")),
        multiprocessors=attribute("MULTIPROCESSOR_COUNT"),
        l2_bytes=attribute("L2_CACHE_SIZE"),
        memory_bytes=int(check(cuda.cuDeviceTotalMem(handle), "asking for a GPU's memory")),
        shared_bytes=attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        cooperative=bool(attribute("COOPERATIVE_LAUNCH")),
        address=":".join(f"{attribute(f'PCI_{part}_ID'):02x}" for part in ("DOMAIN", "BUS", "DEVICE")),
    )


@functools.cache
def primary_context(ordinal: int) -> Any:
    """The context of a GPU that all libraries of the process share; kept until the process ends."""
    cuda = api()
    handle = check(cuda.cuDeviceGet(ordinal), f"asking for GPU {ordinal}")
    return check(cuda.cuDevicePrimaryCtxRetain(handle), f"starting a context on GPU {ordinal}")


def torch_on_gpus() -> Any:
    """PyTorch, where it is imported and works on GPUs already; else None."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and torch.cuda.is_initialized() else None


@contextmanager
def on_gpu_of(values: Iterable[Any]) -> Iterator[None]:
    """Make the GPU current on which the first of PyTorch's CUDA tensors among `values` is; none changes nothing."""
    torch = torch_on_gpus()
    places = (value.device for value in values if torch is not None and isinstance(value, torch.Tensor))
    place = next((place for place in places if place.type == "cuda"), None)
    if torch is None or place is None:
        yield
        return
    with torch.cuda.device(place):
        yield


def current_device() -> Device:
    """PyTorch's current GPU where PyTorch works on GPUs; else that whose context is current in this thread; the first
    one where none is."""
    torch = torch_on_gpus()
    if torch is not None:  # which makes its choice the driver's only when it needs it
        return device(torch.cuda.current_device())
    cuda = api()
    context = check(cuda.cuCtxGetCurrent(), "asking for the current context")
    if int(context) == 0:
        return device(0)
    return device(int(check(cuda.cuCtxGetDevice(), "asking for the current GPU")))
