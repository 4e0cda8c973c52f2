"""Sums, means, maxima and minima along axes, on arrays of a GPU."""

from __future__ import annotations

import math
from typing import Any

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.errors import LaunchError
from tilewright.frontend.sizes import cdiv, next_power_of_2
from tilewright.kernels import gpu_rows
from tilewright.ops import arrays
from tilewright.ops.arrays import View
from tilewright.ops.rows import block_of, warps_for
from tilewright.runtime.cuda.device import device

_INITIAL = {"sum": 0.0, "mean": 0.0, "max": float("-inf"), "min": float("inf")}
_CTAS = 132 * 3  # of reductions over rows, each with 16 KiB on their way
_WARPS = 4  # of each
_VECTORS = 8  # of 16 bytes that a thread has on their way


def reduce(x: Any, kind: str = "sum", *, axis: int = -1, out: Any = None, out_dtype: Any = None) -> Any:
    """The sum, mean, max or min of `x` (contiguous; float32, float16, bfloat16) along an axis, which disappears.

    Computed in float32, in an order that does not vary from run to run; maxima and minima keep NaN.  The result is of
    the type of `x` unless `out` or `out_dtype` says otherwise.  Raises `LaunchError`.
    """
    source = arrays.view(x, "x")
    if source.element not in arrays.FLOATS or not source.contiguous:
        raise LaunchError(f"reduce takes contiguous float32, float16 or bfloat16, got {source.element.name}")
    if kind not in _INITIAL:
        raise LaunchError(f"kind={kind!r}: there are {', '.join(_INITIAL)}")
    rank = len(source.shape)
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
        factor = 1.0 / length if kind == "mean" else 1.0
        if inner == 1:
            _reduce_rows(source, target.base, outer, length, factor, kind)
        else:
            _reduce_columns(source, target.base, outer, length, inner, factor, kind)
    return target.base


def _reduce_rows(source: View, out: Any, rows: int, columns: int, factor: float, kind: str) -> None:
    """Along the last axis.  Few long rows are cut in pieces, whose results are reduced again."""
    pieces = 1
    while rows * pieces < 132 and columns % (2 * pieces) == 0 and columns // pieces >= 8192:
        pieces *= 2
    if pieces > 1:
        partial = arrays.empty(source, (rows * pieces,), dtypes.float32)
        _launch_rows(source.base, partial, rows * pieces, columns // pieces, 1.0, kind)
        _launch_rows(partial, out, rows, pieces, factor, kind)
        return
    _launch_rows(source.base, out, rows, columns, factor, kind)


def _launch_rows(x: Any, out: Any, rows: int, columns: int, factor: float, kind: str) -> None:
    """8192 elements to a CTA of 16 warps, which was fastest on an H200 at all lengths; less where rows are few."""
    block = block_of(cdiv(columns, cdiv(columns, 8192)))
    together = 1
    while 2 * together * block <= 8192 and rows >= 2 * together * 4 * 132:
        together *= 2
    mask = rows % together != 0 or columns % block != 0
    gpu_rows.reduce_rows[(cdiv(rows, together),)](
        x, out, rows, columns, factor, KIND="sum" if kind == "mean" else kind, INITIAL=_INITIAL[kind], ROWS=together,
        BLOCK=block, WHOLE=columns <= block, MASK=mask, num_warps=warps_for(together * block, 512),
    )  # fmt: skip


def _reduce_columns(source: View, out: Any, outer: int, length: int, inner: int, factor: float, kind: str) -> None:
    """Along another axis: strips of 128 columns, in as many pieces of their rows as processors take at once."""
    block = min(128, max(16, next_power_of_2(inner)))
    strips = cdiv(inner, block)
    rows = _lines(source.element, block) * _VECTORS
    pieces = max(1, min(_CTAS // (strips * outer), length // (2 * rows)))
    if pieces == 1:
        _launch_columns(source.base, source.element, out, length, inner, factor, kind, block, (strips, 1, outer), 0)
        return
    partial = arrays.empty(source, (outer, pieces, inner), dtypes.float32)
    first, second = (1, 2) if source.place is not None and device(source.place.ordinal).capability >= (9, 0) else (0, 0)
    grid = (strips, pieces, outer)
    _launch_columns(source.base, source.element, partial, length, inner, 1.0, kind, block, grid, first)
    # Few columns and many rows at once: what is left is small, and should not take long because few work on it.
    block = min(32, block)
    grid = (cdiv(inner, block), 1, outer)
    _launch_columns(partial, dtypes.float32, out, pieces, inner, factor, kind, block, grid, second)


def _lines(element: DType, block: int) -> int:
    """Rows of a block of which every thread has one vector of 16 bytes."""
    return max(1, 32 * _WARPS * (16 // element.itemsize) // block)


def _launch_columns(
    x: Any, element: DType, out: Any, length: int, inner: int, factor: float, kind: str, block: int,
    grid: tuple[int, int, int], step: int,
) -> None:  # fmt: skip
    lines = _lines(element, block)
    options = {"dependent_launch": True} if step == 2 else {}
    gpu_rows.reduce_columns[grid](
        x, out, length, inner, factor, KIND="sum" if kind == "mean" else kind, INITIAL=_INITIAL[kind],
        ROWS=lines * _VECTORS, LINES=lines, BLOCK=block, MASK=inner % block != 0, STEP=step,
        num_warps=_WARPS, **options,
    )  # fmt: skip
