"""Memory that engines keep on a GPU: buffers that grow, workspaces, and page-locked host memory for copies."""

from __future__ import annotations

import ctypes
import os
import weakref

import numpy as np

from tilewright.runtime.cuda.device import Device, current_device
from tilewright.runtime.cuda.driver import api, check
from tilewright.runtime.cuda.memory import DeviceArray
from tilewright.runtime.cuda.streams import LEGACY_DEFAULT, not_captured

_PAGE = 1 << 16  # sizes are rounded up to it


class DeviceBuffer:
    """Memory of a GPU that is made larger when it has to be; what it held is then lost."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._memory: DeviceArray | None = None

    @property
    def bytes(self) -> int:
        return 0 if self._memory is None else self._memory.nbytes

    @property
    def address(self) -> int:
        """0 while it is empty."""
        return 0 if self._memory is None else self._memory.address

    @property
    def memory(self) -> list[DeviceArray]:
        """What it has now, for graphs that refer to it."""
        return [] if self._memory is None else [self._memory]

    def reserve(self, size: int) -> None:
        """Have room for `size` bytes; the old memory is freed, and must not be in use. Raises `DeviceError`."""
        if size > self.bytes:
            self._memory = None
            self._memory = DeviceArray((-(-size // _PAGE) * _PAGE,), np.uint8, self._device.ordinal)


class Workspaces:
    """Memory that calls of another library take while they run: one for each stream, on which they come one after the
    other. What was given out stays, for graphs that were captured know its address."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._given: dict[int, list[DeviceArray]] = {}

    def address(self, stream: int, size: int) -> int:
        """Of at least `size` bytes, 0 for none. Raises `DeviceError`."""
        if not size:
            return 0
        given = self._given.setdefault(stream, [])
        last = given[-1].nbytes if given else 0
        if size > last:  # at least doubled, so that all that stays is less than twice the last
            given.append(DeviceArray((max(size, 2 * last),), np.uint8, self._device.ordinal))
        return given[-1].address


class PinnedBuffer:
    """Page-locked memory of the host, from which and to which a GPU copies by itself; grows like `DeviceBuffer`.

    Like a `DeviceArray` it may be locked, and freed by the garbage collector, while somebody captures a CUDA graph.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._release: weakref.finalize | None = None
        self.bytes = 0
        self.address = 0

    def reserve(self, size: int) -> None:
        """Have room for `size` bytes; raises `DeviceError`."""
        if size <= self.bytes:
            return
        if self._release is not None:
            self._release()
            self.bytes = self.address = 0
        size = -(-size // _PAGE) * _PAGE
        with self._device.active(), not_captured():
            found = check(api().cuMemHostAlloc(size, 0), f"locking {size} bytes of host memory")
        self.address, self.bytes = int(found), size
        self._release = weakref.finalize(self, _free, self.address, self._device, os.getpid())
        self._release.atexit = False  # the driver may be gone by then


class MirroredBuffer:
    """Memory of a GPU and as much of the host, or several times as much, for copies under way; pieces from the
    beginning are copied.

    Copies are in order with the legacy default stream; whoever writes or reads one of `hosts` waits for its copy
    before.
    """

    def __init__(self, size: int, count: int = 1) -> None:
        """Of `size` bytes on the current GPU, and `count` times in the host's memory; raises `DeviceError`."""
        self._device = current_device()
        self.there = DeviceArray((size,), np.uint8, self._device.ordinal)
        self._pinned = [PinnedBuffer(self._device) for _ in range(count)]
        for buffer in self._pinned:
            buffer.reserve(size)
        self.hosts = [
            np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(buffer.address)) for buffer in self._pinned
        ]

    def upload(self, size: int, number: int = 0) -> None:
        """Start copying the first bytes of the host's memory of this number to the GPU."""
        source = self._pinned[number].address
        with self._device.active():
            check(api().cuMemcpyHtoDAsync(self.there.address, source, size, LEGACY_DEFAULT), "copying to a GPU")

    def download(self, size: int, number: int = 0) -> None:
        """Start copying the first bytes from the GPU."""
        target = self._pinned[number].address
        with self._device.active():
            check(api().cuMemcpyDtoHAsync(target, self.there.address, size, LEGACY_DEFAULT), "copying from a GPU")


def _free(address: int, device: Device, process: int) -> None:
    if os.getpid() != process:  # a fork has the object, but not the memory
        return
    with device.active(), not_captured():
        check(api().cuMemFreeHost(address), "freeing locked host memory")


def upload(address: int, pieces: list[tuple[int, int, int]]) -> None:
    """Copy host memory to a GPU's: (offset from `address`, host address, bytes) each. A context is current."""
    cuda = api()
    for offset, source, size in pieces:
        check(cuda.cuMemcpyHtoD(address + offset, source, size), "copying weights to a GPU")


def copy_host(target: int, source: int, size: int) -> None:
    """Copy bytes within the host's memory."""
    ctypes.memmove(target, source, size)
