"""Sums, means, maxima and minima along axes, on arrays of a GPU."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.errors import LaunchError, brief
from tilewright.launch.sizes import cdiv, next_power_of_2
from tilewright.library.reduce.simt_arrays_kernel import reduce_columns, reduce_rows
from tilewright.library.reduce.simt_config import sum_config
from tilewright.ops import arrays
from tilewright.ops.arrays import ArrayView
from tilewright.runtime.gpu_program import LARGEST_GRID
from tilewright.targets.machine import Machine

_INITIAL = {"sum": 0.0, "mean": 0.0, "max": float("-inf"), "min": float("inf")}
_THREADS = 512  # of a CTA of a reduction over rows, at most
_VECTORS = 8  # of 16 bytes, at most, that one of its threads has on their way
_PIECES = 4096  # into which their rows are cut at most
_LARGEST_EXTENT = (1 << 31) - 128  # of rows and of columns, which a kernel numbers in 32 bits, a block at a time
_BUSY_CTAS = 2  # CTAs of an SM that keep it busy


def reduce(x: Any, kind: str = "sum", *, axis: int = -1, out: Any = None, out_dtype: Any = None) -> Any:
    """The sum, mean, max or min of `x` (contiguous; float32, float16, bfloat16) along an axis, which disappears.

    Computed in float32, in an order that does not vary from run to run; maxima and minima keep NaN.  The result is of
    the type of `x` unless `out` or `out_dtype` says otherwise.  Raises `LaunchError`.
    """
    source = arrays.view(x, "x")
    if source.element not in arrays.FLOATS or not source.contiguous:
        raise LaunchError(f"reduce takes contiguous float32, float16 or bfloat16, got {source.element.name}")
    if kind not in _INITIAL:
        raise LaunchError(f"kind={brief(kind)}: there are {', '.join(_INITIAL)}")
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
        factor = 1.0 / length if kind == "mean" else 1.0
        if inner == 1:
            _reduce_rows(source, target.base, outer, length, factor, kind)
        else:
            _reduce_columns(source, target.base, outer, length, inner, factor, kind)
    return target.base


def _reduce_rows(source: ArrayView, out: Any, rows: int, columns: int, factor: float, kind: str) -> None:
    """Along the last axis.  Few long rows are cut in pieces, whose results are reduced again."""
    machine, pieces = arrays.machine_at(source.place), 1
    while rows * pieces < machine.processors and columns % (2 * pieces) == 0 and columns // pieces >= 8192:
        pieces *= 2
    if pieces > 1:
        partial = arrays.empty(source, (rows * pieces,), dtypes.float32)
        _launch_rows(source.base, partial, rows * pieces, columns // pieces, 1.0, kind, machine)
        _launch_rows(partial, out, rows, pieces, factor, kind, machine)
        return
    _launch_rows(source.base, out, rows, columns, factor, kind, machine)


def _check_counted(*extents: int) -> None:
    """Raise `LaunchError` for more rows or columns than a kernel numbers."""
    if max(extents) > _LARGEST_EXTENT:
        raise LaunchError(
            f"reduce takes at most {_LARGEST_EXTENT} rows or columns, got {max(extents)}: reduce parts of the array"
        )


def _launch_rows(x: Any, out: Any, rows: int, columns: int, factor: float, kind: str, machine: Machine) -> None:
    _check_counted(rows)
    config = sum_config(rows, columns, machine.processors)
    mask = rows % config.rows != 0 or columns % config.block != 0
    reduce_rows[(cdiv(rows, config.rows),)](
        x, out, rows, columns, factor, KIND="sum" if kind == "mean" else kind, INITIAL=_INITIAL[kind], ROWS=config.rows,
        BLOCK=config.block, WHOLE=not config.long, MASK=mask, num_warps=machine.warps(config.threads),
    )  # fmt: skip


def _reduce_columns(source: ArrayView, out: Any, outer: int, length: int, inner: int, factor: float, kind: str) -> None:
    """Along another axis: strips of 128 columns, in pieces of as many rows as a CTA loads at once."""
    target = arrays.target_at(None if source.place is None else source.place.ordinal)
    overlap = source.place is not None and target.dependent_launch
    sizes = outer, length, inner
    first, *rest = _column_launches(source.element, *sizes, kind, overlap, target.machine())
    if not rest:
        reduce_columns[first.grid](source.base, out, length, first.share, inner, factor, **first.options)
        return
    (second,) = rest
    pieces = second.share
    partial = arrays.empty(source, (outer, pieces, inner), dtypes.float32)
    reduce_columns[first.grid](source.base, partial, length, first.share, inner, 1.0, **first.options)
    reduce_columns[second.grid](partial, out, pieces, pieces, inner, factor, **second.options)


@dataclass(frozen=True)
class _ColumnLaunch:
    """One launch of `reduce_columns`, each of whose CTAs reduces `share` rows."""

    grid: tuple[int, int, int]
    share: int
    options: dict[str, Any]


@functools.lru_cache(maxsize=1024)  # the two launches follow each other closely only if little happens between them
def _column_launches(
    element: DType, outer: int, length: int, inner: int, kind: str, overlap: bool, machine: Machine
) -> tuple[_ColumnLaunch, ...]:
    """What reduces [outer, length, inner] over its middle axis: one launch, or two, which `overlap` if the GPU can.

    Many CTAs that load once and end share the memory evenly; as many as fit, each with its part, end one by one.
    Raises `LaunchError` for more rows or columns than are counted.
    """
    _check_counted(length, inner)
    block, threads = min(128, max(16, next_power_of_2(inner))), _THREADS
    strips, vectors = cdiv(inner, block) * outer, _VECTORS
    while (
        vectors > 4
        and strips * cdiv(length, _lines(element, block, threads) * vectors) < _BUSY_CTAS * machine.processors
    ):
        threads, vectors = max(128, threads // 2), vectors if threads > 128 else vectors // 2
    lines = _lines(element, block, threads)
    share = max(lines * vectors, cdiv(length, _PIECES))
    if share > lines * vectors:
        vectors = _VECTORS // 2  # there are two sets of them in a loop
    pieces = cdiv(length, share)
    dependent = pieces > 1 and overlap
    first = _Columns(block, threads, vectors, 1 if dependent else 0, machine)
    calls = (first.launch(element, (outer, length, inner), share, kind),)
    if pieces == 1:
        return calls
    # What is left is small: all pieces are loaded at once, up to 512.
    width, threads = min(32 if pieces <= 256 else 16, block), 128 if pieces <= 128 else 256
    rest = _Columns(width, threads, 8, 2 if dependent else 0, machine)
    return (*calls, rest.launch(dtypes.float32, (outer, pieces, inner), pieces, kind))


def _lines(element: DType, block: int, threads: int) -> int:
    """Rows of a block of which every thread has one vector of 16 bytes."""
    return max(1, threads * (16 // element.itemsize) // block)


@dataclass(frozen=True)
class _Columns:
    """CTAs of `threads` over strips of `block` columns, whose threads have `vectors` of 16 bytes on their way."""

    block: int
    threads: int
    vectors: int
    step: int  # of a reduction in two launches that overlap: 1, 2; 0 otherwise
    machine: Machine

    def launch(self, element: DType, shape: tuple[int, int, int], share: int, kind: str) -> _ColumnLaunch:
        """Reduce `share` rows at a time of [outer, length, inner]."""
        outer, length, inner = shape
        lines = _lines(element, self.block, self.threads)
        rows = lines * self.vectors
        # With a limit the assembler does not save registers by waiting for some vectors before it loads the others.
        options: dict[str, Any] = {"maxnreg": min(255, self.machine.registers // (2 * self.threads))}
        options |= {"dependent_launch": True} if self.step == 2 else {}
        options |= {
            "KIND": "sum" if kind == "mean" else kind, "INITIAL": _INITIAL[kind], "ROWS": rows, "LINES": lines,
            "BLOCK": self.block, "WHOLE": share <= rows, "MASK_R": length % share + share % rows != 0,
            "MASK": inner % self.block != 0, "STEP": self.step, "num_warps": self.machine.warps(self.threads),
        }  # fmt: skip
        grid = cdiv(inner, self.block), cdiv(length, share), outer
        if outer > LARGEST_GRID[2] or rows * inner >= 1 << 31:
            grid, options = (math.prod(grid), 1, 1), {**options, "LARGE": True}
        return _ColumnLaunch(grid, share, options)
