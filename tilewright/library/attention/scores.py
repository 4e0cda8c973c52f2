"""The scores of attention in the tile language: which keys a query sees, what is added to them, their powers."""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
LEAST_EXPONENT = tl.constexpr(-126.0)  # exponent of normal float32 numbers


@tilewright.jit
def load_bias(bias, query, key, queries, keys, bias_row, bias_key, BIAS: tl.constexpr):
    """What is added to the scores of a block, transposed: [keys, queries], or [keys, 1] for one number a key."""
    pointers = bias + key.to(tl.int64)[:, None] * bias_key
    exists = key[:, None] < keys
    if BIAS == 2:
        pointers = pointers + query.to(tl.int64)[None, :] * bias_row
        exists = exists & (query[None, :] < queries)
    return tl.load(pointers, mask=exists, other=0.0)


@tilewright.jit
def seen_keys(keys, batch, lengths):
    """How many keys of a batch are seen."""
    if len(lengths) > 0:
        keys = tl.minimum(tl.load(lengths[0] + batch), keys)
    return keys


@tilewright.jit
def seen_range(query, count, offset, keys, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, BLOCK_T: tl.constexpr):
    """The first and the last key, in whole blocks, that `count` queries see; `offset` is added to a query's index."""
    start, limit = 0, keys
    if CAUSAL:
        limit = tl.minimum(keys, query + count + offset)
    if WINDOW > 0:
        start = tl.maximum(query + offset - (WINDOW - 1), 0) // BLOCK_T * BLOCK_T
    return start, limit


@tilewright.jit
def capped(scores, SOFTCAP: tl.constexpr):
    """SOFTCAP tanh(scores / SOFTCAP): from a power of two, whose overflow and underflow give 1 and -1."""
    if SOFTCAP > 0:
        scores = SOFTCAP - (2.0 * SOFTCAP) / (tl.exp2(scores * (2.0 / SOFTCAP * LOG2_E)) + 1.0)
    return scores


@tilewright.jit
def hide_unseen(scores, query, key, offset, keys, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
                MASK_T: tl.constexpr):  # fmt: skip
    """Scores [keys, queries], minus infinity where the key is none, comes after the query or before its window."""
    if MASK_T:
        scores = tl.where(key[:, None] < keys, scores, float("-inf"))
    if CAUSAL:
        scores = tl.where(key[:, None] <= query[None, :] + offset, scores, float("-inf"))
    if WINDOW > 0:
        scores = tl.where(key[:, None] > query[None, :] + (offset - WINDOW), scores, float("-inf"))
    return scores


@tilewright.jit
def online_softmax(scores, maximum, total, AXIS: tl.constexpr, POWER: tl.constexpr):
    """A step of softmax over blocks of keys, which lie along `AXIS` of the scores; `POWER` is of their base.

    The maxima and sums of all blocks so far, what earlier sums are multiplied by, and the weights of this block.
    """
    new_maximum = tl.maximum(maximum, tl.max(scores, AXIS))
    # A query with no visible key so far keeps -inf; subtracting it from itself would give NaN.
    reference = tl.where(new_maximum == float("-inf"), 0.0, new_maximum)
    correction = POWER(maximum - reference)
    weights = POWER(scores - (tl.expand_dims(reference, AXIS) if len(scores.shape) > 1 else reference))
    return new_maximum, total * correction + tl.sum(weights, AXIS), correction, weights


@tilewright.jit
def natural_power(scores):
    """e to the scores.

    Of the least float32, which often hides keys, it is a number: in units of log 2 it would become minus infinity, and
    rows that see no key zeros instead of the mean of all values.
    """
    return binary_power(scores * LOG2_E)


@tilewright.jit
def binary_power(scores):
    """2 to the scores.

    Denormal powers, as masks of -100 leave, are zeros: added to a sum of at least 1 they are nothing, and each product
    with one takes many CPUs a hundred times as long.
    """
    return tl.where(scores < LEAST_EXPONENT, 0.0, tl.exp2(scores))
