"""Matrix product on Hopper: C = EPILOGUE(A @ B), at the speed of the tensor cores.

One elected thread loads stages of A and B by TMA into a ring in shared memory; one to three warpgroups multiply them,
64 or 128 rows each, with one product in flight across the stages, and store their part of a tile through shared memory
while the next tile is being loaded.  Or two warpgroups take tiles in turns, and one multiplies while the other stores.
CTAs are persistent.  `forms.MatmulForm` says what can be chosen.

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
def make_stages(FORM: tl.constexpr):
    """The barriers of a form's ring."""
    full = tx.barriers(FORM.STAGES, 1)
    left = full
    if FORM.apart:
        left = tx.barriers(FORM.STAGES, 1)
    return StageBarriers(full, left, tx.barriers(FORM.STAGES, 4 * FORM.sharers * FORM.shared), FORM.apart)


@tilewright.jit
def make_task(M, N, K, batches, FORM: tl.constexpr):
    """The work of this CTA."""
    if FORM.cluster > 1:
        rank = tx.cluster_rank()
    else:
        rank = 0
    peer = rank % FORM.shared
    part = rank // FORM.shared
    rows = tl.cdiv(M, FORM.BM * FORM.SHARE_B)
    columns = tl.cdiv(N, FORM.BN * FORM.SHARE_A)
    blocks = tl.cdiv(K, FORM.BK)
    start = part * 0
    if FORM.SPLIT > 1:
        start = blocks * part // FORM.SPLIT
        blocks = blocks * (part + 1) // FORM.SPLIT - start
    first = tl.program_id(0) // FORM.cluster
    step = tl.num_programs(0) // FORM.cluster
    return Task(rows, columns, rows * columns * batches, first, step, peer, start, blocks, part * FORM.shared)


@tilewright.jit
def tile_place(tile, task, FORM: tl.constexpr):
    """Batch, first row and first column of a tile: GROUP rows of tiles together, column after column."""
    batch = 0
    if FORM.BATCHED:
        batch = tile // (task.rows * task.columns)
        tile = tile - batch * (task.rows * task.columns)
    band = tile // (FORM.GROUP * task.columns)
    within = tile - band * (FORM.GROUP * task.columns)
    height = tl.minimum(task.rows - band * FORM.GROUP, FORM.GROUP)
    column = within // height
    row = band * FORM.GROUP + within - column * height
    if FORM.SHARE_B > 1:
        row = row * FORM.SHARE_B + task.peer
    if FORM.SHARE_A > 1:
        column = column * FORM.SHARE_A + task.peer
    return batch, row * FORM.BM, column * FORM.BN


@tilewright.jit
def consumer_place(tile, copy, task, FORM: tl.constexpr):
    """Batch, first row and first column of a consumer's part of a tile."""
    batch, row, column = tile_place(tile, task, FORM)
    if FORM.sharers > 1:
        row += copy * FORM.rows
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
def load_left(a, lefts, full, stage, place, k, task, FORM: tl.constexpr):
    """Start loading a stage of A."""
    load_operand(a, lefts[stage], full, place[0], place[1], (task.start + k) * FORM.BK, task, FORM.A_TRANSPOSED,
                 FORM.SHARE_A, FORM.BATCHED, FORM.EVICT_A)  # fmt: skip


@tilewright.jit
def load_right(b, rights, full, stage, place, k, task, FORM: tl.constexpr):
    """Start loading a stage of B."""
    load_operand(b, rights[stage], full, place[0], place[2], (task.start + k) * FORM.BK, task, FORM.B_TRANSPOSED,
                 FORM.SHARE_B, FORM.BATCHED, FORM.EVICT_B)  # fmt: skip


@tilewright.jit
def load_tiles(copy, a, b, lefts, rights, ring, task, FORM: tl.constexpr):
    """The loading role: one thread, of both operands, or of B alone when A comes apart.

    Weights of the first stages come at once, activations from the kernels before. When B comes apart, this thread waits
    for no other kernel, and of the first stages only `FLIGHT` are under way at once. That is enough for all of the
    memory's rate; were all asked for at once, whatever the kernels in front still read would queue behind them.
    """
    position = tx.producer_start(FORM.STAGES)
    ahead = task.blocks * 0
    if FORM.DEPENDENT:
        ahead = tl.where(task.first < task.tiles, tl.minimum(task.blocks, FORM.STAGES), 0)
        place = tile_place(task.first, task, FORM)
        for k in range(ahead):
            if FORM.apart:
                if k >= FORM.FLIGHT:
                    ring.full[k - FORM.FLIGHT].wait(0)
            ring.full[k].expect(FORM.full_bytes)
            load_right(b, rights, ring.full[k], k, place, k, task, FORM)
        if not FORM.apart:
            tx.grid_wait()
    for tile in range(task.first, task.tiles, task.step):
        place = tile_place(tile, task, FORM)
        for k in range(task.blocks):
            full = ring.full[position.stage]
            if not FORM.DEPENDENT or k >= ahead:
                ring.wait_empty(position)
                full.expect(FORM.full_bytes)
                load_right(b, rights, full, position.stage, place, k, task, FORM)
            if not FORM.apart:
                load_left(a, lefts, full, position.stage, place, k, task, FORM)
            position = position.next()
        ahead = task.blocks * 0
    if FORM.SPLIT > 1:
        tx.cluster_arrive()
        tx.cluster_wait()


@tilewright.jit
def load_activations(copy, a, lefts, ring, task, FORM: tl.constexpr):
    """The loading role of A when it comes apart: one thread."""
    position = tx.producer_start(FORM.STAGES)
    tx.grid_wait()
    for tile in range(task.first, task.tiles, task.step):
        place = tile_place(tile, task, FORM)
        for k in range(task.blocks):
            ring.wait_empty(position)
            left = ring.left[position.stage]
            left.expect(FORM.left_stage_bytes)
            load_left(a, lefts, left, position.stage, place, k, task, FORM)
            position = position.next()
    if FORM.SPLIT > 1:
        tx.cluster_arrive()
        tx.cluster_wait()


@tilewright.jit
def release(ring, position, task, FORM: tl.constexpr):
    """This consumer is done with a stage: tell every CTA that loads into it."""
    if FORM.shared > 1:
        for peer in tl.static_range(FORM.shared):
            ring.empty[position.stage].arrive(rank=task.group + peer)
    else:
        ring.release(position)


@tilewright.jit
def operands(lefts, rights, stage, copy, FORM: tl.constexpr):
    """A consumer's rows of A and all of B in a stage, as [rows, depth] and [depth, columns]."""
    left = lefts[stage]
    if FORM.A_TRANSPOSED:
        left = left.T
    if FORM.sharers > 1:
        left = left.slice(copy * FORM.rows, FORM.rows)
    if FORM.B_TRANSPOSED:
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
def multiply(lefts, rights, ring, position, copy, task, tile, place, extra, FORM: tl.constexpr):
    """The product of one tile, and the position behind it.

    With `NORM` the rows of A are multiplied with each other, too, which gives the sums of their squares where the sums
    of their products are. Where CTAs share the depth both sums are returned, else the product is scaled.
    """
    take_turn(copy, tile, task, FORM.TURNS)
    if FORM.PROMOTE is None:
        acc = tx.accumulator((FORM.rows, FORM.BN), FORM.SUM)
        before = position
        if FORM.NORM is not None:
            norms = tx.accumulator((FORM.rows, FORM.loaded_rows), FORM.SUM)
        for k in range(task.blocks):
            ring.wait_full(position)
            left, right = operands(lefts, rights, position.stage, copy, FORM)
            if FORM.NORM is not None:
                norms = tx.wgmma(left, left.T, norms, keep=k > 0)
            acc = tx.wgmma(left, right, acc, keep=k > 0)
            # The product before this one has ended, and its stage is free.
            tx.wgmma_wait(outstanding=1 if FORM.NORM is None else 2)
            if k > 0:
                release(ring, before, task, FORM)
            before = position
            position = position.next()
        pass_turn(copy, tile, task, FORM.TURNS)
        total = tx.wgmma_wait(acc)
        if FORM.SPLIT == 1:
            release(ring, before, task, FORM)
        if FORM.NORM is not None:
            squares = diagonal(tx.wgmma_wait(norms))
            total = (total, squares) if FORM.SPLIT > 1 else total * FORM.NORM(squares)[:, None]
    else:
        total = tl.zeros((FORM.rows, FORM.BN), FORM.SUM)
        row = place[1] + tl.arange(0, FORM.rows)[:, None]
        for k in range(task.blocks):
            ring.wait_full(position)
            left, right = operands(lefts, rights, position.stage, copy, FORM)
            partial = tx.wgmma_wait(tx.wgmma(left, right))
            release(ring, position, task, FORM)
            total += FORM.PROMOTE(partial, row, place[2], task.start + k, extra)
            position = position.next()
        pass_turn(copy, tile, task, FORM.TURNS)
    return total, position


@tilewright.jit
def gated(sums, GATE: tl.constexpr):
    """Groups of 8 columns in pairs as one group each; every thread holds both of a pair."""
    WIDTH: tl.constexpr = sums.shape[1] // 2
    pairs = tl.permute(tl.reshape(sums, (64, WIDTH // 8, 2, 8)), (0, 1, 3, 2))
    left, right = tl.split(pairs)
    return GATE(tl.reshape(left, (64, WIDTH)), tl.reshape(right, (64, WIDTH)))


@tilewright.jit
def finished(value, batch, first_row, first_column, M, N, extra, FORM: tl.constexpr):
    """The epilogue on a block of sums."""
    row = first_row + tl.arange(0, value.shape[0])[:, None]
    column = first_column + tl.arange(0, value.shape[1])[None, :]
    mask = (row < M) & (column < N)
    if FORM.BATCHED:
        row = batch.to(tl.int64) * M + row
    result = FORM.EPILOGUE(value, row, column, mask, extra)
    if result.dtype.is_int() and FORM.OUTPUT.is_floating():
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
def store_tile(total, c, c_tail, outs, tails, copy, place, M, N, extra, FORM: tl.constexpr):
    """The epilogue of a tile, 64 rows and one row of the swizzle at a time."""
    CHUNKS: tl.constexpr = tl.cdiv(FORM.out_columns, FORM.chunk)
    WIDER: tl.constexpr = FORM.BN // FORM.out_columns  # sums for one result
    batch, first_row, first_column = place
    first_column = first_column // WIDER
    N = N // WIDER
    for part in tl.static_range(FORM.rows // 64):
        for chunk in tl.static_range(CHUNKS):
            STORE: tl.constexpr = FORM.stores[part * CHUNKS + chunk]
            WIDTH: tl.constexpr = FORM.chunk if STORE[0] < FORM.BUFFERS else FORM.tail
            row = first_row + 64 * part
            column = first_column + chunk * FORM.chunk
            rows = tx.block_slice(total, 0, 64 * part, 64)
            if chunk % FORM.TOGETHER == 0:
                REST: tl.constexpr = min(FORM.TOGETHER * FORM.chunk, FORM.out_columns - chunk * FORM.chunk)
                block = tx.block_slice(rows, 1, chunk * FORM.chunk * WIDER, REST * WIDER)
                if FORM.GATE is not None:
                    block = gated(block, FORM.GATE)
                results = finished(block, batch, row, column, M, N, extra, FORM)
            value = tx.block_slice(results, 1, chunk % FORM.TOGETHER * FORM.chunk, WIDTH)
            if STORE[0] < FORM.BUFFERS:
                out = outs[STORE[0] * FORM.CONSUMERS + copy]
                store_chunk(value, c, out, batch, row, column, STORE[1], FORM.BATCHED)
            else:
                store_chunk(value, c_tail, tails[copy], batch, row, column, STORE[1], FORM.BATCHED)


@tilewright.jit
def multiply_tiles(copy, c, c_tail, lefts, rights, ring, outs, tails, task, M, N, extra, FORM: tl.constexpr):
    """The multiplying role: this warpgroup's rows of each tile."""
    position = tx.consumer_start(FORM.STAGES)
    if FORM.LAG > 0:
        # Begin when those in front have gone so far as to wait for this stage: nobody waits for anybody later.
        ahead = copy * FORM.LAG
        if (copy > 0) & (ahead < task.blocks) & (task.first < task.tiles):
            ring.full[ahead].wait(0)
    for tile in range(task.first, task.tiles, task.step):
        place = consumer_place(tile, copy, task, FORM)
        total, position = multiply(lefts, rights, ring, position, copy, task, tile, place, extra, FORM)
        store_tile(total, c, c_tail, outs, tails, copy, place, M, N, extra, FORM)
    tx.tma_wait(read=True)


@tilewright.jit
def multiply_one(copy, c, c_tail, lefts, rights, ring, outs, tails, task, M, N, extra, FORM: tl.constexpr):
    """The multiplying role when a CTA has one tile, whose results are staged where its operands were."""
    place = consumer_place(task.first, copy, task, FORM)
    position = tx.consumer_start(FORM.STAGES)
    total, position = multiply(lefts, rights, ring, position, copy, task, task.first, place, extra, FORM)
    if FORM.CONSUMERS > 1:
        tx.named_sync(1, 128 * FORM.CONSUMERS)  # all have read the last stages
    store_tile(total, c, c_tail, outs, tails, copy, place, M, N, extra, FORM)
    tx.tma_wait(read=True)


@tilewright.jit
def multiply_every_other(copy, c, c_tail, lefts, rights, ring, outs, tails, task, M, N, extra, FORM: tl.constexpr):
    """The multiplying role of two warpgroups in turns: every other tile; the other's stages are passed over."""
    count = copy * task.blocks
    for tile in range(task.first + copy * task.step, task.tiles, 2 * task.step):
        place = consumer_place(tile, copy, task, FORM)
        position = tx.ring_at(count, FORM.STAGES)
        total, position = multiply(lefts, rights, ring, position, copy, task, tile, place, extra, FORM)
        store_tile(total, c, c_tail, outs, tails, copy, place, M, N, extra, FORM)
        count += 2 * task.blocks
    tx.tma_wait(read=True)


@tilewright.jit
def sum_parts(partials, copy, first, task, FORM: tl.constexpr):
    """The sums over the CTAs that share the depth, in their order, of some rows: for each chunk of columns.

    Everything is asked for before the first of it is waited for: other CTAs' memory is far.
    """
    CHUNKS: tl.constexpr = tl.cdiv(FORM.BN, FORM.chunk)
    mine = partials[copy].slice(first, FORM.stored_rows)
    values = ()
    for chunk in tl.static_range(CHUNKS):
        WIDTH: tl.constexpr = min(FORM.chunk, FORM.BN - chunk * FORM.chunk)
        columns = mine.slice(chunk * FORM.chunk, WIDTH, 1)
        for part in tl.static_range(FORM.SPLIT):
            values = values + (columns.remote(task.peer + part * FORM.shared).load(),)
    totals = ()
    for chunk in tl.static_range(CHUNKS):
        total = values[chunk * FORM.SPLIT]
        for part in tl.static_range(1, FORM.SPLIT):
            total += values[chunk * FORM.SPLIT + part]
        totals = totals + (total,)
    return totals


@tilewright.jit
def sum_squares(norms, first, task, FORM: tl.constexpr):
    """The sums of squares over the CTAs that share the depth, in their order, of some rows; for each chunk of columns,
    whose threads have rows of their own."""
    mine = norms.slice(first, FORM.stored_rows)
    totals = ()
    for _ in tl.static_range(tl.cdiv(FORM.BN, FORM.chunk)):
        total = mine.remote(task.peer).load()
        for part in tl.static_range(1, FORM.SPLIT):
            total += mine.remote(task.peer + part * FORM.shared).load()
        totals = totals + (total,)
    return totals


@tilewright.jit
def multiply_part(copy, c, c_tail, lefts, rights, ring, outs, tails, partials, norms, task, M, N, extra,
                  FORM: tl.constexpr):  # fmt: skip
    """The multiplying role when CTAs share the depth: one tile; each stores the sums of a part of its rows."""
    CHUNKS: tl.constexpr = tl.cdiv(FORM.BN, FORM.chunk)
    place = consumer_place(task.first, copy, task, FORM)
    batch, first_row, first_column = place
    position = tx.consumer_start(FORM.STAGES)
    total, position = multiply(lefts, rights, ring, position, copy, task, task.first, place, extra, FORM)
    tx.named_sync(1, 128 * FORM.CONSUMERS)  # the partial sums lie where the stages were
    if FORM.NORM is not None:
        norms.store(total[1])
        total = total[0]
    partials[copy].store(total)
    tx.cluster_arrive()
    tx.cluster_wait()
    first = task.group // FORM.shared * FORM.stored_rows
    row = first_row + first
    if FORM.NORM is not None:
        squares = sum_squares(norms, first, task, FORM)
    totals = sum_parts(partials, copy, first, task, FORM)
    for chunk in tl.static_range(CHUNKS):
        STORE: tl.constexpr = FORM.stores[chunk]
        column = first_column + chunk * FORM.chunk
        value = totals[chunk]
        if FORM.NORM is not None:
            value = value * FORM.NORM(squares[chunk])[:, None]
        value = finished(value, batch, row, column, M, N, extra, FORM)
        if STORE[0] < FORM.BUFFERS:
            store_chunk(value, c, outs[STORE[0] * FORM.CONSUMERS + copy], batch, row, column, STORE[1], False)
        else:
            store_chunk(value, c_tail, tails[copy], batch, row, column, STORE[1], False)
    tx.tma_wait(read=True)


@tilewright.jit
def matmul(a: tx.tensor_map, b: tx.tensor_map, c: tx.tensor_map, c_tail: tx.tensor_map, M, N, K, batches, *extra,
           FORM: tl.constexpr):  # fmt: skip
    """C[M, N] = EPILOGUE(A[M, K] @ B[K, N]), as `FORM` says; with a gate C has N / 2 columns.

    The maps move tiles of `FORM.left_block`, `right_block`, `out_block` and `tail_block` (the last columns of a tile;
    any map of C when BN is a multiple of `FORM.chunk`).  Grid: `FORM.grid`.  Rows of all operands are multiples of 16
    bytes; ragged edges are filled with zeros and left out by the copies.  K has at least `FORM.SPLIT` stages.
    """
    if FORM.cluster > 1:
        tx.cluster((FORM.cluster,))
    lefts = tx.shared((FORM.STAGES, *FORM.left_shape), FORM.INPUT, swizzle=128)
    rights = tx.shared((FORM.STAGES, *FORM.right_shape), FORM.right_type, swizzle=128)
    staging = FORM.CONSUMERS * FORM.BUFFERS
    outs = tx.shared((staging, FORM.stored_rows, FORM.chunk), FORM.OUTPUT,
                     swizzle=swizzle_of(FORM.chunk * FORM.OUTPUT.itemsize),
                     over=None if not FORM.single else lefts if FORM.sums_right else rights)  # fmt: skip
    tails = outs
    if FORM.tail > 0:
        tails = tx.shared((FORM.CONSUMERS, FORM.stored_rows, FORM.tail), FORM.OUTPUT,
                          swizzle=swizzle_of(FORM.tail * FORM.OUTPUT.itemsize),
                          over=lefts if FORM.single and FORM.SPLIT == 1 else None)  # fmt: skip
    ring = make_stages(FORM)
    if FORM.DEPENDENT:
        tx.grid_launch_dependents()  # the next kernel's CTAs come where this one's have ended
    task = make_task(M, N, K, batches, FORM)
    if FORM.SPLIT > 1:
        partials = tx.shared((FORM.CONSUMERS, FORM.rows, FORM.BN), FORM.SUM, swizzle=swizzle_of(FORM.BN * 4),
                             over=rights if FORM.sums_right else lefts)  # fmt: skip
        norms = partials
        if FORM.NORM is not None:
            norms = tx.shared((FORM.rows,), FORM.SUM)
        multiplying = tx.role(
            multiply_part, (c, c_tail, lefts, rights, ring, outs, tails, partials, norms, task, M, N, extra, FORM),
            copies=FORM.CONSUMERS, registers=FORM.registers[1],
        )  # fmt: skip
    else:
        multiplying = tx.role(
            multiply_every_other if FORM.TURNS else multiply_one if FORM.SINGLE else multiply_tiles,
            (c, c_tail, lefts, rights, ring, outs, tails, task, M, N, extra, FORM),
            copies=FORM.CONSUMERS, registers=FORM.registers[1],
        )  # fmt: skip
    if FORM.apart:
        weights = tx.role(load_tiles, (a, b, lefts, rights, ring, task, FORM), warps=1, elected=True)
        activations = tx.role(load_activations, (a, lefts, ring, task, FORM), warps=1, elected=True)
        tx.warp_roles(multiplying, weights, activations)
    else:
        loading = tx.role(load_tiles, (a, b, lefts, rights, ring, task, FORM), registers=FORM.registers[0],
                          elected=True)  # fmt: skip
        tx.warp_roles(loading, multiplying)
    if FORM.cluster > 1:
        # Peers may still arrive at this CTA's barriers, or read its partial sums.
        tx.cluster_arrive(relaxed=True)
        tx.cluster_wait()
