"""Composite ops in terms of others: batch_norm, group_norm."""

from __future__ import annotations

from tilewright.dtypes import float32
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.rewrite import Rewriter, apply_rules
from tilewright.symbolic import floor_divide, product


def decompose(graph: Graph) -> Graph:
    """The graph without composite ops."""
    return apply_rules(graph, {"batch_norm": [_batch_norm], "group_norm": [_group_norm]})


def _per_channel(value: Value, rank: int, rewriter: Rewriter) -> Value:
    """[C] as [C, 1, …] so that it broadcasts along dimension 1 of `rank`."""
    return value if rank == 2 else rewriter.op("reshape", [value], shape=(*value.shape, *[1] * (rank - 2)))


def _batch_norm(node: Node, rewriter: Rewriter) -> Value | None:
    """x * s + (bias - mean * s) with s = scale / sqrt(variance + epsilon); s and the sum are constants."""
    inputs = [value for value in node.inputs if value is not None]
    given = inputs[0].dtype
    wide = float32 if given.is_float and given.bits < 32 else given  # what is wrong in s is wrong for a whole channel
    x, scale, bias, mean, variance = (rewriter.cast(value, wide) for value in inputs)
    epsilon = rewriter.number(node.attributes["epsilon"], wide)
    factor = rewriter.op("divide", [scale, rewriter.op("sqrt", [rewriter.op("add", [variance, epsilon])])])
    shift = rewriter.op("subtract", [bias, rewriter.op("multiply", [mean, factor])])
    scaled = rewriter.op("multiply", [x, _per_channel(factor, x.rank, rewriter)])
    return rewriter.cast(rewriter.op("add", [scaled, _per_channel(shift, x.rank, rewriter)]), given)


def _group_norm(node: Node, rewriter: Rewriter) -> Value | None:
    """Layer norm of each group's elements as one row."""
    x, scale, bias = (*node.inputs, None, None)[:3]
    assert x is not None
    groups = node.attributes["groups"]
    row = floor_divide(product(x.shape[1:]), groups)
    rows = rewriter.op("reshape", [x], shape=(x.shape[0], groups, row))
    result = rewriter.op("layer_norm", [rows], axis=2, epsilon=node.attributes["epsilon"])
    result = rewriter.op("reshape", [result], shape=x.shape)
    if scale is not None:
        result = rewriter.op("multiply", [result, _per_channel(scale, x.rank, rewriter)])
    return result if bias is None else rewriter.op("add", [result, _per_channel(bias, x.rank, rewriter)])
