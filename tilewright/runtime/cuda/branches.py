"""Enqueues a plan with concurrent branches: lanes are streams, ordered by events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.runtime.cuda.driver import api, check
from tilewright.runtime.cuda.launches import Launch
from tilewright.runtime.cuda.streams import new_stream
from tilewright.runtime.plan import Plan


class Branches:
    """Enqueues the launches of a plan on the lanes that its steps have; lane 0 is the caller's stream.

    Others leave it and come back to it, so that they may be captured with it. A context is current.
    `first` are the numbers of the steps that wait for none of their call.
    """

    def __init__(self, plan: Plan) -> None:
        self._lanes = [step.lane for step in plan.steps]
        self._after = [step.after for step in plan.steps]
        begun = [self._lanes.index(lane) for lane in dict.fromkeys(self._lanes)]
        self.first = [number for number in begun if not self._after[number]]
        last = {lane: number for number, lane in enumerate(self._lanes)}
        self._joined = [number for lane, number in last.items() if lane]
        self._marked = {*self._joined, *(number for after in self._after for number in after)}
        self._streams: list[int] = []
        self._events: dict[int, Any] = {}

    def enqueue(self, launches: Sequence[Launch], stream: int, addresses: Sequence[int]) -> None:
        """Enqueue all launches, with the caller's memory at `addresses`, between what is before and after them."""
        streams = [stream, *self._others()]
        begun = {0}
        if self._joined:
            self._mark(-1, stream)
        for number, launch in enumerate(launches):
            lane = self._lanes[number]
            for other in self._after[number] if lane in begun else (-1, *self._after[number]):
                check(api().cuStreamWaitEvent(streams[lane], self._events[other], 0), "ordering steps")
            begun.add(lane)
            launch(streams[lane], addresses)
            if number in self._marked:
                self._mark(number, streams[lane])
        for number in self._joined:
            check(api().cuStreamWaitEvent(stream, self._events[number], 0), "joining steps")

    def _mark(self, number: int, stream: int) -> None:
        cuda = api()
        if number not in self._events:
            self._events[number] = check(
                cuda.cuEventCreate(cuda.CUevent_flags.CU_EVENT_DISABLE_TIMING), "making an event"
            )
        check(cuda.cuEventRecord(self._events[number], stream), "ordering steps")

    def _others(self) -> list[int]:
        """The streams of lanes besides the first."""
        while len(self._streams) < max(self._lanes, default=0):
            self._streams.append(new_stream())
        return self._streams
