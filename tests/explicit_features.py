"""Small kernels, each about one thing that explicit kernels can do; tests compile, interpret and run them."""

# mypy: ignore-errors
# Kernels are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl
import tilewright.language.explicit as tx


@tilewright.jit
def product(
    a: tx.tensor_map,
    b: tx.tensor_map,
    c: tx.tensor_map,
    TRANSPOSED_A: tl.constexpr,
    TRANSPOSED_B: tl.constexpr,
    REGISTERS: tl.constexpr,
    SWIZZLE: tl.constexpr,
):
    """c = a @ b twice over (the second product adds to the first); a is m x k in memory or k x m, b n x k or k x n."""
    left = tx.shared(a.block_shape, a.dtype, swizzle=SWIZZLE)
    right = tx.shared(b.block_shape, b.dtype, swizzle=SWIZZLE)
    out = tx.shared(c.block_shape, c.dtype, swizzle=128)
    full = tx.barriers(1, 1)
    full[0].expect(left.bytes + right.bytes)
    tx.tma_load(a, (0, 0), left, full[0])
    tx.tma_load(b, (0, 0), right, full[0])
    full[0].wait(0)
    operand = left.T if TRANSPOSED_A else left
    other = right if TRANSPOSED_B else right.T
    if REGISTERS:
        block = operand.load()
        acc = tx.wgmma(block, other)
        total = tx.wgmma_wait(tx.wgmma(block, other, acc))
    else:
        acc = tx.wgmma(operand, other)
        total = tx.wgmma_wait(tx.wgmma(operand, other, acc))
    out.store(total)
    tx.fence_async()
    tx.group_sync()
    tx.tma_store(c, (0, 0), out)
    tx.tma_commit()
    tx.tma_wait()


@tilewright.jit
def transpose(a: tx.tensor_map, c: tx.tensor_map, BY_LOAD: tl.constexpr):
    """c = a.T, through registers."""
    tile = tx.shared(a.block_shape, a.dtype, swizzle=128)
    out = tx.shared(c.block_shape, c.dtype, swizzle=128)
    full = tx.barriers(1, 1)
    full[0].expect(tile.bytes)
    tx.tma_load(a, (0, 0), tile, full[0])
    full[0].wait(0)
    if BY_LOAD:
        out.store(tile.T.load())
    else:
        out.T.store(tile.load())
    tx.fence_async()
    tx.group_sync()
    tx.tma_store(c, (0, 0), out)
    tx.tma_commit()
    tx.tma_wait()


@tilewright.jit
def accumulate(a: tx.tensor_map, c: tx.tensor_map, KIND: tl.constexpr):
    """Every CTA combines its tile of a with the one tile of c."""
    tile = tx.shared(a.block_shape, a.dtype)
    full = tx.barriers(1, 1)
    full[0].expect(tile.bytes)
    tx.tma_load(a, (tl.program_id(0) * a.block_shape[0], 0), tile, full[0])
    full[0].wait(0)
    tx.tma_store(c, (0, 0), tile, kind=KIND)
    tx.tma_commit()
    tx.tma_wait()


@tilewright.jit
def fetch(copy, a, following, tile, full, SIZE: tl.constexpr):
    """One thread loads this CTA's tile, and has a part of another tensor brought near."""
    tx.tma_prefetch(a, (tl.program_id(0) * a.block_shape[0], 0), tile)
    full.expect(tile.bytes)
    tx.tma_load(a, (tl.program_id(0) * a.block_shape[0], 0), tile, full)
    tx.prefetch(following + tl.program_id(0) * SIZE, SIZE * following.dtype.element_ty.itemsize)


@tilewright.jit
def move_on(copy, c, tile, full):
    full.wait(0)
    tx.tma_store(c, (tl.program_id(0) * c.block_shape[0], 0), tile)
    tx.tma_commit()
    tx.tma_wait()


@tilewright.jit
def copy_ahead(a: tx.tensor_map, c: tx.tensor_map, following, SIZE: tl.constexpr):
    """c = a, while `following` comes to the L2 cache."""
    tile = tx.shared(a.block_shape, a.dtype)
    full = tx.barriers(1, 1)
    tx.prefetch(following, 16)
    loading = tx.role(fetch, (a, following, tile, full[0], SIZE), elected=True)
    storing = tx.role(move_on, (c, tile, full[0]), warps=1)
    tx.warp_roles(loading, storing)


@tilewright.jit
def exchange(a: tx.tensor_map, c: tx.tensor_map, SWIZZLE: tl.constexpr):
    """The two CTAs of a cluster write each other's tile plus their own."""
    tx.cluster((2, 1))
    tile = tx.shared(a.block_shape, a.dtype, swizzle=SWIZZLE)
    out = tx.shared(c.block_shape, c.dtype, swizzle=SWIZZLE)
    full = tx.barriers(1, 1)
    rank = tx.cluster_rank()
    full[0].expect(tile.bytes)
    tx.tma_load(a, (tl.program_id(0) * a.block_shape[0], 0), tile, full[0])
    full[0].wait(0)
    tx.cluster_arrive()
    tx.cluster_wait()
    out.store(tile.remote(1 - rank).load() + tile.load())
    tx.fence_async()
    tx.group_sync()
    tx.tma_store(c, (tl.program_id(0) * a.block_shape[0], 0), out)
    tx.tma_commit()
    tx.tma_wait()
    tx.cluster_arrive()
    tx.cluster_wait()


@tilewright.jit
def load_shared_columns(copy, a, b, lefts, rights, ring, blocks, STAGES: tl.constexpr):
    """Each CTA of the pair loads its own rows of a, and half of the rows of b for both."""
    position = tx.producer_start(STAGES)
    rank = tx.cluster_rank()
    BK: tl.constexpr = a.block_shape[1]
    HALF: tl.constexpr = b.block_shape[0]
    for k in range(blocks):
        ring.wait_empty(position)
        full = ring.full[position.stage]
        full.expect(lefts[0].bytes + rights[0].bytes)
        tx.tma_load(a, (tl.program_id(0) * a.block_shape[0], k * BK), lefts[position.stage], full)
        half = rights[position.stage].slice(rank * HALF, HALF)
        tx.tma_load(b, (rank * HALF, k * BK), half, full, multicast=3)
        position = position.next()


@tilewright.jit
def multiply_shared_columns(copy, c, lefts, rights, ring, outs, blocks, STAGES: tl.constexpr):
    position = tx.consumer_start(STAGES)
    rows: tl.constexpr = c.block_shape[0]
    acc = tx.accumulator((rows, rights.shape[1]), tl.float32)
    for k in range(blocks):
        ring.wait_full(position)
        acc = tx.wgmma(lefts[position.stage].slice(copy * rows, rows), rights[position.stage].T, acc, keep=k > 0)
        tx.wgmma_wait(outstanding=0)
        for rank in tl.static_range(2):
            ring.empty[position.stage].arrive(rank=rank)
        position = position.next()
    outs[copy].store(tx.wgmma_wait(acc))
    tx.fence_async()
    tx.group_sync()
    tx.tma_store(c, (tl.program_id(0) * lefts.shape[1] + copy * rows, 0), outs[copy])
    tx.tma_commit()
    tx.tma_wait()


@tilewright.jit
def multicast(a: tx.tensor_map, b: tx.tensor_map, c: tx.tensor_map, K, STAGES: tl.constexpr):
    """c = a @ b.T, pairs of CTAs sharing the tiles of b."""
    tx.cluster((2, 1))
    COLUMNS: tl.constexpr = 2 * b.block_shape[0]
    lefts = tx.shared((STAGES, *a.block_shape), a.dtype, swizzle=128)
    rights = tx.shared((STAGES, COLUMNS, b.block_shape[1]), b.dtype, swizzle=128)
    outs = tx.shared((2, *c.block_shape), c.dtype, swizzle=128)
    ring = tx.make_ring(STAGES, 16)
    blocks = tl.cdiv(K, a.block_shape[1])
    tx.warp_roles(
        tx.role(load_shared_columns, (a, b, lefts, rights, ring, blocks, STAGES), registers=40, elected=True),
        tx.role(multiply_shared_columns, (c, lefts, rights, ring, outs, blocks, STAGES), copies=2, registers=232),
    )
    tx.cluster_arrive(relaxed=True)
    tx.cluster_wait()


@tilewright.jit
def take_turns(copy, x, ROUNDS: tl.constexpr):
    """The copies append to a row in turn; only those whose threads find something to do go through the branch."""
    me = copy + 1
    other = 2 - copy
    lane = tl.arange(0, 128)
    if copy == 1:
        tx.named_arrive(1, 256)
    for turn in range(ROUNDS):
        tx.named_sync(me, 256)
        row = 2 * turn + copy
        place = x + row * 128 + lane
        before = tl.load(place - 128, mask=lane + row * 128 >= 128, other=0)
        value = before + lane % 3
        many = tx.warp_any(value > 100)
        if many:
            value = tl.where(value > 100, value - 100, value)
        tl.store(place, value)
        tx.named_arrive(other, 256)
    if copy == 0:
        tx.named_sync(1, 256)


@tilewright.jit
def turns(x, ROUNDS: tl.constexpr):
    tx.grid_wait()
    tx.grid_launch_dependents()
    tx.warp_roles(tx.role(take_turns, (x, ROUNDS), copies=2))


@tilewright.jit
def sum_rows(copy, x, y, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Sums over rows that several warps hold parts of, and their order turned around."""
    row = tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    block = tl.load(x + (copy * ROWS + row) * COLUMNS + column)
    sums = tl.sum(block, 0)
    turned = tl.trans(block) + sums[:, None]
    tl.store(y + (copy * COLUMNS + tl.arange(0, COLUMNS)[:, None]) * ROWS + tl.arange(0, ROWS)[None, :], turned)


@tilewright.jit
def idle(copy):
    """A role that has nothing to do."""


@tilewright.jit
def scratch(x, y, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Copies of a role that hand values between their warps at the same time."""
    tx.warp_roles(tx.role(idle, warps=1), tx.role(sum_rows, (x, y, ROWS, COLUMNS), warps=2, copies=3))
