"""Scaled dot-product attention on GPUs in the plain tile language, for every stride, bias and element type.

The parameters are those of `attention.kernel`, and so is the online softmax; queries lie along the rows, so that
the scores enter the second product from the registers that the first one left them in.
"""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl
from tilewright.library.attention.scores import capped, online_softmax, seen_keys, seen_range
from tilewright.library.epilogue import identity


@tilewright.jit
def load_bias(bias, query_row, key, query_exists, key_exists, bias_row, bias_key, BIAS: tl.constexpr):
    """What is added to the scores of a block: [queries, keys], or [1, keys] for one number a key."""
    places = bias + key.to(tl.int64)[None, :] * bias_key
    exists = key_exists
    if BIAS == 2:
        places = places + query_row * bias_row
        exists = exists & query_exists
    return tl.load(places, mask=exists, other=0.0)


@tilewright.jit
def seen_scores(scores, seen, query, key, offset, CAUSAL: tl.constexpr, WINDOW: tl.constexpr):
    """Scores [queries, keys], minus infinity where a query does not see a key."""
    if CAUSAL:
        seen = seen & (key[None, :] <= query[:, None] + offset)
    if WINDOW > 0:
        seen = seen & (key[None, :] > query[:, None] + (offset - WINDOW))
    return tl.where(seen, scores, float("-inf"))


@tilewright.jit
def attention(q, k, v, bias, out, queries, keys, group, scale,
              q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
              out_batch, out_head, out_row, bias_batch, bias_head, bias_row, bias_key, q_offset, k_offset, v_offset,
              *extra, HEAD: tl.constexpr, VALUE_HEAD: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
              BLOCK_S: tl.constexpr, BLOCK_T: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
              SOFTCAP: tl.constexpr, BIAS: tl.constexpr, TYPE: tl.constexpr, COUNTED: tl.constexpr = False,
              EPILOGUE: tl.constexpr = identity):  # fmt: skip
    """Blocks of `BLOCK_S` queries against all keys, `BLOCK_T` at a time.  Grid: (query blocks, query heads, batch).

    `BLOCK_D` and `BLOCK_V` are powers of two that cover `HEAD` and `VALUE_HEAD`.  If keys are `COUNTED`, the first of
    `extra` are the keys of each batch that are seen; what follows them is for `EPILOGUE`.
    """
    head = tl.program_id(1).to(tl.int64)
    batch = tl.program_id(2).to(tl.int64)
    shared_head = head // group
    first_query = tl.program_id(0) * BLOCK_S
    query = first_query + tl.arange(0, BLOCK_S)
    query_row = query.to(tl.int64)[:, None]
    query_exists = query[:, None] < queries
    dim = tl.arange(0, BLOCK_D)[None, :]
    value_dim = tl.arange(0, BLOCK_V)[None, :]
    q = q + (q_offset + batch * q_batch + head * q_head)
    k = k + (k_offset + batch * k_batch + shared_head * k_head)
    v = v + (v_offset + batch * v_batch + shared_head * v_head)
    out = out + (batch * out_batch + head * out_head)
    bias = bias + (batch * bias_batch + head * bias_head)

    q_block = tl.load(q + query_row * q_row + dim, mask=query_exists & (dim < HEAD), other=0.0)
    maximum = tl.full((BLOCK_S,), float("-inf"), TYPE)
    total = tl.zeros((BLOCK_S,), TYPE)
    acc = tl.zeros((BLOCK_S, BLOCK_V), TYPE)
    offset, keys = keys - queries, seen_keys(keys, batch, extra) if COUNTED else keys
    start, limit = seen_range(first_query, BLOCK_S, offset, keys, CAUSAL, WINDOW, BLOCK_T)
    for first_key in range(start, limit, BLOCK_T):
        key = first_key + tl.arange(0, BLOCK_T)
        key_row = key.to(tl.int64)[:, None]
        key_exists = key[:, None] < keys
        k_block = tl.load(k + key_row * k_row + dim, mask=key_exists & (dim < HEAD), other=0.0)
        scores = tl.dot(q_block, tl.trans(k_block), input_precision="ieee").to(TYPE) * scale
        scores = capped(scores, SOFTCAP)
        seen = key[None, :] < keys
        if BIAS > 0:
            scores += load_bias(bias, query_row, key, query_exists, seen, bias_row, bias_key, BIAS).to(TYPE)
        scores = seen_scores(scores, seen, query, key, offset, CAUSAL, WINDOW)
        new_maximum, total, correction, weights = online_softmax(scores, maximum, total, 1, tl.exp)
        v_block = tl.load(v + key_row * v_row + value_dim, mask=key_exists & (value_dim < VALUE_HEAD), other=0.0)
        acc = tl.dot(weights.to(v.dtype.element_ty), v_block, acc * correction[:, None], input_precision="ieee")
        maximum = new_maximum

    # A query that sees no key has the total 0 and gives zeros.
    result = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    inside, row = query_exists & (value_dim < VALUE_HEAD), (batch * tl.num_programs(1) + head) * queries + query_row
    result = EPILOGUE(result, row, value_dim, inside, extra)
    tl.store(out + query_row * out_row + value_dim, result.to(out.dtype.element_ty), mask=inside)


@tilewright.jit
def block_attention(q, k, v, bias, out, heads, group, bias_batch, bias_head, bias_row, bias_key, *extra,
                    QUERIES: tl.constexpr, KEYS: tl.constexpr, HEAD: tl.constexpr, VALUE_HEAD: tl.constexpr,
                    BLOCK_S: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
                    SCALE: tl.constexpr, BIAS: tl.constexpr, BIAS_KEYS: tl.constexpr, WIDE: tl.constexpr,
                    TYPE: tl.constexpr, PLACE_Q: tl.constexpr, PLACE_K: tl.constexpr, PLACE_V: tl.constexpr,
                    PLACE_OUT: tl.constexpr, EPILOGUE: tl.constexpr = identity):  # fmt: skip
    """All queries of a head against all keys, as one block each.  Grid: (batches * heads,).

    ``PLACE(batch, head, row, extra)`` says where a row begins: windows of an image are read and written where they
    lie.  Lines of biases have `BIAS_KEYS` elements; `WIDE` where offsets need 64 bits.
    """
    number = tl.program_id(0)
    batch = number // heads
    head = number - batch * heads
    if WIDE:
        batch = batch.to(tl.int64)
    query = tl.arange(0, BLOCK_S)
    key = tl.arange(0, BLOCK_T)
    dim = tl.arange(0, BLOCK_D)[None, :]
    value_dim = tl.arange(0, BLOCK_V)[None, :]
    query_exists = (query < QUERIES)[:, None]
    key_exists = (key < KEYS)[:, None]
    k_place = PLACE_K(batch, head // group, key, extra)[:, None]
    v_place = PLACE_V(batch, head // group, key, extra)[:, None]
    q_place = PLACE_Q(batch, head, query, extra)[:, None]
    q_block = tl.load(q + q_place + dim, mask=query_exists & (dim < HEAD), other=0.0)
    k_block = tl.load(k + k_place + dim, mask=key_exists & (dim < HEAD), other=0.0)
    v_block = tl.load(v + v_place + value_dim, mask=key_exists & (value_dim < VALUE_HEAD), other=0.0)
    if BIAS:
        bias += batch * bias_batch + head * bias_head
        added = tl.load(bias + query[:, None] * bias_row + key[None, :] * bias_key,
                        mask=query_exists & (key[None, :] < BIAS_KEYS), other=0.0)  # fmt: skip
    scores = tl.dot(q_block, tl.trans(k_block), input_precision="ieee").to(TYPE) * SCALE
    if BIAS:
        scores += added.to(TYPE)
    scores = tl.where(key[None, :] < KEYS, scores, float("-inf"))
    maximum = tl.max(scores, 1)
    # A query that sees no key has minus infinity everywhere, and gives zeros.
    weights = tl.exp(scores - tl.where(maximum == float("-inf"), 0.0, maximum)[:, None])
    total = tl.sum(weights, 1)
    result = tl.dot(weights.to(v.dtype.element_ty), v_block, input_precision="ieee").to(TYPE)
    result = result * (1.0 / tl.where(total == 0.0, 1.0, total))[:, None]
    place = PLACE_OUT(batch, head, query, extra)[:, None]
    inside = query_exists & (value_dim < VALUE_HEAD)
    result = EPILOGUE(result, number.to(tl.int64) * QUERIES + query[:, None], value_dim, inside, extra)
    tl.store(out + place + value_dim, result.to(out.dtype.element_ty), mask=inside)


@tilewright.jit
def combine_parts(parts, sums, out, out_batch, out_head, heads, *extra, GROUP: tl.constexpr, SPLITS: tl.constexpr,
                  HEAD: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_D: tl.constexpr,
                  EPILOGUE: tl.constexpr = identity):  # fmt: skip
    """Results of parts of the keys put together: out[b, h] = sum over parts of softmax(sums) parts.

    `parts` is [batch, heads / GROUP, SPLITS, GROUP, HEAD], `sums` the same without the last axis: logarithms of the
    parts' sums, -inf for parts without a key.  `BLOCK_P` and `BLOCK_D` are powers of two that cover `SPLITS` and
    `HEAD`.  Grid: (heads, batch).  Dao et al., "Flash-Decoding for long-context inference", 2023.
    """
    head = tl.program_id(0)
    batch = tl.program_id(1).to(tl.int64)
    part = tl.arange(0, BLOCK_P)
    dim = tl.arange(0, BLOCK_D)
    row = (batch * (heads // GROUP) + head // GROUP) * (SPLITS * GROUP) + part * GROUP + head % GROUP
    exists = part < SPLITS
    inside = exists[:, None] & (dim[None, :] < HEAD)
    # Both are on their way before the first of them is waited for.
    logarithms = tl.load(sums + row, mask=exists, other=float("-inf"))
    values = tl.load(parts + row[:, None] * HEAD + dim[None, :], mask=inside, other=0.0).to(tl.float32)
    greatest = tl.max(logarithms, 0)
    weights = tl.exp(logarithms - tl.where(greatest == float("-inf"), 0.0, greatest))
    total = tl.sum(weights, 0)
    result = tl.sum(values * weights[:, None], 0) * (1.0 / tl.where(total == 0.0, 1.0, total))
    place = batch * out_batch + head.to(tl.int64) * out_head + dim
    result = EPILOGUE(result, batch * heads + head, dim, dim < HEAD, extra)
    tl.store(out + place, result.to(out.dtype.element_ty), mask=dim < HEAD)
