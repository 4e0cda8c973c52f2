"""Convolution on Hopper as an implicit matrix product, at the speed of the tensor cores.

Images are channels last.  One elected thread loads, tap by tap of the window, boxes of the image and the weights of the
tap by TMA into a ring in shared memory; warpgroups multiply them, a unit of up to 64 output pixels each.  A box steps
over the image as the window does, and is zero where the window reaches over the edge: nothing is copied beforehand.
A 1x1 convolution is the same with one tap, and may see all pixels of all images as one line.

`config.ConvolutionConfig` says what can be chosen.  The idea is that of implicit GEMM (cuDNN, NVIDIA's
CUTLASS), with boxes of pixels in the place of runs.
"""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl
import tilewright.language.explicit as tx
from tilewright.library.convolution.hopper.config import swizzle
from tilewright.library.ping_pong import pass_turn, take_turn

swizzle = tilewright.constexpr_function(swizzle)


@tilewright.aggregate
class ConvolutionWork:
    """What all roles know: sizes of the result, and which part of the work is this CTA's."""

    images: tl.tensor
    height: tl.tensor
    width: tl.tensor
    columns: tl.tensor  # of a group
    column_tiles: tl.tensor  # of all groups
    tiles: tl.tensor
    first: tl.tensor
    step: tl.tensor
    start: tl.tensor  # first stage of depth
    blocks: tl.tensor  # stages of depth


@tilewright.aggregate
class Place:
    """Where a unit lies: its first image, row, column of pixels."""

    image: tl.tensor
    row: tl.tensor
    column: tl.tensor


@tilewright.jit
def make_work(images, height, width, columns, CONFIG: tl.constexpr):
    """The work of this CTA."""
    rank = 0
    start = 0
    blocks = tl.full((), CONFIG.blocks, tl.int32)
    if CONFIG.SPLIT > 1:
        rank = tx.cluster_rank()
        start = CONFIG.blocks * rank // CONFIG.SPLIT
        blocks = CONFIG.blocks * (rank + 1) // CONFIG.SPLIT - start
    units = tl.cdiv(images, CONFIG.UNIT[0]) * tl.cdiv(height, CONFIG.UNIT[1]) * tl.cdiv(width, CONFIG.UNIT[2])
    column_tiles = tl.cdiv(columns, CONFIG.BN) * CONFIG.GROUPS
    tiles = tl.cdiv(units, CONFIG.units) * column_tiles
    first = tl.program_id(0) // CONFIG.SPLIT
    step = tl.num_programs(0) // CONFIG.SPLIT
    return ConvolutionWork(images, height, width, columns, column_tiles, tiles, first, step, start, blocks)


@tilewright.jit
def unit_place(tile, number, work, CONFIG: tl.constexpr):
    """The place of a unit of a tile.  Units past the last lie behind the last image."""
    unit = tile // work.column_tiles * CONFIG.units + number
    across = tl.cdiv(work.width, CONFIG.UNIT[2])
    down = tl.cdiv(work.height, CONFIG.UNIT[1])
    line = unit // across
    image = line // down
    row = line - image * down
    return Place(image * CONFIG.UNIT[0], row * CONFIG.UNIT[1], (unit - line * across) * CONFIG.UNIT[2])


@tilewright.jit
def column_place(tile, work, CONFIG: tl.constexpr):
    """Group and first column in it of a tile: the tiles of some pixels follow each other, so that these stay near."""
    column = tile % work.column_tiles
    group = 0
    if CONFIG.GROUPS > 1:
        of_group = work.column_tiles // CONFIG.GROUPS
        group = column // of_group
        column = column - group * of_group
    return group, column * CONFIG.BN


@tilewright.jit
def load_weights(w, rights, full, stage, tile, k, work, CONFIG: tl.constexpr):
    """Start loading a stage of weights."""
    group, column = column_place(tile, work, CONFIG)
    k += work.start
    tap = k // CONFIG.channel_blocks
    channel = (k - tap * CONFIG.channel_blocks) * CONFIG.BK
    tx.tma_load(w, (group * work.columns + column, tap, channel), rights[stage], full)


@tilewright.jit
def load_image(x, lefts, full, stage, tile, k, work, CONFIG: tl.constexpr):
    """Start loading what the tap of a stage sees of the units of a tile."""
    group, column = column_place(tile, work, CONFIG)
    k += work.start
    tap = k // CONFIG.channel_blocks
    channel = group * CONFIG.CHANNELS + (k - tap * CONFIG.channel_blocks) * CONFIG.BK
    tap_y = tap // CONFIG.KERNEL[1]
    tap_x = tap - tap_y * CONFIG.KERNEL[1]
    down = tap_y * CONFIG.DILATION[0] - CONFIG.PAD[0]
    right = tap_x * CONFIG.DILATION[1] - CONFIG.PAD[1]
    for number in tl.static_range(CONFIG.units):
        place = unit_place(tile, number, work, CONFIG)
        row = place.row * CONFIG.STRIDE[0] + down
        tx.tma_load(x, (place.image, row, place.column * CONFIG.STRIDE[1] + right, channel),
                    lefts[stage * CONFIG.units + number], full)  # fmt: skip


@tilewright.jit
def out_place(tile, place, chunk, work, CONFIG: tl.constexpr):
    """Coordinates of a chunk of results."""
    group, column = column_place(tile, work, CONFIG)
    if CONFIG.GROUPS > 1:
        coordinates = (place.image, place.row, place.column, group, column + chunk * CONFIG.chunk)
    else:
        coordinates = (place.image, place.row, place.column, column + chunk * CONFIG.chunk)
    return coordinates


@tilewright.jit
def load_residual(residual, residuals, full, stage, tile, span, work, CONFIG: tl.constexpr):
    """Start loading the second operand of some columns of a tile, for all units."""
    full.expect(CONFIG.units * residuals[0].bytes)
    for number in tl.static_range(CONFIG.units):
        place = unit_place(tile, number, work, CONFIG)
        for part in tl.static_range(CONFIG.TOGETHER):
            target = residuals[stage * CONFIG.units + number].slice(part * CONFIG.chunk, CONFIG.chunk, 1)
            tx.tma_load(residual, out_place(tile, place, span * CONFIG.TOGETHER + part, work, CONFIG), target, full)


@tilewright.jit
def load_tiles(copy, x, w, residual, lefts, rights, ring, residuals, residual_ring, work, CONFIG: tl.constexpr):
    """The loading role: one thread."""
    position = tx.producer_start(CONFIG.STAGES)
    ahead = 0
    if CONFIG.DEPENDENT:
        # The first stages take their weights at once; images come from the kernels before.
        ahead = tl.where(work.first < work.tiles, tl.minimum(work.blocks, CONFIG.STAGES), 0)
        for k in range(ahead):
            ring.full[k].expect(CONFIG.stage_bytes)
            load_weights(w, rights, ring.full[k], k, work.first, k, work, CONFIG)
        tx.grid_wait()
    if CONFIG.RESIDUAL_TILES > 0:
        residual_position = tx.producer_start(CONFIG.RESIDUAL_TILES)
    for tile in range(work.first, work.tiles, work.step):
        for k in range(work.blocks):
            full = ring.full[position.stage]
            if k >= ahead:
                ring.wait_empty(position)
                full.expect(CONFIG.stage_bytes)
                load_weights(w, rights, full, position.stage, tile, k, work, CONFIG)
            load_image(x, lefts, full, position.stage, tile, k, work, CONFIG)
            position = position.next()
        ahead = 0
        if CONFIG.RESIDUAL_TILES > 0:
            for span in range(CONFIG.spans):
                residual_ring.wait_empty(residual_position)
                arrived = residual_ring.full[residual_position.stage]
                load_residual(residual, residuals, arrived, residual_position.stage, tile, span, work, CONFIG)
                residual_position = residual_position.next()
    if CONFIG.SPLIT > 1:
        tx.cluster_arrive()
        tx.cluster_wait()


@tilewright.jit
def multiply(lefts, rights, ring, position, copy, tile, work, CONFIG: tl.constexpr):
    """The sums of a unit, and the position behind it."""
    take_turn(copy, tile, work, CONFIG.PING_PONG)
    acc = tx.accumulator((64, CONFIG.BN), CONFIG.SUM)
    before = position
    for k in range(work.blocks):
        ring.wait_full(position)
        left = lefts[position.stage * CONFIG.units + (0 if CONFIG.PING_PONG else copy)]
        acc = tx.wgmma(left, rights[position.stage].T, acc, keep=k > 0)
        # The product before this one has ended, and its stage is free.
        tx.wgmma_wait(outstanding=1)
        if k > 0:
            ring.release(before)
        before = position
        position = position.next()
    pass_turn(copy, tile, work, CONFIG.PING_PONG)
    total = tx.wgmma_wait(acc)
    ring.release(before)
    return total, position


@tilewright.jit
def finished(value, tile, place, first_column, work, extra, other, CONFIG: tl.constexpr):
    """The epilogue on a block of sums, whose columns begin at one of the group."""
    local = tl.arange(0, 64)[:, None]
    line = local // CONFIG.UNIT[2]
    image = place.image + line // CONFIG.UNIT[1]
    row = place.row + line % CONFIG.UNIT[1]
    pixel = place.column + local % CONFIG.UNIT[2]
    group, _ = column_place(tile, work, CONFIG)
    column = first_column + tl.arange(0, value.shape[1])[None, :]
    mask = (local < CONFIG.pixels) & (image < work.images) & (row < work.height) & (pixel < work.width)
    mask = mask & (column < work.columns)
    index = (image.to(tl.int64) * work.height + row) * work.width + pixel
    column = column + group * work.columns
    if CONFIG.RESIDUAL_TILES > 0:
        result = CONFIG.EPILOGUE(value, index, column, mask, extra, other)
    else:
        result = CONFIG.EPILOGUE(value, index, column, mask, extra)
    return result


@tilewright.jit
def store_span(value, target, out, tile, place, first, work, OUTSTANDING: tl.constexpr, CONFIG: tl.constexpr):
    """Store a block of results, chunks of columns from number `first` on, through a staging tile: one group.

    The copy that last read the tile is done when at most `OUTSTANDING` later ones are not.
    """
    tx.tma_wait(OUTSTANDING, read=True)
    tx.group_sync()
    out.store(value)
    tx.fence_async()
    tx.group_sync()
    for part in tl.static_range(CONFIG.TOGETHER):
        source = out.slice(part * CONFIG.chunk, CONFIG.chunk, 1).slice(0, CONFIG.pixels)
        tx.tma_store(target, out_place(tile, place, first + part, work, CONFIG), source)
    tx.tma_commit()


@tilewright.jit
def finish(
    total, tile, copy, out, residuals, residual_ring, residual_position, outs, work, extra, CONFIG: tl.constexpr
):
    """Compute and store the results of a unit; the position after its residual."""
    number = 0 if CONFIG.PING_PONG else copy
    place = unit_place(tile, number, work, CONFIG)
    group, first_column = column_place(tile, work, CONFIG)
    for span in tl.static_range(CONFIG.spans):
        value = tx.block_slice(total, 1, span * CONFIG.span, CONFIG.span)
        other = 0
        if CONFIG.RESIDUAL_TILES > 0:
            residual_ring.wait_full(residual_position)
            other = residuals[residual_position.stage * CONFIG.units + number].load()
        result = finished(value, tile, place, first_column + span * CONFIG.span, work, extra, other, CONFIG)
        # Staging tiles take turns where the spans of a tile fill them evenly, else from the first on.
        EVEN: tl.constexpr = CONFIG.spans % CONFIG.BUFFERS == 0
        staging = outs[span % CONFIG.BUFFERS * CONFIG.CONSUMERS + copy]
        store_span(result, out, staging, tile, place, span * CONFIG.TOGETHER, work, CONFIG.BUFFERS - 1 if EVEN else 0,
                   CONFIG)  # fmt: skip
        if CONFIG.RESIDUAL_TILES > 0:
            # Only what was computed from it proves that a tile has been read.
            residual_ring.release(residual_position)
            residual_position = residual_position.next()
    return residual_position


@tilewright.jit
def multiply_tiles(copy, out, lefts, rights, ring, residuals, residual_ring, outs, work, extra, CONFIG: tl.constexpr):
    """The multiplying role: this warpgroup's unit of each tile."""
    position = tx.consumer_start(CONFIG.STAGES)
    residual_position = tx.consumer_start(max(1, CONFIG.RESIDUAL_TILES))
    for tile in range(work.first, work.tiles, work.step):
        total, position = multiply(lefts, rights, ring, position, copy, tile, work, CONFIG)
        residual_position = finish(
            total, tile, copy, out, residuals, residual_ring, residual_position, outs, work, extra, CONFIG
        )
    tx.tma_wait()


@tilewright.jit
def multiply_ping_pong(
    copy, out, lefts, rights, ring, residuals, residual_ring, outs, work, extra, CONFIG: tl.constexpr
):
    """The multiplying role under ping-pong: every other tile; the stages of the other warpgroup are passed over."""
    count = copy * 1
    for tile in range(work.first + copy * work.step, work.tiles, CONFIG.CONSUMERS * work.step):
        position = tx.ring_at(count * work.blocks, CONFIG.STAGES)
        total, position = multiply(lefts, rights, ring, position, copy, tile, work, CONFIG)
        residual_position = tx.ring_at(count * CONFIG.spans, max(1, CONFIG.RESIDUAL_TILES))
        finish(total, tile, copy, out, residuals, residual_ring, residual_position, outs, work, extra, CONFIG)
        count += CONFIG.CONSUMERS
    tx.tma_wait()


@tilewright.jit
def multiply_part(copy, out, lefts, rights, ring, parts, outs, work, extra, CONFIG: tl.constexpr):
    """The multiplying role when CTAs share the depth of a tile: each finishes a part of its columns."""
    WIDTH: tl.constexpr = CONFIG.stored_columns
    position = tx.consumer_start(CONFIG.STAGES)
    total, position = multiply(lefts, rights, ring, position, copy, work.first, work, CONFIG)
    for part in tl.static_range(CONFIG.SPLIT):
        parts[copy * CONFIG.SPLIT + part].store(tx.block_slice(total, 1, part * WIDTH, WIDTH))
    tx.cluster_arrive()
    tx.cluster_wait()
    rank = tx.cluster_rank()
    mine = parts[copy * CONFIG.SPLIT + rank]
    # All are asked for before the first is waited for; they are added up in their order.
    values = ()
    for other in tl.static_range(CONFIG.SPLIT):
        values = values + (mine.remote(other).load(),)
    value = values[0]
    for other in tl.static_range(1, CONFIG.SPLIT):
        value += values[other]
    place = unit_place(work.first, copy, work, CONFIG)
    group, column = column_place(work.first, work, CONFIG)
    result = finished(value, work.first, place, column + rank * WIDTH, work, extra, 0, CONFIG)
    store_span(result, out, outs[copy], work.first, place, rank, work, 0, CONFIG)
    tx.tma_wait()


@tilewright.jit
def convolution(x: tx.tensor_map, w: tx.tensor_map, residual: tx.tensor_map, out: tx.tensor_map, images, height, width,
                columns, *extra, CONFIG: tl.constexpr):  # fmt: skip
    """out = EPILOGUE(convolution of x by w), as `CONFIG` says.

    Maps: x [images, rows, columns, channels] in steps of the strides, w [all columns, taps, channels], `residual` and
    out [images, height, width, (groups,) columns], in tiles of `image_block`, `weight_block`, `out_block`; where there
    is none, `residual` may be any map of out's type.  Sizes are those of the result, `columns` those of a group.
    Grid: `CONFIG.grid`.
    """
    if CONFIG.SPLIT > 1:
        tx.cluster((CONFIG.SPLIT,))
    lefts = tx.shared((CONFIG.STAGES * CONFIG.units, CONFIG.pixels, CONFIG.BK), CONFIG.INPUT,
                      swizzle=swizzle(CONFIG.BK, CONFIG.INPUT))  # fmt: skip
    rights = tx.shared(
        (CONFIG.STAGES, CONFIG.BN, CONFIG.BK), CONFIG.right_type, swizzle=swizzle(CONFIG.BK, CONFIG.INPUT)
    )
    outs = tx.shared((CONFIG.BUFFERS * CONFIG.CONSUMERS, 64, CONFIG.span), CONFIG.OUTPUT,
                     swizzle=swizzle(CONFIG.chunk, CONFIG.OUTPUT))  # fmt: skip
    ring = tx.make_ring(CONFIG.STAGES, 4 * CONFIG.units)
    residuals = outs
    residual_ring = ring
    if CONFIG.RESIDUAL_TILES > 0:
        residuals = tx.shared((CONFIG.RESIDUAL_TILES * CONFIG.units, 64, CONFIG.span), residual.dtype,
                            swizzle=swizzle(CONFIG.chunk, residual.dtype))  # fmt: skip
        residual_ring = tx.make_ring(CONFIG.RESIDUAL_TILES, 4 * CONFIG.units)
    if CONFIG.DEPENDENT:
        tx.grid_launch_dependents()
    work = make_work(images, height, width, columns, CONFIG)
    if CONFIG.SPLIT > 1:
        parts = tx.shared((CONFIG.CONSUMERS * CONFIG.SPLIT, 64, CONFIG.stored_columns), CONFIG.SUM,
                          swizzle=swizzle(CONFIG.stored_columns, CONFIG.SUM))  # fmt: skip
        multiplying = tx.role(
            multiply_part, (out, lefts, rights, ring, parts, outs, work, extra, CONFIG),
            copies=CONFIG.CONSUMERS, registers=CONFIG.registers[1],
        )  # fmt: skip
    else:
        multiplying = tx.role(
            multiply_ping_pong if CONFIG.PING_PONG else multiply_tiles,
            (out, lefts, rights, ring, residuals, residual_ring, outs, work, extra, CONFIG),
            copies=CONFIG.CONSUMERS, registers=CONFIG.registers[1],
        )  # fmt: skip
    # A single warp loads where no registers are handed over, which whole warpgroups do.
    loading = tx.role(load_tiles, (x, w, residual, lefts, rights, ring, residuals, residual_ring, work, CONFIG),
                      warps=1 if CONFIG.CONSUMERS == 1 else 4, registers=CONFIG.registers[0], elected=True)  # fmt: skip
    tx.warp_roles(multiplying, loading)
    if CONFIG.SPLIT > 1:
        # Peers may still read this CTA's sums.
        tx.cluster_arrive(relaxed=True)
        tx.cluster_wait()
