"""Attention in all its standard forms, and rotary embedding; shared with the operations of ONNX Runtime."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tilewright.dtypes import DType, float32, int64
from tilewright.graph.core import Value
from tilewright.importers import images
from tilewright.importers.equal_sizes import must_be
from tilewright.importers.onnx_call import OnnxCall
from tilewright.importers.report import Invalid, Unsupported
from tilewright.importers.rules import RuleTable
from tilewright.symbolic import Size, lift, simplify

TABLE = RuleTable("Attention")
rule = TABLE.rule


@dataclass
class Scores:
    """How the scores of queries and keys become weights: scale, soft cap, then what is added to them.

    `causal`: key j is seen by query i when j <= i + T - S, as the graph's own attention does it.  `allowed` (boolean)
    and `bias` broadcast to [B, H, S, T].  `sink`, [1, H, 1, 1], is the score of one key more, which has no value.
    """

    scale: float
    softcap: float = 0.0
    causal: bool = False
    allowed: Value | None = None
    bias: Value | None = None
    sink: Value | None = None

    def allow(self, call: OnnxCall, condition: Value) -> None:
        """One more condition on the keys that a query sees."""
        self.allowed = condition if self.allowed is None else call.op("logical_and", self.allowed, condition)

    def additive(self, call: OnnxCall, dtype: DType) -> Value | None:
        """Conditions and bias as one tensor that is added to the scores."""
        hidden = None if self.allowed is None else call.additive_mask(self.allowed, dtype)
        if hidden is None or self.bias is None:
            return hidden if self.bias is None else call.cast(self.bias, dtype)
        return call.op("add", call.cast(self.bias, dtype), hidden)


def split_heads(call: OnnxCall, x: Value, heads: int, name: str) -> Value:
    """[B, S, H D] as [B, H, S, D]; raises `Invalid` when the number of heads, the attribute `name`, does not fit."""
    batch, length, width = x.shape
    if heads < 1 or (isinstance(width, int) and width % heads):
        raise Invalid(f"the attribute {name!r} is {heads}, which does not divide the width of {x!r}")
    split = call.reshape(x, (batch, length, heads, simplify(lift(width) // heads)))
    return call.permute(split, (0, 2, 1, 3))


def merge_heads(call: OnnxCall, x: Value) -> Value:
    """[B, H, S, D] as [B, S, H D]."""
    batch, heads, rows, width = x.shape
    return call.reshape(call.permute(x, (0, 2, 1, 3)), (batch, rows, simplify(lift(heads) * width)))


def default_scale(query: Value) -> float:
    """1 / sqrt(D); raises `Unsupported` for a width that is not a number."""
    width = query.shape[-1]
    if not isinstance(width, int) or width < 1:
        raise Unsupported(f"attention over heads of width {width}", "give `scale` explicitly")
    return width**-0.5


def attend(call: OnnxCall, query: Value, key: Value, value: Value, scores: Scores) -> Value:
    """Attention of [B, H, S, D], [B, G, T, D], [B, G, T, E]; a row that sees no key gives zeros."""
    if not scores.softcap and scores.sink is None:
        for width in (query.shape[-1], value.shape[-1]):
            if not isinstance(width, int):
                raise Unsupported(f"heads of the dynamic width {width}", "fix the last dimension of keys and values")
        if value.dtype != query.dtype:
            value = call.cast(value, query.dtype)
        bias = scores.additive(call, query.dtype)
        return call.op("attention", query, key, value, bias, scale=scores.scale, causal=scores.causal)
    weights = weigh(call, query, key, scores)[-1]
    return weighted_values(call, weights, value)


def weigh(call: OnnxCall, query: Value, key: Value, scores: Scores) -> tuple[Value, Value, Value, Value]:
    """The products of queries and keys, these after the soft cap, with the bias added, and their softmax.

    All [B, H, S, T], in float32 at least.
    """
    dtype = query.dtype if query.dtype.bits > 32 else float32
    heads, groups = query.shape[1], key.shape[1]
    if heads != groups:
        key = images.repeat(call, key, 1, simplify(lift(heads) // groups))
    scaled = call.op("multiply", call.cast(query, dtype), scores.scale)
    products = call.op("matmul", scaled, call.cast(key, dtype), transpose_b=True)
    capped = products
    if scores.softcap:
        capped = call.op("multiply", call.op("tanh", call.op("divide", products, scores.softcap)), scores.softcap)
    if scores.causal:
        scores = replace(scores, causal=False)
        rows, keys = products.shape[2:]
        scores.allow(call, seen(call, rows, keys, simplify(lift(keys) - rows)))
    bias = scores.additive(call, dtype)
    total = capped if bias is None else call.op("add", capped, bias)
    if scores.sink is not None:
        keys = total.shape[3]
        column = call.broadcast(call.cast(scores.sink, dtype), (*total.shape[:3], 1))
        every = call.op("softmax", call.op("concat", total, column, axis=3), axis=3)
        return products, capped, total, call.slice(every, 3, 0, keys)
    if bias is None:
        return products, capped, capped, call.op("softmax", capped, axis=3)
    hidden = call.op("equal", call.op("reduce_max", bias, axes=(bias.rank - 1,), keepdims=True), -math.inf)
    zero = call.builder.number(0.0, dtype)
    weights = call.op("softmax", call.op("where", hidden, zero, total), axis=3)
    return products, capped, total, call.op("where", hidden, zero, weights)


def weighted_values(call: OnnxCall, weights: Value, value: Value) -> Value:
    """Weights [B, H, S, T] times values [B, G, T, E], in the type of the values."""
    heads, groups = weights.shape[1], value.shape[1]
    repeated = value if heads == groups else images.repeat(call, value, 1, simplify(lift(heads) // groups))
    return call.cast(call.op("matmul", weights, call.cast(repeated, weights.dtype)), value.dtype)


def seen(call: OnnxCall, rows: Size, keys: Size, offset: Size | Value, left: int = -1, right: int = 0) -> Value:
    """Whether i + offset - left <= j <= i + offset + right: [S, T], or [B, 1, S, T] for offsets [B]; -1: no bound."""
    position = call.unsqueeze(call.iota(rows), 1)
    key = call.unsqueeze(call.iota(keys), 0)
    if isinstance(offset, Value):
        offset = call.reshape(call.cast(offset, int64), (-1, 1, 1, 1))
    if isinstance(offset, Value) or offset != 0:
        position = call.op("add", position, call.value(offset, int64))
    found: list[Value] = []
    if right >= 0:
        found.append(call.op("less_equal", key, call.op("add", position, right) if right else position))
    if left >= 0:
        found.append(call.op("greater_equal", key, call.op("subtract", position, left) if left else position))
    return found[0] if len(found) == 1 else call.op("logical_and", *found)


# The standard operations -----------------------------------------------------------------------------


def _heads(call: OnnxCall, x: Value, name: str) -> Value:
    """[B, S, H D] as [B, H, S, D], H the attribute `name`; rank 4 as it is."""
    call.require_rank(x, 3, 4)
    heads = call.attribute(name)
    if x.rank == 4:
        return x
    if not heads:
        raise Invalid(f"{x!r} has 3 dimensions, so that the attribute {name!r} must be there")
    return split_heads(call, x, heads, name)


def _mask(call: OnnxCall, mask: Value, keys: Size) -> Value:
    """The mask with all keys: those after its end are not seen."""
    call.require_rank(mask, 1, 4)
    extent = mask.shape[-1]
    if extent == keys:
        return mask
    if not (isinstance(extent, int) and isinstance(keys, int)):
        missing = simplify(lift(keys) - extent)
        hidden = call.full((*mask.shape[:-1], missing), False if mask.dtype.is_bool else -math.inf, mask.dtype)
        return call.op("concat", mask, hidden, axis=mask.rank - 1)
    if extent > keys:
        raise Invalid(f"the mask {mask!r} has more than the {keys} keys")
    pads = [(0, 0)] * (mask.rank - 1) + [(0, keys - extent)]
    return call.op("pad", mask, pads=pads, value=False if mask.dtype.is_bool else -math.inf)


def _scores(call: OnnxCall, query: Value, key: Value) -> Scores:
    """Scale, cap and masks of a standard Attention."""
    rows, keys = query.shape[2], key.shape[2]
    scale = call.attribute("scale")
    scores = Scores(default_scale(query) if scale is None else float(scale), float(call.attribute("softcap", 0.0)))
    offset: Size | Value = 0
    if call.has(4):
        offset = call[4].shape[2]
    elif call.has(6):
        lengths = call.reshape(call[6], (-1,))
        offset = call.op("subtract", lengths, call.value(rows, int64))
        scores.allow(call, call.op("less", call.iota(keys), call.reshape(lengths, (-1, 1, 1, 1))))
    if call.has(3):
        mask = _mask(call, call[3], keys)
        if mask.dtype.is_bool:
            scores.allow(call, mask)
        else:
            scores.bias = mask
    if call.attribute("is_causal", 0):
        if not isinstance(offset, Value) and simplify(lift(keys) - rows) == offset:
            scores.causal = True
        else:
            scores.allow(call, seen(call, rows, keys, offset))
    left, right = (int(call.attribute(f"{side}_window_size", -1)) for side in ("left", "right"))
    if left < -1 or right < -1:
        raise Invalid(f"the window reaches {left} to the left and {right} to the right; -1 is the least")
    if left >= 0 or right >= 0:
        scores.allow(call, seen(call, rows, keys, offset, left, right))
    return scores


@rule("Attention")
def attention(call: OnnxCall) -> tuple[Value | None, ...]:
    """Opset 23 and newer; new keys follow those of the past, of which a causal row sees all."""
    query = _heads(call, call[0], "q_num_heads")
    key, value = (_heads(call, call[index], "kv_num_heads") for index in (1, 2))
    if call.has(4) != call.has(5):
        raise Invalid("past keys and past values must be given together")
    if call.has(4):
        if call.has(6):
            raise Invalid("key lengths and past keys cannot be given together")
        key = call.op("concat", call[4], key, axis=2)
        value = call.op("concat", call[5], value, axis=2)
    scores = _scores(call, query, key)
    mode = call.attribute("qk_matmul_output_mode", 0)
    score_output: Value | None = None
    if call.outputs > 3:
        if not 0 <= mode <= 3:
            raise Invalid(f"the attribute 'qk_matmul_output_mode' is {mode}; it must be from 0 to 3")
        parts = weigh(call, query, key, scores)
        score_output = call.cast(parts[mode], query.dtype)
        result = weighted_values(call, parts[-1], value)
    else:
        result = attend(call, query, key, value, scores)
    if call[0].rank == 3:
        result = merge_heads(call, result)
    return call.cast(result, call[0].dtype), key, value, score_output


def rotate(call: OnnxCall, x: Value, cos: Value, sin: Value, interleaved: bool) -> Value:
    """The first elements of each head [B, S, H, D] turned by angles whose cosines and sines are [B, S, W/2].

    Pairs are the halves of the W elements, or neighbours (`interleaved`); the rest of each head stays.
    """
    half = cos.shape[-1]
    width = simplify(lift(half) * 2)
    cos, sin = (call.unsqueeze(table, 2) for table in (cos, sin))
    turned, rest = call.slice(x, 3, 0, width), call.slice(x, 3, width, x.shape[3])
    if interleaved:
        pairs = call.reshape(turned, (*turned.shape[:3], half, 2))
        first, second = call.select(pairs, 4, 0), call.select(pairs, 4, 1)
    else:
        first, second = call.slice(turned, 3, 0, half), call.slice(turned, 3, half, width)
    real = call.op("subtract", call.op("multiply", cos, first), call.op("multiply", sin, second))
    imaginary = call.op("add", call.op("multiply", sin, first), call.op("multiply", cos, second))
    if interleaved:
        neighbours = call.op("concat", call.unsqueeze(real, 4), call.unsqueeze(imaginary, 4), axis=4)
        joined = call.reshape(neighbours, turned.shape)
    else:
        joined = call.op("concat", real, imaginary, axis=3)
    return joined if width == x.shape[3] else call.op("concat", joined, rest, axis=3)


@rule("RotaryEmbedding")
def rotary_embedding(call: OnnxCall) -> Value:
    """Opset 23: rotates pairs (halves, or neighbours when interleaved) of each head by cos and sin."""
    source = call[0]
    x = call.transpose(_heads(call, source, "num_heads"), 1, 2)  # [B, S, H, D]
    width = call.attribute("rotary_embedding_dim", 0) or x.shape[3]
    if isinstance(width, int) and isinstance(x.shape[3], int) and (width % 2 or not 0 < width <= x.shape[3]):
        raise Invalid(f"{width} elements of each head are to be rotated; they must be an even part of {x.shape[3]}")
    cos, sin = call[1], call[2]
    for table in (cos, sin):
        call.require_rank(table, *((2, 2) if call.has(3) else (3, 3)))
    cos, sin = (must_be(call, table, (*table.shape[:-1], simplify(lift(width) // 2))) for table in (cos, sin))
    for table in (cos, sin):
        if table.shape[-1] != simplify(lift(width) // 2):
            raise Invalid(f"{table!r} has not one angle for each pair of the {width} elements that are rotated")
    if call.has(3):
        cos, sin = (call.op("gather", table, call[3], axis=0) for table in (cos, sin))
    joined = rotate(call, x, cos, sin, bool(call.attribute("interleaved", 0)))
    return call.reshape(joined, source.shape) if source.rank == 3 else call.transpose(joined, 1, 2)
