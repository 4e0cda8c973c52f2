"""Products of groups of rows with a matrix each (experts) on Hopper: rows [start, end) of group g times B[g].

The design is that of `matmul.hopper.kernel`, whose loops it shares.  Where groups end is only known at run time: a
small kernel first lists the tiles of rows, each with its group and its rows, and the roles of the product read from
that list what a tile is.  Copies bring rows of the next group along where a tile reaches beyond its own; they are not
stored: 64 rows that are all the group's leave by copies, others by masked stores.
"""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl
import tilewright.language.explicit as tx
from tilewright.library.functions import maximum
from tilewright.library.hopper import swizzle_of
from tilewright.library.matmul.hopper.kernel import Task, finished, gated, load_left, load_right, multiply

swizzle_of = tilewright.constexpr_function(swizzle_of)


@tilewright.jit
def list_tiles(ends, tiles, rows, groups, BLOCK_M: tl.constexpr, GROUPS: tl.constexpr, TILES: tl.constexpr):
    """tiles[t] = group, first row and end of the rows of tile t, and tiles[-1] how many there are.

    Rows behind the last group are of a group `groups`.  `ends` are those of `groups` groups; ends that are below one
    before it count as that.  `tiles` is [all, 4] i32 with room for `rows` / `BLOCK_M` + `groups` + 1 tiles and the
    count; `GROUPS` is a power of two above `groups`.  Grid: (blocks of `TILES` tiles).
    """
    number = tl.arange(0, GROUPS)
    end = tl.load(ends + number, mask=number < groups, other=0).to(tl.int32)
    end = tl.where(number < groups, tl.minimum(tl.maximum(end, 0), rows), rows)
    end = tl.associative_scan(end, 0, maximum)
    before = tl.where(number > 0, tl.load(ends + number - 1, mask=(number > 0) & (number <= groups), other=0), 0)
    before = tl.minimum(tl.maximum(before.to(tl.int32), 0), rows)
    start = tl.where(number <= groups, tl.associative_scan(before, 0, maximum), rows)
    count = tl.where(number <= groups, tl.cdiv(end - start, BLOCK_M), 0)
    last = tl.cumsum(count, 0)
    tile = tl.program_id(0) * TILES + tl.arange(0, TILES)
    mine = (tile[:, None] >= (last - count)[None, :]) & (tile[:, None] < last[None, :])
    group = tl.sum(tl.where(mine, number[None, :], 0), 1)
    within = tile - tl.sum(tl.where(mine, (last - count)[None, :], 0), 1)
    first = tl.sum(tl.where(mine, start[None, :], 0), 1) + within * BLOCK_M
    limit = tl.sum(tl.where(mine, end[None, :], 0), 1)
    total = tl.sum(count, 0)
    place = tiles + 4 * tile
    exists = tile < total
    tl.store(place, group, mask=exists)
    tl.store(place + 1, first, mask=exists)
    tl.store(place + 2, limit, mask=exists)
    if tl.program_id(0) == 0:
        tl.store(tiles + 4 * (rows // BLOCK_M + groups + 1), total)


@tilewright.jit
def tile_rows(tile, columns, tiles):
    """The group of a tile, its first row, the end of its group's rows, and its number among the columns."""
    number = tile // columns
    place = tiles + 4 * number
    return tl.load(place), tl.load(place + 1), tl.load(place + 2), tile - number * columns


@tilewright.jit
def load_tiles(copy, a, b, lefts, rights, ring, task, tiles, N, K, groups, CONFIG: tl.constexpr):
    """The loading role: one thread."""
    position = tx.producer_start(CONFIG.STAGES)
    for tile in range(task.first, task.tiles, task.step):
        group, row, limit, column = tile_rows(tile, task.columns, tiles)
        group = tl.minimum(group, groups - 1)
        # The matrices lie below each other, with depth or columns as their rows.
        across = column * CONFIG.BN
        depth = 0
        if CONFIG.B_TRANSPOSED:
            depth = group * (K // CONFIG.BK)
        else:
            across += group * N
        for k in range(task.blocks):
            ring.wait_empty(position)
            full = ring.full[position.stage]
            full.expect(CONFIG.stage_bytes)
            load_right(b, rights, full, position.stage, (0, 0, across), depth + k, task, CONFIG)
            load_left(a, lefts, full, position.stage, (0, row, 0), k, task, CONFIG)
            position = position.next()


@tilewright.jit
def store_part(value, c, out, staging, row, limit, column, N, OUTSTANDING: tl.constexpr):
    """Store a block of results through a staging tile, once the copy that last read it is done: one group, which is
    empty where rows are left out."""
    tx.tma_wait(OUTSTANDING, read=True)
    tx.group_sync()
    staging.store(value)
    tx.fence_async()
    tx.group_sync()
    if row + 64 <= limit:
        tx.tma_store(c, (row, column), staging)
    else:
        rows = row + tl.arange(0, 64)[:, None]
        columns = column + tl.arange(0, value.shape[1])[None, :]
        place = out + (rows.to(tl.int64) * N + columns)
        tl.store(place, staging.load(), mask=(rows < limit) & (columns < N))
    tx.tma_commit()


@tilewright.jit
def store_rows(total, c, out, outs, copy, first_row, limit, first_column, N, extra, CONFIG: tl.constexpr):
    """The epilogue of a tile, 64 rows and one row of the swizzle at a time; rows from `limit` on are left out."""
    CHUNKS: tl.constexpr = tl.cdiv(CONFIG.out_columns, CONFIG.chunk)
    WIDER: tl.constexpr = CONFIG.BN // CONFIG.out_columns  # sums for one result
    first_column = first_column // WIDER
    N = N // WIDER
    for part in tl.static_range(CONFIG.rows // 64):
        row = first_row + 64 * part
        for chunk in tl.static_range(CHUNKS):
            STORE: tl.constexpr = CONFIG.stores[part * CHUNKS + chunk]
            column = first_column + chunk * CONFIG.chunk
            block = tx.block_slice(total, 0, 64 * part, 64)
            block = tx.block_slice(block, 1, chunk * CONFIG.chunk * WIDER, CONFIG.chunk * WIDER)
            if CONFIG.GATE is not None:
                block = gated(block, CONFIG.GATE)
            value = finished(block, 0, row, column, limit, N, extra, CONFIG)
            store_part(value, c, out, outs[STORE[0] * CONFIG.CONSUMERS + copy], row, limit, column, N, STORE[1])


@tilewright.jit
def multiply_tiles(copy, c, out, lefts, rights, ring, outs, task, tiles, N, groups, extra, CONFIG: tl.constexpr):
    """The multiplying role: this warpgroup's rows of each tile."""
    position = tx.consumer_start(CONFIG.STAGES)
    for tile in range(task.first, task.tiles, task.step):
        group, row, limit, column = tile_rows(tile, task.columns, tiles)
        place = (0, row, column * CONFIG.BN)
        total, position = multiply(lefts, rights, ring, position, copy, task, tile, place, extra, CONFIG)
        total = tl.where(group < groups, total, 0.0)
        store_rows(total, c, out, outs, copy, row + copy * CONFIG.rows, limit, column * CONFIG.BN, N, extra, CONFIG)
    tx.tma_wait(read=True)


@tilewright.jit
def grouped_matmul(a: tx.tensor_map, b: tx.tensor_map, c: tx.tensor_map, out, tiles, rows, N, K, groups, *extra,
                   CONFIG: tl.constexpr):  # fmt: skip
    """C[row] = EPILOGUE(A[row] @ B[g]) for the rows of group g; those of group `groups` as if the product were zero.

    A is [rows, K], C [rows, N] (N / 2 columns with a gate), also at `out`; B is [groups N, K], or [groups K, N] where
    the config says that it is transposed and K is a multiple of `CONFIG.BK`.  `tiles` is the list that `list_tiles`
    makes for `CONFIG.BM` rows.  Grid: CTAs that are resident at once.  The config shares and splits nothing, and its
    tiles are whole chunks of columns.
    """
    lefts = tx.shared((CONFIG.STAGES, *CONFIG.left_shape), CONFIG.INPUT, swizzle=128)
    rights = tx.shared((CONFIG.STAGES, *CONFIG.right_shape), CONFIG.INPUT, swizzle=128)
    outs = tx.shared((CONFIG.CONSUMERS * CONFIG.BUFFERS, 64, CONFIG.chunk), CONFIG.OUTPUT,
                     swizzle=swizzle_of(CONFIG.chunk * CONFIG.OUTPUT.itemsize))  # fmt: skip
    ring = tx.make_ring(CONFIG.STAGES, 4 * CONFIG.CONSUMERS)
    columns = tl.cdiv(N, CONFIG.BN)
    count = tl.load(tiles + 4 * (rows // CONFIG.BM + groups + 1))
    task = Task(count, columns, count * columns, tl.program_id(0), tl.num_programs(0), 0, 0, tl.cdiv(K, CONFIG.BK), 0)
    loading = tx.role(load_tiles, (a, b, lefts, rights, ring, task, tiles, N, K, groups, CONFIG),
                      registers=CONFIG.registers[0], elected=True)  # fmt: skip
    multiplying = tx.role(
        multiply_tiles, (c, out, lefts, rights, ring, outs, task, tiles, N, groups, extra, CONFIG),
        copies=CONFIG.CONSUMERS, registers=CONFIG.registers[1],
    )  # fmt: skip
    tx.warp_roles(loading, multiplying)
