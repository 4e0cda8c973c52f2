"""Pools of channels-last images on GPUs.

A thread takes several neighbouring channels of a pixel at once.
"""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl
from tilewright.library.convolution.cpu.kernel import window_origins
from tilewright.library.matmul.kernel import identity
from tilewright.library.reduce.kernel import maximum_of

UNROLLED: tl.constexpr = tl.constexpr(16)  # taps of a row of a window


@tilewright.jit
def max_pool(x, out, pixels, channels, height, width, out_height, out_width, *extra, LOWEST: tl.constexpr,
             KERNEL_Y: tl.constexpr, KERNEL_X: tl.constexpr, STRIDE_Y: tl.constexpr, STRIDE_X: tl.constexpr,
             PAD_Y: tl.constexpr, PAD_X: tl.constexpr, DILATION_Y: tl.constexpr, DILATION_X: tl.constexpr,
             ROWS: tl.constexpr, BLOCK: tl.constexpr, TYPE: tl.constexpr = tl.float32,
             EPILOGUE: tl.constexpr = identity):  # fmt: skip
    """EPILOGUE of the largest element of each window; what lies outside the image never wins.

    Grid: (blocks of `ROWS` pixels, blocks of `BLOCK` channels).
    """
    pixel = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    there = (pixel < pixels) & (channel < channels)
    image, top, left = window_origins(pixel, out_height, out_width, STRIDE_Y, STRIDE_X, PAD_Y, PAD_X)
    x += image.to(tl.int64) * (height * width * channels)
    best = tl.full((ROWS, BLOCK), LOWEST, x.dtype.element_ty)
    for tap_y in range(0, KERNEL_Y):
        y = top + tap_y * DILATION_Y
        inside = there & (y >= 0) & (y < height)
        for first in range(0, KERNEL_X, UNROLLED):
            for tap_x in tl.static_range(min(KERNEL_X, UNROLLED)):
                x_position = left + (first + tap_x) * DILATION_X
                mask = inside & (x_position >= 0) & (x_position < width) & (first + tap_x < KERNEL_X)
                value = tl.load(x + (y * width + x_position) * channels + channel, mask=mask, other=LOWEST)
                best = maximum_of(best, value)
    row = pixel.to(tl.int64)
    tl.store(out + row * channels + channel, EPILOGUE(best.to(TYPE), row, channel, there, extra), mask=there)


@tilewright.jit
def average_pool(x, out, pixels, channels, height, width, out_height, out_width, *extra,
                 KERNEL_Y: tl.constexpr, KERNEL_X: tl.constexpr, STRIDE_Y: tl.constexpr, STRIDE_X: tl.constexpr,
                 PAD_Y: tl.constexpr, PAD_X: tl.constexpr, DILATION_Y: tl.constexpr, DILATION_X: tl.constexpr,
                 COUNT_Y: tl.constexpr, COUNT_X: tl.constexpr, COUNT_END_Y: tl.constexpr, COUNT_END_X: tl.constexpr,
                 ROWS: tl.constexpr, BLOCK: tl.constexpr, TYPE: tl.constexpr = tl.float32,
                 EPILOGUE: tl.constexpr = identity):  # fmt: skip
    """EPILOGUE of the mean of each window; see `library.pool.kernel.average_pool` for the divisor.

    Grid: (blocks of `ROWS` pixels, blocks of `BLOCK` channels).
    """
    pixel = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    there = (pixel < pixels) & (channel < channels)
    image, top, left = window_origins(pixel, out_height, out_width, STRIDE_Y, STRIDE_X, PAD_Y, PAD_X)
    x += image.to(tl.int64) * (height * width * channels)
    total = tl.zeros((ROWS, BLOCK), TYPE)
    count = tl.zeros((ROWS, 1), tl.int32)
    for tap_y in range(0, KERNEL_Y):
        y = top + tap_y * DILATION_Y
        inside = there & (y >= 0) & (y < height)
        for first in range(0, KERNEL_X, UNROLLED):
            for tap_x in tl.static_range(min(KERNEL_X, UNROLLED)):
                x_position = left + (first + tap_x) * DILATION_X
                there_is = first + tap_x < KERNEL_X
                counted = (y >= -COUNT_Y) & (y < height + COUNT_END_Y) & there_is
                counted = counted & (x_position >= -COUNT_X) & (x_position < width + COUNT_END_X)
                count += counted.to(tl.int32)
                mask = inside & (x_position >= 0) & (x_position < width) & there_is
                total += tl.load(x + (y * width + x_position) * channels + channel, mask=mask, other=0.0).to(TYPE)
    row = pixel.to(tl.int64)
    tl.store(out + row * channels + channel, EPILOGUE(total / count.to(TYPE), row, channel, there, extra), mask=there)
