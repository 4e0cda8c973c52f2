"""The time of products in tiles of `library.matmul.kernel` on a GPU.

seconds = launch + max(waves of CTAs x the slowest unit of a CTA, bytes of global memory)

It ranks tiles and promises nothing: ratios alone matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil

from tilewright.dtypes import DType
from tilewright.library.matmul.problem import MatmulProblem
from tilewright.targets.base import Target
from tilewright.targets.machine import Machine

_ISSUE_ALONE = 0.85  # instructions of a scheduler and clock, of one warp
_STEP_CLOCKS = 330.0  # clocks from one block of the depth to the next that a CTA alone waits
_VECTOR_CLOCKS = 4.0  # of a multiprocessor, for a vector of 16 bytes to each lane of a warp from shared memory
_STEP_ISSUES = 110.0  # instructions for a block of the depth, without arithmetic and loads
_COPIED = 4.0  # instructions for the copy of a single element
_COPIES = 24  # of single elements: their addresses fit into registers with more than `_TWICE` sums
_LOADED = 10.0  # instructions for an element of 16 bits that is loaded alone and goes to shared memory
_WAIT = (
    1700.0  # clocks for a block of such elements (19 x 227 x 1397 takes 26 us in tiles of 16 x 32; H200, 2026-11-29)
)
_SPILLED = 12.0  # instructions for each further copy
_THREAD_SUMS = (8, 16, 32, 64, 128)
_TWICE = 64  # sums of a thread that are kept twice: before a block of the depth, and of the block
_START = 1500.0  # clocks from a CTA's start to its first product
_PARTS = (2, 4, 8, 16, 32, 64)  # of a depth
_UNCROWDED_PARTS = 3  # candidates in parts whose threads keep few sums
_LEAST_STEPS = 3  # blocks of a part


@dataclass(frozen=True)
class SimtTile:
    """A tile of a product: `rows` x `columns` of the result, `depth` at a time, by `threads` threads."""

    rows: int
    columns: int
    depth: int
    threads: int

    def __str__(self) -> str:
        return f"{self.rows} x {self.columns}, depth {self.depth}, {self.threads} threads"

    @property
    def sums(self) -> int:
        """Of a thread."""
        return self.rows * self.columns // self.threads


def simt_problem(sizes: tuple[int, int, int, int], dtype: DType, target: Target) -> MatmulProblem:
    """The problem of a product of (rows, columns, depth, batches), as plain kernels compute it on a target."""
    return MatmulProblem(*sizes, dtype, dtype, exact=not target.tf32)


def tiles(product: MatmulProblem, machine: Machine) -> list[SimtTile]:
    """Tiles that fit shared memory in three stages."""
    size = product.input.itemsize
    depths = (64, 32) if size <= 2 else (32, 16)
    found = []
    for rows in (16, 32, 64, 128):
        for columns in (32, 64, 128):
            if rows == 128 and columns == 32:
                continue
            for depth in depths:
                if 3 * (rows + columns) * depth * size <= machine.shared_bytes - 2048:
                    found += [SimtTile(rows, columns, depth, threads) for threads in _threads(rows * columns, product)]
    return found


def _threads(elements: int, product: MatmulProblem) -> list[int]:
    """How many threads may have a tile of the result."""
    if product.by_addition:
        return [threads for threads in (32, 64, 128, 256) if elements // threads in _THREAD_SUMS]
    return [256 if elements >= 128 * 128 else 128 if elements > 16 * 32 else 64]


def seconds_of(tile: SimtTile, product: MatmulProblem, machine: Machine) -> float:
    """The expected time of a product in tiles of `library.matmul.kernel`."""
    size = product.input.itemsize
    ctas = ceil(product.rows / tile.rows) * ceil(product.columns / tile.columns) * product.batches
    elements = product.rows * product.depth + product.depth * product.columns + product.rows * product.columns
    moved = elements * size * product.batches / (machine.memory * min(1.0, 0.2 + 0.8 * ctas / machine.processors))
    if product.by_addition:
        computed = _float32_clocks(tile, product, ctas, machine) / machine.float32_clock
        return machine.launches.kernel + max(computed, moved)
    shared = 3 * (tile.rows + tile.columns) * tile.depth * size
    resident = max(1, min(512 // tile.threads, machine.shared_bytes // shared))
    # CTAs of one multiprocessor share its units; a single one leaves them idle at times.
    busy = min(ceil(ctas / machine.processors), resident)
    used = {1: 0.6, 2: 0.8}.get(busy, 0.9)
    # Small tiles read more from shared memory for a product than tensor cores can use.
    shape = min(1.0, (tile.rows * tile.columns / (tile.rows + tile.columns)) / 48)
    rate = machine.dot_rate(product.input, not product.exact) * used * max(shape, 0.2)
    work = 2.0 * tile.rows * tile.columns * product.depth / rate
    loads = (tile.rows + tile.columns) * product.depth * size / machine.l2
    waves = ceil(ctas / machine.processors)
    singly = ceil(waves / resident) * _single_clocks(tile, product, busy, machine)
    clocks = _START + max(waves * max(work, loads), singly) + ceil(waves / resident) * 600
    return machine.launches.kernel + max(clocks / machine.clock, moved)


def _single_clocks(tile: SimtTile, product: MatmulProblem, ctas: int, machine: Machine) -> float:
    """Clocks of CTAs on one multiprocessor whose operands of 16 bits come element by element: each block of the depth
    is waited for."""
    copied = zip(product.singly, (tile.rows, tile.columns), strict=True)
    issued = _LOADED * sum(extent for one, extent in copied if one) * tile.depth / tile.threads
    if not issued:
        return 0.0
    together = ctas * tile.threads / machine.warp_threads * issued / machine.schedulers / machine.issue
    return ceil(product.depth / tile.depth) * max(_WAIT + issued, together)


def _float32_clocks(tile: SimtTile, product: MatmulProblem, ctas: int, machine: Machine) -> float:
    """Clocks of multiply-adds in tiles: those of the busiest multiprocessor.

    A block of the depth takes a CTA alone what its instructions take one after the other, and a wait; several share the
    schedulers, and the way from shared memory to registers.  Fitted to 20 tiles of eight products (H200, 2026-11-22).
    """
    sums = tile.sums
    columns = min(8, max(4, sums // 4))  # of a thread, about as `scalar_layout` has them
    loads = tile.depth * (columns + sums / columns) / 4
    arithmetic = sums * tile.depth
    added = sums if sums <= _TWICE else 0
    copied = zip(product.singly, (tile.rows, tile.columns), strict=True)
    copies = sum(extent for one, extent in copied if one) * tile.depth / tile.threads  # of single elements
    crowded = max(0.0, copies - _COPIES) * _SPILLED if sums > _TWICE else 0.0
    issued = arithmetic * 256 / machine.float32 + loads + added + copies * _COPIED + crowded + _STEP_ISSUES
    alone = issued / _ISSUE_ALONE + _STEP_CLOCKS
    read = (tile.rows + tile.columns) * tile.depth * 4 / machine.l2
    warps = tile.threads / machine.warp_threads
    registers = min(255, 64 + 3 * sums)
    staged = 3 * (tile.rows + tile.columns) * tile.depth * 4
    resident = max(1, min(32, machine.registers // (registers * tile.threads), machine.shared_bytes // staged))
    rounds, rest = divmod(ceil(ctas / machine.processors), resident)
    steps = ceil(product.depth / tile.depth)

    def together(count: int) -> float:
        if not count:
            return 0.0
        busiest = ceil(count * warps / machine.schedulers)  # warps of a scheduler
        scheduled = busiest * issued / machine.issue
        loaded = count * warps * loads * _VECTOR_CLOCKS
        return steps * (max(alone, scheduled, loaded, count * read) + count * read / 50) + _START

    return rounds * together(resident) + together(rest)


@lru_cache(maxsize=4096)
def ranked_tiles(products: tuple[MatmulProblem, ...], machine: Machine) -> tuple[tuple[SimtTile, float], ...]:
    """All tiles with their times for the first of several examples; first the one whose times over all examples have
    the least product."""

    def score(tile: SimtTile) -> float:
        total = 1.0
        for product in products:
            total *= seconds_of(tile, product, machine)
        return total

    ranked = sorted(tiles(products[0], machine), key=score)
    return tuple((tile, seconds_of(tile, products[0], machine)) for tile in ranked)


def varied_tiles(ranked: Sequence[tuple[SimtTile, float]], most: int) -> list[tuple[SimtTile, float]]:
    """The first tiles, no more than half of which keep many sums in a thread: there the estimate is least certain."""
    found, crowded = [], 0
    for tile, seconds in ranked:
        crowded += tile.sums > _TWICE
        if tile.sums <= _TWICE or crowded <= most // 2:
            found.append((tile, seconds))
    return found[:most]


def part_length(depth: int, parts: int, tile: SimtTile) -> int:
    """The length of parts that are whole blocks of a tile's depth; the last one may be shorter."""
    return -(-depth // (parts * tile.depth)) * tile.depth


@lru_cache(maxsize=4096)
def ranked_parts(
    product: MatmulProblem, machine: Machine, ragged: bool = False
) -> tuple[tuple[SimtTile, int, float], ...]:
    """The quickest products in parts of the depth, up to three whose threads keep few sums, and the quickest if it is
    none of them: the tile, the number of parts (two or more, which divide the depth unless it may be `ragged`) and
    the time, with that of their sum.  Nothing where no number of parts fits."""
    found: list[tuple[SimtTile, int, float]] = []
    elements = product.rows * product.columns * product.batches
    for parts in _PARTS:
        even, rest = divmod(product.depth, parts)
        if rest and not ragged:
            continue
        summing = machine.launches.kernel + elements * (parts + 1) * 4 / machine.memory
        for tile in tiles(product, machine):
            length = part_length(product.depth, parts, tile) if ragged else even
            if length < _LEAST_STEPS * tile.depth or -(-product.depth // length) != parts:
                continue
            part = replace(product, depth=length, batches=parts * product.batches)
            seconds = seconds_of(tile, part, machine) + summing
            found.append((tile, parts, seconds))
    found.sort(key=lambda each: each[2])
    uncrowded = [each for each in found if each[0].sums <= _TWICE][:_UNCROWDED_PARTS]
    return tuple([each for each in found[:1] if each not in uncrowded] + uncrowded)
