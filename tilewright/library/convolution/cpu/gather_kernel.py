"""Convolutions of 8-bit integers as matrix products, in the tile language: windows in place, or gathered as rows."""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl
from tilewright.library.convolution.kernel import store_pixels
from tilewright.library.epilogue import identity
from tilewright.library.matmul.kernel import load_panels, load_strided


@tilewright.jit
def gather_windows(x, out, lines, height, width, out_height, out_width, CHANNELS: tl.constexpr,
                   KERNEL_Y: tl.constexpr, KERNEL_X: tl.constexpr, STRIDE_Y: tl.constexpr, STRIDE_X: tl.constexpr,
                   DILATION_Y: tl.constexpr, DILATION_X: tl.constexpr, DEPTH: tl.constexpr,
                   LINES: tl.constexpr):  # fmt: skip
    """out[pixel, (tap_y, tap_x, channel)] = x[window + tap, channel] of channels-last images without padding.

    Rows of `out` are `DEPTH` elements apart.  The taps of a line are one contiguous run where they are not dilated.
    Grid: (blocks of `LINES` lines of output pixels,).
    """
    across: tl.constexpr = KERNEL_X if DILATION_X == 1 else 1
    taps: tl.constexpr = KERNEL_X // across
    run = tl.arange(0, across * CHANNELS)
    first = tl.program_id(0) * LINES
    for line in range(first, tl.minimum(first + LINES, lines)):
        top = (line // out_height).to(tl.int64) * height + line % out_height * STRIDE_Y
        windows = x + top * width * CHANNELS
        rows = out + line.to(tl.int64) * out_width * DEPTH
        for pixel in range(0, out_width):
            for tap_y in range(0, KERNEL_Y):
                for tap_x in range(0, taps):
                    shift = (tap_y * DILATION_Y * width + tap_x * DILATION_X) * CHANNELS
                    place = (tap_y * taps + tap_x) * (across * CHANNELS)
                    line_of_taps = tl.load(windows + (pixel * (STRIDE_X * CHANNELS) + shift) + run)
                    tl.store(rows + (pixel * DEPTH + place) + run, line_of_taps)


@tilewright.jit
def gather_groups(x, out, lines, height, width, out_height, out_width, GROUPS: tl.constexpr, CHANNELS: tl.constexpr,
                  KERNEL_Y: tl.constexpr, KERNEL_X: tl.constexpr, STRIDE_Y: tl.constexpr, STRIDE_X: tl.constexpr,
                  DILATION_Y: tl.constexpr, DILATION_X: tl.constexpr, DEPTH: tl.constexpr,
                  LINES: tl.constexpr):  # fmt: skip
    """out[group, pixel, (tap_y, tap_x, channel)] = x[window + tap, group, channel]: `gather_windows` of groups of
    `CHANNELS` channels, each in a row of `DEPTH` elements.  Grid: (blocks of `LINES` lines of output pixels,)."""
    run = tl.arange(0, CHANNELS)
    across: tl.constexpr = GROUPS * CHANNELS
    first = tl.program_id(0) * LINES
    for line in range(first, tl.minimum(first + LINES, lines)):
        top = (line // out_height).to(tl.int64) * height + line % out_height * STRIDE_Y
        windows = x + top * width * across
        rows = out + line.to(tl.int64) * out_width * DEPTH
        apart = lines.to(tl.int64) * out_width * DEPTH
        for pixel in range(0, out_width):
            for tap_y in range(0, KERNEL_Y):
                for tap_x in range(0, KERNEL_X):
                    shift = (tap_y * DILATION_Y * width + tap_x * DILATION_X) * across
                    tap = windows + (pixel * (STRIDE_X * across) + shift)
                    place = rows + (pixel * DEPTH + (tap_y * KERNEL_X + tap_x) * CHANNELS)
                    for group in range(0, GROUPS):
                        tl.store(place + group * apart + run, tl.load(tap + group * CHANNELS + run))


@tilewright.jit
def product_of_groups(a, w, out, pixels, columns, *extra, GROUPS: tl.constexpr, DEPTH: tl.constexpr,
                      BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WIDTH: tl.constexpr, GROUP: tl.constexpr,
                      MASK_M: tl.constexpr, MASK_N: tl.constexpr, MASK_PANEL: tl.constexpr,
                      PRECISION: tl.constexpr = "ieee", EPILOGUE: tl.constexpr = identity):  # fmt: skip
    """out[pixel, group, :] = EPILOGUE(a[group, pixel, :] @ w[group]), with `columns` columns of each group in panels.

    Grid: (pixel blocks, column blocks, groups).
    """
    group = tl.program_id(2)
    pixel = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    panels = tl.cdiv(columns, WIDTH)
    rows = load_strided(a + group.to(tl.int64) * pixels * DEPTH, pixel[:, None], tl.arange(0, DEPTH)[None, :], DEPTH, 1,
                        pixels, DEPTH, MASK_M, False)  # fmt: skip
    weights = load_panels(w + group.to(tl.int64) * panels * (DEPTH * WIDTH), tl.program_id(1) * (BLOCK_N // WIDTH), 0,
                          DEPTH, panels, BLOCK_N // WIDTH, DEPTH, WIDTH, MASK_PANEL, False, GROUP)  # fmt: skip
    sums = tl.dot(rows, weights, input_precision=PRECISION)
    store_pixels(sums, out, pixel, column, group, pixels, columns, extra, GROUPS, MASK_M, MASK_N, EPILOGUE)


@tilewright.jit
def lines_between_zeros(x, out, lines, height, out_height, TOP: tl.constexpr, LEFT: tl.constexpr, LINE: tl.constexpr,
                        RIGHT: tl.constexpr, ROWS: tl.constexpr):  # fmt: skip
    """Images of `height` lines of `LINE` bytes with `LEFT` and `RIGHT` zeros at the ends of each, and lines of zeros:
    `TOP` above, and below up to `out_height` lines.  Grid: (blocks of `ROWS` lines of `out`,)."""
    first = tl.program_id(0) * ROWS
    for line in range(first, tl.minimum(first + ROWS, lines)):
        own = line % out_height - TOP
        row = out + line.to(tl.int64) * (LEFT + LINE + RIGHT)
        if (own >= 0) & (own < height):
            start = x + ((line // out_height).to(tl.int64) * height + own) * LINE
            if LEFT > 0:
                tl.store(row + tl.arange(0, LEFT), tl.zeros((LEFT,), tl.uint8))
            tl.store(row + LEFT + tl.arange(0, LINE), tl.load(start + tl.arange(0, LINE)))
            if RIGHT > 0:
                tl.store(row + (LEFT + LINE) + tl.arange(0, RIGHT), tl.zeros((RIGHT,), tl.uint8))
        else:
            tl.store(row + tl.arange(0, LEFT + LINE + RIGHT), tl.zeros((LEFT + LINE + RIGHT,), tl.uint8))


@tilewright.jit
def convolution_of_lines(x, w, out, columns, *extra, HEIGHT: tl.constexpr, ACROSS: tl.constexpr,
                         OUT_HEIGHT: tl.constexpr, OUT_WIDTH: tl.constexpr, CHANNELS: tl.constexpr,
                         KERNEL_Y: tl.constexpr, KERNEL_X: tl.constexpr, DILATION_Y: tl.constexpr,
                         LINES: tl.constexpr, BLOCK_N: tl.constexpr, WIDTH: tl.constexpr, GROUP: tl.constexpr,
                         MASK_N: tl.constexpr, MASK_PANEL: tl.constexpr,
                         EPILOGUE: tl.constexpr = identity):  # fmt: skip
    """A convolution with steps of one pixel that reads its windows where they lie.

    x is [images][HEIGHT][ACROSS][CHANNELS] with the padding in it, and one line more than windows reach.  Windows begin
    at every pixel of `LINES` lines, which divide OUT_HEIGHT: those that begin where they leave the line give sums that
    are not stored.  So rows of the product, which are `KERNEL_Y` runs of a line of taps, all begin CHANNELS elements
    after the one before.  Grid: (blocks of lines, column blocks).
    """
    first_line = tl.program_id(0) * LINES
    top = (first_line // OUT_HEIGHT).to(tl.int64) * HEIGHT + first_line % OUT_HEIGHT
    windows = tl.arange(0, LINES * ACROSS)[:, None, None] * CHANNELS
    taps = tl.arange(0, KERNEL_Y)[None, :, None] * (DILATION_Y * ACROSS * CHANNELS)
    run = tl.arange(0, KERNEL_X * CHANNELS)[None, None, :]
    depth: tl.constexpr = KERNEL_Y * KERNEL_X * CHANNELS
    rows = tl.reshape(tl.load(x + top * (ACROSS * CHANNELS) + windows + taps + run), (LINES * ACROSS, depth))
    panels = load_panels(w, tl.program_id(1) * (BLOCK_N // WIDTH), 0, depth, tl.cdiv(columns, WIDTH), BLOCK_N // WIDTH,
                         depth, WIDTH, MASK_PANEL, False, GROUP)  # fmt: skip
    sums = tl.reshape(tl.dot(rows, panels, input_precision="ieee"), (LINES, ACROSS, BLOCK_N))
    across = tl.arange(0, ACROSS)[None, :, None]
    line = first_line + tl.arange(0, LINES)[:, None, None]
    pixel = line.to(tl.int64) * OUT_WIDTH + across
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)[None, None, :]
    mask = across < OUT_WIDTH
    if MASK_N:
        mask = mask & (column < columns)
    result = EPILOGUE(sums, pixel, column, mask, extra)
    tl.store(out + pixel * columns + column, result, mask=mask)
