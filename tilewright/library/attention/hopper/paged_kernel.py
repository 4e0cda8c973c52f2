"""Attention of few new tokens over pages (`graph.paged`) on Hopper: one pass over a sequence's keys and values.

As in `decoding_kernel`, keys and values are the operands of 64 rows of each product, and a sequence's new tokens, times
the query heads that share keys, its columns: S^T = K Q^T and O^T = V^T P^T.  A block of keys comes page by page, by the
sequence's table.  The keys of a sequence are divided among the CTAs of a cluster, which put their results together
through each other's shared memory.

Pages hold anything after a sequence's last token: scores of such keys are left out, and such values set to zero.
Starts, lengths and page numbers are clamped to the tensors that they point into.
"""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl
import tilewright.language.explicit as tx
from tilewright.library.attention.hopper.decoding_kernel import divided_results, of_all_keys, weigh
from tilewright.library.attention.hopper.kernel import bounded
from tilewright.library.attention.paged_simt_kernel import first_seen, new_tokens
from tilewright.library.hopper import swizzle_of

swizzle_of = tilewright.constexpr_function(swizzle_of)


@tilewright.aggregate
class PagedMemory:
    """Tiles and barriers in shared memory."""

    queries: tx.shared_tile
    tiles: tx.shared_tile  # keys and values of a block by turns
    weights: tx.shared_tile  # exponentials of a block, or of two, [queries, keys]
    results: tx.shared_tile  # of this CTA's keys, for all of the cluster: [D, queries],
    maxima: tx.shared_tile  # … what the exponentials refer to,
    sums: tx.shared_tile  # … and their sums
    ring: tx.ring_barriers


@tilewright.aggregate
class SequencePart:
    """A part of the keys of a sequence and head."""

    table: tl.tensor  # pointer to the sequence's pages
    start: tl.tensor  # its first new token
    rows: tl.tensor  # new tokens times query heads; none where another kernel computes the sequence
    before: tl.tensor  # tokens before the new ones
    head: tl.tensor  # of keys
    first: tl.tensor  # key
    keys: tl.tensor
    blocks: tl.tensor
    last: tl.tensor  # the first key of the sequence's last copy
    pages: tl.tensor  # of the pool


@tilewright.jit
def part_of(tables, starts, lengths, tokens, slots, columns, key_heads, CONFIG: tl.constexpr):
    """This CTA's part: whole blocks, but for the last one."""
    pair = tl.program_id(0) // CONFIG.SPLITS
    sequence = (pair // key_heads).to(tl.int64)
    start, count, context = new_tokens(starts, lengths, sequence, tokens, columns * CONFIG.PAGE)
    mine = (count > 0) & (count * CONFIG.GROUP <= CONFIG.ROWS)
    base = first_seen(context, count, CONFIG.WINDOW) // CONFIG.box * CONFIG.box
    length = tl.cdiv(context - base, CONFIG.SPLITS * CONFIG.BN) * CONFIG.BN
    first = base + tl.program_id(0) % CONFIG.SPLITS * length
    keys = tl.where(mine, tl.maximum(tl.minimum(context - first, length), 0), 0)
    last = (context - 1) // CONFIG.box * CONFIG.box
    rows = tl.where(mine, count * CONFIG.GROUP, 0)
    return SequencePart(tables + sequence * columns, start, rows, context - count, pair % key_heads, first, keys,
                        tl.cdiv(keys, CONFIG.BN), last, slots // CONFIG.PAGE)  # fmt: skip


@tilewright.jit
def slot_of(part, key, CONFIG: tl.constexpr):
    """Where a key that begins a copy lies in the pool; of those after the sequence's end, where its last ones lie."""
    key = tl.minimum(key, part.last)
    page = tl.load(part.table + key // CONFIG.PAGE).to(tl.int64)
    page = tl.minimum(tl.maximum(page, 0), part.pages - 1)
    return (page * CONFIG.PAGE + key % CONFIG.PAGE).to(tl.int32)


@tilewright.jit
def slots_of(part, step, CONFIG: tl.constexpr):
    """The slots of the copies of a block."""
    slots = ()
    for number in tl.static_range(CONFIG.BN // CONFIG.box):
        slots = slots + (slot_of(part, part.first + step * CONFIG.BN + number * CONFIG.box, CONFIG),)
    return slots


@tilewright.jit
def load_block(source, memory, count, slots, part, CONFIG: tl.constexpr):
    """Start loading keys or values of a block as number `count` of the ring, once its stage is empty."""
    position = tx.ring_at(count, CONFIG.TILES)
    memory.ring.empty[position.stage].wait(1 - position.parity)
    tile = memory.tiles[position.stage]
    full = memory.ring.full[position.stage]
    full.expect(tile.bytes)
    for number in tl.static_range(CONFIG.BN // CONFIG.box):
        tx.tma_load(source, (part.head, slots[number], 0), tile.slice(number * CONFIG.box, CONFIG.box), full)


@tilewright.jit
def load_blocks(k, v, memory, first, end, part, CONFIG: tl.constexpr):
    """Start loading blocks of keys and values by turns."""
    for step in range(first, end):
        slots = slots_of(part, step, CONFIG)
        load_block(k, memory, 2 * step, slots, part, CONFIG)
        load_block(v, memory, 2 * step + 1, slots, part, CONFIG)


@tilewright.jit
def ask_for_blocks(k, v, memory, first, end, part, CONFIG: tl.constexpr):
    """Ask for blocks to come to the L2 cache: what kernels in front write is brought up to date there."""
    for step in range(first, end):
        slots = slots_of(part, step, CONFIG)
        for number in tl.static_range(CONFIG.BN // CONFIG.box):
            place = (part.head, slots[number], 0)
            tx.tma_prefetch(k, place, memory.tiles[0].slice(0, CONFIG.box))
            tx.tma_prefetch(v, place, memory.tiles[0].slice(0, CONFIG.box))


@tilewright.jit
def load_tiles(copy, k, v, memory, part, CONFIG: tl.constexpr):
    """The loading role: one thread.  With `AHEAD` the first blocks come before the kernels in front have ended, if they
    are whole and have none of the new tokens, which these may write."""
    loaded = part.blocks * 0
    if CONFIG.EARLY:
        first = tl.minimum(part.blocks, CONFIG.TILES // 2)
        if CONFIG.AHEAD:
            loaded = tl.minimum(first, tl.maximum(part.before - part.first, 0).to(tl.int32) // CONFIG.BN)
            load_blocks(k, v, memory, 0, loaded, part, CONFIG)
        ask_for_blocks(k, v, memory, loaded, first, part, CONFIG)
        tx.grid_wait()
    load_blocks(k, v, memory, loaded, part.blocks, part, CONFIG)
    if CONFIG.SPLITS > 1:
        tx.cluster_arrive()
        tx.cluster_wait()


@tilewright.jit
def load_queries(q, memory, part, heads, CONFIG: tl.constexpr):
    """The rows of the new tokens, and zeros after them."""
    row = tl.arange(0, CONFIG.ROWS)[:, None]
    dim = tl.arange(0, CONFIG.D)[None, :]
    place = ((part.start + row // CONFIG.GROUP) * heads + part.head * CONFIG.GROUP + row % CONFIG.GROUP) * CONFIG.D
    memory.queries.store(tl.load(q + place + dim, mask=(row < part.rows) & (dim < CONFIG.D), other=0.0))
    tx.fence_async()
    tx.group_sync()


@tilewright.jit
def seen_scores(scores, step, part, CONFIG: tl.constexpr):
    """Scores of a block, [keys, queries], with minus infinity where a query does not see a key."""
    key = step * CONFIG.BN + tl.arange(0, CONFIG.BN)[:, None]
    position = part.before - part.first + tl.arange(0, CONFIG.ROWS) // CONFIG.GROUP
    seen = key < tl.minimum(position + 1, part.keys)[None, :]
    if CONFIG.WINDOW > 0:
        seen = seen & (key > (position - CONFIG.WINDOW)[None, :])
    return tl.where(seen, scores, float("-inf"))


@tilewright.jit
def clear_unwritten(tile, keys_left, CONFIG: tl.constexpr):
    """Values after the sequence's last token become zeros: a weight of zero does not hide what is no number."""
    key = tl.arange(0, CONFIG.BN)[:, None]
    rows = tl.where(key < keys_left, tile.load(), 0.0)
    tx.group_sync()
    tile.store(rows)
    tx.fence_async()
    tx.group_sync()


@tilewright.jit
def scores_of(memory, part, step, scale, CONFIG: tl.constexpr):
    """The scores of a block, [keys, queries]."""
    position = tx.ring_at(2 * step, CONFIG.TILES)
    memory.ring.wait_full(position)
    scores = tx.wgmma_wait(tx.wgmma(memory.tiles[position.stage], memory.queries.T))
    memory.ring.release(position)
    return seen_scores(bounded(scores, scale, CONFIG), step, part, CONFIG)


@tilewright.jit
def walk(memory, part, scale, CONFIG: tl.constexpr):
    """Results of this CTA's keys [D, queries], not divided by their sums; maxima and sums of the queries."""
    maximum = tl.full((CONFIG.ROWS,), -1e30, tl.float32)  # finite, also where a query sees nothing
    sums = tl.zeros((CONFIG.BN, CONFIG.ROWS), tl.float32)  # each of one key in a block
    out = tl.zeros((CONFIG.D, CONFIG.ROWS), tl.float32)
    for step in range(part.blocks):
        scores = scores_of(memory, part, step, scale, CONFIG)
        powers, factor, greatest, weights = weigh(memory, scores, maximum, scale, step if CONFIG.WEIGHTS > 1 else 0)
        position = tx.ring_at(2 * step + 1, CONFIG.TILES)
        memory.ring.wait_full(position)
        keys_left = part.keys - step * CONFIG.BN
        if keys_left < CONFIG.BN:
            clear_unwritten(memory.tiles[position.stage], keys_left, CONFIG)
        pending = tx.wgmma(memory.tiles[position.stage].T, weights.T, out * factor)
        sums = tl.fma(sums, factor, powers)
        maximum = greatest
        out = tx.wgmma_wait(pending)
        memory.ring.release(position)
        if CONFIG.WEIGHTS == 1:
            tx.group_sync()  # all warps have read the exponentials
    return out, maximum, tl.sum(sums, 0)


@tilewright.jit
def store_rows(result, out, column, heads, part, CONFIG: tl.constexpr):
    """Results of the new tokens, [columns, queries]."""
    row = tl.arange(0, CONFIG.ROWS)[None, :]
    place = ((part.start + row // CONFIG.GROUP) * heads + part.head * CONFIG.GROUP + row % CONFIG.GROUP) * CONFIG.D
    tl.store(out + place + column, result.to(out.dtype.element_ty), mask=row < part.rows)


@tilewright.jit
def attend(copy, q, out, heads, memory, part, scale, CONFIG: tl.constexpr):
    """The multiplying role."""
    if CONFIG.EARLY:
        tx.grid_wait()
    load_queries(q, memory, part, heads, CONFIG)
    result, maximum, total = walk(memory, part, scale, CONFIG)
    result, column = of_all_keys(memory, result, maximum, total, scale, CONFIG)
    store_rows(result, out, column, heads, part, CONFIG)


@tilewright.jit
def paged_tokens(q, k: tx.tensor_map, v: tx.tensor_map, tables, starts, lengths, out, tokens, slots, columns, heads,
                 key_heads, scale, CONFIG: tl.constexpr):  # fmt: skip
    """out[t, h] = softmax over the keys that new token t sees of (q[t, h] . k scale ln 2), times v, of sequences with
    at most `CONFIG.ROWS` rows: new tokens times query heads of a head of keys.

    q and out are [tokens, heads, D]; the maps are of pools as [key heads, slots, D], with tiles of `CONFIG.key_block`;
    `tables` is [sequences, columns].  Nothing is written for other sequences.
    Grid: (sequences * key heads * CONFIG.SPLITS,).
    Dao et al., "Flash-Decoding for long-context inference", 2023 (parts of the keys); Kwon et al., "Efficient Memory
    Management for Large Language Model Serving with PagedAttention", 2023.
    """
    if CONFIG.SPLITS > 1:
        tx.cluster((CONFIG.SPLITS,))
    swizzle: tl.constexpr = swizzle_of(CONFIG.D * CONFIG.TYPE.itemsize)
    tiles = tx.shared((CONFIG.TILES, CONFIG.BN, CONFIG.D), CONFIG.TYPE, swizzle=swizzle)
    queries = tx.shared((CONFIG.ROWS, CONFIG.D), CONFIG.TYPE, swizzle=swizzle)
    weights = tx.shared((CONFIG.WEIGHTS, CONFIG.ROWS, CONFIG.BN), CONFIG.TYPE,
                        swizzle=swizzle_of(CONFIG.BN * CONFIG.TYPE.itemsize))  # fmt: skip
    results, maxima, sums = divided_results(queries, CONFIG)
    memory = PagedMemory(queries, tiles, weights, results, maxima, sums, tx.make_ring(CONFIG.TILES, 4))
    tx.grid_launch_dependents()
    if not CONFIG.EARLY:
        tx.grid_wait()
    part = part_of(tables, starts, lengths, tokens, slots, columns, key_heads, CONFIG)
    attending = tx.role(attend, (q, out, heads, memory, part, scale, CONFIG))
    loading = tx.role(load_tiles, (k, v, memory, part, CONFIG), warps=1, elected=True)
    tx.warp_roles(attending, loading)
    if CONFIG.SPLITS > 1:
        # Peers may still read this CTA's results.
        tx.cluster_arrive(relaxed=True)
        tx.cluster_wait()
