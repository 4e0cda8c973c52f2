"""Convolution of channels-first images on GPUs as an implicit matrix product, in the plain tile language.

Images are [images, GROUPS * CHANNELS, depth, height, width], weights [KERNEL_Z][KERNEL_Y][KERNEL_X][CHANNELS][all
columns].  Rows of the product are output channels, its columns are output pixels, which are neighbours in memory
as those of the image do; its depth runs over the taps of the window and their channels.
"""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl
from tilewright.library.epilogue import identity
from tilewright.library.masks import and_masks, within


@tilewright.jit
def window_starts(pixel, out_height, out_width, STRIDE_Z: tl.constexpr, STRIDE_Y: tl.constexpr, STRIDE_X: tl.constexpr,
                  PAD_Z: tl.constexpr, PAD_Y: tl.constexpr, PAD_X: tl.constexpr):  # fmt: skip
    """(front, top, left) of the windows of an image's flattened output pixels."""
    line = pixel // out_width
    slice = line // out_height
    left = (pixel - line * out_width) * STRIDE_X - PAD_X
    top = (line - slice * out_height) * STRIDE_Y - PAD_Y
    return slice * STRIDE_Z - PAD_Z, top, left


@tilewright.jit
def tap_distances(tap, KERNEL_Y: tl.constexpr, KERNEL_X: tl.constexpr, DILATION_Z: tl.constexpr,
                  DILATION_Y: tl.constexpr, DILATION_X: tl.constexpr):  # fmt: skip
    """The offsets (z, y, x) of flattened taps from the first tap of a window."""
    line = tap // KERNEL_X
    slice = line // KERNEL_Y
    return slice * DILATION_Z, (line - slice * KERNEL_Y) * DILATION_Y, (tap - line * KERNEL_X) * DILATION_X


@tilewright.jit
def in_image(z, y, x, depth, height, width):
    """Whether places are inside of an image."""
    return (z >= 0) & (z < depth) & (y >= 0) & (y < height) & (x >= 0) & (x < width)


@tilewright.jit
def block_of_pixels(block, images, pixels, FLAT: tl.constexpr, BLOCK_N: tl.constexpr):
    """(image, pixel, whether it exists) of a block of output pixels: of one image, or of all of them if `FLAT`."""
    if FLAT:
        place = block * BLOCK_N + tl.arange(0, BLOCK_N)
        image = place // pixels
        pixel = place - image * pixels
        there = place < images * pixels
    else:
        blocks = tl.cdiv(pixels, BLOCK_N)
        image = block // blocks
        pixel = (block - image * blocks) * BLOCK_N + tl.arange(0, BLOCK_N)
        there = pixel < pixels
    return image, pixel, there


@tilewright.jit
def planes(x, w, out, images, columns, depth, height, width, out_depth, out_height, out_width, *extra,
           CHANNELS: tl.constexpr, GROUPS: tl.constexpr, KERNEL_Z: tl.constexpr, KERNEL_Y: tl.constexpr,
           KERNEL_X: tl.constexpr, STRIDE_Z: tl.constexpr, STRIDE_Y: tl.constexpr, STRIDE_X: tl.constexpr,
           PAD_Z: tl.constexpr, PAD_Y: tl.constexpr, PAD_X: tl.constexpr, DILATION_Z: tl.constexpr,
           DILATION_Y: tl.constexpr, DILATION_X: tl.constexpr, PADDED: tl.constexpr, FLAT: tl.constexpr,
           BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, MASK_M: tl.constexpr,
           MASK_N: tl.constexpr, POINTWISE: tl.constexpr = False, TYPE: tl.constexpr = tl.float32,
           PRECISION: tl.constexpr = "ieee", PARTS: tl.constexpr = 1,
           EPILOGUE: tl.constexpr = identity):  # fmt: skip
    """out = EPILOGUE(convolution of x by w), [images, GROUPS * columns, out_depth, out_height, out_width].

    Grid: (channel blocks x pixel blocks x images, groups x PARTS); channel blocks come first, which read the same
    pixels.  `FLAT` blocks of pixels run over all images, others are of one image.  `PADDED` says that windows reach
    outside the image, `POINTWISE` that each window is the pixel itself.  With `PARTS` of the depth there are as many
    groups of CTAs, each of which stores its sums after those of the one before: `sum_parts` adds them.  The epilogue
    sees all images' output channels as rows, and an image's pixels as columns.
    """
    part, group = tl.program_id(1) % PARTS, tl.program_id(1) // PARTS
    pixels, plane = out_depth * out_height * out_width, depth * height * width
    channel_blocks = tl.cdiv(columns, BLOCK_M)
    block = tl.program_id(0) // channel_blocks
    row = tl.program_id(0) % channel_blocks * BLOCK_M + tl.arange(0, BLOCK_M)
    image, pixel, there = block_of_pixels(block, images, pixels, FLAT, BLOCK_N)
    front, top, left = window_starts(pixel, out_height, out_width, STRIDE_Z, STRIDE_Y, STRIDE_X, PAD_Z, PAD_Y, PAD_X)
    x += group * CHANNELS * plane + image.to(tl.int64) * (CHANNELS * GROUPS * plane)
    # The pixel itself where it is the window: then pixels are known to be contiguous, and are loaded several at a time.
    base = x + (pixel if POINTWISE else (front * height + top) * width + left)
    w += group * columns
    DEPTH: tl.constexpr = KERNEL_Z * KERNEL_Y * KERNEL_X * CHANNELS
    LENGTH: tl.constexpr = (DEPTH + PARTS * BLOCK_K - 1) // (PARTS * BLOCK_K) * BLOCK_K

    acc = tl.zeros((BLOCK_M, BLOCK_N), TYPE)
    for first in range(part * LENGTH, min(part * LENGTH + LENGTH, DEPTH), BLOCK_K):
        step = first + tl.arange(0, BLOCK_K)
        tap = (first if CHANNELS % BLOCK_K == 0 else step) // CHANNELS
        channel = step - tap * CHANNELS
        deeper, down, right = tap_distances(tap, KERNEL_Y, KERNEL_X, DILATION_Z, DILATION_Y, DILATION_X)
        shift = (deeper * height + down) * width + right + channel * plane
        inside = there[None, :]
        if CHANNELS % BLOCK_K != 0:
            inside = inside & (step < DEPTH)[:, None]
        if PADDED and CHANNELS % BLOCK_K == 0:  # one tap: a condition for each pixel
            inside = inside & in_image(front + deeper, top + down, left + right, depth, height, width)[None, :]
        elif PADDED:
            z, y = front[None, :] + deeper[:, None], top[None, :] + down[:, None]
            inside = inside & in_image(z, y, left[None, :] + right[:, None], depth, height, width)
        values = tl.load(base[None, :] + shift[:, None], mask=inside, other=0.0)
        places = w + step[None, :] * (columns * GROUPS) + row[:, None]
        if MASK_M or DEPTH % BLOCK_K != 0:
            taps = tl.load(places, mask=(step < DEPTH)[None, :] & (row < columns)[:, None], other=0.0)
        else:
            taps = tl.load(places)
        acc = tl.dot(taps, values, acc, input_precision=PRECISION)

    out += part.to(tl.int64) * images * (columns * GROUPS) * pixels
    first = image.to(tl.int64) * (columns * GROUPS) + group * columns
    output_row = (first[None, :] if FLAT else first) + row[:, None]
    mask = and_masks(within(row[:, None], columns, MASK_M), there[None, :] if MASK_N else None)
    result = EPILOGUE(acc, output_row, pixel[None, :], mask, extra)
    tl.store(out + output_row * pixels + pixel[None, :], result, mask=mask)


@tilewright.jit
def line_of_taps(acc, x, w, base, front, top, left, z, y, exists, known, depth, height, width, row_of_weights,
                 KERNEL_X: tl.constexpr, DILATION_Z: tl.constexpr, DILATION_Y: tl.constexpr, DILATION_X: tl.constexpr,
                 PADDED: tl.constexpr, TYPE: tl.constexpr):  # fmt: skip
    """acc with what one line of a window adds: places [1, 1, pixels] where they `exist`, weights of those `known`."""
    deeper, down = z * DILATION_Z, y * DILATION_Y
    for column in tl.static_range(KERNEL_X):
        right = column * DILATION_X
        inside = exists
        if PADDED:
            inside = exists & in_image(front + deeper, top + down, left + right, depth, height, width)
        values = tl.load(x + (base + ((deeper * height + down) * width + right)), mask=inside, other=0.0).to(TYPE)
        weight = tl.load(w + column * row_of_weights, mask=known, other=0.0).to(TYPE)
        acc += weight * values
    return acc


@tilewright.jit
def few_planes(x, w, out, columns, depth, height, width, out_depth, out_height, out_width, *extra,
               CHANNELS: tl.constexpr, GROUPS: tl.constexpr, KERNEL_Z: tl.constexpr, KERNEL_Y: tl.constexpr,
               KERNEL_X: tl.constexpr, STRIDE_Z: tl.constexpr, STRIDE_Y: tl.constexpr, STRIDE_X: tl.constexpr,
               PAD_Z: tl.constexpr, PAD_Y: tl.constexpr, PAD_X: tl.constexpr, DILATION_Z: tl.constexpr,
               DILATION_Y: tl.constexpr, DILATION_X: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr,
               BLOCK: tl.constexpr, PARTS: tl.constexpr = 1, UNROLLED: tl.constexpr = True,
               TYPE: tl.constexpr = tl.float32, EPILOGUE: tl.constexpr = identity):  # fmt: skip
    """The convolution of `planes` where a group has few output channels (one, if it is depthwise): all of them, `ROWS`
    or fewer, of a block of an image's pixels, by multiply-adds of what each tap reads.

    Grid: (pixel blocks, groups, images).  `PARTS` channels are summed up side by side, by threads of their own.
    `UNROLLED` says that all lines of a window are written one after the other.
    """
    group, image = tl.program_id(1), tl.program_id(2).to(tl.int64)
    pixels = out_depth * out_height * out_width
    plane = depth * height * width
    part, row = tl.arange(0, PARTS)[:, None, None], tl.arange(0, ROWS)[None, :, None]
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[None, None, :]
    exists, known = pixel < pixels, row < columns
    front, top, left = window_starts(pixel, out_height, out_width, STRIDE_Z, STRIDE_Y, STRIDE_X, PAD_Z, PAD_Y, PAD_X)
    x += (image * GROUPS + group) * CHANNELS * plane
    base = (front * height + top) * width + left
    if PARTS > 1:
        base += part * plane
    row_of_weights = CHANNELS * (columns * GROUPS)  # those of a tap
    w += group * columns + row
    if PARTS > 1:  # each thread loads what it multiplies by: parts have other weights
        w += part * (columns * GROUPS) + tl.zeros((1, 1, BLOCK), tl.int32)
    acc = tl.zeros((PARTS, ROWS, BLOCK), TYPE)
    for first in range(0, CHANNELS, PARTS):
        there, given = exists, known
        if CHANNELS % PARTS != 0:
            there, given = exists & (first + part < CHANNELS), known & (first + part < CHANNELS)
        if UNROLLED:
            for z in tl.static_range(KERNEL_Z):
                for y in tl.static_range(KERNEL_Y):
                    weights = w + (z * KERNEL_Y + y) * KERNEL_X * row_of_weights
                    acc = line_of_taps(acc, x, weights, base, front, top, left, z, y, there, given, depth, height,
                                       width, row_of_weights, KERNEL_X, DILATION_Z, DILATION_Y, DILATION_X, PADDED,
                                       TYPE)  # fmt: skip
        else:
            for line in range(KERNEL_Z * KERNEL_Y):
                weights = w + line * KERNEL_X * row_of_weights
                acc = line_of_taps(acc, x, weights, base, front, top, left, line // KERNEL_Y, line % KERNEL_Y, there,
                                   given, depth, height, width, row_of_weights, KERNEL_X, DILATION_Z, DILATION_Y,
                                   DILATION_X, PADDED, TYPE)  # fmt: skip
        x += PARTS * plane
        w += PARTS * (columns * GROUPS)

    output_row = tl.arange(0, ROWS)[:, None]
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[None, :]
    mask = (output_row < columns) & (place < pixels)
    output_row += (image * GROUPS + group) * columns
    result = EPILOGUE(tl.sum(acc, 0), output_row, place, mask, extra)
    tl.store(out + output_row * pixels + place, result, mask=mask)
