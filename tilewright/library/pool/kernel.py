"""Pooling of channels-last images, in the tile language."""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl
from tilewright.library.convolution.kernel import window_origins
from tilewright.library.epilogue import identity
from tilewright.library.functions import maximum
from tilewright.library.masks import within


@tilewright.jit
def max_pool(x, out, pixels, channels, height, width, out_height, out_width, *extra, LOWEST: tl.constexpr,
             KERNEL_Y: tl.constexpr, KERNEL_X: tl.constexpr, STRIDE_Y: tl.constexpr, STRIDE_X: tl.constexpr,
             PAD_Y: tl.constexpr, PAD_X: tl.constexpr, DILATION_Y: tl.constexpr, DILATION_X: tl.constexpr,
             ROWS: tl.constexpr, BLOCK: tl.constexpr, MASK: tl.constexpr, TYPE: tl.constexpr = tl.float32,
             EPILOGUE: tl.constexpr = identity):  # fmt: skip
    """EPILOGUE of the largest element of each window; what lies outside the image never wins.

    Grid: (pixel blocks, channel blocks); `ROWS` output pixels a program, `BLOCK` channels at once.
    """
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = within(column, channels, MASK)
    first = tl.program_id(0) * ROWS
    for pixel in range(first, tl.minimum(first + ROWS, pixels)):
        image, top, left = window_origins(pixel, out_height, out_width, STRIDE_Y, STRIDE_X, PAD_Y, PAD_X)
        base = image.to(tl.int64) * height
        best = tl.full((BLOCK,), LOWEST, x.dtype.element_ty)
        for tap_y in range(0, KERNEL_Y):
            y = top + tap_y * DILATION_Y
            if (y >= 0) & (y < height):
                for tap_x in range(0, KERNEL_X):
                    x_position = left + tap_x * DILATION_X
                    if (x_position >= 0) & (x_position < width):
                        value = tl.load(x + ((base + y) * width + x_position) * channels + column, mask=mask)
                        best = maximum(best, value)
        row = pixel.to(tl.int64)
        tl.store(out + row * channels + column, EPILOGUE(best.to(TYPE), row, column, mask, extra), mask=mask)


@tilewright.jit
def average_pool(x, out, pixels, channels, height, width, out_height, out_width, *extra,
                 KERNEL_Y: tl.constexpr, KERNEL_X: tl.constexpr, STRIDE_Y: tl.constexpr, STRIDE_X: tl.constexpr,
                 PAD_Y: tl.constexpr, PAD_X: tl.constexpr, DILATION_Y: tl.constexpr, DILATION_X: tl.constexpr,
                 COUNT_Y: tl.constexpr, COUNT_X: tl.constexpr, COUNT_END_Y: tl.constexpr, COUNT_END_X: tl.constexpr,
                 ROWS: tl.constexpr, BLOCK: tl.constexpr, MASK: tl.constexpr,
                 TYPE: tl.constexpr = tl.float32, EPILOGUE: tl.constexpr = identity):  # fmt: skip
    """EPILOGUE of the mean of each window.

    Taps count in the divisor up to `COUNT_*` pixels before the image and `COUNT_END_*` after it.
    Grid: (pixel blocks, channel blocks).
    """
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = within(column, channels, MASK)
    first = tl.program_id(0) * ROWS
    for pixel in range(first, tl.minimum(first + ROWS, pixels)):
        image, top, left = window_origins(pixel, out_height, out_width, STRIDE_Y, STRIDE_X, PAD_Y, PAD_X)
        base = image.to(tl.int64) * height
        total = tl.zeros((BLOCK,), TYPE)
        count = tl.full((), 0, tl.int32)
        for tap_y in range(0, KERNEL_Y):
            y = top + tap_y * DILATION_Y
            counted_y = (y >= -COUNT_Y) & (y < height + COUNT_END_Y)
            for tap_x in range(0, KERNEL_X):
                x_position = left + tap_x * DILATION_X
                counted = counted_y & (x_position >= -COUNT_X) & (x_position < width + COUNT_END_X)
                count += counted.to(tl.int32)
                if (y >= 0) & (y < height) & (x_position >= 0) & (x_position < width):
                    value = tl.load(x + ((base + y) * width + x_position) * channels + column, mask=mask)
                    total += value.to(TYPE)
        row = pixel.to(tl.int64)
        result = EPILOGUE(total / count.to(TYPE), row, column, mask, extra)
        tl.store(out + row * channels + column, result, mask=mask)
