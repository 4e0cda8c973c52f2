"""Attention of few new tokens over pages of 8-bit keys and values on Hopper.

As `paged_kernel`: one pass over a sequence's keys and values, 64 of them the rows of each product, block by block, by
the sequence's table.  Blocks come as they lie, in half of the bytes; the warpgroup that multiplies them widens each to
the queries' 16 bits first, which hold all numbers of 8, from one tile of shared memory to another.  Scales of keys are
factors of their scores, those of values of their weights.
"""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl
import tilewright.language.explicit as tx
from tilewright.library.attention.hopper.decoding_kernel import divided_results, of_all_keys
from tilewright.library.attention.hopper.kernel import bounded
from tilewright.library.attention.hopper.paged_kernel import load_queries, part_of, seen_scores, slots_of, store_rows
from tilewright.library.attention.paged_kernel import RAISED_BY
from tilewright.library.hopper import swizzle_of

swizzle_of = tilewright.constexpr_function(swizzle_of)


@tilewright.aggregate
class NarrowMemory:
    """Tiles and barriers in shared memory."""

    queries: tx.shared_tile
    keys: tx.shared_tile  # blocks as they come, of 8 bits
    values: tx.shared_tile
    wide_keys: tx.shared_tile  # one block, of 16 bits
    wide_values: tx.shared_tile
    weights: tx.shared_tile  # exponentials of a block, [queries, keys]
    results: tx.shared_tile  # of this CTA's keys, for all of the cluster: [D, queries],
    maxima: tx.shared_tile  # … what the exponentials refer to,
    sums: tx.shared_tile  # … and their sums
    key_ring: tx.ring_barriers
    value_ring: tx.ring_barriers


@tilewright.jit
def load_narrow(source, ring, tiles, step, part, CONFIG: tl.constexpr):
    """Start loading a block of keys or values into the ring, once its stage is empty."""
    position = tx.ring_at(step, CONFIG.stages)
    slots = slots_of(part, step, CONFIG)
    ring.empty[position.stage].wait(1 - position.parity)
    tile = tiles[position.stage]
    full = ring.full[position.stage]
    full.expect(tile.bytes)
    for number in tl.static_range(CONFIG.BN // CONFIG.box):
        tx.tma_load(source, (part.head, slots[number], 0), tile.slice(number * CONFIG.box, CONFIG.box), full)


@tilewright.jit
def load_narrow_tiles(copy, k, v, memory, part, CONFIG: tl.constexpr):
    """The loading role: one thread.  Values come one block after the keys."""
    if CONFIG.EARLY:
        tx.grid_wait()
    if part.blocks > 0:
        load_narrow(k, memory.key_ring, memory.keys, 0, part, CONFIG)
    for step in range(part.blocks):
        if step + 1 < part.blocks:
            load_narrow(k, memory.key_ring, memory.keys, step + 1, part, CONFIG)
        load_narrow(v, memory.value_ring, memory.values, step, part, CONFIG)
    if CONFIG.SPLITS > 1:
        tx.cluster_arrive()
        tx.cluster_wait()


@tilewright.jit
def scales_of(scales, step, part, key_heads, CONFIG: tl.constexpr):
    """The scales of a block's keys and values, [keys, 1] each; zeros after the sequence's last token."""
    result = (1.0, 1.0)
    if CONFIG.SCALED:
        key = part.first + step * CONFIG.BN + tl.arange(0, CONFIG.BN)[:, None]
        there = key - part.first < part.keys
        page = tl.load(part.table + key // CONFIG.PAGE, mask=there, other=0).to(tl.int64)
        page = tl.minimum(tl.maximum(page, 0), part.pages - 1)
        place = (page * CONFIG.PAGE + key % CONFIG.PAGE) * key_heads + part.head
        result = (tl.load(scales[0] + place, mask=there, other=0.0), tl.load(scales[1] + place, mask=there, other=0.0))
    return result


@tilewright.jit
def widened(block, TYPE: tl.constexpr):
    """Numbers of 8 bits in 16.  An integer is put into the low bits of 2^23 + 128 instead of being converted: units for
    conversions take as long as eight of these instructions."""
    if block.dtype.is_int():
        bits = block.to(tl.uint8, bitcast=True).to(tl.int32) ^ 0x4B000080
        result = (bits.to(tl.float32, bitcast=True) - 8388736.0).to(TYPE)
    else:
        result = block.to(TYPE)
    return result


@tilewright.jit
def widen(narrow, wide, keys_left, CONFIG: tl.constexpr):
    """A block in 16 bits; rows after the sequence's last token, which may hold what is no number, as zeros."""
    key = tl.arange(0, CONFIG.BN)[:, None]
    wide.store(tl.where(key < keys_left, widened(narrow.load(), CONFIG.TYPE), 0.0))


@tilewright.jit
def wait_and_widen(ring, tiles, wide, part, step, CONFIG: tl.constexpr):
    """Wait for a block and widen it, for all warps; its stage is free then."""
    position = tx.ring_at(step, CONFIG.stages)
    ring.wait_full(position)
    widen(tiles[position.stage], wide, part.keys - step * CONFIG.BN, CONFIG)
    tx.fence_async()
    tx.group_sync()
    ring.release(position)


@tilewright.jit
def narrow_scores(memory, part, step, scale, key_scale, CONFIG: tl.constexpr):
    """The scores of a block, [keys, queries]."""
    wait_and_widen(memory.key_ring, memory.keys, memory.wide_keys, part, step, CONFIG)
    scores = tx.wgmma_wait(tx.wgmma(memory.wide_keys, memory.queries.T))
    if CONFIG.SCALED:
        scores = scores * key_scale
    return seen_scores(bounded(scores, scale, CONFIG), step, part, CONFIG)


@tilewright.jit
def walk_narrow(memory, part, scale, scales, key_heads, CONFIG: tl.constexpr):
    """Results of this CTA's keys [D, queries], not divided by their sums; maxima and sums of the queries.

    All warps meet between the products of a block's keys and those of its values, and again in front of the next
    block's: what one of them reads is written anew after the next meeting.
    """
    maximum = tl.full((CONFIG.ROWS,), -1e30, tl.float32)  # finite, also where a query sees nothing
    sums = tl.zeros((CONFIG.BN, CONFIG.ROWS), tl.float32)  # each of one key in a block
    out = tl.zeros((CONFIG.D, CONFIG.ROWS), tl.float32)
    RAISED: tl.constexpr = RAISED_BY if CONFIG.SCALED else 0.0  # which sums divide out again
    following = scales_of(scales, 0, part, key_heads, CONFIG)
    for step in range(part.blocks):
        key_scale, value_scale = following
        if CONFIG.SCALED:
            following = scales_of(scales, step + 1, part, key_heads, CONFIG)  # there when they are wanted
        scores = narrow_scores(memory, part, step, scale, key_scale, CONFIG)
        greatest = tl.maximum(maximum, tl.max(scores, 0))
        powers = tl.exp2(tl.fma(scores, scale, (RAISED - scale * greatest)[None, :]))
        factor = tl.exp2((maximum - greatest) * scale)[None, :]
        memory.weights.store(tl.trans(powers * value_scale))
        wait_and_widen(memory.value_ring, memory.values, memory.wide_values, part, step, CONFIG)
        pending = tx.wgmma(memory.wide_values.T, memory.weights.T, out * factor)
        sums = tl.fma(sums, factor, powers)
        maximum = greatest
        out = tx.wgmma_wait(pending)
    return out, maximum, tl.sum(sums, 0)


@tilewright.jit
def attend_narrow(copy, q, out, heads, key_heads, memory, part, scale, scales, CONFIG: tl.constexpr):
    """The multiplying role."""
    if CONFIG.EARLY:
        tx.grid_wait()
    load_queries(q, memory, part, heads, CONFIG)
    result, maximum, total = walk_narrow(memory, part, scale, scales, key_heads, CONFIG)
    result, column = of_all_keys(memory, result, maximum, total, scale, CONFIG)
    store_rows(result, out, column, heads, part, CONFIG)


@tilewright.jit
def paged_narrow_tokens(q, k: tx.tensor_map, v: tx.tensor_map, tables, starts, lengths, out, tokens, slots, columns,
                        heads, key_heads, scale, *scales, CONFIG: tl.constexpr):  # fmt: skip
    """As `paged_kernel.paged_tokens`, of pools of 8 bits; `scales` are those of keys and values, float32 [slots, key
    heads], where the numbers have some."""
    if CONFIG.SPLITS > 1:
        tx.cluster((CONFIG.SPLITS,))
    narrow: tl.constexpr = swizzle_of(CONFIG.D * CONFIG.POOL.itemsize)
    wide: tl.constexpr = swizzle_of(CONFIG.D * CONFIG.TYPE.itemsize)
    keys = tx.shared((CONFIG.stages, CONFIG.BN, CONFIG.D), CONFIG.POOL, swizzle=narrow)
    values = tx.shared((CONFIG.stages, CONFIG.BN, CONFIG.D), CONFIG.POOL, swizzle=narrow)
    wide_keys = tx.shared((CONFIG.BN, CONFIG.D), CONFIG.TYPE, swizzle=wide)
    wide_values = tx.shared((CONFIG.BN, CONFIG.D), CONFIG.TYPE, swizzle=wide)
    queries = tx.shared((CONFIG.ROWS, CONFIG.D), CONFIG.TYPE, swizzle=wide)
    weights = tx.shared((CONFIG.ROWS, CONFIG.BN), CONFIG.TYPE, swizzle=swizzle_of(CONFIG.BN * CONFIG.TYPE.itemsize))
    results, maxima, sums = divided_results(queries, CONFIG)
    memory = NarrowMemory(queries, keys, values, wide_keys, wide_values, weights, results, maxima, sums,
                          tx.make_ring(CONFIG.stages, 4), tx.make_ring(CONFIG.stages, 4))  # fmt: skip
    tx.grid_launch_dependents()
    if not CONFIG.EARLY:
        tx.grid_wait()
    part = part_of(tables, starts, lengths, tokens, slots, columns, key_heads, CONFIG)
    attending = tx.role(attend_narrow, (q, out, heads, key_heads, memory, part, scale, scales, CONFIG))
    loading = tx.role(load_narrow_tiles, (k, v, memory, part, CONFIG), warps=1, elected=True)
    tx.warp_roles(attending, loading)
    if CONFIG.SPLITS > 1:
        # Peers may still read this CTA's results.
        tx.cluster_arrive(relaxed=True)
        tx.cluster_wait()
