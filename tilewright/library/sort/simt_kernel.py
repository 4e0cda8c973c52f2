"""Rows in order on GPUs: bitonic networks in registers, merges of sorted runs, and the first few of long rows.

An element and its position are one unsigned number: the key of `library.sort.kernel` in the high bits.  All numbers of
a row differ, so a network, which is not stable by itself, keeps the order of equal elements.  What is beyond a row's
end is all ones, after everything else.

K. Batcher, "Sorting networks and their applications", 1968; O. Green, R. McColl, D. Bader, "GPU Merge Path", 2012.
"""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl
from tilewright.library.sort.kernel import key_of


@tilewright.jit
def xor_of(left, right):
    """Of a number and its partner: either one, by the other."""
    return left ^ right


@tilewright.jit
def partner_of(item, LOW: tl.constexpr):
    """Of each number the one 2^LOW lanes away."""
    pairs = tl.reshape(item, (item.shape[0] >> (LOW + 1), 2, 1 << LOW))
    return tl.reshape(pairs ^ tl.reduce(pairs, 1, xor_of)[:, None, :], (item.shape[0],))


@tilewright.jit
def exchange(key, lane, LOW: tl.constexpr, STAGE: tl.constexpr, ASCENDING: tl.constexpr):
    """Order pairs of elements 2^LOW apart: ascending, or only where the bit `STAGE` of their lane is 0."""
    other = partner_of(key, LOW)
    lower = ((lane >> LOW) & 1) == 0
    if not ASCENDING:
        lower = lower == (((lane >> STAGE) & 1) == 0)
    return tl.where((other < key) == lower, other, key)


@tilewright.jit
def merge_blocks(key, lane, STAGE: tl.constexpr, ASCENDING: tl.constexpr):
    """Sort blocks of 2^STAGE elements, each of which rises and then falls, or the other way round."""
    for step in tl.static_range(STAGE):
        key = exchange(key, lane, STAGE - 1 - step, STAGE, ASCENDING)
    return key


@tilewright.jit
def sort_blocks(key, lane, STAGES: tl.constexpr, ASCENDING: tl.constexpr):
    """Sort blocks of 2^STAGES elements: all ascending, or every other one descending."""
    for stage in tl.static_range(1, STAGES + 1):
        key = merge_blocks(key, lane, stage, ASCENDING and stage == STAGES)
    return key


@tilewright.jit
def packed(x, column, mask, PACK: tl.constexpr, SHIFT: tl.constexpr, KEY: tl.constexpr, SIGN: tl.constexpr,
           FLOAT: tl.constexpr, DESCENDING: tl.constexpr):  # fmt: skip
    """Keys and positions as one number each; all ones where `mask` does not hold."""
    key = key_of(x, KEY, SIGN, FLOAT, DESCENDING).to(PACK) << SHIFT
    return tl.where(mask, key | column.to(PACK), ~tl.zeros_like(key))


@tilewright.jit
def position_of(key, PACK: tl.constexpr, SHIFT: tl.constexpr):
    """The position in a packed number."""
    return (key & ((1 << SHIFT) - 1)).to(tl.int64)


@tilewright.jit
def store_in_order(x, places, values, row, columns, limit, column, place, mask):
    """`place` as the positions of a row's elements in order, and the elements that are there; without those that are
    None."""
    if places is not None:
        tl.store(places + row * limit + column, place, mask=mask)
    if values is not None:
        element = tl.load(x + row * columns + place, mask=mask, other=0)
        tl.store(values + row * limit + column, element, mask=mask)


@tilewright.jit
def sort_rows(x, places, values, rows, columns, limit, ROWS: tl.constexpr, STAGES: tl.constexpr,
              PACK: tl.constexpr, SHIFT: tl.constexpr, KEY: tl.constexpr, SIGN: tl.constexpr, FLOAT: tl.constexpr,
              DESCENDING: tl.constexpr):  # fmt: skip
    """places[row, j] is the position of the element that is the j-th of x[row, :] in order, values[row, j] the element,
    for the first `limit`.

    A row is a block of 2^STAGES lanes.  Grid: (blocks of `ROWS` rows,).
    """
    lane = tl.arange(0, ROWS << STAGES)
    row = (tl.program_id(0) * ROWS + (lane >> STAGES)).to(tl.int64)
    column = lane & ((1 << STAGES) - 1)
    mask = (row < rows) & (column < columns)
    element = tl.load(x + row * columns + column, mask=mask, other=0)
    key = packed(element, column, mask, PACK, SHIFT, KEY, SIGN, FLOAT, DESCENDING)
    place = position_of(sort_blocks(key, lane, STAGES, True), PACK, SHIFT)
    store_in_order(x, places, values, row, columns, limit, column, place, (row < rows) & (column < limit))


@tilewright.jit
def sort_wide_rows(x, places, values, rows, columns, limit, ROWS: tl.constexpr, STAGES: tl.constexpr,
                   KEY: tl.constexpr, SIGN: tl.constexpr, FLOAT: tl.constexpr, DESCENDING: tl.constexpr):  # fmt: skip
    """The same where a key and a position are two numbers, which move together."""
    lane = tl.arange(0, ROWS << STAGES)
    row = (tl.program_id(0) * ROWS + (lane >> STAGES)).to(tl.int64)
    column = lane & ((1 << STAGES) - 1)
    mask = (row < rows) & (column < columns)
    element = tl.load(x + row * columns + column, mask=mask, other=0)
    key = key_of(element, KEY, SIGN, FLOAT, DESCENDING)
    key = tl.where(mask, key, ~tl.zeros_like(key))
    place = column
    for stage in tl.static_range(1, STAGES + 1):
        for step in tl.static_range(stage):
            low: tl.constexpr = stage - 1 - step
            other, beyond = partner_of(key, low), partner_of(place, low)
            first = ((lane >> low) & 1) == 0
            if stage < STAGES:
                first = first == (((lane >> stage) & 1) == 0)
            moves = ((other < key) | ((other == key) & (beyond < place))) == first
            key, place = tl.where(moves, other, key), tl.where(moves, beyond, place)
    keeps = (row < rows) & (column < limit)
    store_in_order(x, places, values, row, columns, limit, column, place.to(tl.int64), keeps)


@tilewright.jit
def own_tile(tiles):
    """This CTA's row and tile.  Grid: (tiles * rows,)."""
    own = tl.program_id(0)
    return (own // tiles).to(tl.int64), (own % tiles).to(own.dtype)


@tilewright.jit
def sort_tiles(x, keys, columns, padded, tiles, STAGES: tl.constexpr, PACK: tl.constexpr, SHIFT: tl.constexpr,
               KEY: tl.constexpr, SIGN: tl.constexpr, FLOAT: tl.constexpr, DESCENDING: tl.constexpr):  # fmt: skip
    """keys[row, :] = the packed elements of a row, tiles of 2^STAGES in order each.  Grid: (tiles * rows,)."""
    lane = tl.arange(0, 1 << STAGES)
    row, tile = own_tile(tiles)
    column = (tile << STAGES) + lane
    mask = column < columns
    element = tl.load(x + row * columns + column, mask=mask, other=0)
    key = packed(element, column, mask, PACK, SHIFT, KEY, SIGN, FLOAT, DESCENDING)
    tl.store(keys + row * padded + column, sort_blocks(key, lane, STAGES, True))


@tilewright.jit
def split_of(first, second, count, length, rest, STEPS: tl.constexpr):
    """How many of the first `count` elements of two merged runs are of the first one; they have `length` and `rest`."""
    low = tl.maximum(count - rest, 0)
    high = tl.minimum(count, length)
    for _ in range(STEPS):
        middle = (low + high) // 2
        open = low < high
        left = tl.load(first + middle, mask=open, other=0)
        right = tl.load(second + (count - 1 - middle), mask=open, other=0)
        later = open & (left < right)
        low = tl.where(later, middle + 1, low)
        high = tl.where(open & (left >= right), middle, high)
    return low


@tilewright.jit
def merge_runs(source, target, places, values, x, padded, columns, length, limit, tiles, STAGES: tl.constexpr,
               STEPS: tl.constexpr, PACK: tl.constexpr, SHIFT: tl.constexpr):  # fmt: skip
    """Pairs of sorted runs of `length` as one run each, from `source` to `target`: a tile of 2^STAGES for each CTA.

    The last pass has no `target` and stores what `sort_rows` does.  Grid: (tiles * rows,).
    """
    lane = tl.arange(0, 1 << STAGES)
    row, tile = own_tile(tiles)
    start = tile.to(tl.int64) << STAGES
    pair = start // (2 * length) * (2 * length)
    first = source + row * padded + pair
    second = first + length
    own = tl.minimum(length, padded - pair)
    rest = tl.maximum(tl.minimum(length, padded - pair - length), 0)
    count = start - pair
    begin = split_of(first, second, count, own, rest, STEPS)
    end = split_of(first, second, count + (1 << STAGES), own, rest, STEPS)
    left = end - begin
    is_left = lane < left
    second_place = count - begin + (1 << STAGES) - 1 - lane
    key = tl.load(first + begin + lane, mask=is_left, other=0)
    other = tl.load(second + second_place, mask=lane >= left, other=0)
    key = merge_blocks(tl.where(is_left, key, other), lane, STAGES, True)
    column = start + lane
    if target is None:
        place = position_of(key, PACK, SHIFT)
        store_in_order(x, places, values, row, columns, limit, column, place, column < limit)
    else:
        tl.store(target + row * padded + column, key)


@tilewright.jit
def smallest(key, FEW: tl.constexpr, LEVELS: tl.constexpr):
    """The first 2^FEW elements in order of a block of 2^(FEW + LEVELS)."""
    key = sort_blocks(key, tl.arange(0, key.shape[0]), FEW, LEVELS == 0)
    for level in tl.static_range(LEVELS):
        pairs = tl.reshape(key, (1 << (LEVELS - 1 - level), 2, 1 << FEW))
        key = tl.reshape(tl.min(pairs, 1), (1 << (FEW + LEVELS - 1 - level),))
        key = merge_blocks(key, tl.arange(0, key.shape[0]), FEW, level == LEVELS - 1)
    return key


@tilewright.jit
def select_first(x, target, places, values, columns, limit, tiles, FEW: tl.constexpr, LEVELS: tl.constexpr,
                 PACK: tl.constexpr, SHIFT: tl.constexpr, KEY: tl.constexpr, SIGN: tl.constexpr,
                 FLOAT: tl.constexpr, DESCENDING: tl.constexpr):  # fmt: skip
    """Of each tile of 2^(FEW + LEVELS) elements of a row the first 2^FEW in order, packed; without a `target`, of the
    only tile what `sort_rows` stores.  Grid: (tiles * rows,)."""
    lane = tl.arange(0, 1 << (FEW + LEVELS))
    row, tile = own_tile(tiles)
    column = (tile << (FEW + LEVELS)) + lane
    mask = column < columns
    element = tl.load(x + row * columns + column, mask=mask, other=0)
    key = packed(element, column, mask, PACK, SHIFT, KEY, SIGN, FLOAT, DESCENDING)
    key = smallest(key, FEW, LEVELS)
    store_first(x, target, places, values, key, row, tile, columns, limit, tiles, FEW, PACK, SHIFT)


@tilewright.jit
def select_again(keys, target, places, values, x, columns, length, limit, tiles, FEW: tl.constexpr,
                 LEVELS: tl.constexpr, PACK: tl.constexpr, SHIFT: tl.constexpr):  # fmt: skip
    """The same of elements that are packed already, of rows of `length`."""
    lane = tl.arange(0, 1 << (FEW + LEVELS))
    row, tile = own_tile(tiles)
    column = (tile << (FEW + LEVELS)) + lane
    mask = column < columns
    key = tl.load(keys + row * columns + column, mask=mask, other=0)
    key = tl.where(mask, key, ~tl.zeros_like(key))
    key = smallest(key, FEW, LEVELS)
    store_first(x, target, places, values, key, row, tile, length, limit, tiles, FEW, PACK, SHIFT)


@tilewright.jit
def store_first(x, target, places, values, key, row, tile, columns, limit, tiles, FEW: tl.constexpr,
                PACK: tl.constexpr, SHIFT: tl.constexpr):  # fmt: skip
    """What a tile keeps, or the first `limit` elements in order."""
    lane = tl.arange(0, 1 << FEW)
    if target is None:
        place = position_of(key, PACK, SHIFT)
        store_in_order(x, places, values, row, columns, limit, lane, place, lane < limit)
    else:
        tl.store(target + ((row * tiles + tile) << FEW) + lane, key)
