"""Weights as a safetensors file whose tensors start at multiples of 64 bytes, in memory or mapped.

    file = length of the header (8, little endian) · header (JSON, padded with spaces) · tensors

The format allows no holes, so the gaps that alignment leaves are tensors of their own, named
``.padding.N``; any safetensors reader opens the file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.engine.bounded_json import read_json

WEIGHT_ALIGNMENT = 64
_PADDING = ".padding."
_HEADER_LIMIT = 100 << 20
_MOST_DIMENSIONS = 32  # as NumPy 1 has them
_LARGEST = 2**60  # bytes, elements

_NAMES = {
    "int1": "BOOL", "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64",
    "uint8": "U8", "uint16": "U16", "uint32": "U32", "uint64": "U64",
    "float8e5": "F8_E5M2", "float8e4nv": "F8_E4M3", "float8e5b16": "F8_E5M2FNUZ", "float8e4b8": "F8_E4M3FNUZ",
    "float16": "F16", "bfloat16": "BF16",
    "float32": "F32", "float64": "F64",
    "int4": "I4", "uint4": "U4", "int2": "I2", "uint2": "U2", "float4e2": "F4", "float8e8": "F8_E8M0",
}  # fmt: skip
_DTYPES = {name: dtypes.BY_NAME[ours] for ours, name in _NAMES.items()}


@dataclass(frozen=True)
class WeightEntry:
    """A tensor in the file: dtype, shape, and its bytes counted from the first tensor."""

    dtype: DType
    shape: tuple[int, ...]
    offset: int
    bytes: int


@dataclass(frozen=True)
class WeightSource:
    """A tensor that is computed only when it is stored: a model's weights are not held twice."""

    dtype: DType
    shape: tuple[int, ...]
    make: Callable[[], np.ndarray]

    @classmethod
    def of(cls, array: np.ndarray) -> WeightSource:
        return cls(dtypes.from_numpy(array.dtype), array.shape, lambda: array)

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class Weights:
    """A whole weights file: `data` is all of it, `entries` its tensors, `start` where they begin."""

    def __init__(self, data: np.ndarray, entries: Mapping[str, WeightEntry], start: int) -> None:
        self.data = data
        self.entries = dict(entries)
        self.start = start

    @classmethod
    def pack(cls, arrays: Mapping[str, np.ndarray | WeightSource]) -> Weights:
        """Lay out tensors in their order and copy them into one file image."""
        sources = {
            name: array if isinstance(array, WeightSource) else WeightSource.of(array) for name, array in arrays.items()
        }
        entries, header = _layout(sources)
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-(len(text) + 8) % WEIGHT_ALIGNMENT)
        start = 8 + len(text)
        end = max((entry.offset + entry.bytes for entry in entries.values()), default=0)
        data = _aligned(start + end)
        data[:start] = np.frombuffer(len(text).to_bytes(8, "little") + text, np.uint8)
        position = start
        for name, source in sources.items():
            entry = entries[name]
            begin = start + entry.offset
            data[position:begin] = 0
            position = begin + entry.bytes
            np.copyto(data[begin:position].view(entry.dtype.numpy).reshape(entry.shape), source.make())
        return cls(data, entries, start)

    @classmethod
    def parse(cls, data: np.ndarray) -> Weights:
        """Read a file image (bytes as uint8) without copying; raises `ValueError` when it is malformed."""
        try:
            length = int.from_bytes(data[:8].tobytes(), "little")
            if not 0 < length <= min(_HEADER_LIMIT, data.size - 8):
                raise ValueError(f"header of {length} bytes in a file of {data.size}")
            header = read_json(data[8 : 8 + length].tobytes(), _HEADER_LIMIT)
            start = 8 + length
            entries = {
                name: _entry(name, entry, data.size - start)
                for name, entry in header.items()
                if name != "__metadata__" and not name.startswith(_PADDING)
            }
        except (KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"{type(error).__name__} {error}") from error
        return cls(data, entries, start)

    def aligned(self) -> Weights:
        """The same file image, placed so that tensors start at multiples of `WEIGHT_ALIGNMENT`, as kernels expect."""
        memory = np.empty(self.data.size + WEIGHT_ALIGNMENT, np.uint8)
        first = -(memory.ctypes.data + self.start) % WEIGHT_ALIGNMENT
        data = memory[first : first + self.data.size]
        data[:] = self.data
        data.flags.writeable = False
        return Weights(data, self.entries, self.start)

    @property
    def address(self) -> int:
        """Where the first tensor is in memory."""
        return self.data.ctypes.data + self.start

    @property
    def offsets(self) -> dict[str, int]:
        """Each tensor's offset from `address`."""
        return {name: entry.offset for name, entry in self.entries.items()}

    def array(self, name: str) -> np.ndarray:
        """A tensor, without copying."""
        entry = self.entries[name]
        begin = self.start + entry.offset
        return self.data[begin : begin + entry.bytes].view(entry.dtype.numpy).reshape(entry.shape)


def _layout(sources: Mapping[str, WeightSource]) -> tuple[dict[str, WeightEntry], dict[str, Any]]:
    entries: dict[str, WeightEntry] = {}
    header: dict[str, Any] = {}
    position = 0
    for name, source in sources.items():
        if name.startswith(_PADDING) or name == "__metadata__":
            raise ValueError(f"a weight cannot be named {name!r}")
        gap = -position % WEIGHT_ALIGNMENT
        if gap:
            offsets = [position, position + gap]
            header[f"{_PADDING}{position}"] = {"dtype": "U8", "shape": [gap], "data_offsets": offsets}
            position += gap
        end = position + source.bytes
        entries[name] = WeightEntry(source.dtype, source.shape, position, source.bytes)
        header[name] = {"dtype": _NAMES[source.dtype.name], "shape": source.shape, "data_offsets": [position, end]}
        position = end
    return entries, header


def _entry(name: str, data: Any, limit: int) -> WeightEntry:
    dtype, shape = _DTYPES[data["dtype"]], tuple(data["shape"])
    begin, end = data["data_offsets"]
    numbers = (*shape, begin, end)
    if not all(type(number) is int and 0 <= number <= _LARGEST for number in numbers) or len(shape) > _MOST_DIMENSIONS:
        raise ValueError(f"tensor {name[:80]!r} has sizes that are out of range")
    count = math.prod(shape)
    if math.prod(extent or 1 for extent in shape) > _LARGEST:
        raise ValueError(f"tensor {name[:80]!r} has sizes that are out of range")
    if not (begin <= end <= limit) or end - begin != count * dtype.itemsize or begin % dtype.itemsize:
        raise ValueError(
            f"tensor {name[:80]!r} does not fit: {dtype.name} {list(shape)} at {begin}..{end} of {limit} bytes"
        )
    return WeightEntry(dtype, shape, begin, end - begin)


def _aligned(size: int) -> np.ndarray:
    """Uninitialised bytes that start at a multiple of `WEIGHT_ALIGNMENT`."""
    memory = np.empty(size + WEIGHT_ALIGNMENT, np.uint8)
    first = -memory.ctypes.data % WEIGHT_ALIGNMENT
    return memory[first : first + size]
