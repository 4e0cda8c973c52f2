"""Block sizes of matrix products: a small analytical model of caches and of sharing work out.

A program computes `rows` x `columns` of the result, `depth` at a time.  Sizes need not be powers of
two: the depth is a divisor of K where there is a good one, columns are whole panels, rows are
multiples of the register tile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, prod

from tilewright.dtypes import DType
from tilewright.library.cost import balance, expected
from tilewright.library.matmul.blocks import MatmulBlocks
from tilewright.symbolic import Size, simplify
from tilewright.targets.base import Target
from tilewright.targets.machine import Machine

LARGEST_DEPTH = 512
LARGEST_TILED_DEPTH = 2048  # in tile registers: a product takes the depth in runs by itself, without clearing its sums
MOST_ROW_TILES = 16  # register tiles


def depth_block(depth: Size, largest: int = LARGEST_DEPTH) -> int:
    """All of a moderate depth, else its largest divisor in a good range, else a masked block."""
    depth = simplify(depth)
    if not isinstance(depth, int):
        return 256
    if depth <= largest:
        return depth
    for block in range(largest, 191, -1):
        if depth % block == 0:
            return block
    steps = ceil(depth / 448)
    return ceil(depth / steps)


@dataclass(frozen=True)
class _Kernel:
    """The innermost product."""

    tile: tuple[int, int]  # of registers
    rate: float  # relative to float32
    itemsize: int  # of an operand's element
    in_place: bool  # whether B is read where it lies, in groups


@lru_cache(maxsize=4096)
def _choose(
    rows: tuple[int, ...], columns: int, depth: int, batches: int, kernel: _Kernel, machine: Machine
) -> MatmulBlocks:
    """The blocks with the least product of the times of all examples."""
    best: tuple[float, MatmulBlocks] | None = None
    for blocks in _possible(max(rows), columns, depth, kernel.tile):
        score = prod(_seconds(count, columns, depth, batches, blocks, kernel, machine) for count in rows)
        if best is None or score < best[0]:
            best = (score, blocks)
    assert best is not None
    return best[1]


def _possible(rows: int, columns: int, depth: int, tile: tuple[int, int]) -> Iterator[MatmulBlocks]:
    """Blocks of whole register tiles: rows in equal parts, columns in few or equal parts."""
    tile_rows, tile_columns = tile
    column_tiles = ceil(columns / tile_columns)
    seen: set[int] = set()
    for row_tiles in range(1, min(MOST_ROW_TILES, ceil(rows / tile_rows)) + 1):
        row_blocks = ceil(rows / min(row_tiles * tile_rows, rows))
        block_m = ceil(rows / row_blocks)  # equal blocks instead of a short last one
        unit = 16 if tile_rows % 16 == 0 else 2  # the product handles rows in tiles of 16, or in pairs
        block_m = ceil(block_m / unit) * unit if row_blocks > 1 else block_m
        if block_m in seen:
            continue
        seen.add(block_m)
        for panels in range(1, column_tiles + 1):
            if panels <= 8 or column_tiles % panels == 0:
                yield MatmulBlocks(block_m, panels * tile_columns, depth_block(depth))


def _seconds(
    rows: int, columns: int, depth: int, batches: int, blocks: MatmulBlocks, kernel: _Kernel, machine: Machine
) -> float:
    """The model: register-tile work, traffic from the caches, program starts, balance of the threads."""
    used, tile = min(rows, blocks.rows), kernel.tile
    row_tiles, row_blocks = ceil(used / tile[0]), ceil(rows / blocks.rows)
    # A register tile with few rows waits for loads of B, not for multiplications.
    rows_in_tile = max(used / row_tiles, tile[0] / 3)
    compute = row_tiles * ceil(blocks.columns / tile[1]) * 2 * rows_in_tile * tile[1] * depth
    compute /= machine.flops * kernel.rate
    steps = ceil(depth / blocks.depth)
    right: float = blocks.columns * depth * kernel.itemsize
    left = used * depth * kernel.itemsize
    result = used * blocks.columns * 4 * (2 * steps + 1)
    if kernel.in_place:
        # B's block stays in level 2 for the programs of all rows, and sums beside it where they are few.
        near = 4 * used * blocks.columns <= machine.l2_bytes / 32
        right /= row_blocks if right <= machine.l2_bytes / 2 else 1
    else:
        # Panels of B pass one after the other: half of them count (2048 x 2048 x 2048: 107.7 ms, with all 110.7).
        resident = kernel.itemsize * (blocks.columns / 2 + used) * blocks.depth + 4 * used * blocks.columns
        near = resident <= machine.l2_bytes * 0.75
    speed = machine.l2_bandwidth if near else machine.memory / 2
    traffic = (right + left) / (machine.memory) + result / speed
    programs = row_blocks * ceil(columns / blocks.columns) * batches
    one = max(compute, 0.5 * traffic) + 0.5 * min(compute, traffic) + machine.launches.program
    return one * programs / balance(programs, machine.processors) / machine.processors


def seconds_of(
    blocks: MatmulBlocks, rows: Size, columns: int, dtype: DType, target: Target, width: int
) -> float:  # fmt: skip
    """What the model has for a product of 8-bit integers of the blocks' depth, whose panels are read where they lie."""
    kernel = _Kernel((target.microtile(dtype)[0], width), target.dot_rate(dtype), dtype.itemsize, True)
    return _seconds(expected(rows), columns, blocks.depth, 1, blocks, kernel, target.machine())


def choose_blocks(
    rows: tuple[int, ...], columns: Size, depth: Size, batches: Size, dtype: DType, target: Target, machine: Machine,
    width: int, group: int = 1,
) -> MatmulBlocks:  # fmt: skip
    """The best blocks of the model for examples of a number of rows; other unknown sizes at representative values.

    `dtype` is the operands' element type, `width` that of the panels of B (0: B is strided), `group` the steps of the
    depth that lie beside each other in them (more than one: the depth is known, and they are read where they lie).
    """
    tile_rows, tile_columns = target.microtile(dtype)
    rate = target.dot_rate(dtype, group)
    kernel = _Kernel((tile_rows, width or tile_columns), rate, dtype.itemsize, group > 1)
    blocks = _choose(rows, expected(columns), expected(depth), expected(batches), kernel, machine)
    if group > 1:
        return MatmulBlocks(blocks.rows, blocks.columns, expected(depth))
    largest = LARGEST_TILED_DEPTH if rate > 1 else LARGEST_DEPTH  # faster than float32's: tile registers
    return MatmulBlocks(blocks.rows, blocks.columns, depth_block(depth, largest))
