"""Convolution of float32 on the tensor cores of Hopper, each number as the sum of three of bfloat16.

The parts of images lie in planes [images, 3, pixels, channels], with zeros around the images where windows reach over
the edge. So what a line of the window sees of neighbouring output pixels are rows of memory that overlap, each begun a
pixel further on, and the convolution is a sum of products by the weights of each line: implicit GEMM, as cuDNN and
NVIDIA's CUTLASS have it. Results at the ends of lines, whose windows would reach into the next line, are computed and
not stored. With strides down and across slices the lines of each phase, a stride apart, lie together.

Rows of the product are pixels, its columns are channels of the result. Accuracy, and what is done about numbers that
are not finite: `library.matmul.hopper.bf16x6_kernel`.
"""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl
import tilewright.language.explicit as tx
from tilewright.library.matmul.hopper.bf16x6_kernel import (
    INFINITE,
    first_plane,
    load_tiles,
    parts_of,
    sums_of_tile,
    whole_numbers,
)
from tilewright.library.matmul.hopper.kernel import consumer_place, make_stages, make_task


@tilewright.aggregate
class Pixels:
    """How pixels lie in planes and in the result: numbers of rows, which begin a stride apart."""

    phase: tl.tensor  # from phase to phase
    image: tl.tensor  # from image to image, where all images are in one plane
    slice: tl.tensor  # from slice to slice of an image
    line: tl.tensor  # from line to line
    plane: tl.tensor  # elements from plane to plane
    images: tl.tensor
    depth: tl.tensor  # of the result
    height: tl.tensor
    width: tl.tensor


@tilewright.jit
def split_image(x, planes, channels, depth, height, width, extent_z, extent_y, extent_x, image_step, phase_step,
                part_step, CHANNELS: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr, BLOCK_C: tl.constexpr,
                BLOCK_P: tl.constexpr):  # fmt: skip
    """Parts of images [images, channels, depth, height, width], channels last, with zeros around them.

    planes[image * image_step + part * part_step + phase * phase_step + pixel * CHANNELS + channel], pixel of a phase's
    [extent_z, extent_y, extent_x]. Grid: one for each block of pixels, of channels, of each phase of each image.
    """
    image_step, phase_step = tl.multiple_of(image_step, 8), tl.multiple_of(phase_step, 8)
    part_step = tl.multiple_of(part_step, 8)
    extent = extent_z * extent_y * extent_x
    across, deep = tl.cdiv(extent, BLOCK_P), tl.cdiv(CHANNELS, BLOCK_C)
    block = tl.program_id(0) // across
    number = block // deep
    image = (number // (STRIDE[0] * STRIDE[1])).to(tl.int64)
    phase = number % (STRIDE[0] * STRIDE[1])
    channel = (block % deep * BLOCK_C + tl.arange(0, BLOCK_C))[:, None]
    pixel = tl.program_id(0) % across * BLOCK_P + tl.arange(0, BLOCK_P)
    slice = pixel // (extent_y * extent_x)
    within = pixel - slice * (extent_y * extent_x)
    line = within // extent_x
    z = slice * STRIDE[0] + phase // STRIDE[1] - PAD[0]
    y = line * STRIDE[1] + phase % STRIDE[1] - PAD[1]
    column = within - line * extent_x - PAD[2]
    inside = (z >= 0) & (z < depth) & (y >= 0) & (y < height) & (column >= 0) & (column < width) & (pixel < extent)
    place = (z * height + y) * width + column
    plane = (depth * height).to(tl.int64) * width
    numbers = tl.load(x + ((image * channels + channel) * plane + place[None, :]), mask=inside[None, :] &
                      (channel < channels), other=0.0)  # fmt: skip
    parts = parts_of(numbers.T)
    pixels = (tl.program_id(0) % across * BLOCK_P + tl.arange(0, BLOCK_P))[:, None]
    columns = (block % deep * BLOCK_C + tl.arange(0, BLOCK_C))[None, :]
    first = planes + (image * image_step + phase * phase_step.to(tl.int64) + pixels.to(tl.int64) * CHANNELS + columns)
    for part in tl.static_range(3):
        tl.store(first + part * part_step.to(tl.int64), parts[part], mask=(pixels < extent) & (columns < CHANNELS))


@tilewright.jit
def place_of_line(number, pixels, WINDOW: tl.constexpr):
    """Of a line of the window, or of a tap where taps are apart: how many rows further on it sees, and from which
    element of a row on."""
    line, tap = number, 0
    if WINDOW.RUN < WINDOW.KERNEL[2]:
        line = number // WINDOW.KERNEL[2]
        tap = number - line * WINDOW.KERNEL[2]
    slice = line // WINDOW.KERNEL[1]
    z = slice * WINDOW.DILATION[0]
    y = (line - slice * WINDOW.KERNEL[1]) * WINDOW.DILATION[1]
    phase = z % WINDOW.STRIDE[0] * WINDOW.STRIDE[1] + y % WINDOW.STRIDE[1]
    rows = phase * pixels.phase + z // WINDOW.STRIDE[0] * pixels.slice + y // WINDOW.STRIDE[1] * pixels.line
    return rows, tap * (WINDOW.DILATION[2] * WINDOW.CHANNELS)


@tilewright.jit
def load_line(a, lefts, full, stage, place, k, task, pixels, CONFIG: tl.constexpr):
    """Start loading what a stage sees of a tile's pixels: a part of a line of the window."""
    first = first_plane(place[0], CONFIG.ONE_A, CONFIG)
    number = k // CONFIG.WINDOW.blocks_of_line
    rows, element = place_of_line(number, pixels, CONFIG.WINDOW)
    element += (k - number * CONFIG.WINDOW.blocks_of_line) * CONFIG.BK
    for part in tl.static_range(CONFIG.PARTS):
        tx.tma_load(a, (first + part, place[1] + rows, element), lefts[stage * CONFIG.PARTS + part], full)


@tilewright.jit
def result_pixels(place, first, count, pixels, CONFIG: tl.constexpr):
    """(image, pixel in it, whether it exists) of a product's rows."""
    row = first + tl.arange(0, count)
    image = place[0]
    if CONFIG.WINDOW.FLAT:
        image = row // pixels.image
        row -= image * pixels.image
    slice = row // pixels.slice
    within = row - slice * pixels.slice
    line = within // pixels.line
    column = within - line * pixels.line
    there = (slice < pixels.depth) & (line < pixels.height) & (column < pixels.width) & (image < pixels.images)
    return image, (slice * pixels.height + line) * pixels.width + column, there


@tilewright.jit
def store_channels(total, c, result, first_column, N, pixels, extra, CONFIG: tl.constexpr):
    """The epilogue of some channels of a tile's pixels, whose rows are the channels of all images."""
    image, pixel, there = result
    channel = (first_column + tl.arange(0, total.shape[1]))[None, :]
    mask = there[:, None] & (channel < N)
    row = (image[:, None] if CONFIG.WINDOW.FLAT else image) * N + channel
    value = CONFIG.EPILOGUE(total, row, pixel[:, None], mask, extra)
    place = row.to(tl.int64) * (pixels.depth * pixels.height * pixels.width) + pixel[:, None]
    tl.store(c + place, value.to(CONFIG.OUTPUT), mask=mask)


@tilewright.jit
def store_tile(total, c, place, result, N, pixels, extra, CONFIG: tl.constexpr):
    """The same of all channels, some at a time."""
    for part in tl.static_range(CONFIG.BN // CONFIG.stored_columns):
        first = part * CONFIG.stored_columns
        sums = tx.block_slice(total, 1, first, CONFIG.stored_columns)
        store_channels(sums, c, result, place[2] + first, N, pixels, extra, CONFIG)


@tilewright.jit
def image_numbers(planes, first, row, element, pixels, there, CONFIG: tl.constexpr):
    """The numbers of one element of rows of an image."""
    PITCH: tl.constexpr = CONFIG.WINDOW.STRIDE[2] * CONFIG.WINDOW.CHANNELS
    address = planes + (first * pixels.plane.to(tl.int64) + row.to(tl.int64) * PITCH + element)
    number = tl.zeros(row.shape, tl.float32)
    for part in tl.static_range(CONFIG.PARTS):
        plane = (CONFIG.PARTS - 1 - part) * pixels.plane.to(tl.int64)
        number += tl.load(address + plane, mask=there, other=0.0).to(tl.float32)
    return number


@tilewright.jit
def multiply_add(a_planes, b_planes, c, place, result, N, channels, b_line, pixels, extra, CONFIG: tl.constexpr):
    """A consumer's part of a tile by multiply-adds of whole numbers, channel after channel of each tap."""
    WINDOW: tl.constexpr = CONFIG.WINDOW
    a_first = first_plane(place[0], CONFIG.ONE_A, CONFIG)
    row = place[1] + tl.arange(0, CONFIG.rows)[:, None]
    there = result[2][:, None]
    for first in range(0, CONFIG.BN, CONFIG.stored_columns):
        column = place[2] + first + tl.arange(0, CONFIG.stored_columns)[None, :]
        total = tl.zeros((CONFIG.rows, CONFIG.stored_columns), tl.float32)
        for number in range(WINDOW.lines):
            rows, element = place_of_line(number, pixels, WINDOW)
            for tap in range(WINDOW.RUN):
                for channel in range(channels):
                    step = tap * WINDOW.CHANNELS + channel
                    left = image_numbers(a_planes, a_first, row + rows, element + step, pixels, there, CONFIG)
                    depth = number * (WINDOW.blocks_of_line * CONFIG.BK) + step
                    right = whole_numbers(b_planes, 0, column, depth, (N, N), b_line, False, CONFIG.PARTS)
                    total += left * right
        store_channels(total, c, result, place[2] + first, N, pixels, extra, CONFIG)


@tilewright.jit
def multiply_tiles(copy, c, a_planes, b_planes, lefts, rights, ring, task, N, channels, b_line, pixels, extra,
                   CONFIG: tl.constexpr):  # fmt: skip
    """The multiplying role: this warpgroup's pixels of each tile."""
    position = tx.consumer_start(CONFIG.STAGES)
    if CONFIG.LAG > 0:
        ahead = copy * CONFIG.LAG  # one adds while the other multiplies
        if (copy > 0) & (ahead < task.blocks) & (task.first < task.tiles):
            ring.full[ahead].wait(0)
    for tile in range(task.first, task.tiles, task.step):
        place = consumer_place(tile, copy, task, CONFIG)
        total, position = sums_of_tile(lefts, rights, ring, position, copy, task, CONFIG)
        result = result_pixels(place, place[1], CONFIG.rows, pixels, CONFIG)
        magnitude = total.to(tl.int32, bitcast=True) & 0x7FFFFFFF
        if tl.max(tl.max(magnitude, 1), 0) >= INFINITE:
            multiply_add(a_planes, b_planes, c, place, result, N, channels, b_line, pixels, extra, CONFIG)
        else:
            store_tile(total, c, place, result, N, pixels, extra, CONFIG)


@tilewright.jit
def bf16x6_convolution(a: tx.tensor_map, b: tx.tensor_map, a_planes, b_planes, c, M, N, channels, batches, images,
                       phase_rows, image_rows, slice_rows, line_rows, plane, depth, height, width, b_line, *extra,
                       CONFIG: tl.constexpr):  # fmt: skip
    """c [images, N, depth, height, width] = EPILOGUE(convolution of images by N filters), both in parts.

    `a_planes` is bfloat16 [batches, 3, `plane` elements]: an image a batch, or with `FLAT` all in one. Its rows begin a
    stride of pixels apart, and are as long as a window is wide; `M` of a batch begin windows of results or lie between
    them. `b_planes` is [3, N, b_line]: of each filter the lines of the window, in whole stages. The maps `a` and `b`
    are of the same, as [3 batches, rows, elements] and [3, N, b_line].
    """
    lefts = tx.shared((CONFIG.STAGES * CONFIG.PARTS, *CONFIG.left_shape), CONFIG.INPUT, swizzle=128)
    rights = tx.shared((CONFIG.STAGES * CONFIG.PARTS, *CONFIG.right_shape), CONFIG.INPUT, swizzle=128)
    ring = make_stages(CONFIG)
    if CONFIG.DEPENDENT:
        tx.grid_launch_dependents()  # the next kernel's CTAs come where this one's have ended
    task = make_task(M, N, CONFIG.WINDOW.blocks * CONFIG.BK, batches, CONFIG)
    b_line = tl.multiple_of(b_line, 8)
    pixels = Pixels(phase_rows, image_rows, slice_rows, line_rows, plane, images, depth, height, width)
    b_planes = b_planes.to(tl.pointer_type(tl.bfloat16), bitcast=True)  # of constants the type is that of the numbers
    multiplying = tx.role(
        multiply_tiles,
        (c, a_planes, b_planes, lefts, rights, ring, task, N, channels, b_line, pixels, extra, CONFIG),
        copies=CONFIG.CONSUMERS, registers=CONFIG.registers[1],
    )  # fmt: skip
    loading = tx.role(load_tiles, (a, b, lefts, rights, ring, task, pixels, CONFIG, load_line),
                      registers=CONFIG.registers[0], elected=True)  # fmt: skip
    tx.warp_roles(loading, multiplying)
