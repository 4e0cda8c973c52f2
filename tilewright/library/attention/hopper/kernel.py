"""Attention forward on Hopper: out = softmax(scale Q K^T) V, one pass over keys and values.

One elected thread loads Q, K and V by TMA; two to four warpgroups own 64 queries each and walk the blocks of keys
downwards.  Three things overlap with the products:

* the softmax of a block runs while the product of the block before it with its values is in flight;
* warpgroups take turns at issuing products (numbered barriers), so that one's softmax is under another's products;
* with `FLAT`, the last product of a tile is issued together with the first of the next one, and the results of a tile
  are stored under the products of the other warpgroups.

The running maximum of a row is raised only when it was outgrown by 2^8 (`LAZY`): until then the exponentials stay
representable, and accumulators need no rescaling; a vote of the warp skips it.

Shah et al., "FlashAttention-3", 2024 (overlap and turns); Zadouri et al., "FlashAttention-4", 2025 (lazy rescaling).
"""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl
import tilewright.language.explicit as tx
from tilewright.library.hopper import swizzle_of
from tilewright.library.masked_loads import load_within
from tilewright.library.masks import and_masks

swizzle_of = tilewright.constexpr_function(swizzle_of)


@tilewright.aggregate
class Sizes:
    """Run-time sizes of a launch, and where the bias lies (`CONFIG.BIAS`)."""

    queries: tl.tensor
    keys: tl.tensor
    heads: tl.tensor
    group: tl.tensor  # query heads for one head of keys and values
    window: tl.tensor
    bias: tl.tensor  # pointer
    bias_batch: tl.tensor  # strides
    bias_head: tl.tensor
    bias_row: tl.tensor
    bias_factor: tl.tensor


@tilewright.aggregate
class AttentionMemory:
    """Tiles and barriers in shared memory."""

    queries: tx.shared_tile
    keys: tx.shared_tile
    values: tx.shared_tile
    outs: tx.shared_tile
    query_ring: tx.ring_barriers
    key_ring: tx.ring_barriers
    value_ring: tx.ring_barriers


@tilewright.aggregate
class QueryTile:
    """A tile of queries: its batch and head, first row, and the blocks of keys that some of its rows see."""

    batch: tl.tensor
    head: tl.tensor
    row: tl.tensor
    keys: tl.tensor  # of its batch, or its part of them
    first: tl.tensor  # key of its part
    offset: tl.tensor  # the key that the first query of its batch sees last, when causal
    low: tl.tensor  # blocks low … high - 1
    high: tl.tensor


@tilewright.jit
def blocks_below(row, offset, keys, CONFIG: tl.constexpr):
    """How many blocks of keys a row that sees keys up to its own needs; one at least."""
    last = keys
    if CONFIG.CAUSAL:
        last = tl.minimum(keys, tl.maximum(row + offset + 1, 1))
    return tl.maximum((last + (CONFIG.BN - 1)) // CONFIG.BN, 1)


@tilewright.jit
def tile_of(entry, sizes, lengths, CONFIG: tl.constexpr):
    """The tile that an entry of the schedule stands for."""
    pair = entry >> 16
    batch = pair // sizes.heads
    row = (entry & 0xFFFF) * CONFIG.BM
    queries, keys = sizes.queries, sizes.keys
    if CONFIG.LENGTHS == 1:
        queries, keys = tl.load(lengths + 2 * batch), tl.load(lengths + 2 * batch + 1)
    first = row * 0
    if CONFIG.SPLITS > 1:
        part = tl.cdiv(keys, CONFIG.SPLITS * CONFIG.BN) * CONFIG.BN
        first = (pair % CONFIG.SPLITS) * part
        keys = tl.minimum(keys - first, part)
    offset = keys - queries
    if CONFIG.LENGTHS == 2:
        keys = tl.minimum(keys, tl.load(lengths + batch))
    high = blocks_below(tl.minimum(row + CONFIG.BM, queries) - 1, offset, keys, CONFIG)
    low = high * 0
    if CONFIG.WINDOW:
        low = tl.minimum(tl.maximum(row + offset - sizes.window + 1, 0) // CONFIG.BN, high - 1)
    return QueryTile(batch, pair - batch * sizes.heads, row, keys, first, offset, low, high)


@tilewright.jit
def load_block(source, tile, batch, head, row, full):
    """Start loading a tile that is all its barrier waits for."""
    full.expect(tile.bytes)
    tx.tma_load(source, (batch, head, row, 0), tile, full)


@tilewright.jit
def load_ring_block(source, ring, tiles, count, tile, head, block, CONFIG: tl.constexpr):
    """Start loading a block of keys or values into the ring, once its stage is empty."""
    position = tx.ring_at(count, CONFIG.STAGES)
    ring.empty[position.stage].wait(1 - position.parity)
    row = tile.first + block * CONFIG.BN
    load_block(source, tiles[position.stage], tile.batch, head, row, ring.full[position.stage])


@tilewright.jit
def ask_for_first(k, v, memory, tile, sizes, CONFIG: tl.constexpr):
    """Ask for the first blocks of keys and values that a tile needs to come to the L2 cache: most of them, or all, were
    there before the kernels in front of this one, and those that these write are brought up to date there."""
    head = tile.head // CONFIG.SPLITS // sizes.group
    for step in range(tl.minimum(tile.high - tile.low, CONFIG.STAGES)):
        row = tile.first + (tile.high - 1 - step) * CONFIG.BN
        tx.tma_prefetch(k, (tile.batch, head, row, 0), memory.keys[0])
        tx.tma_prefetch(v, (tile.batch, head, row, 0), memory.values[0])


@tilewright.jit
def load_tiles(copy, q, k, v, memory, sizes, schedule, lengths, CONFIG: tl.constexpr):
    """The loading role: one thread. Keys come first, then queries, then values one block behind the keys."""
    entry = tl.load(schedule)
    number = 0
    count = 0
    if CONFIG.DEPENDENT:
        if entry >= 0:
            ask_for_first(k, v, memory, tile_of(entry, sizes, lengths, CONFIG), sizes, CONFIG)
        tx.grid_wait()
    while entry >= 0:
        following = tl.load(schedule + number + 1)
        tile = tile_of(entry, sizes, lengths, CONFIG)
        query_head = tile.head // CONFIG.SPLITS
        head = query_head // sizes.group
        blocks = tile.high - tile.low
        load_ring_block(k, memory.key_ring, memory.keys, count, tile, head, tile.high - 1, CONFIG)
        slot = tx.ring_at(number, CONFIG.query_stages)
        for part in tl.static_range(CONFIG.CONSUMERS):
            index = slot.stage * CONFIG.CONSUMERS + part
            memory.query_ring.empty[index].wait(1 - slot.parity)
            load_block(q, memory.queries[index], tile.batch, query_head, tile.row + 64 * part,
                       memory.query_ring.full[index])  # fmt: skip
        for step in range(blocks):
            if step + 1 < blocks:
                load_ring_block(k, memory.key_ring, memory.keys, count + step + 1, tile, head,
                                tile.high - 2 - step, CONFIG)  # fmt: skip
            load_ring_block(v, memory.value_ring, memory.values, count + step, tile, head,
                            tile.high - 1 - step, CONFIG)  # fmt: skip
        count += blocks
        number += 1
        entry = following


@tilewright.jit
def take_turn(copy, CONFIG: tl.constexpr):
    """Wait until this warpgroup may issue products."""
    if CONFIG.PING_PONG:
        tx.named_sync(copy + 1, 256)


@tilewright.jit
def pass_turn(copy, CONFIG: tl.constexpr):
    """Let the next warpgroup issue products."""
    if CONFIG.PING_PONG:
        tx.named_arrive(tl.where(copy == CONFIG.CONSUMERS - 1, 1, copy + 2), 256)


@tilewright.jit
def pass_unread(ring, count, blocks, copy, PING_PONG: tl.constexpr, CONFIG: tl.constexpr):
    """Release blocks that none of this warpgroup's rows sees; gives the count behind them."""
    for step in range(blocks):
        position = tx.ring_at(count + step, CONFIG.STAGES)
        ring.wait_full(position)
        if PING_PONG:
            take_turn(copy, CONFIG)
            pass_turn(copy, CONFIG)
        ring.release(position)
    return count + blocks


@tilewright.jit
def masked(scores, block, row, tile, sizes, CONFIG: tl.constexpr):
    """Scores with minus infinity where a query does not see a key. `row` is this warpgroup's first."""
    if CONFIG.WHOLE:
        return scores
    first = block * CONFIG.BN
    # A thread has the columns 8 n + 2 (lane % 4) and the next ones: its own part goes to the limit, and what is left is
    # a constant for each register, so that no column numbers are held beside the scores.
    column = tl.arange(0, CONFIG.BN)[None, :]
    own, rest = column & 6, column & -7
    limit = tl.zeros((64,), tl.int32) + (tile.keys - 1 - first)
    diagonal = row + tile.offset - first + tl.arange(0, 64)
    if CONFIG.CAUSAL:
        limit = tl.minimum(limit, diagonal)
    seen = rest <= limit[:, None] - own
    if CONFIG.WINDOW:
        seen = seen & (rest > (diagonal - sizes.window)[:, None] - own)
    return tl.where(seen, scores, float("-inf"))


@tilewright.jit
def bias_of(block, row, tile, sizes, CONFIG: tl.constexpr):
    """The bias of a block's scores: [1, BN], or [64, BN] where queries differ."""
    column = block * CONFIG.BN + tl.arange(0, CONFIG.BN)[None, :]
    first = tile.batch * sizes.bias_batch + tile.head // CONFIG.SPLITS * sizes.bias_head + tile.first
    if CONFIG.PAIRED:
        first = tl.multiple_of(first, 2)
    place = sizes.bias + first
    exists = None if CONFIG.WHOLE else column < tile.keys
    if CONFIG.BIAS == 2:
        rows = row + tl.arange(0, 64)[:, None]
        place = place + rows.to(tl.int64) * sizes.bias_row
        exists = and_masks(exists, rows < sizes.queries)
    return load_within(place + column, exists).to(tl.float32)


@tilewright.jit
def bounded(scores, scale, CONFIG: tl.constexpr):
    """Scores within the soft cap; `scale` makes exponents of 2 of them. Powers that overflow or vanish give the cap."""
    if CONFIG.SOFTCAP > 0:
        bound = (CONFIG.SOFTCAP * 1.4426950408889634) / scale
        scores = bound - 2.0 * bound / (tl.exp2(scores * (scale * (2.0 / CONFIG.SOFTCAP))) + 1.0)
    return scores


@tilewright.jit
def partial_sums(block):
    """Sums over every eighth column, [64, 8]: what a thread holds of a product it adds up alone."""
    return tl.sum(tl.reshape(block, (64, block.shape[1] // 8, 8)), 1)


@tilewright.jit
def first_softmax(scores, scale):
    """Exponentials of a row's first block, with maxima (finite, also for rows that see nothing) and partial sums."""
    maximum = tl.maximum(tl.max(scores, 1), -1e30)
    powers = tl.exp2(tl.fma(scores, scale, (-scale * maximum)[:, None]))
    return powers, maximum, partial_sums(powers)


@tilewright.jit
def softmax(scores, maximum, scale, CONFIG: tl.constexpr):
    """Exponentials of a further block, the maxima that they refer to, and partial sums."""
    greatest = tl.maximum(maximum, tl.max(scores, 1))
    if CONFIG.LAZY:
        greatest = tl.where((greatest - maximum) * scale > 8.0, greatest, maximum)
    powers = tl.exp2(tl.fma(scores, scale, (-scale * greatest)[:, None]))
    return powers, greatest, partial_sums(powers)


@tilewright.jit
def rescaled(out, sums, maximum, greatest, scale):
    """Results and sums so far, referred to new maxima."""
    factor = tl.exp2((maximum - greatest) * scale)[:, None]
    return out * factor, sums * factor


@tilewright.jit
def products(queries, memory, powers, out, key_count, value_count, copy, CONFIG: tl.constexpr):
    """Issue the scores of a block whose keys are there and the values of the one before it; wait for the scores."""
    key = tx.ring_at(key_count, CONFIG.STAGES)
    value = tx.ring_at(value_count, CONFIG.STAGES)
    take_turn(copy, CONFIG)
    scores = tx.wgmma(queries, memory.keys[key.stage].T)
    memory.value_ring.wait_full(value)
    out = tx.wgmma(powers, memory.values[value.stage], out)
    pass_turn(copy, CONFIG)
    block = tx.wgmma_wait(scores, outstanding=1)
    memory.key_ring.release(key)
    return block, out


@tilewright.jit
def walk(first, end, queries, memory, powers, maximum, sums, out, count, top, row, tile, sizes, copy, scale,
         MASKED: tl.constexpr, CONFIG: tl.constexpr):  # fmt: skip
    """Blocks `top` - first, … down to `top` - end + 1, each under the product of the one before it."""
    if first < end:
        memory.key_ring.wait_full(tx.ring_at(count + first, CONFIG.STAGES))
    if CONFIG.biased_ahead:
        bias = bias_of(tl.maximum(top - first, 0), row, tile, sizes, CONFIG)
    for step in range(first, end):
        if CONFIG.BIAS > 0 and not CONFIG.biased_ahead:
            bias = bias_of(top - step, row, tile, sizes, CONFIG)
        scores, pending = products(queries, memory, powers, out, count + step, count + step - 1, copy, CONFIG)
        scores = bounded(scores, scale, CONFIG)
        if CONFIG.BIAS > 0:
            scores = tl.fma(bias, sizes.bias_factor, scores)
        if CONFIG.biased_ahead:
            bias = bias_of(tl.maximum(top - step - 1, 0), row, tile, sizes, CONFIG)
        if MASKED:
            scores = masked(scores, top - step, row, tile, sizes, CONFIG)
        exponentials, greatest, added = softmax(scores, maximum, scale, CONFIG)
        if CONFIG.LAZY:
            grown = tx.warp_any(greatest > maximum)
        # Here it is no loss to wait for the next keys, and it keeps the assembler from moving the wait for the product
        # in front of the exponentials.  That one is for all warps of a group at one place: their votes differ.
        if step + 1 < end:
            memory.key_ring.wait_full(tx.ring_at(count + step + 1, CONFIG.STAGES))
        out = tx.wgmma_wait(pending)
        if CONFIG.LAZY:
            if grown:
                out, sums = rescaled(out, sums, maximum, greatest, scale)
        else:
            out, sums = rescaled(out, sums, maximum, greatest, scale)
        memory.value_ring.release(tx.ring_at(count + step - 1, CONFIG.STAGES))
        sums += added
        maximum = greatest
        powers = exponentials.to(CONFIG.TYPE)
    return powers, maximum, sums, out


@tilewright.jit
def query_tile(memory, number, copy, CONFIG: tl.constexpr):
    """This warpgroup's queries of a tile."""
    return memory.queries[tx.ring_at(number, CONFIG.query_stages).stage * CONFIG.CONSUMERS + copy]


@tilewright.jit
def wait_queries(memory, number, copy, CONFIG: tl.constexpr):
    """Wait until this warpgroup's queries of a tile are there."""
    slot = tx.ring_at(number, CONFIG.query_stages)
    memory.query_ring.full[slot.stage * CONFIG.CONSUMERS + copy].wait(slot.parity)


@tilewright.jit
def release_queries(memory, number, copy, CONFIG: tl.constexpr):
    """This warpgroup is done with its queries of a tile."""
    slot = tx.ring_at(number, CONFIG.query_stages)
    memory.query_ring.empty[slot.stage * CONFIG.CONSUMERS + copy].arrive()


@tilewright.jit
def top_block(tile, copy, CONFIG: tl.constexpr):
    """The last block that a row of this warpgroup sees, and how many of the tile's blocks lie above it."""
    above = tile.high * 0
    if CONFIG.CAUSAL:
        own = blocks_below(tile.row + copy * 64 + 63, tile.offset, tile.keys, CONFIG)
        above = tl.maximum(tile.high - tl.maximum(own, tile.low + 1), 0)
    return tile.high - 1 - above, above


@tilewright.jit
def first_block(queries, memory, tile, count, copy, sizes, scale, CONFIG: tl.constexpr):
    """Scores and exponentials of the first block of the first tile."""
    top, above = top_block(tile, copy, CONFIG)
    position = tx.ring_at(pass_unread(memory.key_ring, count, above, copy, CONFIG.PING_PONG, CONFIG), CONFIG.STAGES)
    row = tile.row + copy * 64
    if CONFIG.BIAS > 0:
        bias = bias_of(top, row, tile, sizes, CONFIG)
    memory.key_ring.wait_full(position)
    scores = tx.wgmma_wait(tx.wgmma(queries, memory.keys[position.stage].T))
    memory.key_ring.release(position)
    scores = bounded(scores, scale, CONFIG)
    if CONFIG.BIAS > 0:
        scores = tl.fma(bias, sizes.bias_factor, scores)
    powers, maximum, sums = first_softmax(masked(scores, top, row, tile, sizes, CONFIG), scale)
    return powers.to(CONFIG.TYPE), maximum, sums


@tilewright.jit
def rest_of_tile(queries, memory, powers, maximum, sums, tile, count, copy, sizes, scale, CONFIG: tl.constexpr):
    """All further blocks of a tile; the values of the last one are left to do."""
    out = tl.zeros((64, CONFIG.D), tl.float32)
    top, above = top_block(tile, copy, CONFIG)
    pass_unread(memory.value_ring, count, above, copy, False, CONFIG)
    row = tile.row + copy * 64
    blocks = tile.high - tile.low
    start = above + 1
    if CONFIG.CAUSAL:
        # Blocks that lie across the diagonal of these rows.
        whole = tl.minimum((row + tile.offset + 1) // CONFIG.BN, tile.keys // CONFIG.BN)
        end = tl.minimum(tl.maximum(tile.high - tl.maximum(whole, 0), start), blocks)
        powers, maximum, sums, out = walk(start, end, queries, memory, powers, maximum, sums, out, count,
                                          tile.high - 1, row, tile, sizes, copy, scale, True, CONFIG)  # fmt: skip
        start = end
    stop = blocks
    if CONFIG.WINDOW:
        inside = tl.cdiv(tl.maximum(row + 63 + tile.offset - sizes.window + 1, 0), CONFIG.BN)
        stop = tl.minimum(tl.maximum(tile.high - inside, start), blocks)
    powers, maximum, sums, out = walk(start, stop, queries, memory, powers, maximum, sums, out, count,
                                      tile.high - 1, row, tile, sizes, copy, scale, False, CONFIG)  # fmt: skip
    if CONFIG.WINDOW:
        powers, maximum, sums, out = walk(stop, blocks, queries, memory, powers, maximum, sums, out, count,
                                          tile.high - 1, row, tile, sizes, copy, scale, True, CONFIG)  # fmt: skip
    return powers, maximum, sums, out


@tilewright.jit
def last_values(memory, powers, out, count, CONFIG: tl.constexpr):
    """The product with the values of a tile's last block, where no further scores go with it."""
    position = tx.ring_at(count, CONFIG.STAGES)
    memory.value_ring.wait_full(position)
    out = tx.wgmma_wait(tx.wgmma(powers, memory.values[position.stage], out))
    memory.value_ring.release(position)
    return out


@tilewright.jit
def finished(out, tile, row, sizes, extra, CONFIG: tl.constexpr):
    """The epilogue on 64 rows of results, of which `row` is the first."""
    rows = row + tl.arange(0, 64)[:, None]
    column = tl.arange(0, CONFIG.D)[None, :]
    number = (tile.batch * sizes.heads + tile.head).to(tl.int64) * sizes.queries + rows
    return CONFIG.EPILOGUE(out, number, column, (rows < sizes.queries) & (column < CONFIG.D), extra)


@tilewright.jit
def store_tile(out, maximum, sums, memory, target, lse, tile, sizes, number, copy, scale, extra,
               CONFIG: tl.constexpr):  # fmt: skip
    """Divide by the sums and store this warpgroup's rows."""
    total = tl.sum(sums, 1)
    factor = tl.where(total > 0, 1.0 / total, 0.0)
    row = tile.row + copy * 64
    staging = memory.outs[copy * CONFIG.out_stride]
    tx.tma_wait(0, read=True)
    tx.group_sync()
    staging.store(finished(out * factor[:, None], tile, row, sizes, extra, CONFIG))
    tx.fence_async()
    tx.group_sync()
    tx.tma_store(target, (tile.batch, tile.head, row, 0), staging)
    tx.tma_commit()
    if not CONFIG.separate_outs:
        tx.tma_wait(0, read=True)
        tx.group_sync()
        release_queries(memory, number, copy, CONFIG)
    if CONFIG.LSE:
        rows = row + tl.arange(0, 64)
        place = (tile.batch * sizes.heads + tile.head).to(tl.int64) * sizes.queries + rows
        value = (tl.fma(maximum, scale, tl.log2(total))) * 0.6931471805599453
        tl.store(lse + place, tl.where(total > 0, value, float("-inf")), mask=rows < sizes.queries)


@tilewright.jit
def attend(copy, target, lse, memory, sizes, schedule, lengths, scale, extra, CONFIG: tl.constexpr):
    """The multiplying role: 64 queries of each tile."""
    entry = tl.load(schedule)
    if CONFIG.DEPENDENT:
        tx.grid_wait()  # for the bias, and for those who still read what results are stored over
    number = 0
    count = 0
    if CONFIG.PING_PONG:
        if copy == CONFIG.CONSUMERS - 1:
            tx.named_arrive(1, 256)
    if CONFIG.FLAT:
        wait_queries(memory, 0, copy, CONFIG)
        queries = query_tile(memory, 0, copy, CONFIG)
        tile = tile_of(entry, sizes, lengths, CONFIG)
        powers, maximum, sums = first_block(queries, memory, tile, count, copy, sizes, scale, CONFIG)
    while entry >= 0:
        following = tl.load(schedule + number + 1)
        tile = tile_of(entry, sizes, lengths, CONFIG)
        queries = query_tile(memory, number, copy, CONFIG)
        if not CONFIG.FLAT:
            wait_queries(memory, number, copy, CONFIG)
            powers, maximum, sums = first_block(queries, memory, tile, count, copy, sizes, scale, CONFIG)
        powers, maximum, sums, out = rest_of_tile(queries, memory, powers, maximum, sums, tile, count, copy, sizes,
                                                  scale, CONFIG)  # fmt: skip
        if CONFIG.separate_outs:
            release_queries(memory, number, copy, CONFIG)
        count += tile.high - tile.low
        ended_maximum, ended_sums = maximum, sums
        if CONFIG.FLAT:
            if following >= 0:
                after = tile_of(following, sizes, lengths, CONFIG)
                wait_queries(memory, number + 1, copy, CONFIG)
                top, above = top_block(after, copy, CONFIG)
                row = after.row + copy * 64
                if CONFIG.BIAS > 0:
                    bias = bias_of(top, row, after, sizes, CONFIG)
                start = pass_unread(memory.key_ring, count, above, copy, CONFIG.PING_PONG, CONFIG)
                memory.key_ring.wait_full(tx.ring_at(start, CONFIG.STAGES))
                scores, pending = products(query_tile(memory, number + 1, copy, CONFIG), memory, powers, out, start,
                                           count - 1, copy, CONFIG)  # fmt: skip
                scores = bounded(scores, scale, CONFIG)
                if CONFIG.BIAS > 0:
                    scores = tl.fma(bias, sizes.bias_factor, scores)
                scores = masked(scores, top, row, after, sizes, CONFIG)
                exponentials, maximum, sums = first_softmax(scores, scale)
                out = tx.wgmma_wait(pending)
                memory.value_ring.release(tx.ring_at(count - 1, CONFIG.STAGES))
                powers = exponentials.to(CONFIG.TYPE)
            else:
                out = last_values(memory, powers, out, count - 1, CONFIG)
        else:
            out = last_values(memory, powers, out, count - 1, CONFIG)
        store_tile(out, ended_maximum, ended_sums, memory, target, lse, tile, sizes, number, copy, scale, extra, CONFIG)
        number += 1
        entry = following
    tx.tma_wait(read=True)


@tilewright.jit
def attention_memory(CONFIG: tl.constexpr):
    """The tiles and barriers of a CTA."""
    query_tiles = tx.shared((CONFIG.query_stages * CONFIG.CONSUMERS, 64, CONFIG.D), CONFIG.TYPE, swizzle=CONFIG.swizzle)
    key_tiles = tx.shared((CONFIG.STAGES, CONFIG.BN, CONFIG.D), CONFIG.TYPE, swizzle=CONFIG.swizzle)
    value_tiles = tx.shared((CONFIG.STAGES, CONFIG.BN, CONFIG.D), CONFIG.TYPE, swizzle=CONFIG.swizzle)
    below = None if CONFIG.separate_outs else query_tiles
    outs = tx.shared((CONFIG.CONSUMERS * CONFIG.out_stride, 64, CONFIG.D), CONFIG.stored,
                     swizzle=swizzle_of(CONFIG.D * CONFIG.stored.itemsize), over=below)  # fmt: skip
    query_ring = tx.make_ring(CONFIG.query_stages * CONFIG.CONSUMERS, 4)
    key_ring = tx.make_ring(CONFIG.STAGES, 4 * CONFIG.CONSUMERS)
    value_ring = tx.make_ring(CONFIG.STAGES, 4 * CONFIG.CONSUMERS)
    return AttentionMemory(query_tiles, key_tiles, value_tiles, outs, query_ring, key_ring, value_ring)


@tilewright.jit
def attention(q: tx.tensor_map, k: tx.tensor_map, v: tx.tensor_map, out: tx.tensor_map, lse, lengths, schedule,
              tiles_per_cta, queries, keys, heads, group, window, scale, *extra, CONFIG: tl.constexpr):  # fmt: skip
    """out[b, h, s] = softmax over the keys that query s sees of (q[b, h, s] . k[b, h / group] scale ln 2), times v.

    The maps are of tensors [batch, heads, rows, D], with tiles of `CONFIG.query_block` for q and out and of
    `CONFIG.key_block` for k and v.  What lies after a batch's keys must be finite.
    `schedule` [CTAs, tiles_per_cta] i32 lists each CTA's tiles, ended by -1 (`config.attention_schedule`).  With causal
    masks the last query sees the last key; `window` is how many keys a query sees.  `lengths` [batch, 2] i32 are the
    queries and keys of each batch (`LENGTHS` 1; rows after them hold nothing of use), or [batch] i32 the keys of each
    that are seen (2; causal masks are those of all keys).  With `SOFTCAP` c scores are c tanh(scores / c).
    `lse` [batch, heads, queries] f32 are the logarithms of the sums (`LSE`).  With `BIAS` the scores get a bias: the
    first of `extra` are its pointer, its strides over batches, heads and queries (0 where it is broadcast; keys follow
    each other), and ln 2 / scale; what is behind them is for `EPILOGUE`, whose rows are queries of all batches and
    heads.  With `SPLITS` the keys of a head are divided into so many parts of whole blocks (the last may be
    empty); `heads` counts parts, part s of head h is number h SPLITS + s, and `out` and `lse` hold the results of
    parts, to be put together.
    """
    memory = attention_memory(CONFIG)
    if CONFIG.BIAS > 0:
        sizes = Sizes(queries, keys, heads, group, window, extra[0], extra[1], extra[2], extra[3], extra[4])
    else:
        sizes = Sizes(queries, keys, heads, group, window, lengths, 0, 0, 0, 0)
    mine = schedule + tl.program_id(0) * tiles_per_cta
    if CONFIG.DEPENDENT:
        tx.grid_launch_dependents()
    # One warpgroup needs no budgets of registers, and a warp behind it is enough to load.
    loading = tx.role(load_tiles, (q, k, v, memory, sizes, mine, lengths, CONFIG), registers=CONFIG.registers[0],
                      warps=1 if CONFIG.CONSUMERS == 1 else 4, elected=True)  # fmt: skip
    attending = tx.role(attend, (out, lse, memory, sizes, mine, lengths, scale, extra, CONFIG), copies=CONFIG.CONSUMERS,
                        registers=CONFIG.registers[1])  # fmt: skip
    if CONFIG.CONSUMERS == 1:
        tx.warp_roles(attending, loading)
    else:
        tx.warp_roles(loading, attending)
