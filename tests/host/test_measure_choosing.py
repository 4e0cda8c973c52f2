"""Choosing among candidates: which are close, what is timed, what decides, and how it is put on record."""

from __future__ import annotations

import contextvars
import fcntl
import logging
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright.errors import LaunchError, TilewrightError
from tilewright.measure import timers
from tilewright.measure.choosing import Measured, Records, TuningProblem, attempt, closest, ranked
from tilewright.measure.keys import problem_key
from tilewright.measure.record import Timing
from tilewright.runtime import safe_files
from tilewright.runtime.cuda import timing
from tilewright.settings import settings
from tilewright.targets.cpu.target import CPUTarget

LABELS = ["a", "b", "c", "d"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[None]:
    with settings.scope(cache_directory=tmp_path):
        yield


def problem(order: list[int] = [2, 0, 1, 3], close: list[int] = [2, 0, 1], keys: str = "k") -> TuningProblem:  # noqa: B006
    return TuningProblem({key: f"matmul {key}" for key in keys}, LABELS, order, close)


# Ranking


def test_effort_decides_how_many_are_close() -> None:
    seconds = [1.0, 1.4, 1.6, 2.6, *(1.1 + 1e-3 * n for n in range(20))]
    close = [closest(seconds, effort) for effort in (0, 1, 2, 3)]
    assert [len(each) for each in close] == [1, 8, 16, 24] and all(each[0] == 0 for each in close)
    assert closest(seconds[:4], 1) == [0, 1] and closest(seconds[:4], 2) == [0, 1, 2]
    assert [24 in closest([*seconds, 9.0], effort, [24]) for effort in (0, 1, 2, 3)] == [False, True, True, True]
    assert closest([1.0, 9.0, 1.2], 1, [0, 1]) == [0, 2, 1]  # none twice


def test_ranks_of_random_estimates(rng: np.random.Generator) -> None:
    for _ in range(50):
        seconds = rng.choice([1.0, 1.25, 1.5, 2.0, 4.0], rng.integers(1, 12)).tolist()
        within, most = float(rng.choice([1.0, 1.3, 2.0])), int(rng.integers(1, 12))
        found = ranked(seconds, within, most)
        least = [n for n in range(len(seconds)) if seconds[n] <= within * min(seconds)]
        assert found == sorted(least, key=lambda n: (seconds[n], n))[:most]
    assert ranked([0.0, -1.0, 2.0], most=2) == [1, 0]


# Choosing


def test_without_times_the_likeliest_is_taken() -> None:
    choice = problem().choice("no GPU")
    assert (choice.index, choice.source, choice.reason) == (2, "estimate", "no GPU") and not choice.microseconds
    assert TuningProblem({"k": ""}, ["a"], [0], [0]).choice().source == "only"


def test_what_a_candidate_raises_is_reported_once_for_all_sizes(caplog: pytest.LogCaptureFixture) -> None:
    sizes = {"few": "matmul rows=1", "many": "matmul rows=64"}
    given = TuningProblem(sizes, ["a", "b", "c"], [0, 1, 2], [0, 1, 2])
    with caplog.at_level(logging.WARNING, "tilewright.measure"):
        Records("gpu").time(given, lambda key: Measured({1: 1.0, 2: 2.0}, {0: LaunchError("too large")}, "by hand"))
    assert caplog.text.count("a cannot be used: LaunchError: too large") == 1 and len(given.times) == 2
    assert given.choice().index == 1 and 0 in given.choice().failures


def test_the_fastest_is_timed_once_and_recorded(caplog: pytest.LogCaptureFixture) -> None:
    def measure(key: str) -> Measured:
        return Measured({2: 3.00049, 1: 2.0}, {0: LaunchError("too large")}, "by hand")

    records, first = Records("gpu"), problem()
    records.look_up(first)
    assert not first.is_known and first.is_open
    with caplog.at_level(logging.WARNING, "tilewright.measure"):
        records.time(first, measure)
    assert "matmul k: a cannot be used: LaunchError: too large" in caplog.text
    choice = first.choice()
    assert (choice.index, choice.source) == (1, "timed") and choice.microseconds == pytest.approx({1: 2.0, 2: 3.0})
    assert choice.failures == {0: "LaunchError: too large"} and choice.reason == "fastest of 2 timed on gpu, by hand"
    again = problem()
    Records("gpu").look_up(again)
    assert again.is_known and again.choice().source == "recorded" and again.choice().index == 1
    more = problem(close=[2, 0, 1, 3])
    Records("gpu").look_up(more)
    assert not more.is_known and not more.is_open and more.choice().index == 1
    other = problem()
    Records("other gpu").look_up(other)
    assert not other.is_known and other.choice().source == "estimate"


def test_processes_time_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One that waited for another finds what that has timed; nobody waits for one that hangs, or for another GPU."""
    waiting, waits = problem(), []
    monkeypatch.setattr(safe_files, "_LONGEST_WAIT", 0.01)
    monkeypatch.setattr(safe_files.time, "sleep", lambda seconds: waits.append(seconds))
    lock = tmp_path / "timings-00-1b-00.lock"

    def elsewhere() -> None:
        for other in "no":
            Records("gpu", address="00:1b:00").time(problem(keys=other), measure)
            waits.append(-1.0)

    def measure(key: str) -> Measured:
        with open(lock) as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if key == "k":
            Records("gpu", address="00:3b:00").time(problem(keys="m"), measure)
            assert not waits
            thread = threading.Thread(target=contextvars.copy_context().run, args=(elsewhere,))
            thread.start()  # what is timed may time others itself, in its own thread
            thread.join()
        return Measured({2: 3.0, 1: 2.0, 0: 4.0}, {}, "")

    Records("gpu", address="00:1b:00").time(problem(), measure)
    assert waits[0] > 0 and waits[-2:] == [-1.0, -1.0]  # the second did not wait again
    (record,) = [each for each in caplog.records if each.name == "tilewright.cache"]
    assert f"another process has held {lock} for 0.01 s" in record.getMessage()
    Records("gpu", address="00:1b:00").time(waiting, lambda key: pytest.fail("timed again"))
    assert (waiting.choice().source, waiting.choice().index) == ("recorded", 1)
    with open(lock) as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_all_sizes_decide_together() -> None:
    found = problem(keys="kl")
    times = {"k": {2: 1.0, 0: 3.0, 1: 2.0}, "l": {2: 9.0, 0: 2.0, 1: 8.0}}
    records = Records("gpu")
    records.time(found, lambda key: Measured(times[key], {}, ""))
    assert found.choice().index == 0 and found.choice().microseconds[1] == pytest.approx(4.0)
    half = problem(keys="km")
    records.look_up(half)
    assert half.is_open and half.choice().source == "estimate"


def test_what_failed_for_one_size_is_not_taken() -> None:
    found = problem(keys="kl")
    Records("gpu").time(found, lambda key: Measured({0: 1.0, 1: 5.0}, {2: LaunchError("no")} if key == "k" else {}, ""))
    assert found.choice().index == 0 and 2 in found.choice().failures
    all_fail = problem(keys="n")
    Records("gpu").time(all_fail, lambda key: Measured({}, {2: LaunchError("no"), 0: LaunchError("no")}, ""))
    assert (all_fail.choice().index, all_fail.choice().source) == (1, "estimate")


def test_given_times_come_before_those_of_the_cache() -> None:
    Records("gpu").cache.add(Timing("gpu", "k", "", {"a": 1.0, "b": 2.0, "c": 3.0}))
    for device in ("gpu", None):
        given = Records(device, [Timing("far gpu", "k", "", {"a": 3.0, "b": 1.0, "c": 3.0})])
        found = problem()
        given.look_up(found)
        assert found.choice().index == 1 and "far gpu" in found.choice().reason


def test_what_cannot_be_done_is_left_out() -> None:
    def fail() -> int:
        raise LaunchError("too large")

    failures: dict[int, TilewrightError] = {}
    assert attempt({3: lambda: 1, 1: fail, 2: lambda: 7}, failures) == {3: 1, 2: 7} and list(failures) == [1]
    with pytest.raises(ZeroDivisionError):
        attempt({0: lambda: 1 // 0}, failures)


def test_keys_depend_on_all_that_times_do(monkeypatch: pytest.MonkeyPatch) -> None:
    target = CPUTarget.named("x86-64-v4")
    keys = [
        problem_key("k", target, (), "a"),
        problem_key("k", target, (), "a", 1),
        problem_key("l", target, (), "a"),
        problem_key("k", target, ("library",), "a"),
        problem_key("k", CPUTarget.named("x86-64-v3"), (), "a"),
    ]
    assert len(set(keys)) == len(keys) and keys[0] == problem_key("k", target, (), "a")
    monkeypatch.setattr("tilewright.measure.keys.kernel_digest", lambda family: "another compiler")
    assert problem_key("k", target, (), "a") not in keys


# Timers


def test_launches_in_graphs_go_over_all_copies_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    enqueued: list[tuple[str, int, int]] = []
    counts: list[int] = []

    def replay_times(work: Any, rounds: int) -> list[list[float]]:
        counts.append(rounds)
        for enqueue in work:
            enqueue(7)
        return [[0.012, 0.006, 0.009], [0.006, 0.003, 0.006]]

    def launches(name: str, copies: int) -> list[timers.Launch]:
        return [lambda stream, copy=copy: enqueued.append((name, copy, stream)) for copy in range(copies)]

    monkeypatch.setattr(timing, "replay_times", replay_times)
    found = timers.in_graphs({4: launches("a", 3), 5: launches("b", 3)}, 1e-3)
    assert enqueued == [("a", 0, 7), ("a", 1, 7), ("a", 2, 7), ("b", 0, 7), ("b", 1, 7), ("b", 2, 7)]
    assert found == pytest.approx({4: 3.0, 5: 2.0}) and counts == [5]
    enqueued.clear()
    timers.in_graphs({0: launches("a", 1), 1: launches("b", 1)}, 0.0)
    assert len(enqueued) == 2 * 64 and counts[1] == 21
    assert timers.in_graphs({}, 0.0) == {}


def test_calls_alone_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[int] = []

    class Timer:
        def milliseconds(self, call: Any, count: int, before: Any) -> list[float]:
            number = call()
            called.append(number)
            return [(3.0, 1.0)[number]] * count

    monkeypatch.setattr(timing, "Timer", Timer)
    assert timers.alone({0: lambda: 0, 1: lambda: 1}) == {0: 3000.0, 1: 1000.0} and called == [0, 1] * 4


def test_calls_on_the_host() -> None:
    calls: list[str] = []
    times = timers.call_times(lambda: (calls.append("call"), time.sleep(1e-3)), 2, 8, lambda: calls.append("before"))
    assert len(times) >= 1 and min(times) >= 1.0 and calls.count("call") > calls.count("before") >= len(times)
    assert timers.quantiles_of([3.0, 1.0, 2.0], [0.5]) == 2.0
    assert timers.quantiles_of([3.0, 1.0, 2.0], [0.5, 0.0]) == [2.0, 1.0]


@pytest.mark.parametrize("one_thread", [False, True])
def test_calls_on_the_cpu_are_interleaved(one_thread: bool) -> None:
    order: list[str] = []
    calls = [lambda: order.append("quick"), lambda: (order.append("slow"), sum(range(200_000)))]
    quick, slow = timers.on_processor(calls, one_thread)
    assert len(quick) == len(slow) == 15 and np.median(slow) > 10 * np.median(quick) > 0
    rounds = "".join(name[0] for name in order)
    assert len(re.findall("q+s+", rounds)) >= 15  # each round has calls of both
