"""Depthwise convolution of channels-last images on CPUs, several neighbouring output pixels at once."""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl
from tilewright.library.convolution.cpu.pixel_places import run_place
from tilewright.library.epilogue import identity
from tilewright.library.masked_loads import load_within
from tilewright.library.masks import and_masks, within


@tilewright.jit
def line_taps(sums, x, w, y, left, width, columns, column, mask, KERNEL_X: tl.constexpr, STRIDE_X: tl.constexpr,
              DILATION_X: tl.constexpr, EDGE: tl.constexpr, TYPE: tl.constexpr):  # fmt: skip
    """`sums` of neighbouring pixels plus the products of one line of taps.

    `x` and `w` are at the first column of the image's line `y` and of the taps' line; where `EDGE`, windows may begin
    before the line or reach beyond it.
    """
    weights = ()
    for tap in tl.static_range(KERNEL_X):
        weights = weights + (tl.load(w + tap * columns + column, mask=mask).to(TYPE),)
    found = ()
    for pixel in tl.static_range(len(sums)):
        total = sums[pixel]
        for tap in tl.static_range(KERNEL_X):
            place = left + (pixel * STRIDE_X + tap * DILATION_X)
            inside = mask
            if EDGE:
                inside = and_masks(mask, (place >= 0) & (place < width))
            total += load_within(x + place * columns + column, inside).to(TYPE) * weights[tap]
        found = found + (total,)
    return found


@tilewright.jit
def window_sums(x, w, top, left, height, width, columns, column, mask, KERNEL_Y: tl.constexpr, KERNEL_X: tl.constexpr,
                STRIDE_X: tl.constexpr, DILATION_Y: tl.constexpr, DILATION_X: tl.constexpr, PIXELS: tl.constexpr,
                BLOCK: tl.constexpr, EDGE: tl.constexpr, TYPE: tl.constexpr):  # fmt: skip
    """The sums of `PIXELS` neighbouring windows; `x` is at the first element of their image."""
    sums = ()
    for _ in tl.static_range(PIXELS):
        sums = sums + (tl.zeros((BLOCK,), TYPE),)
    for tap_y in range(0, KERNEL_Y):
        y = top + tap_y * DILATION_Y
        if (y >= 0) & (y < height):
            sums = line_taps(sums, x + y.to(tl.int64) * width * columns, w + tap_y * KERNEL_X * columns, y, left, width,
                             columns, column, mask, KERNEL_X, STRIDE_X, DILATION_X, EDGE, TYPE)  # fmt: skip
    return sums


@tilewright.jit
def depthwise_runs(x, w, out, runs, columns, height, width, out_height, out_width, *extra,
                   KERNEL_Y: tl.constexpr, KERNEL_X: tl.constexpr, STRIDE_Y: tl.constexpr, STRIDE_X: tl.constexpr,
                   PAD_Y: tl.constexpr, PAD_X: tl.constexpr, DILATION_Y: tl.constexpr, DILATION_X: tl.constexpr,
                   PIXELS: tl.constexpr, RAGGED: tl.constexpr, EDGES: tl.constexpr, ROWS: tl.constexpr,
                   BLOCK: tl.constexpr, MASK: tl.constexpr, TYPE: tl.constexpr = tl.float32,
                   EPILOGUE: tl.constexpr = identity):  # fmt: skip
    """One filter for each channel; w is [KERNEL_Y][KERNEL_X][columns].

    A run is `PIXELS` neighbouring output pixels of a line (`RAGGED`: the last of a line may be fewer; `EDGES`: which
    runs have windows that leave the line, "none", those at its "ends", whose places are known when compiling, or
    "any").  `BLOCK` channels are one vector, so that the sums of a run stay in registers from one line of taps to the
    next, and every weight and pixel is loaded once for all sums that take it.
    Grid: (blocks of `ROWS` runs,).
    """
    across = tl.cdiv(out_width, PIXELS)
    first_left, last_left = tl.full((), -PAD_X, tl.int32), (across - 1) * (PIXELS * STRIDE_X) - PAD_X
    first = tl.program_id(0) * ROWS
    for run in range(first, tl.minimum(first + ROWS, runs)):
        image, start, row, top, left, whole = run_place(run, across, width, out_height, out_width, KERNEL_X, STRIDE_Y,
                                                        STRIDE_X, PAD_Y, PAD_X, DILATION_X, PIXELS)  # fmt: skip
        image = x + image * height * width * columns
        for channel in range(0, columns, BLOCK):
            column = channel + tl.arange(0, BLOCK)
            mask = within(column, columns, MASK)
            if EDGES == "none" or whole:
                sums = window_sums(image, w, top, left, height, width, columns, column, mask, KERNEL_Y, KERNEL_X,
                                   STRIDE_X, DILATION_Y, DILATION_X, PIXELS, BLOCK, False, TYPE)  # fmt: skip
            elif EDGES == "any":
                sums = window_sums(image, w, top, left, height, width, columns, column, mask, KERNEL_Y, KERNEL_X,
                                   STRIDE_X, DILATION_Y, DILATION_X, PIXELS, BLOCK, True, TYPE)  # fmt: skip
            elif start == 0:
                sums = window_sums(image, w, top, first_left, height, width, columns, column, mask, KERNEL_Y,
                                   KERNEL_X, STRIDE_X, DILATION_Y, DILATION_X, PIXELS, BLOCK, True, TYPE)  # fmt: skip
            else:
                sums = window_sums(image, w, top, last_left, height, width, columns, column, mask, KERNEL_Y,
                                   KERNEL_X, STRIDE_X, DILATION_Y, DILATION_X, PIXELS, BLOCK, True, TYPE)  # fmt: skip
            for pixel in tl.static_range(PIXELS):
                stored = mask
                if RAGGED:
                    stored = and_masks(mask, start + pixel < out_width)
                result = EPILOGUE(sums[pixel], row + pixel, column, stored, extra)
                tl.store(out + (row + pixel) * columns + column, result, mask=stored)
