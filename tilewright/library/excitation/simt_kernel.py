"""Squeeze and excitation on GPUs: the mean of an image, and two small products behind it, in one launch.

Hu et al., "Squeeze-and-Excitation Networks", 2018.
"""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl
from tilewright.library.epilogue import identity


@tilewright.jit
def excite(x, w1, w2, out, rows, *extra, CHANNELS: tl.constexpr, HIDDEN: tl.constexpr, COLUMNS: tl.constexpr,
           BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_O: tl.constexpr,
           TYPE: tl.constexpr = tl.float32, FIRST: tl.constexpr = identity,
           SECOND: tl.constexpr = identity):  # fmt: skip
    """out[image] = SECOND(FIRST(mean over the rows of x[image] @ w1) @ w2).

    x is [images, rows, CHANNELS], w1 [HIDDEN][CHANNELS], w2 [HIDDEN][COLUMNS], out [images, COLUMNS]; what lies
    between is rounded to out's type.  `BLOCK_C` and `BLOCK_O` are powers of two that cover `CHANNELS` and `COLUMNS`.
    Grid: (images,).
    """
    image = tl.program_id(0)
    channel = tl.arange(0, BLOCK_C)
    column = tl.arange(0, BLOCK_O)
    kind = out.dtype.element_ty
    x += image.to(tl.int64) * rows * CHANNELS
    sums = tl.zeros((BLOCK_R, BLOCK_C), TYPE)
    for start in range(0, rows, BLOCK_R):
        row = start + tl.arange(0, BLOCK_R)
        there = (row < rows)[:, None] & (channel < CHANNELS)[None, :]
        sums += tl.load(x + row[:, None] * CHANNELS + channel[None, :], mask=there, other=0.0).to(TYPE)
    mean = (tl.sum(sums, 0) / rows).to(kind).to(TYPE)
    result = tl.zeros((BLOCK_O,), TYPE)
    for first in range(0, HIDDEN, BLOCK_H):
        hidden = first + tl.arange(0, BLOCK_H)
        exists = hidden < HIDDEN
        left = tl.load(w1 + hidden[:, None] * CHANNELS + channel[None, :],
                       mask=exists[:, None] & (channel < CHANNELS)[None, :], other=0.0)  # fmt: skip
        right = tl.load(w2 + hidden[:, None] * COLUMNS + column[None, :],
                        mask=exists[:, None] & (column < COLUMNS)[None, :], other=0.0)  # fmt: skip
        product = tl.sum(left.to(TYPE) * mean[None, :], 1)
        value = FIRST(product, image, hidden, exists, extra).to(kind).to(TYPE)
        result += tl.sum(right.to(TYPE) * value[:, None], 0)
    inside = column < COLUMNS
    value = SECOND(result, image, column, inside, extra)
    tl.store(out + image * COLUMNS + column, value, mask=inside)
