"""Live ranges that overlap: queries on intervals of steps, in logarithmic time plus the number of results."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Protocol


class Lifetime(Protocol):
    """Something that is alive from step `first` to step `last`, both included."""

    @property
    def first(self) -> int: ...

    @property
    def last(self) -> int: ...


def greatest_sum(entries: Iterable[tuple[Lifetime, int]]) -> int:
    """The greatest sum of the sizes (not negative) of those that are alive at one step."""
    changes: defaultdict[int, int] = defaultdict(int)
    for item, size in entries:
        changes[item.first] += size
        changes[item.last + 1] -= size
    return max(accumulate(changes[step] for step in sorted(changes)), default=0)


class _Steps:
    """The steps at which something begins or ends, numbered, as leaves of a binary tree; node 1 is the root."""

    def __init__(self, items: Iterable[Lifetime]) -> None:
        steps = sorted({step for item in items for step in (item.first, item.last)})
        self.number = {step: number for number, step in enumerate(steps)}
        self.leaves = len(steps)

    def covering(self, item: Lifetime) -> Iterator[int]:
        """The fewest nodes under which lie just the steps of an interval."""
        low, high = self.number[item.first] + self.leaves, self.number[item.last] + self.leaves + 1
        while low < high:
            if low & 1:
                yield low
                low += 1
            if high & 1:
                high -= 1
                yield high
            low, high = low >> 1, high >> 1

    def above(self, node: int) -> Iterator[int]:
        """A node and all that it lies under."""
        while node:
            yield node
            node >>= 1


class OverlapIndex:
    """Intervals that are added one by one, by numbers; which of them are alive at a step of another?"""

    def __init__(self, items: Sequence[Lifetime]) -> None:
        self._steps = _Steps(items)
        self._parts: defaultdict[int, list[int]] = defaultdict(list)  # of each node the intervals that it is a part of
        self._begins: list[tuple[int, int]] = []  # sorted: first step, number

    def add(self, number: int, item: Lifetime) -> None:
        """Add one of the items."""
        for node in self._steps.covering(item):
            self._parts[node].append(number)
        insort(self._begins, (item.first, number))

    def overlapping(self, item: Lifetime) -> list[int]:
        """The numbers of those that were added and are alive together with an item."""
        leaf = self._steps.number[item.first] + self._steps.leaves
        found = [number for node in self._steps.above(leaf) for number in self._parts.get(node, ())]
        low = bisect_right(self._begins, (item.first, float("inf")))
        high = bisect_left(self._begins, (item.last + 1, -1))
        return found + [number for _, number in self._begins[low:high]]


class GreatestIndex:
    """Intervals with numbers that are added one by one; which is the greatest that is alive at a step of another?"""

    def __init__(self, items: Sequence[Lifetime]) -> None:
        self._steps = _Steps(items)
        self._whole = [0] * (2 * self._steps.leaves + 1)  # of what covers all steps under a node
        self._below = [0] * (2 * self._steps.leaves + 1)  # of what covers some steps under a node

    def add(self, item: Lifetime, number: int) -> None:
        """Add one of the items with its number, which is not negative."""
        for node in self._steps.covering(item):
            self._whole[node] = max(self._whole[node], number)
            for above in self._steps.above(node):
                self._below[above] = max(self._below[above], number)

    def greatest(self, item: Lifetime) -> int:
        """The greatest number of those that were added and are alive together with an item; 0 without one."""
        found = 0
        for node in self._steps.covering(item):
            found = max(found, self._below[node], *(self._whole[above] for above in self._steps.above(node)))
        return found
