"""Row operations on GPUs with slots: what comes before and behind them is computed in registers.

A CTA takes `ROWS` rows at once, each whole in a block of `BLOCK` columns (a power of two), so that an element is read
once and written once.  The slots are those of `library.rows.kernel`, called with blocks of rows [ROWS, 1] and columns
[1, BLOCK].  `MASK` says whether a block reaches beyond its rows or columns.
"""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl
from tilewright.library.functions import maximum
from tilewright.library.masks import and_masks, within
from tilewright.library.reduce.kernel import largest_finite, log_of_powers, read_slot
from tilewright.library.rows.simt_kernel import deviations, softmax_of


@tilewright.jit
def read_rows(rows, extra, OUTSIDE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr,
              TYPE: tl.constexpr, MASK: tl.constexpr, PROLOGUE: tl.constexpr):  # fmt: skip
    """This CTA's rows and columns, the mask, where columns exist, and what the prologue makes of them."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    inside = within(column, COLUMNS, MASK)
    mask = and_masks(within(row, rows, MASK), inside)
    x = tl.broadcast_to(read_slot(PROLOGUE, row, column, mask, extra, inside, OUTSIDE, TYPE), (ROWS, BLOCK))
    return row, column, mask, inside, x


@tilewright.jit
def softmax(out, rows, *extra, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr, LOG: tl.constexpr,
            TYPE: tl.constexpr, MASK: tl.constexpr, PROLOGUE: tl.constexpr, EPILOGUE: tl.constexpr):  # fmt: skip
    """out[row, :] = EPILOGUE(softmax(PROLOGUE(row))); its logarithm when `LOG`.  Grid: (blocks of rows,)."""
    row, column, mask, inside, x = read_rows(rows, extra, float("-inf"), ROWS, COLUMNS, BLOCK, TYPE, MASK, PROLOGUE)
    result = softmax_of(x, LOG)
    tl.store(out + row * COLUMNS + column, EPILOGUE(result, row, column, mask, extra), mask=mask)


@tilewright.jit
def normalize(out, rows, epsilon, *extra, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr,
              CENTER: tl.constexpr, TYPE: tl.constexpr, MASK: tl.constexpr, PROLOGUE: tl.constexpr,
              EPILOGUE: tl.constexpr):  # fmt: skip
    """out[row, :] = EPILOGUE((x - mean) / sqrt(variance + epsilon)); without `CENTER` the mean counts as 0."""
    row, column, mask, inside, x = read_rows(rows, extra, 0.0, ROWS, COLUMNS, BLOCK, TYPE, MASK, PROLOGUE)
    x, variance = deviations(x, 1.0 / COLUMNS, inside, CENTER)
    result = x * (1.0 / tl.sqrt(variance + epsilon))
    tl.store(out + row * COLUMNS + column, EPILOGUE(result, row, column, mask, extra), mask=mask)


@tilewright.jit
def log_sum_exp(out, rows, columns, *extra, ROWS: tl.constexpr, BLOCK: tl.constexpr, TYPE: tl.constexpr,
                MASK: tl.constexpr, PROLOGUE: tl.constexpr, EPILOGUE: tl.constexpr):  # fmt: skip
    """out[row] = EPILOGUE(log(sum(exp(PROLOGUE(row, :))))); every lane has its own largest element and sum."""
    index = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    row = index[:, None]
    largest = tl.full((ROWS, BLOCK), -largest_finite(TYPE), TYPE)  # no difference of infinities is taken
    total = tl.zeros((ROWS, BLOCK), TYPE)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)[None, :]
        inside = within(column, columns, MASK)
        mask = and_masks(within(row, rows, MASK), inside)
        x = read_slot(PROLOGUE, row, column, mask, extra, inside, float("-inf"), TYPE)
        larger = maximum(largest, x)
        total = total * tl.exp(largest - larger) + tl.exp(x - larger)
        largest = larger
    shift = tl.reduce(largest, 1, maximum)
    value = log_of_powers(tl.sum(total * tl.exp(largest - shift[:, None]), 1), shift)
    inside = within(index, rows, MASK)
    tl.store(out + index, EPILOGUE(value, index, 0, inside, extra), mask=inside)
