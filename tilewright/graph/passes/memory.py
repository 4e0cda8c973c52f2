"""Static memory planning with symbolic sizes.

Every tensor between two steps gets one place in an arena for the steps in which it is alive.  The
plan must be right for every value of the symbols, so offsets are symbolic as well:

    size          live      family        place
    1536*b*s      0..1      b*s           0
    512*b*s       1..2      b*s           1536*b*s
    1024*b*s      2..3      b*s           0
    256           1..3      (none)        2048*b*s

Tensors whose size is a multiple of the same product of symbols form a family: inside it offsets are
integer multiples of that product, packed like plain integers (each at the lowest gap where it fits,
largest tensors first), which is exact for all values at once.  A multiple that is not aligned is
rounded up, and what lies above in the meantime moves up by one alignment, however large the symbols
are.  Other tensors share slots: a slot is as large as the maximum of its tenants, which never live
at the same time.  Families and slots lie one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.symbolic import (
    Monomial,
    Size,
    evaluate,
    lift,
    lower_bound,
    maximum,
    round_up,
    simplify,
    upper_bound,
)

ALIGNMENT = 64
_TRIES = 64  # of an order
_TRIED_PAIRS = 400_000  # of tensors, over all tries of an order


@dataclass(frozen=True)
class Interval:
    """A tensor of `bytes` that is alive from step `first` to step `last`, both included."""

    name: str
    bytes: Size
    first: int
    last: int

    def overlaps(self, other: Interval) -> bool:
        """Whether both are alive at some step."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True)
class MemoryPlan:
    """Where each interval lies: byte offsets by name, all multiples of 64, and the arena's size."""

    offsets: Mapping[str, Size]
    total: Size
    intervals: tuple[Interval, ...] = field(default=(), repr=False)

    def least_bytes(self, symbols: Mapping[str, int]) -> int:
        """No plan can use less: the most bytes that are alive at one step, for given symbol values."""
        sizes = [(item, -(-evaluate(item.bytes, symbols) // ALIGNMENT) * ALIGNMENT) for item in self.intervals]
        steps = {item.first for item in self.intervals}
        return max((sum(n for item, n in sizes if item.first <= step <= item.last) for step in steps), default=0)

    def report(self, symbols: Mapping[str, int]) -> str:
        """One line that compares the arena with the lower bound."""
        used, least = evaluate(self.total, symbols), self.least_bytes(symbols)
        sizes = ", ".join(f"{name}={value}" for name, value in symbols.items())
        share = f"{100 * used / least:.0f} %" if least else "nothing"
        return f"arena {used} bytes for {sizes or 'fixed sizes'}: {share} of the lower bound {least}"


def plan_memory(intervals: Sequence[Interval]) -> MemoryPlan:
    """A place for every interval; two that are alive together never overlap, for all symbol values."""
    families: dict[Monomial, list[tuple[Interval, int]]] = {}
    others: list[Interval] = []
    for item in intervals:
        found = _family(item.bytes)
        if found is None:
            others.append(item)
        else:
            families.setdefault(found[0], []).append((item, found[1]))
    offsets: dict[str, Size] = {}
    base: Size = 0
    for monomial, members in families.items():
        places, extent = _pack(members)
        unit = lift(1) if monomial == () else lift(0) + _product(monomial)
        levels, most = _levels(members, places)
        for name, place in places.items():
            offsets[name] = _above(base, lift(unit) * place, levels[name])
        base = _above(base, lift(unit) * extent, most)
    for tenants, size in _slots(others):
        for item in tenants:
            offsets[item.name] = base
        base = simplify(lift(base) + size)
    return MemoryPlan(offsets, base, tuple(intervals))


def _above(base: Size, distance: Size, levels: int) -> Size:
    """`base` and at least `distance`, aligned, and so many alignments more."""
    return simplify(lift(base) + round_up(simplify(distance), ALIGNMENT) + levels * ALIGNMENT)


def _levels(members: list[tuple[Interval, int]], places: Mapping[str, int]) -> tuple[dict[str, int], int]:
    """How many alignments each moves up, and the end, because what lies below was rounded up: one for each that lies
    below another, at a place that is not aligned whatever the symbols are."""
    found: dict[str, int] = {}
    done: list[Interval] = []
    for item, _ in sorted(members, key=lambda member: places[member[0].name]):
        below = [other.name for other in done if other.overlaps(item)]
        found[item.name] = max((found[name] + (places[name] % ALIGNMENT > 0) for name in below), default=0)
        done.append(item)
    return found, max((level + (places[name] % ALIGNMENT > 0) for name, level in found.items()), default=0)


def _product(monomial: Monomial) -> Size:
    from tilewright.symbolic import Expression

    return Expression(((monomial, 1),))


def _family(size: Size) -> tuple[Monomial, int] | None:
    """The product of symbols that a size is a multiple of, and the factor; that of a number is aligned."""
    terms = lift(size).terms
    if not terms:
        return (), 0
    if len(terms) != 1 or lower_bound(_product(terms[0][0])) < 0:
        return None
    monomial, factor = terms[0]
    return monomial, factor if monomial else -(-factor // ALIGNMENT) * ALIGNMENT


def _pack(members: list[tuple[Interval, int]]) -> tuple[dict[str, int], int]:
    """Offsets for integer sizes: in some order, each at the lowest gap between its live neighbours.

    Largest first is near the least in most cases.  Where it is not, other orders are tried, and those in which what
    reached highest comes first.
    """
    least = _most_alive(members)
    orders = (
        lambda member: (-member[1], member[0].first),
        lambda member: (-member[1] * (1 + member[0].last - member[0].first), member[0].first),
        lambda member: (member[0].first - member[0].last, -member[1]),
        lambda member: (member[0].first, -member[1]),
    )
    best: tuple[dict[str, int], int] = {}, 0
    tries = max(1, min(_TRIES, _TRIED_PAIRS // max(1, len(members) ** 2)))
    for order in orders:
        ordered = sorted(members, key=order)
        for _ in range(tries):
            places, extent = _placed(ordered)
            if not best[0] or extent < best[1]:
                best = places, extent
            if best[1] <= least:
                return best
            highest = max(range(len(ordered)), key=lambda number: places[ordered[number][0].name] + ordered[number][1])
            if highest == 0:
                break
            ordered.insert(0, ordered.pop(highest))
    return best


def _placed(ordered: Sequence[tuple[Interval, int]]) -> tuple[dict[str, int], int]:
    """Each at the lowest gap where it fits, in this order; offsets and the end."""
    placed: list[tuple[Interval, int, int]] = []
    for item, size in ordered:
        busy = sorted((start, end) for other, start, end in placed if item.overlaps(other))
        start = 0
        for low, high in busy:
            if start + size <= low:
                break
            start = max(start, high)
        placed.append((item, start, start + size))
    return {item.name: start for item, start, _ in placed}, max((end for _, _, end in placed), default=0)


def _most_alive(members: Sequence[tuple[Interval, int]]) -> int:
    """The most that is alive at one step: no packing takes less."""
    steps = {item.first for item, _ in members}
    return max((sum(size for item, size in members if item.first <= step <= item.last) for step in steps), default=0)


def _slots(intervals: list[Interval]) -> list[tuple[list[Interval], Size]]:
    """Groups of intervals that are never alive together, with a size that covers each of them."""
    slots: list[tuple[list[Interval], Size]] = []
    for item in sorted(intervals, key=lambda item: (-upper_bound(item.bytes), item.first)):
        size = round_up(item.bytes, ALIGNMENT)
        for position, (tenants, extent) in enumerate(slots):
            if not any(item.overlaps(other) for other in tenants):
                slots[position] = ([*tenants, item], _cover(extent, size))
                break
        else:
            slots.append(([item], size))
    return slots


def _cover(left: Size, right: Size) -> Size:
    """A size that is never below either; one of the two when it dominates."""
    if lower_bound(simplify(lift(left) - right)) >= 0:
        return left
    return right if lower_bound(simplify(lift(right) - left)) >= 0 else maximum(left, right)
