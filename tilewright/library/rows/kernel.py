"""Row operations over the last dimension of [rows, columns]: softmax, the logarithm of its sum, norms.

Two slots join them to their neighbours in a graph.  `PROLOGUE(row, columns, mask, extra)` gives the
input block, `EPILOGUE(value, row, columns, mask, extra)` turns the result into what is stored; `extra`
are the pointers and sizes that the two functions read.  A program does `ROWS` rows.

`TYPE` is the element type that is computed in.  Each operation has two forms: a whole row as one block
of `COLUMNS` elements, and chunks of `BLOCK` columns for rows whose length is known only at run time.
"""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl
from tilewright.library.functions import maximum
from tilewright.library.reduce.kernel import largest_finite, log_of_powers


@tilewright.jit
def store_softmax(out, row, start, stop, columns, shift, total, extra, BLOCK: tl.constexpr, LOG: tl.constexpr,
                  TYPE: tl.constexpr, PROLOGUE: tl.constexpr, EPILOGUE: tl.constexpr):  # fmt: skip
    """The results of some columns of a row whose largest element and sum of powers are known."""
    for first in range(start, stop, BLOCK):
        column = first + tl.arange(0, BLOCK)
        mask = column < stop
        shifted = PROLOGUE(row, column, mask, extra).to(TYPE) - shift
        if LOG:
            result = shifted - tl.log(total)
        else:
            result = tl.exp(shifted) * (1.0 / total)
        tl.store(out + row * columns + column, EPILOGUE(result, row, column, mask, extra), mask=mask)


@tilewright.jit
def softmax(out, rows, *extra, ROWS: tl.constexpr, COLUMNS: tl.constexpr, LOG: tl.constexpr,
            TYPE: tl.constexpr, PROLOGUE: tl.constexpr, EPILOGUE: tl.constexpr):  # fmt: skip
    """out[row, :] = EPILOGUE(softmax(PROLOGUE(row))); its logarithm when `LOG`."""
    first = tl.program_id(0) * ROWS
    column = tl.arange(0, COLUMNS)
    for index in range(first, tl.minimum(first + ROWS, rows)):
        row = index.to(tl.int64)
        x = PROLOGUE(row, column, None, extra).to(TYPE)
        shifted = x - tl.reduce(x, 0, maximum)
        weights = tl.exp(shifted)
        total = tl.sum(weights, 0)
        if LOG:
            result = shifted - tl.log(total)
        else:
            result = weights * (1.0 / total)
        tl.store(out + row * COLUMNS + column, EPILOGUE(result, row, column, None, extra))


@tilewright.jit
def softmax_chunked(out, rows, columns, *extra, ROWS: tl.constexpr, BLOCK: tl.constexpr, LOG: tl.constexpr,
                    TYPE: tl.constexpr, PROLOGUE: tl.constexpr, EPILOGUE: tl.constexpr):  # fmt: skip
    """`softmax` for rows of any run-time length."""
    first = tl.program_id(0) * ROWS
    for index in range(first, tl.minimum(first + ROWS, rows)):
        row = index.to(tl.int64)
        greatest = tl.full((), float("-inf"), TYPE)
        for start in range(0, columns, BLOCK):
            column = start + tl.arange(0, BLOCK)
            mask = column < columns
            x = PROLOGUE(row, column, mask, extra).to(TYPE)
            greatest = maximum(greatest, tl.reduce(tl.where(mask, x, float("-inf")), 0, maximum))
        total = tl.zeros((), TYPE)
        for start in range(0, columns, BLOCK):
            column = start + tl.arange(0, BLOCK)
            mask = column < columns
            x = PROLOGUE(row, column, mask, extra).to(TYPE)
            total += tl.sum(tl.where(mask, tl.exp(x - greatest), 0.0), 0)
        store_softmax(out, row, 0, columns, columns, greatest, total, extra, BLOCK, LOG, TYPE, PROLOGUE, EPILOGUE)


@tilewright.jit
def log_sum_exp(out, rows, columns, *extra, ROWS: tl.constexpr, BLOCK: tl.constexpr, TYPE: tl.constexpr,
                PROLOGUE: tl.constexpr, EPILOGUE: tl.constexpr):  # fmt: skip
    """out[row] = EPILOGUE(log(sum(exp(PROLOGUE(row))))), one reading of a row of any length.

    Every lane keeps its own largest element and the sum beside it.
    """
    first = tl.program_id(0) * ROWS
    for index in range(first, tl.minimum(first + ROWS, rows)):
        row = index.to(tl.int64)
        largest = tl.full((BLOCK,), -largest_finite(TYPE), TYPE)  # finite, so that no difference of infinities is taken
        total = tl.zeros((BLOCK,), TYPE)
        for start in range(0, columns, BLOCK):
            column = start + tl.arange(0, BLOCK)
            mask = column < columns
            x = tl.where(mask, PROLOGUE(row, column, mask, extra).to(TYPE), float("-inf"))
            larger = maximum(largest, x)
            total = total * tl.exp(largest - larger) + tl.exp(x - larger)
            largest = larger
        shift = tl.reduce(largest, 0, maximum)
        value = log_of_powers(tl.sum(total * tl.exp(largest - shift), 0), shift)
        tl.store(out + row, EPILOGUE(value, row, 0, None, extra))


@tilewright.jit
def normalize(out, rows, epsilon, *extra, ROWS: tl.constexpr, COLUMNS: tl.constexpr, CENTER: tl.constexpr,
              TYPE: tl.constexpr, PROLOGUE: tl.constexpr, EPILOGUE: tl.constexpr):  # fmt: skip
    """Layer normalisation (`CENTER`) or RMS normalisation of each row.

    out[row, :] = EPILOGUE((x - mean) / sqrt(variance + epsilon)); the mean is taken as 0 without
    `CENTER`.  Scale and bias belong to the epilogue.
    """
    first = tl.program_id(0) * ROWS
    column = tl.arange(0, COLUMNS)
    for index in range(first, tl.minimum(first + ROWS, rows)):
        row = index.to(tl.int64)
        x = PROLOGUE(row, column, None, extra).to(TYPE)
        if CENTER:
            x = x - tl.sum(x, 0) * (1.0 / COLUMNS)
        variance = tl.sum(x * x, 0) * (1.0 / COLUMNS)
        result = x * (1.0 / tl.sqrt(variance + epsilon))
        tl.store(out + row * COLUMNS + column, EPILOGUE(result, row, column, None, extra))


@tilewright.jit
def normalize_chunked(out, rows, columns, epsilon, *extra, ROWS: tl.constexpr, BLOCK: tl.constexpr,
                      CENTER: tl.constexpr, TYPE: tl.constexpr, PROLOGUE: tl.constexpr,
                      EPILOGUE: tl.constexpr):  # fmt: skip
    """`normalize` for rows of any run-time length."""
    first = tl.program_id(0) * ROWS
    for index in range(first, tl.minimum(first + ROWS, rows)):
        row = index.to(tl.int64)
        mean = tl.zeros((), TYPE)
        if CENTER:
            total = tl.zeros((), TYPE)
            for start in range(0, columns, BLOCK):
                column = start + tl.arange(0, BLOCK)
                mask = column < columns
                total += tl.sum(tl.where(mask, PROLOGUE(row, column, mask, extra).to(TYPE), 0.0), 0)
            mean = total / columns
        squares = tl.zeros((), TYPE)
        for start in range(0, columns, BLOCK):
            column = start + tl.arange(0, BLOCK)
            mask = column < columns
            x = PROLOGUE(row, column, mask, extra).to(TYPE) - mean
            squares += tl.sum(tl.where(mask, x * x, 0.0), 0)
        factor = 1.0 / tl.sqrt(squares / columns + epsilon)
        for start in range(0, columns, BLOCK):
            column = start + tl.arange(0, BLOCK)
            mask = column < columns
            x = PROLOGUE(row, column, mask, extra).to(TYPE) - mean
            tl.store(out + row * columns + column, EPILOGUE(x * factor, row, column, mask, extra), mask=mask)
