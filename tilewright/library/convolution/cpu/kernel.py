"""Two-dimensional convolution of channels-last images, in the tile language.

Seen as a matrix product: one row for each output pixel, one column for each output channel, the depth
runs over kernel taps and input channels.  The rows are never gathered in memory: each tap reads the
image in place, at a distance from the pixel's base address that is the same for all rows.

Weights are packed by `library.packing` (recipe `taps`): [groups][columns/WIDTH][taps * channels][WIDTH].
The epilogue sees output pixels as rows and output channels as columns.
"""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl
from tilewright.library.convolution.kernel import store_pixels, window_origins
from tilewright.library.epilogue import identity
from tilewright.library.matmul.kernel import load_panels


@tilewright.jit
def block_pixels(block, out_width, BLOCK_M: tl.constexpr, TILE_X: tl.constexpr):
    """The flattened output pixels of a block: `BLOCK_M` in a row, or a tile `TILE_X` wide of one image."""
    place = tl.arange(0, BLOCK_M)
    pixel = block * BLOCK_M + place
    if TILE_X > 0:
        tile_y: tl.constexpr = BLOCK_M // TILE_X
        across = out_width // TILE_X
        line = block // across * tile_y + place // TILE_X
        pixel = line * out_width + (block % across * TILE_X + place % TILE_X)
    return pixel


@tilewright.jit
def convolution(x, w, out, pixels, columns, height, width, out_height, out_width, *extra,
                CHANNELS: tl.constexpr, GROUPS: tl.constexpr, KERNEL_Y: tl.constexpr, KERNEL_X: tl.constexpr,
                STRIDE_Y: tl.constexpr, STRIDE_X: tl.constexpr, PAD_Y: tl.constexpr, PAD_X: tl.constexpr,
                DILATION_Y: tl.constexpr, DILATION_X: tl.constexpr, PADDED: tl.constexpr,
                SPARSE: tl.constexpr, TILE_X: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
                BLOCK_C: tl.constexpr, WIDTH: tl.constexpr, MASK_M: tl.constexpr, MASK_N: tl.constexpr,
                MASK_PANEL: tl.constexpr, TYPE: tl.constexpr = tl.float32,
                EPILOGUE: tl.constexpr = identity):  # fmt: skip
    """out[pixel, :] = EPILOGUE(sum over taps of x[window + tap, :] @ w[tap]).

    Grid: (pixel blocks, column blocks, groups).  `CHANNELS` (a multiple of `BLOCK_C`) and `columns`
    count one group's channels.  `PADDED` says that windows can reach outside the image, `SPARSE`
    that whole blocks of pixels can have a tap there, which is left out then.  With `TILE_X` blocks are tiles of so many
    pixels of neighbouring lines, which divide the image: fewer of them have a tap both inside and outside of it.
    """
    group = tl.program_id(2)
    pixel = block_pixels(tl.program_id(0), out_width, BLOCK_M, TILE_X)
    first_panel = tl.program_id(1) * (BLOCK_N // WIDTH)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    panels = tl.cdiv(columns, WIDTH)
    depth = KERNEL_Y * KERNEL_X * CHANNELS
    image, top, left = window_origins(pixel, out_height, out_width, STRIDE_Y, STRIDE_X, PAD_Y, PAD_X)
    base = ((image.to(tl.int64) * height + top) * width + left) * (CHANNELS * GROUPS) + group * CHANNELS
    w = w + group.to(tl.int64) * panels * (depth * WIDTH)

    acc = tl.zeros((BLOCK_M, BLOCK_N), TYPE)
    for tap_y in range(0, KERNEL_Y):
        for tap_x in range(0, KERNEL_X):
            inside = pixel < pixels
            if PADDED:
                y = top + tap_y * DILATION_Y
                x_position = left + tap_x * DILATION_X
                inside = inside & (y >= 0) & (y < height) & (x_position >= 0) & (x_position < width)
            shift = (tap_y * DILATION_Y * width + tap_x * DILATION_X) * (CHANNELS * GROUPS)
            channels = CHANNELS
            if SPARSE:
                channels = tl.where(tl.max(inside.to(tl.int32), 0) > 0, CHANNELS, 0)
            for first_channel in range(0, channels, BLOCK_C):
                channel = first_channel + tl.arange(0, BLOCK_C)
                pointers = x + (base + shift)[:, None] + channel[None, :]
                if PADDED or MASK_M:
                    rows = tl.load(pointers, mask=inside[:, None], other=0.0)
                else:
                    rows = tl.load(pointers)
                step = (tap_y * KERNEL_X + tap_x) * CHANNELS + first_channel
                taps = load_panels(w, first_panel, step, depth, panels, BLOCK_N // WIDTH, BLOCK_C, WIDTH, MASK_PANEL,
                                   False)  # fmt: skip
                acc = tl.dot(rows, taps, acc, input_precision="ieee")

    store_pixels(acc, out, pixel, column, group, pixels, columns, extra, GROUPS, MASK_M, MASK_N, EPILOGUE)


@tilewright.jit
def convolution_few_channels(x, w, out, pixels, columns, height, width, out_height, out_width, *extra,
                             CHANNELS: tl.constexpr, KERNEL_Y: tl.constexpr, KERNEL_X: tl.constexpr,
                             STRIDE_Y: tl.constexpr, STRIDE_X: tl.constexpr, PAD_Y: tl.constexpr, PAD_X: tl.constexpr,
                             DILATION_Y: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
                             WIDTH: tl.constexpr, MASK_M: tl.constexpr, MASK_N: tl.constexpr,
                             MASK_PANEL: tl.constexpr, TYPE: tl.constexpr = tl.float32,
                             EPILOGUE: tl.constexpr = identity):  # fmt: skip
    """`convolution` for a first layer: a line of the window, all its channels, is one contiguous run.

    Needs one group and no dilation along x.  Grid: (pixel blocks, column blocks).
    """
    pixel = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    first_panel = tl.program_id(1) * (BLOCK_N // WIDTH)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    panels = tl.cdiv(columns, WIDTH)
    image, top, left = window_origins(pixel, out_height, out_width, STRIDE_Y, STRIDE_X, PAD_Y, PAD_X)
    base = ((image.to(tl.int64) * height + top) * width + left) * CHANNELS
    run = tl.arange(0, KERNEL_X * CHANNELS)
    # Elements of the run that lie in the image: from its left edge to its right edge.
    first_inside = (-left * CHANNELS)[:, None]
    end_inside = ((width - left) * CHANNELS)[:, None]

    acc = tl.zeros((BLOCK_M, BLOCK_N), TYPE)
    for tap_y in range(0, KERNEL_Y):
        y = top + tap_y * DILATION_Y
        inside = ((pixel < pixels) & (y >= 0) & (y < height))[:, None]
        mask = inside & (run[None, :] >= first_inside) & (run[None, :] < end_inside)
        rows = tl.load(x + (base + tap_y * DILATION_Y * width * CHANNELS)[:, None] + run[None, :], mask=mask, other=0.0)
        taps = load_panels(w, first_panel, tap_y * KERNEL_X * CHANNELS, KERNEL_Y * KERNEL_X * CHANNELS, panels,
                           BLOCK_N // WIDTH, KERNEL_X * CHANNELS, WIDTH, MASK_PANEL, False)  # fmt: skip
        acc = tl.dot(rows, taps, acc, input_precision="ieee")

    store_pixels(acc, out, pixel, column, 0, pixels, columns, extra, 1, MASK_M, MASK_N, EPILOGUE)
