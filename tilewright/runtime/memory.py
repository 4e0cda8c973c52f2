"""Memory that calls borrow and give back: arenas of plans and scratch of workers.

Fresh memory from the system costs a page fault for every page at its first use, more than many kernels
take; so buffers are kept, and each call in flight has its own.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

BUFFER_ALIGNMENT = 128  # two cache lines: adjacent lines are fetched together


def _address_offset() -> int | None:
    """Where an array object keeps the address of its elements; None where objects are laid out in another way.

    `PyArrayObject` begins with Python's own header and the data pointer: a layout that NumPy documents, and that
    compiled extensions depend on. Checked once on a sample, so that another Python falls back.
    """
    sample = np.zeros(3)[1:]
    header = object.__basicsize__
    found = None
    if type(sample).__basicsize__ >= header + ctypes.sizeof(ctypes.c_void_p):
        found = ctypes.c_void_p.from_address(id(sample) + header).value
    return header if found == sample.__array_interface__["data"][0] else None


ADDRESS_OFFSET = _address_offset()


def array_address(array: np.ndarray) -> int:
    """The address of an array's first element; reading it from the object costs an eighth of asking NumPy."""
    if ADDRESS_OFFSET is None:
        address: int = array.__array_interface__["data"][0]
        return address
    return ctypes.c_void_p.from_address(id(array) + ADDRESS_OFFSET).value or 0


class AlignedBuffer:
    """Memory at an address that is a multiple of `BUFFER_ALIGNMENT`, at first of zeros.

    Kernels compute in whole vectors, whose last lanes may lie past the end of what is written, and drop what comes of
    them.  Whole numbers and addresses, which used memory is full of, are subnormal numbers when they are read as
    floats, and arithmetic with these takes some CPUs a hundred times as long.
    """

    __slots__ = ("address", "capacity", "_owner")

    def __init__(self, capacity: int) -> None:
        self._owner = np.zeros(capacity + BUFFER_ALIGNMENT, np.uint8)
        start = self._owner.ctypes.data
        self.address = (start + BUFFER_ALIGNMENT - 1) // BUFFER_ALIGNMENT * BUFFER_ALIGNMENT
        self.capacity = capacity


class BufferPool:
    """Buffers that wait for their next use. Keeps at most `keep` of them.

    Safe for several threads and across fork(): a deque's ends need no lock.
    """

    def __init__(self, keep: int = 8) -> None:
        self._keep = keep
        self._idle: deque[AlignedBuffer] = deque()

    @contextmanager
    def borrow(self, capacity: int) -> Iterator[AlignedBuffer]:
        """A buffer of at least `capacity` bytes for the length of a `with` block; contents undefined."""
        buffer = self.take(capacity)
        try:
            yield buffer
        finally:
            self.give(buffer)

    def take(self, capacity: int) -> AlignedBuffer:
        """The idle buffer that was used last, if it is large enough; else a new one in its place."""
        try:
            buffer = self._idle.pop()
        except IndexError:
            return AlignedBuffer(capacity)
        # A smaller one is dropped: a pool settles at the largest size that its calls need.
        return buffer if buffer.capacity >= capacity else AlignedBuffer(capacity)

    def give(self, buffer: AlignedBuffer) -> None:
        """Return a buffer that `take` gave."""
        if len(self._idle) < self._keep:
            self._idle.append(buffer)


scratch_pool = BufferPool()
