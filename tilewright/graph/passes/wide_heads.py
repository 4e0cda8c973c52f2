"""Attention whose heads are too wide for one kernel, as two products and a softmax.

An attention kernel keeps queries, keys, values and sums of whole heads in registers and shared memory: of 1,024 float32
numbers a head no more than a few rows fit, and from 256 on registers spill. The scores cost little beside products of
that depth, so they are written down.
"""

from __future__ import annotations

import numpy as np

from tilewright.dtypes import int32
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.rewrite import Rewriter, apply_rules
from tilewright.symbolic import lift, product, simplify, upper_bound

_WIDE = 128  # numbers of a head; more are too wide
_LARGEST = 8 << 30  # bytes of scores


def separate_wide_heads(graph: Graph) -> Graph:
    """The graph with such attention of floats of 32 bits and more separated; the same graph when there is none."""
    return apply_rules(graph, {"attention": [_separated]})


def _separated(node: Node, rewriter: Rewriter) -> Value | None:
    query, key, values, bias = (*node.inputs, None)[:4]
    assert query is not None and key is not None and values is not None
    (batch, heads, rows, size), (groups, keys), dtype = query.shape, key.shape[1:3], query.dtype
    if max(upper_bound(size), upper_bound(values.shape[3])) <= _WIDE or dtype.itemsize < 4:
        return None
    if upper_bound(product([batch, heads, rows, keys])) * dtype.itemsize > _LARGEST:
        return None
    if len(node.inputs) > 4 or node.attributes["window"] or node.attributes["softcap"]:
        return None
    if node.attributes["causal"] and not isinstance(simplify(lift(keys) - rows), int):
        return None
    # Heads that share keys are rows of one product.
    together = simplify(lift(product([heads, rows])) // groups)
    query = rewriter.op("reshape", [query], shape=(batch, groups, together, size))
    scores = rewriter.op("matmul", [query, key], transpose_b=True)
    scores = rewriter.op("reshape", [scores], shape=(batch, heads, rows, keys))
    scores = rewriter.op("multiply", [scores, rewriter.number(node.attributes["scale"], dtype)])
    if bias is not None:
        scores = rewriter.op("add", [scores, bias])
    hidden = rewriter.number(-np.inf, dtype)
    if node.attributes["causal"]:
        first, second = (
            rewriter.op("iota", [], shape=shape, axis=axis, start=start, step=1, dtype=int32)
            for shape, axis, start in (((rows, 1), 0, simplify(lift(keys) - rows)), ((1, keys), 1, 0))
        )
        scores = rewriter.op("where", [rewriter.op("less_equal", [second, first]), scores, hidden])
    weights = rewriter.op("softmax", [scores], axis=3)
    if bias is not None or node.attributes["causal"]:  # a row that sees no key gives zeros
        most = rewriter.op("reduce_max", [scores], axes=(3,), keepdims=True)
        blind = rewriter.op("equal", [most, hidden])
        weights = rewriter.op("where", [blind, rewriter.number(0.0, dtype), weights])
    weights = rewriter.op("reshape", [weights], shape=(batch, groups, together, keys))
    result = rewriter.op("matmul", [weights, values], transpose_b=False)
    rewriter.remark(f"attention %{node.output.name}: heads of {size} numbers are two products and a softmax")
    return rewriter.op("reshape", [result], shape=node.output.shape)
