"""Buffers of materialised blocks in the scratch memory of a call, packed by lifetime."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from tilewright.dtypes import int8
from tilewright.ir.types import Element

_LINE_BYTES = 64  # bytes
_MOST_LANES = 16  # of the longest vector that is read or written in part; see `NestEmitter`


@dataclass(eq=False)
class Storage:
    """A buffer: row-major, its last axis padded so that whole vectors may be read and written."""

    element: Element
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements
    bytes: int
    offset: int = 0
    first: int = 1 << 60  # steps of the schedule between which it holds something
    last: int = -1

    @classmethod
    def for_block(cls, element: Element, shape: tuple[int, ...], rows: int = 0, row_stride: int = 0) -> Storage:
        """A buffer for a block; `rows` and `row_stride` (elements) enlarge the last two axes."""
        lanes = max(_LINE_BYTES // element.itemsize, _MOST_LANES)
        pitch = max(row_stride, -(-shape[-1] // lanes) * lanes)
        padded = [*shape[:-1], pitch]
        if len(shape) > 1 and rows:
            padded[-2] = max(rows, shape[-2])
        strides = [prod(padded[axis + 1 :]) for axis in range(len(shape))]
        return cls(element, shape, tuple(strides), prod(padded) * element.itemsize)

    @classmethod
    def standing(cls, element: Element, shape: tuple[int, ...]) -> Storage:
        """A buffer for a block whose last axes have an extent of 1: the last one that is longer is padded."""
        rank = max(axis for axis, extent in enumerate(shape) if extent > 1) + 1
        lying = cls.for_block(element, shape[:rank])
        return cls(element, shape, lying.strides + (1,) * (len(shape) - rank), lying.bytes)

    @classmethod
    def turned(cls, element: Element, shape: tuple[int, ...]) -> Storage:
        """A buffer for a block of two dimensions, column by column."""
        lying = cls.for_block(element, shape[::-1])
        return cls(element, shape, lying.strides[::-1], lying.bytes)

    @property
    def is_turned(self) -> bool:
        """Whether its columns are what lies together."""
        return len(self.shape) == 2 and self.strides[1] != 1

    @classmethod
    def raw(cls, size: int) -> Storage:
        """Plain bytes, for a kernel's own packed copies."""
        return cls(int8, (size,), (1,), size)

    def touch(self, step: int) -> None:
        self.first, self.last = min(self.first, step), max(self.last, step)


@dataclass
class StoragePlan:
    """All buffers of a function; `loops` are the step ranges of loops."""

    storages: list[Storage] = field(default_factory=list)
    loops: list[tuple[int, int]] = field(default_factory=list)

    def add(self, storage: Storage) -> Storage:
        self.storages.append(storage)
        return storage

    def assign(self) -> int:
        """Give every buffer its offset; returns the bytes needed.

        What is written before a loop and touched inside lives until the loop's end.  Buffers are
        placed largest first at the lowest offset that no living neighbour takes.
        """
        live = [storage for storage in self.storages if storage.last >= 0]
        for storage in live:
            for start, end in sorted(self.loops, reverse=True):
                if storage.first < start <= storage.last:
                    storage.last = max(storage.last, end)
        placed: list[Storage] = []
        for storage in sorted(live, key=lambda item: -item.bytes):
            storage.offset = _lowest_offset(storage, placed)
            placed.append(storage)
        return max((_round(storage.offset + storage.bytes) for storage in placed), default=0)


def _lowest_offset(storage: Storage, placed: list[Storage]) -> int:
    neighbours = [other for other in placed if other.first <= storage.last and storage.first <= other.last]
    offset = 0
    for other in sorted(neighbours, key=lambda item: item.offset):
        if offset + storage.bytes <= other.offset:
            break
        offset = max(offset, _round(other.offset + other.bytes))
    return offset


def _round(size: int) -> int:
    return -(-size // _LINE_BYTES) * _LINE_BYTES
