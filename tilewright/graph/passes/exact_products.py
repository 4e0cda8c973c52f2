"""Products of small integers in floating point, where every sum that can occur is a number of float32 or float64.

    matmul(x, w)                 int32   ->  cast(matmul(cast(x, float32), cast(w, float32)), int32)
    matmul(x, w)                 int32   ->  the same for parts of the depth, which are added as int32
    conv(cast(x), cast(w))       float64 ->  cast(conv in float32, float64)

Quantized models multiply integers of 8 bits less their zero points.  The sums are at most the largest number on the
left times the largest sum of a column on the right, which is known where the weights are constants, whatever the order
in which they are added; up to 2^24 float32 has every integer, up to 2^53 float64.  So the result is the same to the
last bit, from the kernels that are the fastest.
"""

from __future__ import annotations

from math import ceil

import numpy as np

from tilewright.dtypes import DType, float32, float64
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.rewrite import GraphRewriter, apply_rules

_EXACT = {float32: 1 << 24, float64: 1 << 53}  # up to which all integers are numbers of a type
_MOST_DEPTH_PARTS = 8  # of the depth; more take longer than one product in float64
_MOST_BOUND_STEPS = 12  # steps back from a value that are looked at
_KEEP = ("reshape", "permute", "slice", "broadcast_to", "gather", "cast")  # elements as they were


def exact_products(graph: Graph) -> Graph:
    """Integer products as products of floats, and convolutions of integers in float64 as such in float32."""
    return apply_rules(graph, {"matmul": [_product], "conv": [_convolution]})


def _product(node: Node, rewriter: GraphRewriter) -> Value | None:
    left, right = node.inputs
    assert left is not None and right is not None
    depth, dtype = left.shape[-1], node.output.dtype
    if node.attributes["dtype"] is not None:
        return None  # has kernels of its own
    if not dtype.is_integer or dtype.bits < 32 or not isinstance(depth, int) or depth == 0:
        return None
    most, columns = _largest(left, rewriter), _columns(node, depth, rewriter)
    if most is None or columns is None:
        return None
    for parts in range(1, _MOST_DEPTH_PARTS + 1):
        step = max(1, ceil(depth / parts))
        sums = [columns[start : start + step].sum(axis=0).max(initial=0) for start in range(0, depth, step)]
        if max(sums, default=0) * most <= _EXACT[float32]:
            return _in_parts(node, rewriter, depth, step)
    if columns.sum(axis=0).max(initial=0) * most <= _EXACT[float64]:
        return _multiplied(node, rewriter, left, right, float64)
    return None


def _in_parts(node: Node, rewriter: GraphRewriter, depth: int, step: int) -> Value | None:
    """The sum of the products of `step` of the depth each."""
    left, right = node.inputs
    assert left is not None and right is not None
    axis, total = right.rank - (1 if node.attributes["transpose_b"] else 2), None
    for start in range(0, depth, step):
        a, b = left, right
        if step < depth:
            stop = min(depth, start + step)
            a = rewriter.op("slice", [left], axis=left.rank - 1, start=start, stop=stop)
            b = rewriter.op("slice", [right], axis=axis, start=start, stop=stop)
        part = _multiplied(node, rewriter, a, b, float32)
        total = part if total is None else rewriter.op("add", [total, part])
    return total


def _multiplied(node: Node, rewriter: GraphRewriter, left: Value, right: Value, dtype: DType) -> Value:
    product = rewriter.op("matmul", [rewriter.cast(left, dtype), rewriter.cast(right, dtype)], **node.attributes)
    return rewriter.cast(product, node.output.dtype)


def _columns(node: Node, depth: int, rewriter: GraphRewriter) -> np.ndarray | None:
    """[depth, columns] in float64: how large the elements on the right are at most."""
    right = node.inputs[1]
    assert right is not None
    weights = rewriter.constant(right)
    if weights is None:
        most = _largest(right, rewriter)
        return None if most is None else np.full((depth, 1), most, np.float64)
    axis = weights.ndim - (1 if node.attributes["transpose_b"] else 2)
    return np.abs(np.moveaxis(weights, axis, 0).reshape(depth, -1).astype(np.float64))


def _convolution(node: Node, rewriter: GraphRewriter) -> Value | None:
    image, weight, bias = (*node.inputs, None)[:3]
    assert image is not None and weight is not None
    taps = rewriter.constant(weight)
    if node.output.dtype != float64 or bias is not None or taps is None or taps.size == 0 or not _whole(taps):
        return None
    most = _largest(image, rewriter)
    if most is None or np.abs(taps.reshape(len(taps), -1)).sum(axis=1).max() * most > _EXACT[float32]:
        return None
    narrow = [rewriter.cast(item, float32) for item in (image, weight)]
    return rewriter.cast(rewriter.op("conv", narrow, **node.attributes), float64)


def _whole(data: np.ndarray) -> bool:
    return data.dtype.kind in "iu" or bool((data == np.rint(data)).all())


def _largest(value: Value, rewriter: GraphRewriter) -> int | None:
    """The largest magnitude of the elements; None where they may be no integers, or where that is not known."""
    bounds = _bounds(value, rewriter, _MOST_BOUND_STEPS)
    return None if bounds is None else max(map(abs, bounds))


def _bounds(value: Value, rewriter: GraphRewriter, depth: int) -> tuple[int, int] | None:
    data, dtype, node = rewriter.constant(value), value.dtype, rewriter.producer(value)
    if data is not None and data.size and data.dtype.kind in "iuf":
        return (int(data.min()), int(data.max())) if _whole(data) else None
    if dtype.is_integer and dtype.bits <= 16:
        return _range(dtype)
    if node is None or depth == 0:
        return None
    if node.op in _KEEP or (node.op == "where" and node.inputs[0] is not None):
        sources = node.inputs[:1] if node.op in _KEEP else node.inputs[1:]
    elif node.op in ("subtract", "add", "concat"):
        sources = node.inputs
    else:
        return None
    found = [None if item is None else _bounds(item, rewriter, depth - 1) for item in sources]
    if any(pair is None for pair in found):
        return None
    lows, highs = zip(*(pair for pair in found if pair is not None), strict=True)
    if node.op == "subtract":
        low, high = lows[0] - highs[1], highs[0] - lows[1]
    elif node.op == "add":
        low, high = sum(lows), sum(highs)
    else:
        low, high = min(lows), max(highs)
    if dtype.is_integer and not _range(dtype)[0] <= low <= high <= _range(dtype)[1]:
        return None  # a sum that does not fit wraps
    return low, high


def _range(dtype: DType) -> tuple[int, int]:
    """The numbers of an integer type."""
    if not dtype.is_signed:
        return 0, (1 << dtype.bits) - 1
    return -(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1
