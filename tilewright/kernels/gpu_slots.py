"""Row operations on GPUs with slots: what comes before and behind them is computed in registers.

A CTA takes `ROWS` rows at once, each whole in a block of `BLOCK` columns (a power of two), so that an element is read
once and written once.  The slots are those of `kernels.rows`, called with blocks of rows [ROWS, 1] and columns
[1, BLOCK].  `MASK` says whether a block reaches beyond its rows or columns.
"""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl
from tilewright.kernels.reduce import combine, maximum_of, reduce_axis


@tilewright.jit
def softmax(out, rows, *extra, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr, LOG: tl.constexpr,
            TYPE: tl.constexpr, MASK: tl.constexpr, PROLOGUE: tl.constexpr, EPILOGUE: tl.constexpr):  # fmt: skip
    """out[row, :] = EPILOGUE(softmax(PROLOGUE(row))); its logarithm when `LOG`.  Grid: (blocks of rows,)."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    mask = None
    if MASK:
        mask = (row < rows) & (column < COLUMNS)
    x = tl.broadcast_to(PROLOGUE(row, column, mask, extra).to(TYPE), (ROWS, BLOCK))
    if MASK:
        x = tl.where(column < COLUMNS, x, float("-inf"))
    shifted = x - tl.reduce(x, 1, maximum_of)[:, None]
    weights = tl.exp(shifted)
    total = tl.sum(weights, 1)[:, None]
    if LOG:
        result = shifted - tl.log(total)
    else:
        result = weights * (1.0 / total)
    tl.store(out + row * COLUMNS + column, EPILOGUE(result, row, column, mask, extra), mask=mask)


@tilewright.jit
def normalize(out, rows, epsilon, *extra, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr,
              CENTER: tl.constexpr, TYPE: tl.constexpr, MASK: tl.constexpr, PROLOGUE: tl.constexpr,
              EPILOGUE: tl.constexpr):  # fmt: skip
    """out[row, :] = EPILOGUE((x - mean) / sqrt(variance + epsilon)); without `CENTER` the mean counts as 0."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    mask = None
    if MASK:
        mask = (row < rows) & (column < COLUMNS)
    x = tl.broadcast_to(PROLOGUE(row, column, mask, extra).to(TYPE), (ROWS, BLOCK))
    if CENTER:
        if MASK:
            x = tl.where(column < COLUMNS, x, 0.0)
        x = x - (tl.sum(x, 1) * (1.0 / COLUMNS))[:, None]
    if MASK:
        x = tl.where(column < COLUMNS, x, 0.0)
    variance = tl.sum(x * x, 1) * (1.0 / COLUMNS)
    result = x * (1.0 / tl.sqrt(variance + epsilon))[:, None]
    tl.store(out + row * COLUMNS + column, EPILOGUE(result, row, column, mask, extra), mask=mask)


@tilewright.jit
def reduce_rows(out, rows, columns, *extra, ROWS: tl.constexpr, BLOCK: tl.constexpr, KIND: tl.constexpr,
                INITIAL: tl.constexpr, TYPE: tl.constexpr, MASK: tl.constexpr,
                PROLOGUE: tl.constexpr, EPILOGUE: tl.constexpr):  # fmt: skip
    """out[row] = EPILOGUE(reduction of PROLOGUE(row, :)), chunks of `BLOCK` columns combined in order.

    `INITIAL` is the reduction's neutral element and `TYPE` the element type it is done in.
    """
    index = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    row = index[:, None]
    partial = tl.full((ROWS, BLOCK), INITIAL, TYPE)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)[None, :]
        if MASK:
            mask = (row < rows) & (column < columns)
            x = tl.where(mask, PROLOGUE(row, column, mask, extra).to(TYPE), INITIAL)
        else:
            x = PROLOGUE(row, column, None, extra).to(TYPE)
        partial = combine(partial, x, KIND)
    value = reduce_axis(partial, 1, KIND)
    if KIND == "mean":
        value = value / columns
    inside = None
    if MASK:
        inside = index < rows
    tl.store(out + index, EPILOGUE(value, index, 0, inside, extra), mask=inside)


@tilewright.jit
def reduce_columns(out, reduced, inner, *extra, BLOCK_R: tl.constexpr, BLOCK: tl.constexpr, KIND: tl.constexpr,
                   INITIAL: tl.constexpr, TYPE: tl.constexpr, MASK_R: tl.constexpr, MASK: tl.constexpr,
                   PROLOGUE: tl.constexpr, EPILOGUE: tl.constexpr):  # fmt: skip
    """out[outer, inner] = EPILOGUE(reduction of PROLOGUE over the middle dimension), row by row in registers.

    The prologue's rows count [outer, reduced] together.  Grid: (column blocks, outer).
    """
    outer = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    partial = tl.full((BLOCK_R, BLOCK), INITIAL, TYPE)
    for start in range(0, reduced, BLOCK_R):
        step = start + tl.arange(0, BLOCK_R)[:, None]
        row = outer * reduced + step
        mask = None
        if MASK_R and MASK:
            mask = (step < reduced) & (column < inner)[None, :]
        elif MASK_R:
            mask = step < reduced
        elif MASK:
            mask = (column < inner)[None, :]
        x = PROLOGUE(row, column[None, :], mask, extra).to(TYPE)
        if MASK_R:
            x = tl.where(mask, x, INITIAL)
        partial = combine(partial, x, KIND)
    value = reduce_axis(partial, 0, KIND)
    if KIND == "mean":
        value = value / reduced
    inside = None
    if MASK:
        inside = column < inner
    tl.store(out + outer * inner + column, EPILOGUE(value, outer, column, inside, extra), mask=inside)
