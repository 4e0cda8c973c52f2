"""Grouped products (experts), on arrays of a GPU."""

from __future__ import annotations

from typing import Any

from tilewright import dtypes
from tilewright.errors import LaunchError
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph
from tilewright.library.epilogue_parts import activated
from tilewright.library.matmul.problem import row_class
from tilewright.ops import arrays, calls
from tilewright.ops.arrays import ArrayView


def _check(a: ArrayView, b: ArrayView, ends: ArrayView, out: ArrayView) -> None:
    shapes = f"a {list(a.shape)}, b {list(b.shape)}, ends {list(ends.shape)}"
    if len(a.shape) != 2 or len(b.shape) != 3 or len(ends.shape) != 1:
        raise LaunchError(
            f"grouped_matmul takes a [rows, depth], b [groups, depth, columns], ends [groups]; got {shapes}"
        )
    if a.shape[1] != b.shape[1] or b.shape[0] != ends.shape[0] or not b.shape[0]:
        raise LaunchError(f"{shapes} do not fit each other: there is a group at least")
    if a.element not in arrays.FLOATS or b.element != a.element:
        raise LaunchError(
            f"a and b must both be float32, float16 or bfloat16, got {a.element.name} and {b.element.name}"
        )
    if ends.element not in (dtypes.int32, dtypes.int64):
        raise LaunchError(f"ends must be int32 or int64, got {ends.element.name}")
    if out.shape != (a.shape[0], b.shape[2]) or out.element not in arrays.FLOATS:
        raise LaunchError(f"out must be a float array of shape {[a.shape[0], b.shape[2]]}, got {list(out.shape)}")
    for name, found in (("a", a), ("ends", ends), ("out", out)):
        if not found.contiguous:
            raise LaunchError(f"{name} must be contiguous, got {found.described}")


def grouped_matmul(a: Any, b: Any, ends: Any, *, activation: str | None = None, out: Any = None) -> Any:
    """activation(a[rows of group g] @ b[g]) for every group: the experts of a layer.

    `a` is [rows, depth], `b` [groups, depth, columns] (weights given as ``w.mT`` of [groups, columns, depth] are
    fastest), all bfloat16, float16 or float32; `ends` [groups] int32 or int64, on the GPU: group g has the rows from
    the end of the one before it, or from 0, to ``ends[g]``.  Ends that are below one before them count as that, those
    beyond the rows as their number; rows after the last end are as if the product were zero.  Sums are float32 and in
    one order.  `out` is [rows, columns], contiguous; activations are those of `matmul`.

    The kernels are those of engines: 16-bit operands go to that of tensor copies where it is and they can be moved so,
    in a config that is chosen as that of `matmul` is.  Raises `LaunchError`.
    """
    activation = calls.checked_activation(activation)
    left, right, limits = arrays.view(a, "a"), arrays.view(b, "b"), arrays.view(ends, "ends")
    shape = (left.shape[0] if left.shape else 0, right.shape[-1] if right.shape else 0)
    target = arrays.view(arrays.empty(left, shape, left.element) if out is None else out, "out")
    _check(left, right, limits, target)
    place = arrays.common_place([left, right, limits, target], "grouped_matmul")
    if 0 in target.shape:
        return target.base
    given = {"a": left, "b": right, "ends": limits}
    groups, depth, columns = right.shape
    turned = right.changed((groups, columns, depth), (right.strides[0], right.strides[2], right.strides[1]))
    transposed = turned.contiguous

    def graph() -> Graph:
        g = GraphBuilder("grouped_matmul")
        rows = calls.strided_input(g, "a", left)
        matrices = calls.strided_input(g, "b", turned if transposed else right)
        y = g.op("grouped_matmul", [rows, matrices, g.input("ends", limits.element, limits.shape)],
                 transpose_b=transposed)  # fmt: skip
        y = activated(g, y, activation)
        g.output(y if y.dtype == target.element else g.op("cast", [y], dtype=target.element))
        return g.finish()

    kinds = (left.element, limits.element, target.element, activation, transposed)
    key = ("grouped_matmul", left.shape, right.shape, right.strides, kinds)
    alike = (left.element.name, target.element.name, row_class(left.shape[0]), *right.shape, activation, transposed)
    calls.prepared(key, alike, [*given.values(), target], place, graph).run(given, target)
    return target.base
