"""Which form serves a problem: the first by cost, or the fastest of the close ones, timed at most once.

Times are kept in the timing cache (`tune.cache`) under the GPU's name, the problem's shape class, and a digest of the
sources that make forms and rank them: after a change of these, problems are timed again.
"""

from __future__ import annotations

import hashlib
import logging
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from tilewright.errors import TilewrightError
from tilewright.runtime.cuda.device import device as device_of
from tilewright.runtime.cuda.streams import LEGACY_DEFAULT
from tilewright.runtime.cuda.timing import Timer, replay_times
from tilewright.targets.llvm.cache import source_digest
from tilewright.tune.cache import Timing, TimingCache

logger = logging.getLogger("tilewright.ops")

ROUNDS = 3
REPLAYS = 21
_MILLISECONDS = 10.0  # of one candidate in one round: the clock has to fall as it does when a product is used
Run = Callable[[], Any]
Launch = Callable[[int], Any]  # on a stream


@dataclass(frozen=True)
class Chain:
    """Launches that follow each other, each on memory of its own: as cold, and as close, as in a model that runs."""

    ordinal: int  # of the GPU
    launches: tuple[Launch, ...]

    def __call__(self) -> None:
        """The first, to see that it runs."""
        self.launches[0](LEGACY_DEFAULT)

    def enqueue(self, stream: int) -> None:
        """All of them."""
        for launch in self.launches:
            launch(stream)


@dataclass
class Choice:
    """What was chosen among candidates and how: `source` is "cost", "timed" or "kept" (timed by an earlier program).

    `microseconds` are the medians of what was timed, by the candidates' text; `failures` what could not be run.
    """

    index: int
    source: str
    microseconds: dict[str, float] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)


@cache
def _digest() -> str:
    return source_digest("library", "ops")


def _key(kind: str, key: str, names: Sequence[str]) -> str:
    parts = repr((kind, key, tuple(names), _digest()))
    return f"{kind}-{hashlib.sha256(parts.encode()).hexdigest()[:40]}"


def kept(kind: str, device: str, key: str, names: Sequence[str]) -> Choice | None:
    """The choice that an earlier call kept for these candidates."""
    found = TimingCache.of_settings().find(_key(kind, key, names), device)
    times = {name: time for name, time in found.microseconds.items() if name in names} if found is not None else {}
    if found is None or not times:
        return None
    return Choice(names.index(min(times, key=lambda name: times[name])), "kept", times, dict(found.failures))


def choose(kind: str, device: str, key: str, names: Sequence[str], prepare: Callable[[int], Run | Chain]) -> Choice:
    """The fastest of the candidates with these names; `prepare(index)` compiles one and gives a call or a chain of it.

    A candidate that cannot be built or run is left out and named in `failures`.  Raises its error when none runs.
    """
    runs: dict[int, Run | Chain] = {}
    failures: dict[str, str] = {}
    for index, name in enumerate(names):
        try:
            runs[index] = prepare(index)
            runs[index]()
        except TilewrightError as error:
            if index + 1 == len(names) and not runs:
                raise
            failures[name] = f"{type(error).__name__}: {error}"
            logger.warning("%s %s: %s cannot be used: %s", kind, key, name, error)
    chains = {index: run for index, run in runs.items() if isinstance(run, Chain)}
    times = _in_sequence(chains) if chains else _medians(runs)
    best = min(times, key=lambda index: times[index])
    measured = {names[index]: value for index, value in times.items()}
    choice = Choice(best, "timed", measured, failures)
    how = "one behind the other over cold weights" if chains else "L2 flushed before each call"
    TimingCache.of_settings().add(Timing(device, _key(kind, key, names), f"{kind} {key}", measured, failures, how))
    logger.info("%s %s: %s of %d candidates", kind, key, names[best], len(names))
    return choice


def _in_sequence(chains: dict[int, Chain]) -> dict[int, float]:
    """Microseconds of a launch of each chain, as graphs that take turns."""
    (ordinal,) = {chain.ordinal for chain in chains.values()}
    with device_of(ordinal).active():
        found = replay_times([chain.enqueue for chain in chains.values()], REPLAYS)
    return {
        index: statistics.median(times) * 1e3 / len(chain.launches)
        for (index, chain), times in zip(chains.items(), found, strict=True)
    }


def _medians(runs: Mapping[int, Run]) -> dict[int, float]:
    """Microseconds of each call, L2 cold; calls take turns, for the chip's clock falls as it warms."""
    timer = Timer()

    def nothing() -> None:
        return None

    first = {index: statistics.median(timer.milliseconds(run, 3, nothing)) for index, run in runs.items()}
    samples: dict[int, list[float]] = {index: [] for index in runs}
    for _ in range(ROUNDS):
        for index, run in runs.items():
            count = max(3, min(60, int(_MILLISECONDS / max(first[index], 1e-3))))
            samples[index] += timer.milliseconds(run, count, nothing)
    return {index: statistics.median(values) * 1e3 for index, values in samples.items()}
