"""Chooses one of several candidates of a problem, with the reason: ranks by estimate, times the close ones once.

problem = TuningProblem({problem_key(…): "matmul 64x4096x4096"}, labels, ranked(seconds), closest(seconds, effort))
records = Records(device_name(gpu))
records.look_up(problem)
if not problem.is_known:
    records.time(problem, lambda key: Measured(microseconds, failures, "L2 flushed before each call"))
choice = problem.choice()
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeVar

from tilewright.errors import TilewrightError
from tilewright.measure.record import Timing, TimingCache
from tilewright.runtime import safe_files
from tilewright.settings import settings

logger = logging.getLogger("tilewright.measure")

# By effort: candidates up to so many times the least estimate are timed (None: all), and at most so many.
CLOSE: dict[int, tuple[float | None, int]] = {0: (1.0, 1), 1: (1.5, 8), 2: (2.5, 16), 3: (None, 1000)}
_LOCK_FILE = "timings{}.lock"  # in the cache directory, for each GPU
Result = TypeVar("Result")


@dataclass(frozen=True)
class Choice:
    """The candidate that was taken: `source` is ``only``, ``estimate``, ``timed`` or ``recorded`` (timed before).

    `microseconds` and `failures` are by the candidates' numbers; `reason` is for people.
    """

    index: int
    source: str
    reason: str = ""
    microseconds: Mapping[int, float] = field(default_factory=dict)
    failures: Mapping[int, str] = field(default_factory=dict)


class Measured(NamedTuple):
    """Microseconds of candidates by their numbers, what those raised that cannot be used, and how it was timed.

    `quantiles` of their runs, in microseconds, are for people who ask for them.
    """

    microseconds: Mapping[int, float]
    failures: Mapping[int, Exception]
    context: str
    quantiles: Mapping[int, Sequence[float]] = {}


@dataclass
class TuningProblem:
    """Candidates, one of which is to be taken, and what is known of their times.

    `keys` are those of the record, with words for people: one for each example of sizes that are known at run time
    alone; the geometric mean decides.  `labels` tell the candidates apart on record, `order` has their numbers, the
    likeliest first, `close` those that are worth timing.
    """

    keys: Mapping[str, str]
    labels: Sequence[str]
    order: Sequence[int]
    close: Sequence[int]
    times: list[Timing] = field(default_factory=list)  # of the keys that are on record
    source: str = "recorded"

    @property
    def is_known(self) -> bool:
        """Whether timing tells nothing more: the record has all close candidates, or one alone is close."""
        wanted = {self.labels[index] for index in self.close}
        known = [{*timing.microseconds, *timing.failures} for timing in self.times]
        return len(wanted) < 2 or (len(known) == len(self.keys) and all(wanted <= labels for labels in known))

    @property
    def is_open(self) -> bool:
        """Whether several candidates are close and nothing on record decides among them."""
        return len(self.close) > 1 and len(self.times) < len(self.keys)

    def choice(self, untimed: str = "") -> Choice:
        """The fastest where times are known, else the likeliest that can be used; `untimed` says why there are none."""
        microseconds, failures = self._by_number()
        if len(self.times) < len(self.keys) or not microseconds:
            usable = next((index for index in self.order if index not in failures), self.order[0])
            return Choice(usable, "only" if len(self.order) == 1 else "estimate", untimed, {}, failures)
        best = min(microseconds, key=lambda index: microseconds[index])
        reason = f"fastest of {len(microseconds)} timed on {self.times[0].device}, {self.times[0].context}"
        return Choice(best, self.source, reason, microseconds, failures)

    def by_number(self, timing: Timing) -> dict[int, float]:
        """The times of one key by the candidates' numbers."""
        return {n: timing.microseconds[label] for n, label in enumerate(self.labels) if label in timing.microseconds}

    def _by_number(self) -> tuple[dict[int, float], dict[int, str]]:
        """Microseconds (the geometric mean over the keys) and failures by the candidates' numbers."""
        failures = {
            index: timing.failures[label]
            for index, label in enumerate(self.labels) for timing in self.times if label in timing.failures
        }  # fmt: skip
        microseconds = {}
        for index, label in enumerate(self.labels):
            values = [timing.microseconds[label] for timing in self.times if label in timing.microseconds]
            if index not in failures and values and len(values) == len(self.times):
                microseconds[index] = typical_time(values)
        return microseconds, failures


def typical_time(microseconds: Sequence[float]) -> float:
    """What times of several sizes count as: their geometric mean."""
    return math.exp(sum(math.log(max(each, 1e-3)) for each in microseconds) / len(microseconds))


class _Timing(threading.local):
    """The lock files that this thread holds."""

    def __init__(self) -> None:
        self.paths: set[Path] = set()


_TIMING = _Timing()


class Records:
    """Times to choose by, of one device: those that are given, then those of the cache directory, to which more go."""

    def __init__(self, device: str | None, given: Iterable[Timing] = (), address: str = "") -> None:
        """`device` None: no device is there, and the given times may be of any.  `address` tells it from other devices
        of its name."""
        self.device = device
        self._lock_file = _LOCK_FILE.format(f"-{address.replace(':', '-')}" if address else "")
        self._given = TimingCache(given)

    @property
    def cache(self) -> TimingCache:
        """The times of the cache directory."""
        return TimingCache.of_settings()

    def look_up(self, problem: TuningProblem) -> None:
        """Let a problem have the times that are on record."""
        problem.times = [timing for key in problem.keys if (timing := self._find(key)) is not None]

    def _find(self, key: str) -> Timing | None:
        return self._given.find(key, self.device) or self._given.find(key, None) or self.cache.find(key, self.device)

    def time(self, problem: TuningProblem, measure: Callable[[str], Measured]) -> None:
        """Put on record what ``measure(key)`` finds of the close candidates, for each key of a problem.

        Threads and processes wait for each other on a device, so that none disturbs another there; one that waited may
        find on record what it was about to time.  What is timed may time others itself.
        """
        with self._alone_on_device():
            self.look_up(problem)
            if problem.is_known:
                return
            problem.times = [self._put(problem, key, measure(key)) for key in problem.keys]
            problem.source = "timed"
            failures = {label: (timing, text) for timing in problem.times for label, text in timing.failures.items()}
            for label, (timing, text) in failures.items():  # of a candidate once, whatever the sizes
                logger.warning("%s: %s cannot be used: %s", problem.keys[timing.key], label, text)

    @contextmanager
    def _alone_on_device(self) -> Iterator[None]:
        path = safe_files.private_folder(settings.cache_directory) / self._lock_file
        if path in _TIMING.paths:
            yield
            return
        with safe_files.exclusive(path):
            _TIMING.paths.add(path)
            try:
                yield
            finally:
                _TIMING.paths.discard(path)

    def _put(self, problem: TuningProblem, key: str, found: Measured) -> Timing:
        labels, name = problem.labels, problem.keys[key]
        failures = {labels[index]: f"{type(error).__name__}: {error}" for index, error in found.failures.items()}
        microseconds = {labels[index]: round(value, 3) for index, value in found.microseconds.items()}
        quantiles = {labels[index]: list(values) for index, values in found.quantiles.items()}
        timing = Timing(str(self.device), key, name, microseconds, failures, found.context, quantiles)
        return self.cache.add(timing) if microseconds or failures else timing


def ranked(values: Sequence[float], within: float | None = None, most: int | None = None) -> list[int]:
    """The numbers of the least `values` (estimated times) in order: at most so many, up to `within` times the least."""
    order = sorted(range(len(values)), key=lambda index: values[index])
    if within is not None:
        order = [index for index in order if values[index] <= within * values[order[0]]]
    return order[:most]


def closest(seconds: Sequence[float], effort: int, guessed: Collection[int] = ()) -> list[int]:
    """The numbers of the candidates that the estimates cannot tell apart at an effort, the likeliest first.

    Those whose estimates are guesses are among them but at effort 0.
    """
    close = ranked(seconds, *CLOSE[effort])
    return close + [index for index in ranked(seconds) if effort and index in guessed and index not in close]


def attempt(work: Mapping[int, Callable[[], Result]], failures: dict[int, TilewrightError]) -> dict[int, Result]:
    """What each piece of work returns; what those raise that cannot be done goes to `failures`."""
    results = {}
    for number, run in work.items():
        try:
            results[number] = run()
        except TilewrightError as error:
            failures[number] = error
    return results
