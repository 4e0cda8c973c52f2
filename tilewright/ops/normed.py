"""Products of normalised rows on arrays of a GPU: in one kernel for few rows, where Hopper's multiplies."""

from __future__ import annotations

from typing import Any

from tilewright.dtypes import bfloat16
from tilewright.errors import LaunchError
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph
from tilewright.library.matmul.problem import row_class
from tilewright.ops import arrays, calls


def rms_norm_matmul(x: Any, b: Any, *, epsilon: float = 1e-6, out: Any = None) -> Any:
    """(x / sqrt(mean(x^2) + epsilon)) @ b, the mean over the last axis.

    `x` is [rows, depth] and `b` [depth, columns] (weights given as ``w.T`` of [columns, depth] are fastest), contiguous
    in either order, both float32, float16 or bfloat16.  A norm's own scale belongs into the weights: ``w * scale``.
    Up to 8 rows of bfloat16 are one kernel on compute capability 9.0, which has the sums of squares from the tensor
    cores; others are a norm and a product.  Sums are float32.  Raises `LaunchError`.
    """
    rows, matrix = arrays.view(x, "x"), arrays.view(b, "b")
    shapes = f"x {list(rows.shape)}, b {list(matrix.shape)}"
    if len(rows.shape) != 2 or len(matrix.shape) != 2 or rows.shape[1] != matrix.shape[0] or not rows.shape[1]:
        raise LaunchError(f"rms_norm_matmul takes x [rows, depth] and b [depth, columns], got {shapes}")
    if rows.element not in arrays.FLOATS or matrix.element != rows.element:
        kinds = f"{rows.element.name} and {matrix.element.name}"
        raise LaunchError(f"x and b must both be float32, float16 or bfloat16, got {kinds}")
    turned = matrix.changed(matrix.shape[::-1], matrix.strides[::-1])
    if not rows.contiguous or not (matrix.contiguous or turned.contiguous):
        raise LaunchError(f"x and b must be contiguous, b in either order, got {rows.described}, {matrix.described}")
    transposed = turned.contiguous
    target = calls.result_like(rows, (rows.shape[0], matrix.shape[1]), rows.element, out)
    place = arrays.common_place([rows, matrix, target], "rms_norm_matmul")
    if 0 in target.shape:
        return target.base

    def graph() -> Graph:
        g = GraphBuilder("rms_norm_matmul")
        given = g.input("x", rows.element, rows.shape)
        weights = g.input("b", matrix.element, turned.shape if transposed else matrix.shape)
        normed = g.op("rms_norm", [given], axis=1, epsilon=epsilon)
        g.output(g.op("matmul", [normed, weights], transpose_b=transposed))
        return g.finish()

    key = ("rms_norm_matmul", rows.element, rows.shape, matrix.shape, transposed, epsilon)
    most = arrays.target_at(None if place is None else place.ordinal).kernels.normed_rows
    few = rows.element == bfloat16 and rows.shape[0] <= most
    alike = (rows.element.name, row_class(rows.shape[0]), matrix.shape, transposed)
    groups = calls.one_group if few else None
    calls.prepared(key, alike, [rows, matrix, target], place, graph, groups).run({"x": rows, "b": matrix}, target)
    return target.base
