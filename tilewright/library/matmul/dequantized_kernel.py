"""Products of float rows by weights of 4 or 8 bits on CPUs: weights are read as stored, and widened in registers.

Weights lie in panels of `WIDTH` columns: 8 bits as [columns/WIDTH][depth][WIDTH], 4 bits two to a byte as
`library.packing`'s `nibbles` has them.  Scales and zero points lie in panels [columns/WIDTH][groups][WIDTH].  `BLOCK`
steps of the depth, a divisor of `GROUP`, are one step of the outer loop.  `ZERO` is the number that every code is more
than its integer; with `ZEROS` the zero points come on top.
"""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl
from tilewright.library.masks import both, within
from tilewright.library.matmul.kernel import identity, load_strided


@tilewright.jit
def centred(codes, zero, BITS: tl.constexpr, ZERO: tl.constexpr, ZEROS: tl.constexpr):
    """float32 of codes less their zero points; those of 4 bits are subtracted in 8 bits, four times as many at once."""
    if BITS == 4:
        whole = codes.to(tl.int8)
        if ZEROS:
            whole = whole - zero
        elif ZERO != 0:
            whole = whole - ZERO
        result = whole.to(tl.float32)
    elif ZEROS:
        result = (codes.to(tl.int32) - zero).to(tl.float32)
    else:
        result = codes.to(tl.float32)
    return result


@tilewright.jit
def load_within(pointers, mask):
    """Elements where the mask holds, zeros elsewhere."""
    if mask is None:
        block = tl.load(pointers)
    elif pointers.dtype.element_ty.is_floating():
        block = tl.load(pointers, mask=mask, other=0.0)
    else:
        block = tl.load(pointers, mask=mask, other=0)
    return block


@tilewright.jit
def load_zero(zeros, place, mask, BITS: tl.constexpr, ZERO: tl.constexpr, ZEROS: tl.constexpr):
    """What is subtracted of the codes at `place`."""
    zero = None
    if ZEROS:
        if BITS == 4:
            zero = load_within(zeros + place, mask).to(tl.int8) + ZERO
        else:
            zero = load_within(zeros + place, mask).to(tl.int32)
    return zero


@tilewright.jit
def add_products(sums, x, step, rows, weights, x_row, ROWS: tl.constexpr, WHOLE: tl.constexpr):
    """`sums` of each row plus its element at `step` times `weights`; rows beyond the last are read as the last."""
    found = ()
    for row in tl.static_range(ROWS):
        place = row
        if not WHOLE:
            place = tl.minimum(row, rows - 1)
        found = found + (sums[row] + tl.load(x + place * x_row + step).to(tl.float32) * weights,)
    return found


@tilewright.jit
def few_rows(x, w, scales, zeros, out, rows, columns, depth, x_row, c_row, *extra, BITS: tl.constexpr,
             GROUP: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, ZERO: tl.constexpr,
             ZEROS: tl.constexpr, MASK_M: tl.constexpr, MASK_N: tl.constexpr,
             EPILOGUE: tl.constexpr = identity):  # fmt: skip
    """`ROWS` rows by a panel, sums of a block in registers.  Grid: (blocks of rows, panels)."""
    first = tl.program_id(0) * ROWS
    panel = tl.program_id(1)
    lane = tl.arange(0, WIDTH)
    groups = depth // GROUP
    base = w + panel.to(tl.int64) * (depth * WIDTH * BITS // 8)
    x = x + first.to(tl.int64) * x_row
    last = rows - first
    sums = ()
    for _ in tl.static_range(ROWS):
        sums = sums + (tl.zeros((WIDTH,), tl.float32),)
    for begin in range(0, depth, BLOCK):
        parts = ()
        for _ in tl.static_range(ROWS):
            parts = parts + (tl.zeros((WIDTH,), tl.float32),)
        place = (panel * groups + begin // GROUP) * WIDTH + lane
        zero = load_zero(zeros, place, None, BITS, ZERO, ZEROS)
        if BITS == 4:
            for step in range(0, BLOCK // 2):
                codes = tl.load(base + (begin // 2 + step) * WIDTH + lane)
                low, high = centred(codes & 15, zero, 4, ZERO, ZEROS), centred(codes >> 4, zero, 4, ZERO, ZEROS)
                parts = add_products(parts, x, begin + step, last, low, x_row, ROWS, not MASK_M)
                parts = add_products(parts, x, begin + BLOCK // 2 + step, last, high, x_row, ROWS, not MASK_M)
        else:
            for step in range(begin, begin + BLOCK):
                weights = centred(tl.load(base + step * WIDTH + lane), zero, 8, ZERO, ZEROS)
                parts = add_products(parts, x, step, last, weights, x_row, ROWS, not MASK_M)
        scale = tl.load(scales + place).to(tl.float32)
        found = ()
        for row in tl.static_range(ROWS):
            found = found + (sums[row] + parts[row] * scale,)
        sums = found
    column = panel * WIDTH + lane
    mask = within(column, columns, MASK_N)
    for row in tl.static_range(ROWS):
        stored = mask
        if MASK_M:
            stored = both(mask, first + row < rows)
        output_row = first.to(tl.int64) + row
        result = EPILOGUE(sums[row], output_row, column, stored, extra)
        tl.store(out + output_row * c_row + column, result, mask=stored)


@tilewright.jit
def many_rows(x, w, scales, zeros, out, rows, columns, depth, x_row, c_row, *extra, BITS: tl.constexpr,
              GROUP: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr, PANELS: tl.constexpr, ROWS: tl.constexpr,
              ZERO: tl.constexpr, ZEROS: tl.constexpr, MASK_M: tl.constexpr, MASK_N: tl.constexpr,
              MASK_PANEL: tl.constexpr, TYPE: tl.constexpr, EPILOGUE: tl.constexpr = identity):  # fmt: skip
    """`ROWS` rows by `PANELS` panels: a block of the weights becomes floats in the caches, then a product of floats of
    `TYPE`.  Grid: (blocks of rows, blocks of panels)."""
    first_panel = tl.program_id(1) * PANELS
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = first_panel * WIDTH + tl.arange(0, PANELS * WIDTH)[None, :]
    panel = first_panel + tl.arange(0, PANELS)[None, :, None]
    lane = tl.arange(0, WIDTH)[None, None, :]
    last_panel = tl.cdiv(columns, WIDTH)
    inside = within(panel, last_panel, MASK_PANEL)
    groups = depth // GROUP
    half = BLOCK * BITS // 8  # steps of the depth in a product: 4 bits are two halves of a block
    within_block = tl.arange(0, half)
    base = w + panel.to(tl.int64) * (depth * WIDTH * BITS // 8) + lane
    acc = tl.zeros((ROWS, PANELS * WIDTH), tl.float32)
    for begin in range(0, depth, BLOCK):
        place = (panel * groups + begin // GROUP) * WIDTH + lane
        codes = load_within(base + (begin * BITS // 8 + within_block)[:, None, None] * WIDTH, inside)
        scale = load_within(scales + place, inside).to(tl.float32)
        zero = load_zero(zeros, place, inside, BITS, ZERO, ZEROS)
        for part in tl.static_range(8 // BITS):
            numbers = codes
            if BITS == 4:
                numbers = codes & 15 if part == 0 else codes >> 4
            right = (centred(numbers, zero, BITS, ZERO, ZEROS) * scale).to(TYPE)
            right = tl.reshape(right, (half, PANELS * WIDTH))
            step = begin + part * half + within_block
            left = load_strided(x, row, step[None, :], x_row, 1, rows, depth, MASK_M, False).to(TYPE)
            acc = tl.dot(left, right, acc, input_precision="ieee")
    output_row = row.to(tl.int64)
    mask = both(within(row, rows, MASK_M), within(column, columns, MASK_N))
    result = EPILOGUE(acc, output_row, column, mask, extra)
    tl.store(out + output_row * c_row + column, result, mask=mask)
