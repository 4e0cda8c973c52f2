"""Matrix product on Hopper: C = EPILOGUE(A @ B), at the speed of the tensor cores.

One elected thread loads stages of A and B by TMA into a ring in shared memory; one to three warpgroups multiply them,
64 or 128 rows each, with one product in flight across the stages, and store their part of a tile through shared memory
while the next tile is being loaded.  Or two warpgroups alternate on tiles (ping-pong): one multiplies while the other
stores.  CTAs are persistent.  `config.MatmulConfig` says what can be chosen.

The designs are those of NVIDIA's CUTLASS ("cooperative" and "ping-pong" kernels for sm_90) and of DeepSeek's DeepGEMM.
"""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl
import tilewright.language.explicit as tx
from tilewright.language.explicit.objects import barrier_array
from tilewright.library.hopper import swizzle_of
from tilewright.library.ping_pong import pass_turn, take_turn

swizzle_of = tilewright.constexpr_function(swizzle_of)


@tilewright.aggregate
class Task:
    """What all roles know: sizes, and which part of the work is this CTA's."""

    rows: tl.tensor  # tiles, counted in those that share operands
    columns: tl.tensor
    tiles: tl.tensor
    first: tl.tensor  # tile of this CTA's cluster; each further one is `step` on
    step: tl.tensor
    peer: tl.tensor  # number among the CTAs that share operands
    start: tl.tensor  # first stage of depth
    blocks: tl.tensor  # stages of depth
    group: tl.tensor  # first rank of the CTAs that share operands with this one


@tilewright.aggregate
class StageBarriers:
    """The barriers of the ring, one of each a stage: what comes has come (`full`), without A if it comes `apart`; A has
    come then (`left`); and all may be written again (`empty`)."""

    full: barrier_array
    left: barrier_array
    empty: barrier_array
    apart: tl.constexpr

    @tilewright.jit
    def wait_full(self, position):
        """A consumer waits for the stage's operands."""
        self.full[position.stage].wait(position.parity)
        if self.apart:
            self.left[position.stage].wait(position.parity)

    @tilewright.jit
    def wait_empty(self, position):
        """A producer waits until the stage may be written again."""
        self.empty[position.stage].wait(position.parity)

    @tilewright.jit
    def release(self, position):
        """A consumer is done with the stage."""
        self.empty[position.stage].arrive()


@tilewright.jit
def make_stages(CONFIG: tl.constexpr):
    """The barriers of a config's ring."""
    full = tx.barriers(CONFIG.STAGES, 1)
    left = full
    if CONFIG.apart:
        left = tx.barriers(CONFIG.STAGES, 1)
    return StageBarriers(full, left, tx.barriers(CONFIG.STAGES, 4 * CONFIG.sharers * CONFIG.shared), CONFIG.apart)


@tilewright.jit
def make_task(M, N, K, batches, CONFIG: tl.constexpr):
    """The work of this CTA."""
    if CONFIG.cluster > 1:
        rank = tx.cluster_rank()
    else:
        rank = 0
    peer = rank % CONFIG.shared
    part = rank // CONFIG.shared
    rows = tl.cdiv(M, CONFIG.BM * CONFIG.SHARE_B)
    columns = tl.cdiv(N, CONFIG.BN * CONFIG.SHARE_A)
    blocks = tl.cdiv(K, CONFIG.BK)
    start = part * 0
    if CONFIG.SPLIT > 1:
        start = blocks * part // CONFIG.SPLIT
        blocks = blocks * (part + 1) // CONFIG.SPLIT - start
    first = tl.program_id(0) // CONFIG.cluster
    step = tl.num_programs(0) // CONFIG.cluster
    return Task(rows, columns, rows * columns * batches, first, step, peer, start, blocks, part * CONFIG.shared)


@tilewright.jit
def tile_place(tile, task, CONFIG: tl.constexpr):
    """Batch, first row and first column of a tile: GROUP rows of tiles together, column after column."""
    batch = 0
    if CONFIG.BATCHED:
        batch = tile // (task.rows * task.columns)
        tile = tile - batch * (task.rows * task.columns)
    band = tile // (CONFIG.GROUP * task.columns)
    within = tile - band * (CONFIG.GROUP * task.columns)
    height = tl.minimum(task.rows - band * CONFIG.GROUP, CONFIG.GROUP)
    column = within // height
    row = band * CONFIG.GROUP + within - column * height
    if CONFIG.SHARE_B > 1:
        row = row * CONFIG.SHARE_B + task.peer
    if CONFIG.SHARE_A > 1:
        column = column * CONFIG.SHARE_A + task.peer
    return batch, row * CONFIG.BM, column * CONFIG.BN


@tilewright.jit
def consumer_place(tile, copy, task, CONFIG: tl.constexpr):
    """Batch, first row and first column of a consumer's part of a tile."""
    batch, row, column = tile_place(tile, task, CONFIG)
    if CONFIG.sharers > 1:
        row += copy * CONFIG.rows
    return batch, row, column


@tilewright.jit
def load_operand(source, tile, full, batch, across, depth, task, TRANSPOSED: tl.constexpr, SHARES: tl.constexpr,
                 BATCHED: tl.constexpr, EVICTION: tl.constexpr):  # fmt: skip
    """Start loading a stage of an operand, or this CTA's part of it, which goes to all that share it."""
    AXIS: tl.constexpr = 1 if TRANSPOSED else 0
    PART: tl.constexpr = tile.shape[AXIS] // SHARES
    mask = None
    if SHARES > 1:
        mask = ((1 << SHARES) - 1) << task.group
        tile = tile.slice(task.peer * PART, PART, AXIS)
        across = across + task.peer * PART
    if TRANSPOSED:
        place = (depth, across)
    else:
        place = (across, depth)
    if BATCHED:
        place = (batch, place[0], place[1])
    tx.tma_load(source, place, tile, full, mask, EVICTION)


@tilewright.jit
def load_left(a, lefts, full, stage, place, k, task, CONFIG: tl.constexpr):
    """Start loading a stage of A."""
    load_operand(a, lefts[stage], full, place[0], place[1], (task.start + k) * CONFIG.BK, task, CONFIG.A_TRANSPOSED,
                 CONFIG.SHARE_A, CONFIG.BATCHED and not CONFIG.ONE_A, CONFIG.EVICT_A)  # fmt: skip


@tilewright.jit
def load_right(b, rights, full, stage, place, k, task, CONFIG: tl.constexpr):
    """Start loading a stage of B."""
    load_operand(b, rights[stage], full, place[0], place[2], (task.start + k) * CONFIG.BK, task, CONFIG.B_TRANSPOSED,
                 CONFIG.SHARE_B, CONFIG.BATCHED, CONFIG.EVICT_B)  # fmt: skip


@tilewright.jit
def load_tiles(copy, a, b, lefts, rights, ring, task, CONFIG: tl.constexpr):
    """The loading role: one thread, of both operands, or of B alone when A comes apart.

    Weights of the first stages come at once, activations from the kernels before. When B comes apart, this thread waits
    for no other kernel, and of the first stages only `FLIGHT` are under way at once. That is enough for all of the
    memory's rate; were all asked for at once, whatever the kernels in front still read would queue behind them.
    """
    position = tx.producer_start(CONFIG.STAGES)
    ahead = task.blocks * 0
    if CONFIG.DEPENDENT:
        ahead = tl.where(task.first < task.tiles, tl.minimum(task.blocks, CONFIG.STAGES), 0)
        place = tile_place(task.first, task, CONFIG)
        for k in range(ahead):
            if CONFIG.apart:
                if k >= CONFIG.FLIGHT:
                    ring.full[k - CONFIG.FLIGHT].wait(0)
            ring.full[k].expect(CONFIG.full_bytes)
            load_right(b, rights, ring.full[k], k, place, k, task, CONFIG)
        if not CONFIG.apart:
            tx.grid_wait()
    for tile in range(task.first, task.tiles, task.step):
        place = tile_place(tile, task, CONFIG)
        for k in range(task.blocks):
            full = ring.full[position.stage]
            if not CONFIG.DEPENDENT or k >= ahead:
                ring.wait_empty(position)
                full.expect(CONFIG.full_bytes)
                load_right(b, rights, full, position.stage, place, k, task, CONFIG)
            if not CONFIG.apart:
                load_left(a, lefts, full, position.stage, place, k, task, CONFIG)
            position = position.next()
        ahead = task.blocks * 0
    if CONFIG.SPLIT > 1:
        tx.cluster_arrive()
        tx.cluster_wait()


@tilewright.jit
def load_activations(copy, a, lefts, ring, task, CONFIG: tl.constexpr):
    """The loading role of A when it comes apart: one thread."""
    position = tx.producer_start(CONFIG.STAGES)
    tx.grid_wait()
    for tile in range(task.first, task.tiles, task.step):
        place = tile_place(tile, task, CONFIG)
        for k in range(task.blocks):
            ring.wait_empty(position)
            left = ring.left[position.stage]
            left.expect(CONFIG.left_stage_bytes)
            load_left(a, lefts, left, position.stage, place, k, task, CONFIG)
            position = position.next()
    if CONFIG.SPLIT > 1:
        tx.cluster_arrive()
        tx.cluster_wait()


@tilewright.jit
def release(ring, position, task, CONFIG: tl.constexpr):
    """This consumer is done with a stage: tell every CTA that loads into it."""
    if CONFIG.shared > 1:
        for peer in tl.static_range(CONFIG.shared):
            ring.empty[position.stage].arrive(rank=task.group + peer)
    else:
        ring.release(position)


@tilewright.jit
def operands(lefts, rights, stage, copy, CONFIG: tl.constexpr):
    """A consumer's rows of A and all of B in a stage, as [rows, depth] and [depth, columns]."""
    left = lefts[stage]
    if CONFIG.A_TRANSPOSED:
        left = left.T
    if CONFIG.sharers > 1:
        left = left.slice(copy * CONFIG.rows, CONFIG.rows)
    if CONFIG.B_TRANSPOSED:
        right = rights[stage]
    else:
        right = rights[stage].T
    return left, right


@tilewright.jit
def diagonal(products):
    """Of products of rows with the first of them, each row's with itself; zero for those that are not among these."""
    row = tl.arange(0, products.shape[0])[:, None]
    column = tl.arange(0, products.shape[1])[None, :]
    return tl.sum(tl.where(row == column, products, 0.0), 1)


@tilewright.jit
def multiply(lefts, rights, ring, position, copy, task, tile, place, extra, CONFIG: tl.constexpr):
    """The product of one tile, and the position behind it.

    With `NORM` the rows of A are multiplied with each other, too, which gives the sums of their squares where the sums
    of their products are. Where CTAs share the depth both sums are returned, else the product is scaled.
    """
    take_turn(copy, tile, task, CONFIG.PING_PONG)
    if CONFIG.PROMOTE is None:
        acc = tx.accumulator((CONFIG.rows, CONFIG.BN), CONFIG.SUM)
        before = position
        if CONFIG.NORM is not None:
            norms = tx.accumulator((CONFIG.rows, CONFIG.loaded_rows), CONFIG.SUM)
        for k in range(task.blocks):
            ring.wait_full(position)
            left, right = operands(lefts, rights, position.stage, copy, CONFIG)
            if CONFIG.NORM is not None:
                norms = tx.wgmma(left, left.T, norms, keep=k > 0)
            acc = tx.wgmma(left, right, acc, keep=k > 0)
            # The product before this one has ended, and its stage is free.
            tx.wgmma_wait(outstanding=1 if CONFIG.NORM is None else 2)
            if k > 0:
                release(ring, before, task, CONFIG)
            before = position
            position = position.next()
        pass_turn(copy, tile, task, CONFIG.PING_PONG)
        total = tx.wgmma_wait(acc)
        if CONFIG.SPLIT == 1:
            release(ring, before, task, CONFIG)
        if CONFIG.NORM is not None:
            squares = diagonal(tx.wgmma_wait(norms))
            total = (total, squares) if CONFIG.SPLIT > 1 else total * CONFIG.NORM(squares)[:, None]
    else:
        total = tl.zeros((CONFIG.rows, CONFIG.BN), tl.float32)  # of integers, too: scales are floats
        row = place[1] + tl.arange(0, CONFIG.rows)[:, None]
        for k in range(task.blocks):
            ring.wait_full(position)
            left, right = operands(lefts, rights, position.stage, copy, CONFIG)
            partial = tx.wgmma_wait(tx.wgmma(left, right))
            release(ring, position, task, CONFIG)
            total += CONFIG.PROMOTE(partial, row, place[2], task.start + k, extra)
            position = position.next()
        pass_turn(copy, tile, task, CONFIG.PING_PONG)
    return total, position


@tilewright.jit
def gated(sums, GATE: tl.constexpr):
    """Groups of 8 columns in pairs as one group each; every thread holds both of a pair."""
    WIDTH: tl.constexpr = sums.shape[1] // 2
    pairs = tl.permute(tl.reshape(sums, (64, WIDTH // 8, 2, 8)), (0, 1, 3, 2))
    left, right = tl.split(pairs)
    return GATE(tl.reshape(left, (64, WIDTH)), tl.reshape(right, (64, WIDTH)))


@tilewright.jit
def finished(value, batch, first_row, first_column, M, N, extra, CONFIG: tl.constexpr):
    """The epilogue on a block of sums."""
    row = first_row + tl.arange(0, value.shape[0])[:, None]
    column = first_column + tl.arange(0, value.shape[1])[None, :]
    mask = (row < M) & (column < N)
    if CONFIG.BATCHED:
        row = batch.to(tl.int64) * M + row
    result = CONFIG.EPILOGUE(value, row, column, mask, extra)
    if result.dtype.is_int() and CONFIG.OUTPUT.is_floating():
        result = result.to(tl.float32)  # rounded once more, which is much cheaper than exactly
    return result


@tilewright.jit
def store_chunk(value, target, out, batch, row, column, OUTSTANDING: tl.constexpr, BATCHED: tl.constexpr):
    """Store a block of results through a staging tile, once the copy that last read it is done: one group."""
    tx.tma_wait(OUTSTANDING, read=True)
    tx.group_sync()
    out.store(value)
    tx.fence_async()
    tx.group_sync()
    if BATCHED:
        tx.tma_store(target, (batch, row, column), out)
    else:
        tx.tma_store(target, (row, column), out)
    tx.tma_commit()


@tilewright.jit
def store_tile(total, c, c_tail, outs, tails, copy, place, M, N, extra, CONFIG: tl.constexpr):
    """The epilogue of a tile, at once or in chunks."""
    if CONFIG.WHOLE:
        store_whole(total, c, outs, copy, place, M, N, extra, CONFIG)
    else:
        store_chunks(total, c, c_tail, outs, tails, copy, place, M, N, extra, CONFIG)


@tilewright.jit
def store_chunks(total, c, c_tail, outs, tails, copy, place, M, N, extra, CONFIG: tl.constexpr):
    """The epilogue of a tile, 64 rows and one row of the swizzle at a time."""
    CHUNKS: tl.constexpr = tl.cdiv(CONFIG.out_columns, CONFIG.chunk)
    WIDER: tl.constexpr = CONFIG.BN // CONFIG.out_columns  # sums for one result
    batch, first_row, first_column = place
    first_column = first_column // WIDER
    N = N // WIDER
    for part in tl.static_range(CONFIG.rows // 64):
        for chunk in tl.static_range(CHUNKS):
            STORE: tl.constexpr = CONFIG.stores[part * CHUNKS + chunk]
            WIDTH: tl.constexpr = CONFIG.chunk if STORE[0] < CONFIG.BUFFERS else CONFIG.tail
            row = first_row + 64 * part
            column = first_column + chunk * CONFIG.chunk
            rows = tx.block_slice(total, 0, 64 * part, 64)
            if chunk % CONFIG.TOGETHER == 0:
                REST: tl.constexpr = min(CONFIG.TOGETHER * CONFIG.chunk, CONFIG.out_columns - chunk * CONFIG.chunk)
                block = tx.block_slice(rows, 1, chunk * CONFIG.chunk * WIDER, REST * WIDER)
                if CONFIG.GATE is not None:
                    block = gated(block, CONFIG.GATE)
                results = finished(block, batch, row, column, M, N, extra, CONFIG)
            value = tx.block_slice(results, 1, chunk % CONFIG.TOGETHER * CONFIG.chunk, WIDTH)
            if STORE[0] < CONFIG.BUFFERS:
                out = outs[STORE[0] * CONFIG.CONSUMERS + copy]
                store_chunk(value, c, out, batch, row, column, STORE[1], CONFIG.BATCHED)
            else:
                store_chunk(value, c_tail, tails[copy], batch, row, column, STORE[1], CONFIG.BATCHED)


@tilewright.jit
def store_whole(total, c, outs, copy, place, M, N, extra, CONFIG: tl.constexpr):
    """The epilogue of a tile at once, whose chunks have staging tiles of their own: threads wait for each other once
    before they write there and once after, and what columns have is loaded once for all rows."""
    CHUNKS: tl.constexpr = CONFIG.BN // CONFIG.chunk
    batch, row, column = place
    tx.tma_wait(read=True)
    tx.group_sync()
    results = finished(total, batch, row, column, M, N, extra, CONFIG)
    for number in tl.static_range(CONFIG.rows // 64 * CHUNKS):
        rows = tx.block_slice(results, 0, number // CHUNKS * 64, 64)
        value = tx.block_slice(rows, 1, number % CHUNKS * CONFIG.chunk, CONFIG.chunk)
        outs[number * CONFIG.CONSUMERS + copy].store(value)
    tx.fence_async()
    tx.group_sync()
    for number in tl.static_range(CONFIG.rows // 64 * CHUNKS):
        place = (row + number // CHUNKS * 64, column + number % CHUNKS * CONFIG.chunk)
        if CONFIG.BATCHED:
            place = (batch, place[0], place[1])
        tx.tma_store(c, place, outs[number * CONFIG.CONSUMERS + copy])
    tx.tma_commit()


@tilewright.jit
def multiply_tiles(copy, c, c_tail, lefts, rights, ring, outs, tails, task, M, N, extra, CONFIG: tl.constexpr):
    """The multiplying role: this warpgroup's rows of each tile."""
    position = tx.consumer_start(CONFIG.STAGES)
    if CONFIG.LAG > 0:
        # Begin when those in front have gone so far as to wait for this stage: nobody waits for anybody later.
        ahead = copy * CONFIG.LAG
        if (copy > 0) & (ahead < task.blocks) & (task.first < task.tiles):
            ring.full[ahead].wait(0)
    for tile in range(task.first, task.tiles, task.step):
        place = consumer_place(tile, copy, task, CONFIG)
        total, position = multiply(lefts, rights, ring, position, copy, task, tile, place, extra, CONFIG)
        store_tile(total, c, c_tail, outs, tails, copy, place, M, N, extra, CONFIG)
    tx.tma_wait(read=True)


@tilewright.jit
def multiply_one(copy, c, c_tail, lefts, rights, ring, outs, tails, task, M, N, extra, CONFIG: tl.constexpr):
    """The multiplying role when a CTA has one tile, whose results are staged where its operands were."""
    place = consumer_place(task.first, copy, task, CONFIG)
    position = tx.consumer_start(CONFIG.STAGES)
    total, position = multiply(lefts, rights, ring, position, copy, task, task.first, place, extra, CONFIG)
    if CONFIG.CONSUMERS > 1:
        tx.named_sync(1, 128 * CONFIG.CONSUMERS)  # all have read the last stages
    store_tile(total, c, c_tail, outs, tails, copy, place, M, N, extra, CONFIG)
    tx.tma_wait(read=True)


@tilewright.jit
def multiply_every_other(copy, c, c_tail, lefts, rights, ring, outs, tails, task, M, N, extra, CONFIG: tl.constexpr):
    """The multiplying role under ping-pong: every other tile; the other warpgroup's stages are passed over."""
    count = copy * task.blocks
    for tile in range(task.first + copy * task.step, task.tiles, 2 * task.step):
        place = consumer_place(tile, copy, task, CONFIG)
        position = tx.ring_at(count, CONFIG.STAGES)
        total, position = multiply(lefts, rights, ring, position, copy, task, tile, place, extra, CONFIG)
        store_tile(total, c, c_tail, outs, tails, copy, place, M, N, extra, CONFIG)
        count += 2 * task.blocks
    tx.tma_wait(read=True)


@tilewright.jit
def sum_parts(partials, copy, first, task, CONFIG: tl.constexpr):
    """The sums over the CTAs that share the depth, in their order, of some rows: for each chunk of columns.

    Everything is asked for before the first of it is waited for: other CTAs' memory is far.
    """
    CHUNKS: tl.constexpr = tl.cdiv(CONFIG.BN, CONFIG.chunk)
    mine = partials[copy].slice(first, CONFIG.stored_rows)
    values = ()
    for chunk in tl.static_range(CHUNKS):
        WIDTH: tl.constexpr = min(CONFIG.chunk, CONFIG.BN - chunk * CONFIG.chunk)
        columns = mine.slice(chunk * CONFIG.chunk, WIDTH, 1)
        for part in tl.static_range(CONFIG.SPLIT):
            values = values + (columns.remote(task.peer + part * CONFIG.shared).load(),)
    totals = ()
    for chunk in tl.static_range(CHUNKS):
        total = values[chunk * CONFIG.SPLIT]
        for part in tl.static_range(1, CONFIG.SPLIT):
            total += values[chunk * CONFIG.SPLIT + part]
        totals = totals + (total,)
    return totals


@tilewright.jit
def sum_squares(norms, first, task, CONFIG: tl.constexpr):
    """The sums of squares over the CTAs that share the depth, in their order, of some rows; for each chunk of columns,
    whose threads have rows of their own."""
    mine = norms.slice(first, CONFIG.stored_rows)
    totals = ()
    for _ in tl.static_range(tl.cdiv(CONFIG.BN, CONFIG.chunk)):
        total = mine.remote(task.peer).load()
        for part in tl.static_range(1, CONFIG.SPLIT):
            total += mine.remote(task.peer + part * CONFIG.shared).load()
        totals = totals + (total,)
    return totals


@tilewright.jit
def multiply_part(copy, c, c_tail, lefts, rights, ring, outs, tails, partials, norms, task, M, N, extra,
                  CONFIG: tl.constexpr):  # fmt: skip
    """The multiplying role when CTAs share the depth: one tile; each stores the sums of a part of its rows."""
    CHUNKS: tl.constexpr = tl.cdiv(CONFIG.BN, CONFIG.chunk)
    place = consumer_place(task.first, copy, task, CONFIG)
    batch, first_row, first_column = place
    position = tx.consumer_start(CONFIG.STAGES)
    total, position = multiply(lefts, rights, ring, position, copy, task, task.first, place, extra, CONFIG)
    tx.named_sync(1, 128 * CONFIG.CONSUMERS)  # the partial sums lie where the stages were
    if CONFIG.NORM is not None:
        norms.store(total[1])
        total = total[0]
    partials[copy].store(total)
    tx.cluster_arrive()
    tx.cluster_wait()
    first = task.group // CONFIG.shared * CONFIG.stored_rows
    row = first_row + first
    if CONFIG.NORM is not None:
        squares = sum_squares(norms, first, task, CONFIG)
    totals = sum_parts(partials, copy, first, task, CONFIG)
    for chunk in tl.static_range(CHUNKS):
        STORE: tl.constexpr = CONFIG.stores[chunk]
        column = first_column + chunk * CONFIG.chunk
        value = totals[chunk]
        if CONFIG.NORM is not None:
            value = value * CONFIG.NORM(squares[chunk])[:, None]
        value = finished(value, batch, row, column, M, N, extra, CONFIG)
        if STORE[0] < CONFIG.BUFFERS:
            store_chunk(value, c, outs[STORE[0] * CONFIG.CONSUMERS + copy], batch, row, column, STORE[1], False)
        else:
            store_chunk(value, c_tail, tails[copy], batch, row, column, STORE[1], False)
    tx.tma_wait(read=True)


@tilewright.jit
def matmul(a: tx.tensor_map, b: tx.tensor_map, c: tx.tensor_map, c_tail: tx.tensor_map, M, N, K, batches, *extra,
           CONFIG: tl.constexpr):  # fmt: skip
    """C[M, N] = EPILOGUE(A[M, K] @ B[K, N]), as `CONFIG` says; with a gate C has N / 2 columns.

    The maps move tiles of `CONFIG.left_block`, `right_block`, `out_block` and `tail_block` (the last columns of a tile;
    any map of C when BN is a multiple of `CONFIG.chunk`).  Grid: `CONFIG.grid`.  Rows of all operands are multiples of
    16 bytes; ragged edges are filled with zeros and left out by the copies.  K has at least `CONFIG.SPLIT` stages.
    """
    if CONFIG.cluster > 1:
        tx.cluster((CONFIG.cluster,))
    lefts = tx.shared((CONFIG.STAGES, *CONFIG.left_shape), CONFIG.INPUT, swizzle=128)
    rights = tx.shared((CONFIG.STAGES, *CONFIG.right_shape), CONFIG.right_type, swizzle=128)
    staging = CONFIG.CONSUMERS * CONFIG.BUFFERS
    outs = tx.shared((staging, CONFIG.stored_rows, CONFIG.chunk), CONFIG.OUTPUT,
                     swizzle=swizzle_of(CONFIG.chunk * CONFIG.OUTPUT.itemsize),
                     over=None if not CONFIG.single else lefts if CONFIG.sums_right else rights)  # fmt: skip
    tails = outs
    if CONFIG.tail > 0:
        tails = tx.shared((CONFIG.CONSUMERS, CONFIG.stored_rows, CONFIG.tail), CONFIG.OUTPUT,
                          swizzle=swizzle_of(CONFIG.tail * CONFIG.OUTPUT.itemsize),
                          over=lefts if CONFIG.single and CONFIG.SPLIT == 1 else None)  # fmt: skip
    ring = make_stages(CONFIG)
    if CONFIG.DEPENDENT:
        tx.grid_launch_dependents()  # the next kernel's CTAs come where this one's have ended
    task = make_task(M, N, K, batches, CONFIG)
    if CONFIG.SPLIT > 1:
        partials = tx.shared((CONFIG.CONSUMERS, CONFIG.rows, CONFIG.BN), CONFIG.SUM, swizzle=swizzle_of(CONFIG.BN * 4),
                             over=rights if CONFIG.sums_right else lefts)  # fmt: skip
        norms = partials
        if CONFIG.NORM is not None:
            norms = tx.shared((CONFIG.rows,), CONFIG.SUM)
        multiplying = tx.role(
            multiply_part, (c, c_tail, lefts, rights, ring, outs, tails, partials, norms, task, M, N, extra, CONFIG),
            copies=CONFIG.CONSUMERS, registers=CONFIG.registers[1],
        )  # fmt: skip
    else:
        multiplying = tx.role(
            multiply_every_other if CONFIG.PING_PONG else multiply_one if CONFIG.SINGLE else multiply_tiles,
            (c, c_tail, lefts, rights, ring, outs, tails, task, M, N, extra, CONFIG),
            copies=CONFIG.CONSUMERS, registers=CONFIG.registers[1],
        )  # fmt: skip
    if CONFIG.apart:
        weights = tx.role(load_tiles, (a, b, lefts, rights, ring, task, CONFIG), warps=1, elected=True)
        activations = tx.role(load_activations, (a, lefts, ring, task, CONFIG), warps=1, elected=True)
        tx.warp_roles(multiplying, weights, activations)
    else:
        loading = tx.role(load_tiles, (a, b, lefts, rights, ring, task, CONFIG), registers=CONFIG.registers[0],
                          elected=True)  # fmt: skip
        tx.warp_roles(loading, multiplying)
    if CONFIG.cluster > 1:
        # Peers may still arrive at this CTA's barriers, or read its partial sums.
        tx.cluster_arrive(relaxed=True)
        tx.cluster_wait()
