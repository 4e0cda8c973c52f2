"""Convolution in groups of few channels on CPUs: sums of neighbouring pixels in registers, no matrix product."""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl
from tilewright.library.convolution.cpu.pixel_places import run_place
from tilewright.library.epilogue import identity
from tilewright.library.masks import and_masks, within


@tilewright.jit
def channel_products(sums, line, w, left, width, stride, channel, STRIDE_X: tl.constexpr, SHIFT: tl.constexpr,
                     BLOCK: tl.constexpr, EDGE: tl.constexpr, TYPE: tl.constexpr):  # fmt: skip
    """`sums` of neighbouring pixels plus the products of a channel of a tap, `SHIFT` pixels behind the window's first.

    `line` is at the first pixel of a line, `w` at the tap's weights, [channels, BLOCK].  Where `EDGE`, windows may
    leave the line: they read the nearest pixel of the line there, and take a zero in place of its value.
    """
    weight = tl.load(w + channel * BLOCK + tl.arange(0, BLOCK)).to(TYPE)
    found = ()
    for pixel in tl.static_range(len(sums)):
        place = left + (pixel * STRIDE_X + SHIFT)
        if EDGE:
            nearest = tl.minimum(tl.maximum(place, 0), width - 1)
            value = tl.load(line + nearest * stride + channel).to(TYPE)
            value = tl.where(nearest == place, value, 0.0)
        else:
            value = tl.load(line + place * stride + channel).to(TYPE)
        found = found + (sums[pixel] + value * weight,)
    return found


@tilewright.jit
def tap_products(sums, line, w, left, width, stride, CHANNELS: tl.constexpr, STRIDE_X: tl.constexpr,
                 SHIFT: tl.constexpr, BLOCK: tl.constexpr, EDGE: tl.constexpr, TYPE: tl.constexpr):  # fmt: skip
    """`channel_products` of all channels of a tap."""
    for channel in range(0, CHANNELS):
        sums = channel_products(sums, line, w, left, width, stride, channel, STRIDE_X, SHIFT, BLOCK, EDGE, TYPE)
    return sums


@tilewright.jit
def direct_sums(image, w, top, left, height, width, stride, CHANNELS: tl.constexpr, KERNEL_Y: tl.constexpr,
                KERNEL_X: tl.constexpr, STRIDE_X: tl.constexpr, DILATION_Y: tl.constexpr, DILATION_X: tl.constexpr,
                PIXELS: tl.constexpr, BLOCK: tl.constexpr, WHOLE_LINES: tl.constexpr, EDGE: tl.constexpr,
                TYPE: tl.constexpr):  # fmt: skip
    """The sums of `PIXELS` neighbouring windows; `stride` elements lie between two pixels of the image."""
    sums = ()
    for _ in tl.static_range(PIXELS):
        sums = sums + (tl.zeros((BLOCK,), TYPE),)
    for tap_y in range(0, KERNEL_Y):
        y = top + tap_y * DILATION_Y
        if (y >= 0) & (y < height):
            line = image + y.to(tl.int64) * width * stride
            taps = w + tap_y * (KERNEL_X * CHANNELS * BLOCK)
            if EDGE:  # places that are known when compiling leave no code for taps outside of the line
                for tap_x in tl.static_range(KERNEL_X):
                    sums = tap_products(sums, line, taps + tap_x * (CHANNELS * BLOCK), left, width, stride, CHANNELS,
                                        STRIDE_X, tap_x * DILATION_X, BLOCK, True, TYPE)  # fmt: skip
            elif WHOLE_LINES:  # a line of taps, all its channels, lies in one run
                sums = tap_products(sums, line, taps, left, width, stride, KERNEL_X * CHANNELS, STRIDE_X, 0, BLOCK,
                                    False, TYPE)  # fmt: skip
            else:
                for tap_x in range(0, KERNEL_X):
                    sums = tap_products(sums, line + tap_x * (DILATION_X * stride), taps + tap_x * (CHANNELS * BLOCK),
                                        left, width, stride, CHANNELS, STRIDE_X, 0, BLOCK, False, TYPE)  # fmt: skip
    return sums


@tilewright.jit
def direct_convolution(x, w, out, runs, columns, height, width, out_height, out_width, *extra, CHANNELS: tl.constexpr,
                       GROUPS: tl.constexpr, KERNEL_Y: tl.constexpr, KERNEL_X: tl.constexpr, STRIDE_Y: tl.constexpr,
                       STRIDE_X: tl.constexpr, PAD_Y: tl.constexpr, PAD_X: tl.constexpr, DILATION_Y: tl.constexpr,
                       DILATION_X: tl.constexpr, PIXELS: tl.constexpr, RAGGED: tl.constexpr, EDGES: tl.constexpr,
                       ROWS: tl.constexpr, BLOCK: tl.constexpr, MASK: tl.constexpr, TYPE: tl.constexpr = tl.float32,
                       EPILOGUE: tl.constexpr = identity):  # fmt: skip
    """out[pixel, :] = EPILOGUE(sum over taps of x[window + tap, :] @ w[tap]), in groups.

    `CHANNELS` and `columns` count one group's channels.  Weights are in panels of `BLOCK` columns, whole vectors: a
    panel stays in level 1 while its program walks `ROWS` runs of `PIXELS` neighbouring output pixels (`RAGGED`: the
    last run of a line may be shorter; `EDGES`: which of them have windows that leave the line, "none", those at its
    "ends", whose places are known when compiling, or "any").  Grid: (panels of all groups, blocks of runs).
    """
    panels = tl.cdiv(columns, BLOCK)
    group = tl.program_id(0) // panels
    column = tl.program_id(0) % panels * BLOCK + tl.arange(0, BLOCK)
    mask = within(column, columns, MASK)
    stride: tl.constexpr = CHANNELS * GROUPS
    whole_lines: tl.constexpr = GROUPS == 1 and DILATION_X == 1
    w = w + tl.program_id(0).to(tl.int64) * (KERNEL_Y * KERNEL_X * CHANNELS * BLOCK)
    across = tl.cdiv(out_width, PIXELS)
    first_left, last_left = tl.full((), -PAD_X, tl.int32), (across - 1) * (PIXELS * STRIDE_X) - PAD_X
    first = tl.program_id(1) * ROWS
    for run in range(first, tl.minimum(first + ROWS, runs)):
        image, start, row, top, left, whole = run_place(run, across, width, out_height, out_width, KERNEL_X, STRIDE_Y,
                                                        STRIDE_X, PAD_Y, PAD_X, DILATION_X, PIXELS)  # fmt: skip
        image = x + image * height * width * stride + group * CHANNELS
        if EDGES == "none" or whole:
            sums = direct_sums(image, w, top, left, height, width, stride, CHANNELS, KERNEL_Y, KERNEL_X, STRIDE_X,
                               DILATION_Y, DILATION_X, PIXELS, BLOCK, whole_lines, False, TYPE)  # fmt: skip
        elif EDGES == "any":
            sums = direct_sums(image, w, top, left, height, width, stride, CHANNELS, KERNEL_Y, KERNEL_X, STRIDE_X,
                               DILATION_Y, DILATION_X, PIXELS, BLOCK, whole_lines, True, TYPE)  # fmt: skip
        elif start == 0:
            sums = direct_sums(image, w, top, first_left, height, width, stride, CHANNELS, KERNEL_Y, KERNEL_X,
                               STRIDE_X, DILATION_Y, DILATION_X, PIXELS, BLOCK, whole_lines, True, TYPE)  # fmt: skip
        else:
            sums = direct_sums(image, w, top, last_left, height, width, stride, CHANNELS, KERNEL_Y, KERNEL_X,
                               STRIDE_X, DILATION_Y, DILATION_X, PIXELS, BLOCK, whole_lines, True, TYPE)  # fmt: skip
        place = column + group * columns
        for pixel in tl.static_range(PIXELS):
            stored = mask
            if RAGGED:
                stored = and_masks(mask, start + pixel < out_width)
            result = EPILOGUE(sums[pixel], row + pixel, place, stored, extra)
            tl.store(out + (row + pixel) * (columns * GROUPS) + place, result, mask=stored)
