"""Time work on a GPU by its own clock: events before and after each call, on the current stream."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.runtime.cuda.device import current_device, device, primary_context, torch_on_gpus
from tilewright.runtime.cuda.driver import api, check
from tilewright.runtime.cuda.graphs import capture
from tilewright.runtime.cuda.memory import DeviceArray
from tilewright.runtime.cuda.streams import LEGACY_DEFAULT, TORCH, current_stream, new_stream

_FLUSH_BYTES = 256 << 20  # several times the L2 of any GPU
_NOTICEABLE = 2e-6  # seconds: less than a kernel takes to start and end


def in_use() -> bool:
    """Whether this process works on a GPU: PyTorch has begun to, or a kernel of ours was loaded."""
    return torch_on_gpus() is not None or primary_context.cache_info().currsize > 0


class Timer:
    """Times calls on the current GPU, with its L2 flushed before each."""

    def __init__(self) -> None:
        self.ordinal = current_device().ordinal
        self._stream = current_stream(TORCH) if torch_on_gpus() is not None else lambda ordinal: LEGACY_DEFAULT
        self._flush = DeviceArray((_FLUSH_BYTES,), np.int8, self.ordinal)

    def synchronize(self) -> None:
        """Wait for all work on the GPU."""
        with device(self.ordinal).active():
            check(api().cuCtxSynchronize(), "waiting for a GPU")

    def leaves_work(self, function: Callable[[], Any]) -> bool:
        """Whether a call returns before its work is done: waiting then takes longer than on an idle GPU."""
        idle, after = [], []
        for _ in range(5):
            self.synchronize()
            idle.append(self._wait())
            function()
            after.append(self._wait())
        return min(after) > min(idle) + _NOTICEABLE

    def _wait(self) -> float:
        began = time.perf_counter()
        self.synchronize()
        return time.perf_counter() - began

    def milliseconds(self, function: Callable[[], Any], count: int, before: Callable[[], Any]) -> Sequence[float]:
        """Of `count` calls, each alone; `before` is called ahead of each and is not timed."""
        cuda = api()
        stream = self._stream(self.ordinal)
        with device(self.ordinal).active():
            events = [self._event() for _ in range(2 * count)]
            for begin, end in zip(events[::2], events[1::2], strict=True):
                before()
                check(cuda.cuMemsetD8Async(self._flush.address, 0, _FLUSH_BYTES, stream), "flushing the L2")
                check(cuda.cuEventRecord(begin, stream), "timing")
                function()
                check(cuda.cuEventRecord(end, stream), "timing")
            self.synchronize()
            times = [
                float(check(cuda.cuEventElapsedTime(begin, end), "timing"))
                for begin, end in zip(events[::2], events[1::2], strict=True)
            ]
            for event in events:
                check(cuda.cuEventDestroy(event), "timing")
        return times

    def _event(self) -> Any:
        return check(api().cuEventCreate(api().CUevent_flags.CU_EVENT_DEFAULT), "timing")


def replay_times(work: Sequence[Callable[[int], None]], rounds: int) -> list[list[float]]:
    """Milliseconds of each of several pieces of work as CUDA graphs, `rounds` times each, in turns after a warm-up.

    ``work[n](stream)`` enqueues one. Nothing is flushed between replays: a piece that is to find the L2 cold takes
    other memory in each of its launches. A context is current.
    """
    cuda = api()
    stream = new_stream()
    graphs, events = [], []
    try:
        for enqueue in work:
            graph = capture(stream, enqueue)
            graphs.append(check(cuda.cuGraphInstantiate(graph, 0), "preparing a graph"))
            check(cuda.cuGraphDestroy(graph), "giving up a captured graph")
        for graph in graphs:
            check(cuda.cuGraphLaunch(graph, stream), "launching a graph")
        for _ in range(rounds * len(graphs) * 2):
            events.append(check(cuda.cuEventCreate(cuda.CUevent_flags.CU_EVENT_DEFAULT), "timing"))
        pairs = list(zip(events[::2], events[1::2], strict=True))
        for number, (begin, end) in enumerate(pairs):
            check(cuda.cuEventRecord(begin, stream), "timing")
            check(cuda.cuGraphLaunch(graphs[number % len(graphs)], stream), "launching a graph")
            check(cuda.cuEventRecord(end, stream), "timing")
        check(cuda.cuStreamSynchronize(stream), "waiting for a GPU")
        times = [float(check(cuda.cuEventElapsedTime(*pair), "timing")) for pair in pairs]
        return [times[number :: len(graphs)] for number in range(len(graphs))]
    finally:
        for event in events:
            check(cuda.cuEventDestroy(event), "timing")
        for graph in graphs:
            check(cuda.cuGraphExecDestroy(graph), "giving up a graph")
        check(cuda.cuStreamDestroy(stream), "giving up a stream")


def graph_times(pieces: Sequence[Callable[[int], None]], stream: int, runs: int) -> list[list[float]]:
    """Milliseconds of each piece of work within one CUDA graph of all, run by run.

    ``pieces[n](stream)`` enqueues one; graphs are launched on `stream`. Events between the pieces hold them up, each
    about alike: the pieces of a run are made shorter by one amount, so that together they take as long as a graph
    without events. A context is current.
    """
    cuda = api()
    inside = new_stream()
    events = [check(cuda.cuEventCreate(cuda.CUevent_flags.CU_EVENT_DEFAULT), "timing") for _ in range(len(pieces) + 3)]
    external = cuda.CUevent_record_flags.CU_EVENT_RECORD_EXTERNAL
    graphs = []

    def plain(captured: int) -> None:
        for piece in pieces:
            piece(captured)

    def marked(captured: int) -> None:
        check(cuda.cuEventRecordWithFlags(events[0], captured, external), "timing")
        for piece, event in zip(pieces, events[1:], strict=False):
            piece(captured)
            check(cuda.cuEventRecordWithFlags(event, captured, external), "timing")

    try:
        for enqueue in (plain, marked):
            graph = capture(inside, enqueue)
            graphs.append(check(cuda.cuGraphInstantiate(graph, 0), "preparing a graph"))
            check(cuda.cuGraphDestroy(graph), "giving up a captured graph")
        times = []
        for _ in range(runs):
            check(cuda.cuEventRecord(events[-2], stream), "timing")
            check(cuda.cuGraphLaunch(graphs[0], stream), "launching a graph")
            check(cuda.cuEventRecord(events[-1], stream), "timing")
            check(cuda.cuGraphLaunch(graphs[1], stream), "launching a graph")
            check(cuda.cuStreamSynchronize(stream), "waiting for a GPU")
            whole = float(check(cuda.cuEventElapsedTime(events[-2], events[-1]), "timing"))
            pairs = zip(events, events[1 : len(pieces) + 1], strict=False)
            found = [float(check(cuda.cuEventElapsedTime(*pair), "timing")) for pair in pairs]
            times.append(shortened(found, whole))
        return times
    finally:
        for graph in graphs:
            check(cuda.cuGraphExecDestroy(graph), "giving up a graph")
        for event in events:
            check(cuda.cuEventDestroy(event), "timing")
        check(cuda.cuStreamDestroy(inside), "giving up a stream")


def shortened(times: Sequence[float], total: float) -> list[float]:
    """Times that are all made shorter by one amount, but to no less than a tenth, so that their sum is `total`.

    They stay as they are where their sum is not larger.
    """
    low, high = 0.0, max(times, default=0.0)
    if sum(times) <= total:
        return list(times)
    for _ in range(60):
        middle = (low + high) / 2
        if sum(max(time - middle, time / 10) for time in times) > total:
            low = middle
        else:
            high = middle
    return [max(time - high, time / 10) for time in times]
