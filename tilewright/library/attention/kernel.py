"""Scaled dot-product attention in the tile language, without the [queries, keys] matrix in memory.

out[s, d] = sum_t softmax_t(scale * q[s] . k[t] + bias[s, t]) v[t, d]

The softmax is taken online over blocks of keys (Milakov and Gimelshein, "Online normalizer
calculation for softmax", 2018; Dao et al., "FlashAttention", 2022).  Both kernels take every stride,
so heads never need a permuted copy, and `group` query heads may share one key/value head.

`BIAS` says what is added to the scores: 0 nothing, 1 one number for each key (a padding mask),
2 a number for each query and key.  `WINDOW` is how many keys a query of causal attention sees (0: all), `SOFTCAP`
bounds scores (0: not), and `lengths`, where there are any, are the keys of each batch that are seen.
"""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl
from tilewright.library.attention.scores import (
    LOG2_E,
    binary_power,
    capped,
    hide_unseen,
    load_bias,
    natural_power,
    online_softmax,
    seen_keys,
    seen_range,
)


@tilewright.jit
def attention(q, k, v, bias, out, queries, keys, group, scale,
              q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
              out_batch, out_head, out_row, bias_batch, bias_head, bias_row, bias_key, q_offset, k_offset, v_offset,
              *lengths, HEAD: tl.constexpr, VALUE_HEAD: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_T: tl.constexpr,
              MASK_S: tl.constexpr, MASK_T: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
              SOFTCAP: tl.constexpr, BIAS: tl.constexpr, TYPE: tl.constexpr):  # fmt: skip
    """Blocks of queries against all keys.  Grid: (query blocks, query heads, batch).

    `MASK_S` and `MASK_T` are false where whole blocks of queries and of keys are known to exist.

    Everything is computed transposed: S^T[t, s] = K Q^T, O^T[d, s] = V^T P^T.  Then keys and values
    are the left operands of `dot`, read in place; the queries lie along the vector dimension, so that
    maxima and sums over keys are plain vector operations; and only Q and O are ever transposed, once.
    Scores without a bias or cap are in units of log 2, because powers of two are cheaper than those of e.
    """
    head = tl.program_id(1).to(tl.int64)
    batch = tl.program_id(2).to(tl.int64)
    shared_head = head // group
    first_query = tl.program_id(0) * BLOCK_S
    query = first_query + tl.arange(0, BLOCK_S)
    dim = tl.arange(0, HEAD)
    value_dim = tl.arange(0, VALUE_HEAD)
    q = q + (q_offset + batch * q_batch + head * q_head)
    k = k + (k_offset + batch * k_batch + shared_head * k_head)
    v = v + (v_offset + batch * v_batch + shared_head * v_head)
    out = out + (batch * out_batch + head * out_head)
    bias = bias + (batch * bias_batch + head * bias_head)

    query_exists = query[:, None] < queries if MASK_S else None
    q_block = tl.load(q + query.to(tl.int64)[:, None] * q_row + dim[None, :], mask=query_exists)
    NATURAL: tl.constexpr = BIAS > 0 or SOFTCAP > 0
    POWER: tl.constexpr = natural_power if NATURAL else binary_power
    q_transposed = tl.trans((q_block.to(TYPE) * (scale if NATURAL else scale * LOG2_E)).to(k.dtype.element_ty))
    maximum = tl.full((BLOCK_S,), float("-inf"), TYPE)
    total = tl.zeros((BLOCK_S,), TYPE)
    acc = tl.zeros((VALUE_HEAD, BLOCK_S), TYPE)
    offset, keys = keys - queries, seen_keys(keys, batch, lengths)
    start, limit = seen_range(first_query, BLOCK_S, offset, keys, CAUSAL, WINDOW, BLOCK_T)
    for first_key in range(start, limit, BLOCK_T):
        key = first_key + tl.arange(0, BLOCK_T)
        key_row = key.to(tl.int64)
        key_exists, absent = (key[:, None] < keys, 0.0) if MASK_T else (None, None)
        k_block = tl.load(k + key_row[:, None] * k_row + dim[None, :], mask=key_exists)
        scores = capped(tl.dot(k_block, q_transposed, input_precision="ieee"), SOFTCAP)
        if BIAS > 0:
            scores += load_bias(bias, query, key, queries, keys, bias_row, bias_key, BIAS).to(TYPE)
        scores = hide_unseen(scores, query, key, offset, keys, CAUSAL, WINDOW, MASK_T)
        new_maximum, total, correction, weights = online_softmax(scores, maximum, total, 0, POWER)
        v_block = tl.load(v + key_row[:, None] * v_row + value_dim[None, :], mask=key_exists, other=absent)
        acc = acc * correction[None, :]
        acc = tl.dot(tl.trans(v_block), weights.to(v.dtype.element_ty), acc, input_precision="ieee")
        maximum = new_maximum

    # A query that sees no key has the total 0 and gives zeros.
    result = tl.trans(acc / tl.where(total == 0.0, 1.0, total)[None, :])
    tl.store(out + query.to(tl.int64)[:, None] * out_row + value_dim[None, :], result, mask=query_exists)


@tilewright.jit
def attention_decode(q, k, v, bias, out, queries, keys, group, scale,
                     q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
                     out_batch, out_head, out_row, bias_batch, bias_head, bias_row, bias_key,
                     q_offset, k_offset, v_offset, *lengths, HEAD: tl.constexpr, VALUE_HEAD: tl.constexpr,
                     BLOCK_T: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr,
                     BIAS: tl.constexpr, TYPE: tl.constexpr):  # fmt: skip
    """One query against all keys: streams K and V once.  Grid: (queries, query heads, batch)."""
    query = tl.program_id(0)
    head = tl.program_id(1).to(tl.int64)
    batch = tl.program_id(2).to(tl.int64)
    shared_head = head // group
    dim = tl.arange(0, HEAD)
    value_dim = tl.arange(0, VALUE_HEAD)
    query_row = query.to(tl.int64)
    k = k + (k_offset + batch * k_batch + shared_head * k_head)
    v = v + (v_offset + batch * v_batch + shared_head * v_head)
    bias = bias + (batch * bias_batch + head * bias_head + query_row * bias_row)

    q_vector = tl.load(q + (q_offset + batch * q_batch + head * q_head + query_row * q_row) + dim).to(TYPE) * scale
    maximum = tl.full((), float("-inf"), TYPE)
    total = tl.zeros((), TYPE)
    acc = tl.zeros((VALUE_HEAD,), TYPE)
    offset = keys - queries
    start, limit = seen_range(query, 1, offset, seen_keys(keys, batch, lengths), CAUSAL, WINDOW, BLOCK_T)
    for first_key in range(start, limit, BLOCK_T):
        key = first_key + tl.arange(0, BLOCK_T)
        seen = key < limit
        if WINDOW > 0:
            seen = seen & (key > query + (offset - WINDOW))
        key_row = key.to(tl.int64)
        k_block = tl.load(k + key_row[:, None] * k_row + dim[None, :], mask=seen[:, None], other=0.0)
        scores = capped(tl.sum(k_block.to(TYPE) * q_vector[None, :], 1), SOFTCAP)
        if BIAS > 0:
            scores += tl.load(bias + key_row * bias_key, mask=seen, other=0.0).to(TYPE)
        scores = tl.where(seen, scores, float("-inf"))
        new_maximum, total, correction, weights = online_softmax(scores, maximum, total, 0, tl.exp)
        v_block = tl.load(v + key_row[:, None] * v_row + value_dim[None, :], mask=seen[:, None], other=0.0)
        acc = acc * correction + tl.sum(weights[:, None] * v_block.to(TYPE), 0)
        maximum = new_maximum
    tl.store(out + (batch * out_batch + head * out_head + query_row * out_row) + value_dim,
             acc / tl.where(total == 0.0, 1.0, total))  # fmt: skip
