"""Attention whose heads are too wide for one kernel, as two products and a softmax.

An attention kernel keeps queries, keys, values and sums of whole heads in registers and shared memory: of 1,024 float32
numbers a head no more than a few rows fit, and from 256 on registers spill. The scores cost little next to products of
that depth, so they are written down: where no kernel has room for a head in any case, else where they are not many.
Scores are float32, weights have the type of the values.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from tilewright.dtypes import float16, float32, int32
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.kernel_facts import KernelFacts
from tilewright.graph.rewrite import GraphRewriter, apply_rules
from tilewright.symbolic import Size, lift, lower_bound, product, simplify, upper_bound

# Weights of float16 are stored times this: those below 2^-14 would have few digits.
_WEIGHT_FACTOR = 2.0**15
_BLOCK_ROWS = 16  # that a kernel computes even for one query
# A kernel that has room for heads of 16 bits takes no longer than three launches: up to so many multiply-adds,
# where no CTA walks so many keys.
_FEW_MULTIPLY_ADDS, _MANY_KEYS = 1 << 27, 512
_MOST_PARTS = 32  # each of which is three launches or more
_PART_ROWS = 128  # of whose multiples parts of the queries are
_WINDOWED_SHARE = 8  # keys for one that a window shows, up to which all scores are computed


def separate_wide_heads(graph: Graph, kernels: KernelFacts) -> Graph:
    """The graph with attention of wide heads separated; the same graph when there is none.

    Heads of more bytes than the `widest_head` of a kernel are separated in any case; narrower ones of more numbers than
    a `register_head`, or of 16-bit floats a `narrow_register_head`, where the scores take little memory. Remarks name
    what was separated, and the bytes of its scores.
    """
    return apply_rules(graph, {"attention": [partial(_separated, kernels=kernels)]})


def _separated(node: Node, rewriter: GraphRewriter, kernels: KernelFacts) -> Value | None:
    query, key, values, bias = (*node.inputs, None)[:4]
    assert query is not None and key is not None and values is not None
    (batch, heads, rows, size), (groups, keys) = query.shape, key.shape[1:3]
    dtype = query.dtype if query.dtype.itemsize >= 4 else float32
    most = max(upper_bound(size), upper_bound(values.shape[3]))
    scores_bytes = upper_bound(product([batch, heads, rows, keys])) * dtype.itemsize
    has_room = most * query.dtype.itemsize <= kernels.widest_head
    if has_room and not _is_cheap(node, most, kernels):
        return None
    if scores_bytes > kernels.score_bytes:
        parts = _in_parts(node, -(-scores_bytes // kernels.score_bytes), rewriter)
        if parts is not None or has_room:
            return parts
    # Heads that share keys are rows of one product.
    together = simplify(lift(product([heads, rows])) // groups)
    query = rewriter.op("reshape", [query], shape=(batch, groups, together, size))
    scores = _product(query, key, True, rewriter)
    scores = rewriter.op("reshape", [scores], shape=(batch, heads, rows, keys))
    weights = _weights(node, scores, bias, rewriter)
    factor = _WEIGHT_FACTOR if values.dtype == float16 else 1.0
    if factor != 1:
        weights = rewriter.op("multiply", [weights, rewriter.number(factor, dtype)])
    weights = rewriter.op("reshape", [rewriter.cast(weights, values.dtype)], shape=(batch, groups, together, keys))
    result = _product(weights, values, False, rewriter)
    if factor != 1:
        result = rewriter.op("multiply", [result, rewriter.number(1 / factor, dtype)])
    rewriter.remark(
        f"attention %{node.output.name}: heads of {most} numbers are two products and a softmax, whose scores take up "
        f"to {scores_bytes} bytes"
    )
    result = rewriter.cast(result, node.output.dtype)
    return rewriter.op("reshape", [result], shape=node.output.shape)


def _in_parts(node: Node, least: int, rewriter: GraphRewriter) -> Value | None:
    """The attention of equal parts of the batches, of the heads that share keys, or of the queries, of which there are
    `least` or a few more; None where sizes are not known.

    Parts are copied and joined, which is little next to their scores.
    """
    for axis, ends in enumerate(_divided(node, least)):
        if ends:
            # Copies come first: those that share a launch would make the parts wait for each other.
            parts = [_inputs_of_part(node, axis, span, rewriter) for span in zip((0, *ends), ends, strict=False)]
            made = [rewriter.op("attention", part, **node.attributes) for part in parts]
            rewriter.remark(f"attention %{node.output.name}: in {len(parts)} parts, whose scores share memory")
            return rewriter.op("concat", made, axis=axis)
    return None


def _divided(node: Node, least: int) -> list[list[int]]:
    """Where parts of the batches, of the heads that share keys and of the queries end; nothing where there are none."""
    key = node.inputs[1]
    assert key is not None
    found: list[list[int]] = []
    for extent in key.shape[:2]:
        counts = range(least, _MOST_PARTS + 1) if isinstance(extent, int) else ()
        count = next((count for count in counts if extent % count == 0), 0)
        found.append([extent // count * number for number in range(1, count + 1)] if isinstance(extent, int) else [])
    rows, keys = node.output.shape[2], key.shape[2]
    if not isinstance(rows, int) or not isinstance(keys, int) or keys < rows or least > _MOST_PARTS:
        return [*found, []]
    share = -(-rows // (least * _PART_ROWS)) * _PART_ROWS
    return [*found, [*range(share, rows, share), rows] if share < rows else []]


def _inputs_of_part(node: Node, axis: int, span: tuple[int, int], rewriter: GraphRewriter) -> list[Value | None]:
    """What the attention of a part along an axis of [batch, head, query, key] reads: of the heads that share keys of
    each group, and under a causal mask only the keys in front of the last query."""
    query, key, values, bias, lengths = (*node.inputs, None, None)[:5]
    assert query is not None and key is not None and values is not None
    start, stop = span
    if axis == 2:
        rows, keys = query.shape[2], key.shape[2]
        assert isinstance(rows, int) and isinstance(keys, int)
        seen = keys - rows + stop if node.attributes["causal"] else keys
        key, values = (_cut(each, 2, 0, seen, rewriter) for each in (key, values))
        bias = None if bias is None else _cut(_cut(bias, 3, 0, seen, rewriter), 2, start, stop, rewriter)
        found = [_cut(query, 2, start, stop, rewriter), key, values, bias, lengths]
    else:
        wide = query.shape[axis], key.shape[axis]
        assert isinstance(wide[0], int) and isinstance(wide[1], int)
        of_queries = (start * wide[0] // wide[1], stop * wide[0] // wide[1])
        lengths = None if lengths is None else lengths if axis else _cut(lengths, 3, start, stop, rewriter)
        bias = None if bias is None else _cut(bias, axis, *of_queries, rewriter)
        found = [_cut(query, axis, *of_queries, rewriter)]
        found += [*(_cut(each, axis, start, stop, rewriter) for each in (key, values)), bias, lengths]
    while found[-1] is None:
        found.pop()
    return found


def _cut(value: Value, axis: int, start: int, stop: int, rewriter: GraphRewriter) -> Value:
    """A part of what broadcasts to four axes along one of them."""
    place = axis + value.rank - 4
    if place < 0 or value.shape[place] in (1, stop - start):
        return value
    return rewriter.op("slice", [value], axis=place, start=start, stop=stop)


def _product(left: Value, right: Value, transposed: bool, rewriter: GraphRewriter) -> Value:
    """A product whose sums are not rounded to 16 bits."""
    dtype = float32 if left.dtype.bits == 16 else None
    return rewriter.op("matmul", [left, right], transpose_b=transposed, dtype=dtype)


def _weights(node: Node, scores: Value, bias: Value | None, rewriter: GraphRewriter) -> Value:
    """The softmax of what the queries see of scores [batch, heads, rows, keys]; a row that sees no key gives zeros."""
    dtype, (rows, keys) = scores.dtype, scores.shape[2:]
    scores = rewriter.op("multiply", [scores, rewriter.number(node.attributes["scale"], dtype)])
    cap = node.attributes["softcap"]
    if cap:
        scores = rewriter.op("tanh", [rewriter.op("divide", [scores, rewriter.number(cap, dtype)])])
        scores = rewriter.op("multiply", [scores, rewriter.number(cap, dtype)])
    if bias is not None:
        scores = rewriter.op("add", [scores, rewriter.cast(bias, dtype)])
    hidden = rewriter.number(-np.inf, dtype)
    seen = _seen(node, rewriter, rows, keys)
    for condition in seen:
        scores = rewriter.op("where", [condition, scores, hidden])
    weights = rewriter.op("softmax", [scores], axis=3)
    lengths = (*node.inputs, None, None)[4]
    if bias is None and lengths is None and (not seen or lower_bound(simplify(lift(keys) - rows)) >= 0):
        return weights
    largest = rewriter.op("reduce_max", [scores], axes=(3,), keepdims=True)
    blind = rewriter.op("equal", [largest, hidden])
    return rewriter.op("where", [blind, rewriter.number(0.0, dtype), weights])


def _is_cheap(node: Node, most: int, kernels: KernelFacts) -> bool:
    """Whether scores are worth writing down for attention that a kernel has room for, if slowly."""
    if len(node.inputs) > 4:
        return False
    if node.output.dtype.itemsize < 4:
        return most > kernels.narrow_register_head and _is_long(node, most)
    values = [*node.inputs[:3], node.output]
    key = node.inputs[1]
    assert key is not None
    scores_bytes = upper_bound(product([*node.output.shape[:3], key.shape[2]])) * node.output.dtype.itemsize
    operands = sum(upper_bound(product(each.shape)) * each.dtype.itemsize for each in values if each is not None)
    plain = not node.attributes["window"] and not node.attributes["softcap"]
    return most > kernels.register_head and plain and scores_bytes <= kernels.scores_for_operand * operands


def _is_long(node: Node, most: int) -> bool:
    """Whether one kernel takes longer than three for attention of 16-bit floats, most of whose scores are seen."""
    key, window = node.inputs[1], node.attributes["window"]
    assert key is not None
    rows, keys = max(_BLOCK_ROWS, upper_bound(node.output.shape[2])), upper_bound(key.shape[2])
    work = upper_bound(product(node.output.shape[:2])) * rows * keys * most
    return (keys >= _MANY_KEYS or work >= _FEW_MULTIPLY_ADDS) and (not window or keys <= _WINDOWED_SHARE * window)


def _seen(node: Node, rewriter: GraphRewriter, rows: Size, keys: Size) -> list[Value]:
    """Conditions that broadcast to [batch, heads, rows, keys], all of which hold where a query sees a key."""
    lengths = (*node.inputs, None, None)[4]
    causal, window = node.attributes["causal"], node.attributes["window"]
    if not causal and lengths is None:
        return []
    place = rewriter.op("iota", [], shape=(1, keys), axis=1, dtype=int32)
    found = []
    if causal:
        ahead = simplify(lift(keys) - rows)
        start = ahead if isinstance(ahead, int) else 0
        last = rewriter.op("iota", [], shape=(rows, 1), axis=0, start=start, dtype=int32)
        if not isinstance(ahead, int):
            last = rewriter.op("add", [last, rewriter.cast(rewriter.op("dimension", [], expression=ahead), int32)])
        found.append(rewriter.op("less_equal", [place, last]))
        if window:
            first = rewriter.op("subtract", [last, rewriter.number(window, int32)])
            found.append(rewriter.op("less", [first, place]))
    if lengths is not None:
        counts = rewriter.op("reshape", [lengths], shape=(lengths.shape[0], 1, 1, 1))
        found.append(rewriter.op("less", [place, counts]))
    return found
