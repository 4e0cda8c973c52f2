"""The stream on which the caller's library works now: kernels are launched there, in order with its own.

PyTorch and CuPy keep a current stream for each GPU.  Arrays with ``__cuda_array_interface__`` may name one.  Whoever
only exchanges arrays through DLPack (JAX) has none to join: `DLPACK` arrays are launched on the legacy default
stream, which waits for other work, and whoever launches waits for the kernel.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tilewright.runtime.cuda.device import Device, device
from tilewright.runtime.cuda.driver import api, check

TORCH, CUPY, INTERFACE, DLPACK = "torch", "cupy", "interface", "dlpack"
LIBRARIES = (TORCH, CUPY, INTERFACE, DLPACK)  # in the order in which one is asked when arguments are of several

LEGACY_DEFAULT = 1  # the handle with a meaning of its own: a stream that waits for others, and they for it


@dataclass(frozen=True)
class DevicePlace:
    """Where an array is: the number of its GPU, and the library that knows the stream to work on."""

    ordinal: int
    library: str
    family = "cuda"  # of the targets whose code runs there

    def __str__(self) -> str:
        return f"GPU {self.ordinal}"


def current_stream(library: str) -> Callable[[int], int]:
    """A function from a GPU's number to the stream (an integer) of a library, which is imported already."""
    return {TORCH: _torch, CUPY: _cupy}[library]()


def _torch() -> Callable[[int], int]:
    torch = sys.modules["torch"]
    raw: Callable[[int], int] | None = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return raw or (lambda ordinal: int(torch.cuda.current_stream(ordinal).cuda_stream))


def _cupy() -> Callable[[int], int]:
    cupy = sys.modules["cupy"]

    def stream(ordinal: int) -> int:
        if cupy.cuda.runtime.getDevice() == ordinal:
            return int(cupy.cuda.get_current_stream().ptr)
        with cupy.cuda.Device(ordinal):
            return int(cupy.cuda.get_current_stream().ptr)

    return stream


def new_stream() -> int:
    """A stream that waits for no other, nor others for it. A context is current."""
    cuda = api()
    return int(check(cuda.cuStreamCreate(cuda.CUstream_flags.CU_STREAM_NON_BLOCKING), "making a stream"))


def interface_stream(value: Any) -> int:
    """The stream that an array with ``__cuda_array_interface__`` names; the legacy default where it names none."""
    return value.__cuda_array_interface__.get("stream") or LEGACY_DEFAULT


@contextmanager
def not_captured() -> Iterator[None]:
    """Loading code and allocating memory are no part of a graph that this thread may be capturing, nor end a capture.

    A context is current; what is done inside keeps away from the streams that are captured.
    """
    cuda = api()
    relaxed = cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    before = check(cuda.cuThreadExchangeStreamCaptureMode(relaxed), "stepping out of a capture")
    try:
        yield
    finally:
        check(cuda.cuThreadExchangeStreamCaptureMode(before), "going on with a capture")


def synchronize(ordinal: int, stream: int = LEGACY_DEFAULT) -> None:
    """Wait until everything on a stream of a GPU is done; raises `DeviceError` for kernels that failed."""
    with device(ordinal).active():
        check(api().cuStreamSynchronize(stream), "waiting for kernels")


class StreamMark:
    """A place on a stream of a GPU that the host can wait for, while what comes after it runs on."""

    def __init__(self, ordinal: int) -> None:
        self._device = device(ordinal)
        cuda = api()
        with self._device.active():
            flags = cuda.CUevent_flags.CU_EVENT_DISABLE_TIMING
            self._event = check(cuda.cuEventCreate(flags), "making an event")
        release = weakref.finalize(self, _destroy, self._event, self._device, os.getpid())
        release.atexit = False  # the driver may be gone by then

    def set(self, stream: int = LEGACY_DEFAULT) -> None:
        """Here: after all that is on the stream by now."""
        with self._device.active():
            check(api().cuEventRecord(self._event, stream), "marking a place on a stream")

    def wait(self) -> None:
        """Until what came before is done; at once where the mark was never set. Raises `DeviceError`."""
        with self._device.active():
            check(api().cuEventSynchronize(self._event), "waiting for kernels")


def _destroy(event: Any, device: Device, process: int) -> None:
    if os.getpid() != process:  # a fork has the object, but not the event
        return
    with device.active(), not_captured():
        check(api().cuEventDestroy(event), "freeing an event")


def order(ordinal: int, first: int, second: int) -> None:
    """Let what comes on the stream `second` of a GPU wait for all that is on `first` by now."""
    if first == second:
        return
    cuda = api()
    with device(ordinal).active():
        event = check(cuda.cuEventCreate(cuda.CUevent_flags.CU_EVENT_DISABLE_TIMING), "ordering two streams")
        check(cuda.cuEventRecord(event, first), "ordering two streams")
        check(cuda.cuStreamWaitEvent(second, event, 0), "ordering two streams")
        check(cuda.cuEventDestroy(event), "ordering two streams")
