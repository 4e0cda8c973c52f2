"""Products of groups of rows with a matrix each (experts): rows [start, end) of group g times B[g].

The ends of the groups are only known at run time, so there are as many programs as tiles can be needed: one for every
`BLOCK_M` rows and one more for each group.  A program finds its group and its rows by counting tiles.
"""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl


@tilewright.jit
def grouped_matmul(a, b, ends, c, rows, columns, depth, groups, b_group, b_depth, b_column, *extra,
                   BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, TYPE: tl.constexpr,
                   EPILOGUE: tl.constexpr):  # fmt: skip
    """C[row] = EPILOGUE(A[row] @ B[g]) for rows of group g, which ends before row `ends[g]`; rows behind the last
    group count as products that are zero.  Grid: (tiles of rows, blocks of columns).
    """
    tile = tl.program_id(0)
    rows = tl.to_tensor(rows).to(tl.int32)
    first, group, start, limit, passed = 0, groups, 0, rows, 0
    for number in range(0, groups + 1):
        end = rows
        if number < groups:
            end = tl.load(ends + number).to(tl.int32)
        end = tl.minimum(tl.maximum(end, start), rows)
        tiles = tl.cdiv(end - start, BLOCK_M)
        mine = (tile >= passed) & (tile < passed + tiles)
        first = tl.where(mine, start + (tile - passed) * BLOCK_M, first)
        group = tl.where(mine, number, group)
        limit = tl.where(mine, end, limit)
        passed += tiles
        start = end
    row = first + tl.arange(0, BLOCK_M)[:, None]
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    inside = (row < limit) & (tile < passed)
    matrix = b + tl.minimum(group, groups - 1).to(tl.int64) * b_group
    acc = tl.zeros((BLOCK_M, BLOCK_N), TYPE)
    for begin in range(0, depth, BLOCK_K):
        step = begin + tl.arange(0, BLOCK_K)
        left = tl.load(a + row.to(tl.int64) * depth + step[None, :], mask=inside & (step[None, :] < depth), other=0.0)
        right = tl.load(matrix + step[:, None].to(tl.int64) * b_depth + column * b_column,
                        mask=(step[:, None] < depth) & (column < columns), other=0.0)  # fmt: skip
        acc = tl.dot(left, right, acc, input_precision="ieee")
    acc = tl.where(group < groups, acc, 0.0)
    mask = inside & (column < columns)
    tl.store(c + row.to(tl.int64) * columns + column, EPILOGUE(acc, row, column, mask, extra), mask=mask)
