"""Convolution on Hopper as an implicit matrix product, at the speed of the tensor cores.

Images are channels last.  One elected thread loads, tap by tap of the window, boxes of the image and the weights of the
tap by TMA into a ring in shared memory; warpgroups multiply them, a unit of up to 64 output pixels each.  A box steps
over the image as the window does, and is zero where the window reaches over the edge: nothing is copied beforehand.
A 1x1 convolution is the same with one tap, and may see all pixels of all images as one line.

`convolution_forms.ConvolutionForm` says what can be chosen.  The idea is that of implicit GEMM (cuDNN, NVIDIA's
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
def make_work(images, height, width, columns, FORM: tl.constexpr):
    """The work of this CTA."""
    rank = 0
    start = 0
    blocks = tl.full((), FORM.blocks, tl.int32)
    if FORM.SPLIT > 1:
        rank = tx.cluster_rank()
        start = FORM.blocks * rank // FORM.SPLIT
        blocks = FORM.blocks * (rank + 1) // FORM.SPLIT - start
    units = tl.cdiv(images, FORM.UNIT[0]) * tl.cdiv(height, FORM.UNIT[1]) * tl.cdiv(width, FORM.UNIT[2])
    column_tiles = tl.cdiv(columns, FORM.BN) * FORM.GROUPS
    tiles = tl.cdiv(units, FORM.units) * column_tiles
    first = tl.program_id(0) // FORM.SPLIT
    step = tl.num_programs(0) // FORM.SPLIT
    return ConvolutionWork(images, height, width, columns, column_tiles, tiles, first, step, start, blocks)


@tilewright.jit
def unit_place(tile, number, work, FORM: tl.constexpr):
    """The place of a unit of a tile.  Units past the last lie behind the last image."""
    unit = tile // work.column_tiles * FORM.units + number
    across = tl.cdiv(work.width, FORM.UNIT[2])
    down = tl.cdiv(work.height, FORM.UNIT[1])
    line = unit // across
    image = line // down
    row = line - image * down
    return Place(image * FORM.UNIT[0], row * FORM.UNIT[1], (unit - line * across) * FORM.UNIT[2])


@tilewright.jit
def column_place(tile, work, FORM: tl.constexpr):
    """Group and first column in it of a tile: the tiles of some pixels follow each other, so that these stay near."""
    column = tile % work.column_tiles
    group = 0
    if FORM.GROUPS > 1:
        of_group = work.column_tiles // FORM.GROUPS
        group = column // of_group
        column = column - group * of_group
    return group, column * FORM.BN


@tilewright.jit
def load_weights(w, rights, full, stage, tile, k, work, FORM: tl.constexpr):
    """Start loading a stage of weights."""
    group, column = column_place(tile, work, FORM)
    k += work.start
    tap = k // FORM.channel_blocks
    channel = (k - tap * FORM.channel_blocks) * FORM.BK
    tx.tma_load(w, (group * work.columns + column, tap, channel), rights[stage], full)


@tilewright.jit
def load_image(x, lefts, full, stage, tile, k, work, FORM: tl.constexpr):
    """Start loading what the tap of a stage sees of the units of a tile."""
    group, column = column_place(tile, work, FORM)
    k += work.start
    tap = k // FORM.channel_blocks
    channel = group * FORM.CHANNELS + (k - tap * FORM.channel_blocks) * FORM.BK
    tap_y = tap // FORM.KERNEL[1]
    tap_x = tap - tap_y * FORM.KERNEL[1]
    down = tap_y * FORM.DILATION[0] - FORM.PAD[0]
    right = tap_x * FORM.DILATION[1] - FORM.PAD[1]
    for number in tl.static_range(FORM.units):
        place = unit_place(tile, number, work, FORM)
        row = place.row * FORM.STRIDE[0] + down
        tx.tma_load(x, (place.image, row, place.column * FORM.STRIDE[1] + right, channel),
                    lefts[stage * FORM.units + number], full)  # fmt: skip


@tilewright.jit
def out_place(tile, place, chunk, work, FORM: tl.constexpr):
    """Coordinates of a chunk of results."""
    group, column = column_place(tile, work, FORM)
    if FORM.GROUPS > 1:
        coordinates = (place.image, place.row, place.column, group, column + chunk * FORM.chunk)
    else:
        coordinates = (place.image, place.row, place.column, column + chunk * FORM.chunk)
    return coordinates


@tilewright.jit
def load_beside(beside, besides, full, stage, tile, span, work, FORM: tl.constexpr):
    """Start loading the second operand of some columns of a tile, for all units."""
    full.expect(FORM.units * besides[0].bytes)
    for number in tl.static_range(FORM.units):
        place = unit_place(tile, number, work, FORM)
        for part in tl.static_range(FORM.TOGETHER):
            target = besides[stage * FORM.units + number].slice(part * FORM.chunk, FORM.chunk, 1)
            tx.tma_load(beside, out_place(tile, place, span * FORM.TOGETHER + part, work, FORM), target, full)


@tilewright.jit
def load_tiles(copy, x, w, beside, lefts, rights, ring, besides, beside_ring, work, FORM: tl.constexpr):
    """The loading role: one thread."""
    position = tx.producer_start(FORM.STAGES)
    ahead = 0
    if FORM.DEPENDENT:
        # The first stages take their weights at once; images come from the kernels before.
        ahead = tl.where(work.first < work.tiles, tl.minimum(work.blocks, FORM.STAGES), 0)
        for k in range(ahead):
            ring.full[k].expect(FORM.stage_bytes)
            load_weights(w, rights, ring.full[k], k, work.first, k, work, FORM)
        tx.grid_wait()
    if FORM.BESIDE > 0:
        beside_position = tx.producer_start(FORM.BESIDE)
    for tile in range(work.first, work.tiles, work.step):
        for k in range(work.blocks):
            full = ring.full[position.stage]
            if k >= ahead:
                ring.wait_empty(position)
                full.expect(FORM.stage_bytes)
                load_weights(w, rights, full, position.stage, tile, k, work, FORM)
            load_image(x, lefts, full, position.stage, tile, k, work, FORM)
            position = position.next()
        ahead = 0
        if FORM.BESIDE > 0:
            for span in range(FORM.spans):
                beside_ring.wait_empty(beside_position)
                load_beside(beside, besides, beside_ring.full[beside_position.stage], beside_position.stage, tile, span,
                            work, FORM)  # fmt: skip
                beside_position = beside_position.next()
    if FORM.SPLIT > 1:
        tx.cluster_arrive()
        tx.cluster_wait()


@tilewright.jit
def multiply(lefts, rights, ring, position, copy, tile, work, FORM: tl.constexpr):
    """The sums of a unit, and the position behind it."""
    take_turn(copy, tile, work, FORM.TURNS)
    acc = tx.accumulator((64, FORM.BN), FORM.SUM)
    before = position
    for k in range(work.blocks):
        ring.wait_full(position)
        left = lefts[position.stage * FORM.units + (0 if FORM.TURNS else copy)]
        acc = tx.wgmma(left, rights[position.stage].T, acc, keep=k > 0)
        # The product before this one has ended, and its stage is free.
        tx.wgmma_wait(outstanding=1)
        if k > 0:
            ring.release(before)
        before = position
        position = position.next()
    pass_turn(copy, tile, work, FORM.TURNS)
    total = tx.wgmma_wait(acc)
    ring.release(before)
    return total, position


@tilewright.jit
def finished(value, tile, place, first_column, work, extra, other, FORM: tl.constexpr):
    """The epilogue on a block of sums, whose columns begin at one of the group."""
    local = tl.arange(0, 64)[:, None]
    line = local // FORM.UNIT[2]
    image = place.image + line // FORM.UNIT[1]
    row = place.row + line % FORM.UNIT[1]
    pixel = place.column + local % FORM.UNIT[2]
    group, _ = column_place(tile, work, FORM)
    column = first_column + tl.arange(0, value.shape[1])[None, :]
    mask = (local < FORM.pixels) & (image < work.images) & (row < work.height) & (pixel < work.width)
    mask = mask & (column < work.columns)
    index = (image.to(tl.int64) * work.height + row) * work.width + pixel
    column = column + group * work.columns
    if FORM.BESIDE > 0:
        result = FORM.EPILOGUE(value, index, column, mask, extra, other)
    else:
        result = FORM.EPILOGUE(value, index, column, mask, extra)
    return result


@tilewright.jit
def store_span(value, target, out, tile, place, first, work, OUTSTANDING: tl.constexpr, FORM: tl.constexpr):
    """Store a block of results, chunks of columns from number `first` on, through a staging tile: one group.

    The copy that last read the tile is done when at most `OUTSTANDING` later ones are not.
    """
    tx.tma_wait(OUTSTANDING, read=True)
    tx.group_sync()
    out.store(value)
    tx.fence_async()
    tx.group_sync()
    for part in tl.static_range(FORM.TOGETHER):
        source = out.slice(part * FORM.chunk, FORM.chunk, 1).slice(0, FORM.pixels)
        tx.tma_store(target, out_place(tile, place, first + part, work, FORM), source)
    tx.tma_commit()


@tilewright.jit
def finish(total, tile, copy, out, besides, beside_ring, beside_position, outs, work, extra, FORM: tl.constexpr):
    """Compute and store the results of a unit; the position behind what came beside it."""
    number = 0 if FORM.TURNS else copy
    place = unit_place(tile, number, work, FORM)
    group, first_column = column_place(tile, work, FORM)
    for span in tl.static_range(FORM.spans):
        value = tx.block_slice(total, 1, span * FORM.span, FORM.span)
        other = 0
        if FORM.BESIDE > 0:
            beside_ring.wait_full(beside_position)
            other = besides[beside_position.stage * FORM.units + number].load()
        result = finished(value, tile, place, first_column + span * FORM.span, work, extra, other, FORM)
        # Staging tiles are taken in turns where the spans of a tile fill them evenly, else from the first on.
        EVEN: tl.constexpr = FORM.spans % FORM.BUFFERS == 0
        staging = outs[span % FORM.BUFFERS * FORM.CONSUMERS + copy]
        store_span(result, out, staging, tile, place, span * FORM.TOGETHER, work, FORM.BUFFERS - 1 if EVEN else 0,
                   FORM)  # fmt: skip
        if FORM.BESIDE > 0:
            # Only what was computed from it proves that a tile has been read.
            beside_ring.release(beside_position)
            beside_position = beside_position.next()
    return beside_position


@tilewright.jit
def multiply_tiles(copy, out, lefts, rights, ring, besides, beside_ring, outs, work, extra, FORM: tl.constexpr):
    """The multiplying role: this warpgroup's unit of each tile."""
    position = tx.consumer_start(FORM.STAGES)
    beside_position = tx.consumer_start(max(1, FORM.BESIDE))
    for tile in range(work.first, work.tiles, work.step):
        total, position = multiply(lefts, rights, ring, position, copy, tile, work, FORM)
        beside_position = finish(total, tile, copy, out, besides, beside_ring, beside_position, outs, work, extra, FORM)
    tx.tma_wait()


@tilewright.jit
def multiply_in_turns(copy, out, lefts, rights, ring, besides, beside_ring, outs, work, extra, FORM: tl.constexpr):
    """The multiplying role when warpgroups take tiles in turns; the stages of the others' are passed over."""
    count = copy * 1
    for tile in range(work.first + copy * work.step, work.tiles, FORM.CONSUMERS * work.step):
        position = tx.ring_at(count * work.blocks, FORM.STAGES)
        total, position = multiply(lefts, rights, ring, position, copy, tile, work, FORM)
        beside_position = tx.ring_at(count * FORM.spans, max(1, FORM.BESIDE))
        finish(total, tile, copy, out, besides, beside_ring, beside_position, outs, work, extra, FORM)
        count += FORM.CONSUMERS
    tx.tma_wait()


@tilewright.jit
def multiply_part(copy, out, lefts, rights, ring, parts, outs, work, extra, FORM: tl.constexpr):
    """The multiplying role when CTAs share the depth of a tile: each finishes a part of its columns."""
    WIDTH: tl.constexpr = FORM.stored_columns
    position = tx.consumer_start(FORM.STAGES)
    total, position = multiply(lefts, rights, ring, position, copy, work.first, work, FORM)
    for part in tl.static_range(FORM.SPLIT):
        parts[copy * FORM.SPLIT + part].store(tx.block_slice(total, 1, part * WIDTH, WIDTH))
    tx.cluster_arrive()
    tx.cluster_wait()
    rank = tx.cluster_rank()
    mine = parts[copy * FORM.SPLIT + rank]
    # All are asked for before the first is waited for; they are added up in their order.
    values = ()
    for other in tl.static_range(FORM.SPLIT):
        values = values + (mine.remote(other).load(),)
    value = values[0]
    for other in tl.static_range(1, FORM.SPLIT):
        value += values[other]
    place = unit_place(work.first, copy, work, FORM)
    group, column = column_place(work.first, work, FORM)
    result = finished(value, work.first, place, column + rank * WIDTH, work, extra, 0, FORM)
    store_span(result, out, outs[copy], work.first, place, rank, work, 0, FORM)
    tx.tma_wait()


@tilewright.jit
def convolution(x: tx.tensor_map, w: tx.tensor_map, beside: tx.tensor_map, out: tx.tensor_map, images, height, width,
                columns, *extra, FORM: tl.constexpr):  # fmt: skip
    """out = EPILOGUE(convolution of x by w), as `FORM` says.

    Maps: x [images, rows, columns, channels] in steps of the strides, w [all columns, taps, channels], `beside` and out
    [images, height, width, (groups,) columns], in tiles of `image_block`, `weight_block`, `out_block`; without a
    second operand `beside` may be any map of out's type.  Sizes are those of the result, `columns` those of a group.
    Grid: `FORM.grid`.
    """
    if FORM.SPLIT > 1:
        tx.cluster((FORM.SPLIT,))
    lefts = tx.shared((FORM.STAGES * FORM.units, FORM.pixels, FORM.BK), FORM.INPUT,
                      swizzle=swizzle(FORM.BK, FORM.INPUT))  # fmt: skip
    rights = tx.shared((FORM.STAGES, FORM.BN, FORM.BK), FORM.right_type, swizzle=swizzle(FORM.BK, FORM.INPUT))
    outs = tx.shared((FORM.BUFFERS * FORM.CONSUMERS, 64, FORM.span), FORM.OUTPUT,
                     swizzle=swizzle(FORM.chunk, FORM.OUTPUT))  # fmt: skip
    ring = tx.make_ring(FORM.STAGES, 4 * FORM.units)
    besides = outs
    beside_ring = ring
    if FORM.BESIDE > 0:
        besides = tx.shared((FORM.BESIDE * FORM.units, 64, FORM.span), beside.dtype,
                            swizzle=swizzle(FORM.chunk, beside.dtype))  # fmt: skip
        beside_ring = tx.make_ring(FORM.BESIDE, 4 * FORM.units)
    if FORM.DEPENDENT:
        tx.grid_launch_dependents()
    work = make_work(images, height, width, columns, FORM)
    if FORM.SPLIT > 1:
        parts = tx.shared((FORM.CONSUMERS * FORM.SPLIT, 64, FORM.stored_columns), FORM.SUM,
                          swizzle=swizzle(FORM.stored_columns, FORM.SUM))  # fmt: skip
        multiplying = tx.role(
            multiply_part, (out, lefts, rights, ring, parts, outs, work, extra, FORM),
            copies=FORM.CONSUMERS, registers=FORM.registers[1],
        )  # fmt: skip
    else:
        multiplying = tx.role(
            multiply_in_turns if FORM.TURNS else multiply_tiles,
            (out, lefts, rights, ring, besides, beside_ring, outs, work, extra, FORM),
            copies=FORM.CONSUMERS, registers=FORM.registers[1],
        )  # fmt: skip
    # A single warp loads where no registers are handed over, which whole warpgroups do.
    loading = tx.role(load_tiles, (x, w, beside, lefts, rights, ring, besides, beside_ring, work, FORM),
                      warps=1 if FORM.CONSUMERS == 1 else 4, registers=FORM.registers[0], elected=True)  # fmt: skip
    tx.warp_roles(multiplying, loading)
    if FORM.SPLIT > 1:
        # Peers may still read this CTA's sums.
        tx.cluster_arrive(relaxed=True)
        tx.cluster_wait()
