"""Memory of the interpreter: NumPy arrays at virtual addresses, every access checked.

A pointer is an int64: the number of its buffer in the high bits, the byte offset from the buffer's start
(biased, so that it may be negative on the way) in the low ones.  Pointers thus survive arithmetic and casts
to integers, and an access is known to be inside its own buffer or not.  Real addresses, which a kernel may
load from memory, are found by searching the buffers; what lies outside them is reached in chunks of a mebibyte,
where the operating system tells what is mapped (Linux).
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from types import EllipsisType

import numpy as np

from tilewright.dtypes import DType
from tilewright.errors import ExecutionError

_OFFSET_BITS = 44
_BIAS = 1 << (_OFFSET_BITS - 1)
_FIRST = 1 << 15  # buffers begin at 2**59: above every address of a real machine
_CHUNK = 1 << 20


@dataclass(frozen=True)
class ArrayPointer:
    """A pointer argument: the element `offset` of the memory that `array` spans."""

    array: np.ndarray
    offset: int = 0


@dataclass(frozen=True)
class Address:
    """A pointer argument to memory whose extent nobody knows."""

    number: int


@dataclass(frozen=True)
class Extent:
    """The memory of an argument: its name, the address of its first byte, and how many bytes a kernel may reach."""

    name: str = ""
    first: int = 0
    bytes: int = 2**62  # everywhere


Lanes = np.ndarray | EllipsisType


@dataclass
class Buffer:
    name: str  # of the argument; empty for memory that only its address tells of
    bytes: np.ndarray  # uint8, one dimension
    views: dict[np.dtype, np.ndarray] = field(default_factory=dict)
    stored: bool = False  # something was stored to it

    def view(self, dtype: np.dtype) -> np.ndarray:
        if dtype not in self.views:
            whole = self.bytes.size // dtype.itemsize * dtype.itemsize
            self.views[dtype] = self.bytes[:whole].view(dtype)
        return self.views[dtype]

    def place(self, offset: int, itemsize: int) -> str:
        """What lies at a byte offset as the user knows it: ``x[6]``, the argument and the element, or an address."""
        return f"{self.name}[{offset // itemsize}]" if self.name else hex(self.bytes.ctypes.data + offset)


class LaunchMemory:
    """The buffers that one launch may reach."""

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []
        self.changes = 0  # writes that left other values than there were

    def add(self, array: np.ndarray, name: str, offset: int = 0) -> int:
        """The address of element `offset` of the first element of `array`, whose whole span becomes reachable."""
        flat, first = span(array)
        self.buffers.append(Buffer(name, flat))
        number = _FIRST + len(self.buffers) - 1
        return (number << _OFFSET_BITS) + _BIAS + first + offset * array.dtype.itemsize

    def read(self, addresses: np.ndarray, dtype: DType) -> np.ndarray:
        """The elements at `addresses` (any shape); raises `ExecutionError` when one is not inside a buffer."""
        stored = np.dtype(np.uint8) if dtype.is_bool else dtype.numpy
        result = np.empty(addresses.shape, stored)
        for buffer, offsets, lanes in self.resolve(addresses, dtype):
            result[lanes] = buffer.view(stored)[offsets // stored.itemsize]
        return result != 0 if dtype.is_bool else result

    def write(self, addresses: np.ndarray, values: np.ndarray, dtype: DType) -> None:
        """Store `values` (of the addresses' shape); of several at one address the last remains."""
        stored = np.dtype(np.uint8) if dtype.is_bool else dtype.numpy
        values = np.asarray(values).astype(stored, copy=False)
        for buffer, offsets, lanes in self.resolve(addresses, dtype):
            if not buffer.bytes.flags.writeable:
                destination = buffer.name or f"address {buffer.place(int(offsets.flat[0]), 1)}"
                raise ExecutionError(
                    f"store to {destination}, which is {'a read-only array' if buffer.name else 'read-only'}"
                )
            view, places, chosen = buffer.view(stored), offsets // stored.itemsize, values[lanes]
            self.changes += bool(np.any(view[places] != chosen))
            view[places] = chosen
            buffer.stored = True

    def describe(self, address: int, itemsize: int) -> str:
        """An address as the user knows it: ``x[6]``, the argument and the element, or a number."""
        number = (address >> _OFFSET_BITS) - _FIRST
        if 0 <= number < len(self.buffers):
            buffer, offset = self.buffers[number], (address & ((1 << _OFFSET_BITS) - 1)) - _BIAS
            return buffer.place(offset, itemsize)
        return "null" if address == 0 else hex(address)

    def resolve(self, addresses: np.ndarray, dtype: DType) -> list[tuple[Buffer, np.ndarray, Lanes]]:
        """For each buffer that is met: the byte offsets, checked, and which lanes they belong to (a mask, or all).

        Raises `ExecutionError`, whose `lane` is the first of the addresses that is wrong.
        """
        if not addresses.size:
            return []
        first, last = int(addresses.min()), int(addresses.max())
        number = (first >> _OFFSET_BITS) - _FIRST
        if number == (last >> _OFFSET_BITS) - _FIRST and 0 <= number < len(self.buffers):
            buffer, start = self.buffers[number], ((_FIRST + number) << _OFFSET_BITS) + _BIAS
            offsets = np.asarray(addresses - start)
            size = dtype.itemsize
            inside = start <= first and last <= start + buffer.bytes.size - size
            if not inside or (size > 1 and (offsets & (size - 1)).any()):
                _check(buffer, offsets, dtype)
            return [(buffer, offsets, ...)]
        addresses = self._virtual(addresses)
        numbers = addresses >> _OFFSET_BITS
        offsets = (addresses & ((1 << _OFFSET_BITS) - 1)) - _BIAS
        parts: list[tuple[Buffer, np.ndarray, Lanes]] = []
        for number in np.unique(numbers):
            lanes = numbers == number
            buffer = self.buffers[int(number) - _FIRST]
            chosen = offsets[lanes]
            try:
                _check(buffer, chosen, dtype)
            except ExecutionError as error:
                error.lane = int(np.flatnonzero(lanes)[error.lane or 0])
                raise
            parts.append((buffer, chosen, lanes))
        return parts

    def _virtual(self, addresses: np.ndarray) -> np.ndarray:
        known = self._known(addresses)
        if np.all(known):
            return addresses
        result = addresses.copy()
        while not np.all(known):
            lane = int(np.flatnonzero(~known)[0])
            index = self._holding(int(result.flat[lane]), lane)
            start, size = self.buffers[index].bytes.ctypes.data, self.buffers[index].bytes.size
            here = ~known & (result >= start) & (result < start + size)
            result[here] += ((_FIRST + index) << _OFFSET_BITS) + _BIAS - start
            known |= here
        return result

    def _known(self, addresses: np.ndarray) -> np.ndarray:
        numbers = addresses >> _OFFSET_BITS
        return np.asarray((numbers >= _FIRST) & (numbers < _FIRST + len(self.buffers)))

    def _holding(self, address: int, lane: int) -> int:
        """The number of the buffer that a real address lies in; a chunk of mapped memory is added when none does."""
        for index, buffer in enumerate(self.buffers):
            if 0 <= address - buffer.bytes.ctypes.data < buffer.bytes.size:
                return index
        chunk = _mapped(address)
        if chunk is not None:
            self.buffers.append(Buffer("", chunk))
            return len(self.buffers) - 1
        address_text = "a null pointer" if address == 0 else f"address {address:#x}"
        error = ExecutionError(
            f"access through {address_text}, which is in no argument of the kernel",
            "pass the array to the kernel, or mask off the lanes without a pointer",
            address="null" if address == 0 else hex(address),
        )
        error.lane = lane
        raise error


def _mapped(address: int) -> np.ndarray | None:
    """The bytes around an address of this process, read-only where they are; None when nothing is there."""
    try:
        with open("/proc/self/maps", encoding="utf-8") as table:
            lines = table.read().splitlines()
    except OSError:  # not Linux: nobody tells what is mapped
        return None
    for line in lines:
        extent, permissions = line.split()[:2]
        low, high = (int(bound, 16) for bound in extent.split("-"))
        if low <= address < high and "r" in permissions:
            first, last = max(low, address & -_CHUNK), min(high, (address & -_CHUNK) + _CHUNK)
            chunk = np.ctypeslib.as_array((ctypes.c_uint8 * (last - first)).from_address(first))
            chunk.flags.writeable = "w" in permissions
            return chunk
    return None


def span(array: np.ndarray) -> tuple[np.ndarray, int]:
    """The bytes from the lowest to the highest element of an array, and where its first element is."""
    low = array
    for axis, stride in enumerate(array.strides):
        if stride < 0:
            low = np.flip(low, axis)
    if not array.size:
        return np.zeros(0, np.uint8), 0
    size = array.dtype.itemsize + sum((n - 1) * stride for n, stride in zip(low.shape, low.strides, strict=True))
    count = size // array.dtype.itemsize
    low = low.view(np.dtype(f"u{array.dtype.itemsize}"))  # NumPy cannot stride over ml_dtypes' extension types
    flat = np.lib.stride_tricks.as_strided(low, (count,), (array.dtype.itemsize,), writeable=array.flags.writeable)
    return flat.view(np.uint8), array.ctypes.data - low.ctypes.data


def _check(buffer: Buffer, offsets: np.ndarray, dtype: DType) -> None:
    size = dtype.itemsize
    if size > 1 and (offsets & (size - 1)).any():
        raise misaligned_error(buffer.name or "memory", dtype)
    outside = (offsets < 0) | (offsets > buffer.bytes.size - size)
    if outside.any():
        lane = int(np.flatnonzero(outside)[0])
        extent = (buffer.name, buffer.bytes.size)
        error = outside_error(extent, int(offsets.flat[lane]), dtype, (int(outside.sum()), offsets.size))
        error.address = buffer.place(int(offsets.flat[lane]), size)
        error.lane = lane
        raise error


def outside_error(extent: tuple[str, int], offset: int, dtype: DType, lanes: tuple[int, int]) -> ExecutionError:
    """The error of an access at a byte offset outside of an array: its name and size in bytes; how many lanes of how
    many are outside."""
    (name, size), (outside, total) = extent, lanes
    element, count = offset // dtype.itemsize, size // dtype.itemsize
    also = f" ({outside} of {total} lanes are outside)" if total > 1 else ""
    return ExecutionError(
        f"access out of bounds: element {element} of {name}, which has {count} elements of {dtype}{also}",
        f"let a mask leave out what lies outside, or check the sizes and strides that go with {name}",
        address=f"{name}[{element}]",
    )


def misaligned_error(name: str, dtype: DType) -> ExecutionError:
    """The error of an access between the elements of an array."""
    return ExecutionError(f"access to {name} that is not aligned to its element type {dtype}")
