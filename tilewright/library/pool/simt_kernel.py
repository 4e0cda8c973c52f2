"""Pools of channels-last images on GPUs.

A thread takes several neighbouring channels of a pixel at once; of images with one channel, in large windows, several
neighbours of a line.
"""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl
from tilewright.library.convolution.kernel import window_origins
from tilewright.library.epilogue import identity
from tilewright.library.functions import maximum

UNROLLED: tl.constexpr = tl.constexpr(16)  # taps of a row of a window


@tilewright.jit
def max_pool(x, out, pixels, channels, height, width, out_height, out_width, *extra, LOWEST: tl.constexpr,
             KERNEL_Y: tl.constexpr, KERNEL_X: tl.constexpr, STRIDE_Y: tl.constexpr, STRIDE_X: tl.constexpr,
             PAD_Y: tl.constexpr, PAD_X: tl.constexpr, DILATION_Y: tl.constexpr, DILATION_X: tl.constexpr,
             ROWS: tl.constexpr, BLOCK: tl.constexpr, TYPE: tl.constexpr = tl.float32, WHOLE: tl.constexpr = False,
             EPILOGUE: tl.constexpr = identity):  # fmt: skip
    """EPILOGUE of the largest element of each window; what lies outside the image never wins.

    `WHOLE`: no window reaches beyond the image.
    Grid: (blocks of `ROWS` pixels, blocks of `BLOCK` channels).
    """
    pixel = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    there = (pixel < pixels) & (channel < channels)
    image, top, left = window_origins(pixel, out_height, out_width, STRIDE_Y, STRIDE_X, PAD_Y, PAD_X)
    x += image.to(tl.int64) * (height * width * channels)
    best = tl.full((ROWS, BLOCK), LOWEST, x.dtype.element_ty)
    if WHOLE:
        x += (top * width + left) * channels + channel
        for tap_y in tl.static_range(KERNEL_Y):
            for tap_x in tl.static_range(KERNEL_X):
                place = (tap_y * DILATION_Y * width + tap_x * DILATION_X) * channels
                best = maximum(best, tl.load(x + place, mask=there, other=LOWEST))
    else:
        for tap_y in range(0, KERNEL_Y):
            y = top + tap_y * DILATION_Y
            inside = there & (y >= 0) & (y < height)
            for first in range(0, KERNEL_X, UNROLLED):
                for tap_x in tl.static_range(min(KERNEL_X, UNROLLED)):
                    x_position = left + (first + tap_x) * DILATION_X
                    mask = inside & (x_position >= 0) & (x_position < width) & (first + tap_x < KERNEL_X)
                    value = tl.load(x + (y * width + x_position) * channels + channel, mask=mask, other=LOWEST)
                    best = maximum(best, value)
    row = pixel.to(tl.int64)
    tl.store(out + row * channels + channel, EPILOGUE(best.to(TYPE), row, channel, there, extra), mask=there)


@tilewright.jit
def average_pool(x, out, pixels, channels, height, width, out_height, out_width, *extra,
                 KERNEL_Y: tl.constexpr, KERNEL_X: tl.constexpr, STRIDE_Y: tl.constexpr, STRIDE_X: tl.constexpr,
                 PAD_Y: tl.constexpr, PAD_X: tl.constexpr, DILATION_Y: tl.constexpr, DILATION_X: tl.constexpr,
                 COUNT_Y: tl.constexpr, COUNT_X: tl.constexpr, COUNT_END_Y: tl.constexpr, COUNT_END_X: tl.constexpr,
                 ROWS: tl.constexpr, BLOCK: tl.constexpr, TYPE: tl.constexpr = tl.float32,
                 WHOLE: tl.constexpr = False, COUNT: tl.constexpr = 0,
                 EPILOGUE: tl.constexpr = identity):  # fmt: skip
    """EPILOGUE of the mean of each window; see `library.pool.kernel.average_pool` for the divisor.

    `WHOLE`: no window reaches beyond the image.  `COUNT`: the divisor, where all windows have the same one.
    Grid: (blocks of `ROWS` pixels, blocks of `BLOCK` channels).
    """
    pixel = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    there = (pixel < pixels) & (channel < channels)
    image, top, left = window_origins(pixel, out_height, out_width, STRIDE_Y, STRIDE_X, PAD_Y, PAD_X)
    x += image.to(tl.int64) * (height * width * channels)
    total = tl.zeros((ROWS, BLOCK), TYPE)
    count = tl.full((ROWS, 1), COUNT, tl.int32)
    if WHOLE:
        x += (top * width + left) * channels + channel
        for tap_y in tl.static_range(KERNEL_Y):
            for tap_x in tl.static_range(KERNEL_X):
                place = (tap_y * DILATION_Y * width + tap_x * DILATION_X) * channels
                total += tl.load(x + place, mask=there, other=0.0).to(TYPE)
    else:
        for tap_y in range(0, KERNEL_Y):
            y = top + tap_y * DILATION_Y
            inside = there & (y >= 0) & (y < height)
            for first in range(0, KERNEL_X, UNROLLED):
                for tap_x in tl.static_range(min(KERNEL_X, UNROLLED)):
                    x_position = left + (first + tap_x) * DILATION_X
                    there_is = first + tap_x < KERNEL_X
                    if COUNT == 0:
                        counted = (y >= -COUNT_Y) & (y < height + COUNT_END_Y) & there_is
                        counted = counted & (x_position >= -COUNT_X) & (x_position < width + COUNT_END_X)
                        count += counted.to(tl.int32)
                    mask = inside & (x_position >= 0) & (x_position < width) & there_is
                    total += tl.load(x + (y * width + x_position) * channels + channel, mask=mask, other=0.0).to(TYPE)
    row = pixel.to(tl.int64)
    tl.store(out + row * channels + channel, EPILOGUE(total / count.to(TYPE), row, channel, there, extra), mask=there)


@tilewright.jit
def counted_taps(first, extent, KERNEL: tl.constexpr, DILATION: tl.constexpr, COUNT: tl.constexpr,
                 COUNT_END: tl.constexpr):  # fmt: skip
    """How many taps of windows that begin at `first` count in the divisor, along one dimension."""
    count = tl.zeros(first.shape, tl.int32)
    for tap in tl.static_range(KERNEL):
        place = first + tap * DILATION
        count += ((place >= -COUNT) & (place < extent + COUNT_END)).to(tl.int32)
    return count


@tilewright.jit
def average_of_lines(x, out, lines, height, width, out_height, out_width, *extra, KERNEL_Y: tl.constexpr,
                     KERNEL_X: tl.constexpr, STRIDE_Y: tl.constexpr, STRIDE_X: tl.constexpr, PAD_Y: tl.constexpr,
                     PAD_X: tl.constexpr, DILATION_Y: tl.constexpr, DILATION_X: tl.constexpr, COUNT_Y: tl.constexpr,
                     COUNT_X: tl.constexpr, COUNT_END_Y: tl.constexpr, COUNT_END_X: tl.constexpr, ROWS: tl.constexpr,
                     BLOCK: tl.constexpr, WINDOWS: tl.constexpr, LANES: tl.constexpr, TAPS: tl.constexpr,
                     ALIGNED: tl.constexpr, TYPE: tl.constexpr = tl.float32,
                     EPILOGUE: tl.constexpr = identity):  # fmt: skip
    """The same of images [images, height, width, 1]: lines are read as they lie and added up, then the sums of
    neighbours, `TAPS` (a power of two) for each of `WINDOWS` windows (in `LANES`, a power of two).

    `lines` are those of the result. A block of `BLOCK` elements of the image begins at a multiple of `ALIGNED`.
    Grid: (blocks of `ROWS` lines, blocks of `WINDOWS` columns of the result).
    """
    line = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    image = line // out_height
    top = (line - image * out_height) * STRIDE_Y - PAD_Y
    first = tl.program_id(1) * WINDOWS
    BEFORE: tl.constexpr = (PAD_X + ALIGNED - 1) // ALIGNED * ALIGNED  # so that no negative number is divided
    start = (first * STRIDE_X - PAD_X + BEFORE) // ALIGNED * ALIGNED - BEFORE
    column = start + tl.arange(0, BLOCK)[None, :]
    exists = (line < lines) & (column >= 0) & (column < width)
    x += image.to(tl.int64) * (height * width)
    total = tl.zeros((ROWS, BLOCK), TYPE)
    for tap in tl.static_range(KERNEL_Y):
        y = top + tap * DILATION_Y
        total += tl.load(x + (y * width + column), mask=exists & (y >= 0) & (y < height), other=0.0).to(TYPE)

    place = tl.arange(0, LANES * TAPS)[None, :]
    window, tap = place // TAPS, place % TAPS
    place = (first + window) * STRIDE_X - PAD_X + tap * DILATION_X - start
    inside = (tap < KERNEL_X) & (window < WINDOWS) & (place < BLOCK)
    place = tl.broadcast_to(tl.where(inside, place, 0), (ROWS, LANES * TAPS))
    seen = tl.where(inside, tl.gather(total, place, 1), 0.0)
    total = tl.sum(tl.reshape(seen, (ROWS, LANES, TAPS)), 2)

    window = tl.arange(0, LANES)[None, :]
    pixel = first + window
    count = counted_taps(top, height, KERNEL_Y, DILATION_Y, COUNT_Y, COUNT_END_Y)
    count *= counted_taps(pixel * STRIDE_X - PAD_X, width, KERNEL_X, DILATION_X, COUNT_X, COUNT_END_X)
    row = line.to(tl.int64) * out_width + pixel
    there = (line < lines) & (window < WINDOWS) & (pixel < out_width)
    tl.store(out + row, EPILOGUE(total / count.to(TYPE), row, 0, there, extra), mask=there)
