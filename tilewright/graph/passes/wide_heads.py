"""Attention whose heads are too wide for one kernel, as two products and a softmax.

An attention kernel keeps queries, keys, values and sums of whole heads in registers and shared memory: of 1,024 float32
numbers a head no more than a few rows fit, and from 256 on registers spill. The scores cost little next to products of
that depth, so they are written down: where no kernel has room for a head in any case, else where they are not many.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from tilewright.dtypes import float32, int32
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.kernel_facts import KernelFacts
from tilewright.graph.rewrite import GraphRewriter, apply_rules
from tilewright.symbolic import Size, lift, product, simplify, upper_bound


def separate_wide_heads(graph: Graph, kernels: KernelFacts) -> Graph:
    """The graph with attention of wide heads separated; the same graph when there is none.

    Heads of more bytes than the `widest_head` of a kernel are separated in any case; narrower ones of more numbers than
    a `register_head` where these have 32 bits and more and the scores take little
    memory.  Floats of 16 bits are multiplied as float32, so that scores are not rounded. Remarks name what was
    separated, and the bytes of its scores.
    """
    return apply_rules(graph, {"attention": [partial(_separated, kernels=kernels)]})


def _separated(node: Node, rewriter: GraphRewriter, kernels: KernelFacts) -> Value | None:
    query, key, values, bias = (*node.inputs, None)[:4]
    assert query is not None and key is not None and values is not None
    (batch, heads, rows, size), (groups, keys) = query.shape, key.shape[1:3]
    dtype = query.dtype if query.dtype.itemsize >= 4 else float32
    most = max(upper_bound(size), upper_bound(values.shape[3]))
    scores_bytes = upper_bound(product([batch, heads, rows, keys])) * dtype.itemsize
    separates = most > kernels.register_head and _is_cheap(node, scores_bytes, kernels)
    if most * query.dtype.itemsize <= kernels.widest_head and not separates:
        return None
    # Heads that share keys are rows of one product.
    together = simplify(lift(product([heads, rows])) // groups)
    query, key, values = (rewriter.cast(each, dtype) for each in (query, key, values))
    query = rewriter.op("reshape", [query], shape=(batch, groups, together, size))
    scores = rewriter.op("matmul", [query, key], transpose_b=True)
    scores = rewriter.op("reshape", [scores], shape=(batch, heads, rows, keys))
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
    if bias is not None or seen:  # a row that sees no key gives zeros
        largest = rewriter.op("reduce_max", [scores], axes=(3,), keepdims=True)
        blind = rewriter.op("equal", [largest, hidden])
        weights = rewriter.op("where", [blind, rewriter.number(0.0, dtype), weights])
    weights = rewriter.op("reshape", [weights], shape=(batch, groups, together, keys))
    result = rewriter.op("matmul", [weights, values], transpose_b=False)
    rewriter.remark(
        f"attention %{node.output.name}: heads of {most} numbers are two products and a softmax, whose scores take up "
        f"to {scores_bytes} bytes"
    )
    return rewriter.cast(rewriter.op("reshape", [result], shape=node.output.shape), node.output.dtype)


def _is_cheap(node: Node, scores_bytes: int, kernels: KernelFacts) -> bool:
    """Whether scores are worth writing down for attention that a kernel has room for, if slowly."""
    values = [*node.inputs[:3], node.output]
    operands = sum(upper_bound(product(each.shape)) * each.dtype.itemsize for each in values if each is not None)
    plain = len(node.inputs) <= 4 and not node.attributes["window"] and not node.attributes["softcap"]
    most = min(kernels.score_bytes, kernels.scores_for_operand * operands)
    return node.output.dtype.itemsize >= 4 and plain and scores_bytes <= most


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
