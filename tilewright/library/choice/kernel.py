"""The largest element of each row, or a drawn one (`graph.choices`): parts of rows first, then rows.

Rows whose largest element is wanted are read once.  Others are read twice more, for the sum of powers and for the place
where the running sum passes its share; and about ten times before, where top-k or top-p look for their bound.
"""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
IN_PROMPT = tl.constexpr(1 << 30)  # as `graph.choices.IN_PROMPT`
MOST_HALVINGS = tl.constexpr(280)  # of the distance of two numbers in float32, until nothing is between them


@tilewright.jit
def changed(value, place, inside, seen, biases, presence, frequency, repetition):
    """Logits with what their text changes; `place`: where its tokens are in the tables."""
    value += tl.load(biases + place, mask=inside, other=0.0)
    times = tl.load(seen + place, mask=inside, other=0)
    repeated = tl.where(value > 0, value / repetition, value * repetition)
    value = tl.where(times > 0, repeated, value)
    times = times & (IN_PROMPT - 1)
    return value - tl.where(times > 0, presence + frequency * times.to(tl.float32), 0.0)


@tilewright.jit
def largest_of_parts(logits, histories, presences, frequencies, repetitions, seen, biases, scores, values, places,
                     columns, parts, SHARE: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """values[row, part] and places[row, part]: the largest of `SHARE` elements, NaN where there is one, and where its
    first one is.  Rows that their texts change go to `scores`.  Grid: (parts, rows)."""
    part = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    history = tl.load(histories + row).to(tl.int64)
    presence = tl.load(presences + row)
    frequency = tl.load(frequencies + row)
    repetition = tl.load(repetitions + row)
    lane = tl.arange(0, BLOCK)
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    place = tl.full((BLOCK,), 2147483647, tl.int32)
    for step in range(SHARE // BLOCK):
        column = part * SHARE + step * BLOCK + lane
        inside = column < columns
        value = tl.load(logits + row * columns + column, mask=inside, other=float("-inf"))
        if history > 0:
            value = changed(value, history * columns + column, inside, seen, biases, presence, frequency, repetition)
            tl.store(scores + row * columns + column, value, mask=inside)
        later = (value > best) | ((value != value) & (best == best)) | ((place == 2147483647) & (column < columns))
        best = tl.where(later, value, best)
        place = tl.where(later, column, place)
    missing = tl.max((best != best).to(tl.int32), 0)
    greatest = tl.max(tl.where(best != best, float("-inf"), best), 0)
    found = tl.min(tl.where(best == greatest, place, 2147483647), 0)
    tl.store(values + row * parts + part, tl.where(missing > 0, float("nan"), greatest))
    tl.store(places + row * parts + part, found)


@tilewright.jit
def power_of(value, greatest, factor):
    """What the probability of a logit is proportional to; 1 for the largest."""
    return tl.exp2((value - greatest) * factor)


@tilewright.jit
def scores_of(logits, scores, is_changed, column, columns):
    """A block of a row, which its text may have changed."""
    if is_changed:
        value = tl.load(scores + column, mask=column < columns, other=float("-inf"))
    else:
        value = tl.load(logits + column, mask=column < columns, other=float("-inf"))
    return value


@tilewright.jit
def count_from(logits, scores, is_changed, least, columns, greatest, factor, BLOCK: tl.constexpr):
    """Of a row's elements that are at least `least`: how many, the sum of their powers, and the smallest; and the
    largest of the others."""
    lane = tl.arange(0, BLOCK)
    count = tl.zeros((BLOCK,), tl.int32)
    mass = tl.zeros((BLOCK,), tl.float32)
    smallest = tl.full((BLOCK,), float("inf"), tl.float32)
    below = tl.full((BLOCK,), float("-inf"), tl.float32)
    for first in range(0, columns, BLOCK):
        value = scores_of(logits, scores, is_changed, first + lane, columns)
        reaches = value >= least
        count += reaches.to(tl.int32)
        mass += tl.where(reaches, power_of(value, greatest, factor), 0.0)
        smallest = tl.where(reaches, tl.minimum(smallest, value), smallest)
        below = tl.where(reaches, below, tl.maximum(below, value))
    return tl.sum(count, 0), tl.sum(mass, 0), tl.min(smallest, 0), tl.max(below, 0)


@tilewright.jit
def bound_of(logits, scores, is_changed, columns, greatest, factor, low, wanted_count, wanted_mass,
             BLOCK: tl.constexpr):  # fmt: skip
    """The largest element of a row such that those from it on are so many or hold so much, with how many are larger
    and what these hold.

    `low` is an element for which that is so.  Between it and the largest element, one in the middle is looked at, and
    the bound moves to the next element from there.
    """
    high = greatest
    above = (low > high).to(tl.int32)  # 0
    above_mass = greatest * 0.0
    for _ in range(MOST_HALVINGS):
        if low < high:
            middle = low * 0.5 + high * 0.5
            middle = tl.where(middle > low, middle, high)
            count, mass, smallest, below = count_from(
                logits, scores, is_changed, middle, columns, greatest, factor, BLOCK
            )
            if (count >= wanted_count) & (mass >= wanted_mass):
                low = smallest
            else:
                above = count
                above_mass = mass
                high = below
    return low, above, above_mass


@tilewright.jit
def filters_of(logits, scores, is_changed, columns, greatest, factor, portion, count, BLOCK: tl.constexpr):
    """top-k and top-p of a row as a bound: elements above it count, and of those that are equal to it the first ones,
    as many as `room`."""
    every, mass, low, _below = count_from(logits, scores, is_changed, -3.4028234e38, columns, greatest, factor, BLOCK)
    bound = low
    room = every
    if (count > 0) & (count < every):
        bound, above, above_mass = bound_of(
            logits, scores, is_changed, columns, greatest, factor, low, count, 0.0, BLOCK
        )
        room = count - above
        mass = above_mass + room.to(tl.float32) * power_of(bound, greatest, factor)
    if portion < 1.0:
        wanted = portion * mass
        least, _above, reached = bound_of(
            logits, scores, is_changed, columns, greatest, factor, bound, 0, wanted, BLOCK
        )
        power = tl.maximum(power_of(least, greatest, factor), 1e-37)
        more = tl.minimum(tl.ceil((wanted - reached) / power), 1e9).to(tl.int32)
        room = tl.where(least == bound, tl.minimum(room, more), more)
        bound = least
    return bound, tl.maximum(room, 1)


@tilewright.jit
def powers_of(logits, scores, is_changed, first, columns, greatest, factor, floor, bound, room,
              BLOCK: tl.constexpr):  # fmt: skip
    """The powers of a block, those that do not count as none; and for how many equals of the bound room is left."""
    column = first + tl.arange(0, BLOCK)
    value = scores_of(logits, scores, is_changed, column, columns)
    powers = power_of(value, greatest, factor)
    equal = (value == bound).to(tl.int32)
    equals = tl.sum(equal, 0)
    counts = value >= bound
    if equals > room:
        counts = (value > bound) | ((equal > 0) & (tl.cumsum(equal, 0) <= room))
    powers = tl.where((powers < floor) | (column >= columns) | (counts == 0), 0.0, powers)
    return powers, tl.maximum(room - equals, 0)


@tilewright.jit
def choose_of_rows(logits, histories, scores, values, places, temperatures, shares, floors, portions, counts, out,
                   columns, parts, PARTS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
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
        own = scores + row * columns
        is_changed = tl.load(histories + row) > 0
        factor = LOG2_E / tl.maximum(temperature, 1e-30)
        floor = tl.load(floors + row)
        portion = tl.load(portions + row)
        count = tl.load(counts + row)
        bound = greatest * 0.0 - float("inf")
        room = chosen * 0 + 2147483647
        if (count > 0) | (portion < 1.0):
            bound, room = filters_of(mine, own, is_changed, columns, greatest, factor, portion, count, BLOCK)
        total = greatest * 0.0
        left = room
        for first in range(0, columns, BLOCK):
            powers, left = powers_of(mine, own, is_changed, first, columns, greatest, factor, floor, bound, left, BLOCK)
            total += tl.sum(powers, 0)
        wanted = total * tl.load(shares + row)
        before = greatest * 0.0
        found = chosen * 0 + 2147483647
        last = chosen
        for first in range(0, columns, BLOCK):
            if found == 2147483647:
                powers, room = powers_of(
                    mine, own, is_changed, first, columns, greatest, factor, floor, bound, room, BLOCK
                )
                sums = before + tl.cumsum(powers, 0)
                column = first + tl.arange(0, BLOCK)
                found = tl.min(tl.where((sums > wanted) & (powers > 0), column, 2147483647), 0)
                before += tl.sum(powers, 0)
                last = tl.maximum(last, tl.max(tl.where(powers > 0, column, 0), 0))
        # Rounding may leave no element whose sum passes a share near 1.
        chosen = tl.where(found == 2147483647, last, found)
    tl.store(out + row, tl.where(finite, chosen, -1))
