"""Constructors of distributed layouts: which register of which lane, warp and block holds each element.

All of them give a `LinearLayout` with the inputs register, lane, warp, block (in this order, block = the CTA of a
cluster) and the outputs dim0, dim1, ….  Shapes are of one block of a cluster, in powers of two; for a matrix
instruction whose width is none, such as wgmma with 224 columns, take the next one and `live_registers`.

    Blocked((1, 4), (8, 4), (4, 1), (1, 0)).layout((32, 16))
        register (0,1) (0,2); lane (0,4) (0,8) (1,0) (2,0) (4,0); warp (8,0) (16,0); block -> dim0=32 dim1=16

A block larger than a layout's tile repeats it in more registers; a smaller one is held by several lanes or warps,
whose bits then have the vector 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np

from tilewright.layout.linear import LinearLayout, log2

REGISTER_INPUTS = ("register", "lane", "warp", "block")
Vector = tuple[int, ...]
Bases = dict[str, list[Vector]]


@dataclass(frozen=True)
class Blocked:
    """Neighbouring elements to a thread, neighbouring threads side by side: the layout of memory accesses.

    For each axis: elements of a thread, lanes of a warp, warps of a block; `order` names the axes from the one that
    varies fastest.
    """

    elements: tuple[int, ...]
    lanes: tuple[int, ...]
    warps: tuple[int, ...]
    order: tuple[int, ...]

    def __str__(self) -> str:
        return f"blocked(elements {self.elements}, lanes {self.lanes}, warps {self.warps}, order {self.order})"

    @property
    def tile(self) -> tuple[int, ...]:
        """Extents that one round of registers covers."""
        return tuple(map(prod, zip(self.elements, self.lanes, self.warps, strict=True)))

    def layout(self, shape: Sequence[int]) -> LinearLayout:
        """The layout of a block of `shape`."""
        return _blocked(self, tuple(shape))


@lru_cache(maxsize=1024)
def _blocked(blocked: Blocked, shape: tuple[int, ...]) -> LinearLayout:
    if sorted(blocked.order) != list(range(len(shape))) or len(blocked.elements) != len(shape):
        raise ValueError(f"{blocked} does not describe a block of {len(shape)} dimensions")
    tile = _Tile(len(shape))
    for name, counts in (("register", blocked.elements), ("lane", blocked.lanes), ("warp", blocked.warps)):
        tile.stack(name, counts, blocked.order)
    return tile.fit(shape, blocked.order)


class _Tile:
    """A layout under construction: boxes of places stacked upon each other."""

    def __init__(self, rank: int, bases: Bases | None = None, extents: Sequence[int] | None = None) -> None:
        self.bases: Bases = {name: list((bases or {}).get(name, [])) for name in REGISTER_INPUTS}
        self.extents = list(extents or (1,) * rank)

    def stack(self, name: str, counts: Sequence[int], order: Sequence[int]) -> None:
        """Repeat the tile `counts` times along each axis, the copies numbered by further bits of an input."""
        for axis in order:
            for _ in range(log2(counts[axis])):
                self.bases[name].append(_unit(len(counts), axis, self.extents[axis]))
                self.extents[axis] *= 2

    def share(self, name: str, count: int) -> None:
        """`count` copies that hold the same elements."""
        self.bases[name].extend([(0,) * len(self.extents)] * log2(count))

    def fit(self, shape: Sequence[int], order: Sequence[int]) -> LinearLayout:
        """Repeat in registers up to a shape, and fold what stands over it."""
        more = [max(1, extent // own) for extent, own in zip(shape, self.extents, strict=True)]
        self.stack("register", more, order)
        folded = {
            name: [tuple(c if c < extent else 0 for c, extent in zip(v, shape, strict=True)) for v in vectors]
            for name, vectors in self.bases.items()
        }
        return LinearLayout.make(folded, shape).without_repeats()


def _unit(rank: int, axis: int, value: int) -> Vector:
    return tuple(value if position == axis else 0 for position in range(rank))


# Lane l of a matrix instruction holds row l // 4 and a pair of columns at 2 * (l % 4).
_LANE_ROWS: list[Vector] = [(1, 0), (2, 0), (4, 0)]


def mma_accumulator(shape: Sequence[int], warps: Sequence[int]) -> LinearLayout:
    """Results of mma.sync m16n8: lane l has rows l/4 and l/4 + 8, columns 2 (l mod 4) and the next.

        register (0,1) (8,0); lane (0,2) (0,4) (1,0) (2,0) (4,0) -> dim0=16 dim1=8

    `warps` = warps along the rows and along the columns, each next to the other, numbered along the columns first;
    the whole repeats in registers, along the columns first.  One instruction is four consecutive registers.
    """
    bases: Bases = {"register": [(0, 1), (8, 0)], "lane": [(0, 2), (0, 4), *_LANE_ROWS]}
    tile = _Tile(2, bases, (16, 8))
    tile.stack("warp", warps, (1, 0))
    return tile.fit(shape, (1, 0))


def wgmma_accumulator(shape: Sequence[int], columns: int, groups: Sequence[int] = (1, 1)) -> LinearLayout:
    """Results of wgmma m64n`columns`: each of a group's four warps has 16 rows of the m16n8 pattern, repeated along n.

        64 x 16:  register (0,1) (8,0) (0,8); lane (0,2) (0,4) (1,0) (2,0) (4,0); warp (16,0) (32,0)

    `groups` = warpgroups along the rows and along the columns, numbered along the rows first.  `columns` may be any
    legal n; then the layout (and `shape[1]`) has those of the next power of two, of which `live_registers` keeps the
    real ones: registers are n8 block by n8 block, so they are the first `columns / 2` of every instruction.
    """
    if columns % 8 or not 8 <= columns <= 256:
        raise ValueError(f"wgmma has 8 to 256 columns in steps of 8, not {columns}")
    if columns & (columns - 1) and (groups[1] > 1 or shape[1] != next_power_of_two(columns)):
        raise ValueError(f"an instruction of {columns} columns must span its block alone")
    bases: Bases = {"register": [(0, 1), (8, 0)], "lane": [(0, 2), (0, 4), *_LANE_ROWS], "warp": [(16, 0), (32, 0)]}
    tile = _Tile(2, bases, (64, 8))
    tile.stack("register", (1, next_power_of_two(columns) // 8), (1, 0))
    tile.stack("warp", groups, (0, 1))
    return tile.fit(shape, (1, 0))


def mma_operand(shape: Sequence[int], operand: int, warps: Sequence[int], width: int) -> LinearLayout:
    """Operand A (`operand` 0, shape m x k) or B (1, k x n) of mma.sync m16n8, for the warps of `mma_accumulator`.

    `width` is the number of neighbours along k that a lane holds: 1 for tf32 (k8), 2 for 16-bit (k16), 4 for 8-bit
    (k32).  A: rows l/4 and l/4 + 8, k at width (l mod 4) and 4 width further on; B: column l/4, the same k.

        A, width 2:  register (0,1) (8,0) (0,8); lane (0,2) (0,4) (1,0) (2,0) (4,0) -> dim0=16 dim1=16

    A larger width than the element's own (a power of two times it) gives a lane more neighbours, to be loaded at once:
    since a sum may be taken in any order, instruction i then takes the i-th part of every run, in A and B alike.
    """
    return _operand(tuple(shape), operand, tuple(warps), width, 1)


def wgmma_operand(shape: Sequence[int], width: int, groups: Sequence[int] = (1, 1)) -> LinearLayout:
    """Operand A of wgmma in registers, 64 x k: the A of mma.sync for each of the four warps (see `mma_operand`).

    For 16-bit elements (`width` 2) it is the accumulator's own layout: a product can enter the next one as it is.
    """
    return _operand(tuple(shape), 0, tuple(groups), width, 4)


@lru_cache(maxsize=1024)
def _operand(shape: Vector, operand: int, warps: Vector, width: int, rows_of_warps: int) -> LinearLayout:
    along_k = [1 << bit for bit in range(log2(width))]
    if operand == 0:
        registers = [*((0, k) for k in along_k), (8, 0), (0, 4 * width)]
        lanes = [(0, width), (0, 2 * width), *_LANE_ROWS]
        extents = (16, 8 * width)
    else:
        registers = [*((k, 0) for k in along_k), (4 * width, 0)]
        lanes = [(width, 0), (2 * width, 0), *((0, row) for row, _ in _LANE_ROWS)]
        extents = (8 * width, 8)
    tile = _Tile(2, {"register": list(registers), "lane": list(lanes)}, extents)
    tile.stack("warp", (rows_of_warps, 1), (0, 1))
    # The warps number the columns first for mma.sync, the rows first for wgmma; those along the other operand's
    # dimension share this operand.
    for axis in (1, 0) if rows_of_warps == 1 else (0, 1):
        if axis == operand:
            tile.stack("warp", _unit_counts(axis, warps[axis]), (axis,))
        else:
            tile.share("warp", warps[axis])
    return tile.fit(shape, (1, 0) if operand == 0 else (0, 1))


def _unit_counts(axis: int, count: int) -> Vector:
    return (count, 1) if axis == 0 else (1, count)


def slice_of(parent: LinearLayout, axis: int) -> LinearLayout:
    """The parent's layout without one dimension: where a reduction along it leaves its results.

    `expand_dims` on that axis takes it back; lanes and warps that moved along it hold copies, registers are not kept
    twice.
    """
    return parent.drop(axis).without_repeats()


def joined(parent: LinearLayout) -> LinearLayout:
    """Two blocks of the parent's layout joined along a new last dimension of 2: its bit is register bit 0."""
    wider = LinearLayout(
        tuple((name, tuple(2 * vector for vector in vectors)) for name, vectors in parent.inputs),
        (*parent.outputs, (f"dim{len(parent.shape)}", 2)),
    )
    return wider.with_bases("register", (1, *wider.bases("register")))


def split(parent: LinearLayout) -> tuple[LinearLayout, int] | None:
    """The layout of the two halves along the last dimension, of 2, and the register bit that tells them apart.

    None when threads or several register bits tell them apart (convert to `joined` of some layout first).
    """
    holders = [(name, vector) for name, vectors in parent.inputs for vector in vectors if vector & 1]
    if parent.shape[-1:] != (2,) or holders != [("register", 1)]:
        return None
    bit = parent.bases("register").index(1)
    rest = parent.with_bases("register", [vector for vector in parent.bases("register") if vector != 1])
    return rest.drop(len(parent.shape) - 1), bit


def on_threads(layout: LinearLayout, lanes: int, warps: int, blocks: int = 1) -> LinearLayout:
    """A layout with these inputs filled up by copies: all threads of a kernel take part in everything."""
    wanted = {"lane": lanes, "warp": warps, "block": blocks}
    for name, count in wanted.items():
        vectors = layout.bases(name)
        if len(vectors) > log2(count):
            raise ValueError(f"the layout needs {1 << len(vectors)} {name}s, there are {count}")
        layout = layout.with_bases(name, [*vectors, *(0,) * (log2(count) - len(vectors))])
    return layout


def live_registers(layout: LinearLayout, shape: Sequence[int]) -> tuple[int, ...]:
    """Registers that hold, in some thread, an element inside the corner of extents `shape` of the block."""
    table = layout.table()
    inside = np.ones(table.shape, bool)
    for extent, own in zip(reversed(shape), reversed(layout.shape), strict=True):
        inside &= table % own < extent
        table = table // own
    return tuple(int(register) for register in np.flatnonzero(inside.any(axis=tuple(range(inside.ndim - 1)))))


def next_power_of_two(number: int) -> int:
    return 1 << max(0, number - 1).bit_length()
