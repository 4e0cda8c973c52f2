"""Kernels with one mistake each, chosen by name: what the interpreter of explicit kernels has to find."""

# mypy: ignore-errors
# Kernels are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl
import tilewright.language.explicit as tx


@tilewright.jit
def load(copy, a, b, lefts, rights, ring, blocks, STAGES: tl.constexpr, BUG: tl.constexpr):
    position = tx.producer_start(STAGES)
    if BUG == "one load too few":
        blocks = blocks - 1
    if BUG == "one load too many":
        blocks = blocks + 1
    for k in range(blocks):
        if BUG != "no wait for empty":
            ring.wait_empty(position)
        full = ring.full[position.stage]
        bytes: tl.constexpr = lefts[0].bytes + rights[0].bytes
        if BUG == "too many bytes":
            full.expect(bytes + 64)
        elif BUG == "too few bytes":
            full.expect(rights[0].bytes)
        elif BUG == "arrival for expect":
            full.arrive()
        elif BUG != "no expect":
            full.expect(bytes)
        tx.tma_load(a, (0, k * 64), lefts[position.stage], full)
        tx.tma_load(b, (0, k * 64), rights[position.stage], full)
        if BUG == "producer never turns" and position.stages == STAGES:
            position = tx.ring_position(position.next().stage, 1, STAGES)
        else:
            position = position.next()


@tilewright.jit
def multiply(copy, c, lefts, rights, ring, outs, blocks, STAGES: tl.constexpr, BUG: tl.constexpr):
    if BUG == "starts full":
        position = tx.producer_start(STAGES)
    else:
        position = tx.consumer_start(STAGES)
    before = position
    acc = tx.accumulator((64, 64), tl.float32)
    for k in range(blocks):
        if BUG != "no wait for full":
            ring.wait_full(position)
        if BUG == "release before use":
            ring.release(position)
        left = lefts[position.stage].slice(copy * 64, 64)
        if BUG == "accumulates onto nothing":
            acc = tx.wgmma(left, rights[position.stage].T, acc)
        else:
            acc = tx.wgmma(left, rights[position.stage].T, acc, keep=k > 0)
        if BUG == "release of the stage in flight":
            tx.wgmma_wait(outstanding=1)
            ring.release(position)
        elif BUG != "release before use":
            tx.wgmma_wait(outstanding=1)
            if k > 0:
                ring.release(before)
        before = position
        if BUG == "parity never turns":
            position = tx.ring_position(position.next().stage, 0, STAGES)
        else:
            position = position.next()
    if BUG == "waits for too little":
        block = tx.wgmma_wait(acc, outstanding=1)
    else:
        block = tx.wgmma_wait(acc)
    if BUG == "accumulator used twice":
        block = tx.wgmma_wait(acc)
    store(block, c, outs[copy], copy, 0, BUG)
    if BUG == "rewrites at once":
        store(block, c, outs[copy], copy, 0, BUG)
    if BUG == "other threads rewrite":
        tx.tma_wait(0, read=True)
        outs[copy].store(block)
    if BUG != "ends while storing":
        tx.tma_wait(0, read=True)


@tilewright.jit
def store(block, c, out, copy, column, BUG: tl.constexpr):
    out.store(block)
    if BUG != "no fence":
        tx.fence_async()
    if BUG != "no sync":
        tx.group_sync()
    tx.tma_store(c, (copy * 64, column), out)
    tx.tma_commit()


@tilewright.jit
def product(a: tx.tensor_map, b: tx.tensor_map, c: tx.tensor_map, K, BUG: tl.constexpr, STAGES: tl.constexpr = 2):
    lefts = tx.shared((STAGES, 128, 64), a.dtype, swizzle=128)
    rights = tx.shared((STAGES, 64, 64), b.dtype, swizzle=128)
    outs = tx.shared((2, 64, 64), c.dtype, swizzle=128)
    if BUG == "too few arrivals":
        ring = tx.make_ring(STAGES, 3)
    elif BUG == "too many arrivals":
        ring = tx.make_ring(STAGES, 12)
    elif BUG == "arrivals of one copy":
        ring = tx.make_ring(STAGES, 4)
    else:
        ring = tx.make_ring(STAGES, 8)
    blocks = tl.cdiv(K, 64)
    tx.warp_roles(
        tx.role(load, (a, b, lefts, rights, ring, blocks, STAGES, BUG), registers=40, elected=True),
        tx.role(multiply, (c, lefts, rights, ring, outs, blocks, STAGES, BUG), copies=2, registers=232),
    )


@tilewright.jit
def alternate(copy, tiles, turns, x, BUG: tl.constexpr):
    """Two groups add to one tile in turn."""
    if copy == 1:
        tx.named_arrive(1, 256)
    for turn in range(turns):
        tx.named_sync(copy + 1, 256)
        value = tiles[0].load()
        tx.group_sync()
        tiles[0].store(value + 1.0)
        if BUG == "turn kept":
            if copy == 0 or turn == 0:
                tx.named_arrive(2 - copy, 256)
        elif BUG == "turn passed twice":
            tx.named_arrive(2 - copy, 256)
            tx.named_arrive(2 - copy, 256)
        elif BUG == "wrong number of threads":
            tx.named_arrive(2 - copy, 384)
        else:
            tx.named_arrive(2 - copy, 256)


@tilewright.jit
def turns(x, count, BUG: tl.constexpr):
    tiles = tx.shared((1, 16, 16), tl.float32)
    if BUG != "nothing written":
        tiles[0].store(tl.zeros((16, 16), tl.float32))
    if BUG != "roles before the store":
        tx.group_sync()
    tx.warp_roles(tx.role(alternate, (tiles, count, x, BUG), copies=2))
    tx.group_sync()
    rows = tl.arange(0, 16)
    tl.store(x + rows[:, None] * 16 + rows[None, :], tiles[0].load())


@tilewright.jit
def exchange(x, BUG: tl.constexpr):
    """Each CTA of a pair stores a tile and adds the one of its peer."""
    tx.cluster((2,))
    tile = tx.shared((16, 16), tl.float32)
    rank = tx.cluster_rank()
    tile.store(tl.zeros((16, 16), tl.float32) + rank.to(tl.float32) + 1.0)
    if BUG == "no barrier before the read":
        tx.group_sync()
    elif BUG == "relaxed arrival":
        tx.cluster_arrive(relaxed=True)
        tx.cluster_wait()
    elif BUG == "waits only":
        tx.cluster_wait()
    else:
        tx.cluster_arrive()
        tx.cluster_wait()
    other = tile.remote(1 - rank).load()
    rows = tl.arange(0, 16)
    tl.store(x + rank * 256 + rows[:, None] * 16 + rows[None, :], other)
    if BUG == "writes while the peer reads":
        tile.store(other)
    if BUG != "peer has ended":
        tx.cluster_arrive()
        tx.cluster_wait()


@tilewright.jit
def in_flight(a: tx.tensor_map, x, BUG: tl.constexpr):
    """A tile is multiplied by itself, then written by ordinary stores."""
    tile = tx.shared((64, 64), a.dtype, swizzle=128)
    full = tx.barriers(1, 1)
    full[0].expect(tile.bytes)
    tx.tma_load(a, (0, 4 if BUG == "half of 16 bytes" else 0), tile, full[0])
    if BUG != "no wait for the copy":
        full[0].wait(0)
    acc = tx.wgmma(tile, tile.T)
    if BUG == "operand rewritten":
        tile.store(tl.zeros((64, 64), a.dtype))
    block = tx.wgmma_wait(acc)
    if BUG == "operand rewritten by others":
        tile.store(tl.zeros((64, 64), a.dtype))
    tx.group_sync()
    tile.store(block)
    if BUG != "threads not in step":
        tx.group_sync()
    rows = tl.arange(0, 64)
    tl.store(x + rows[:, None] * 64 + rows[None, :], tile.load().to(tl.float32))


@tilewright.jit
def reload(a: tx.tensor_map, x, BUG: tl.constexpr):
    """Tiles are loaded one after the other, on one barrier, into two places."""
    tiles = tx.shared((2, 64, 64), a.dtype)
    full = tx.barriers(1, 1)
    total = tl.zeros((64, 64), tl.float32)
    for k in range(4):
        full[0].expect(tiles[0].bytes)
        tx.tma_load(a, (k * 64, 0), tiles[k % 2], full[0])
        full[0].wait(k & 1)
        total += tiles[k % 2].load().to(tl.float32)
        if BUG != "one thread runs ahead" or k % 2 == 1:
            tx.group_sync()
    rows = tl.arange(0, 64)
    tl.store(x + rows[:, None] * 64 + rows[None, :], total)
