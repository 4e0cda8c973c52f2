"""Matrix product in the tile language: C[rows, columns] = A[rows, depth] @ B[depth, columns].

One kernel serves every shape.  What varies is data: block sizes, masks and the form of B.

* B strided: any strides, read as it lies.
* B in panels (`WIDTH` > 0): a constant repacked by `library.packing` as [columns/WIDTH][depth][WIDTH],
  so that the inner loop of `dot` reads one sequential stream.  With `GROUP` > 1 the panels are
  [depth/GROUP][WIDTH][GROUP], as instructions that sum groups of products take them.

`depth` is covered in steps of `BLOCK_K` (one step when `BLOCK_K` reaches all of it).  Sizes and
strides may be run-time scalars or compile-time numbers; `MASK_*` say which edges can be ragged.
"""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl
from tilewright.library.epilogue import identity
from tilewright.library.masked_loads import load_within
from tilewright.library.masks import edge_mask


@tilewright.jit
def _load_grouped(panels, first_panel, first_depth, depth, last_panel, COUNT: tl.constexpr, BLOCK_K: tl.constexpr,
                  WIDTH: tl.constexpr, MASK_PANEL: tl.constexpr, MASK_K: tl.constexpr,
                  GROUP: tl.constexpr):  # fmt: skip
    """A [BLOCK_K, COUNT * WIDTH] block of a matrix stored as panels [count][depth/GROUP][WIDTH][GROUP]."""
    panel = first_panel + tl.arange(0, COUNT)[:, None, None, None]
    group = first_depth // GROUP + tl.arange(0, BLOCK_K // GROUP)[None, :, None, None]
    lane = tl.arange(0, WIDTH)[None, None, :, None]
    within = tl.arange(0, GROUP)[None, None, None, :]
    pointers = panels + panel.to(tl.int64) * (depth * WIDTH) + group * (WIDTH * GROUP) + lane * GROUP + within
    block = load_within(pointers, edge_mask(panel, group * GROUP, last_panel, depth, MASK_PANEL, MASK_K))
    return tl.reshape(tl.permute(block, (1, 3, 0, 2)), (BLOCK_K, COUNT * WIDTH))


@tilewright.jit
def load_panels(panels, first_panel, first_depth, depth, last_panel, COUNT: tl.constexpr, BLOCK_K: tl.constexpr,
                WIDTH: tl.constexpr, MASK_PANEL: tl.constexpr, MASK_K: tl.constexpr,
                GROUP: tl.constexpr = 1):  # fmt: skip
    """A [BLOCK_K, COUNT * WIDTH] block of a matrix in panels [count][depth][WIDTH], or in grouped ones."""
    if GROUP > 1:
        return _load_grouped(panels, first_panel, first_depth, depth, last_panel, COUNT, BLOCK_K, WIDTH, MASK_PANEL,
                             MASK_K, GROUP)  # fmt: skip
    panel = first_panel + tl.arange(0, COUNT)[:, None, None]
    step = first_depth + tl.arange(0, BLOCK_K)[None, :, None]
    lane = tl.arange(0, WIDTH)[None, None, :]
    pointers = panels + panel.to(tl.int64) * (depth * WIDTH) + step * WIDTH + lane
    block = load_within(pointers, edge_mask(panel, step, last_panel, depth, MASK_PANEL, MASK_K))
    return tl.reshape(tl.permute(block, (1, 0, 2)), (BLOCK_K, COUNT * WIDTH))


@tilewright.jit
def load_strided(pointer, rows, columns, row_stride, column_stride, row_limit, column_limit,
                 MASK_ROW: tl.constexpr, MASK_COLUMN: tl.constexpr):  # fmt: skip
    """The block at (`rows` [R, 1], `columns` [1, C]) of a strided matrix; zero outside its limits."""
    pointers = pointer + rows.to(tl.int64) * row_stride + columns.to(tl.int64) * column_stride
    return load_within(pointers, edge_mask(rows, columns, row_limit, column_limit, MASK_ROW, MASK_COLUMN))


@tilewright.jit
def matmul(a, b, c, rows, columns, depth, a_row, a_depth, b_depth, b_column, c_row, *extra,
           a_batch=0, b_batch=0, a_outer=0, b_outer=0, inner_batches=1, whole_depth=0,
           BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, WIDTH: tl.constexpr = 0,
           BATCHED: tl.constexpr = False, RAGGED: tl.constexpr = False, WHOLE_K: tl.constexpr = False,
           MASK_M: tl.constexpr = True, MASK_N: tl.constexpr = True, MASK_K: tl.constexpr = True,
           MASK_PANEL: tl.constexpr = True, GROUP: tl.constexpr = 1, TYPE: tl.constexpr = tl.float32,
           PRECISION: tl.constexpr = "ieee", EPILOGUE: tl.constexpr = identity):  # fmt: skip
    """C = EPILOGUE(A @ B).

    Grid: (row blocks, column blocks, batches).  C is contiguous over batches and its rows are `c_row`
    apart; the epilogue sees rows counted over all batches.  Batches come as an outer and an inner
    dimension, each with its own strides in A and B (zero where the operand is shared).  `RAGGED`: batches
    are parts of one depth, `whole_depth`, of which the last one may be shorter than `depth`.  `TYPE` is the
    element type of the sums, `PRECISION` what `dot` does with float32.
    """
    first_column = tl.program_id(1) * BLOCK_N
    first_panel = tl.program_id(1) * (BLOCK_N // WIDTH if WIDTH > 0 else 1)
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    column = first_column + tl.arange(0, BLOCK_N)[None, :]
    output_row = row.to(tl.int64)
    if BATCHED:
        batch = tl.program_id(2)
        outer = (batch // inner_batches).to(tl.int64)
        inner = (batch % inner_batches).to(tl.int64)
        a = a + (outer * a_outer + inner * a_batch)
        b = b + (outer * b_outer + inner * b_batch)
        output_row = batch.to(tl.int64) * rows + row
        if RAGGED:
            depth = tl.minimum(depth, whole_depth - batch * depth)

    if WHOLE_K:
        step = tl.arange(0, BLOCK_K)
        left = load_strided(a, row, step[None, :], a_row, a_depth, rows, depth, MASK_M, False)
        if WIDTH > 0:
            right = load_panels(b, first_panel, 0, depth, tl.cdiv(columns, WIDTH), BLOCK_N // WIDTH, BLOCK_K, WIDTH,
                                MASK_PANEL, False, GROUP)  # fmt: skip
        else:
            right = load_strided(b, step[:, None], column, b_depth, b_column, depth, columns, False, MASK_N)
        acc = tl.dot(left, right, input_precision=PRECISION)
    else:
        acc = tl.zeros((BLOCK_M, BLOCK_N), TYPE)
        for first_step in range(0, depth, BLOCK_K):
            step = first_step + tl.arange(0, BLOCK_K)
            left = load_strided(a, row, step[None, :], a_row, a_depth, rows, depth, MASK_M, MASK_K)
            if WIDTH > 0:
                right = load_panels(b, first_panel, first_step, depth, tl.cdiv(columns, WIDTH), BLOCK_N // WIDTH,
                                    BLOCK_K, WIDTH, MASK_PANEL, MASK_K, GROUP)  # fmt: skip
            else:
                right = load_strided(b, step[:, None], column, b_depth, b_column, depth, columns, MASK_K, MASK_N)
            acc = tl.dot(left, right, acc, input_precision=PRECISION)

    mask = edge_mask(row, column, rows, columns, MASK_M, MASK_N)
    result = EPILOGUE(acc, output_row, column, mask, extra)
    tl.store(c + output_row * c_row + column, result, mask=mask)
