"""Product of few rows whose columns are heads of attention, turned and stored where attention reads them, on Hopper.

The loops are those of `matmul.hopper.kernel`, of CTAs with one tile each.  A tile's columns are groups of 16.  Where
heads are turned, a group is 8 pairs: 8 columns of the first half of a head and 8 of the second, loaded by one copy from
a tensor map that has both halves as an axis.  So both elements of a pair are sums of one thread, whichever columns a
CTA has.  Elsewhere a group is 16 adjacent columns.

Angles and slots are in registers before the sums are: they come while weights do.
"""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl
import tilewright.language.explicit as tx
from tilewright.library.matmul.hopper.kernel import load_activations, make_stages, make_task, multiply
from tilewright.library.matmul.hopper.projection_config import GROUP_COLUMNS, SWIZZLED_STEPS

GROUP, STEPS = tl.constexpr(GROUP_COLUMNS), tl.constexpr(SWIZZLED_STEPS)


@tilewright.aggregate
class ColumnGroup:
    """A group of columns: of which head, which of it, and whether it is pairs that are turned."""

    head: tl.tensor
    number: tl.tensor
    turned: tl.tensor


@tilewright.aggregate
class HeadPlaces:
    """What the epilogue reads and where it stores: pointers, and the places of tokens."""

    cosine: tl.tensor
    sine: tl.tensor
    queries: tl.tensor
    keys: tl.tensor
    values: tl.tensor
    slot: tl.tensor  # of each row in the pools
    stored: tl.tensor  # whether it has one


@tilewright.jit
def group_at(number, HEADS: tl.constexpr):
    """The group of a tile's columns: `number` counts from the first column of all."""
    within = number % HEADS.groups
    head = number // HEADS.groups
    return ColumnGroup(head, within, (head < HEADS.turned_heads) & (within < HEADS.TURNED // GROUP))


@tilewright.jit
def load_columns(pairs, columns, tile, full, depth, CONFIG: tl.constexpr, HEADS: tl.constexpr):
    """Start loading a stage of weights: of each group the rows, a row of the swizzle at a time."""
    for place in tl.static_range(CONFIG.BN // GROUP):
        group = group_at(tl.program_id(0) * (CONFIG.BN // GROUP) + place, HEADS)
        rows = tile.slice(place * GROUP, GROUP)
        first = group.head * HEADS.WIDTH
        for part in tl.static_range(CONFIG.BK // STEPS):
            line, step = rows.slice(part * STEPS, STEPS, 1), depth + part * STEPS
            if group.turned:
                pair = first + group.number * (GROUP // 2)
                tx.tma_load(pairs, (0, pair, step), line, full, None, CONFIG.EVICT_B)
            else:
                column = first + group.number * GROUP
                tx.tma_load(columns, (column, step), line, full, None, CONFIG.EVICT_B)


@tilewright.jit
def load_weights(copy, pairs, columns, rights, ring, task, CONFIG: tl.constexpr, HEADS: tl.constexpr):
    """The loading role of weights: one thread, which waits for no other kernel.  As in `kernel.load_tiles`, no more
    than `FLIGHT` of the first stages are under way at once."""
    for k in range(task.blocks):
        stage = k % CONFIG.STAGES
        full = ring.full[stage]
        if k >= CONFIG.STAGES:
            ring.empty[stage].wait((k // CONFIG.STAGES + 1) % 2)
        elif k >= CONFIG.FLIGHT:
            ring.full[k - CONFIG.FLIGHT].wait(0)
        full.expect(CONFIG.full_bytes)
        load_columns(pairs, columns, rights[stage], full, k * CONFIG.BK, CONFIG, HEADS)


@tilewright.jit
def load_angles(number, row, inside, places, HEADS: tl.constexpr):
    """Cosines and sines [rows, pairs] of a group; of one that is not turned, anything."""
    group = group_at(number, HEADS)
    pair = group.number * (GROUP // 2) + tl.arange(0, GROUP // 2)[None, :]
    place = row[:, None] * (HEADS.TURNED // 2) + pair
    needed = inside[:, None] & group.turned & (pair < HEADS.TURNED // 2)
    return tl.load(places.cosine + place, mask=needed, other=0.0), tl.load(places.sine + place, mask=needed, other=0.0)


@tilewright.jit
def finished_columns(sums, first, M, N, extra, CONFIG: tl.constexpr):
    """Columns from `first` on as the product alone would store them, in float32."""
    row, column = tl.arange(0, sums.shape[0])[:, None], first + tl.arange(0, sums.shape[1])[None, :]
    result = CONFIG.EPILOGUE(sums, row, column, (row < M) & (column < N), extra)
    return result.to(CONFIG.OUTPUT).to(tl.float32)


@tilewright.jit
def as_words(value, TYPE: tl.constexpr):
    """Columns in pairs, as words of 32 bits: a thread has both of a pair, and stores them at once."""
    bits = value.to(TYPE).to(tl.int16, bitcast=True).to(tl.int32)
    even, odd = tl.split(tl.reshape(bits, (bits.shape[0], bits.shape[1] // 2, 2)))
    return (even & 0xFFFF) | (odd << 16)


@tilewright.jit
def store_line(line, value, dim, mask, TYPE: tl.constexpr):
    """Store columns of a head from `dim` on, of rows that begin at `line`."""
    words = (line + dim).to(tl.pointer_type(tl.int32), bitcast=True)
    tl.store(words[:, None] + tl.arange(0, value.shape[1] // 2)[None, :], as_words(value, TYPE), mask=mask[:, None])


@tilewright.jit
def store_heads(value, group, dim, row, inside, places, HEADS: tl.constexpr):
    """Store columns of a head where attention reads them: queries by tokens, keys and values in their pools."""
    TYPE: tl.constexpr = places.queries.dtype.element_ty
    if group.head < HEADS.QUERIES:
        line = places.queries + (row * HEADS.QUERIES + group.head) * HEADS.WIDTH
        store_line(line, value, dim, inside, TYPE)
    elif group.head < HEADS.turned_heads:
        line = places.keys + (places.slot * HEADS.KEYS + group.head - HEADS.QUERIES) * HEADS.WIDTH
        store_line(line, value, dim, inside & places.stored, TYPE)
    elif group.head < HEADS.heads:
        line = places.values + (places.slot * HEADS.KEYS + group.head - HEADS.turned_heads) * HEADS.WIDTH
        store_line(line, value, dim, inside & places.stored, TYPE)


@tilewright.jit
def store_group(sums, number, angles, row, inside, places, M, N, extra, CONFIG: tl.constexpr, HEADS: tl.constexpr):
    """The epilogue of a group of columns: both halves, which every thread has elements of, turned where they are."""
    group = group_at(number, HEADS)
    left, right = tl.split(tl.permute(tl.reshape(sums, (64, 2, GROUP // 2)), (0, 2, 1)))
    low = group.number * tl.where(group.turned, GROUP // 2, GROUP)
    high = low + tl.where(group.turned, HEADS.TURNED // 2, GROUP // 2)
    first = finished_columns(left, group.head * HEADS.WIDTH + low, M, N, extra, CONFIG)
    second = finished_columns(right, group.head * HEADS.WIDTH + high, M, N, extra, CONFIG)
    if HEADS.TURNED > 0:
        cosine, sine = angles[0].to(tl.float32), angles[1].to(tl.float32)
        one, other = first * cosine - second * sine, second * cosine + first * sine
        first, second = tl.where(group.turned, one, first), tl.where(group.turned, other, second)
    store_heads(first, group, low, row, inside, places, HEADS)
    store_heads(second, group, high, row, inside, places, HEADS)


@tilewright.jit
def project(copy, lefts, rights, ring, task, cosine, sine, slots, queries, keys, values, M, N, entries, extra,
            CONFIG: tl.constexpr, HEADS: tl.constexpr):  # fmt: skip
    """The multiplying role: one tile.  Kernels in front are waited for here, too: they make angles."""
    GROUPS: tl.constexpr = CONFIG.BN // GROUP
    tx.grid_wait()
    row = tl.arange(0, 64)
    inside = row < M
    slot = tl.load(slots + row, mask=inside, other=0).to(tl.int64)
    slot = tl.where(slot < 0, slot + entries, slot)
    places = HeadPlaces(cosine, sine, queries, keys, values, slot, (slot >= 0) & (slot < entries))
    start = tl.program_id(0) * GROUPS
    angles = ()
    for number in tl.static_range(GROUPS):
        angles = angles + (load_angles(start + number, row, inside, places, HEADS),)
    total, _ = multiply(lefts, rights, ring, tx.consumer_start(CONFIG.STAGES), copy, task, task.first, (0, 0, 0), extra,
                        CONFIG)  # fmt: skip
    for number in tl.static_range(GROUPS):
        sums = tx.block_slice(total, 1, number * GROUP, GROUP)
        store_group(sums, start + number, angles[number], row, inside, places, M, N, extra, CONFIG, HEADS)


@tilewright.jit
def project_heads(a: tx.tensor_map, pairs: tx.tensor_map, columns: tx.tensor_map, cosine, sine, slots, queries, keys,
                  values, M, N, K, entries, *extra, CONFIG: tl.constexpr, HEADS: tl.constexpr):  # fmt: skip
    """Heads of EPILOGUE(A[M, K] @ B[N, K]^T), of up to 64 rows, as `graph.projections` describes them.

    Of B are two maps: `columns` of [N, K] with tiles of `HEADS.columns_block`, and `pairs` of both halves of turned
    heads, [2, N - TURNED / 2, K] with strides (TURNED / 2 K, K, 1), with tiles of `HEADS.pairs_block` (any map of B
    where none are).  `cosine` and `sine` are [M, TURNED / 2], `slots` [M]; `queries` [M, QUERIES, WIDTH] is written, of
    the pools `keys` and `values` [entries, KEYS, WIDTH] the slots of the rows; those below 0 count from the end, and
    others are left out.  Grid: (tiles of `CONFIG.BN` columns,).
    """
    lefts = tx.shared((CONFIG.STAGES, *CONFIG.left_shape), CONFIG.INPUT, swizzle=128)
    rights = tx.shared((CONFIG.STAGES, *CONFIG.right_shape), CONFIG.INPUT, swizzle=128)
    ring = make_stages(CONFIG)
    tx.grid_launch_dependents()  # the next kernel's CTAs come where this one's have ended
    task = make_task(M, N, K, 1, CONFIG)
    storing = tx.role(project, (lefts, rights, ring, task, cosine, sine, slots, queries, keys, values, M, N, entries,
                                extra, CONFIG, HEADS))  # fmt: skip
    weights = tx.role(load_weights, (pairs, columns, rights, ring, task, CONFIG, HEADS), warps=1, elected=True)
    activations = tx.role(load_activations, (a, lefts, ring, task, CONFIG), warps=1, elected=True)
    tx.warp_roles(storing, weights, activations)
