"""The windows of an image as rows of a matrix, in the tile language: what a product of 8-bit integers reads."""

# mypy: ignore-errors
# The body below is tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl
from tilewright.library.convolution.kernel import window_origins


@tilewright.jit
def gather_windows(x, out, pixels, height, width, out_height, out_width, CHANNELS: tl.constexpr,
                   KERNEL_Y: tl.constexpr, KERNEL_X: tl.constexpr, STRIDE_Y: tl.constexpr, STRIDE_X: tl.constexpr,
                   PAD_Y: tl.constexpr, PAD_X: tl.constexpr, DILATION_Y: tl.constexpr, DILATION_X: tl.constexpr,
                   ROWS: tl.constexpr):  # fmt: skip
    """out[pixel, (tap_y, tap_x, channel)] = x[window + tap, channel] of channels-last images without padding.

    The taps of a line are one contiguous run where they are not dilated.  Grid: (blocks of `ROWS` pixels,).
    """
    across: tl.constexpr = KERNEL_X if DILATION_X == 1 else 1
    taps: tl.constexpr = KERNEL_X // across
    run = tl.arange(0, across * CHANNELS)
    first = tl.program_id(0) * ROWS
    for pixel in range(first, tl.minimum(first + ROWS, pixels)):
        image, top, left = window_origins(pixel, out_height, out_width, STRIDE_Y, STRIDE_X, PAD_Y, PAD_X)
        base = x + ((image.to(tl.int64) * height + top) * width + left) * CHANNELS
        row = out + pixel.to(tl.int64) * (KERNEL_Y * KERNEL_X * CHANNELS)
        for tap_y in range(0, KERNEL_Y):
            for tap_x in range(0, taps):
                shift = (tap_y * DILATION_Y * width + tap_x * DILATION_X) * CHANNELS
                place = (tap_y * taps + tap_x) * (across * CHANNELS)
                tl.store(row + place + run, tl.load(base + shift + run))
