"""A ladder of products a @ b.T written with the explicit operations, each step with more of a real kernel.

one_tile     one CTA of one warpgroup: TMA, one stage, wgmma, a block stored by stmatrix and TMA
staged       a ring of stages, a role that loads and roles that multiply, one tile a CTA
persistent   tile after tile, groups in flight over the stages, an epilogue beside the next tile's loads
"""

# mypy: ignore-errors
# Kernels are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl
import tilewright.language.explicit as tx


@tilewright.jit
def one_tile(a: tx.tensor_map, b: tx.tensor_map, c: tx.tensor_map, K):
    left = tx.shared(a.block_shape, a.dtype, swizzle=128)
    right = tx.shared(b.block_shape, b.dtype, swizzle=128)
    out = tx.shared(c.block_shape, c.dtype, swizzle=128)
    full = tx.barriers(1, 1)
    acc = tx.accumulator((a.block_shape[0], b.block_shape[0]), tl.float32)
    for k in range(tl.cdiv(K, a.block_shape[1])):
        full[0].expect(left.bytes + right.bytes)
        tx.tma_load(a, (0, k * a.block_shape[1]), left, full[0])
        tx.tma_load(b, (0, k * a.block_shape[1]), right, full[0])
        full[0].wait(k & 1)
        acc = tx.wgmma(left, right.T, acc, keep=k > 0)
        tx.wgmma_wait(outstanding=0)
        tx.group_sync()
    out.store(tx.wgmma_wait(acc))
    tx.fence_async()
    tx.group_sync()
    tx.tma_store(c, (0, 0), out)
    tx.tma_commit()
    tx.tma_wait()


@tilewright.jit
def load_staged(copy, a, b, lefts, rights, ring, row, column, blocks, STAGES: tl.constexpr):
    position = tx.producer_start(STAGES)
    for k in range(blocks):
        ring.wait_empty(position)
        full = ring.full[position.stage]
        full.expect(lefts[0].bytes + rights[0].bytes)
        tx.tma_load(a, (row, k * a.block_shape[1]), lefts[position.stage], full)
        tx.tma_load(b, (column, k * a.block_shape[1]), rights[position.stage], full, eviction="evict_last")
        position = position.next()


@tilewright.jit
def multiply_staged(copy, c, lefts, rights, ring, outs, row, column, blocks, STAGES: tl.constexpr):
    position = tx.consumer_start(STAGES)
    ROWS: tl.constexpr = c.block_shape[0]
    acc = tx.accumulator((ROWS, rights.shape[1]), tl.float32)
    for k in range(blocks):
        ring.wait_full(position)
        acc = tx.wgmma(lefts[position.stage].slice(copy * ROWS, ROWS), rights[position.stage].T, acc, keep=k > 0)
        tx.wgmma_wait(outstanding=0)
        ring.release(position)
        position = position.next()
    outs[copy].store(tx.wgmma_wait(acc))
    tx.fence_async()
    tx.group_sync()
    tx.tma_store(c, (row + copy * ROWS, column), outs[copy])
    tx.tma_commit()
    tx.tma_wait()


@tilewright.jit
def staged(a: tx.tensor_map, b: tx.tensor_map, c: tx.tensor_map, K, STAGES: tl.constexpr, CONSUMERS: tl.constexpr):
    lefts = tx.shared((STAGES, *a.block_shape), a.dtype, swizzle=128)
    rights = tx.shared((STAGES, *b.block_shape), b.dtype, swizzle=128)
    outs = tx.shared((CONSUMERS, *c.block_shape), c.dtype, swizzle=128)
    ring = tx.make_ring(STAGES, 4 * CONSUMERS)
    row, column = tl.program_id(0) * a.block_shape[0], tl.program_id(1) * b.block_shape[0]
    blocks = tl.cdiv(K, a.block_shape[1])
    tx.warp_roles(
        tx.role(load_staged, (a, b, lefts, rights, ring, row, column, blocks, STAGES), registers=40, elected=True),
        tx.role(
            multiply_staged,
            (c, lefts, rights, ring, outs, row, column, blocks, STAGES),
            copies=CONSUMERS,
            registers=232,
        ),
    )


@tilewright.jit
def place_of(tile, rows, columns, GROUP: tl.constexpr):
    """Row and column of a tile: GROUP rows of tiles together, column after column."""
    first = tile // (GROUP * columns) * GROUP
    height = tl.minimum(rows - first, GROUP)
    within = tile % (GROUP * columns)
    return first + within % height, within // height


@tilewright.jit
def load_tiles(copy, a, b, lefts, rights, ring, rows, columns, blocks, STAGES: tl.constexpr, GROUP: tl.constexpr):
    BM: tl.constexpr = a.block_shape[0]
    BK: tl.constexpr = a.block_shape[1]
    position = tx.producer_start(STAGES)
    for tile in range(tl.program_id(0), rows * columns, tl.num_programs(0)):
        row, column = place_of(tile, rows, columns, GROUP)
        for k in range(blocks):
            ring.wait_empty(position)
            full = ring.full[position.stage]
            full.expect(lefts[0].bytes + rights[0].bytes)
            tx.tma_load(a, (row * BM, k * BK), lefts[position.stage], full)
            tx.tma_load(b, (column * rights.shape[1], k * BK), rights[position.stage], full)
            position = position.next()


@tilewright.jit
def multiply_tiles(
    copy, c, lefts, rights, ring, outs, rows, columns, blocks, STAGES: tl.constexpr, GROUP: tl.constexpr
):
    ROWS: tl.constexpr = c.block_shape[0]
    WIDTH: tl.constexpr = c.block_shape[1]
    BM: tl.constexpr = lefts.shape[1]
    BN: tl.constexpr = rights.shape[1]
    position = tx.consumer_start(STAGES)
    for tile in range(tl.program_id(0), rows * columns, tl.num_programs(0)):
        row, column = place_of(tile, rows, columns, GROUP)
        acc = tx.accumulator((ROWS, BN), tl.int32 if lefts.dtype == tl.int8 else tl.float32)
        previous = position
        for k in range(blocks):
            ring.wait_full(position)
            acc = tx.wgmma(lefts[position.stage].slice(copy * ROWS, ROWS), rights[position.stage].T, acc, keep=k > 0)
            tx.wgmma_wait(outstanding=1)
            if k > 0:
                ring.release(previous)
            previous = position
            position = position.next()
        block = tx.wgmma_wait(acc)
        ring.release(previous)
        PARTS: tl.constexpr = BN // WIDTH
        for part in tl.static_range(PARTS):
            out = outs[2 * copy + part % 2]
            # The last part before used the other tile; the first one of a tile may follow one that used its own.
            tx.tma_wait(0 if part == 0 and PARTS % 2 else 1, read=True)
            tx.group_sync()
            out.store(tx.block_slice(block, 1, part * WIDTH, WIDTH).to(tl.float32))
            tx.fence_async()
            tx.group_sync()
            tx.tma_store(c, (row * BM + copy * ROWS, column * BN + part * WIDTH), out)
            tx.tma_commit()
    tx.tma_wait()


@tilewright.jit
def persistent(
    a: tx.tensor_map, b: tx.tensor_map, c: tx.tensor_map, M, N, K, STAGES: tl.constexpr, GROUP: tl.constexpr
):
    lefts = tx.shared((STAGES, *a.block_shape), a.dtype, swizzle=128)
    rights = tx.shared((STAGES, *b.block_shape), b.dtype, swizzle=128)
    outs = tx.shared((4, *c.block_shape), c.dtype, swizzle=128 if c.block_shape[1] % 64 == 0 else 64)
    ring = tx.make_ring(STAGES, 8)
    rows, columns = tl.cdiv(M, a.block_shape[0]), tl.cdiv(N, b.block_shape[0])
    blocks = tl.cdiv(K, a.block_shape[1])
    tx.warp_roles(
        tx.role(
            load_tiles, (a, b, lefts, rights, ring, rows, columns, blocks, STAGES, GROUP), registers=40, elected=True
        ),
        tx.role(
            multiply_tiles,
            (c, lefts, rights, ring, outs, rows, columns, blocks, STAGES, GROUP),
            copies=2,
            registers=232,
        ),
    )
