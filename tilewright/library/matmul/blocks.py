"""Blocks of the tiled product on any machine, and the ranges of a run-time number of rows that have variants of it."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.symbolic import Size, lower_bound, simplify, upper_bound

ROW_STEPS = (16, 96)  # upper ends of the row ranges that get a kernel of their own


@dataclass(frozen=True)
class MatmulBlocks:
    """What one program computes."""

    rows: int
    columns: int
    depth: int

    def __str__(self) -> str:
        return f"{self.rows} x {self.columns}, depth {self.depth}"


@dataclass(frozen=True)
class RowRange:
    """The numbers of rows that one kernel variant serves, with examples to choose its blocks for."""

    at_most: int | None  # None: everything above the other ranges
    examples: tuple[int, ...]


def row_ranges(rows: Size) -> list[RowRange]:
    """The kernel variants for a number of rows: one when it is known."""
    rows = simplify(rows)
    if isinstance(rows, int):
        return [RowRange(None, (rows,))]
    low, high = (max(1, bound) for bound in (lower_bound(rows), upper_bound(rows)))  # n - 3 may be less, as bounds go
    ranges: list[RowRange] = []
    for step in ROW_STEPS:
        if step >= high:
            return [*ranges, RowRange(None, _examples(low, high))]
        if low <= step:
            ranges.append(RowRange(step, _examples(low, step)))
            low = step + 1
    return [*ranges, RowRange(None, _examples(low, min(high, 16 * low)))]


def _examples(low: int, high: int) -> tuple[int, ...]:
    """Both ends of a range of rows and what lies between them in steps of four."""
    found = [high]
    while found[-1] > 4 * low:
        found.append(found[-1] // 4)
    return (*found, low) if found[-1] != low else tuple(found)
