"""Kernels written for Triton, the peer; `compilers` has tilewright read the same text."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def add(x, y, result, count, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < count
    tl.store(result + index, tl.load(x + index, mask=mask) + tl.load(y + index, mask=mask), mask=mask)


@triton.jit
def place(tile, m, n, ROWS: tl.constexpr, COLUMNS: tl.constexpr, GROUP: tl.constexpr):
    """First row and column of a tile; eight rows of tiles are walked together, column after column."""
    band = GROUP * tl.cdiv(n, COLUMNS)
    top = tile // band * GROUP
    height = tl.minimum(tl.cdiv(m, ROWS) - top, GROUP)
    return (top + tile % band % height) * ROWS, tile % band // height * COLUMNS


@triton.jit
def by_pointers(a, b, c, m, n, k, stride_a, stride_b, stride_c, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
                DEPTH: tl.constexpr, GROUP: tl.constexpr):  # fmt: skip
    row, column = place(tl.program_id(0), m, n, ROWS, COLUMNS, GROUP)
    rows, columns, inner = row + tl.arange(0, ROWS), column + tl.arange(0, COLUMNS), tl.arange(0, DEPTH)
    lefts = a + (rows % m)[:, None] * stride_a + inner[None, :]
    rights = b + inner[:, None] * stride_b + (columns % n)[None, :]
    sums = tl.zeros((ROWS, COLUMNS), tl.float32)
    for step in range(0, tl.cdiv(k, DEPTH)):
        left = tl.load(lefts, mask=inner[None, :] < k - step * DEPTH, other=0.0)
        right = tl.load(rights, mask=inner[:, None] < k - step * DEPTH, other=0.0)
        sums = tl.dot(left, right, sums)
        lefts += DEPTH
        rights += DEPTH * stride_b
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    tl.store(c + rows[:, None] * stride_c + columns[None, :], sums.to(tl.bfloat16), mask=inside)


@triton.jit
def by_descriptors(a, b, c, m, n, k, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
                   GROUP: tl.constexpr):  # fmt: skip
    row, column = place(tl.program_id(0), m, n, ROWS, COLUMNS, GROUP)
    sums = tl.zeros((ROWS, COLUMNS), tl.float32)
    for step in range(0, tl.cdiv(k, DEPTH)):
        sums = tl.dot(a.load([row, step * DEPTH]), b.load([column, step * DEPTH]).T, sums)
    c.store([row, column], sums.to(tl.bfloat16))
