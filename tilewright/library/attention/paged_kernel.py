"""Attention of new tokens over keys and values that lie in pages (`graph.paged`), in the tile language.

One program takes a block of queries of one sequence, for all query heads that share a key/value head: row r of its
tile is query `r // GROUP` and head `r % GROUP`, so that keys are read once for a group.  It walks the sequence's
pages with an online softmax, as `attention.kernel`, transposed in the same way: queries lie along the vector
dimension, keys and values are the left operands of products, read in place, because a page is contiguous.  Heads of
a single token would leave most lanes empty: there keys lie along vectors.
"""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl
from tilewright.library.attention.scores import LOG2_E, online_softmax

TILED_HEADS = tl.constexpr(3)  # heads of one key head from which on a token is a tile of them
MOST_TILED_HEADS = tl.constexpr(16)  # more are rows of a block, as queries are
# In float16 a weight of at most 1 times the scale of values under 1e-5 would be zero, or nearly.  Raised by this power
# of 2, those of the least values are numbers, and those of the largest, 65504 / 127, still finite.
RAISED_BY = tl.constexpr(6)
RAISE = tl.constexpr(64.0)


@tilewright.jit
def bounded_scores(scores, scale, SOFTCAP: tl.constexpr):
    """Products of queries and keys as exponents of 2."""
    if SOFTCAP == 0:
        result = scores * (scale * LOG2_E)
    else:
        # tanh(x) from a power of two, whose overflow and underflow give 1 and -1
        half = 1.0 - 2.0 / (tl.exp2(scores * (scale * (2.0 / SOFTCAP) * LOG2_E)) + 1.0)
        result = half * (SOFTCAP * LOG2_E)
    return result


@tilewright.jit
def page_at(table, number, pages):
    """A page of a sequence's table, clamped to those that there are."""
    page = tl.load(table + number).to(tl.int64)
    return tl.minimum(tl.maximum(page, 0), pages - 1)


@tilewright.jit
def raised_weights(weights, value_scales, scales):
    """Weights of values times their scales; where there are scales, times `RAISE`."""
    result = weights * value_scales
    if len(scales) > 0:
        result = result * RAISE
    return result


@tilewright.jit
def lowered_results(acc, scales):
    """Sums of values by `raised_weights`, as they are without `RAISE`."""
    if len(scales) > 0:
        acc = acc * (1.0 / RAISE)
    return acc


@tilewright.jit
def slot_scales(scales, key_head):
    """The scales of a head."""
    if len(scales) > 0:
        result = (scales[0] + key_head, scales[1] + key_head)
    else:
        result = ()
    return result


@tilewright.jit
def scale_of_slots(scales, number, slot, mask, KEY_HEADS: tl.constexpr):
    """The scales of tokens in slots, of keys (`number` 0) or values (1); 1 where there are none."""
    if len(scales) > 0:
        result = tl.load(scales[number] + slot * KEY_HEADS, mask=mask, other=0.0)
    else:
        result = 1.0
    return result


@tilewright.jit
def as_multiplied(block, TYPE: tl.constexpr):
    """Keys or values in the type in which they are multiplied: those of 8 bits in that of the query, which has them
    all."""
    if block.dtype.itemsize == 1:
        result = block.to(TYPE)
    else:
        result = block
    return result


@tilewright.jit
def attend_block(q, keys, values, scales, table, out, scale, begin, count, context, pages, q_token, out_token,
                 KEY_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD: tl.constexpr, VALUE_HEAD: tl.constexpr,
                 PAGE: tl.constexpr, BLOCK: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr,
                 TYPE: tl.constexpr):  # fmt: skip
    """Rows `begin` to `begin + BLOCK - 1` of the `count * GROUP` rows of a sequence and a key/value head.

    `q` and `out` point to the sequence's first new token and the group's first head, `keys` and `values` to the head
    in slot 0, `table` to the sequence's pages.
    """
    row = begin + tl.arange(0, BLOCK)
    exists = (row < count * GROUP)[:, None]
    token = (row // GROUP).to(tl.int64)
    head = row % GROUP
    dim = tl.arange(0, HEAD)
    value_dim = tl.arange(0, VALUE_HEAD)
    SLOT: tl.constexpr = KEY_HEADS * HEAD  # elements from one to the next
    VALUE_SLOT: tl.constexpr = KEY_HEADS * VALUE_HEAD
    before = context - count  # tokens of the sequence before the new ones
    position = before + row // GROUP
    q_rows = token[:, None] * q_token + head[:, None] * HEAD
    q_transposed = tl.trans(tl.load(q + q_rows + dim[None, :], mask=exists, other=0.0))
    maximum = tl.full((BLOCK,), float("-inf"), TYPE)
    total = tl.zeros((BLOCK,), TYPE)
    acc = tl.zeros((VALUE_HEAD, BLOCK), TYPE)
    limit = tl.minimum(before + (begin + BLOCK - 1) // GROUP + 1, context)
    first = 0
    if WINDOW > 0:
        first = tl.maximum(before + begin // GROUP - (WINDOW - 1), 0) // PAGE
    for number in range(first, (limit + PAGE - 1) // PAGE):
        page = page_at(table, number, pages)
        key = number * PAGE + tl.arange(0, PAGE)
        inside = tl.arange(0, PAGE).to(tl.int64)[:, None]
        k_block = as_multiplied(tl.load(keys + page * PAGE * SLOT + inside * SLOT + dim[None, :]), q.dtype.element_ty)
        scores = tl.dot(k_block, q_transposed, input_precision="ieee").to(TYPE)
        # Slots after the last token hold what another sequence left there, or nothing yet: maybe NaN.
        written = (key < context)[:, None]
        row_slot = page * PAGE + inside
        scores = bounded_scores(scores * scale_of_slots(scales, 0, row_slot, written, KEY_HEADS), scale, SOFTCAP)
        seen = key[:, None] <= position[None, :]
        if WINDOW > 0:
            seen = seen & (key[:, None] > position[None, :] - WINDOW)
        scores = tl.where(seen, scores, float("-inf"))
        new_maximum, total, correction, weights = online_softmax(scores, maximum, total, 0, tl.exp2)
        v_block = tl.load(values + page * PAGE * VALUE_SLOT + inside * VALUE_SLOT + value_dim[None, :], mask=written,
                          other=0.0)  # fmt: skip
        v_block = as_multiplied(v_block, q.dtype.element_ty)
        acc = acc * correction[None, :]
        weights = raised_weights(weights, scale_of_slots(scales, 1, row_slot, written, KEY_HEADS), scales)
        acc = tl.dot(tl.trans(v_block), weights.to(v_block.dtype), acc, input_precision="ieee")
        maximum = new_maximum
    acc = lowered_results(acc, scales)
    result = tl.trans(acc / tl.where(total == 0.0, 1.0, total)[None, :])
    out_rows = token[:, None] * out_token + head[:, None] * VALUE_HEAD
    tl.store(out + out_rows + value_dim[None, :], result.to(out.dtype.element_ty), mask=exists)


@tilewright.jit
def attend_token(q, keys, values, scales, table, out, scale, context, pages, KEY_HEADS: tl.constexpr,
                 HEAD: tl.constexpr, VALUE_HEAD: tl.constexpr, PAGE: tl.constexpr, WINDOW: tl.constexpr,
                 SOFTCAP: tl.constexpr, TYPE: tl.constexpr):  # fmt: skip
    """One head of the last token of a sequence: where few heads share keys, a vector along the head's width is faster
    than one along queries."""
    dim = tl.arange(0, HEAD)
    value_dim = tl.arange(0, VALUE_HEAD)
    SLOT: tl.constexpr = KEY_HEADS * HEAD  # elements from one to the next
    VALUE_SLOT: tl.constexpr = KEY_HEADS * VALUE_HEAD
    vector = tl.load(q + dim).to(TYPE)
    maximum = tl.full((), float("-inf"), TYPE)
    total = tl.zeros((), TYPE)
    acc = tl.zeros((VALUE_HEAD,), TYPE)
    first = 0
    if WINDOW > 0:
        first = tl.maximum(context - WINDOW, 0) // PAGE
    for number in range(first, (context + PAGE - 1) // PAGE):
        page = page_at(table, number, pages)
        key = number * PAGE + tl.arange(0, PAGE)
        row = page * PAGE + tl.arange(0, PAGE).to(tl.int64)
        seen = key < context
        if WINDOW > 0:
            seen = seen & (key >= context - WINDOW)
        k_block = tl.load(keys + row[:, None] * SLOT + dim[None, :], mask=seen[:, None], other=0.0)
        scores = tl.sum(k_block.to(TYPE) * vector[None, :], 1)
        scores = bounded_scores(scores * scale_of_slots(scales, 0, row, seen, KEY_HEADS), scale, SOFTCAP)
        scores = tl.where(seen, scores, float("-inf"))
        new_maximum, total, correction, weights = online_softmax(scores, maximum, total, 0, tl.exp2)
        v_block = tl.load(values + row[:, None] * VALUE_SLOT + value_dim[None, :], mask=seen[:, None], other=0.0)
        weights = weights * scale_of_slots(scales, 1, row, seen, KEY_HEADS)
        acc = acc * correction + tl.sum(weights[:, None] * v_block.to(TYPE), 0)
        maximum = new_maximum
    tl.store(out + value_dim, (acc / tl.where(total == 0.0, 1.0, total)).to(out.dtype.element_ty))


@tilewright.jit
def attend_heads(q, keys, values, scales, table, out, scale, context, pages, KEY_HEADS: tl.constexpr,
                 GROUP: tl.constexpr, HEAD: tl.constexpr, VALUE_HEAD: tl.constexpr, PAGE: tl.constexpr,
                 WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, TYPE: tl.constexpr):  # fmt: skip
    """The heads of the last token of a sequence that share keys.

    Keys, and then the width of values, lie along vectors: no lane is without a head, as in a tile along queries.
    """
    row = tl.arange(0, GROUP)[:, None]
    dim = tl.arange(0, HEAD)
    value_dim = tl.arange(0, VALUE_HEAD)
    SLOT: tl.constexpr = KEY_HEADS * HEAD  # elements from one to the next
    VALUE_SLOT: tl.constexpr = KEY_HEADS * VALUE_HEAD
    q_block = tl.load(q + row * HEAD + dim[None, :]).to(TYPE)
    maximum = tl.full((GROUP,), float("-inf"), TYPE)
    total = tl.zeros((GROUP,), TYPE)
    acc = tl.zeros((GROUP, VALUE_HEAD), TYPE)
    first = 0
    if WINDOW > 0:
        first = tl.maximum(context - WINDOW, 0) // PAGE
    for number in range(first, (context + PAGE - 1) // PAGE):
        page = page_at(table, number, pages)
        key = number * PAGE + tl.arange(0, PAGE)
        inside = tl.arange(0, PAGE).to(tl.int64)[:, None]
        seen = key < context
        if WINDOW > 0:
            seen = seen & (key >= context - WINDOW)
        k_block = tl.load(keys + page * PAGE * SLOT + inside * SLOT + dim[None, :])
        scores = tl.dot(q_block, tl.trans(k_block.to(TYPE)), input_precision="ieee").to(TYPE)
        row_slot = page * PAGE + tl.arange(0, PAGE).to(tl.int64)[None, :]
        written = (key < context)[None, :]
        scores = scores * scale_of_slots(scales, 0, row_slot, written, KEY_HEADS)
        scores = tl.where(seen[None, :], bounded_scores(scores, scale, SOFTCAP), float("-inf"))
        new_maximum, total, correction, weights = online_softmax(scores, maximum, total, 1, tl.exp2)
        v_block = tl.load(values + page * PAGE * VALUE_SLOT + inside * VALUE_SLOT + value_dim[None, :],
                          mask=(key < context)[:, None], other=0.0)  # fmt: skip
        acc = acc * correction[:, None]
        weights = weights * scale_of_slots(scales, 1, row_slot, written, KEY_HEADS)
        acc = tl.dot(weights, v_block.to(TYPE), acc, input_precision="ieee")
        maximum = new_maximum
    result = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    tl.store(out + row * VALUE_HEAD + value_dim[None, :], result.to(out.dtype.element_ty))


@tilewright.jit
def paged_attention(q, keys, values, tables, starts, lengths, out, tokens, slots, columns, scale, *scales,
                    HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, HEAD: tl.constexpr, VALUE_HEAD: tl.constexpr,
                    PAGE: tl.constexpr, BLOCK: tl.constexpr, FEW: tl.constexpr, WINDOW: tl.constexpr,
                    SOFTCAP: tl.constexpr, TYPE: tl.constexpr):  # fmt: skip
    """Grid: (blocks of rows, key/value heads, sequences); blocks that a sequence does not have end at once.

    A single new token (decoding) takes a tile of the heads that share keys, or these one by one where they are few;
    a sequence with at most `FEW` rows takes one small block.  `scales` are those of keys and of values, or nothing.
    Starts, lengths and page numbers are clamped to the tensors that they point into.
    """
    GROUP: tl.constexpr = HEADS // KEY_HEADS
    SINGLE: tl.constexpr = GROUP if GROUP < TILED_HEADS else 0
    TILED: tl.constexpr = GROUP if TILED_HEADS <= GROUP and GROUP <= MOST_TILED_HEADS else 0
    key_head = tl.program_id(1).to(tl.int64)
    sequence = tl.program_id(2).to(tl.int64)
    start = tl.minimum(tl.maximum(tl.load(starts + sequence).to(tl.int64), 0), tokens)
    end = tl.minimum(tl.maximum(tl.load(starts + sequence + 1).to(tl.int64), start), tokens)
    count = (end - start).to(tl.int32)
    context = tl.maximum(tl.load(lengths + sequence).to(tl.int64), count)
    context = tl.minimum(context, columns * PAGE).to(tl.int32)
    q = q + start * (HEADS * HEAD) + key_head * (GROUP * HEAD)
    out = out + start * (HEADS * VALUE_HEAD) + key_head * (GROUP * VALUE_HEAD)
    keys = keys + key_head * HEAD
    values = values + key_head * VALUE_HEAD
    scales = slot_scales(scales, key_head)
    table = tables + sequence * columns
    begin = tl.program_id(0) * BLOCK
    if begin < count * GROUP:
        if count * GROUP <= SINGLE:
            for head in tl.static_range(SINGLE):
                attend_token(q + head * HEAD, keys, values, scales, table, out + head * VALUE_HEAD, scale, context,
                             slots // PAGE, KEY_HEADS, HEAD, VALUE_HEAD, PAGE, WINDOW, SOFTCAP, TYPE)  # fmt: skip
        elif count * GROUP == TILED:
            attend_heads(q, keys, values, scales, table, out, scale, context, slots // PAGE, KEY_HEADS, GROUP, HEAD,
                         VALUE_HEAD, PAGE, WINDOW, SOFTCAP, TYPE)  # fmt: skip
        elif count * GROUP <= FEW:
            attend_block(q, keys, values, scales, table, out, scale, begin, count, context, slots // PAGE, HEADS * HEAD,
                         HEADS * VALUE_HEAD, KEY_HEADS, GROUP, HEAD, VALUE_HEAD, PAGE, FEW, WINDOW, SOFTCAP,
                         TYPE)  # fmt: skip
        else:
            attend_block(q, keys, values, scales, table, out, scale, begin, count, context, slots // PAGE, HEADS * HEAD,
                         HEADS * VALUE_HEAD, KEY_HEADS, GROUP, HEAD, VALUE_HEAD, PAGE, BLOCK, WINDOW, SOFTCAP,
                         TYPE)  # fmt: skip
