"""Convolutions of channels-last images on GPUs by ordinary units: depthwise, and of few channels.

A thread takes several neighbouring channels of a pixel at once.
"""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl
from tilewright.library.epilogue import identity


@tilewright.jit
def item_place(columns, out_height, out_width, LINES: tl.constexpr, RUN: tl.constexpr, ITEMS: tl.constexpr,
               VECTOR: tl.constexpr):  # fmt: skip
    """(image, line, first pixel, channels) of the items of a program: `VECTOR` neighbouring channels, which divide the
    columns, of `RUN` neighbouring pixels of `LINES` lines."""
    across = tl.cdiv(out_width, RUN)
    down = tl.cdiv(out_height, LINES)
    vectors = columns // VECTOR
    item = tl.program_id(0) * ITEMS + tl.arange(0, ITEMS)[:, None]
    run = item // vectors
    channel = (item - run * vectors) * VECTOR + tl.arange(0, VECTOR)[None, :]
    line = run // across
    image = line // down
    return image, (line - image * down) * LINES, (run - line * across) * RUN, channel


@tilewright.jit
def store_items(sums, out, there, image, line, first, channel, columns, out_height, out_width, extra,
                RUN: tl.constexpr, EPILOGUE: tl.constexpr):  # fmt: skip
    """Store EPILOGUE of the sums of items, where their pixels are there."""
    for i in tl.static_range(len(sums)):
        y = line + i // RUN
        pixel = first + i % RUN
        row = (image.to(tl.int64) * out_height + y) * out_width + pixel
        mask = there & (y < out_height) & (pixel < out_width) & (channel < columns)
        tl.store(out + row * columns + channel, EPILOGUE(sums[i], row, channel, mask, extra), mask=mask)


@tilewright.jit
def added(sums, value, weights, down, across, RUN: tl.constexpr, STRIDE_Y: tl.constexpr, STRIDE_X: tl.constexpr,
          DILATION_Y: tl.constexpr, DILATION_X: tl.constexpr, KERNEL_Y: tl.constexpr,
          KERNEL_X: tl.constexpr):  # fmt: skip
    """`sums` of pixels, lines of `RUN`, with what the element `down` and `across` from where the first one's window
    begins adds to each."""
    result = ()
    for i in tl.static_range(len(sums)):
        y = down - i // RUN * STRIDE_Y
        x = across - i % RUN * STRIDE_X
        seen = y >= 0 and y % DILATION_Y == 0 and y // DILATION_Y < KERNEL_Y
        if seen and x >= 0 and x % DILATION_X == 0 and x // DILATION_X < KERNEL_X:
            result = result + (sums[i] + value * weights[y // DILATION_Y * KERNEL_X + x // DILATION_X],)
        else:
            result = result + (sums[i],)
    return result


@tilewright.jit
def depthwise(x, w, out, images, columns, height, width, out_height, out_width, *extra,
              KERNEL_Y: tl.constexpr, KERNEL_X: tl.constexpr, STRIDE_Y: tl.constexpr, STRIDE_X: tl.constexpr,
              PAD_Y: tl.constexpr, PAD_X: tl.constexpr, DILATION_Y: tl.constexpr, DILATION_X: tl.constexpr,
              LINES: tl.constexpr, RUN: tl.constexpr, ITEMS: tl.constexpr, VECTOR: tl.constexpr,
              TYPE: tl.constexpr = tl.float32, EPILOGUE: tl.constexpr = identity):  # fmt: skip
    """One filter for each channel; w is [KERNEL_Y][KERNEL_X][columns].

    An item is `VECTOR` neighbouring channels, which divide the columns, of `RUN` neighbouring pixels of `LINES` lines;
    a thread has one, and loads once what their windows share.  Grid: (blocks of `ITEMS`,).
    """
    image, line, first, channel = item_place(columns, out_height, out_width, LINES, RUN, ITEMS, VECTOR)
    top = line * STRIDE_Y - PAD_Y
    left = first * STRIDE_X - PAD_X
    there = image < images
    x += image.to(tl.int64) * (height * width * columns)
    SEEN_Y: tl.constexpr = (LINES - 1) * STRIDE_Y + (KERNEL_Y - 1) * DILATION_Y + 1
    SEEN_X: tl.constexpr = (RUN - 1) * STRIDE_X + (KERNEL_X - 1) * DILATION_X + 1

    sums = (tl.zeros((ITEMS, VECTOR), TYPE),) * (LINES * RUN)
    weights = ()
    for down in tl.static_range(SEEN_Y):
        if down % DILATION_Y == 0 and down // DILATION_Y < KERNEL_Y:
            for tap_x in tl.static_range(KERNEL_X):
                tap = down // DILATION_Y * KERNEL_X + tap_x
                weights = weights + (tl.load(w + tap * columns + channel).to(TYPE),)
        y = top + down
        inside = there & (y >= 0) & (y < height)
        if KERNEL_Y > 1 or down % STRIDE_Y == 0:
            for j in tl.static_range(SEEN_X):
                if KERNEL_X > 1 or j % STRIDE_X == 0:
                    x_position = left + j
                    mask = inside & (x_position >= 0) & (x_position < width)
                    value = tl.load(x + (y * width + x_position) * columns + channel, mask=mask, other=0.0).to(TYPE)
                    sums = added(sums, value, weights, down, j, RUN, STRIDE_Y, STRIDE_X, DILATION_Y, DILATION_X,
                                 KERNEL_Y, KERNEL_X)  # fmt: skip
    store_items(sums, out, there, image, line, first, channel, columns, out_height, out_width, extra, RUN, EPILOGUE)


@tilewright.jit
def few_channels(x, w, out, images, columns, height, width, out_height, out_width, image_step, row_step, column_step,
                 channel_step, *extra, CHANNELS: tl.constexpr, KERNEL_Y: tl.constexpr, KERNEL_X: tl.constexpr,
                 STRIDE_Y: tl.constexpr, STRIDE_X: tl.constexpr, PAD_Y: tl.constexpr, PAD_X: tl.constexpr,
                 DILATION_Y: tl.constexpr, DILATION_X: tl.constexpr, RUN: tl.constexpr, ITEMS: tl.constexpr,
                 VECTOR: tl.constexpr, TYPE: tl.constexpr = tl.float32, EPILOGUE: tl.constexpr = identity):  # fmt: skip
    """A convolution of images of few channels, which lie in any order (steps in elements); w is
    [KERNEL_Y][KERNEL_X][CHANNELS][columns].

    An item is `VECTOR` neighbouring columns, which divide all, of `RUN` neighbouring pixels of a line; a thread has
    one, and loads once what their windows share.  Grid: (blocks of `ITEMS`,).
    """
    image, line, first, column = item_place(columns, out_height, out_width, 1, RUN, ITEMS, VECTOR)
    top = line * STRIDE_Y - PAD_Y
    left = first * STRIDE_X - PAD_X
    there = image < images
    x += image.to(tl.int64) * image_step
    SEEN: tl.constexpr = (RUN - 1) * STRIDE_X + (KERNEL_X - 1) * DILATION_X + 1

    sums = (tl.zeros((ITEMS, VECTOR), TYPE),) * RUN
    for tap_y in tl.static_range(KERNEL_Y):
        y = top + tap_y * DILATION_Y
        inside = there & (y >= 0) & (y < height)
        for channel in tl.static_range(CHANNELS):
            weights = ()
            for tap_x in tl.static_range(KERNEL_X):
                place = ((tap_y * KERNEL_X + tap_x) * CHANNELS + channel) * columns + column
                weights = weights + (tl.load(w + place).to(TYPE),)
            for j in tl.static_range(SEEN):
                mask = inside & (left + j >= 0) & (left + j < width)
                place = y * row_step + (left + j) * column_step + channel * channel_step
                value = tl.load(x + place, mask=mask, other=0.0).to(TYPE)
                sums = added(sums, value, weights, 0, j, RUN, 1, STRIDE_X, 1, DILATION_X, 1, KERNEL_X)
    store_items(sums, out, there, image, line, first, column, columns, out_height, out_width, extra, RUN, EPILOGUE)
