"""3x3 convolution of channels-last images on CPUs by Winograd's F(2x2, 3x3), in the tile language.

Four neighbouring output pixels of a channel take 36 products directly, and 16 after linear transforms (Lavin and Gray,
2015): a tile of 4 x 4 input pixels d becomes B' d B, the taps g are G g G' (packed so when the engine is built), and
A' m A of the products m, summed over the input channels, are the 2 x 2 output pixels.  All numbers in B and A are 0 or
+-1, so that rounding errors stay near those of the plain sum.  With all tiles of a block as rows, the sums over
channels are 16 matrix products.
"""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl
from tilewright.library.epilogue import identity
from tilewright.library.masked_loads import load_within
from tilewright.library.masks import and_masks, within
from tilewright.library.matmul.kernel import load_panels

APART = tl.constexpr(16)  # elements between the 16 matrices, lest their rows fall into the same sets of the cache


@tilewright.jit
def input_line(a, b, c, d):
    """A line of four, times B."""
    return (a - c, b + c, c - b, b - d)


@tilewright.jit
def output_line(a, b, c, d):
    """A line of four, times A."""
    return (a + b + c, b - c - d)


@tilewright.jit
def load_pixel(image, y, x_position, height, width, stride, channel, mask, EDGE: tl.constexpr):
    """The channels of a pixel; zeros where it is outside of the image, which `EDGE` says can be."""
    pointers = image + (y * width + x_position) * stride + channel
    inside = mask
    if EDGE:
        inside = and_masks(mask, (y >= 0) & (y < height) & (x_position >= 0) & (x_position < width) & (channel >= 0))
    return load_within(pointers, inside)


@tilewright.jit
def transform_tile(image, v, top, left, height, width, stride, CHANNELS: tl.constexpr, DILATION_Y: tl.constexpr,
                   DILATION_X: tl.constexpr, STEP: tl.constexpr, VECTOR: tl.constexpr, EDGE: tl.constexpr):  # fmt: skip
    """B' d B of one tile, into a row of each of the 16 matrices at `v`, `STEP` elements apart."""
    for first in range(0, CHANNELS, VECTOR):
        channel = first + tl.arange(0, VECTOR)
        mask = within(channel, CHANNELS, CHANNELS % VECTOR != 0)
        lines = ()
        for j in tl.static_range(4):
            x_position = left + j * DILATION_X
            pixels = ()
            for i in tl.static_range(4):
                y = top + i * DILATION_Y
                pixels = pixels + (load_pixel(image, y, x_position, height, width, stride, channel, mask, EDGE),)
            lines = lines + (input_line(pixels[0], pixels[1], pixels[2], pixels[3]),)
        for i in tl.static_range(4):
            found = input_line(lines[0][i], lines[1][i], lines[2][i], lines[3][i])
            for j in tl.static_range(4):
                tl.store(v + (i * 4 + j) * STEP + channel, found[j], mask=mask)


@tilewright.jit
def tile_place(tile, across, down, DILATION_Y: tl.constexpr, DILATION_X: tl.constexpr):
    """(image, top, left) of the first output pixel of a tile, whose pixels are `DILATION_*` apart."""
    line, place = tile // across, tile % across
    image, row = line // down, line % down
    top = row // DILATION_Y * (2 * DILATION_Y) + row % DILATION_Y
    left = place // DILATION_X * (2 * DILATION_X) + place % DILATION_X
    return image, top, left


@tilewright.jit
def winograd_convolution(x, w, out, scratch, tiles, columns, height, width, out_height, out_width, across, down, blocks,
                         column_blocks, *extra, CHANNELS: tl.constexpr, GROUPS: tl.constexpr, PAD_Y: tl.constexpr,
                         PAD_X: tl.constexpr, DILATION_Y: tl.constexpr, DILATION_X: tl.constexpr,
                         BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WIDTH: tl.constexpr, VECTOR: tl.constexpr,
                         TYPE: tl.constexpr = tl.float32, EPILOGUE: tl.constexpr = identity):  # fmt: skip
    """out[pixel, :] = EPILOGUE(sum over the 3 x 3 taps of x[window + tap, :] @ w[tap]), with strides of 1.

    `w` is [GROUPS][16][columns / WIDTH][CHANNELS][WIDTH] (`library.packing`, recipe `winograd`); `CHANNELS` and
    `columns` count one group's.  There are `tiles` of 2 x 2 output pixels, `across` by `down` to an image.  A program
    takes `blocks` blocks of `BLOCK_M` of them one after the other, and `column_blocks` blocks of `BLOCK_N` columns, a
    part of `scratch` to itself: 16 x (BLOCK_M x (CHANNELS + BLOCK_N) + 2 APART) elements.
    Grid: (runs of blocks, runs of column blocks, groups).
    """
    group = tl.program_id(2)
    program = (group * tl.num_programs(1) + tl.program_id(1)) * tl.num_programs(0) + tl.program_id(0)
    panels = tl.cdiv(columns, WIDTH)
    v_step: tl.constexpr = BLOCK_M * CHANNELS + APART
    m_step: tl.constexpr = BLOCK_M * BLOCK_N + APART
    v = scratch + program.to(tl.int64) * (16 * (v_step + m_step))
    m = v + 16 * v_step
    w = w + group.to(tl.int64) * panels * (16 * CHANNELS * WIDTH)
    stride: tl.constexpr = CHANNELS * GROUPS
    rows = tl.arange(0, BLOCK_M)[:, None]
    depth, lanes = tl.arange(0, CHANNELS)[None, :], tl.arange(0, BLOCK_N)[None, :]
    first_block = tl.program_id(0) * blocks
    first_columns = tl.program_id(1) * column_blocks
    for block in range(first_block, tl.minimum(first_block + blocks, tl.cdiv(tiles, BLOCK_M))):
        begin = block * BLOCK_M
        end = tl.minimum(begin + BLOCK_M, tiles)
        for tile in range(begin, end):
            image, top, left = tile_place(tile, across, down, DILATION_Y, DILATION_X)
            source = x + image.to(tl.int64) * height * width * stride + group * CHANNELS
            row = v + (tile - begin) * CHANNELS
            top, left = top - PAD_Y, left - PAD_X
            if (top >= 0) & (top + 3 * DILATION_Y < height) & (left >= 0) & (left + 3 * DILATION_X < width):
                transform_tile(source, row, top, left, height, width, stride, CHANNELS, DILATION_Y, DILATION_X, v_step,
                               VECTOR, False)  # fmt: skip
            else:
                transform_tile(source, row, top, left, height, width, stride, CHANNELS, DILATION_Y, DILATION_X, v_step,
                               VECTOR, True)  # fmt: skip
        for column_block in range(first_columns, tl.minimum(first_columns + column_blocks,
                                                            tl.cdiv(columns, BLOCK_N))):  # fmt: skip
            for part in range(0, 16):
                tiles_in = tl.load(v + part * v_step + rows * CHANNELS + depth, mask=rows < end - begin, other=0.0)
                taps = load_panels(w + part * (panels * CHANNELS * WIDTH), column_block * (BLOCK_N // WIDTH), 0,
                                   CHANNELS, panels, BLOCK_N // WIDTH, CHANNELS, WIDTH, False, False)  # fmt: skip
                product = tl.dot(tiles_in, taps, input_precision="ieee")
                tl.store(m + part * m_step + rows * BLOCK_N + lanes, product, mask=rows < end - begin)
            for tile in range(begin, end):
                image, top, left = tile_place(tile, across, down, DILATION_Y, DILATION_X)
                store_tile(m + (tile - begin) * BLOCK_N, out, image, top, left, column_block * BLOCK_N, group, columns,
                           out_height, out_width, extra, GROUPS, DILATION_Y, DILATION_X, BLOCK_N, WIDTH, m_step, VECTOR,
                           EPILOGUE)  # fmt: skip


@tilewright.jit
def store_tile(m, out, image, top, left, first_column, group, columns, out_height, out_width, extra,
               GROUPS: tl.constexpr, DILATION_Y: tl.constexpr, DILATION_X: tl.constexpr, BLOCK_N: tl.constexpr,
               WIDTH: tl.constexpr, STEP: tl.constexpr, VECTOR: tl.constexpr, EPILOGUE: tl.constexpr):  # fmt: skip
    """A' m A of one tile, a row of each of the 16 matrices at `m`, and EPILOGUE, as far as its pixels exist."""
    for first in range(0, BLOCK_N, VECTOR):
        lane = first + tl.arange(0, VECTOR)
        column = first_column + lane
        lines = ()
        for j in tl.static_range(4):
            lines = lines + (output_line(tl.load(m + j * STEP + lane), tl.load(m + (4 + j) * STEP + lane),
                                         tl.load(m + (8 + j) * STEP + lane),
                                         tl.load(m + (12 + j) * STEP + lane)),)  # fmt: skip
        for i in tl.static_range(2):
            found = output_line(lines[0][i], lines[1][i], lines[2][i], lines[3][i])
            y = top + i * DILATION_Y
            for j in tl.static_range(2):
                x_position = left + j * DILATION_X
                mask = (column < columns) & (y < out_height) & (x_position < out_width)
                pixel = (image * out_height + y).to(tl.int64) * out_width + x_position
                place = column + group * columns
                result = EPILOGUE(found[j], pixel, place, mask, extra)
                tl.store(out + pixel * (columns * GROUPS) + place, result, mask=mask)
