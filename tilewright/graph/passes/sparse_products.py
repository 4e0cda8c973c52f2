"""Products with constants of few numbers in each column on GPUs, as weighted sums of what these numbers choose.

    matmul(x, m)  ->  gather(x, first) first_weights + gather(x, second) second_weights

What has no weight is not read: infinities and NaNs stay where they are.  As elementwise operations both dimensions of
an image are one kernel, which reads and writes it as it lies.
"""

from __future__ import annotations

import numpy as np

from tilewright.dtypes import float32
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.rewrite import GraphRewriter, apply_rules
from tilewright.graph.taps import read_again

_MOST_CHOSEN = 4  # numbers of a column
_FEWEST_ROWS = 4  # for each of these: others are small rather than sparse
_MOST_NUMBERS = 1 << 22  # of a constant that is looked at


def sparse_products(graph: Graph) -> Graph:
    """The graph with such sums; the same graph when it has none."""
    return apply_rules(graph, {"matmul": [_weighted_sum]})


def _weighted_sum(node: Node, rewriter: GraphRewriter) -> Value | None:
    (x, factor), attributes = node.inputs, node.attributes
    data = rewriter.constant(factor)
    if x is None or data is None or data.ndim != 2 or data.size > _MOST_NUMBERS or not x.dtype.is_float:
        return None
    if attributes["transpose_a"] or attributes["dtype"] is not None or x.dtype.bits < 16:
        return None
    rows = data if attributes["transpose_b"] else data.T
    if rows.shape[0] == rows.shape[1] and np.array_equal(
        rows, np.eye(len(rows))
    ):  # interpolation between places that stay
        return x
    taps = _taps(rows)
    if taps is None:
        return None
    source, order = _unmoved(x, rewriter)
    rewriter.remark(f"the product %{node.output.name} has {len(taps)} numbers for each result, which are looked up")
    result = _sum_along(source, order[-1], taps, rewriter)
    return result if source is x else rewriter.op("permute", [result], order=order)


def _unmoved(x: Value, rewriter: GraphRewriter) -> tuple[Value, tuple[int, ...]]:
    """What a value is in another order of axes, and that order."""
    order = tuple(range(x.rank))
    while (moved := rewriter.producer(x, "permute")) is not None and moved.inputs[0] is not None:
        x, order = moved.inputs[0], tuple(moved.attributes["order"][axis] for axis in order)
    return x, order


def _sum_along(x: Value, axis: int, taps: list[tuple[np.ndarray, np.ndarray]], rewriter: GraphRewriter) -> Value:
    """Along an axis sums of elements at places, times weights."""
    wide = float32 if x.dtype.bits < 32 else x.dtype
    total: Value | None = None
    for places, weights in taps:
        seen = rewriter.op("gather", [x, rewriter.new_constant(places, "places")], axis=axis)
        column = weights.astype(wide.numpy).reshape(-1, *[1] * (x.rank - 1 - axis))
        part = rewriter.op("multiply", [rewriter.cast(seen, wide), rewriter.new_constant(column, "weights")])
        total = part if total is None else rewriter.op("add", [total, part])
    assert total is not None
    return rewriter.cast(total, x.dtype)


def _taps(rows: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]] | None:
    """The places of the numbers in each row that are not 0, and these numbers; None where a row has many, or none."""
    present = rows != 0
    counts = present.sum(1)
    most = int(counts.max(initial=0))
    if not 0 < most <= min(_MOST_CHOSEN, rows.shape[1] // _FEWEST_ROWS) or counts.min() == 0:
        return None
    places = np.argsort(~present, axis=1, kind="stable")[:, :most].astype(np.int64)
    places, weights = read_again(places.T, np.take_along_axis(rows, places, 1).T)
    return list(zip(places, weights, strict=True))
