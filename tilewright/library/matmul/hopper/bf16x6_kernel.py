"""Matrix product of float32 on the tensor cores of Hopper: each number as the sum of three of bfloat16.

A bfloat16 number has 8 significant bits, so that three have the 24 of float32: x = high + middle + low, each rounded to
nearest of what those before left. `split_float32` writes them to three planes. Of the nine products of two numbers'
parts the six largest are summed; the others are at most about 2^-24 of the product together.

Tensor cores truncate where they add to an accumulator. The largest products have a fresh one in each stage, whose sums
are added outside, rounded to nearest; what rounding loses (Dekker's fast two-sum) is added to the small products. These
have an accumulator of many stages: what it loses is small, too.

Infinities and NaNs have no parts, and sums may overflow in another order. A tile with a result that is not finite is
computed again by multiply-adds, from the numbers that the parts add up to.

Henry, Tang, Heinecke, "Leveraging the bfloat16 Artificial Intelligence Datatype For Higher-Precision Computations",
2019; Ootomo, Yokota, "Recovering single precision accuracy from Tensor Cores while surpassing the FP32 theoretical peak
performance", 2022; Dekker, "A Floating-Point Technique for Extending the Available Precision", 1971.
"""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl
import tilewright.language.explicit as tx
from tilewright.library.matmul.hopper.kernel import (
    consumer_place,
    finished,
    load_operand,
    make_stages,
    make_task,
    release,
    tile_place,
)

_FOLDED_STAGES = tl.constexpr(16)  # after which the small products are added to the total
INFINITE = tl.constexpr(0x7F800000)  # bits of infinity; those of NaN are above
_ROUNDED_UP = tl.constexpr(0x7F7F8000)  # the least finite number that bfloat16 rounds to infinity


# Splitting -----------------------------------------------------------------------------------------------------------


@tilewright.jit
def parts_of(x):
    """The parts of float32 numbers, largest first: exact unless a part is below 2^-133, where bfloat16 ends.

    What is not finite is its first part; of numbers that bfloat16 would round to infinity this is cut off instead.
    """
    bits = x.to(tl.int32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    finite = magnitude < INFINITE
    cut = (bits >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)
    high = tl.where(finite & (magnitude >= _ROUNDED_UP), cut, x.to(tl.bfloat16))
    rest = tl.where(finite, x - high.to(tl.float32), 0.0)
    middle = rest.to(tl.bfloat16)
    return high, middle, (rest - middle.to(tl.float32)).to(tl.bfloat16)


@tilewright.jit
def split_float32(x, planes, rows, columns, x_batch, x_row, x_column, line, BLOCK_R: tl.constexpr,
                  BLOCK_C: tl.constexpr):  # fmt: skip
    """planes[3 batch + part, row, column] = a part of x[batch, row, column], rows of planes being `line` apart.

    Grid: one for each block of columns, of rows, of each batch.
    """
    across, down = tl.cdiv(columns, BLOCK_C), tl.cdiv(rows, BLOCK_R)
    block = tl.program_id(0) // across
    batch = (block // down).to(tl.int64)
    row = (block % down * BLOCK_R + tl.arange(0, BLOCK_R))[:, None].to(tl.int64)
    column = (tl.program_id(0) % across * BLOCK_C + tl.arange(0, BLOCK_C))[None, :]
    mask = (row < rows) & (column < columns)
    numbers = tl.load(x + (batch * x_batch + row * x_row + column.to(tl.int64) * x_column), mask=mask, other=0.0)
    first = planes + (3 * batch * rows + row) * line + column
    parts = parts_of(numbers)
    for part in tl.static_range(3):
        tl.store(first + part * line * rows.to(tl.int64), parts[part], mask=mask)


# Multiplying ---------------------------------------------------------------------------------------------------------


@tilewright.jit
def first_plane(batch, ONE: tl.constexpr, CONFIG: tl.constexpr):
    """The number of a batch's first plane, of an operand of which there may be one for all batches."""
    if ONE:
        return 0
    return batch * CONFIG.PARTS


@tilewright.jit
def first_stage(batch, task, CONFIG: tl.constexpr):
    """The stage with which a batch begins: slices of the depth are batches."""
    if CONFIG.SLICES > 1:
        return batch * task.blocks
    return 0


@tilewright.jit
def load_left(a, lefts, full, stage, place, k, task, pixels, CONFIG: tl.constexpr):
    """Start loading a stage of A's planes."""
    first = first_plane(place[0], CONFIG.ONE_A, CONFIG)
    depth = (first_stage(place[0], task, CONFIG) + k) * CONFIG.BK
    for part in tl.static_range(CONFIG.PARTS):
        load_operand(a, lefts[stage * CONFIG.PARTS + part], full, first + part, place[1], depth, task,
                     CONFIG.A_TRANSPOSED, CONFIG.SHARE_A, True, CONFIG.EVICT_A)  # fmt: skip


@tilewright.jit
def load_right(b, rights, full, stage, place, k, task, CONFIG: tl.constexpr):
    """Start loading a stage of B's planes."""
    first = first_plane(place[0], CONFIG.ONE_B, CONFIG)
    depth = (first_stage(place[0], task, CONFIG) + k) * CONFIG.BK
    for part in tl.static_range(CONFIG.PARTS):
        load_operand(b, rights[stage * CONFIG.PARTS + part], full, first + part, place[2], depth, task,
                     CONFIG.B_TRANSPOSED, CONFIG.SHARE_B, True, CONFIG.EVICT_B)  # fmt: skip


@tilewright.jit
def load_tiles(copy, a, b, lefts, rights, ring, task, pixels, CONFIG: tl.constexpr, LOAD_LEFT: tl.constexpr):
    """The loading role: one thread. The first stages of weights come before the kernels in front have ended.

    `LOAD_LEFT` loads a stage of A; `pixels` are for the one of convolutions."""
    position = tx.producer_start(CONFIG.STAGES)
    ahead = task.blocks * 0
    if CONFIG.DEPENDENT:
        ahead = tl.where(task.first < task.tiles, tl.minimum(task.blocks, CONFIG.STAGES), 0)
        place = tile_place(task.first, task, CONFIG)
        for k in range(ahead):
            ring.full[k].expect(CONFIG.stage_bytes)
            load_right(b, rights, ring.full[k], k, place, k, task, CONFIG)
        tx.grid_wait()
    for tile in range(task.first, task.tiles, task.step):
        place = tile_place(tile, task, CONFIG)
        for k in range(task.blocks):
            full = ring.full[position.stage]
            if not CONFIG.DEPENDENT or k >= ahead:
                ring.wait_empty(position)
                full.expect(CONFIG.stage_bytes)
                load_right(b, rights, full, position.stage, place, k, task, CONFIG)
            LOAD_LEFT(a, lefts, full, position.stage, place, k, task, pixels, CONFIG)
            position = position.next()
        ahead = task.blocks * 0


@tilewright.jit
def term_operands(lefts, rights, stage, copy, TERM: tl.constexpr, CONFIG: tl.constexpr):
    """A consumer's rows of a plane of A and all of a plane of B, as [rows, depth] and [depth, columns]."""
    left = lefts[stage * CONFIG.PARTS + TERM[0]]
    right = rights[stage * CONFIG.PARTS + TERM[1]]
    if CONFIG.A_TRANSPOSED:
        left = left.T
    if CONFIG.sharers > 1:
        left = left.slice(copy * CONFIG.rows, CONFIG.rows)
    if not CONFIG.B_TRANSPOSED:
        right = right.T
    return left, right


@tilewright.jit
def fast_two_sum(large, small):
    """The sum of two numbers, rounded, and what rounding loses of it if the first one is the larger."""
    total = large + small
    return total, small - (total - large)


@tilewright.jit
def sums_of_tile(lefts, rights, ring, position, copy, task, CONFIG: tl.constexpr):
    """The sums of a consumer's part of a tile, and the next position.

    The last of the terms, of the largest parts, is summed apart, and added to the total. What rounding loses is added
    to the small products, and these to the total now and then, before what tensor cores cut off their sums counts.
    """
    total = tl.zeros((CONFIG.rows, CONFIG.BN), tl.float32)
    rest = tl.zeros((CONFIG.rows, CONFIG.BN), tl.float32)
    LAST: tl.constexpr = len(CONFIG.terms) - 1
    for first in range(0, task.blocks, _FOLDED_STAGES):
        for _ in range(tl.minimum(task.blocks - first, _FOLDED_STAGES)):
            ring.wait_full(position)
            small = rest
            for term in tl.static_range(LAST):
                left, right = term_operands(lefts, rights, position.stage, copy, CONFIG.terms[term], CONFIG)
                small = tx.wgmma(left, right, small)
            left, right = term_operands(lefts, rights, position.stage, copy, CONFIG.terms[LAST], CONFIG)
            large, rest = tx.wgmma_wait(tx.wgmma(left, right), small)
            release(ring, position, task, CONFIG)
            total, lost = fast_two_sum(total, large)
            rest += lost
            position = position.next()
        total, rest = fast_two_sum(total, rest)
    return total + rest, position


@tilewright.jit
def whole_numbers(planes, first, across, k, extents, line, TRANSPOSED: tl.constexpr, PARTS: tl.constexpr):
    """The numbers of an operand at one step of the depth, zero beyond the first of its `extents` (across, depth)."""
    if TRANSPOSED:
        place, plane = k.to(tl.int64) * line + across, extents[1].to(tl.int64) * line
    else:
        place, plane = across.to(tl.int64) * line + k, extents[0].to(tl.int64) * line
    address, mask = planes + (first * plane + place), across < extents[0]
    number = tl.load(address + (PARTS - 1) * plane, mask=mask, other=0.0).to(tl.float32)
    for part in tl.static_range(1, PARTS):
        number += tl.load(address + (PARTS - 1 - part) * plane, mask=mask, other=0.0).to(tl.float32)
    return number


@tilewright.jit
def store_sums(total, c, place, M, N, extra, CONFIG: tl.constexpr):
    """The epilogue of a block, stored by the threads that have its sums."""
    batch, first_row, first_column = place
    N = tl.multiple_of(N, CONFIG.MULTIPLE)
    result = finished(total, batch, first_row, first_column, M, N, extra, CONFIG)
    row = first_row + tl.arange(0, total.shape[0])[:, None]
    column = first_column + tl.arange(0, total.shape[1])[None, :]
    mask = (row < M) & (column < N)
    row = row.to(tl.int64)
    if CONFIG.BATCHED:
        row += batch.to(tl.int64) * M
    tl.store(c + (row * N + column), result.to(CONFIG.OUTPUT), mask=mask)


@tilewright.jit
def multiply_add(a_planes, b_planes, c, place, task, M, N, K, a_line, b_line, extra, CONFIG: tl.constexpr):
    """A consumer's part of a tile by multiply-adds of whole numbers, one step of the depth after the other; some
    columns at a time, so that their sums leave registers free."""
    batch, first_row, first_column = place
    a_first, b_first = first_plane(batch, CONFIG.ONE_A, CONFIG), first_plane(batch, CONFIG.ONE_B, CONFIG)
    row = first_row + tl.arange(0, CONFIG.rows)[:, None]
    begin = first_stage(batch, task, CONFIG) * CONFIG.BK
    for first in range(0, CONFIG.BN, CONFIG.stored_columns):
        column = first_column + first + tl.arange(0, CONFIG.stored_columns)[None, :]
        total = tl.zeros((CONFIG.rows, CONFIG.stored_columns), tl.float32)
        for k in range(begin, tl.minimum(begin + task.blocks * CONFIG.BK, K)):
            left = whole_numbers(a_planes, a_first, row, k, (M, K), a_line, CONFIG.A_TRANSPOSED, CONFIG.PARTS)
            right = whole_numbers(b_planes, b_first, column, k, (N, K), b_line, CONFIG.B_TRANSPOSED, CONFIG.PARTS)
            total += left * right
        store_sums(total, c, (batch, first_row, first_column + first), M, N, extra, CONFIG)


@tilewright.jit
def multiply_tiles(copy, c, a_planes, b_planes, lefts, rights, ring, task, M, N, K, a_line, b_line, extra,
                   CONFIG: tl.constexpr):  # fmt: skip
    """The multiplying role: this warpgroup's rows of each tile."""
    position = tx.consumer_start(CONFIG.STAGES)
    if CONFIG.LAG > 0:
        # Begin when those in front have gone so far as to wait for this stage: one adds while the other multiplies.
        ahead = copy * CONFIG.LAG
        if (copy > 0) & (ahead < task.blocks) & (task.first < task.tiles):
            ring.full[ahead].wait(0)
    for tile in range(task.first, task.tiles, task.step):
        place = consumer_place(tile, copy, task, CONFIG)
        total, position = sums_of_tile(lefts, rights, ring, position, copy, task, CONFIG)
        magnitude = total.to(tl.int32, bitcast=True) & 0x7FFFFFFF
        if tl.max(tl.max(magnitude, 1), 0) >= INFINITE:
            multiply_add(a_planes, b_planes, c, place, task, M, N, K, a_line, b_line, extra, CONFIG)
        else:
            for part in tl.static_range(CONFIG.BN // CONFIG.stored_columns):
                first = part * CONFIG.stored_columns
                sums = tx.block_slice(total, 1, first, CONFIG.stored_columns)
                store_sums(sums, c, (place[0], place[1], place[2] + first), M, N, extra, CONFIG)


@tilewright.jit
def bf16x6_matmul(a: tx.tensor_map, b: tx.tensor_map, a_planes, b_planes, c, M, N, K, a_line, b_line, batches,
                    *extra, CONFIG: tl.constexpr):  # fmt: skip
    """C[M, N] = EPILOGUE(A[M, K] @ B[K, N]) of operands in parts, as `CONFIG` says.

    `a_planes` is [batches, 3, M, K] bfloat16 with rows `a_line` elements apart, `b_planes` [batches, 3, N, K] (with the
    last two axes turned where the config says so); a line is a multiple of 8. The maps `a` and `b` are of the same, as
    [3 batches, M, K], and move tiles of `CONFIG.left_block` and `right_block`. C is contiguous. Grid: `CONFIG.grid`.

    With `SLICES` both operands are one matrix each, and the sums of each slice of the depth are a batch of C.
    """
    if CONFIG.cluster > 1:
        tx.cluster((CONFIG.cluster,))
    planes = CONFIG.STAGES * CONFIG.PARTS
    lefts = tx.shared((planes, *CONFIG.left_shape), CONFIG.INPUT, swizzle=128)
    rights = tx.shared((planes, *CONFIG.right_shape), CONFIG.INPUT, swizzle=128)
    ring = make_stages(CONFIG)
    if CONFIG.DEPENDENT:
        tx.grid_launch_dependents()  # the next kernel's CTAs come where this one's have ended
    task = make_task(M, N, tl.cdiv(K, CONFIG.SLICES * CONFIG.BK) * CONFIG.BK, batches, CONFIG)
    a_line, b_line = tl.multiple_of(a_line, 8), tl.multiple_of(b_line, 8)
    b_planes = b_planes.to(tl.pointer_type(tl.bfloat16), bitcast=True)  # of constants the type is that of the numbers
    a_planes = a_planes.to(tl.pointer_type(tl.bfloat16), bitcast=True)
    multiplying = tx.role(
        multiply_tiles,
        (c, a_planes, b_planes, lefts, rights, ring, task, M, N, K, a_line, b_line, extra, CONFIG),
        copies=CONFIG.CONSUMERS, registers=CONFIG.registers[1],
    )  # fmt: skip
    loading = tx.role(load_tiles, (a, b, lefts, rights, ring, task, None, CONFIG, load_left),
                      registers=CONFIG.registers[0], elected=True)  # fmt: skip
    tx.warp_roles(loading, multiplying)
    if CONFIG.cluster > 1:
        tx.cluster_arrive(relaxed=True)  # peers may still arrive at this CTA's barriers
        tx.cluster_wait()
