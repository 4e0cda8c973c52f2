"""Rows in order on CPUs, in the tile language: a radix sort, one digit of 8 bits after the other from the lowest.

Elements become unsigned keys whose order is theirs (floats: zeros are equal, NaN is the largest; descending: all bits
inverted), which move with their positions from one half of a buffer to the other.  A pass keeps the order of equal
digits, so equal elements stay in the order of their positions.  Digits that all keys of a row share need no pass: a
row of token ids in int64 takes two or three of eight.
"""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl

DIGITS = tl.constexpr(256)


@tilewright.jit
def key_of(x, KEY: tl.constexpr, SIGN: tl.constexpr, FLOAT: tl.constexpr, DESCENDING: tl.constexpr):
    """Elements as keys of the unsigned type `KEY`; `SIGN` is its highest bit, 0 where elements have no sign."""
    if FLOAT:
        bits = tl.where(x == 0, tl.zeros_like(x), x).to(KEY, bitcast=True)
        negative = (bits & SIGN) != 0
        key = tl.where(negative, ~bits, bits | SIGN)
        key = tl.where(x != x, ~tl.zeros_like(bits), key)
    else:
        key = x.to(KEY, bitcast=True) ^ SIGN
    if DESCENDING:
        key = ~key
    return key


@tilewright.jit
def count_digits(keys, counts, columns, PASSES: tl.constexpr):
    """How often each digit of each pass occurs: [pass, digit]."""
    digit = tl.arange(0, DIGITS)
    for number in tl.static_range(PASSES):
        tl.store(counts + number * DIGITS + digit, tl.zeros((DIGITS,), counts.dtype.element_ty))
    for column in range(0, columns):
        key = tl.load(keys + column)
        for number in tl.static_range(PASSES):
            place = counts + number * DIGITS + ((key >> (8 * number)) & 255).to(tl.int32)
            tl.store(place, tl.load(place) + 1)


@tilewright.jit
def move_by_digit(keys, positions, counts, source, target, columns, SHIFT: tl.constexpr):
    """Keys and positions from `source` on to `target` on, in the order of one digit; `counts` are of this digit."""
    digit = tl.arange(0, DIGITS)
    count = tl.load(counts + digit)
    tl.store(counts + digit, tl.cumsum(count, 0) - count)
    for column in range(0, columns):
        key = tl.load(keys + source + column)
        counter = counts + ((key >> SHIFT) & 255).to(tl.int32)
        place = tl.load(counter)
        tl.store(counter, place + 1)
        tl.store(keys + target + place, key)
        tl.store(positions + target + place, tl.load(positions + source + column))


@tilewright.jit
def argsort(x, out, keys, positions, counts, rows, columns, limit, blocks, KEY: tl.constexpr, PASSES: tl.constexpr,
            SIGN: tl.constexpr, FLOAT: tl.constexpr, DESCENDING: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """out[row, j] is the position of the element that is the j-th of x[row, :] in order, for the first `limit`.

    A program sorts `blocks` rows.  `keys` and `positions` have 2 x columns elements for each program, `counts` PASSES x
    256; `KEY` is the unsigned type of an element's size, `PASSES` its bytes.
    """
    program = tl.program_id(0).to(tl.int64)
    keys += program * 2 * columns
    positions += program * 2 * columns
    counts += program * (PASSES * DIGITS)
    for row in range(program * blocks, tl.minimum((program + 1) * blocks, rows)):
        for start in range(0, columns, BLOCK):
            column = start + tl.arange(0, BLOCK)
            mask = column < columns
            element = tl.load(x + row * columns + column, mask=mask, other=0)
            tl.store(keys + column, key_of(element, KEY, SIGN, FLOAT, DESCENDING), mask=mask)
            tl.store(positions + column, column.to(positions.dtype.element_ty), mask=mask)
        count_digits(keys, counts, columns, PASSES)
        source = columns * 0
        for number in tl.static_range(PASSES):
            own = counts + number * DIGITS
            shared = tl.load(own + ((tl.load(keys) >> (8 * number)) & 255).to(tl.int32))
            if shared < columns:
                move_by_digit(keys, positions, own, source, columns - source, columns, 8 * number)
                source = columns - source
        for start in range(0, limit, BLOCK):
            column = start + tl.arange(0, BLOCK)
            mask = column < limit
            place = tl.load(positions + source + column, mask=mask, other=0)
            tl.store(out + row * limit + column, place.to(tl.int64), mask=mask)
