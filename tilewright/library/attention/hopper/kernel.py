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
from tilewright.library.masks import both

swizzle_of = tilewright.constexpr_function(swizzle_of)


@tilewright.aggregate
class Sizes:
    """Run-time sizes of a launch, and where the bias lies (`FORM.BIAS`)."""

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
def blocks_below(row, offset, keys, FORM: tl.constexpr):
    """How many blocks of keys a row that sees keys up to its own needs; one at least."""
    last = keys
    if FORM.CAUSAL:
        last = tl.minimum(keys, tl.maximum(row + offset + 1, 1))
    return tl.maximum((last + (FORM.BN - 1)) // FORM.BN, 1)


@tilewright.jit
def tile_of(entry, sizes, lengths, FORM: tl.constexpr):
    """The tile that an entry of the schedule stands for."""
    pair = entry >> 16
    batch = pair // sizes.heads
    row = (entry & 0xFFFF) * FORM.BM
    queries, keys = sizes.queries, sizes.keys
    if FORM.LENGTHS == 1:
        queries, keys = tl.load(lengths + 2 * batch), tl.load(lengths + 2 * batch + 1)
    first = row * 0
    if FORM.SPLITS > 1:
        part = tl.cdiv(keys, FORM.SPLITS * FORM.BN) * FORM.BN
        first = (pair % FORM.SPLITS) * part
        keys = tl.minimum(keys - first, part)
    offset = keys - queries
    if FORM.LENGTHS == 2:
        keys = tl.minimum(keys, tl.load(lengths + batch))
    high = blocks_below(tl.minimum(row + FORM.BM, queries) - 1, offset, keys, FORM)
    low = high * 0
    if FORM.WINDOW:
        low = tl.minimum(tl.maximum(row + offset - sizes.window + 1, 0) // FORM.BN, high - 1)
    return QueryTile(batch, pair - batch * sizes.heads, row, keys, first, offset, low, high)


@tilewright.jit
def load_block(source, tile, batch, head, row, full):
    """Start loading a tile that is all its barrier waits for."""
    full.expect(tile.bytes)
    tx.tma_load(source, (batch, head, row, 0), tile, full)


@tilewright.jit
def load_ring_block(source, ring, tiles, count, tile, head, block, FORM: tl.constexpr):
    """Start loading a block of keys or values into the ring, once its stage is empty."""
    position = tx.ring_at(count, FORM.STAGES)
    ring.empty[position.stage].wait(1 - position.parity)
    row = tile.first + block * FORM.BN
    load_block(source, tiles[position.stage], tile.batch, head, row, ring.full[position.stage])


@tilewright.jit
def ask_for_first(k, v, memory, tile, sizes, FORM: tl.constexpr):
    """Ask for the first blocks of keys and values that a tile needs to come to the L2 cache: most of them, or all, were
    there before the kernels in front of this one, and those that these write are brought up to date there."""
    head = tile.head // FORM.SPLITS // sizes.group
    for step in range(tl.minimum(tile.high - tile.low, FORM.STAGES)):
        row = tile.first + (tile.high - 1 - step) * FORM.BN
        tx.tma_prefetch(k, (tile.batch, head, row, 0), memory.keys[0])
        tx.tma_prefetch(v, (tile.batch, head, row, 0), memory.values[0])


@tilewright.jit
def load_tiles(copy, q, k, v, memory, sizes, schedule, lengths, FORM: tl.constexpr):
    """The loading role: one thread. Keys come first, then queries, then values one block behind the keys."""
    entry = tl.load(schedule)
    number = 0
    count = 0
    if FORM.DEPENDENT:
        if entry >= 0:
            ask_for_first(k, v, memory, tile_of(entry, sizes, lengths, FORM), sizes, FORM)
        tx.grid_wait()
    while entry >= 0:
        following = tl.load(schedule + number + 1)
        tile = tile_of(entry, sizes, lengths, FORM)
        query_head = tile.head // FORM.SPLITS
        head = query_head // sizes.group
        blocks = tile.high - tile.low
        load_ring_block(k, memory.key_ring, memory.keys, count, tile, head, tile.high - 1, FORM)
        slot = tx.ring_at(number, FORM.query_stages)
        for part in tl.static_range(FORM.CONSUMERS):
            index = slot.stage * FORM.CONSUMERS + part
            memory.query_ring.empty[index].wait(1 - slot.parity)
            load_block(q, memory.queries[index], tile.batch, query_head, tile.row + 64 * part,
                       memory.query_ring.full[index])  # fmt: skip
        for step in range(blocks):
            if step + 1 < blocks:
                load_ring_block(k, memory.key_ring, memory.keys, count + step + 1, tile, head,
                                tile.high - 2 - step, FORM)  # fmt: skip
            load_ring_block(v, memory.value_ring, memory.values, count + step, tile, head,
                            tile.high - 1 - step, FORM)  # fmt: skip
        count += blocks
        number += 1
        entry = following


@tilewright.jit
def take_turn(copy, FORM: tl.constexpr):
    """Wait until this warpgroup may issue products."""
    if FORM.TURNS:
        tx.named_sync(copy + 1, 256)


@tilewright.jit
def pass_turn(copy, FORM: tl.constexpr):
    """Let the next warpgroup issue products."""
    if FORM.TURNS:
        tx.named_arrive(tl.where(copy == FORM.CONSUMERS - 1, 1, copy + 2), 256)


@tilewright.jit
def pass_unread(ring, count, blocks, copy, TURNS: tl.constexpr, FORM: tl.constexpr):
    """Release blocks that none of this warpgroup's rows sees; gives the count behind them."""
    for step in range(blocks):
        position = tx.ring_at(count + step, FORM.STAGES)
        ring.wait_full(position)
        if TURNS:
            take_turn(copy, FORM)
            pass_turn(copy, FORM)
        ring.release(position)
    return count + blocks


@tilewright.jit
def masked(scores, block, row, tile, sizes, FORM: tl.constexpr):
    """Scores with minus infinity where a query does not see a key. `row` is this warpgroup's first."""
    if FORM.WHOLE:
        return scores
    first = block * FORM.BN
    # A thread has the columns 8 n + 2 (lane % 4) and the next ones: its own part goes to the limit, and what is left is
    # a constant for each register, so that no column numbers are held beside the scores.
    column = tl.arange(0, FORM.BN)[None, :]
    own, rest = column & 6, column & -7
    limit = tl.zeros((64,), tl.int32) + (tile.keys - 1 - first)
    diagonal = row + tile.offset - first + tl.arange(0, 64)
    if FORM.CAUSAL:
        limit = tl.minimum(limit, diagonal)
    seen = rest <= limit[:, None] - own
    if FORM.WINDOW:
        seen = seen & (rest > (diagonal - sizes.window)[:, None] - own)
    return tl.where(seen, scores, float("-inf"))


@tilewright.jit
def bias_of(block, row, tile, sizes, FORM: tl.constexpr):
    """The bias of a block's scores: [1, BN], or [64, BN] where queries differ."""
    column = block * FORM.BN + tl.arange(0, FORM.BN)[None, :]
    first = tile.batch * sizes.bias_batch + tile.head // FORM.SPLITS * sizes.bias_head + tile.first
    if FORM.PAIRED:
        first = tl.multiple_of(first, 2)
    place = sizes.bias + first
    exists = None if FORM.WHOLE else column < tile.keys
    if FORM.BIAS == 2:
        rows = row + tl.arange(0, 64)[:, None]
        place = place + rows.to(tl.int64) * sizes.bias_row
        exists = both(exists, rows < sizes.queries)
    if exists is None:
        bias = tl.load(place + column)
    else:
        bias = tl.load(place + column, mask=exists, other=0.0)
    return bias.to(tl.float32)


@tilewright.jit
def bounded(scores, scale, FORM: tl.constexpr):
    """Scores within the soft cap; `scale` makes exponents of 2 of them. Powers that overflow or vanish give the cap."""
    if FORM.SOFTCAP > 0:
        bound = (FORM.SOFTCAP * 1.4426950408889634) / scale
        scores = bound - 2.0 * bound / (tl.exp2(scores * (scale * (2.0 / FORM.SOFTCAP))) + 1.0)
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
def softmax(scores, maximum, scale, FORM: tl.constexpr):
    """Exponentials of a further block, the maxima that they refer to, and partial sums."""
    greatest = tl.maximum(maximum, tl.max(scores, 1))
    if FORM.LAZY:
        greatest = tl.where((greatest - maximum) * scale > 8.0, greatest, maximum)
    powers = tl.exp2(tl.fma(scores, scale, (-scale * greatest)[:, None]))
    return powers, greatest, partial_sums(powers)


@tilewright.jit
def rescaled(out, sums, maximum, greatest, scale):
    """Results and sums so far, referred to new maxima."""
    factor = tl.exp2((maximum - greatest) * scale)[:, None]
    return out * factor, sums * factor


@tilewright.jit
def products(queries, memory, powers, out, key_count, value_count, copy, FORM: tl.constexpr):
    """Issue the scores of a block whose keys are there and the values of the one before it; wait for the scores."""
    key = tx.ring_at(key_count, FORM.STAGES)
    value = tx.ring_at(value_count, FORM.STAGES)
    take_turn(copy, FORM)
    scores = tx.wgmma(queries, memory.keys[key.stage].T)
    memory.value_ring.wait_full(value)
    out = tx.wgmma(powers, memory.values[value.stage], out)
    pass_turn(copy, FORM)
    block = tx.wgmma_wait(scores, outstanding=1)
    memory.key_ring.release(key)
    return block, out


@tilewright.jit
def walk(first, end, queries, memory, powers, maximum, sums, out, count, top, row, tile, sizes, copy, scale,
         MASKED: tl.constexpr, FORM: tl.constexpr):  # fmt: skip
    """Blocks `top` - first, … down to `top` - end + 1, each under the product of the one before it."""
    if first < end:
        memory.key_ring.wait_full(tx.ring_at(count + first, FORM.STAGES))
    if FORM.biased_ahead:
        bias = bias_of(tl.maximum(top - first, 0), row, tile, sizes, FORM)
    for step in range(first, end):
        if FORM.BIAS > 0 and not FORM.biased_ahead:
            bias = bias_of(top - step, row, tile, sizes, FORM)
        scores, pending = products(queries, memory, powers, out, count + step, count + step - 1, copy, FORM)
        scores = bounded(scores, scale, FORM)
        if FORM.BIAS > 0:
            scores = tl.fma(bias, sizes.bias_factor, scores)
        if FORM.biased_ahead:
            bias = bias_of(tl.maximum(top - step - 1, 0), row, tile, sizes, FORM)
        if MASKED:
            scores = masked(scores, top - step, row, tile, sizes, FORM)
        exponentials, greatest, added = softmax(scores, maximum, scale, FORM)
        if FORM.LAZY:
            grown = tx.warp_any(greatest > maximum)
        # Here it is no loss to wait for the next keys, and it keeps the assembler from moving the wait for the product
        # in front of the exponentials.  That one is for all warps of a group at one place: their votes differ.
        if step + 1 < end:
            memory.key_ring.wait_full(tx.ring_at(count + step + 1, FORM.STAGES))
        out = tx.wgmma_wait(pending)
        if FORM.LAZY:
            if grown:
                out, sums = rescaled(out, sums, maximum, greatest, scale)
        else:
            out, sums = rescaled(out, sums, maximum, greatest, scale)
        memory.value_ring.release(tx.ring_at(count + step - 1, FORM.STAGES))
        sums += added
        maximum = greatest
        powers = exponentials.to(FORM.TYPE)
    return powers, maximum, sums, out


@tilewright.jit
def query_tile(memory, number, copy, FORM: tl.constexpr):
    """This warpgroup's queries of a tile."""
    return memory.queries[tx.ring_at(number, FORM.query_stages).stage * FORM.CONSUMERS + copy]


@tilewright.jit
def wait_queries(memory, number, copy, FORM: tl.constexpr):
    """Wait until this warpgroup's queries of a tile are there."""
    slot = tx.ring_at(number, FORM.query_stages)
    memory.query_ring.full[slot.stage * FORM.CONSUMERS + copy].wait(slot.parity)


@tilewright.jit
def release_queries(memory, number, copy, FORM: tl.constexpr):
    """This warpgroup is done with its queries of a tile."""
    slot = tx.ring_at(number, FORM.query_stages)
    memory.query_ring.empty[slot.stage * FORM.CONSUMERS + copy].arrive()


@tilewright.jit
def top_block(tile, copy, FORM: tl.constexpr):
    """The last block that a row of this warpgroup sees, and how many of the tile's blocks lie above it."""
    above = tile.high * 0
    if FORM.CAUSAL:
        own = blocks_below(tile.row + copy * 64 + 63, tile.offset, tile.keys, FORM)
        above = tl.maximum(tile.high - tl.maximum(own, tile.low + 1), 0)
    return tile.high - 1 - above, above


@tilewright.jit
def first_block(queries, memory, tile, count, copy, sizes, scale, FORM: tl.constexpr):
    """Scores and exponentials of the first block of the first tile."""
    top, above = top_block(tile, copy, FORM)
    position = tx.ring_at(pass_unread(memory.key_ring, count, above, copy, FORM.TURNS, FORM), FORM.STAGES)
    row = tile.row + copy * 64
    if FORM.BIAS > 0:
        bias = bias_of(top, row, tile, sizes, FORM)
    memory.key_ring.wait_full(position)
    scores = tx.wgmma_wait(tx.wgmma(queries, memory.keys[position.stage].T))
    memory.key_ring.release(position)
    scores = bounded(scores, scale, FORM)
    if FORM.BIAS > 0:
        scores = tl.fma(bias, sizes.bias_factor, scores)
    powers, maximum, sums = first_softmax(masked(scores, top, row, tile, sizes, FORM), scale)
    return powers.to(FORM.TYPE), maximum, sums


@tilewright.jit
def rest_of_tile(queries, memory, powers, maximum, sums, tile, count, copy, sizes, scale, FORM: tl.constexpr):
    """All further blocks of a tile; the values of the last one are left to do."""
    out = tl.zeros((64, FORM.D), tl.float32)
    top, above = top_block(tile, copy, FORM)
    pass_unread(memory.value_ring, count, above, copy, False, FORM)
    row = tile.row + copy * 64
    blocks = tile.high - tile.low
    start = above + 1
    if FORM.CAUSAL:
        # Blocks that lie across the diagonal of these rows.
        whole = tl.minimum((row + tile.offset + 1) // FORM.BN, tile.keys // FORM.BN)
        end = tl.minimum(tl.maximum(tile.high - tl.maximum(whole, 0), start), blocks)
        powers, maximum, sums, out = walk(start, end, queries, memory, powers, maximum, sums, out, count,
                                          tile.high - 1, row, tile, sizes, copy, scale, True, FORM)  # fmt: skip
        start = end
    stop = blocks
    if FORM.WINDOW:
        inside = tl.cdiv(tl.maximum(row + 63 + tile.offset - sizes.window + 1, 0), FORM.BN)
        stop = tl.minimum(tl.maximum(tile.high - inside, start), blocks)
    powers, maximum, sums, out = walk(start, stop, queries, memory, powers, maximum, sums, out, count,
                                      tile.high - 1, row, tile, sizes, copy, scale, False, FORM)  # fmt: skip
    if FORM.WINDOW:
        powers, maximum, sums, out = walk(stop, blocks, queries, memory, powers, maximum, sums, out, count,
                                          tile.high - 1, row, tile, sizes, copy, scale, True, FORM)  # fmt: skip
    return powers, maximum, sums, out


@tilewright.jit
def last_values(memory, powers, out, count, FORM: tl.constexpr):
    """The product with the values of a tile's last block, where no further scores go with it."""
    position = tx.ring_at(count, FORM.STAGES)
    memory.value_ring.wait_full(position)
    out = tx.wgmma_wait(tx.wgmma(powers, memory.values[position.stage], out))
    memory.value_ring.release(position)
    return out


@tilewright.jit
def finished(out, tile, row, sizes, extra, FORM: tl.constexpr):
    """The epilogue on 64 rows of results, of which `row` is the first."""
    rows = row + tl.arange(0, 64)[:, None]
    column = tl.arange(0, FORM.D)[None, :]
    number = (tile.batch * sizes.heads + tile.head).to(tl.int64) * sizes.queries + rows
    return FORM.EPILOGUE(out, number, column, (rows < sizes.queries) & (column < FORM.D), extra)


@tilewright.jit
def store_tile(out, maximum, sums, memory, target, lse, tile, sizes, number, copy, scale, extra,
               FORM: tl.constexpr):  # fmt: skip
    """Divide by the sums and store this warpgroup's rows."""
    total = tl.sum(sums, 1)
    factor = tl.where(total > 0, 1.0 / total, 0.0)
    row = tile.row + copy * 64
    staging = memory.outs[copy * FORM.out_stride]
    tx.tma_wait(0, read=True)
    tx.group_sync()
    staging.store(finished(out * factor[:, None], tile, row, sizes, extra, FORM))
    tx.fence_async()
    tx.group_sync()
    tx.tma_store(target, (tile.batch, tile.head, row, 0), staging)
    tx.tma_commit()
    if not FORM.separate_outs:
        tx.tma_wait(0, read=True)
        tx.group_sync()
        release_queries(memory, number, copy, FORM)
    if FORM.LSE:
        rows = row + tl.arange(0, 64)
        place = (tile.batch * sizes.heads + tile.head).to(tl.int64) * sizes.queries + rows
        value = (tl.fma(maximum, scale, tl.log2(total))) * 0.6931471805599453
        tl.store(lse + place, tl.where(total > 0, value, float("-inf")), mask=rows < sizes.queries)


@tilewright.jit
def attend(copy, target, lse, memory, sizes, schedule, lengths, scale, extra, FORM: tl.constexpr):
    """The multiplying role: 64 queries of each tile."""
    entry = tl.load(schedule)
    if FORM.DEPENDENT:
        tx.grid_wait()  # for the bias, and for those who still read what results are stored over
    number = 0
    count = 0
    if FORM.TURNS:
        if copy == FORM.CONSUMERS - 1:
            tx.named_arrive(1, 256)
    if FORM.FLAT:
        wait_queries(memory, 0, copy, FORM)
        queries = query_tile(memory, 0, copy, FORM)
        tile = tile_of(entry, sizes, lengths, FORM)
        powers, maximum, sums = first_block(queries, memory, tile, count, copy, sizes, scale, FORM)
    while entry >= 0:
        following = tl.load(schedule + number + 1)
        tile = tile_of(entry, sizes, lengths, FORM)
        queries = query_tile(memory, number, copy, FORM)
        if not FORM.FLAT:
            wait_queries(memory, number, copy, FORM)
            powers, maximum, sums = first_block(queries, memory, tile, count, copy, sizes, scale, FORM)
        powers, maximum, sums, out = rest_of_tile(queries, memory, powers, maximum, sums, tile, count, copy, sizes,
                                                  scale, FORM)  # fmt: skip
        if FORM.separate_outs:
            release_queries(memory, number, copy, FORM)
        count += tile.high - tile.low
        ended_maximum, ended_sums = maximum, sums
        if FORM.FLAT:
            if following >= 0:
                after = tile_of(following, sizes, lengths, FORM)
                wait_queries(memory, number + 1, copy, FORM)
                top, above = top_block(after, copy, FORM)
                row = after.row + copy * 64
                if FORM.BIAS > 0:
                    bias = bias_of(top, row, after, sizes, FORM)
                start = pass_unread(memory.key_ring, count, above, copy, FORM.TURNS, FORM)
                memory.key_ring.wait_full(tx.ring_at(start, FORM.STAGES))
                scores, pending = products(query_tile(memory, number + 1, copy, FORM), memory, powers, out, start,
                                           count - 1, copy, FORM)  # fmt: skip
                scores = bounded(scores, scale, FORM)
                if FORM.BIAS > 0:
                    scores = tl.fma(bias, sizes.bias_factor, scores)
                scores = masked(scores, top, row, after, sizes, FORM)
                exponentials, maximum, sums = first_softmax(scores, scale)
                out = tx.wgmma_wait(pending)
                memory.value_ring.release(tx.ring_at(count - 1, FORM.STAGES))
                powers = exponentials.to(FORM.TYPE)
            else:
                out = last_values(memory, powers, out, count - 1, FORM)
        else:
            out = last_values(memory, powers, out, count - 1, FORM)
        store_tile(out, ended_maximum, ended_sums, memory, target, lse, tile, sizes, number, copy, scale, extra, FORM)
        number += 1
        entry = following
    tx.tma_wait(read=True)


@tilewright.jit
def attention(q: tx.tensor_map, k: tx.tensor_map, v: tx.tensor_map, out: tx.tensor_map, lse, lengths, schedule,
              tiles_per_cta, queries, keys, heads, group, window, scale, *extra, FORM: tl.constexpr):  # fmt: skip
    """out[b, h, s] = softmax over the keys that query s sees of (q[b, h, s] . k[b, h / group] scale ln 2), times v.

    The maps are of tensors [batch, heads, rows, D], with tiles of `FORM.query_block` for q and out and of
    `FORM.key_block` for k and v.  What lies behind a batch's keys must be finite.
    `schedule` [CTAs, tiles_per_cta] i32 lists each CTA's tiles, ended by -1 (`forms.attention_schedule`).  With causal
    masks the last query sees the last key; `window` is how many keys a query sees.  `lengths` [batch, 2] i32 are the
    queries and keys of each batch (`LENGTHS` 1; rows behind them hold nothing of use), or [batch] i32 the keys of each
    that are seen (2; causal masks are those of all keys).  With `SOFTCAP` c scores are c tanh(scores / c).
    `lse` [batch, heads, queries] f32 are the logarithms of the sums (`LSE`).  With `BIAS` the scores get a bias: the
    first of `extra` are its pointer, its strides over batches, heads and queries (0 where it is broadcast; keys follow
    each other), and ln 2 / scale; what is behind them is for `EPILOGUE`, whose rows are queries of all batches and
    heads.  With `SPLITS` the keys of a head are divided into so many parts of whole blocks (the last may be
    empty); `heads` counts parts, part s of head h is number h SPLITS + s, and `out` and `lse` hold the results of
    parts, to be put together.
    """
    query_tiles = tx.shared((FORM.query_stages * FORM.CONSUMERS, 64, FORM.D), FORM.TYPE, swizzle=FORM.swizzle)
    key_tiles = tx.shared((FORM.STAGES, FORM.BN, FORM.D), FORM.TYPE, swizzle=FORM.swizzle)
    value_tiles = tx.shared((FORM.STAGES, FORM.BN, FORM.D), FORM.TYPE, swizzle=FORM.swizzle)
    below = None if FORM.separate_outs else query_tiles
    outs = tx.shared((FORM.CONSUMERS * FORM.out_stride, 64, FORM.D), FORM.stored,
                     swizzle=swizzle_of(FORM.D * FORM.stored.itemsize), over=below)  # fmt: skip
    query_ring = tx.make_ring(FORM.query_stages * FORM.CONSUMERS, 4)
    key_ring = tx.make_ring(FORM.STAGES, 4 * FORM.CONSUMERS)
    value_ring = tx.make_ring(FORM.STAGES, 4 * FORM.CONSUMERS)
    memory = AttentionMemory(query_tiles, key_tiles, value_tiles, outs, query_ring, key_ring, value_ring)
    if FORM.BIAS > 0:
        sizes = Sizes(queries, keys, heads, group, window, extra[0], extra[1], extra[2], extra[3], extra[4])
    else:
        sizes = Sizes(queries, keys, heads, group, window, lengths, 0, 0, 0, 0)
    mine = schedule + tl.program_id(0) * tiles_per_cta
    if FORM.DEPENDENT:
        tx.grid_launch_dependents()
    # One warpgroup needs no budgets of registers, and a warp behind it is enough to load.
    loading = tx.role(load_tiles, (q, k, v, memory, sizes, mine, lengths, FORM), registers=FORM.registers[0],
                      warps=1 if FORM.CONSUMERS == 1 else 4, elected=True)  # fmt: skip
    attending = tx.role(attend, (out, lse, memory, sizes, mine, lengths, scale, extra, FORM), copies=FORM.CONSUMERS,
                        registers=FORM.registers[1])  # fmt: skip
    if FORM.CONSUMERS == 1:
        tx.warp_roles(attending, loading)
    else:
        tx.warp_roles(loading, attending)
