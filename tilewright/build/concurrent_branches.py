"""Independent branches of a plan: which steps may run concurrently, on which lanes, and where that pays.

Two tasks depend on each other when one writes a tensor that the other reads or writes.  Tasks are put on lanes in their
order, each after the task that it waits for last, if it can be.  Lanes are used where the estimates promise that they
save a tenth of the time: a task whose CTAs fill the GPU gains nothing from company.  Places in the arena are given
afterwards: a tensor keeps its place until everything that may run at the same time as its users is done
(`last_concurrent`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

LANES = 4
_LARGEST_SHARE_OF_ONE_LANE = 0.9  # of the time on one lane


@dataclass(frozen=True)
class TaskWork:
    """A task: the tensors that it reads and writes, its estimated seconds, and whether it fills the GPU."""

    reads: frozenset[str]
    writes: frozenset[str]
    seconds: float
    fills: bool

    def conflicts(self, later: TaskWork) -> bool:
        """Whether `later` must wait for this task."""
        return bool(self.writes & (later.reads | later.writes) or self.reads & later.writes)


@dataclass(frozen=True)
class LanePlace:
    """The lane of a task, and the tasks of other lanes that it waits for."""

    lane: int
    after: tuple[int, ...]


def direct_dependencies(work: Sequence[TaskWork]) -> list[list[int]]:
    """For each task the earlier ones that it must wait for, without those that these wait for."""
    found: list[list[int]] = []
    dependencies: list[int] = []  # all that a task waits for, as bits
    for number, task in enumerate(work):
        covered = 0
        direct = []
        for other in range(number - 1, -1, -1):
            if not covered >> other & 1 and work[other].conflicts(task):
                direct.append(other)
                covered |= dependencies[other] | 1 << other
        found.append(direct)
        dependencies.append(covered)
    return found


def places(work: Sequence[TaskWork], crossing: float) -> list[LanePlace]:
    """A place for each task: all on lane 0 where more lanes do not pay; `crossing`: seconds of waiting for another."""
    alone = [LanePlace(0, ())] * len(work)
    needed = direct_dependencies(work)
    if all(number - 1 in needed[number] for number in range(1, len(work))):
        return alone
    found, end = _spread(work, needed, crossing)
    return found if end <= _LARGEST_SHARE_OF_ONE_LANE * sum(task.seconds for task in work) else alone


def last_concurrent(found: Sequence[LanePlace]) -> Callable[[Iterable[int]], int]:
    """A function that gives the last task that may run at the same time as one of some tasks."""
    before: list[int] = []  # all tasks that are done when one begins, as bits
    last: dict[int, int] = {}
    lanes: dict[int, list[int]] = {}  # the tasks of each, one after the other: what is done only grows
    for number, place in enumerate(found):
        bits = 0
        for other in [*place.after, *([last[place.lane]] if place.lane in last else [])]:
            bits |= before[other] | 1 << other
        before.append(bits)
        last[place.lane] = number
        lanes.setdefault(place.lane, []).append(number)

    def found_last(tasks: Iterable[int]) -> int:
        wanted = sum(1 << task for task in set(tasks))
        begun = [bisect_left(numbers, 1, key=lambda n: not wanted & ~before[n]) for numbers in lanes.values()]
        return max(numbers[count - 1] for numbers, count in zip(lanes.values(), begun, strict=True) if count)

    return found_last


def _spread(
    work: Sequence[TaskWork], needed: Sequence[Sequence[int]], crossing: float
) -> tuple[list[LanePlace], float]:
    """Tasks on lanes, and the estimated time of all."""
    last: list[int | None] = [None] * LANES  # task of each lane
    ends = [0.0] * len(work)
    lane_ends = [0.0] * LANES
    barrier = 0.0  # the end of the last task that fills the GPU
    found: list[LanePlace] = []
    for number, task in enumerate(work):
        lane = _lane(needed[number], last, lane_ends, ends)
        after = tuple(sorted(other for other in needed[number] if found[other].lane != lane))
        ready = max([lane_ends[lane], barrier, *(ends[other] + crossing for other in after)])
        if task.fills:
            ready = max(ready, *lane_ends)
        ends[number] = lane_ends[lane] = ready + task.seconds
        barrier = ends[number] if task.fills else barrier
        last[lane] = number
        found.append(LanePlace(lane, after))
    return found, max(ends, default=0.0)


def _lane(needed: Sequence[int], last: Sequence[int | None], lane_ends: Sequence[float], ends: Sequence[float]) -> int:
    """Behind the needed task that ends last and is the last of its lane; else the lane that is free first."""
    followed = [lane for lane in range(LANES) if last[lane] in needed]
    if followed:
        return max(followed, key=lambda lane: lane_ends[lane])
    ready = max((ends[other] for other in needed), default=0.0)
    idle = [lane for lane in range(LANES) if lane_ends[lane] <= ready]
    return idle[0] if idle else min(range(LANES), key=lambda lane: lane_ends[lane])
