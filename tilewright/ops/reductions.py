"""Sums, means, maxima and minima along axes, on arrays of a GPU."""

from __future__ import annotations

import math
from typing import Any

from tilewright.dtypes import float32
from tilewright.errors import LaunchError, brief
from tilewright.library.reduce.simt_arrays import INITIAL, array_launches
from tilewright.ops import arrays
from tilewright.ops.arrays import ArrayView


def reduce(x: Any, kind: str = "sum", *, axis: int = -1, out: Any = None, out_dtype: Any = None) -> Any:
    """The sum, mean, max or min of `x` (contiguous; float32, float16, bfloat16) along an axis, which disappears.

    Computed in float32, in an order that does not vary from run to run; maxima and minima keep NaN.  The result is of
    the type of `x` unless `out` or `out_dtype` says otherwise.  Raises `LaunchError`.
    """
    source = arrays.view(x, "x")
    if source.element not in arrays.FLOATS or not source.contiguous:
        raise LaunchError(f"reduce takes contiguous float32, float16 or bfloat16, got {source.element.name}")
    if kind not in INITIAL:
        raise LaunchError(f"kind={brief(kind)}: there are {', '.join(INITIAL)}")
    rank = len(source.shape)
    if not isinstance(axis, int):
        raise LaunchError(
            f"axis is one whole number, not {brief(axis)}: reduce several axes one after the other, or reshape"
        )
    if not -rank <= axis < rank:
        raise LaunchError(f"axis {axis} of an array with {rank} axes")
    axis %= rank
    shape = source.shape[:axis] + source.shape[axis + 1 :]
    element = source.element if out_dtype is None else arrays.element_type(out_dtype)
    target = arrays.view(arrays.empty(source, shape, element) if out is None else out, "out")
    if target.shape != shape or not target.contiguous:
        raise LaunchError(f"out must be contiguous of the shape {list(shape)}")
    arrays.common_place([source, target], "reduce")
    outer, length, inner = math.prod(source.shape[:axis]), source.shape[axis], math.prod(source.shape[axis + 1 :])
    if length == 0:
        raise LaunchError("there is nothing along the axis")
    if outer * inner:
        _launch(source, target.base, (outer, length, inner), kind)
    return target.base


def _launch(source: ArrayView, out: Any, shape: tuple[int, int, int], kind: str) -> None:
    """Reduce an array, seen as [outer, length, inner], over its middle axis."""
    target = arrays.target_at(None if source.place is None else source.place.ordinal)
    overlap = source.place is not None and target.dependent_launch
    *before, last = array_launches(source.element, shape, kind, overlap, target.machine())
    x = source.base
    for each in before:
        partial = arrays.empty(source, (each.results,), float32)
        each.kernel[each.grid](x, partial, *each.sizes, 1.0, **each.options)
        x = partial
    factor = 1.0 / shape[1] if kind == "mean" else 1.0
    last.kernel[last.grid](x, out, *last.sizes, factor, **last.options)
