"""Attention as ONNX Runtime's optimiser writes it: packed projections, masks of several forms, caches."""

from __future__ import annotations

import math

from tilewright.dtypes import float32, int64
from tilewright.graph.core import Value
from tilewright.importers import images
from tilewright.importers.equal_sizes import must_be
from tilewright.importers.onnx_call import OnnxCall
from tilewright.importers.onnx_ops.attention import (
    Scores,
    attend,
    default_scale,
    merge_heads,
    rotate,
    seen,
    split_heads,
    weigh,
)
from tilewright.importers.onnx_ops.quantized import centred
from tilewright.importers.report import Invalid, Unsupported
from tilewright.importers.rules import RuleTable
from tilewright.importers.scatter import scatter_elements
from tilewright.symbolic import Size, lift, maximum, simplify

TABLE = RuleTable("ONNX Runtime: attention", "com.microsoft::")
rule = TABLE.rule


def _heads_of_rows(call: OnnxCall, x: Value, heads: int, name: str = "num_heads") -> Value:
    call.require_rank(x, 3, 3)
    return split_heads(call, x, heads, name)


def _key_mask(call: OnnxCall, mask: Value, batch: Size, rows: Size, keys: Size) -> Value:
    """The keys that may be seen, as a boolean that broadcasts to [B, H, S, T].

    Masks are counts of keys [B], ends and starts [2 B], or numbers, 0 for hidden, [B, T], [B, S, T] or [B, 1, S, T].
    """
    if mask.rank == 1:
        line, column = call.iota(keys), (-1, 1, 1, 1)
        whole = call.cast(mask, int64)
        if mask.shape == (batch,):
            return call.op("less", line, call.reshape(whole, column))
        if mask.shape != (simplify(lift(batch) * 2),):
            raise Unsupported(f"a mask {mask!r} for {batch} sequences", "give one number for each key")
        ends, starts = call.slice(whole, 0, 0, batch), call.slice(whole, 0, batch, mask.shape[0])
        before = call.op("less", line, call.reshape(ends, column))
        return call.op("logical_and", before, call.op("greater_equal", line, call.reshape(starts, column)))
    visible = call.op("not_equal", mask, 0) if not mask.dtype.is_bool else mask
    if mask.rank == 2:
        return call.reshape(visible, (mask.shape[0], 1, 1, mask.shape[1]))
    if mask.rank == 3:
        return call.unsqueeze(visible, 1)
    if mask.rank == 4 and isinstance(mask.shape[2], int) and mask.shape[2:] != (rows, keys):
        past = simplify(lift(keys) - rows)  # a table for the longest sequence
        visible = call.slice(call.slice(visible, 2, past, keys), 3, 0, keys)
    return visible


def _scores(call: OnnxCall, query: Value, key: Value, mask_index: int, bias_index: int) -> Scores:
    """Scale, mask, bias and order as the operations of this file give them.

    Hidden keys get `mask_filter_value` added; below -1000 that is as good as not seeing them while others are seen.
    """
    rows, keys = query.shape[2], key.shape[2]
    scale = float(call.attribute("scale", 0.0)) or default_scale(query)
    scores = Scores(scale)
    hidden = float(call.attribute("mask_filter_value", -10000.0))
    if call.has(bias_index):
        scores.bias = call[bias_index]
    if call.attribute("unidirectional", 0):
        scores.causal = True
    if call.has(mask_index):
        visible = _key_mask(call, call[mask_index], query.shape[0], rows, keys)
        zero, low = (call.builder.number(number, query.dtype) for number in (0.0, max(hidden, _lowest(query))))
        added = call.op("where", visible, zero, low)
        scores.bias = added if scores.bias is None else call.op("add", scores.bias, added)
    return scores


def _lowest(x: Value) -> float:
    return -65504.0 if x.dtype.name == "float16" else -3.0e38


@rule("Attention")
def attention(call: OnnxCall) -> tuple[Value, Value | None]:
    """Projections of one input [B, S, width] to queries, keys and values, then attention; past and present [2, ..]."""
    if call.has(6):
        raise Unsupported("a shared cache in this operation", "export GroupQueryAttention")
    product = call.matmul(call[0], call[1])
    product = call.op("add", product, call[2]) if call.has(2) else product
    return _attention_of_projections(call, product, 3, 4, 5)


@rule("QAttention")
def quantized_attention(call: OnnxCall) -> tuple[Value, Value | None]:
    """As Attention; input and weight are integers, with scales (inputs 3 and 4) and zero points (6 and 7)."""
    product = call.matmul(centred(call, 0, 6), centred(call, 1, 7, [1, -1]))
    columns = call.reshape(call[4], () if call.count(4) == 1 else (-1,))
    scale = call.op("multiply", call.reshape(call[3], ()), columns)
    result = call.op("add", call.op("multiply", call.cast(product, scale.dtype), scale), call[2])
    return _attention_of_projections(call, result, 5, 8, len(call.inputs))


def _attention_of_projections(
    call: OnnxCall, product: Value, mask_index: int, past_index: int, bias_index: int
) -> tuple[Value, Value | None]:
    """Attention of queries, keys and values that lie next to each other [B, S, widths], with masks and caches."""
    heads = call.positive("num_heads")
    if call.attribute("do_rotary", 0) or call.attribute("past_present_share_buffer", 0):
        raise Unsupported("rotary positions or a shared cache in this operation", "export GroupQueryAttention")
    call.attribute("rotary_embedding_dim")
    total = product.shape[2]
    if not isinstance(total, int):
        raise Unsupported(f"projections of a dynamic width {total}", "fix the weight's size")
    widths = list(call.attribute("qkv_hidden_sizes") or [total // 3] * 3)
    if len(widths) != 3 or sum(widths) != total:
        raise Invalid(f"queries, keys and values of {widths} do not make up {total}")
    ends = [widths[0], widths[0] + widths[1], total]
    parts = [call.slice(product, 2, end - width, end) for end, width in zip(ends, widths, strict=True)]
    query, key, value = (_heads_of_rows(call, part, heads) for part in parts)
    present = None
    if call.has(past_index):
        past = call[past_index]
        key, value = (
            call.op("concat", call.select(past, 0, index), part, axis=2) for index, part in enumerate((key, value))
        )
    if call.outputs > 1:
        present = call.op("concat", call.unsqueeze(key, 0), call.unsqueeze(value, 0), axis=0)
    result = attend(call, query, key, value, _scores(call, query, key, mask_index, bias_index))
    return merge_heads(call, result), present


def _query_key_value(call: OnnxCall, heads: int) -> tuple[Value, Value, Value]:
    """[B, H, S, D] of each, from separate tensors, or packed ones."""
    query = call[0]
    if query.rank == 5:  # [B, S, H, 3, D]
        parts = [call.select(query, 3, index) for index in range(3)]
        return tuple(call.transpose(part, 1, 2) for part in parts)  # type: ignore[return-value]
    biases: list[Value | None] = [None, None, None]
    key, value = call.optional(1), call.optional(2)
    query_width = query.shape[2]
    if call.has(3):
        end = simplify(lift(query_width) * 2)
        bias = call[3]
        biases = [
            call.slice(bias, 0, 0, query_width),
            call.slice(bias, 0, query_width, end),
            call.slice(bias, 0, end, bias.shape[0]),
        ]
    if key is not None and key.rank == 5 and value is None:  # [B, T, H, 2, D]
        found = [call.transpose(call.select(key, 3, index), 1, 2) for index in range(2)]
    elif key is None or value is None:
        raise Invalid("keys and values are missing")
    else:
        found = []
        for part, bias_part in ((key, biases[1]), (value, biases[2])):
            if part.rank == 4:  # [B, H, T, D]
                found.append(part)
                continue
            part = part if bias_part is None else call.op("add", part, bias_part)
            found.append(_heads_of_rows(call, part, heads))
    query = query if biases[0] is None else call.op("add", query, biases[0])
    return _heads_of_rows(call, query, heads), found[0], found[1]


@rule("MultiHeadAttention")
def multi_head_attention(call: OnnxCall) -> tuple[Value | None, ...]:
    """Queries [B, S, H D], keys and values alike or packed, a bias, a mask of keys, what is added to scores, a past."""
    heads = call.positive("num_heads")
    if call.has(8) or call.has(9):
        raise Unsupported("a shared cache in this operation", "give past keys and values of the past's own length")
    query, key, value = _query_key_value(call, heads)
    if call.has(6):
        key, value = (call.op("concat", call[index], part, axis=2) for index, part in ((6, key), (7, value)))
    scores = _scores(call, query, key, 4, 5)
    result = merge_heads(call, attend(call, query, key, value, scores))
    weights = weigh(call, query, key, scores)[0] if call.outputs > 3 else None
    return result, key, value, weights


@rule("RotaryEmbedding")
def rotary_embedding(call: OnnxCall) -> Value:
    """Inputs: x [B, S, H D] or [B, H, S, D], positions [B, S] or the first one, tables of cosines and sines."""
    x, places, cos, sin = call[0], call.cast(call[1], int64), call[2], call[3]
    call.require_rank(x, 3, 4)
    heads, width = call.attribute("num_heads", 0), call.attribute("rotary_embedding_dim", 0)
    if call.attribute("is_packed_batching", 0) or float(call.attribute("scale", 1.0)) != 1.0:
        raise Unsupported("packed batches or a scale of positions", "give positions for each sequence")
    if x.rank == 4:
        split = call.transpose(x, 1, 2)
    else:
        size = simplify(lift(cos.shape[1]) * 2)
        if width and not heads:
            raise Invalid("rotary_embedding_dim needs num_heads")
        size = simplify(lift(x.shape[2]) // heads) if heads else size
        split = call.reshape(x, (x.shape[0], x.shape[1], simplify(lift(x.shape[2]) // size), size))
    if places.rank < 2:
        line = call.op("add", call.reshape(places, (1, 1)), call.unsqueeze(call.iota(split.shape[1]), 0))
        places = call.broadcast(line, split.shape[:2])
    tables = [call.cast(call.op("gather", table, places, axis=0), x.dtype) for table in (cos, sin)]
    turned = rotate(call, split, tables[0], tables[1], bool(call.attribute("interleaved", 0)))
    return call.transpose(turned, 1, 2) if x.rank == 4 else call.reshape(turned, x.shape)


@rule("GroupQueryAttention")
def group_query_attention(call: OnnxCall) -> tuple[Value | None, ...]:
    """Attention of grouped heads over a cache [B, G, P, D] that new keys enter at each sequence's own end.

    Input 5 has the number of valid keys of each sequence less one, input 6 the largest of these numbers.
    """
    heads, groups = call.positive("num_heads"), call.positive("kv_num_heads")
    if heads % groups:
        raise Invalid(f"{groups} heads of keys do not divide {heads} heads")
    _refuse_group_extras(call)
    query, key, value = _grouped_parts(call, heads, groups)
    batch, _, rows, width = query.shape
    total = call.lengths(6, "keys")
    if len(total) != 1:
        raise Invalid(f"the total length is {list(map(str, total))}; it must be one number")
    counts = call.op("add", call.reshape(call.cast(call[5], int64), (-1,)), 1)
    past = call[3].shape[2] if call.has(3) else 0
    # A first prompt begins at 0, whatever is valid of it.
    begin = call.op("subtract", counts, call.value(rows, int64))
    first = call.op("equal", call.value(total[0], int64), call.value(rows, int64))
    begin = call.op("where", first, call.builder.number(0, int64), begin)
    places = call.op("add", call.unsqueeze(begin, 1), call.unsqueeze(call.iota(rows), 0))  # [B, S]
    query, key = _turned(call, query, key, call.cast(call[9], int64) if call.has(9) else places, 7)
    keys = maximum(past, total[0])
    stored = []
    for index, item in ((3, key), (4, value)):
        cache = call[index] if call.has(index) else None
        more = simplify(lift(keys) - past)
        empty = call.full((batch, groups, more, item.shape[3]), 0.0, item.dtype)
        room = empty
        if cache is not None and past != 0:  # of which what follows the sequence becomes 0, as in ONNX Runtime
            room = call.op("concat", cache, empty, axis=2) if more != 0 else cache
            before = call.op("less", call.reshape(call.iota(keys), (1, 1, -1, 1)), call.reshape(begin, (-1, 1, 1, 1)))
            room = call.op("where", before, room, call.builder.number(0.0, room.dtype))
        stored.append(_entered(call, room, places, item))
    scale = float(call.attribute("scale", 0.0)) or (width**-0.5 if isinstance(width, int) else default_scale(query))
    scores = Scores(scale, float(call.attribute("softcap", 0.0)))
    scores.allow(call, seen(call, rows, keys, begin, *_window(call)))
    if call.has(10):
        scores.bias = _bias_of_all_keys(call, call[10], keys)
    smooth = call.attribute("smooth_softmax", 0) == 1
    if call.has(11):
        scores.sink = call.reshape(call[11], (1, heads, 1, 1))
    elif smooth:
        scores.sink = call.reshape(call.builder.number(0.0, query.dtype), (1, 1, 1, 1))
    result = attend(call, query, stored[0], stored[1], scores)
    return merge_heads(call, result), stored[0], stored[1]


def _turned(call: OnnxCall, query: Value, key: Value, places: Value, index: int) -> tuple[Value, Value]:
    """Queries and keys [B, H, S, D], turned by tables at places [B, S] where the node says so."""
    interleaved = bool(call.attribute("rotary_interleaved", 0))
    if not call.attribute("do_rotary", 0):
        return query, key
    tables = [call.cast(call.op("gather", call[at], places, axis=0), query.dtype) for at in (index, index + 1)]
    query, key = (
        call.transpose(rotate(call, call.transpose(item, 1, 2), tables[0], tables[1], interleaved), 1, 2)
        for item in (query, key)
    )
    return query, key


def _entered(call: OnnxCall, cache: Value, places: Value, item: Value) -> Value:
    """A cache [B, G, P, D] with new rows [B, G, S, D] at places [B, S] or [1, S]."""
    at = call.reshape(places, (places.shape[0], 1, places.shape[1], 1))
    return scatter_elements(call, cache, call.broadcast(at, item.shape), item, 2)


def _window(call: OnnxCall) -> tuple[int, int]:
    """How far a query sees to the left; `local_window_size` counts its own key too."""
    size = int(call.attribute("local_window_size", -1))
    return (size - 1 if size > 0 else -1), 0


def _bias_of_all_keys(call: OnnxCall, bias: Value, keys: Size) -> Value:
    missing = simplify(lift(keys) - bias.shape[3])
    if missing == 0:
        return bias
    rest = call.full((*bias.shape[:3], missing), -math.inf, bias.dtype)
    return call.op("concat", bias, rest, axis=3)


def _refuse_group_extras(call: OnnxCall) -> None:
    """Raise `Unsupported` for forms of GroupQueryAttention that have no rule."""
    for name in ("kv_cache_bit_width", "qk_output"):
        if call.attribute(name, 0) > 0:
            raise Unsupported(f"the attribute {name!r}", "export without it")
    for name in ("k_quant_type", "v_quant_type"):
        if call.attribute(name, "NONE") != "NONE":
            raise Unsupported(f"the attribute {name!r}", "export a cache of floats")
    if call.has(12) or call.has(13):
        raise Unsupported("scales of the cache", "export a cache of floats")


def _grouped_parts(call: OnnxCall, heads: int, groups: int) -> tuple[Value, Value, Value]:
    query = call[0]
    if call.has(1):
        parts: list[Value] = []
        for x, count, name in ((query, heads, ""), (call[1], groups, "kv_"), (call[2], groups, "kv_")):
            if parts and isinstance(width := parts[0].shape[3], int):  # all heads have the width of the queries'
                x = must_be(call, x, (*x.shape[:2], count * width))
            parts.append(_heads_of_rows(call, x, count, f"{name}num_heads"))
        return parts[0], parts[1], parts[2]
    every = _heads_of_rows(call, query, heads + 2 * groups)  # packed along the heads
    ends = (heads, heads + groups, heads + 2 * groups)
    return (
        call.slice(every, 1, 0, ends[0]),
        call.slice(every, 1, ends[0], ends[1]),
        call.slice(every, 1, ends[1], ends[2]),
    )


# Caches of a fixed length ------------------------------------------------------------------------------


@rule("SparseAttention")
def attention_of_blocks(call: OnnxCall) -> tuple[Value, Value, Value]:
    """As GroupQueryAttention, over caches [B, G, P, D] that keep their length; heads see blocks of keys.

    Input 7 has the largest number of valid keys, input 8 that of each sequence; inputs 5 and 6 have for each layout
    where the blocks of each row of blocks begin, and their columns.
    """
    heads, groups = call.positive("num_heads"), call.positive("kv_num_heads")
    query, key, value = _grouped_parts(call, heads, groups)
    rows, keys = query.shape[2], call[3].shape[2]
    begin = call.op("subtract", call.reshape(call.cast(call[8], int64), (-1,)), call.value(rows, int64))
    first = call.op("equal", call.reshape(call.cast(call[7], int64), ()), call.value(rows, int64))
    begin = call.op("where", first, call.builder.number(0, int64), begin)
    places = call.op("add", call.unsqueeze(begin, 1), call.unsqueeze(call.iota(rows), 0))  # [B, S]
    query, key = _turned(call, query, key, places, 9)
    keys_stored, values_stored = (_entered(call, call[at], places, item) for at, item in ((3, key), (4, value)))
    scores = Scores(float(call.attribute("scale", 0.0)) or default_scale(query))
    scores.allow(call, seen(call, rows, keys, begin))
    scores.allow(call, _blocks_seen(call, places, heads, keys))
    result = attend(call, query, keys_stored, values_stored, scores)
    return merge_heads(call, result), keys_stored, values_stored


def _blocks_seen(call: OnnxCall, places: Value, heads: int, keys: Size) -> Value:
    """Whether queries at places [B, S] see keys by the layout of each head: [B, H, S, T]."""
    size, begins, columns = call.positive("sparse_block_size"), call.cast(call[5], int64), call.cast(call[6], int64)
    layouts, count = begins.shape[0], simplify(lift(begins.shape[1]) - 1)
    if not isinstance(layouts, int) or heads % layouts:
        raise Invalid(f"{layouts} layouts of blocks for {heads} heads")
    line = call.reshape(call.iota(columns.shape[1]), (1, 1, -1))
    after = call.op("greater_equal", line, call.unsqueeze(call.slice(begins, 1, 0, count), 2))
    before = call.op("less", line, call.unsqueeze(call.slice(begins, 1, 1, begins.shape[1]), 2))
    owned = call.cast(call.op("logical_and", after, before), float32)  # [L, R, N]
    hits = call.op("equal", call.unsqueeze(columns, 2), call.reshape(call.iota(count), (1, 1, -1)))
    blocks = call.op("greater", call.op("matmul", owned, call.cast(hits, float32)), 0.0)  # [L, R, C]
    row = call.op("minimum", call.op("floor_divide", places, size), call.value(simplify(lift(count) - 1), int64))
    column = call.op(
        "minimum", call.op("floor_divide", call.iota(keys), size), call.value(simplify(lift(count) - 1), int64)
    )
    visible = call.op("gather", call.op("gather", blocks, row, axis=1), column, axis=3)  # [L, B, S, T]
    return images.tile(call, call.transpose(visible, 0, 1), (1, heads // layouts, 1, 1))


@rule("DecoderMaskedMultiHeadAttention")
def attention_of_one_query(call: OnnxCall) -> tuple[Value | None, ...]:
    """MultiHeadAttention of one query for each sequence, over given keys and values [B, H, T, D], or over a cache
    [B, H, P, D] of a fixed length, which gets one more row at the place in input 7."""
    heads = call.positive("num_heads")
    if call.has(9):
        raise Unsupported("a cache of several beams", "reorder the cache between the calls")
    query, *given = _with_own_bias(call, heads)
    presents: list[Value | None] = [None, None]
    if call.has(5):
        if not call.attribute("past_present_share_buffer", 0):
            raise Invalid("a past needs past_present_share_buffer=1, as in ONNX Runtime")
        (past,) = call.lengths(7, "past")
        place = call.reshape(call.value(past, int64), (1, 1))
        stored = [_entered(call, call[at], place, item) for at, item in zip((5, 6), given, strict=True)]
        presents, total = list(stored), simplify(lift(past) + 1)
        given = [call.slice(item, 2, 0, total) for item in stored]
    key, value = given
    scores = _scores(call, query, key, 3, 4)
    result = merge_heads(call, attend(call, query, key, value, scores))
    weights = weigh(call, query, key, scores)[2] if call.attribute("output_qk", 0) else None
    return result, *presents, weights


def _with_own_bias(call: OnnxCall, heads: int) -> list[Value]:
    """Queries, keys and values [B, H, 1 or T, D], after a bias; keys and values of four dimensions are as they are."""
    if not call.has(1):
        raise Unsupported("queries, keys and values in one tensor", "give them as three")
    found = []
    for place in range(3):
        part = call[place]
        if part.rank == 3:
            width = part.shape[2]
            if call.has(10):
                begin = simplify(lift(call[0].shape[2]) * place)
                part = call.op("add", part, call.slice(call[10], 0, begin, simplify(lift(begin) + width)))
            part = _heads_of_rows(call, part, heads)
        found.append(part)
    return found
