"""Layouts of blocks in shared memory, and the bank conflicts of reading or writing them.

A `SharedLayout` maps offsets (in elements) to coordinates, one to one, and may add padding.  The swizzles:

    swizzled   within a row of vectors of `vector` elements, vector number v of row r is kept in place
               v ^ (r / per_phase) % phases
    nvmma      what TMA writes and wgmma reads: boxes of rows of `swizzle` bytes, in which the 16-byte chunk c of
               row r is kept in chunk c ^ (r * swizzle / 128) % (swizzle / 16).  For 128 bytes that is c ^ r % 8:
               address bits 4-6 XOR bits 7-9; for 64 bits 4-5 XOR bits 7-8; for 32 bit 4 XOR bit 7

Shared memory has 32 banks of 4 bytes.  An access of a warp is done in phases of 128 bytes: 32 lanes with up to
4 bytes each, 16 with 8, 8 with 16; a phase takes as many cycles ("wavefronts") as some bank has different words to
give.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from tilewright.layout.linear import IntArray, LinearLayout, dimension_names, log2

BANKS = 32
ROW_BYTES = 128  # all banks once
_SWIZZLES = (16, 32, 64, 128)


@dataclass(frozen=True)
class SharedLayout:
    """Where a block's elements lie: a one-to-one map from `offset` to coordinates, then padding.

    `padding` are pairs (interval, amount): after every `interval` elements `amount` are left out (intervals count
    offsets before padding).  `alignment` is what the start of the memory must be a multiple of, in bytes.
    """

    linear: LinearLayout
    padding: tuple[tuple[int, int], ...] = ()
    alignment: int = 16

    def __str__(self) -> str:
        padded = "".join(f" +{amount}/{interval}" for interval, amount in self.padding)
        return f"{self.linear}{padded} align {self.alignment}"

    @property
    def shape(self) -> tuple[int, ...]:
        return self.linear.shape

    def pad(self, offset: IntArray) -> IntArray:
        padded = offset
        for interval, amount in self.padding:
            padded = padded + offset // interval * amount
        return padded

    def offsets(self, elements: npt.ArrayLike) -> IntArray:
        """Offsets of packed elements, in elements."""
        inverse = self.linear.invert()
        packed = np.asarray(elements, np.int64)
        offsets: IntArray = np.zeros(packed.shape, np.int64)
        for bit, vector in enumerate(inverse.columns):
            offsets = offsets ^ (packed >> bit & 1) * vector
        return self.pad(offsets)

    def offset(self, *coordinates: int) -> int:
        """Offset of one element."""
        return int(self.offsets(self.linear.pack(coordinates)))

    def size(self, shape: Sequence[int] | None = None) -> int:
        """Elements to allocate, for the whole block or for a corner of it of extents `shape`."""
        corner = np.indices(shape or self.shape).reshape(len(self.shape), -1)
        packed: IntArray = np.zeros(corner.shape[1], np.int64)
        for coordinate, extent in zip(corner, self.shape, strict=True):
            packed = packed * extent + coordinate
        return int(self.offsets(packed).max()) + 1

    def addresses(self, distributed: LinearLayout) -> LinearLayout:
        """From (register, lane, …) to `offset`: what a thread computes (padding is not in it).

        Its vectors are XORed, so the offset of a thread is computed once, and each register's is a constant to XOR.
        """
        found = self.linear.solve(distributed)
        assert found is not None  # every element lies somewhere
        return found


def unswizzled(shape: Sequence[int], order: Sequence[int] | None = None) -> SharedLayout:
    """Rows one after the other; `order` names the dimensions from the one that varies fastest (default: the last)."""
    return SharedLayout(_strided(shape, order or range(len(shape) - 1, -1, -1)))


def padded(
    shape: Sequence[int], padding: Sequence[tuple[int, int]], order: Sequence[int] | None = None
) -> SharedLayout:
    """`unswizzled` with `amount` elements left out after every `interval`."""
    return SharedLayout(unswizzled(shape, order).linear, tuple((interval, amount) for interval, amount in padding))


def swizzled(
    shape: Sequence[int], vector: int, per_phase: int, phases: int, order: Sequence[int] | None = None
) -> SharedLayout:
    """Vector number v of row r stands in place v ^ (r / per_phase) % phases.

    Rows run along dimension `order[0]`, one row after the other along `order[1]`.  Phases beyond the number of
    vectors of a row are folded.
    """
    order = tuple(order or range(len(shape) - 1, -1, -1))
    if len(order) < 2:
        raise ValueError("a swizzle needs rows and columns")
    column, row = order[0], order[1]
    phases = min(phases, max(1, shape[column] // vector))
    return SharedLayout(_strided(shape, order, row, column, per_phase, vector, phases))


def _strided(
    shape: Sequence[int],
    order: Sequence[int],
    row: int = 0,
    column: int = 0,
    per_phase: int = 1,
    vector: int = 1,
    phases: int = 1,
) -> LinearLayout:
    """Offset bits walk the dimensions in order; row bits of the phase flip column bits as well."""
    vectors: list[tuple[int, ...]] = []
    for axis in order:
        for bit in range(log2(shape[axis])):
            vector_of_bit = [0] * len(shape)
            vector_of_bit[axis] = 1 << bit
            if phases > 1 and axis == row:
                vector_of_bit[column] = ((1 << bit) // per_phase) % phases * vector
            vectors.append(tuple(vector_of_bit))
    return LinearLayout.make({"offset": vectors}, shape)


def nvmma(shape: Sequence[int], element_bits: int, swizzle: int, contiguous: int | None = None) -> SharedLayout:
    """A tile as TMA boxes put it and wgmma descriptors read it.

    The last two dimensions are the tile; `contiguous` is the axis along which memory runs (default: the last, which
    is K-major for an operand whose last dimension is k).  Boxes of `swizzle` bytes x all rows stand one after the
    other; leading dimensions (pipeline stages) are outermost.  `swizzle` 16 is none: 8 rows of 16 bytes are the core
    matrices of a descriptor without swizzle.

    Raises `ValueError` when a row is shorter than the swizzle.
    """
    rank = len(shape)
    column = rank - 1 if contiguous is None else contiguous
    row = 2 * rank - 3 - column
    if swizzle not in _SWIZZLES:
        raise ValueError(f"swizzles are {_SWIZZLES} bytes wide, not {swizzle}")
    if rank < 2 or column not in (rank - 2, rank - 1):
        raise ValueError(f"axis {column} is not one of the last two of {tuple(shape)}")
    box = swizzle * 8 // element_bits
    if shape[column] < box:
        raise ValueError(f"{shape[column]} elements of {element_bits} bits are less than a row of {swizzle} bytes")
    chunk = 128 // element_bits
    split = [*shape[:-2], shape[column] // box, shape[row], box]  # stages, boxes, rows, columns of a box
    last = len(split) - 1
    order = (last, last - 1, last - 2, *range(last - 3, -1, -1))
    inner = _strided(split, order, last - 1, last, ROW_BYTES // swizzle, chunk, swizzle // 16)
    # Row-major (…, rows, boxes, columns of a box) is (…, rows, columns).
    merged = inner.permute([*range(last - 2), last - 1, last - 2, last]).reshape(
        [*shape[:-2], shape[row], shape[column]]
    )
    whole = merged if column == rank - 1 else merged.permute([*range(rank - 2), rank - 1, rank - 2])
    named = LinearLayout(whole.inputs, tuple(zip(dimension_names(rank), shape, strict=True)))
    return SharedLayout(named, alignment=8 * ROW_BYTES if swizzle == 128 else 8 * swizzle)


@dataclass(frozen=True)
class AccessCost:
    """What the accesses of one warp cost: their number, their wavefronts, and the wavefronts without conflicts."""

    accesses: int
    wavefronts: int
    ideal: int

    @property
    def conflict_free(self) -> bool:
        return self.wavefronts == self.ideal

    def __str__(self) -> str:
        return f"{self.accesses} accesses, {self.wavefronts} wavefronts (ideal {self.ideal})"


def wavefronts(offsets: npt.NDArray[np.int64], element_bytes: int, width: int) -> AccessCost:
    """The cost of accesses given by the offset (in elements) of each lane's first element.

    `offsets` has the shape (accesses, lanes); each lane moves `width` elements.  Lanes that want the same word share
    it.  The ideal gives every phase as many cycles as the different words it moves need.
    """
    lane_bytes = width * element_bytes
    phase = min(offsets.shape[1], max(1, ROW_BYTES // max(4, lane_bytes)))
    starts = offsets.reshape(-1, phase) * element_bytes
    words = (starts[:, :, None] + np.arange(0, max(4, lane_bytes), 4)).reshape(len(starts), -1) // 4
    ordered = np.sort(words, axis=1)
    fresh = np.concatenate([np.ones((len(ordered), 1), bool), ordered[:, 1:] != ordered[:, :-1]], axis=1)
    counts = np.zeros((len(ordered), BANKS), np.int64)
    phases, positions = np.nonzero(fresh)
    np.add.at(counts, (phases, ordered[phases, positions] % BANKS), 1)
    ideal = -(-counts.sum(axis=1) // BANKS)
    return AccessCost(len(offsets), int(counts.max(axis=1).sum()), int(ideal.sum()))


def bank_conflicts(distributed: LinearLayout, shared: SharedLayout, element_bits: int, width: int) -> AccessCost:
    """The cost, for all warps, of moving a block between registers and shared memory, `width` elements at a time.

    Raises `ValueError` when the layouts do not let a thread move vectors of that width: the lowest register bits
    must walk along memory, at an aligned place.
    """
    places = shared.addresses(distributed.without_repeats())
    registers = places.bases("register")
    low = log2(width)
    rest = [*registers[low:], *(v for name, vectors in places.inputs if name != "register" for v in vectors)]
    walks = registers[:low] == tuple(1 << bit for bit in range(low))
    if not walks or any(vector % width for vector in rest) or any(i % width or a % width for i, a in shared.padding):
        raise ValueError(f"no vectors of {width} elements between {distributed} and {shared}")
    table = shared.pad(places.table())  # (block, warp, lane, register)
    lanes = places.size("lane")
    starts = table.reshape(-1, lanes, table.shape[-1])[:, :, ::width]
    count = prod(starts.shape) // lanes
    return wavefronts(starts.transpose(0, 2, 1).reshape(count, lanes), max(1, element_bits // 8), width)
