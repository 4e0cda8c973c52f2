"""What kernels of convolutions and pools share on any machine: windows, stores, the depthwise convolution."""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl
from tilewright.library.epilogue import identity
from tilewright.library.masks import edge_mask, within


@tilewright.jit
def window_origins(pixel, out_height, out_width, STRIDE_Y: tl.constexpr, STRIDE_X: tl.constexpr, PAD_Y: tl.constexpr,
                   PAD_X: tl.constexpr):  # fmt: skip
    """(image, top, left) of the windows of flattened output pixels."""
    line = pixel // out_width
    left = (pixel % out_width) * STRIDE_X - PAD_X
    top = (line % out_height) * STRIDE_Y - PAD_Y
    return line // out_height, top, left


@tilewright.jit
def store_pixels(acc, out, pixel, column, group, pixels, columns, extra, GROUPS: tl.constexpr, MASK_M: tl.constexpr,
                 MASK_N: tl.constexpr, EPILOGUE: tl.constexpr):  # fmt: skip
    """Store EPILOGUE(acc) for flattened output pixels by columns of a group."""
    row = pixel[:, None]
    mask = edge_mask(row, column, pixels, columns, MASK_M, MASK_N)
    output_column = column + group * columns
    output_row = row.to(tl.int64)
    result = EPILOGUE(acc, output_row, output_column, mask, extra)
    tl.store(out + output_row * (columns * GROUPS) + output_column, result, mask=mask)


@tilewright.jit
def depthwise_convolution(x, w, out, pixels, columns, height, width, out_height, out_width, *extra,
                          KERNEL_Y: tl.constexpr, KERNEL_X: tl.constexpr, STRIDE_Y: tl.constexpr,
                          STRIDE_X: tl.constexpr, PAD_Y: tl.constexpr, PAD_X: tl.constexpr,
                          DILATION_Y: tl.constexpr, DILATION_X: tl.constexpr, ROWS: tl.constexpr,
                          BLOCK: tl.constexpr, MASK: tl.constexpr, TYPE: tl.constexpr = tl.float32,
                          EPILOGUE: tl.constexpr = identity):  # fmt: skip
    """One filter for each channel; w is [KERNEL_Y][KERNEL_X][columns].  Grid: (pixel blocks, channel blocks)."""
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = within(column, columns, MASK)
    first = tl.program_id(0) * ROWS
    for pixel in range(first, tl.minimum(first + ROWS, pixels)):
        image, top, left = window_origins(pixel, out_height, out_width, STRIDE_Y, STRIDE_X, PAD_Y, PAD_X)
        base = image.to(tl.int64) * height
        acc = tl.zeros((BLOCK,), TYPE)
        for tap_y in range(0, KERNEL_Y):
            y = top + tap_y * DILATION_Y
            if (y >= 0) & (y < height):
                for tap_x in range(0, KERNEL_X):
                    x_position = left + tap_x * DILATION_X
                    if (x_position >= 0) & (x_position < width):
                        value = tl.load(x + ((base + y) * width + x_position) * columns + column, mask=mask)
                        weight = tl.load(w + (tap_y * KERNEL_X + tap_x) * columns + column, mask=mask)
                        acc += value.to(TYPE) * weight.to(TYPE)
        row = pixel.to(tl.int64)
        tl.store(out + row * columns + column, EPILOGUE(acc, row, column, mask, extra), mask=mask)
