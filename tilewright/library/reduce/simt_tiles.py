"""How inputs of reductions and running operations are split on GPUs, and which splits of running ones are fastest."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tilewright.library.cost import expected
from tilewright.library.generated.generate import next_power_of_2
from tilewright.library.reduce.simt_config import LEAST_CTA_THREADS, MOST_CTA_THREADS
from tilewright.library.reduce.simt_parts import share_of
from tilewright.symbolic import Size, ceil_divide, lift, simplify
from tilewright.targets.machine import Machine

TILE_ELEMENTS = 4096  # elements of a CTA's tile
MOST_REDUCED_PARTS = 512

_RUNNING_ELEMENTS = 8192  # of a tile of four bytes, the most: 16 to each of 512 threads
_LEAST_ELEMENTS = 512
_THREAD_BYTES = 64  # of the elements of a thread
_SECTOR = 16  # bytes of a tile's row, at least
_BEFORE = 512  # totals of parts that a CTA reads, the most
_BLOCK_CLOCKS = 1500.0  # from a block's first load to its last store
_TOTALS_CLOCKS = 1050.0  # from its first load to its total
_ELEMENT = 24  # instructions for an element
_BETTER = 0.85  # of the usual tiles' time, from which on others are chosen


@dataclass(frozen=True)
class Tiles:
    """How an input [outer, reduced, inner] is split: tiles of `across` by `along` elements, and parts of `share`.

    `across` counts columns of a middle dimension, or rows where the last one is reduced; `along` elements of the
    reduced dimension.
    """

    outer: Size
    reduced: Size
    inner: Size
    across: int
    along: int
    parts: int
    share: Size
    threads: int

    @property
    def is_rows(self) -> bool:
        return self.inner == 1

    @property
    def grid(self) -> tuple[Size, Size, Size]:
        """One program for each tile and part."""
        tiles = ceil_divide(self.outer, self.across)
        if not self.is_rows:
            tiles = simplify(lift(self.outer) * ceil_divide(self.inner, self.across))
        return (simplify(lift(tiles) * self.parts), 1, 1)

    @property
    def space(self) -> tuple[Size, Size]:
        """The input as the slots' rows and columns."""
        return (self.outer, self.reduced) if self.is_rows else (simplify(lift(self.outer) * self.reduced), self.inner)

    @property
    def sizes(self) -> dict[str, Size]:
        """The kernels' parameters that say how much there is."""
        names = {"rows": self.outer} if self.is_rows else {"inner": self.inner}
        return {**names, "reduced": self.reduced, "share": self.share}

    @property
    def constants(self) -> dict[str, Any]:
        """Their constants."""
        if self.is_rows:
            return {"ROWS": self.across, "BLOCK": self.along, "PARTS": self.parts}
        return {"BLOCK": self.across, "BLOCK_R": self.along, "PARTS": self.parts}


def running_tiles(usual: Tiles, itemsize: int, wide: int, machine: Machine) -> Tiles:
    """The tiles of a running operation along a middle dimension, whose elements have `itemsize` bytes and sums `wide`.

    Few columns of medium length leave most processors idle: then each CTA has fewer columns, or part of their length,
    but one block of it, as blocks of a column wait for each other.
    """
    if usual.is_rows or not isinstance(usual.reduced, int) or expected(usual.inner) < 2:
        return usual
    best, least = usual, _BETTER * _running_seconds(usual, machine)
    for tiles in _other_tiles(usual, itemsize, wide):
        seconds = _running_seconds(tiles, machine)
        if seconds < least:
            best, least = tiles, seconds
    return best


def _other_tiles(usual: Tiles, itemsize: int, wide: int) -> list[Tiles]:
    """Tiles of other shapes, each with all of a column or of its part."""
    assert isinstance(usual.reduced, int)
    most = _RUNNING_ELEMENTS * 4 // max(4, wide)
    found = []
    across = max(1, _SECTOR // itemsize)
    while across <= min(2 * usual.across, next_power_of_2(expected(usual.inner))):
        along = next_power_of_2(usual.reduced)
        while across * along >= _LEAST_ELEMENTS:
            parts = -(-usual.reduced // along)
            if across * along <= most and parts * across <= _BEFORE:
                threads = across * along * max(4, wide) // _THREAD_BYTES
                threads = max(LEAST_CTA_THREADS, min(MOST_CTA_THREADS, threads))
                share = share_of(usual.reduced, parts, along)
                found.append(replace(usual, across=across, along=along, parts=parts, share=share, threads=threads))
            along //= 2
        across *= 2
    return found


def _running_seconds(tiles: Tiles, machine: Machine) -> float:
    """The expected time of the launches of a running operation: blocks of a CTA follow each other, CTAs of a processor
    share its lanes."""
    blocks = -(-expected(tiles.share) // tiles.along)
    together = -(-expected(tiles.grid[0]) // machine.processors)
    elements = blocks * tiles.across * tiles.along + (tiles.across * tiles.parts if tiles.parts > 1 else 0)
    work = together * elements * _ELEMENT / (machine.lanes * machine.clock)
    seconds = machine.launches.kernel + blocks * _BLOCK_CLOCKS / machine.clock + work
    if tiles.parts > 1:
        seconds += machine.launches.overlapped + blocks * _TOTALS_CLOCKS / machine.clock + work / 2
    return seconds
