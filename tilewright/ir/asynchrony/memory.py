"""Shared memory of the CTAs, tiles in it, and the order of accesses.

A `BufferAccess` has a bit.  Knowledge is a set of bits in an int: the accesses that are over for whoever holds it.  A
new access must know every earlier one that it conflicts with (same place, one of them a write); what was written by
ordinary stores and is read by copies or products must besides be fenced.

A load of threads is over at the `shared_wait` that ends it, as late as the operations allow.  Before that it is under
way, for which it has two more bits: `begun`, which all that follows in its threads passes on, and `ordered`, which is
enough for ordinary accesses: those of a CTA's threads come in the order of program and hardware barriers.  Copies do
not, and an arrival at an mbarrier overtakes loads.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.errors import ExecutionError
from tilewright.ir.core import Location, Operation
from tilewright.ir.diagnostics import source_line
from tilewright.ir.types import SharedType

Array = np.ndarray
Box = tuple[tuple[int, int], ...]  # [first, end) along each axis of a buffer


@dataclass(eq=False)
class BufferAccess:
    """One use of a part of a buffer: by whom, by which operation, and whether it writes."""

    bit: int
    box: Box
    writes: bool
    asynchronous: bool  # by the copy engine or the tensor cores
    operation: Operation
    actor: str
    agent: Any
    suspect: tuple[str, str] = ("", "")  # how the agent's last wait before it went, if that was odd
    replaced: int = 0  # the writes that this one made forgotten
    begun: int = 0  # of a load: its bit from its beginning on
    ordered: int = 0  # of a load in this CTA: the bit of those whose ordinary accesses come after it
    overtaken: Operation | None = None  # of a load: what let others go on before it was over

    def is_over(self, known: int, asynchronous: bool) -> bool:
        """Whether whoever knows this may use the same place, by a copy or product or by ordinary accesses."""
        return bool(known & (self.bit if asynchronous else self.bit | self.ordered))

    @property
    def text(self) -> str:
        """What it was, and where."""
        verb = "writes" if self.writes else "reads"
        place = f" at {self.operation.location}" if self.operation.location is not None else ""
        return f"{self.operation.opcode} of {self.actor} {verb} {place}".replace("  ", " ").rstrip()


@dataclass(eq=False)
class SharedBuffer:
    """The memory of one `shared_alloc` in one CTA."""

    name: str
    kind: SharedType
    cta: Any
    data: Array
    written: Array
    accesses: list[BufferAccess] = field(default_factory=list)
    family: list[SharedBuffer] = field(default_factory=list)  # buffers over the same memory, this one too

    def span(self, box: Box) -> tuple[int, int]:
        """The bytes that a part lies in; parts of one tile are taken for the whole."""
        shape = self.kind.shape
        if len(shape) < 3:
            return 0, self.kind.bytes
        stride = self.kind.bytes // shape[0]
        return box[0][0] * stride, box[0][1] * stride


@dataclass(frozen=True, eq=False)
class SharedTile:
    """A part of a buffer as an operation sees it."""

    buffer: SharedBuffer
    box: Box
    dropped: int = 0  # leading axes that an index took away
    transposed: bool = False
    remote: bool = False
    kind: SharedType | None = None  # what the bytes of the part are a tile of

    def view(self, array: Array) -> Array:
        """The part of an array of the buffer's shape; of truth values, a tile made of bytes has one for each byte."""
        part = array[tuple(slice(first, end) for first, end in self.box)]
        part = part.reshape(part.shape[self.dropped :])
        if self.kind is not None:
            if array.dtype == np.bool_:
                return part
            part = part.view(self.kind.element.numpy).reshape(self.kind.shape)
        return np.swapaxes(part, -1, -2) if self.transposed else part

    def indexed(self, index: int) -> SharedTile:
        """One tile of a ring."""
        first, end = self.box[self.dropped]
        if not 0 <= index < end - first:
            raise ExecutionError(
                f"index {index} is outside {self.name}, which has {end - first} tiles", "take the stage of a position"
            )
        box = (*self.box[: self.dropped], (first + index, first + index + 1), *self.box[self.dropped + 1 :])
        return SharedTile(self.buffer, box, self.dropped + 1, self.transposed, self.remote)

    def sliced(self, axis: int, start: int, extent: int, unit: int) -> SharedTile:
        """A part along an axis of this view."""
        if self.kind is not None:
            raise ExecutionError(f"{self.name} is made of bytes and is not divided further")
        rank = len(self.box) - self.dropped
        if self.transposed and axis >= rank - 2:
            axis = 2 * rank - 3 - axis
        place = self.dropped + axis
        first, end = self.box[place]
        if start < 0 or first + start + extent > end:
            raise ExecutionError(
                f"the slice {start}:{start + extent} of {self.name} is outside its {end - first}",
                "a slice counts from the tile's start, not from the tensor's",
            )
        if start % unit:
            raise ExecutionError(
                f"the slice of {self.name} starts at {start}, which is no multiple of {unit}",
                f"only multiples of {unit} are there without moving elements",
            )
        part = (first + start, first + start + extent)
        return SharedTile(
            self.buffer, (*self.box[:place], part, *self.box[place + 1 :]), self.dropped, self.transposed, self.remote
        )

    def typed(self, offset: int, kind: SharedType) -> SharedTile:
        """The tile that bytes are from `offset` on."""
        first, _ = self.box[-1]
        box = (*self.box[:-1], (first + offset, first + offset + kind.bytes))
        return SharedTile(self.buffer, box, self.dropped, kind=kind)

    @property
    def name(self) -> str:
        """``ring[2]``, with rows and columns when it is a part of a tile."""
        indices = "".join(f"[{first}]" for first, _ in self.box[: self.dropped])
        whole = zip(self.box[self.dropped :], self.buffer.kind.shape[self.dropped :], strict=True)
        parts = [f"{first}:{end}" if (first, end) != (0, extent) else ":" for (first, end), extent in whole]
        inner = f"[{', '.join(parts)}]" if any(part != ":" for part in parts) else ""
        return f"{self.buffer.name}{indices}{inner}"


def overlap(left: Box, right: Box) -> bool:
    """Whether two parts of one buffer have an element in common."""
    return all(a[0] < b[1] and b[0] < a[1] for a, b in zip(left, right, strict=True))


def inside(inner: Box, outer: Box) -> bool:
    """Whether a part lies in another."""
    return all(a[0] >= b[0] and a[1] <= b[1] for a, b in zip(inner, outer, strict=True))


def conflicts(tile: SharedTile, writes: bool) -> list[tuple[SharedBuffer, BufferAccess]]:
    """Earlier accesses that overlap with this one, where one of both writes."""
    buffer, found = tile.buffer, []
    for other in buffer.family:
        for access in other.accesses:
            if not (writes or access.writes):
                continue
            if other is buffer:
                meets = overlap(tile.box, access.box)
            else:
                (a, b), (c, d) = buffer.span(tile.box), other.span(access.box)
                meets = a < d and c < b
            if meets:
                found.append((other, access))
    return found


def _forget(buffer: SharedBuffer, access: BufferAccess, known: int, first: int, end: int) -> None:
    """Drop the accesses inside some bytes that are over for another one."""
    buffer.accesses = [
        old
        for old in buffer.accesses
        if not (
            old.is_over(known, access.asynchronous)
            and first <= buffer.span(old.box)[0]
            and buffer.span(old.box)[1] <= end
        )
    ]


def record(tile: SharedTile, access: BufferAccess, known: int) -> None:
    """Keep an access; those that it replaces (known to it, and inside it if it writes) are forgotten."""
    buffer = tile.buffer
    if access.writes:
        remaining = []
        for old in buffer.accesses:
            if not (old.is_over(known, access.asynchronous) and inside(old.box, access.box)):
                remaining.append(old)
            elif old.writes:
                access.replaced |= old.bit | old.replaced
        buffer.accesses = remaining
        for other in buffer.family:
            if other is not buffer:
                _forget(other, access, known, *buffer.span(tile.box))
    buffer.accesses.append(access)


def poison(array: Array) -> None:
    """Fill with what no correct kernel uses."""
    array[...] = array.dtype.type(float("nan")) if array.dtype.kind not in "iu" else array.dtype.type(85)


def overwrite(tile: SharedTile) -> None:
    """What other buffers over the same memory hold there is lost."""
    for other in tile.buffer.family:
        if other is not tile.buffer:
            first, end = tile.buffer.span(tile.box)
            stride = other.kind.bytes // other.kind.shape[0] if len(other.kind.shape) > 2 else other.kind.bytes
            part = slice(first // stride, -(-end // stride)) if len(other.kind.shape) > 2 else slice(None)
            other.written[part] = False
            poison(other.data[part])


def name_of(location: Location | None, fallback: str) -> str:
    """The variable that an allocation was assigned to, with those it passed through: ``ring.full``."""
    names: list[str] = []
    place = location
    while place is not None:
        target, found, _ = source_line(place).partition("=")
        if found and target.strip().isidentifier():
            names.insert(0, target.strip())
        place = place.caller
    return ".".join(names) or fallback
