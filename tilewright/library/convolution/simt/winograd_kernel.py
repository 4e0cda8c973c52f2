"""Convolution on GPUs by Winograd's F(m, r) in both directions, in the plain tile language.

A tile of m_y x m_x output pixels of a channel takes m_y m_x r_y r_x products directly, and one for each of p_y x p_x
points, p = m + r - 1, after linear transforms (Lavin and Gray, 2015): a tile of p_y x p_x input pixels d becomes
B' d B, the taps g are G g G' (packed so when the engine is built), and A' s A of the sums s over the input channels are
the output pixels. The sums are a matrix product for each point, between the two kernels below.

The points are 0, pairs +-p, and infinity: polynomials of a line of input are evaluated there, whose products are
interpolated. `library.packing` has the same points for the taps (recipe `filters`).
"""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl
from tilewright.library.epilogue import identity


@tilewright.jit
def pair_of(even, odd, POINT: tl.constexpr):
    """What a line gives at +-`POINT`."""
    return even + POINT * odd, even - POINT * odd


@tilewright.jit
def input_line(d, POINTS: tl.constexpr):
    """B' d of a line of as many pixels as points: 1, 4 (0, +-1), 6 (and +-1/2, +-2 in place of +-1) or 8 (all)."""
    if POINTS == 1:
        found = d
    elif POINTS == 4:
        a, b = pair_of(d[2], d[1], 1.0)
        found = (d[2] - d[0], a, b, d[3] - d[1])
    elif POINTS == 6:
        a, b = pair_of(d[4] - 4.0 * d[2], d[3] - 4.0 * d[1], 0.5)
        c, e = pair_of(d[4] - 0.25 * d[2], d[3] - 0.25 * d[1], 2.0)
        found = (d[0] - 4.25 * d[2] + d[4], a, b, c, e, d[1] - 4.25 * d[3] + d[5])
    else:
        a, b = pair_of(d[6] - 4.25 * d[4] + d[2], d[5] - 4.25 * d[3] + d[1], 1.0)
        c, e = pair_of(d[6] - 5.0 * d[4] + 4.0 * d[2], d[5] - 5.0 * d[3] + 4.0 * d[1], 0.5)
        f, g = pair_of(d[6] - 1.25 * d[4] + 0.25 * d[2], d[5] - 1.25 * d[3] + 0.25 * d[1], 2.0)
        found = (d[6] - d[0] + 5.25 * (d[2] - d[4]), a, b, c, e, f, g, d[7] - d[1] + 5.25 * (d[3] - d[5]))
    return found


@tilewright.jit
def output_line(s, POINTS: tl.constexpr, COUNT: tl.constexpr):
    """A' s of a line: `COUNT` pixels."""
    found = ()
    for i in tl.static_range(COUNT):
        if POINTS == 1:
            value = s[0]
        else:
            value = s[1] + s[2] if i % 2 == 0 else s[1] - s[2]
            if POINTS == 6:
                value = value * 0.5**i
            if POINTS == 8:
                value += (s[3] + s[4] if i % 2 == 0 else s[3] - s[4]) * 0.5**i
            if POINTS >= 6:
                value += (s[POINTS - 3] + s[POINTS - 2] if i % 2 == 0 else s[POINTS - 3] - s[POINTS - 2]) * 2.0**i
            if i == 0:
                value += s[0]
            if i == COUNT - 1:
                value += s[POINTS - 1]
        found = found + (value,)
    return found


@tilewright.jit
def tile_place(place, down, across):
    """(image, row, column) of a tile among those of all images."""
    line = place // across
    image = line // down
    return image, line - image * down, place - line * across


@tilewright.jit
def tiles_of_program(tiles, columns, CHANNELS: tl.constexpr, LAST: tl.constexpr, BLOCK: tl.constexpr):
    """(tile, channel, whether it exists, where it lies at the first point, elements to the next point)."""
    flat = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if LAST:  # in images, points and sums, channels are contiguous; otherwise tiles are
        place, channel = flat // CHANNELS, flat % CHANNELS
        first = flat.to(tl.int64)
    else:
        place, channel = flat, tl.program_id(1)
        first = channel.to(tl.int64) * columns + place
    return place, channel, place < tiles, first, tl.cast(CHANNELS, tl.int64) * columns


@tilewright.jit
def transform_images(x, points, first, tiles, columns, height, width, down, across, CHANNELS: tl.constexpr,
                     POINTS_Y: tl.constexpr, POINTS_X: tl.constexpr, COUNT_Y: tl.constexpr, COUNT_X: tl.constexpr,
                     PAD_Y: tl.constexpr, PAD_X: tl.constexpr, LAST: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """points [POINTS_Y x POINTS_X, CHANNELS, columns] = B' d B of the `tiles` of `COUNT_Y` x `COUNT_X` output pixels of
    the images from `first` on, `down` by `across` of an image [CHANNELS, height, width].  `LAST`: channels are the last
    dimension of both.

    Grid: (blocks of tiles, CHANNELS), or (blocks of tiles x CHANNELS) if `LAST`.
    """
    place, channel, there, where, step = tiles_of_program(tiles, columns, CHANNELS, LAST, BLOCK)
    image, row, column = tile_place(place, down, across)
    top, left = row * COUNT_Y - PAD_Y, column * COUNT_X - PAD_X
    apart: tl.constexpr = CHANNELS if LAST else 1  # elements from a pixel to the next
    source = x + (first + image).to(tl.int64) * (CHANNELS * height * width)
    source += channel if LAST else channel * (height * width)
    lines = ()
    for j in tl.static_range(POINTS_X):
        seen = there & (left + j >= 0) & (left + j < width)
        pixels = ()
        for i in tl.static_range(POINTS_Y):
            inside = seen & (top + i >= 0) & (top + i < height)
            pixels = pixels + (tl.load(source + ((top + i) * width + left + j) * apart, mask=inside, other=0.0),)
        lines = lines + (input_line(pixels, POINTS_Y),)
    points += where
    for i in tl.static_range(POINTS_Y):
        line = ()
        for j in tl.static_range(POINTS_X):
            line = line + (lines[j][i],)
        found = input_line(line, POINTS_X)
        for j in tl.static_range(POINTS_X):
            tl.store(points, found[j], mask=there)
            points += step


@tilewright.jit
def transform_sums(sums, out, first, tiles, columns, out_height, out_width, down, across, *extra,
                   CHANNELS: tl.constexpr, POINTS_Y: tl.constexpr, POINTS_X: tl.constexpr, COUNT_Y: tl.constexpr,
                   COUNT_X: tl.constexpr, TOGETHER: tl.constexpr, MASK_Y: tl.constexpr, LAST: tl.constexpr,
                   BLOCK: tl.constexpr, EPILOGUE: tl.constexpr = identity):  # fmt: skip
    """out = EPILOGUE(A' s A), of s [POINTS_Y x POINTS_X, CHANNELS, columns] the first `tiles` columns, into images
    [CHANNELS, out_height, out_width] from `first` on.  The epilogue sees all images' channels as rows, and an image's
    pixels as columns; if `LAST`, pixels as rows and channels as columns.

    `TOGETHER` of the `COUNT_X` pixels of a line, which are all there, are stored at once; 1: each by itself.  `MASK_Y`:
    the last tiles reach below the images.  Grid: that of `transform_images`.
    """
    place, channel, there, where, step = tiles_of_program(tiles, columns, CHANNELS, LAST, BLOCK)
    image, row, column = tile_place(place, down, across)
    top, left = row * COUNT_Y, column * COUNT_X
    lines = ()
    for j in tl.static_range(POINTS_X):
        values = ()
        for i in tl.static_range(POINTS_Y):
            values = values + (tl.load(sums + (where + (i * POINTS_X + j) * step), mask=there, other=0.0),)
        lines = lines + (output_line(values, POINTS_Y, COUNT_Y),)
    image = (first + image).to(tl.int64)
    for i in tl.static_range(COUNT_Y):
        line = ()
        for j in tl.static_range(POINTS_X):
            line = line + (lines[j][i],)
        found = output_line(line, POINTS_X, COUNT_X)
        inside = there & (top + i < out_height) if MASK_Y else there
        pixel = (top + i) * out_width + left
        for j in tl.static_range(0, COUNT_X, TOGETHER):
            if TOGETHER > 1:
                store_together(found, j, out, image * CHANNELS + channel, pixel + j, out_height * out_width,
                             inside[:, None], extra, TOGETHER, BLOCK, EPILOGUE)  # fmt: skip
            else:
                mask = inside & (left + j < out_width)
                if LAST:
                    output_row, output_column = image * (out_height * out_width) + (pixel + j), channel
                    target = out + (output_row * CHANNELS + channel)
                else:
                    output_row, output_column = image * CHANNELS + channel, pixel + j
                    target = out + (output_row * (out_height * out_width) + output_column)
                tl.store(target, EPILOGUE(found[j], output_row, output_column, mask, extra), mask=mask)


@tilewright.jit
def store_together(found, j: tl.constexpr, out, output_row, pixel, pixels, mask, extra, TOGETHER: tl.constexpr,
                 BLOCK: tl.constexpr, EPILOGUE: tl.constexpr):  # fmt: skip
    """Store 2 or 4 pixels of a line of each tile, from the `j`-th on."""
    if TOGETHER == 2:
        values = tl.join(found[j], found[j + 1])
    else:
        values = tl.join(tl.join(found[j], found[j + 2]), tl.join(found[j + 1], found[j + 3]))
    values = tl.reshape(values, (BLOCK, TOGETHER))
    places = tl.multiple_of(pixel[:, None], (1, TOGETHER)) + tl.arange(0, TOGETHER)[None, :]
    result = EPILOGUE(values, output_row[:, None], places, mask, extra)
    tl.store(out + (output_row[:, None] * pixels + places), result, mask=mask)
