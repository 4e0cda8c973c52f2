"""Convolution on GPUs as an implicit matrix product, in the plain tile language.

Images are channels last, weights [KERNEL_Y][KERNEL_X][CHANNELS][all columns].  Rows of the product are output pixels,
its depth runs over the taps of the window and their channels.
"""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl
from tilewright.library.convolution.kernel import store_pixels, window_origins
from tilewright.library.epilogue import identity


@tilewright.jit
def convolution(x, w, out, pixels, columns, height, width, out_height, out_width, *extra,
                CHANNELS: tl.constexpr, GROUPS: tl.constexpr, KERNEL_Y: tl.constexpr, KERNEL_X: tl.constexpr,
                STRIDE_Y: tl.constexpr, STRIDE_X: tl.constexpr, PAD_Y: tl.constexpr, PAD_X: tl.constexpr,
                DILATION_Y: tl.constexpr, DILATION_X: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
                BLOCK_K: tl.constexpr, MASK_M: tl.constexpr, MASK_N: tl.constexpr, TYPE: tl.constexpr = tl.float32,
                PRECISION: tl.constexpr = "ieee", PARTS: tl.constexpr = 1,
                EPILOGUE: tl.constexpr = identity):  # fmt: skip
    """out = EPILOGUE(convolution of x by w).  Grid: (pixel blocks, column blocks, groups).

    Where `BLOCK_K` divides the channels, a block of depth is one tap, and its channels are neighbours in memory.  With
    `PARTS` of the depth there are as many groups of CTAs, each of which stores its sums behind those of the one before:
    `gpu_parts.sum_parts` adds them.
    """
    part = tl.program_id(2) % PARTS
    group = tl.program_id(2) // PARTS
    pixel = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    image, top, left = window_origins(pixel, out_height, out_width, STRIDE_Y, STRIDE_X, PAD_Y, PAD_X)
    base = ((image.to(tl.int64) * height + top) * width + left) * (CHANNELS * GROUPS) + group * CHANNELS
    w = w + group * columns
    DEPTH: tl.constexpr = KERNEL_Y * KERNEL_X * CHANNELS

    LENGTH: tl.constexpr = (DEPTH + PARTS * BLOCK_K - 1) // (PARTS * BLOCK_K) * BLOCK_K

    acc = tl.zeros((BLOCK_M, BLOCK_N), TYPE)
    for first in range(part * LENGTH, min(part * LENGTH + LENGTH, DEPTH), BLOCK_K):
        step = first + tl.arange(0, BLOCK_K)
        if CHANNELS % BLOCK_K == 0:
            tap = first // CHANNELS
            channel = first - tap * CHANNELS + tl.arange(0, BLOCK_K)
        else:
            tap = step // CHANNELS
            channel = step - tap * CHANNELS
        tap_y = tap // KERNEL_X
        tap_x = tap - tap_y * KERNEL_X
        down = tap_y * DILATION_Y
        right = tap_x * DILATION_X
        shift = (down * width + right) * (CHANNELS * GROUPS) + channel
        if CHANNELS % BLOCK_K == 0:
            y = (top + down)[:, None]
            x_position = (left + right)[:, None]
            inside = (pixel < pixels)[:, None]
        else:
            y = top[:, None] + down[None, :]
            x_position = left[:, None] + right[None, :]
            inside = (pixel < pixels)[:, None] & (step < DEPTH)[None, :]
        inside = inside & (y >= 0) & (y < height) & (x_position >= 0) & (x_position < width)
        rows = tl.load(x + (base[:, None] + shift[None, :]), mask=inside, other=0.0)
        places = w + step[:, None] * (columns * GROUPS) + column
        if MASK_N or DEPTH % BLOCK_K != 0:
            taps = tl.load(places, mask=(step < DEPTH)[:, None] & (column < columns), other=0.0)
        else:
            taps = tl.load(places)
        acc = tl.dot(rows, taps, acc, input_precision=PRECISION)

    if PARTS > 1:
        out += part.to(tl.int64) * pixels * (columns * GROUPS)
    store_pixels(acc, out, pixel, column, group, pixels, columns, extra, GROUPS, MASK_M, MASK_N, EPILOGUE)


@tilewright.jit
def pad_channels(x, out, height, width, lines, out_width, image_step, row_step, column_step, channel_step,
                 TOP: tl.constexpr, LEFT: tl.constexpr, CHANNELS: tl.constexpr, FOLD: tl.constexpr, WIDE: tl.constexpr,
                 ENTRIES: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """out [images, lines, out_width, FOLD, WIDE] = x [images, height, width, CHANNELS], which lies in any order (steps
    in elements), `FOLD` rows together, with zeros around: `TOP` rows and `LEFT` pixels in front, the others behind.

    Grid: (images * lines, blocks of `BLOCK` pixels).  `ENTRIES` is the power of two from `FOLD * WIDE` on.
    """
    place = tl.program_id(0)
    image = place // lines
    pixel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[:, None]
    entry = tl.arange(0, ENTRIES)[None, :]
    channel = entry % WIDE
    row = (place - image * lines) * FOLD + entry // WIDE - TOP
    column = pixel - LEFT
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width) & (channel < CHANNELS)
    x += image.to(tl.int64) * image_step
    values = tl.load(x + (row * row_step + column * column_step + channel * channel_step), mask=inside, other=0.0)
    place = (place.to(tl.int64) * out_width + pixel) * (FOLD * WIDE) + entry
    tl.store(out + place, values, mask=(pixel < out_width) & (entry < FOLD * WIDE))
