"""Long rows in order on GPUs: a radix sort, one digit after the other from the lowest, in three launches for each.

`count_digits` counts the digits of each tile, `scan_digits` adds up the counts of the tiles before each, and
`move_by_digit` puts every element after those of smaller digits, of earlier tiles, and those before it in its tile.
A tile is chunks of 32 elements.  For each bit of a digit a chunk has a mask of the elements that have the bit: of these
masks follow the elements with the same digit as an element, and how many elements of a chunk have a digit.

An element and its position are one number, as in `library.sort.simt_kernel`, without the digits that are done.  What is
beyond a row's end has the largest digit and stands last.

A. Adinets, D. Merrill, "Onesweep: A Faster Least Significant Digit Radix Sort for GPUs", 2022.
"""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl
from tilewright.language.extra.libdevice import popc
from tilewright.library.sort.kernel import key_of
from tilewright.library.sort.simt_kernel import own_tile, store_in_order

CHUNK = tl.constexpr(32)  # elements that have a bit each in a mask


@tilewright.jit
def loaded(source, row, column, columns, mask, FIRST: tl.constexpr, KEY: tl.constexpr, SIGN: tl.constexpr,
           FLOAT: tl.constexpr, DESCENDING: tl.constexpr):  # fmt: skip
    """Keys, `FIRST`, or numbers as they are stored."""
    element = tl.load(source + row * columns + column, mask=mask, other=0)
    if FIRST:
        element = key_of(element, KEY, SIGN, FLOAT, DESCENDING)
    return element


@tilewright.jit
def digits_of(element, mask, SHIFT: tl.constexpr, BITS: tl.constexpr, FIRST: tl.constexpr):
    """The lowest digits of keys; the largest one where there is no element."""
    key = element if FIRST else element >> SHIFT
    digit = (key & ((1 << BITS) - 1)).to(tl.int32)
    return tl.where(mask, digit, (1 << BITS) - 1)


@tilewright.jit
def holders(digit, BITS: tl.constexpr):
    """By chunk and digit, the elements of the chunk that have it; by element, those of its chunk with its digit."""
    lane = tl.arange(0, CHUNK)[None, :]
    value = tl.arange(0, 1 << BITS)[None, :]
    members = tl.full((digit.shape[0], 1 << BITS), -1, tl.int32).to(tl.uint32)
    same = tl.full(digit.shape, -1, tl.int32).to(tl.uint32)
    for bit in tl.static_range(BITS):
        one = (digit >> bit) & 1
        lanes = tl.sum((one << lane).to(tl.uint32), 1)[:, None]
        same &= lanes ^ (one - 1).to(tl.uint32)
        members &= lanes ^ (((value >> bit) & 1) - 1).to(tl.uint32)
    return members, same


@tilewright.jit
def tile_positions(tile, CHUNKS: tl.constexpr):
    """Columns of a tile: [chunk, element]."""
    lane = tl.arange(0, CHUNKS)[:, None] * CHUNK + tl.arange(0, CHUNK)[None, :]
    return tile * (CHUNKS * CHUNK) + lane


@tilewright.jit
def count_digits(source, counts, columns, tiles, CHUNKS: tl.constexpr, BITS: tl.constexpr, FIRST: tl.constexpr,
                 SHIFT: tl.constexpr, KEY: tl.constexpr, SIGN: tl.constexpr, FLOAT: tl.constexpr,
                 DESCENDING: tl.constexpr):  # fmt: skip
    """counts[row, digit, tile] of the lowest `BITS` bits of keys.  Grid: (tiles * rows,)."""
    row, tile = own_tile(tiles)
    column = tile_positions(tile, CHUNKS)
    mask = column < columns
    element = loaded(source, row, column, columns, mask, FIRST, KEY, SIGN, FLOAT, DESCENDING)
    members, _ = holders(digits_of(element, mask, SHIFT, BITS, FIRST), BITS)
    value = tl.arange(0, 1 << BITS)
    tl.store(counts + ((row << BITS) + value) * tiles + tile, tl.sum(popc(members), 0))


@tilewright.jit
def scan_digits(counts, totals, lines, tiles, LINES: tl.constexpr, BLOCK: tl.constexpr):
    """counts[line, tile] become those of the tiles before, totals[line] those of all; `lines` are rows times digits.

    Grid: (blocks of lines,)."""
    line = (tl.program_id(0) * LINES + tl.arange(0, LINES)).to(tl.int64)
    exists = line < lines
    total = tl.zeros((LINES,), tl.int32)
    for start in range(0, tiles, BLOCK):
        tile = start + tl.arange(0, BLOCK)[None, :]
        mask = exists[:, None] & (tile < tiles)
        place = counts + line[:, None] * tiles + tile
        count = tl.load(place, mask=mask, other=0)
        tl.store(place, total[:, None] + tl.cumsum(count, 1) - count, mask=mask)
        total += tl.sum(count, 1)
    tl.store(totals + line, total, mask=exists)


@tilewright.jit
def ranks_of(digit, counts, totals, row, tile, tiles, BITS: tl.constexpr):
    """Where elements stand in their row in the order of a digit."""
    members, same = holders(digit, BITS)
    value = tl.arange(0, 1 << BITS)
    total = tl.load(totals + (row << BITS) + value)
    start = tl.load(counts + ((row << BITS) + value) * tiles + tile) + tl.cumsum(total, 0) - total
    members = popc(members)
    before = tl.gather(tl.cumsum(members, 0) - members + start[None, :], digit, 1)
    lower = (1 << tl.arange(0, CHUNK)) - 1
    return before + popc(same & lower[None, :].to(tl.uint32))


@tilewright.jit
def move_by_digit(source, target, places, values, x, counts, totals, columns, limit, tiles, CHUNKS: tl.constexpr,
                  BITS: tl.constexpr, FIRST: tl.constexpr, SHIFT: tl.constexpr, KEY: tl.constexpr, SIGN: tl.constexpr,
                  FLOAT: tl.constexpr, DESCENDING: tl.constexpr):  # fmt: skip
    """target[row, :] = source[row, :] in the order of the lowest digit, without it.  The last pass has no `target` and
    stores the first `limit` as `sort_rows` does.  `counts` and `totals` are what `scan_digits` leaves.

    Grid: (tiles * rows,)."""
    row, tile = own_tile(tiles)
    column = tile_positions(tile, CHUNKS)
    mask = column < columns
    element = loaded(source, row, column, columns, mask, FIRST, KEY, SIGN, FLOAT, DESCENDING)
    place = ranks_of(digits_of(element, mask, SHIFT, BITS, FIRST), counts, totals, row, tile, tiles, BITS)
    position = column if FIRST else element & ((1 << SHIFT) - 1)
    if target is None:
        own = position.to(tl.int64)
        store_in_order(x, places, values, row, columns, limit, place, own, mask & (place < limit))
    else:
        kind: tl.constexpr = target.dtype.element_ty
        rest = (element >> BITS).to(kind) << SHIFT if FIRST else ((element >> (SHIFT + BITS)) << SHIFT).to(kind)
        tl.store(target + row * columns + place, rest | position.to(kind), mask=mask)
