"""The launches of reductions of arrays on GPUs: whole rows, or strips of columns; where there is little else to do at
once, in pieces, whose results are reduced again, in order."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

from tilewright.dtypes import DType, float32
from tilewright.errors import LaunchError
from tilewright.launch.jit import JITFunction
from tilewright.launch.sizes import cdiv, next_power_of_2
from tilewright.library.reduce.simt_arrays_kernel import reduce_columns, reduce_rows
from tilewright.library.reduce.simt_config import sum_config
from tilewright.runtime.gpu_program import LARGEST_GRID
from tilewright.targets.machine import Machine

INITIAL = {"sum": 0.0, "mean": 0.0, "max": float("-inf"), "min": float("inf")}  # by kind
_COLUMN_THREADS = 512  # of a CTA of a reduction over rows, at most
_VECTORS = 8  # of 16 bytes, at most, that one of its threads has on their way
_PIECES = 4096  # into which their rows are cut at most
_LEAST_PIECE = 8192  # columns of a piece of a row
_LARGEST_EXTENT = (1 << 31) - 128  # of rows and of columns, which a kernel numbers in 32 bits, a block at a time
_BUSY_CTAS = 2  # CTAs of an SM that keep it busy


@dataclass(frozen=True)
class ArrayLaunch:
    """``kernel[grid](x, out, *sizes, factor, **options)``, which has so many results."""

    kernel: JITFunction
    grid: tuple[int, ...]
    sizes: tuple[int, ...]
    options: dict[str, Any]
    results: int


@functools.lru_cache(maxsize=1024)  # two launches follow each other closely only if little happens between them
def array_launches(
    element: DType, shape: tuple[int, int, int], kind: str, overlap: bool, machine: Machine
) -> tuple[ArrayLaunch, ...]:
    """What reduces [outer, length, inner] over its middle axis: one launch, or two, which `overlap` if the GPU can.

    Raises `LaunchError` for more rows or columns than are counted.
    """
    outer, length, inner = shape
    if inner == 1:
        return _row_launches(outer, length, kind, machine)
    return _column_launches(element, shape, kind, overlap, machine)


def _check_counted(*extents: int) -> None:
    """Raise `LaunchError` for more rows or columns than a kernel numbers."""
    if max(extents) > _LARGEST_EXTENT:
        raise LaunchError(
            f"reduce takes at most {_LARGEST_EXTENT} rows or columns, got {max(extents)}: reduce parts of the array"
        )


def _common_options(kind: str) -> dict[str, Any]:
    return {"KIND": "sum" if kind == "mean" else kind, "INITIAL": INITIAL[kind]}


def _row_launches(rows: int, columns: int, kind: str, machine: Machine) -> tuple[ArrayLaunch, ...]:
    """Along the last axis.  Few long rows are cut in pieces."""
    pieces = 1
    while rows * pieces < machine.processors and columns % (2 * pieces) == 0 and columns // pieces >= _LEAST_PIECE:
        pieces *= 2
    if pieces == 1:
        return (_row_launch(rows, columns, kind, machine),)
    first = _row_launch(rows * pieces, columns // pieces, kind, machine)
    return (first, _row_launch(rows, pieces, kind, machine))


def _row_launch(rows: int, columns: int, kind: str, machine: Machine) -> ArrayLaunch:
    _check_counted(rows)
    config = sum_config(rows, columns, machine.processors)
    options = _common_options(kind) | {
        "ROWS": config.rows, "BLOCK": config.block, "WHOLE": not config.long,
        "MASK": rows % config.rows != 0 or columns % config.block != 0, "num_warps": machine.warps(config.threads),
    }  # fmt: skip
    return ArrayLaunch(reduce_rows, (cdiv(rows, config.rows),), (rows, columns), options, rows)


def _column_launches(
    element: DType, shape: tuple[int, int, int], kind: str, overlap: bool, machine: Machine
) -> tuple[ArrayLaunch, ...]:
    """Along another axis: strips of 128 columns, in pieces of as many rows as a CTA loads at once.

    Many CTAs that load once and end share the memory evenly; as many as fit, each with its part, end one by one.
    """
    outer, length, inner = shape
    _check_counted(length, inner)
    block, threads = min(128, max(16, next_power_of_2(inner))), _COLUMN_THREADS
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
    first = _Columns(block, threads, vectors, 1 if dependent else 0, machine).launch(element, shape, share, kind)
    if pieces == 1:
        return (first,)
    # What is left is small: all pieces are loaded at once, up to 512.
    width, threads = min(32 if pieces <= 256 else 16, block), 128 if pieces <= 128 else 256
    rest = _Columns(width, threads, 8, 2 if dependent else 0, machine)
    return (first, rest.launch(float32, (outer, pieces, inner), pieces, kind))


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

    def launch(self, element: DType, shape: tuple[int, int, int], share: int, kind: str) -> ArrayLaunch:
        """Reduce `share` rows at a time of [outer, length, inner]."""
        outer, length, inner = shape
        lines = _lines(element, self.block, self.threads)
        rows = lines * self.vectors
        # With a limit the assembler does not save registers by waiting for some vectors before it loads the others.
        options: dict[str, Any] = {"maxnreg": min(255, self.machine.registers // (2 * self.threads))}
        options |= {"dependent_launch": True} if self.step == 2 else {}
        options |= _common_options(kind) | {
            "ROWS": rows, "LINES": lines, "BLOCK": self.block, "WHOLE": share <= rows,
            "MASK_R": length % share + share % rows != 0, "MASK": inner % self.block != 0, "STEP": self.step,
            "num_warps": self.machine.warps(self.threads),
        }  # fmt: skip
        grid = cdiv(inner, self.block), cdiv(length, share), outer
        results = outer * grid[1] * inner
        if outer > LARGEST_GRID[2] or rows * inner >= 1 << 31:
            grid, options = (math.prod(grid), 1, 1), {**options, "LARGE": True}
        return ArrayLaunch(reduce_columns, grid, (length, share, inner), options, results)
