"""The largest element of each row, or a drawn one (`graph.choices`): parts of rows first, then rows.

Rows whose largest element is wanted are read once.  Others are read twice more, for the sum of powers and for the place
where the running sum passes its share.
"""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@tilewright.jit
def largest_of_parts(logits, values, places, columns, parts, SHARE: tl.constexpr, BLOCK: tl.constexpr):
    """values[row, part] and places[row, part]: the largest of `SHARE` elements, NaN where there is one, and where its
    first one is.  Grid: (parts, rows)."""
    part = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    place = tl.full((BLOCK,), 2147483647, tl.int32)
    for step in tl.static_range(SHARE // BLOCK):
        column = part * SHARE + step * BLOCK + lane
        value = tl.load(logits + row * columns + column, mask=column < columns, other=float("-inf"))
        later = (value > best) | ((value != value) & (best == best)) | ((place == 2147483647) & (column < columns))
        best = tl.where(later, value, best)
        place = tl.where(later, column, place)
    missing = tl.max((best != best).to(tl.int32), 0)
    greatest = tl.max(tl.where(best != best, float("-inf"), best), 0)
    found = tl.min(tl.where(best == greatest, place, 2147483647), 0)
    tl.store(values + row * parts + part, tl.where(missing > 0, float("nan"), greatest))
    tl.store(places + row * parts + part, found)


@tilewright.jit
def powers_of(logits, first, columns, greatest, factor, floor, BLOCK: tl.constexpr):
    """The powers of a block, those below the floor and behind the row as none."""
    column = first + tl.arange(0, BLOCK)
    value = tl.load(logits + column, mask=column < columns, other=float("-inf"))
    powers = tl.exp2((value - greatest) * factor)
    return tl.where((powers < floor) | (column >= columns), 0.0, powers)


@tilewright.jit
def choose_of_rows(logits, values, places, temperatures, shares, floors, out, columns, parts, PARTS: tl.constexpr,
                   BLOCK: tl.constexpr):  # fmt: skip
    """out[row]: the place of the row's largest element, or at a temperature the drawn one.  Grid: (rows,)."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, PARTS)
    value = tl.load(values + row * parts + part, mask=part < parts, other=float("-inf"))
    place = tl.load(places + row * parts + part, mask=part < parts, other=2147483647)
    missing = tl.max((value != value).to(tl.int32), 0)
    greatest = tl.max(tl.where(value != value, float("-inf"), value), 0)
    chosen = tl.min(tl.where(value == greatest, place, 2147483647), 0)
    finite = (missing == 0) & (tl.abs(greatest) < float("inf"))
    temperature = tl.load(temperatures + row)
    if finite & (temperature > 0):
        mine = logits + row * columns
        factor = LOG2_E / tl.maximum(temperature, 1e-30)
        floor = tl.load(floors + row)
        total = greatest * 0.0
        for first in range(0, columns, BLOCK):
            total += tl.sum(powers_of(mine, first, columns, greatest, factor, floor, BLOCK), 0)
        wanted = total * tl.load(shares + row)
        before = greatest * 0.0
        found = chosen * 0 + 2147483647
        last = chosen
        for first in range(0, columns, BLOCK):
            if found == 2147483647:
                powers = powers_of(mine, first, columns, greatest, factor, floor, BLOCK)
                sums = before + tl.cumsum(powers, 0)
                column = first + tl.arange(0, BLOCK)
                found = tl.min(tl.where((sums > wanted) & (powers > 0), column, 2147483647), 0)
                before += tl.sum(powers, 0)
                last = tl.maximum(last, tl.max(tl.where(powers > 0, column, 0), 0))
        # Rounding may leave no element whose sum passes a share near 1.
        chosen = tl.where(found == 2147483647, last, found)
    tl.store(out + row, tl.where(finite, chosen, -1))
