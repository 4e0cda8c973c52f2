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

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.graph.passes.lifetimes import GreatestIndex, OverlapIndex, greatest_sum
from tilewright.symbolic import (
    Expression,
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

TENSOR_ALIGNMENT = 64
_TRIES = 64  # of an order
_TRIED_PAIRS = 400_000  # of tensors, over all tries of an order


@dataclass(frozen=True)
class LiveInterval:
    """A tensor of `bytes` that is alive from step `first` to step `last`, both included."""

    name: str
    bytes: Size
    first: int
    last: int

    def overlaps(self, other: LiveInterval) -> bool:
        """Whether both are alive at some step."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True)
class MemoryPlan:
    """Where each interval lies: byte offsets by name, all multiples of 64, and the arena's size."""

    offsets: Mapping[str, Size]
    total: Size
    intervals: tuple[LiveInterval, ...] = field(default=(), repr=False)

    def least_bytes(self, symbols: Mapping[str, int]) -> int:
        """No plan can use less: the most bytes that are alive at one step, for given symbol values."""
        sizes = [
            (item, -(-evaluate(item.bytes, symbols) // TENSOR_ALIGNMENT) * TENSOR_ALIGNMENT) for item in self.intervals
        ]
        return greatest_sum(sizes)

    def report(self, symbols: Mapping[str, int]) -> str:
        """One line that compares the arena with the lower bound."""
        used, least = evaluate(self.total, symbols), self.least_bytes(symbols)
        sizes = ", ".join(f"{name}={value}" for name, value in symbols.items())
        share = f"{100 * used / least:.0f} %" if least else "nothing"
        return f"arena {used} bytes for {sizes or 'fixed sizes'}: {share} of the lower bound {least}"


def plan_memory(intervals: Sequence[LiveInterval]) -> MemoryPlan:
    """A place for every interval; two that are alive together never overlap, for all symbol values."""
    families: dict[Monomial, list[tuple[LiveInterval, int]]] = {}
    others: list[LiveInterval] = []
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
    return simplify(lift(base) + round_up(simplify(distance), TENSOR_ALIGNMENT) + levels * TENSOR_ALIGNMENT)


def _levels(members: list[tuple[LiveInterval, int]], places: Mapping[str, int]) -> tuple[dict[str, int], int]:
    """How many alignments each moves up, and the end, because what lies below was rounded up: one for each that lies
    below another, at a place that is not aligned whatever the symbols are."""
    found: dict[str, int] = {}
    below = GreatestIndex([item for item, _ in members])
    most = 0
    for item, _ in sorted(members, key=lambda member: places[member[0].name]):
        found[item.name] = below.greatest(item)
        level = found[item.name] + (places[item.name] % TENSOR_ALIGNMENT > 0)
        below.add(item, level)
        most = max(most, level)
    return found, most


def _product(monomial: Monomial) -> Size:
    return Expression(((monomial, 1),))


def _family(size: Size) -> tuple[Monomial, int] | None:
    """The product of symbols that a size is a multiple of, and the factor; that of a number is aligned."""
    terms = lift(size).terms
    if not terms:
        return (), 0
    if len(terms) != 1 or lower_bound(_product(terms[0][0])) < 0:
        return None
    monomial, factor = terms[0]
    return monomial, factor if monomial else -(-factor // TENSOR_ALIGNMENT) * TENSOR_ALIGNMENT


def _pack(members: list[tuple[LiveInterval, int]]) -> tuple[dict[str, int], int]:
    """Offsets for integer sizes: in some order, each at the lowest gap between its live neighbours.

    Largest first is near the least in most cases.  Where it is not, other orders are tried, and those in which what
    reached highest comes first.
    """
    least = greatest_sum(members)
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


def _placed(ordered: Sequence[tuple[LiveInterval, int]]) -> tuple[dict[str, int], int]:
    """Each at the lowest gap where it fits, in this order; offsets and the end."""
    placed = OverlapIndex([item for item, _ in ordered])
    extents: list[tuple[int, int]] = []
    for number, (item, size) in enumerate(ordered):
        start = 0
        for low, high in sorted(extents[other] for other in placed.overlapping(item)):
            if start + size <= low:
                break
            start = max(start, high)
        placed.add(number, item)
        extents.append((start, start + size))
    places = {item.name: start for (item, _), (start, _) in zip(ordered, extents, strict=True)}
    return places, max((end for _, end in extents), default=0)


def _slots(intervals: list[LiveInterval]) -> list[tuple[list[LiveInterval], Size]]:
    """Groups of intervals that are never alive together, with a size that covers each of them."""
    slots: list[tuple[list[LiveInterval], Size]] = []
    times: list[list[tuple[int, int]]] = []  # of each slot, sorted: first and last steps of its tenants
    for item in sorted(intervals, key=lambda item: (-upper_bound(item.bytes), item.first)):
        size = round_up(item.bytes, TENSOR_ALIGNMENT)
        for position, busy in enumerate(times):
            after = bisect_left(busy, (item.first, item.first))
            free = after == len(busy) or item.last < busy[after][0]
            if free and (after == 0 or busy[after - 1][1] < item.first):
                tenants, extent = slots[position]
                tenants.append(item)
                slots[position] = (tenants, _cover(extent, size))
                busy.insert(after, (item.first, item.last))
                break
        else:
            slots.append(([item], size))
            times.append([(item.first, item.last)])
    return slots


def _cover(left: Size, right: Size) -> Size:
    """A size that is never below either; one of the two when it dominates."""
    if lower_bound(simplify(lift(left) - right)) >= 0:
        return left
    return right if lower_bound(simplify(lift(right) - left)) >= 0 else maximum(left, right)
