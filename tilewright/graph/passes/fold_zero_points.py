"""What zero points have in products of integers becomes part of the bias, so that nothing is subtracted from each sum.

    cast((sums - share) scale) + bias  ->  cast(sums scale + (bias - share scale))

for constants `share`, `scale` and `bias`.  Sums are int32 and become float32, which must have all sums that these
weights may give: below 2^24.  The rounding of `sums scale` and of the bias is then within a step of the sums each,
which is what one step of one activation makes for a weight of 1.  For GPUs, whose tensor cores wait for epilogues, or
share instruction slots with them.
"""

from __future__ import annotations

import numpy as np

from tilewright.dtypes import DType, float32, int8, int32, uint8
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.quantization import integer_range
from tilewright.graph.rewrite import GraphRewriter, apply_rules, computed_constant

_EXACT = 2**24  # float32 has all whole numbers up to it


def fold_zero_points(graph: Graph) -> Graph:
    """The graph with the constant share of zero points in sums added after scales, with the bias."""
    return apply_rules(graph, {"add": [_bias]})


def _bias(node: Node, rewriter: GraphRewriter) -> Value | None:
    for value, summand in (node.inputs, node.inputs[::-1]):
        bias = computed_constant(summand, rewriter)
        found = _shifted(value, rewriter) if bias is not None else None
        if found is None or bias is None:
            continue
        sums, share, scale, factor = found
        shift = bias.astype(np.float64) - share.astype(np.float64) * factor.astype(np.float64)
        if not np.isfinite(shift).all() or np.broadcast_shapes(shift.shape, factor.shape) != shift.shape:
            continue
        scaled = rewriter.op("multiply", [rewriter.cast(sums, float32), scale])
        result = rewriter.op("add", [scaled, rewriter.new_constant(shift.astype(np.float32), "bias")])
        if result.shape == node.output.shape:
            return rewriter.cast(result, node.output.dtype)
    return None


def _shifted(value: Value | None, rewriter: GraphRewriter) -> tuple[Value, np.ndarray, Value, np.ndarray] | None:
    """(sums, share, scale, the scale's numbers) of a value (sums - share) scale, which may be cast to 16 bits; None
    where it is something else, or also read by others."""
    cast = rewriter.producer(value, "cast")
    if cast is not None and cast.output.dtype.is_float and rewriter.uses(cast.output) == 1:
        value = cast.inputs[0]
    product = rewriter.producer(value, "multiply")
    if product is None or product.output.dtype != float32 or rewriter.uses(product.output) > 1:
        return None
    for wide, scale in (product.inputs, product.inputs[::-1]):
        widened = rewriter.producer(wide, "cast")
        less = rewriter.producer(widened.inputs[0], "subtract") if widened is not None else None
        if less is None or less.output.dtype != int32:
            continue
        sums, share = less.inputs
        numbers, factor = computed_constant(share, rewriter), _numbers(scale, rewriter)
        if sums is not None and scale is not None and numbers is not None and factor is not None:
            return (sums, numbers, scale, factor) if _in_float32(sums, numbers, rewriter) else None
    return None


def _in_float32(sums: Value, share: np.ndarray, rewriter: GraphRewriter) -> bool:
    """Whether float32 has every sum that a product of 8-bit integers may give, and every share."""
    product = rewriter.producer(sums, "matmul", "conv")
    if product is None or any(item is not None for item in product.inputs[2:]):
        return False
    x, weights = product.inputs[0], computed_constant(product.inputs[1], rewriter)
    if x is None or weights is None or x.dtype not in (int8, uint8):
        return False
    depth: tuple[int, ...] = tuple(range(1, weights.ndim))
    if product.op == "matmul":
        depth = (-1 if product.attributes["transpose_b"] else -2,)
    largest = max(_largest(weights, depth, x.dtype), int(np.abs(share.astype(np.int64)).max(initial=0)))
    return largest < _EXACT


def _largest(weights: np.ndarray, depth: tuple[int, ...], dtype: DType) -> int:
    """The largest magnitude of a sum over the axes `depth` of weights times integers of a type."""
    low, high = integer_range(dtype)
    above = np.maximum(weights, 0).sum(depth, dtype=np.int64)  # of each column, and what is below 0
    below = weights.sum(depth, dtype=np.int64) - above
    return int(np.maximum(high * above + low * below, -low * above - high * below).max(initial=0))


def _numbers(scale: Value | None, rewriter: GraphRewriter) -> np.ndarray | None:
    """The numbers of a scale that is known, or the product of two that are."""
    known = computed_constant(scale, rewriter)
    product = rewriter.producer(scale, "multiply")
    if known is None and product is not None:
        factors = [computed_constant(factor, rewriter) for factor in product.inputs]
        if factors[0] is not None and factors[1] is not None:
            return np.asarray(factors[0] * factors[1], np.float32)
    return known
