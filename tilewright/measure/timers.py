"""Timers: GPU events, in CUDA graphs or call by call; the host's clock on a CPU.

Candidates that are compared take turns: a chip's clock falls as it warms.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from math import ceil
from statistics import median
from typing import Any

import numpy as np

from tilewright.runtime.cuda import timing
from tilewright.runtime.cuda.device import torch_on_gpus

Launch = Callable[[int], Any]  # puts work on a stream
Call = Callable[[], Any]

_GRAPH_SECONDS = 1e-4  # that one replay of a candidate's graph takes at least
_LAUNCHES = 64  # in a graph, at most, but for one on each copy of the operands
_REPLAY_SECONDS = 3e-3  # for all replays of a candidate
_REPLAYS = (5, 21)  # at least, at most
_COPIES = 64  # of weights, at most
_ROUNDS = 3
_ROUND_MILLISECONDS = 10.0  # of one candidate in one round: the clock has to fall as it does in use
_ROUND_CALLS = (3, 60)  # at least, at most
_PROCESSOR_ROUNDS = 15
_PROCESSOR_MICROSECONDS = 500  # that the calls of a candidate in one round take at least
_ESTIMATES = 5  # runs that decide how many more there are


def cold_copies(weights: int, l2_bytes: int) -> int:
    """How many copies of so many bytes of weights, read by turns, make each launch find its own out of the L2 cache."""
    return max(1, min(_COPIES, -(-2 * l2_bytes // max(1, weights))))


# Candidates, in turns


def in_graphs(launches: Mapping[int, Sequence[Launch]], expected: float) -> dict[int, float]:
    """Microseconds of a launch of each candidate as it runs in a model: in a graph of many, one after the other.

    A candidate has a launch for each copy of its operands; more than one where each is to find its own cold.
    `expected` are the seconds that the quickest is thought to take.  A context is current.
    """
    if not launches:
        return {}
    expected = max(expected, 1e-6)
    copies = max(map(len, launches.values()))
    count = max(copies, min(_LAUNCHES, max(2, round(_GRAPH_SECONDS / expected))))
    replays = max(_REPLAYS[0], min(_REPLAYS[1], int(_REPLAY_SECONDS / (count * expected))))

    def work(each: Sequence[Launch]) -> Callable[[int], None]:
        def enqueue(stream: int) -> None:
            for position in range(count):
                each[position % len(each)](stream)

        return enqueue

    times = timing.replay_times([work(each) for each in launches.values()], replays)
    return {number: median(found) / count * 1e3 for number, found in zip(launches, times, strict=True)}


def alone(calls: Mapping[int, Call]) -> dict[int, float]:
    """Microseconds of a call of each candidate on the current GPU, the L2 cache flushed before each."""
    timer = timing.Timer()
    least, most = _ROUND_CALLS
    first = {number: max(median(timer.milliseconds(call, least, _nothing)), 1e-3) for number, call in calls.items()}
    samples: dict[int, list[float]] = {number: [] for number in calls}
    for _ in range(_ROUNDS):
        for number, call in calls.items():
            count = max(least, min(most, int(_ROUND_MILLISECONDS / first[number])))
            samples[number] += timer.milliseconds(call, count, _nothing)
    return {number: median(found) * 1e3 for number, found in samples.items()}


def on_processor(calls: Sequence[Call], one_thread: bool) -> list[list[float]]:
    """Microseconds of calls on the CPU, those of each round; with one thread CPU time, which leaves out other programs.

    A round has as many calls of a candidate as are long enough for the clock.
    """
    clock = time.process_time if one_thread else time.perf_counter

    def mean(call: Call, count: int) -> float:
        begin = clock()
        for _ in range(count):
            call()
        return (clock() - begin) / count * 1e6

    for call in calls:
        call()
    counts = [max(1, ceil(_PROCESSOR_MICROSECONDS / max(mean(call, 1), 0.1))) for call in calls]
    rounds = [[mean(call, count) for call, count in zip(calls, counts, strict=True)] for _ in range(_PROCESSOR_ROUNDS)]
    return [list(times) for times in zip(*rounds, strict=True)]


def _nothing() -> None:
    return None


# One call


def call_times(call: Call, warmup: float, rep: float, before: Call = _nothing) -> Sequence[float]:
    """Milliseconds of calls, after `warmup` and for `rep` milliseconds of them, at least one; `before` is not timed.

    Calls that leave work on a GPU are timed by its events, the L2 cache flushed before each; others by the host's
    clock, and caches are as the call before has left them.
    """
    call()  # compiles
    timer = timing.Timer() if timing.in_use() else None
    on_gpu = timer.milliseconds if timer is not None and timer.leaves_work(call) else None

    def timed(count: int) -> Sequence[float]:
        return _on_host(call, count, before) if on_gpu is None else on_gpu(call, count, before)

    began, calls, spent = time.perf_counter(), 0, 0.0  # with the flush, which takes longer than many kernels
    while calls < _ESTIMATES and spent <= rep:
        timed(1)
        calls, spent = calls + 1, (time.perf_counter() - began) * 1e3
    estimate = max(spent / calls, 1e-4)
    for _ in range(max(1, int(warmup / estimate))):
        call()
    return timed(max(1, int(rep / estimate)))


def _on_host(call: Call, count: int, before: Call) -> Sequence[float]:
    times = []
    for _ in range(count):
        before()
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e3)
    return times


def graph_call_times(call: Call, rep: float, before: Call = _nothing) -> Sequence[float]:
    """Milliseconds of a call without what launching it costs, once for each replay of a CUDA graph of several.

    The graph takes about `rep` / 10; caches stay warm.  Without a GPU that PyTorch works on, a launch costs
    microseconds and is done when it returns: there is no graph, and `call_times` are taken.
    """
    torch = torch_on_gpus()
    if torch is None:
        return call_times(call, 0, rep, before)
    with torch.cuda.stream(torch.cuda.Stream()):
        call()
        before()

        def captured(calls: int) -> Callable[[], float]:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for _ in range(calls):
                    before()
                    call()

            def replay() -> float:
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
                graph.replay()
                end.record()
                torch.cuda.synchronize()
                return float(begin.elapsed_time(end)) / calls

            return replay

        few = captured(_ESTIMATES)
        few()
        replay = captured(max(1, int(rep / 10 / max(few(), 1e-4))))
        return [replay() for _ in range(11)][1:]


def quantiles_of(times: Sequence[float], quantiles: Sequence[float]) -> Any:
    """Quantiles of times as a list; a number where there is one."""
    found = np.quantile(np.array(times), list(quantiles)).tolist()
    return found[0] if len(found) == 1 else found
