"""Product of few rows by quantized weights on Hopper: C = EPILOGUE(X @ W^T), at the rate at which memory gives W.

One elected thread loads stages of weights, their scales, and rows of x by tensor copies.  Each consumer, a warpgroup
or a warp, widens 64 columns of a stage, 64 steps of the depth at once, from shared memory to registers, where they are
the left operand of wgmma or mma.sync, whose columns are the rows of x; other consumers multiply meanwhile.  Consumers
may take turns at the stages of the same columns, and CTAs of a cluster share the depth where columns are few; sums are
added up in one order.

Packed weights (`packing`'s `fragments`) lie as the threads of a warpgroup want them: 16 bytes for each, one thread
after the other; a warp takes the parts of all four.  Integers become floats by bits, 4-bit numbers in both halves of a
word at once: 0x4300 | q is 128 + q in bfloat16, 0x6400 | q is 1024 + q in float16, from which the same and the zero
point are subtracted, all exact.

Operands swapped and weights in registers are as in NVIDIA's CUTLASS ("mixed input" kernels for sm_90), the numbers by
bits as in Kim et al., "Who Says Elephants Can't Run", 2022.
"""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl
import tilewright.language.explicit as tx
from tilewright.language.explicit.objects import barrier_array, shared_tile
from tilewright.library.matmul.hopper.dequantized_config import COLUMNS, PACKED_LINE
from tilewright.library.matmul.hopper.kernel import finished

COLUMNS, PACKED_LINE = tl.constexpr(COLUMNS), tl.constexpr(PACKED_LINE)


@tilewright.aggregate
class DepthPart:
    """Which part of the work is this CTA's."""

    column: tl.tensor  # first column, in units of 64
    row: tl.tensor  # first row of x
    rank: tl.tensor  # number among the CTAs that share the depth
    start: tl.tensor  # first stage
    blocks: tl.tensor  # stages
    low: tl.tensor  # the mask of the low bits of both halves of a word


@tilewright.aggregate
class Ring:
    """The barriers of the ring, one of each a stage: weights have come, x has come, both may be written again."""

    weights: barrier_array
    rows: barrier_array
    empty: barrier_array


@tilewright.jit
def make_part(K, CONFIG: tl.constexpr):
    """The work of this CTA."""
    blocks = tl.cdiv(K, CONFIG.DEPTH)
    rank = blocks * 0
    start = rank
    if CONFIG.SPLIT > 1:
        rank = tx.cluster_rank()
        start = blocks * rank // CONFIG.SPLIT
        blocks = blocks * (rank + 1) // CONFIG.SPLIT - start
    # The assembler would write a constant to a register for each use, since an instruction takes only one: the number
    # of the third dimension, which is 0, makes it a variable (64 rows on an H200: 32.1 us in place of 35.0).
    low = CONFIG.low_bits | tl.program_id(2)
    column, row = tl.program_id(0) // CONFIG.SPLIT * CONFIG.CONSUMERS, tl.program_id(1) * CONFIG.BATCH
    return DepthPart(column, row, rank, start, blocks, low)


# Loading -------------------------------------------------------------------------------------------------------------


@tilewright.jit
def load_weights(w, scales, zeros, codes, scaling, centres, ring, stage, part, k, CONFIG: tl.constexpr):
    """Start loading a stage of weights with their scales and zero points."""
    full = ring.weights[stage]
    full.expect(CONFIG.weight_bytes)
    depth = (part.start + k) * CONFIG.DEPTH
    line = depth // CONFIG.unit * CONFIG.unit_lines
    tx.tma_load(w, (part.column, line, 0), codes[stage], full, None, "evict_first")
    group = depth * 0
    if CONFIG.GROUP > 0:
        group = depth // CONFIG.GROUP
    tx.tma_load(scales, (part.column, group, 0), scaling[stage], full)
    if CONFIG.ZEROS:
        tile = centres[stage].slice(0, CONFIG.CONSUMERS * CONFIG.groups)
        tx.tma_load(zeros, (part.column, group, 0), tile, full)


@tilewright.jit
def load_stages(copy, x, w, scales, zeros, rows, codes, scaling, centres, ring, part, CONFIG: tl.constexpr):
    """The loading role: one thread. The first stages of weights that nobody writes come at once, rows of x when the
    kernels in front have ended."""
    position = tx.producer_start(CONFIG.STAGES)
    ahead = part.blocks * 0
    if CONFIG.DEPENDENT:
        ahead = tl.minimum(part.blocks, CONFIG.STAGES)
        for k in range(ahead):
            load_weights(w, scales, zeros, codes, scaling, centres, ring, k, part, k, CONFIG)
    tx.grid_wait()
    for k in range(part.blocks):
        stage = position.stage
        if k >= ahead:
            ring.empty[stage].wait(position.parity)
            load_weights(w, scales, zeros, codes, scaling, centres, ring, stage, part, k, CONFIG)
        ring.rows[stage].expect(CONFIG.x_bytes)
        place = (part.row, (part.start + k) * CONFIG.DEPTH)
        tx.tma_load(x, place, rows[stage], ring.rows[stage], None, "evict_last")
        position = position.next()
    if CONFIG.SPLIT > 1:
        tx.cluster_arrive()
        tx.cluster_wait()


# Widening ------------------------------------------------------------------------------------------------------------


@tilewright.jit
def halves(words, TYPE: tl.constexpr):
    """The floats in both halves of words [.., shifts] as [.., 2, shifts]."""
    pairs = words[:, :, :, None, :] >> (16 * tl.arange(0, 2))[None, None, None, :, None]
    return pairs.to(tl.int16).to(TYPE, bitcast=True)


@tilewright.jit
def by_bits(words, shifts, mask, MAGIC: tl.constexpr, TYPE: tl.constexpr):
    """Floats of the numbers at some bits of both halves of `words`, so much more as MAGIC is: [.., 2, shifts]."""
    return halves(words[:, :, :, None] >> shifts[None, None, None, :] & mask | MAGIC, TYPE)


@tilewright.jit
def nibbles(codes, low, CONFIG: tl.constexpr):
    """A piece's 4-bit numbers, so much more as `CONFIG.base` says, as [64, 64]."""
    MAGIC: tl.constexpr = 0x43004300 if CONFIG.TYPE == tl.bfloat16 else 0x64006400
    words = tl.reshape(codes.load(), (1, 128, 4))
    floats = by_bits(words, 4 * tl.arange(0, 4), low, MAGIC, CONFIG.TYPE)
    # unit, warp, row, column, step, even or odd, left or right columns, upper or lower rows
    floats = tl.reshape(floats, (1, 4, 8, 4, 4, 2, 2, 2))
    return tl.reshape(tl.permute(floats, (1, 7, 2, 0, 4, 6, 3, 5)), (64, 64))


@tilewright.jit
def whole_bytes(codes, low, CONFIG: tl.constexpr):
    """A piece's 8-bit integers, so much more as `CONFIG.base` says, as [64, 64].

    Of bfloat16, 7 bits make 128 + q % 128; the eighth one, which is the lowest of the exponent, -256 or -128.
    """
    words = tl.reshape(codes.load(), (2, 128, 4))
    if CONFIG.TYPE == tl.bfloat16:
        shifted = words[:, :, :, None] >> (8 * tl.arange(0, 2))[None, None, None, :]
        high = shifted & (low + 0x00010001) ^ -0x3C7F3C80  # 0xC380 in both halves
        floats = halves(shifted & low | 0x43004300, tl.bfloat16) + halves(high, tl.bfloat16)
    else:
        floats = by_bits(words, 8 * tl.arange(0, 2), low, 0x64006400, tl.float16)
    floats = tl.reshape(floats, (2, 4, 8, 4, 2, 2, 2, 2))
    return tl.reshape(tl.permute(floats, (1, 7, 2, 0, 4, 5, 3, 6)), (64, 64))


@tilewright.jit
def small_floats(codes, CONFIG: tl.constexpr):
    """A piece's 8-bit floats as [64, 64]."""
    floats = tl.reshape(codes.load(), (2, 4, 8, 4, 2, 2, 2, 2))
    return tl.reshape(tl.permute(floats, (1, 6, 2, 0, 4, 5, 3, 7)), (64, 64)).to(CONFIG.wide)


@tilewright.jit
def in_groups(tile):
    """Numbers [groups, 64] of groups of a piece as [64, groups, 1]."""
    return tile.T.load()[:, :, None]


@tilewright.jit
def widened(codes, scaling, centres, low, CONFIG: tl.constexpr):
    """64 steps of the weights of a consumer [64, 64] in the type of x, less their zero points, scaled where the config
    says so."""
    SPREAD: tl.constexpr = (64, CONFIG.piece_groups, 64 // CONFIG.piece_groups)
    if CONFIG.CODES != tl.int32:
        left = tl.reshape(small_floats(codes, CONFIG), SPREAD)
    elif CONFIG.BITS == 4:
        left = tl.reshape(nibbles(codes, low, CONFIG), SPREAD)
    else:
        left = tl.reshape(whole_bytes(codes, low, CONFIG), SPREAD)
    if CONFIG.ZEROS:
        left = left - (in_groups(centres).to(tl.float32) + CONFIG.base).to(left.dtype)
    elif CONFIG.base != 0:
        left = left - tl.full((1, 1, 1), CONFIG.base, left.dtype)
    if CONFIG.SCALED:
        left = (left.to(CONFIG.wide) * in_groups(scaling).to(CONFIG.wide)).to(CONFIG.TYPE)
    return tl.reshape(left, (64, 64))


# Multiplying ---------------------------------------------------------------------------------------------------------


@tilewright.aggregate
class StagePlace:
    """A stage of a consumer that has every `SLICES`th one: its number, the parity of its phase, and the first one."""

    stage: tl.tensor
    parity: tl.tensor
    first: tl.tensor


@tilewright.aggregate
class WeightStages:
    """The ring's memory, and its barriers."""

    codes: shared_tile
    scaling: shared_tile
    centres: shared_tile
    rows: shared_tile
    ring: Ring


@tilewright.jit
def following(position, CONFIG: tl.constexpr):
    """The place in the ring of a consumer's next stage."""
    stage = position.stage + CONFIG.SLICES
    around = stage == CONFIG.STAGES + position.first
    return StagePlace(tl.where(around, position.first, stage), position.parity ^ around.to(tl.int32), position.first)


@tilewright.jit
def stage_of(position, block, memory, CONFIG: tl.constexpr):
    """Codes, scales and zero points of a consumer in a stage."""
    packed = memory.codes[position.stage].slice(block * CONFIG.lines, CONFIG.lines)
    scale = memory.scaling[position.stage].slice(block * CONFIG.groups, CONFIG.groups)
    centre = memory.centres[position.stage].slice(block * CONFIG.groups, CONFIG.groups)
    return packed, scale, centre


@tilewright.jit
def warpgroup_sums(position, block, total, memory, part, CONFIG: tl.constexpr):
    """`total` and the products of a stage's weights [64, DEPTH], by wgmma.

    Of a group's pieces each is widened while the product of the one before is under way.  No product goes on when its
    stage is released, or when registers that it reads are written again.
    """
    LINES: tl.constexpr = CONFIG.lines // CONFIG.pieces
    memory.ring.weights[position.stage].wait(position.parity)
    packed, scale, centre = stage_of(position, block, memory, CONFIG)
    sums = total  # go on where weights are scaled, else begin at zero
    for piece in tl.static_range(CONFIG.pieces):
        GROUP: tl.constexpr = piece * CONFIG.groups // CONFIG.pieces
        left = widened(packed.slice(piece * LINES, LINES), scale.slice(GROUP, CONFIG.piece_groups),
                       centre.slice(GROUP, CONFIG.piece_groups), part.low, CONFIG)  # fmt: skip
        if piece == 0:
            memory.ring.rows[position.stage].wait(position.parity)
        right = memory.rows[position.stage].T.slice(piece * 64, 64, 0)
        if piece % CONFIG.together > 0 or CONFIG.SCALED:
            sums = tx.wgmma(left, right, sums)
        else:
            sums = tx.wgmma(left, right)
        if (piece + 1) % CONFIG.together == 0:
            if CONFIG.SCALED:
                total = tx.wgmma_wait(sums)
            else:
                factors = scale[GROUP].load().to(tl.float32)[:, None]  # while the products are under way
                total += tx.wgmma_wait(sums) * factors
    memory.ring.empty[position.stage].arrive()
    return total


@tilewright.jit
def start_stage(position, block, memory, part, CONFIG: tl.constexpr):
    """The products of a stage, under way."""
    LINES: tl.constexpr = CONFIG.lines // CONFIG.pieces
    memory.ring.weights[position.stage].wait(position.parity)
    packed, scale, centre = stage_of(position, block, memory, CONFIG)
    for piece in tl.static_range(CONFIG.pieces):
        left = widened(packed.slice(piece * LINES, LINES), scale, centre, part.low, CONFIG)
        right = memory.rows[position.stage].T.slice(piece * 64, 64, 0)
        if piece == 0:
            memory.ring.rows[position.stage].wait(position.parity)
            sums = tx.wgmma(left, right)
        else:
            sums = tx.wgmma(left, right, sums)
    return sums


@tilewright.jit
def finish_stage(sums, position, block, total, memory, part, UNDER_WAY: tl.constexpr, CONFIG: tl.constexpr):
    """`total` and the products of a stage, which is released; so many stages after it are under way."""
    packed, scale, centre = stage_of(position, block, memory, CONFIG)
    factors = scale[0].load().to(tl.float32)[:, None]
    total += tx.wgmma_wait(sums, outstanding=UNDER_WAY * CONFIG.pieces) * factors
    memory.ring.empty[position.stage].arrive()
    return total


@tilewright.jit
def sums_under_way(position, block, stages, total, memory, part, CONFIG: tl.constexpr):
    """`total` and the products of all stages; a stage is widened while the one in front is multiplied."""
    first, place = start_stage(position, block, memory, part, CONFIG), position
    for _ in range((stages - 1) // 2):
        next = following(place, CONFIG)
        second = start_stage(next, block, memory, part, CONFIG)
        total = finish_stage(first, place, block, total, memory, part, 1, CONFIG)
        place = following(next, CONFIG)
        first = start_stage(place, block, memory, part, CONFIG)
        total = finish_stage(second, next, block, total, memory, part, 1, CONFIG)
    if stages % 2 == 0:
        next = following(place, CONFIG)
        second = start_stage(next, block, memory, part, CONFIG)
        total = finish_stage(first, place, block, total, memory, part, 1, CONFIG)
        total = finish_stage(second, next, block, total, memory, part, 0, CONFIG)
    else:
        total = finish_stage(first, place, block, total, memory, part, 0, CONFIG)
    return total


@tilewright.jit
def parts_of_depth(block, AXIS: tl.constexpr, PARTS: tl.constexpr):
    """1, 2 or 4 equal parts of an operand along the depth, which each thread has in registers of its own."""
    parts = (block,)
    for _ in tl.static_range(PARTS // 2):
        found = ()
        for part in parts:
            if AXIS == 0:
                ordered = tl.permute(tl.reshape(part, (2, part.shape[0] // 2, part.shape[1])), (1, 2, 0))
            else:
                ordered = tl.permute(tl.reshape(part, (part.shape[0], 2, part.shape[1] // 2)), (0, 2, 1))
            found = found + tl.split(ordered)
        parts = found
    return parts


@tilewright.jit
def warp_sums(position, block, total, memory, part, CONFIG: tl.constexpr):
    """`total` and the products of a stage's weights [64, DEPTH], by mma.sync."""
    LINES: tl.constexpr = CONFIG.lines // CONFIG.pieces
    PARTS: tl.constexpr = 1 if CONFIG.SCALED else CONFIG.piece_groups
    memory.ring.weights[position.stage].wait(position.parity)
    packed, scale, centre = stage_of(position, block, memory, CONFIG)
    memory.ring.rows[position.stage].wait(position.parity)
    sums = total
    for piece in tl.static_range(CONFIG.pieces):
        GROUP: tl.constexpr = piece * CONFIG.groups // CONFIG.pieces
        left = widened(packed.slice(piece * LINES, LINES), scale.slice(GROUP, CONFIG.piece_groups),
                       centre.slice(GROUP, CONFIG.piece_groups), part.low, CONFIG)  # fmt: skip
        lefts = parts_of_depth(left, 1, PARTS)
        rights = parts_of_depth(memory.rows[position.stage].T.slice(piece * 64, 64, 0).load(), 0, PARTS)
        for number in tl.static_range(PARTS):
            if piece % CONFIG.together == 0 and not CONFIG.SCALED:
                sums = tl.zeros((64, CONFIG.BATCH), tl.float32)
            sums = tl.dot(lefts[number], rights[number], sums)
            if CONFIG.SCALED:
                total = sums
            elif (piece + 1) % CONFIG.together == 0:
                total += sums * scale[GROUP + number].load().to(tl.float32)[:, None]
    memory.ring.empty[position.stage].arrive()
    return total


@tilewright.jit
def sums_of_columns(copy, memory, part, CONFIG: tl.constexpr):
    """The sums [64, BATCH] of a consumer's columns over its stages."""
    total = tl.zeros((64, CONFIG.BATCH), tl.float32)
    block, stages = copy, part.blocks
    slice = copy * 0
    if CONFIG.SLICES > 1:
        block, slice = copy % CONFIG.CONSUMERS, copy // CONFIG.CONSUMERS
        stages = (stages - slice + CONFIG.SLICES - 1) // CONFIG.SLICES
    position = StagePlace(slice, slice * 0, slice)
    if CONFIG.AHEAD:
        return sums_under_way(position, block, stages, total, memory, part, CONFIG)
    for _ in range(stages):
        if CONFIG.WARPS == 4:
            total = warpgroup_sums(position, block, total, memory, part, CONFIG)
        else:
            total = warp_sums(position, block, total, memory, part, CONFIG)
        position = following(position, CONFIG)
    return total


@tilewright.jit
def store(value, out, first_row, first_column, M, N, extra, CONFIG: tl.constexpr):
    """Store sums [rows, columns] behind the epilogue."""
    N = tl.multiple_of(N, CONFIG.MULTIPLE)
    row = first_row + tl.arange(0, value.shape[0])[:, None]
    column = first_column + tl.arange(0, value.shape[1])[None, :]
    result = finished(value, 0, first_row, first_column, M, N, extra, CONFIG)
    tl.store(out + (row.to(tl.int64) * N + column), result, mask=(row < M) & (column < N))


@tilewright.jit
def synchronise(CONFIG: tl.constexpr):
    """Wait for all consumers."""
    if CONFIG.copies > 1:
        tx.named_sync(1, 32 * CONFIG.WARPS * CONFIG.copies)
    else:
        tx.group_sync()


@tilewright.jit
def all_sums(sums, block, first, begin, CONFIG: tl.constexpr):
    """Columns of a block from `begin` on, of the rows that one of the consumers that share them stores: the sums of
    those, and of all CTAs that share the depth."""
    ROWS: tl.constexpr = CONFIG.BATCH // CONFIG.SLICES
    value = tl.zeros((ROWS, CONFIG.loaded_columns), tl.float32)
    for peer in tl.static_range(CONFIG.SPLIT):
        for slice in tl.static_range(CONFIG.SLICES):
            own = sums[block + slice * CONFIG.CONSUMERS].slice(first, ROWS).slice(begin, CONFIG.loaded_columns, 1)
            if CONFIG.SPLIT > 1:
                own = own.remote(peer)
            value += own.load()
    return value


@tilewright.jit
def multiply(copy, out, memory, sums, part, M, N, extra, CONFIG: tl.constexpr):
    """The multiplying role. Sums become rows through shared memory; of those that consumers share each adds and stores
    a part of the rows, of those that CTAs share each a part of the columns.  Columns of both halves that a gate makes
    one of are half a block apart."""
    ROWS: tl.constexpr = CONFIG.BATCH // CONFIG.SLICES
    total = sums_of_columns(copy, memory, part, CONFIG)
    synchronise(CONFIG)  # the sums reuse the memory of x's stages
    sums[copy].T.store(total)
    if CONFIG.SLICES > 1:
        synchronise(CONFIG)
    else:
        tx.group_sync()
    block, first = copy % CONFIG.CONSUMERS, copy // CONFIG.CONSUMERS * ROWS
    row, column = part.row + first, (part.column + block) * CONFIG.block_columns
    begin = part.rank % CONFIG.storing * CONFIG.loaded_columns
    if CONFIG.SPLIT > 1:
        tx.cluster_arrive()
        tx.cluster_wait()
    value = all_sums(sums, block, first, begin, CONFIG)
    if CONFIG.GATE is not None:
        value = CONFIG.GATE(value, all_sums(sums, block, first, COLUMNS // 2 + begin, CONFIG))
    column += begin
    if CONFIG.storing < CONFIG.SPLIT:
        row = tl.where(part.rank < CONFIG.storing, row, M)  # the others store nothing
    store(value, out, row, column, M, N, extra, CONFIG)


@tilewright.jit
def dequantized_matmul(x: tx.tensor_map, w: tx.tensor_map, scales: tx.tensor_map, zeros: tx.tensor_map, out, M, N, K,
                       *extra, CONFIG: tl.constexpr):  # fmt: skip
    """out[M, N] = EPILOGUE(x[M, K] @ numbers[N, K]^T), as `CONFIG` says; with a gate of 2 N columns, in blocks of 32 of
    the left and as many of the right half.

    Of x's map tiles are `CONFIG.x_block`, of the packed weights' [N / 64][lines][256] `CONFIG.codes_block`, of those of
    scales and zero points [N / 64][groups][64] (any map where there are none) `CONFIG.scales_block`.  Grid:
    `CONFIG.grid`.  The depth has at least `CONFIG.SPLIT` stages.
    """
    if CONFIG.SPLIT > 1:
        tx.cluster((CONFIG.SPLIT,))
    rows = tx.shared((CONFIG.STAGES, CONFIG.BATCH, CONFIG.DEPTH), CONFIG.TYPE, swizzle=128)
    codes = tx.shared((CONFIG.STAGES, CONFIG.CONSUMERS * CONFIG.lines, PACKED_LINE), CONFIG.CODES)
    scaling = tx.shared((CONFIG.STAGES, CONFIG.CONSUMERS * CONFIG.groups, COLUMNS), CONFIG.SCALE)
    centres = scaling
    if CONFIG.ZEROS:
        centres = tx.shared((CONFIG.STAGES, CONFIG.centre_rows, COLUMNS), tl.uint8)
    sums = tx.shared((CONFIG.copies, CONFIG.BATCH, COLUMNS), tl.float32, over=rows)
    ring = Ring(tx.barriers(CONFIG.STAGES, 1), tx.barriers(CONFIG.STAGES, 1),
                tx.barriers(CONFIG.STAGES, CONFIG.WARPS * CONFIG.CONSUMERS))  # fmt: skip
    if CONFIG.DEPENDENT:
        tx.grid_launch_dependents()
    part = make_part(K, CONFIG)
    loading = tx.role(load_stages, (x, w, scales, zeros, rows, codes, scaling, centres, ring, part, CONFIG),
                      warps=CONFIG.WARPS, registers=CONFIG.registers[0], elected=True)  # fmt: skip
    multiplying = tx.role(
        multiply, (out, WeightStages(codes, scaling, centres, rows, ring), sums, part, M, N, extra, CONFIG),
        warps=CONFIG.WARPS, copies=CONFIG.copies, registers=CONFIG.registers[1],
    )  # fmt: skip
    tx.warp_roles(loading, multiplying)
    if CONFIG.SPLIT > 1:
        # Peers may still read this CTA's sums.
        tx.cluster_arrive(relaxed=True)
        tx.cluster_wait()
