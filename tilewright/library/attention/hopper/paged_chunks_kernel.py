"""Attention of many new tokens over pages (`graph.paged`) on Hopper: chunks of prompts.

The loops are those of `attention.hopper.kernel`: warpgroups of 64 queries walk the blocks of keys downwards.  A block
comes page by page, by the sequence's table.  How many new tokens a sequence has is known only at run time: tiles are
numbered so that there is room for those of all sequences, and a CTA takes every so-many-th number, the longest first.

Pages hold anything after a sequence's last token: such values are set to zero.  Starts, lengths and page numbers are
clamped to the tensors that they point into.
"""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl
import tilewright.language.explicit as tx
from tilewright.library.attention.hopper.kernel import (
    QueryTile,
    Sizes,
    attention_memory,
    blocks_below,
    first_block,
    last_values,
    load_block,
    query_tile,
    release_queries,
    rest_of_tile,
    wait_queries,
)
from tilewright.library.attention.paged_simt_kernel import new_tokens
from tilewright.library.hopper import swizzle_of

swizzle_of = tilewright.constexpr_function(swizzle_of)


@tilewright.aggregate
class Work:
    """What a launch computes."""

    tables: tl.tensor
    starts: tl.tensor
    lengths: tl.tensor
    tokens: tl.tensor
    columns: tl.tensor
    pages: tl.tensor  # of the pool
    sequences: tl.tensor
    heads: tl.tensor
    group: tl.tensor  # query heads of a head of keys
    numbers: tl.tensor  # of tiles, with room for those of all sequences
    entries: tl.tensor  # numbers times heads; none where no sequence has many new tokens


@tilewright.aggregate
class ChunkTile:
    """A sequence's tile of queries: whether there is one, its first token, and the sequence's pages."""

    exists: tl.tensor
    tile: QueryTile
    start: tl.tensor
    count: tl.tensor  # new tokens of the sequence
    table: tl.tensor


@tilewright.jit
def first_number(starts, sequence, tokens, FEW: tl.constexpr, CONFIG: tl.constexpr):
    """The number of a sequence's first tile: a sequence with more than `FEW` tokens has as many as it needs."""
    start = tl.minimum(tl.maximum(tl.load(starts + sequence).to(tl.int64), 0), tokens).to(tl.int32)
    return start // CONFIG.BM + tl.minimum(sequence, start // (FEW + 1))


@tilewright.jit
def chunk_of(entry, work, FEW: tl.constexpr, CONFIG: tl.constexpr):
    """What an entry stands for; of equal heads the last tiles come first, which see most keys."""
    number = work.numbers - 1 - entry // work.heads
    low, high = number * 0, work.sequences
    while low + 1 < high:
        middle = (low + high) // 2
        before = first_number(work.starts, middle, work.tokens, FEW, CONFIG) <= number
        low = tl.where(before, middle, low)
        high = tl.where(before, high, middle)
    capacity = work.columns * CONFIG.PAGE
    start, count, context = new_tokens(work.starts, work.lengths, low.to(tl.int64), work.tokens, capacity)
    row = (number - first_number(work.starts, low, work.tokens, FEW, CONFIG)) * CONFIG.BM
    offset = context - count
    exists = (count > FEW) & (row >= 0) & (row < count)
    blocks = blocks_below(tl.minimum(row + CONFIG.BM, count) - 1, offset, context, CONFIG)
    tile = QueryTile(row * 0, entry % work.heads, row, context, row * 0, offset, row * 0, blocks)
    return ChunkTile(exists, tile, start.to(tl.int32), count, work.tables + low.to(tl.int64) * work.columns)


@tilewright.jit
def load_pages(source, ring, tiles, step, chunk, head, block, pages, CONFIG: tl.constexpr):
    """Start loading a block of keys or values into the ring, once its stage is empty."""
    position = tx.ring_at(step, CONFIG.STAGES)
    last = tl.maximum(chunk.tile.keys - 1, 0) // CONFIG.box * CONFIG.box
    slots = ()
    for number in tl.static_range(CONFIG.BN // CONFIG.box):
        key = tl.minimum(block * CONFIG.BN + number * CONFIG.box, last)
        page = tl.load(chunk.table + key // CONFIG.PAGE).to(tl.int64)
        page = tl.minimum(tl.maximum(page, 0), pages - 1)
        slots = slots + ((page * CONFIG.PAGE + key % CONFIG.PAGE).to(tl.int32),)
    ring.empty[position.stage].wait(1 - position.parity)
    tile = tiles[position.stage]
    full = ring.full[position.stage]
    full.expect(tile.bytes)
    for number in tl.static_range(CONFIG.BN // CONFIG.box):
        tx.tma_load(source, (0, head, slots[number], 0), tile.slice(number * CONFIG.box, CONFIG.box), full)


@tilewright.jit
def load_chunk(q, k, v, memory, chunk, number, count, work, CONFIG: tl.constexpr):
    """Load a tile: keys come first, then queries, then values one block after the keys."""
    tile, head = chunk.tile, chunk.tile.head // work.group
    top = tile.high - 1
    load_pages(k, memory.key_ring, memory.keys, count, chunk, head, top, work.pages, CONFIG)
    slot = tx.ring_at(number, CONFIG.query_stages)
    for part in tl.static_range(CONFIG.CONSUMERS):
        index = slot.stage * CONFIG.CONSUMERS + part
        memory.query_ring.empty[index].wait(1 - slot.parity)
        load_block(q, memory.queries[index], 0, tile.head, chunk.start + tile.row + 64 * part,
                   memory.query_ring.full[index])  # fmt: skip
    for step in range(tile.high):
        if step < top:
            load_pages(
                k, memory.key_ring, memory.keys, count + step + 1, chunk, head, top - 1 - step, work.pages, CONFIG
            )
        load_pages(v, memory.value_ring, memory.values, count + step, chunk, head, top - step, work.pages, CONFIG)


@tilewright.jit
def load_tiles(copy, q, k, v, memory, work, FEW: tl.constexpr, CONFIG: tl.constexpr):
    """The loading role: one thread."""
    tx.grid_wait()
    number, count = 0, 0
    for entry in range(tl.program_id(0), work.entries, tl.num_programs(0)):
        chunk = chunk_of(entry, work, FEW, CONFIG)
        if chunk.exists:
            load_chunk(q, k, v, memory, chunk, number, count, work, CONFIG)
            count += chunk.tile.high
            number += 1


@tilewright.jit
def clear_unwritten(memory, count, tile, copy, CONFIG: tl.constexpr):
    """Values of a tile's first block after the sequence's last token become zeros, before anybody multiplies them: a
    weight of zero does not hide what is no number."""
    keys_left = tile.keys - (tile.high - 1) * CONFIG.BN
    if keys_left < CONFIG.BN:
        position = tx.ring_at(count, CONFIG.STAGES)
        memory.value_ring.wait_full(position)
        if copy == 0:
            values = memory.values[position.stage]
            for part in tl.static_range(CONFIG.BN // 16):
                rows = values.slice(part * 16, 16)
                key = part * 16 + tl.arange(0, 16)[:, None]
                valid = tl.where(key < keys_left, rows.load(), 0.0)
                tx.group_sync()
                rows.store(valid)
            tx.fence_async()
        tx.named_sync(CONFIG.CONSUMERS + 1, 128 * CONFIG.CONSUMERS)


@tilewright.jit
def store_tile(out, sums, memory, target, results, chunk, work, number, copy, CONFIG: tl.constexpr):
    """Divide by the sums and store this warpgroup's rows, those that are the sequence's."""
    total = tl.sum(sums, 1)
    factor = tl.where(total > 0, 1.0 / total, 0.0)
    tile = chunk.tile
    row = tile.row + copy * 64
    staging = memory.outs[copy * CONFIG.out_stride]
    tx.tma_wait(0, read=True)
    tx.group_sync()
    staging.store(out * factor[:, None])
    tx.fence_async()
    tx.group_sync()
    if row + 64 <= chunk.count:
        tx.tma_store(target, (0, tile.head, chunk.start + row, 0), staging)
    else:
        rows = row + tl.arange(0, 64)[:, None]
        column = tl.arange(0, CONFIG.D)[None, :]
        place = ((chunk.start + rows).to(tl.int64) * work.heads + tile.head) * CONFIG.D + column
        tl.store(results + place, staging.load(), mask=(rows < chunk.count) & (column < CONFIG.D))
    tx.tma_commit()
    if not CONFIG.separate_outs:
        tx.tma_wait(0, read=True)
        tx.group_sync()
        release_queries(memory, number, copy, CONFIG)


@tilewright.jit
def attend_chunk(target, results, memory, chunk, number, count, copy, work, scale, CONFIG: tl.constexpr):
    """This warpgroup's rows of a tile."""
    tile = chunk.tile
    sizes = Sizes(chunk.count, tile.keys, work.heads, work.group, 0, work.lengths, 0, 0, 0, 0)
    clear_unwritten(memory, count, tile, copy, CONFIG)
    queries = query_tile(memory, number, copy, CONFIG)
    wait_queries(memory, number, copy, CONFIG)
    powers, maximum, sums = first_block(queries, memory, tile, count, copy, sizes, scale, CONFIG)
    powers, maximum, sums, out = rest_of_tile(queries, memory, powers, maximum, sums, tile, count, copy, sizes, scale,
                                              CONFIG)  # fmt: skip
    if CONFIG.separate_outs:
        release_queries(memory, number, copy, CONFIG)
    out = last_values(memory, powers, out, count + tile.high - 1, CONFIG)
    store_tile(out, sums, memory, target, results, chunk, work, number, copy, CONFIG)


@tilewright.jit
def attend(copy, target, results, memory, work, scale, FEW: tl.constexpr, CONFIG: tl.constexpr):
    """The multiplying role: 64 queries of each tile."""
    tx.grid_wait()
    number, count = 0, 0
    if CONFIG.PING_PONG:
        if copy == CONFIG.CONSUMERS - 1:
            tx.named_arrive(1, 256)
    for entry in range(tl.program_id(0), work.entries, tl.num_programs(0)):
        chunk = chunk_of(entry, work, FEW, CONFIG)
        if chunk.exists:
            attend_chunk(target, results, memory, chunk, number, count, copy, work, scale, CONFIG)
            count += chunk.tile.high
            number += 1
    tx.tma_wait(read=True)


@tilewright.jit
def paged_chunks(q: tx.tensor_map, k: tx.tensor_map, v: tx.tensor_map, out: tx.tensor_map, results, tables, starts,
                 lengths, tokens, slots, columns, sequences, numbers, heads, group, scale, FEW: tl.constexpr,
                 SEQUENCES: tl.constexpr, EARLY: tl.constexpr, CONFIG: tl.constexpr):  # fmt: skip
    """out[t, h] = softmax over the keys that new token t sees of (q[t, h] . k scale ln 2), times v, of sequences with
    more than `FEW` new tokens.

    q and out are maps of [1, heads, tokens, D] with tiles of `CONFIG.query_block`, `results` a pointer to `out`
    [tokens, heads, D]; k and v are maps of pools as [1, key heads, slots, D] with tiles of `CONFIG.key_block`; `tables`
    is [sequences, columns].  `numbers` is `tokens // CONFIG.BM` plus the lesser of `sequences` and
    `tokens // (FEW + 1)`; `SEQUENCES` is a power of two, `sequences` or more.  With `EARLY` starts are read before the
    kernels in front have ended.  Nothing is written for other sequences.  Grid: any.
    """
    memory = attention_memory(CONFIG)
    tx.grid_launch_dependents()
    if not EARLY:
        tx.grid_wait()
    sequence = tl.arange(0, SEQUENCES)
    begin = tl.load(starts + sequence, mask=sequence < sequences, other=0)
    end = tl.load(starts + sequence + 1, mask=sequence < sequences, other=0)
    longest = tl.max((end - begin).to(tl.int32), 0)
    entries = tl.where(longest > FEW, numbers * heads, 0)
    work = Work(
        tables, starts, lengths, tokens, columns, slots // CONFIG.PAGE, sequences, heads, group, numbers, entries
    )
    loading = tx.role(load_tiles, (q, k, v, memory, work, FEW, CONFIG), registers=CONFIG.registers[0], warps=4,
                      elected=True)  # fmt: skip
    attending = tx.role(attend, (out, results, memory, work, scale, FEW, CONFIG), copies=CONFIG.CONSUMERS,
                        registers=CONFIG.registers[1])  # fmt: skip
    tx.warp_roles(loading, attending)
