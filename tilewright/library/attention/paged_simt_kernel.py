"""Attention over pages (`graph.paged`) on GPUs: sequences with few new tokens in parts of their keys, others in blocks
of queries.

Row r of a tile is query `r // GROUP` and head `r % GROUP` of the heads that share keys, as in `paged_kernel`; keys are
gathered token by token, so that a block may span pages.  Starts, lengths and page numbers are clamped to the tensors
that they point into.
"""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl
from tilewright.library.attention.paged_kernel import (
    as_multiplied,
    bounded_scores,
    lowered_results,
    raised_weights,
    slot_scales,
)
from tilewright.library.attention.scores import online_softmax


@tilewright.jit
def new_tokens(starts, lengths, sequence, tokens, capacity):
    """Where a sequence's new tokens begin, how many there are, and how many tokens it has with them."""
    start = tl.minimum(tl.maximum(tl.load(starts + sequence).to(tl.int64), 0), tokens)
    end = tl.minimum(tl.maximum(tl.load(starts + sequence + 1).to(tl.int64), start), tokens)
    count = (end - start).to(tl.int32)
    context = tl.minimum(tl.maximum(tl.load(lengths + sequence).to(tl.int64), count), capacity).to(tl.int32)
    return start, count, context


@tilewright.jit
def load_pages(table, first, limit, PAGE: tl.constexpr, BLOCK_T: tl.constexpr):
    """The pages of keys `first` to `first + BLOCK_T - 1`, those before `limit`."""
    key = first + tl.arange(0, BLOCK_T)
    return tl.load(table + key // PAGE, mask=key < limit, other=0)


@tilewright.jit
def load_block(keys, values, page, first, limit, pages, slot, value_slot, HEAD: tl.constexpr,
               VALUE_HEAD: tl.constexpr, PAGE: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr,
               BLOCK_V: tl.constexpr):  # fmt: skip
    """Keys and values of a block whose pages are known; zeros from `limit` on."""
    key = first + tl.arange(0, BLOCK_T)
    row = (tl.minimum(tl.maximum(page.to(tl.int64), 0), pages - 1) * PAGE + key % PAGE)[:, None]
    exists = (key < limit)[:, None]
    dim = tl.arange(0, BLOCK_D)[None, :]
    value_dim = tl.arange(0, BLOCK_V)[None, :]
    k_block = tl.load(keys + row * slot + dim, mask=exists & (dim < HEAD), other=0.0)
    v_block = tl.load(values + row * value_slot + value_dim, mask=exists & (value_dim < VALUE_HEAD), other=0.0)
    return k_block, v_block


@tilewright.jit
def load_scales(scales, number, page, first, limit, pages, KEY_HEADS: tl.constexpr, PAGE: tl.constexpr,
                BLOCK_T: tl.constexpr):  # fmt: skip
    """The scales of a block of keys (`number` 0) or values (1); 1 where there are none."""
    if len(scales) > 0:
        key = first + tl.arange(0, BLOCK_T)
        slot = tl.minimum(tl.maximum(page.to(tl.int64), 0), pages - 1) * PAGE + key % PAGE
        result = tl.load(scales[number] + slot * KEY_HEADS, mask=key < limit, other=0.0)[None, :]
    else:
        result = 1.0
    return result


@tilewright.jit
def attend_keys(q_block, keys, values, scales, table, position, first, limit, pages, scale,
                KEY_HEADS: tl.constexpr, HEAD: tl.constexpr, VALUE_HEAD: tl.constexpr, PAGE: tl.constexpr,
                ROWS: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
                WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, TYPE: tl.constexpr):  # fmt: skip
    """Rows at `position` against keys `first` to `limit - 1`: sums of values [ROWS, BLOCK_V], maxima (exponents of 2)
    and sums of weights.

    While a block is multiplied the next one is on its way, and the pages of the one after it.
    """
    slot: tl.constexpr = KEY_HEADS * HEAD  # elements from one to the next
    value_slot: tl.constexpr = KEY_HEADS * VALUE_HEAD
    maximum = tl.full((ROWS,), float("-inf"), TYPE)
    total = tl.zeros((ROWS,), TYPE)
    acc = tl.zeros((ROWS, BLOCK_V), TYPE)
    page = load_pages(table, first, limit, PAGE, BLOCK_T)
    next_k, next_v = load_block(keys, values, page, first, limit, pages, slot, value_slot, HEAD, VALUE_HEAD, PAGE,
                                BLOCK_T, BLOCK_D, BLOCK_V)  # fmt: skip
    next_scales = (load_scales(scales, 0, page, first, limit, pages, KEY_HEADS, PAGE, BLOCK_T),
                   load_scales(scales, 1, page, first, limit, pages, KEY_HEADS, PAGE, BLOCK_T))  # fmt: skip
    page = load_pages(table, first + BLOCK_T, limit, PAGE, BLOCK_T)
    for first_key in range(first, limit, BLOCK_T):
        k_block, v_block = as_multiplied(next_k, q_block.dtype), as_multiplied(next_v, q_block.dtype)
        k_scale, v_scale = next_scales
        next_k, next_v = load_block(keys, values, page, first_key + BLOCK_T, limit, pages, slot, value_slot, HEAD,
                                    VALUE_HEAD, PAGE, BLOCK_T, BLOCK_D, BLOCK_V)  # fmt: skip
        if len(scales) > 0:
            next_scales = (
                load_scales(scales, 0, page, first_key + BLOCK_T, limit, pages, KEY_HEADS, PAGE, BLOCK_T),
                load_scales(scales, 1, page, first_key + BLOCK_T, limit, pages, KEY_HEADS, PAGE, BLOCK_T),
            )
        page = load_pages(table, first_key + 2 * BLOCK_T, limit, PAGE, BLOCK_T)
        scores = tl.dot(q_block, tl.trans(k_block), input_precision="ieee").to(TYPE)
        scores = bounded_scores(scores * k_scale, scale, SOFTCAP)
        key = first_key + tl.arange(0, BLOCK_T)
        seen = (key < limit)[None, :] & (key[None, :] <= position[:, None])
        if WINDOW > 0:
            seen = seen & (key[None, :] > position[:, None] - WINDOW)
        scores = tl.where(seen, scores, float("-inf"))
        new_maximum, total, correction, weights = online_softmax(scores, maximum, total, 1, tl.exp2)
        weights = raised_weights(weights, v_scale, scales).to(v_block.dtype)
        acc = tl.dot(weights, v_block, acc * correction[:, None], input_precision="ieee")
        maximum = new_maximum
    return lowered_results(acc, scales), maximum, total


@tilewright.jit
def part_length(span, sequences, KEY_HEADS: tl.constexpr, SPLITS: tl.constexpr, BLOCK_T: tl.constexpr,
                FULL: tl.constexpr):  # fmt: skip
    """Keys of a part of `span` keys: as few as `SPLITS` parts allow, but no less than keep `FULL` programs busy."""
    least = tl.maximum((sequences * KEY_HEADS) // FULL, 1) * BLOCK_T
    share = ((span + SPLITS - 1) // SPLITS + BLOCK_T - 1) // BLOCK_T * BLOCK_T
    return tl.maximum(share, least)


@tilewright.jit
def first_seen(context, count, WINDOW: tl.constexpr):
    """The first key that any of a sequence's new tokens sees."""
    first = context * 0
    if WINDOW > 0:
        first = tl.maximum(context - count + 1 - WINDOW, 0)
    return first


@tilewright.jit
def paged_parts(q, keys, values, tables, starts, lengths, out, parts, sums, tokens, slots, columns, sequences, scale,
                *scales, HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, HEAD: tl.constexpr, VALUE_HEAD: tl.constexpr,
                PAGE: tl.constexpr, ROWS: tl.constexpr, SPLITS: tl.constexpr, FULL: tl.constexpr, BLOCK_T: tl.constexpr,
                BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr,
                TYPE: tl.constexpr):  # fmt: skip
    """Sequences with at most `ROWS` rows, a part of their keys each.  Grid: (parts, key heads, sequences), with as many
    parts as the longest of them may have, up to `SPLITS`.

    A sequence whose keys are one part is finished here; else `parts` [sequences, key heads, SPLITS, ROWS, VALUE_HEAD]
    gets the part's mean of values and `sums` the logarithm of its weights, -inf for none.
    Dao et al., "Flash-Decoding for long-context inference", 2023.
    """
    GROUP: tl.constexpr = HEADS // KEY_HEADS
    part = tl.program_id(0)
    key_head = tl.program_id(1).to(tl.int64)
    sequence = tl.program_id(2).to(tl.int64)
    start, count, context = new_tokens(starts, lengths, sequence, tokens, columns * PAGE)
    if (count > 0) & (count * GROUP <= ROWS):
        row = tl.arange(0, ROWS)
        exists = (row < count * GROUP)[:, None]
        dim = tl.arange(0, BLOCK_D)[None, :]
        value_dim = tl.arange(0, BLOCK_V)[None, :]
        inside = exists & (value_dim < VALUE_HEAD)
        base = first_seen(context, count, WINDOW)
        length = part_length(context - base, sequences, KEY_HEADS, SPLITS, BLOCK_T, FULL)
        first = base + part * length
        limit = tl.minimum(first + length, context)
        place = ((sequence * KEY_HEADS + key_head) * SPLITS + part) * ROWS + row
        if first < limit:
            query = start + row // GROUP
            head = key_head * GROUP + row % GROUP
            q_rows = ((query * HEADS + head) * HEAD)[:, None]
            q_block = tl.load(q + q_rows + dim, mask=exists & (dim < HEAD), other=0.0)
            acc, maximum, total = attend_keys(
                q_block, keys + key_head * HEAD, values + key_head * VALUE_HEAD, slot_scales(scales, key_head),
                tables + sequence * columns, context - count + row // GROUP, first, limit, slots // PAGE, scale,
                KEY_HEADS, HEAD, VALUE_HEAD, PAGE, ROWS, BLOCK_T, BLOCK_D,
                BLOCK_V, WINDOW, SOFTCAP, TYPE,
            )  # fmt: skip
            result = acc / tl.where(total == 0.0, 1.0, total)[:, None]
            if length >= context - base:
                out_rows = ((query * HEADS + head) * VALUE_HEAD)[:, None]
                tl.store(out + out_rows + value_dim, result.to(out.dtype.element_ty), mask=inside)
            else:
                tl.store(parts + place[:, None] * VALUE_HEAD + value_dim, result, mask=inside)
                logarithm = tl.where(total == 0.0, float("-inf"), maximum + tl.log2(tl.where(total == 0.0, 1.0, total)))
                tl.store(sums + place, logarithm, mask=row < count * GROUP)


@tilewright.jit
def combine_paged_parts(parts, sums, starts, lengths, out, tokens, columns, sequences, HEADS: tl.constexpr,
                        KEY_HEADS: tl.constexpr, VALUE_HEAD: tl.constexpr, PAGE: tl.constexpr, ROWS: tl.constexpr,
                        SPLITS: tl.constexpr, FULL: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_P: tl.constexpr,
                        BLOCK_V: tl.constexpr, WINDOW: tl.constexpr, TYPE: tl.constexpr):  # fmt: skip
    """The parts of `paged_parts` put together.  Grid: (heads, sequences)."""
    GROUP: tl.constexpr = HEADS // KEY_HEADS
    head = tl.program_id(0)
    sequence = tl.program_id(1).to(tl.int64)
    start, count, context = new_tokens(starts, lengths, sequence, tokens, columns * PAGE)
    span = context - first_seen(context, count, WINDOW)
    length = part_length(span, sequences, KEY_HEADS, SPLITS, BLOCK_T, FULL)
    if (count * GROUP <= ROWS) & (length < span):
        part = tl.arange(0, BLOCK_P)
        value_dim = tl.arange(0, BLOCK_V)
        for token in range(0, count):
            row = token * GROUP + head % GROUP
            place = ((sequence * KEY_HEADS + head // GROUP) * SPLITS + part) * ROWS + row
            logarithms = tl.load(sums + place, mask=part * length < span, other=float("-inf"))
            exists = part * length < span  # nothing was written for others
            inside = exists[:, None] & (value_dim < VALUE_HEAD)[None, :]
            found = tl.load(parts + place[:, None] * VALUE_HEAD + value_dim[None, :], mask=inside, other=0.0)
            greatest = tl.max(logarithms, 0)
            weights = tl.exp2(logarithms - tl.where(greatest == float("-inf"), 0.0, greatest))
            total = tl.sum(weights, 0)
            result = tl.sum(found * weights[:, None], 0) / tl.where(total == 0.0, 1.0, total)
            place_out = ((start + token) * HEADS + head) * VALUE_HEAD + value_dim
            tl.store(out + place_out, result.to(out.dtype.element_ty), mask=value_dim < VALUE_HEAD)


@tilewright.jit
def paged_blocks(q, keys, values, tables, starts, lengths, out, tokens, slots, columns, sequences, scale, *scales,
                 HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, HEAD: tl.constexpr, VALUE_HEAD: tl.constexpr,
                 PAGE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, SEARCHES: tl.constexpr,
                 BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, WINDOW: tl.constexpr,
                 SOFTCAP: tl.constexpr, TYPE: tl.constexpr):  # fmt: skip
    """Sequences with more than `ROWS` rows, `BLOCK` rows at a time.

    Grid: (tokens * GROUP // BLOCK + sequences, key heads).  The blocks of sequence i begin at number
    `starts[i] * GROUP // BLOCK + i`, which leaves room for all; `SEARCHES` halvings find the sequence of a block.
    """
    GROUP: tl.constexpr = HEADS // KEY_HEADS
    number = tl.program_id(0)
    key_head = tl.program_id(1).to(tl.int64)
    low = number * 0
    high = low + sequences.to(tl.int32)
    for _ in range(SEARCHES):
        middle = (low + high) // 2
        begin = tl.load(starts + middle) * GROUP // BLOCK + middle
        before = (begin <= number) & (low + 1 < high)
        low = tl.where(before, middle, low)
        high = tl.where((begin > number) & (low + 1 < high), middle, high)
    sequence = low.to(tl.int64)
    start, count, context = new_tokens(starts, lengths, sequence, tokens, columns * PAGE)
    begin = (number - (start * GROUP // BLOCK + sequence)).to(tl.int32) * BLOCK
    if (count * GROUP > ROWS) & (begin >= 0) & (begin < count * GROUP):
        row = begin + tl.arange(0, BLOCK)
        exists = (row < count * GROUP)[:, None]
        dim = tl.arange(0, BLOCK_D)[None, :]
        value_dim = tl.arange(0, BLOCK_V)[None, :]
        query = start + row // GROUP
        head = key_head * GROUP + row % GROUP
        q_block = tl.load(q + ((query * HEADS + head) * HEAD)[:, None] + dim, mask=exists & (dim < HEAD), other=0.0)
        before = context - count
        limit = tl.minimum(before + (begin + BLOCK - 1) // GROUP + 1, context)
        first = before * 0
        if WINDOW > 0:
            first = tl.maximum(before + begin // GROUP + 1 - WINDOW, 0)
        acc, _, total = attend_keys(
            q_block, keys + key_head * HEAD, values + key_head * VALUE_HEAD, slot_scales(scales, key_head),
            tables + sequence * columns, before + row // GROUP, first, limit, slots // PAGE, scale, KEY_HEADS, HEAD,
            VALUE_HEAD, PAGE, BLOCK, BLOCK_T, BLOCK_D, BLOCK_V, WINDOW, SOFTCAP, TYPE,
        )  # fmt: skip
        result = acc / tl.where(total == 0.0, 1.0, total)[:, None]
        out_rows = ((query * HEADS + head) * VALUE_HEAD)[:, None]
        tl.store(out + out_rows + value_dim, result.to(out.dtype.element_ty), mask=exists & (value_dim < VALUE_HEAD))
