"""Attention of few queries on Hopper, as decoding has it: one pass over a cache of keys and values.

Such a step takes as long as its memory, if it starts soon and ends soon.  Keys and values are the operands of 64 rows
of each product, and the queries that share them the 8 columns (or more) that a product has at least: S^T = K Q^T and
O^T = V^T P^T.  So a thread has few scores to exponentiate and few results.  The keys of a head are divided among the
CTAs of a cluster, which put their results together through each other's shared memory, each for a part of the columns.

Kernels in front are waited for late.  With `AHEAD` only the queries come after them: keys and values are there before,
and of those the 8 rows are read again in which one may have been written (`FRESH`).  Else these are asked for to come
to the L2 cache.

Dao et al., "Flash-Decoding for long-context inference", 2023 (parts of the keys).
"""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl
import tilewright.language.explicit as tx
from tilewright.library.attention.hopper.kernel import load_ring_block
from tilewright.library.hopper import swizzle_of

swizzle_of = tilewright.constexpr_function(swizzle_of)


@tilewright.aggregate
class DecodingMemory:
    """Tiles and barriers in shared memory."""

    queries: tx.shared_tile
    keys: tx.shared_tile
    values: tx.shared_tile
    weights: tx.shared_tile  # exponentials of two blocks, [queries, keys]
    results: tx.shared_tile  # of this CTA's keys, for all of the cluster: [D, queries],
    maxima: tx.shared_tile  # … what the exponentials refer to,
    sums: tx.shared_tile  # … and their sums
    query_full: tx.barrier_array
    key_ring: tx.ring_barriers
    value_ring: tx.ring_barriers
    fresh_full: tx.barrier_array


@tilewright.aggregate
class KeyPart:
    """A part of the keys of a head: which, and what of it is there."""

    batch: tl.tensor
    head: tl.tensor
    first: tl.tensor
    keys: tl.tensor  # none where the parts before have them all
    blocks: tl.tensor
    fresh: tl.tensor  # its key that is written late, if that is in one of the blocks that are read early, else -1


@tilewright.jit
def part_of(keys, heads, fresh, CONFIG: tl.constexpr):
    """This CTA's part: whole blocks, but for the last one."""
    pair = tl.program_id(0) // CONFIG.SPLITS
    batch = pair // heads
    length = tl.cdiv(keys, CONFIG.SPLITS * CONFIG.BN) * CONFIG.BN
    first = tl.program_id(0) % CONFIG.SPLITS * length
    own = tl.maximum(tl.minimum(keys - first, length), 0)
    late = own * 0 - 1
    if CONFIG.FRESH:
        number = tl.load(fresh)
        local = tl.where(number < 0, number + keys, number) - first
        late = tl.where((local >= 0) & (local < tl.minimum(own, CONFIG.STAGES * CONFIG.BN)), local, -1).to(tl.int32)
    return KeyPart(batch, pair - batch * heads, first, own, tl.cdiv(own, CONFIG.BN), late)


@tilewright.jit
def load_blocks(k, v, memory, start, stop, part, CONFIG: tl.constexpr):
    """Start loading blocks in their order, values one block behind the keys."""
    if start < stop:
        load_ring_block(k, memory.key_ring, memory.keys, start, part, part.head, start, CONFIG)
    for step in range(start, stop):
        if step + 1 < stop:
            load_ring_block(k, memory.key_ring, memory.keys, step + 1, part, part.head, step + 1, CONFIG)
        load_ring_block(v, memory.value_ring, memory.values, step, part, part.head, step, CONFIG)


@tilewright.jit
def ask_for_blocks(k, v, memory, count, part, CONFIG: tl.constexpr):
    """Ask for the first blocks to come to the L2 cache: those that kernels in front write are brought up to date
    there."""
    for step in range(count):
        place = (part.batch, part.head, part.first + step * CONFIG.BN, 0)
        tx.tma_prefetch(k, place, memory.keys[0])
        tx.tma_prefetch(v, place, memory.values[0])


@tilewright.jit
def load_fresh(k, v, memory, part, CONFIG: tl.constexpr):
    """Load the rows again among which one was written, over those that came before."""
    ROWS: tl.constexpr = CONFIG.fresh_block[2]
    stage = part.fresh // CONFIG.BN
    memory.key_ring.full[stage].wait(0)
    memory.value_ring.full[stage].wait(0)
    first = part.fresh // ROWS * ROWS
    place = (part.batch, part.head, part.first + first, 0)
    keys = memory.keys[stage].slice(first - stage * CONFIG.BN, ROWS)
    values = memory.values[stage].slice(first - stage * CONFIG.BN, ROWS)
    memory.fresh_full[0].expect(2 * keys.bytes)
    tx.tma_load(k, place, keys, memory.fresh_full[0])
    tx.tma_load(v, place, values, memory.fresh_full[0])


@tilewright.jit
def load_tiles(copy, q, k, v, k_rows, v_rows, memory, part, CONFIG: tl.constexpr):
    """The loading role: one thread."""
    early = tl.minimum(part.blocks, CONFIG.STAGES)
    if CONFIG.AHEAD:
        load_blocks(k, v, memory, 0, early, part, CONFIG)
        tx.grid_wait()
    else:
        ask_for_blocks(k, v, memory, early, part, CONFIG)
        tx.grid_wait()
        early = early * 0
    if part.blocks > 0:
        memory.query_full[0].expect(memory.queries.bytes)
        tx.tma_load(q, (part.batch, part.head, 0, 0), memory.queries, memory.query_full[0])
    if CONFIG.FRESH:
        if part.fresh >= 0:
            load_fresh(k_rows, v_rows, memory, part, CONFIG)
    load_blocks(k, v, memory, early, part.blocks, part, CONFIG)
    if CONFIG.SPLITS > 1:
        tx.cluster_arrive()
        tx.cluster_wait()


@tilewright.jit
def bias_of(step, part, bias, CONFIG: tl.constexpr):
    """The bias of a block's keys, [keys, 1]; zeros where there are none."""
    key = step * CONFIG.BN + tl.arange(0, CONFIG.BN)[:, None]
    return tl.load(bias + key, mask=key < part.keys, other=0.0)


@tilewright.jit
def scores_of(memory, part, step, CONFIG: tl.constexpr):
    """The scores of a block, [keys, queries]."""
    position = tx.ring_at(step, CONFIG.STAGES)
    memory.key_ring.wait_full(position)
    if CONFIG.FRESH:
        if (part.fresh >= step * CONFIG.BN) & (part.fresh < (step + 1) * CONFIG.BN):
            memory.fresh_full[0].wait(0)
    scores = tx.wgmma_wait(tx.wgmma(memory.keys[position.stage], memory.queries.T))
    memory.key_ring.release(position)
    return scores


@tilewright.jit
def weigh(memory, scores, maximum, scale, step):
    """The exponentials of a block's scores, what those before are multiplied by, the maximum, and the exponentials in
    shared memory."""
    greatest = tl.maximum(maximum, tl.max(scores, 0))
    powers = tl.exp2(tl.fma(scores, scale, (-scale * greatest)[None, :]))
    factor = tl.exp2((maximum - greatest) * scale)[None, :]
    weights = memory.weights[step % 2]
    weights.store(tl.trans(powers))
    tx.fence_async()
    tx.group_sync()
    return powers, factor, greatest, weights


@tilewright.jit
def walk(memory, part, bias, bias_factor, scale, CONFIG: tl.constexpr):
    """Results of this CTA's keys [D, queries], not divided by their sums; maxima and sums of the queries."""
    maximum = tl.full((CONFIG.ROWS,), -1e30, tl.float32)  # finite, also where a query sees nothing
    sums = tl.zeros((CONFIG.BN, CONFIG.ROWS), tl.float32)  # each of one key in a block
    out = tl.zeros((CONFIG.D, CONFIG.ROWS), tl.float32)
    if CONFIG.BIAS:
        added = bias_of(0, part, bias, CONFIG)
    if part.blocks > 0:
        memory.query_full[0].wait(0)
    for step in range(part.blocks):
        scores = scores_of(memory, part, step, CONFIG)
        if CONFIG.BIAS:
            scores = tl.fma(added.to(tl.float32), bias_factor, scores)
            added = bias_of(step + 1, part, bias, CONFIG)  # there when it is wanted
        key = step * CONFIG.BN + tl.arange(0, CONFIG.BN)[:, None]
        scores = tl.where(key < part.keys, scores, float("-inf"))
        powers, factor, greatest, weights = weigh(memory, scores, maximum, scale, step)
        position = tx.ring_at(step, CONFIG.STAGES)
        memory.value_ring.wait_full(position)
        pending = tx.wgmma(memory.values[position.stage].T, weights.T, out * factor)
        sums = tl.fma(sums, factor, powers)
        maximum = greatest
        out = tx.wgmma_wait(pending)
        memory.value_ring.release(position)
    return out, maximum, tl.sum(sums, 0)


@tilewright.jit
def divided_results(queries, CONFIG: tl.constexpr):
    """Tiles for the results, maxima and sums of this CTA's keys, which its cluster reads; without one, any tiles."""
    results, maxima, sums = queries, queries, queries
    if CONFIG.SPLITS > 1:
        results = tx.shared((CONFIG.D, CONFIG.ROWS), tl.float32)
        maxima = tx.shared((1, CONFIG.ROWS), tl.float32)
        sums = tx.shared((1, CONFIG.ROWS), tl.float32)
    return results, maxima, sums


@tilewright.jit
def put_together(memory, columns, scale, CONFIG: tl.constexpr):
    """Results of all keys for some columns, [columns, queries], and their sums. Everything is asked for before the
    first of it is waited for: other CTAs' memory is far."""
    maxima, sums, results = (), (), ()
    for peer in tl.static_range(CONFIG.SPLITS):
        maxima = maxima + (memory.maxima.remote(peer).load(),)
    for peer in tl.static_range(CONFIG.SPLITS):
        sums = sums + (memory.sums.remote(peer).load(),)
    for peer in tl.static_range(CONFIG.SPLITS):
        results = results + (memory.results.slice(columns, CONFIG.columns).remote(peer).load(),)
    greatest = maxima[0]
    for peer in tl.static_range(1, CONFIG.SPLITS):
        greatest = tl.maximum(greatest, maxima[peer])
    total = tl.zeros((1, CONFIG.ROWS), tl.float32)
    out = tl.zeros((CONFIG.columns, CONFIG.ROWS), tl.float32)
    for peer in tl.static_range(CONFIG.SPLITS):
        factor = tl.exp2((maxima[peer] - greatest) * scale)
        total = tl.fma(sums[peer], factor, total)
        out = tl.fma(results[peer], factor, out)
    return out, total


@tilewright.jit
def of_all_keys(memory, result, maximum, total, scale, CONFIG: tl.constexpr):
    """Results of all keys, divided by their sums, and which columns: this CTA's part of those of a cluster."""
    column = tl.arange(0, CONFIG.columns)[:, None]
    total = total[None, :]
    if CONFIG.SPLITS > 1:
        memory.results.store(result)
        memory.maxima.store(maximum[None, :])
        memory.sums.store(total)
        tx.cluster_arrive()
        tx.cluster_wait()
        first = tx.cluster_rank() * CONFIG.columns
        result, total = put_together(memory, first, scale, CONFIG)
        column += first
    return result * tl.where(total > 0, 1.0 / total, 0.0), column


@tilewright.jit
def attend(copy, out, out_batch, out_head, out_row, queries, heads, memory, part, bias, bias_factor, scale, extra,
           CONFIG: tl.constexpr):  # fmt: skip
    """The multiplying role."""
    tx.grid_wait()  # for the bias, and for those who still read what results are stored over
    result, maximum, total = walk(memory, part, bias, bias_factor, scale, CONFIG)
    result, column = of_all_keys(memory, result, maximum, total, scale, CONFIG)
    row = tl.arange(0, CONFIG.ROWS)[None, :]
    place = part.batch.to(tl.int64) * out_batch + part.head.to(tl.int64) * out_head + row.to(tl.int64) * out_row
    number = (part.batch * heads + part.head).to(tl.int64) * queries + row
    result = CONFIG.EPILOGUE(result, number, column, row < queries, extra)
    tl.store(out + place + column, result.to(out.dtype.element_ty), mask=row < queries)


@tilewright.jit
def decoding(q: tx.tensor_map, k: tx.tensor_map, v: tx.tensor_map, k_rows: tx.tensor_map, v_rows: tx.tensor_map, fresh,
             out, out_batch, out_head, out_row, queries, keys, heads, scale, *extra, CONFIG: tl.constexpr):  # fmt: skip
    """out[b, h, s] = softmax over keys of (q[b, h, s] . k[b, h] scale ln 2), times v, for a few queries s.

    The maps are of tensors [batch, heads, rows, D], with tiles of `CONFIG.query_block` and `CONFIG.key_block`; `out` is
    a pointer to such a tensor with strides over batches, heads and queries, and `CONFIG.ROWS` or fewer queries.  With
    `BIAS` the scores get a bias: the first of `extra` are its pointer, its strides over batches and heads (keys follow
    each other), and ln 2 / scale; the others are for the epilogue, whose rows are those of all batches and
    heads.  With `FRESH` key number `fresh[0]`, from the end where that is negative, may be written by the
    kernels in front (no other key may with `AHEAD`), and `k_rows` and `v_rows` are maps as k and v with tiles of
    `CONFIG.fresh_block`.
    Grid: (batches * heads * CONFIG.SPLITS,).
    """
    if CONFIG.SPLITS > 1:
        tx.cluster((CONFIG.SPLITS,))
    swizzle: tl.constexpr = swizzle_of(CONFIG.D * CONFIG.TYPE.itemsize)
    keys_ = tx.shared((CONFIG.STAGES, CONFIG.BN, CONFIG.D), CONFIG.TYPE, swizzle=swizzle)
    values = tx.shared((CONFIG.STAGES, CONFIG.BN, CONFIG.D), CONFIG.TYPE, swizzle=swizzle)
    query_tile = tx.shared((CONFIG.ROWS, CONFIG.D), CONFIG.TYPE, swizzle=swizzle)
    weights = tx.shared((2, CONFIG.ROWS, CONFIG.BN), CONFIG.TYPE, swizzle=swizzle_of(CONFIG.BN * CONFIG.TYPE.itemsize))
    results, maxima, sums = divided_results(query_tile, CONFIG)
    memory = DecodingMemory(query_tile, keys_, values, weights, results, maxima, sums, tx.barriers(1, 1),
                    tx.make_ring(CONFIG.STAGES, 4), tx.make_ring(CONFIG.STAGES, 4), tx.barriers(1, 1))  # fmt: skip
    part = part_of(keys, heads, fresh, CONFIG)
    place, factor = out, scale
    if CONFIG.BIAS:
        place = extra[0] + (part.batch.to(tl.int64) * extra[1] + part.head * extra[2] + part.first)
        factor = extra[3]
    tx.grid_launch_dependents()
    attending = tx.role(attend, (out, out_batch, out_head, out_row, queries, heads, memory, part, place, factor, scale,
                                 extra, CONFIG))  # fmt: skip
    loading = tx.role(load_tiles, (q, k, v, k_rows, v_rows, memory, part, CONFIG), warps=1, elected=True)
    tx.warp_roles(attending, loading)
    if CONFIG.SPLITS > 1:
        # Peers may still read this CTA's results.
        tx.cluster_arrive(relaxed=True)
        tx.cluster_wait()
