"""Plain kernels for GPUs, in the tile language alone: they run on every architecture, on every stride and size.

Where tensor copies or warpgroup products cannot be had, these take the place of the kernels in `hopper`.
"""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

from typing import NamedTuple

import tilewright
import tilewright.language as tl
from tilewright.library.matmul.kernel import load_strided


class PortableConfig(NamedTuple):
    """A tile of `BM` x `BN` of the result, `BK` of depth at a time, by `THREADS` threads."""

    BM: int
    BN: int
    BK: int
    THREADS: int
    GROUP: int = 8


def config(rows: int, columns: int, itemsize: int) -> PortableConfig:
    """Tiles of 128 where the result is large, smaller ones where few would be left."""
    depth = 128 // itemsize
    if rows <= 16:
        return PortableConfig(16, 64, depth, 128)
    if rows <= 64 or columns <= 64 or rows * columns < 128 * 128 * 64:
        return PortableConfig(64, 64, depth // 2, 128)
    return PortableConfig(128, 128, depth // 2, 256)


@tilewright.jit
def matmul(a, b, c, rows, columns, depth, a_row, a_depth, b_depth, b_column, c_row, a_batch, b_batch, c_batch, *extra,
           CONFIG: tl.constexpr, SUM: tl.constexpr, PRECISION: tl.constexpr, EPILOGUE: tl.constexpr):  # fmt: skip
    """C = EPILOGUE(A @ B) for any strides of A and B.

    Grid: (tiles, batches); the epilogue counts rows over all batches.
    """
    tiles_m = tl.cdiv(rows, CONFIG.BM)
    tiles_n = tl.cdiv(columns, CONFIG.BN)
    tile = tl.program_id(0)
    batch = tl.program_id(1).to(tl.int64)
    tile_m, tile_n = tl.swizzle2d(tile // tiles_n, tile % tiles_n, tiles_m, tiles_n, CONFIG.GROUP)
    row = tile_m * CONFIG.BM + tl.arange(0, CONFIG.BM)[:, None]
    column = tile_n * CONFIG.BN + tl.arange(0, CONFIG.BN)[None, :]
    a += batch * a_batch
    b += batch * b_batch
    acc = tl.zeros((CONFIG.BM, CONFIG.BN), SUM)
    for first in range(0, depth, CONFIG.BK):
        step = first + tl.arange(0, CONFIG.BK)
        left = load_strided(a, row, step[None, :], a_row, a_depth, rows, depth, True, True)
        right = load_strided(b, step[:, None], column, b_depth, b_column, depth, columns, True, True)
        acc = tl.dot(left, right, acc, input_precision=PRECISION, out_dtype=SUM)
    mask = (row < rows) & (column < columns)
    result = EPILOGUE(acc, batch * rows + row, column, mask, extra)
    tl.store(c + batch * c_batch + row.to(tl.int64) * c_row + column, result.to(c.dtype.element_ty), mask=mask)
