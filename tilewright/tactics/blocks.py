"""Block sizes of matrix products: a small analytical model of caches and of sharing work out.

A program computes `rows` x `columns` of the result, `depth` at a time.  Sizes need not be powers of
two: the depth is a divisor of K where there is a good one, columns are whole panels, rows are
multiples of the register tile.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil

from tilewright.dtypes import float32
from tilewright.symbolic import Size, lower_bound, simplify, upper_bound
from tilewright.targets.base import Target
from tilewright.tune.cost import Machine, balance, expected

ROW_STEPS = (4, 16, 64)  # upper ends of the row ranges that get a kernel of their own
LARGEST_DEPTH = 512
MOST_ROWS = 16  # register tiles


@dataclass(frozen=True)
class Blocks:
    """What one program computes."""

    rows: int
    columns: int
    depth: int

    def __str__(self) -> str:
        return f"{self.rows} x {self.columns}, depth {self.depth}"


def row_ranges(rows: Size) -> list[tuple[int | None, int]]:
    """(upper end or None, representative number of rows) of each kernel variant for a size."""
    rows = simplify(rows)
    if isinstance(rows, int):
        return [(None, rows)]
    low, high = lower_bound(rows), upper_bound(rows)
    ranges: list[tuple[int | None, int]] = []
    for step in ROW_STEPS:
        if step >= high:
            return [*ranges, (None, high)]
        if low <= step:
            ranges.append((step, step))
    return [*ranges, (None, min(high, max(expected(rows), 512)))]


def depth_block(depth: Size) -> int:
    """All of a moderate depth, else its largest divisor in a good range, else a masked block."""
    depth = simplify(depth)
    if not isinstance(depth, int):
        return 256
    if depth <= LARGEST_DEPTH:
        return depth
    for block in range(LARGEST_DEPTH, 191, -1):
        if depth % block == 0:
            return block
    steps = ceil(depth / 448)
    return ceil(depth / steps)


@lru_cache(maxsize=4096)
def _choose(rows: int, columns: int, depth: int, batches: int, tile: tuple[int, int], machine: Machine) -> Blocks:
    tile_rows, tile_columns = tile
    block_k = depth_block(depth)
    best: tuple[float, Blocks] | None = None
    column_tiles = ceil(columns / tile_columns)
    for row_tiles in range(1, min(MOST_ROWS, ceil(rows / tile_rows)) + 1):
        block_m = min(row_tiles * tile_rows, rows)
        row_blocks = ceil(rows / block_m)
        block_m = ceil(rows / row_blocks)  # equal blocks instead of a short last one
        if row_blocks > 1:
            block_m = ceil(block_m / tile_rows) * tile_rows
        for panels in range(1, column_tiles + 1):
            if panels > 8 and column_tiles % panels:
                continue
            block_n = panels * tile_columns
            blocks = Blocks(block_m, block_n, block_k)
            seconds = _seconds(rows, columns, depth, batches, blocks, tile, machine)
            if best is None or seconds < best[0]:
                best = (seconds, blocks)
    assert best is not None
    return best[1]


def _seconds(
    rows: int, columns: int, depth: int, batches: int, blocks: Blocks, tile: tuple[int, int], machine: Machine
) -> float:
    """The model: register-tile work, traffic from the caches, program starts, balance of the threads."""
    tiles = ceil(blocks.rows / tile[0]) * ceil(blocks.columns / tile[1])
    # A tile with few rows waits for loads of B, not for multiplications.
    rows_in_tile = max(min(blocks.rows, tile[0]), tile[0] / 3)
    compute = tiles * 2 * rows_in_tile * tile[1] * depth / machine.flops
    steps = ceil(depth / blocks.depth)
    right = blocks.columns * depth * 4
    left = blocks.rows * depth * 4
    result = blocks.rows * blocks.columns * 4 * (2 * steps + 1)
    resident = blocks.columns * blocks.depth * 4 + blocks.rows * blocks.depth * 4 + blocks.rows * blocks.columns * 4
    speed = machine.cache_bandwidth if resident <= machine.l2_bytes * 0.75 else machine.memory_bandwidth / 2
    traffic = (right + left) / (machine.memory_bandwidth) + result / speed
    programs = ceil(rows / blocks.rows) * ceil(columns / blocks.columns) * batches
    one = max(compute, 0.5 * traffic) + 0.5 * min(compute, traffic) + machine.program
    return one * programs / balance(programs, machine.threads) / machine.threads


def choose_blocks(
    rows: int, columns: Size, depth: Size, batches: Size, target: Target, machine: Machine, width: int
) -> Blocks:
    """The best blocks of the model for one problem; unknown sizes at representative values."""
    tile = target.microtile(float32)
    tile = (tile[0], width or tile[1])
    blocks = _choose(rows, expected(columns), expected(depth), expected(batches), tile, machine)
    return Blocks(blocks.rows, blocks.columns, depth_block(depth))
