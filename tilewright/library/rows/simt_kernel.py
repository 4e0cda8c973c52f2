"""Row operations on GPUs: a CTA takes `ROWS` rows of up to `BLOCK` columns at once, which stay in registers.

Each element is read once and written once.  `MASK` says whether a block may reach beyond its rows or columns.  Rows
longer than registers hold are walked in chunks (`*_long`), the passes behind the first one from the L2 cache.
"""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl
from tilewright.library.functions import maximum
from tilewright.library.masked_loads import fetch, read, read_lasting
from tilewright.library.masks import edge_mask, within
from tilewright.library.reduce.kernel import largest_finite


@tilewright.jit
def place(rows, columns, stride, ROWS: tl.constexpr, BLOCK: tl.constexpr, MASK: tl.constexpr):
    """Offsets of this CTA's block of rows `stride` apart, its columns [1, BLOCK], and the mask."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    mask = edge_mask(row, column, rows, columns, MASK, MASK)
    return row.to(tl.int64) * stride + column, column, mask


@tilewright.jit
def ask_ahead(x, rows, columns, stride, AHEAD: tl.constexpr, BLOCK: tl.constexpr):
    """Ask for the row `AHEAD` CTAs on, which that one reads that follows when this one has ended."""
    line: tl.constexpr = 1024 // x.dtype.element_ty.primitive_bitwidth
    own = tl.program_id(0)
    row = tl.where(own + AHEAD < rows, own + AHEAD, own).to(tl.int64)
    tl.extra.cuda.prefetch(x + row * stride + tl.minimum(tl.arange(0, BLOCK // line) * line, columns - 1))


@tilewright.jit
def softmax_of(x, LOG: tl.constexpr):
    """softmax of every row of a block, its logarithm when `LOG`."""
    shifted = x - tl.reduce(x, 1, maximum)[:, None]
    powers = tl.exp(shifted)
    total = tl.sum(powers, 1)[:, None]
    if LOG:
        result = shifted - tl.log(total)
    else:
        result = powers * (1.0 / total)
    return result


@tilewright.jit
def deviations(x, inverse, inside, CENTER: tl.constexpr):
    """Rows minus their mean, which counts as 0 without `CENTER`, and the mean square [rows, 1] of that.

    `inverse` is 1 / columns; where `inside` does not hold there are no elements, and `x` must be 0.
    """
    if CENTER:
        x = x - (tl.sum(x, 1) * inverse)[:, None]
        if inside is not None:
            x = tl.where(inside, x, 0.0)
    return x, (tl.sum(x * x, 1) * inverse)[:, None]


@tilewright.jit
def softmax(x, out, rows, columns, x_stride, out_stride, LOG: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
            MASK: tl.constexpr):  # fmt: skip
    """out[row] = softmax(x[row]), its logarithm when `LOG`."""
    offsets, column, mask = place(rows, columns, x_stride, ROWS, BLOCK, MASK)
    value = read_lasting(x, offsets, mask, float("-inf"))
    result = softmax_of(value, LOG)
    offsets, column, mask = place(rows, columns, out_stride, ROWS, BLOCK, MASK)
    tl.store(out + offsets, result.to(out.dtype.element_ty), mask=mask)


@tilewright.jit
def normalize(x, weight, bias, residual, total, out, rows, columns, x_stride, residual_stride, out_stride, inverse,
              epsilon, CENTER: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, MASK: tl.constexpr,
              EARLY: tl.constexpr, AHEAD: tl.constexpr = 0):  # fmt: skip
    """out[row] = (y - mean) / sqrt(variance + epsilon) * weight + bias of y = x + residual, which goes to `total`.

    `inverse` is 1 / columns.  Without `CENTER` the mean counts as 0.  What is None is left out.  With `EARLY` weights
    are on their way together with the rows, where there are registers for both.  With `AHEAD` a later row is asked for.
    """
    offsets, column, mask = place(rows, columns, x_stride, ROWS, BLOCK, MASK)
    value = read_lasting(x, offsets, mask, 0.0)
    inside = within(column, columns, MASK)
    if EARLY:
        scales = None if weight is None else fetch(weight, column, inside, 0.0)
        shifts = None if bias is None else fetch(bias, column, inside, 0.0)
    if residual is not None:
        offsets, column, mask = place(rows, columns, residual_stride, ROWS, BLOCK, MASK)
        value += read_lasting(residual, offsets, mask, 0.0)
    if AHEAD:
        ask_ahead(x, rows, columns, x_stride, AHEAD, BLOCK)
    offsets, column, mask = place(rows, columns, out_stride, ROWS, BLOCK, MASK)
    if total is not None:
        tl.store(total + offsets, value.to(total.dtype.element_ty), mask=mask)
    value, variance = deviations(value, inverse, mask, CENTER)
    result = value * tl.rsqrt(variance + epsilon)
    if not EARLY:
        scales = None if weight is None else fetch(weight, column, inside, 0.0, "evict_last")
        shifts = None if bias is None else fetch(bias, column, inside, 0.0, "evict_last")
    if scales is not None:
        result = result * scales.to(tl.float32)
    if shifts is not None:
        result = result + shifts.to(tl.float32)
    tl.store(out + offsets, result.to(out.dtype.element_ty), mask=mask)


@tilewright.jit
def softmax_long(x, out, rows, columns, x_stride, out_stride, LOG: tl.constexpr, BLOCK: tl.constexpr):
    """`softmax` of one long row: a pass for maximum and sum together, one for the results."""
    row = tl.program_id(0).to(tl.int64)
    x += row * x_stride
    out += row * out_stride
    greatest = tl.full((BLOCK,), -largest_finite(tl.float32), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, columns, BLOCK):
        column = first + tl.arange(0, BLOCK)
        value = read(x, column, column < columns, float("-inf"))
        larger = tl.maximum(greatest, value)
        total = total * tl.exp(greatest - larger) + tl.exp(value - larger)
        greatest = larger
    shift = tl.max(greatest, 0)
    sum = tl.sum(total * tl.exp(greatest - shift), 0)
    for first in range(0, columns, BLOCK):
        column = first + tl.arange(0, BLOCK)
        mask = column < columns
        shifted = read(x, column, mask, 0.0) - shift
        if LOG:
            result = shifted - tl.log(sum)
        else:
            result = tl.exp(shifted) * (1.0 / sum)
        tl.store(out + column, result.to(out.dtype.element_ty), mask=mask)


@tilewright.jit
def read_sum(x, residual, column, mask):
    """x + residual, where there is one."""
    value = read(x, column, mask, 0.0)
    if residual is not None:
        value += read(residual, column, mask, 0.0)
    return value


@tilewright.jit
def normalize_long(x, weight, bias, residual, total, out, rows, columns, x_stride, residual_stride, out_stride,
                   inverse, epsilon, CENTER: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """`normalize` of one long row in chunks: mean, variance, results."""
    row = tl.program_id(0).to(tl.int64)
    x += row * x_stride
    out += row * out_stride
    if residual is not None:
        residual += row * residual_stride
    mean = 0.0
    if CENTER:
        sums = tl.zeros((BLOCK,), tl.float32)
        for first in range(0, columns, BLOCK):
            column = first + tl.arange(0, BLOCK)
            sums += read_sum(x, residual, column, column < columns)
        mean = tl.sum(sums, 0) * inverse
    squares = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, columns, BLOCK):
        column = first + tl.arange(0, BLOCK)
        value = tl.where(column < columns, read_sum(x, residual, column, column < columns) - mean, 0.0)
        squares += value * value
    scale = tl.rsqrt(tl.sum(squares, 0) * inverse + epsilon)
    for first in range(0, columns, BLOCK):
        column = first + tl.arange(0, BLOCK)
        mask = column < columns
        value = read_sum(x, residual, column, mask)
        if total is not None:
            tl.store(total + row * out_stride + column, value.to(total.dtype.element_ty), mask=mask)
        result = (value - mean) * scale
        if weight is not None:
            result = result * read(weight, column, mask, 0.0)
        if bias is not None:
            result = result + read(bias, column, mask, 0.0)
        tl.store(out + column, result.to(out.dtype.element_ty), mask=mask)
