"""Lays out a graph as rows: every node is a row, every value a lane from its producer to its last reader."""

from __future__ import annotations

from collections.abc import Sequence


def lanes(inputs: Sequence[Sequence[int]]) -> list[int]:
    """The lane of each row; `inputs[row]` are the earlier rows that it reads.

    A row takes the lane of an input that nobody reads later, else the first free one.

        lanes([[], [0], [0], [1, 2]]) == [0, 1, 0, 0]
    """
    last = list(range(len(inputs)))
    for row, sources in enumerate(inputs):
        for source in sources:
            last[source] = row
    found: list[int] = []
    occupied: dict[int, int] = {}  # lane -> the row whose value is in it
    for row, sources in enumerate(inputs):
        for lane, owner in list(occupied.items()):
            if last[owner] < row or (last[owner] == row and owner not in sources):
                del occupied[lane]
        ending = [found[source] for source in sources if last[source] == row and occupied.get(found[source]) == source]
        lane = min(ending) if ending else next(lane for lane in range(len(inputs) + 1) if lane not in occupied)
        for other in ending:
            occupied.pop(other, None)
        occupied[lane] = row
        found.append(lane)
    return found
