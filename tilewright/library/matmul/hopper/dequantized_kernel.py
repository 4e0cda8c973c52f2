"""Product of few rows by quantized weights on Hopper: C = EPILOGUE(X @ W^T), at the rate at which memory gives W.

One elected thread loads stages of weights, their scales, and rows of x by tensor copies.  Each warpgroup widens 64
columns of a stage, 64 steps of the depth at once, from shared memory to registers, where they are the left operand of
wgmma, whose columns are the rows of x; other warpgroups multiply meanwhile.  CTAs of a cluster share the depth where
columns are few, and add their sums up in one order.

Packed weights (`packing`'s `fragments`) lie as the threads of a warpgroup want them: 16 bytes for each, one thread
after the other.  Integers become floats by bits, 4-bit numbers in both halves of a word at once: 0x4300 | q is 128 + q
in bfloat16, 0x6400 | q is 1024 + q in float16, from which the same and the zero point are subtracted, all exact.

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
    low: tl.tensor  # the mask of the low 4 bits of both halves of a word


@tilewright.aggregate
class Ring:
    """The barriers of the ring, one of each a stage: weights have come, x has come, both may be written again."""

    weights: barrier_array
    rows: barrier_array
    empty: barrier_array


@tilewright.jit
def make_part(K, FORM: tl.constexpr):
    """The work of this CTA."""
    blocks = tl.cdiv(K, FORM.DEPTH)
    rank = blocks * 0
    start = rank
    if FORM.SPLIT > 1:
        rank = tx.cluster_rank()
        start = blocks * rank // FORM.SPLIT
        blocks = blocks * (rank + 1) // FORM.SPLIT - start
    # The assembler would write a constant to a register for each use, since an instruction takes only one: the number
    # of the third dimension, which is 0, makes it a variable (64 rows on an H200: 32.1 us in place of 35.0).
    low = 0x000F000F | tl.program_id(2)
    column, row = tl.program_id(0) // FORM.SPLIT * FORM.CONSUMERS, tl.program_id(1) * FORM.BATCH
    return DepthPart(column, row, rank, start, blocks, low)


# Loading -------------------------------------------------------------------------------------------------------------


@tilewright.jit
def load_weights(w, scales, zeros, codes, scaling, centres, ring, stage, part, k, FORM: tl.constexpr):
    """Start loading a stage of weights with their scales and zero points."""
    full = ring.weights[stage]
    full.expect(FORM.weight_bytes)
    depth = (part.start + k) * FORM.DEPTH
    line = depth // FORM.unit * FORM.unit_lines
    tx.tma_load(w, (part.column, line, 0), codes[stage], full, None, "evict_first")
    group = depth * 0
    if FORM.GROUP > 0:
        group = depth // FORM.GROUP
    tx.tma_load(scales, (part.column, group, 0), scaling[stage], full)
    if FORM.ZEROS:
        tile = centres[stage].slice(0, FORM.CONSUMERS * FORM.groups)
        tx.tma_load(zeros, (part.column, group, 0), tile, full)


@tilewright.jit
def load_stages(copy, x, w, scales, zeros, rows, codes, scaling, centres, ring, part, FORM: tl.constexpr):
    """The loading role: one thread. The first stages of weights that nobody writes come at once, rows of x when the
    kernels in front have ended."""
    position = tx.producer_start(FORM.STAGES)
    ahead = part.blocks * 0
    if FORM.DEPENDENT:
        ahead = tl.minimum(part.blocks, FORM.STAGES)
        for k in range(ahead):
            load_weights(w, scales, zeros, codes, scaling, centres, ring, k, part, k, FORM)
    tx.grid_wait()
    for k in range(part.blocks):
        stage = position.stage
        if k >= ahead:
            ring.empty[stage].wait(position.parity)
            load_weights(w, scales, zeros, codes, scaling, centres, ring, stage, part, k, FORM)
        ring.rows[stage].expect(FORM.x_bytes)
        place = (part.row, (part.start + k) * FORM.DEPTH)
        tx.tma_load(x, place, rows[stage], ring.rows[stage], None, "evict_last")
        position = position.next()
    if FORM.SPLIT > 1:
        tx.cluster_arrive()
        tx.cluster_wait()


# Widening ------------------------------------------------------------------------------------------------------------


@tilewright.jit
def by_bits(words, shifts, mask, MAGIC: tl.constexpr, TYPE: tl.constexpr):
    """Floats of the numbers at some bits of both halves of `words`, so much more as MAGIC is: [.., 2, shifts]."""
    pairs = words[:, :, :, None] >> shifts[None, None, None, :] & mask | MAGIC
    floats = pairs[:, :, :, None, :] >> (16 * tl.arange(0, 2))[None, None, None, :, None]
    return floats.to(tl.int16).to(TYPE, bitcast=True)


@tilewright.jit
def nibbles(codes, low, FORM: tl.constexpr):
    """A piece's 4-bit numbers, so much more as `FORM.base` says, as [64, 64]."""
    MAGIC: tl.constexpr = 0x43004300 if FORM.TYPE == tl.bfloat16 else 0x64006400
    words = tl.reshape(codes.load(), (1, 128, 4))
    floats = by_bits(words, 4 * tl.arange(0, 4), low, MAGIC, FORM.TYPE)
    # unit, warp, row, column, step, even or odd, left or right columns, upper or lower rows
    floats = tl.reshape(floats, (1, 4, 8, 4, 4, 2, 2, 2))
    return tl.reshape(tl.permute(floats, (1, 7, 2, 0, 4, 6, 3, 5)), (64, 64))


@tilewright.jit
def whole_bytes(codes, FORM: tl.constexpr):
    """A piece's 8-bit integers, less `FORM.LOW`, as [64, 64]: float16 has bits enough for 1024 + q."""
    words = tl.reshape(codes.load(), (2, 128, 4))
    floats = by_bits(words, 8 * tl.arange(0, 2), 0x00FF00FF, 0x64006400, tl.float16)
    floats = tl.reshape(floats, (2, 4, 8, 4, 2, 2, 2, 2)) - tl.full((1,), 1024 + FORM.LOW, tl.float16)
    return tl.reshape(tl.permute(floats, (1, 7, 2, 0, 4, 5, 3, 6)), (64, 64)).to(FORM.wide)


@tilewright.jit
def small_floats(codes, FORM: tl.constexpr):
    """A piece's 8-bit floats as [64, 64]."""
    floats = tl.reshape(codes.load(), (2, 4, 8, 4, 2, 2, 2, 2))
    return tl.reshape(tl.permute(floats, (1, 6, 2, 0, 4, 5, 3, 7)), (64, 64)).to(FORM.wide)


@tilewright.jit
def in_groups(tile):
    """Numbers [groups, 64] of groups of a piece as [64, groups, 1]."""
    return tile.T.load()[:, :, None]


@tilewright.jit
def widened(codes, scaling, centres, low, FORM: tl.constexpr):
    """64 steps of the weights of a consumer [64, 64] in the type of x, less their zero points, scaled where the form
    says so."""
    SPREAD: tl.constexpr = (64, FORM.piece_groups, 64 // FORM.piece_groups)
    if FORM.CODES != tl.int32:
        left = tl.reshape(small_floats(codes, FORM), SPREAD)
    elif FORM.BITS == 4:
        left = tl.reshape(nibbles(codes, low, FORM), SPREAD)
    else:
        left = tl.reshape(whole_bytes(codes, FORM), SPREAD)
    if FORM.ZEROS:
        left = left - (in_groups(centres).to(tl.float32) + FORM.base).to(left.dtype)
    elif FORM.base > 0:
        left = left - tl.full((1, 1, 1), FORM.base, left.dtype)
    if FORM.SCALED:
        left = (left.to(FORM.wide) * in_groups(scaling).to(FORM.wide)).to(FORM.TYPE)
    return tl.reshape(left, (64, 64))


# Multiplying ---------------------------------------------------------------------------------------------------------


@tilewright.aggregate
class WeightStages:
    """The ring's memory, and its barriers."""

    codes: shared_tile
    scaling: shared_tile
    centres: shared_tile
    rows: shared_tile
    ring: Ring


@tilewright.jit
def multiply(copy, memory, part, FORM: tl.constexpr):
    """The sums [64, BATCH] of a consumer's columns over this CTA's part of the depth.

    Of a group's pieces each is widened while the product of the one before is under way.  No product goes on when its
    stage is released, or when registers that it reads are written again.
    """
    LINES: tl.constexpr = FORM.lines // FORM.pieces
    position = tx.consumer_start(FORM.STAGES)
    total = tl.zeros((64, FORM.BATCH), tl.float32)
    for _ in range(part.blocks):
        stage = position.stage
        memory.ring.weights[stage].wait(position.parity)
        packed = memory.codes[stage].slice(copy * FORM.lines, FORM.lines)
        scale = memory.scaling[stage].slice(copy * FORM.groups, FORM.groups)
        centre = memory.centres[stage].slice(copy * FORM.groups, FORM.groups)
        sums = total  # go on where weights are scaled, else begin at zero
        for piece in tl.static_range(FORM.pieces):
            GROUP: tl.constexpr = piece * FORM.groups // FORM.pieces
            left = widened(packed.slice(piece * LINES, LINES), scale.slice(GROUP, FORM.piece_groups),
                           centre.slice(GROUP, FORM.piece_groups), part.low, FORM)  # fmt: skip
            if piece == 0:
                memory.ring.rows[stage].wait(position.parity)
            right = memory.rows[stage].T.slice(piece * 64, 64, 0)
            if piece % FORM.together > 0 or FORM.SCALED:
                sums = tx.wgmma(left, right, sums)
            else:
                sums = tx.wgmma(left, right)
            if (piece + 1) % FORM.together == 0:
                if FORM.SCALED:
                    total = tx.wgmma_wait(sums)
                else:
                    total += tx.wgmma_wait(sums) * scale[GROUP].load().to(tl.float32)[:, None]
        memory.ring.empty[stage].arrive()
        position = position.next()
    return total


@tilewright.jit
def store(value, out, first_row, first_column, M, N, extra, FORM: tl.constexpr):
    """Store sums [rows, columns] behind the epilogue."""
    N = tl.multiple_of(N, FORM.MULTIPLE)
    row = first_row + tl.arange(0, value.shape[0])[:, None]
    column = first_column + tl.arange(0, value.shape[1])[None, :]
    result = finished(value, 0, first_row, first_column, M, N, extra, FORM)
    tl.store(out + (row.to(tl.int64) * N + column), result, mask=(row < M) & (column < N))


@tilewright.jit
def multiply_whole(copy, out, memory, sums, part, M, N, extra, FORM: tl.constexpr):
    """The multiplying role where a CTA has all of the depth; sums become rows through shared memory."""
    total = multiply(copy, memory, part, FORM)
    if FORM.CONSUMERS > 1:
        tx.named_sync(1, 128 * FORM.CONSUMERS)  # the sums lie where the stages of x were
    else:
        tx.group_sync()
    sums[copy].T.store(total)
    tx.group_sync()
    store(sums[copy].load(), out, part.row, (part.column + copy) * COLUMNS, M, N, extra, FORM)


@tilewright.jit
def multiply_part(copy, out, memory, sums, part, M, N, extra, FORM: tl.constexpr):
    """The multiplying role where CTAs share the depth: each stores a part of the columns."""
    total = multiply(copy, memory, part, FORM)
    if FORM.CONSUMERS > 1:
        tx.named_sync(1, 128 * FORM.CONSUMERS)
    else:
        tx.group_sync()
    sums[copy].T.store(total)
    tx.cluster_arrive()
    tx.cluster_wait()
    first = part.rank * FORM.stored_columns
    mine = sums[copy].slice(first, FORM.stored_columns, 1)
    value = mine.remote(0).load()
    for peer in tl.static_range(1, FORM.SPLIT):
        value += mine.remote(peer).load()
    store(value, out, part.row, (part.column + copy) * COLUMNS + first, M, N, extra, FORM)


@tilewright.jit
def dequantized_matmul(x: tx.tensor_map, w: tx.tensor_map, scales: tx.tensor_map, zeros: tx.tensor_map, out, M, N, K,
                       *extra, FORM: tl.constexpr):  # fmt: skip
    """out[M, N] = EPILOGUE(x[M, K] @ numbers[N, K]^T), as `FORM` says.

    Of x's map tiles are `FORM.x_block`, of the packed weights' [N / 64][lines][256] `FORM.codes_block`, of those of
    scales and zero points [N / 64][groups][64] (any map where there are none) `FORM.scales_block`.  Grid:
    `FORM.grid`.  The depth has at least `FORM.SPLIT` stages.
    """
    if FORM.SPLIT > 1:
        tx.cluster((FORM.SPLIT,))
    rows = tx.shared((FORM.STAGES, FORM.BATCH, FORM.DEPTH), FORM.TYPE, swizzle=128)
    codes = tx.shared((FORM.STAGES, FORM.CONSUMERS * FORM.lines, PACKED_LINE), FORM.CODES)
    scaling = tx.shared((FORM.STAGES, FORM.CONSUMERS * FORM.groups, COLUMNS), FORM.SCALE)
    centres = scaling
    if FORM.ZEROS:
        centres = tx.shared((FORM.STAGES, FORM.centre_rows, COLUMNS), tl.uint8)
    sums = tx.shared((FORM.CONSUMERS, FORM.BATCH, COLUMNS), tl.float32, over=rows)
    ring = Ring(tx.barriers(FORM.STAGES, 1), tx.barriers(FORM.STAGES, 1),
                tx.barriers(FORM.STAGES, 4 * FORM.CONSUMERS))  # fmt: skip
    if FORM.DEPENDENT:
        tx.grid_launch_dependents()
    part = make_part(K, FORM)
    loading = tx.role(load_stages, (x, w, scales, zeros, rows, codes, scaling, centres, ring, part, FORM),
                      registers=FORM.registers[0], elected=True)  # fmt: skip
    multiplying = tx.role(
        multiply_part if FORM.SPLIT > 1 else multiply_whole,
        (out, WeightStages(codes, scaling, centres, rows, ring), sums, part, M, N, extra, FORM),
        copies=FORM.CONSUMERS, registers=FORM.registers[1],
    )  # fmt: skip
    tx.warp_roles(loading, multiplying)
    if FORM.SPLIT > 1:
        # Peers may still read this CTA's sums.
        tx.cluster_arrive(relaxed=True)
        tx.cluster_wait()
