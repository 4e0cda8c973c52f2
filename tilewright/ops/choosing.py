"""Chooses among candidates of an operation on arrays: by times on record, or by timing the close ones once."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tilewright import forks
from tilewright.errors import TilewrightError
from tilewright.measure import timers
from tilewright.measure.choosing import Choice, Measured, Records, TuningProblem, attempt
from tilewright.measure.keys import device_name, problem_key
from tilewright.ops import arrays
from tilewright.ops.arrays import ArrayView
from tilewright.runtime.cuda.device import device

Call = Callable[[], Any]


@dataclass(frozen=True)
class TrialCalls:
    """How candidates are timed, by their numbers: `call` gives calls whose results go to memory of their own, as the
    caller's may be an operand, too.  With `launches`, which are on several copies of the weights, they are timed as in
    a model, where weights come from memory; `expected` are the seconds of the quickest."""

    call: Callable[[int], Call]
    launches: Callable[[int], Sequence[timers.Launch]] | None = None
    expected: float = 0.0


@dataclass(eq=False)
class Alternatives:
    """Candidates of an operation on a GPU (None: of kernels that are interpreted), of which one is chosen at the first
    call of a problem, which `shape` tells from others of the operation.

    `labels` tell the candidates apart, `order` has their numbers, the likeliest first, `close` those worth timing:
    times of one record are of one set of them, as problems of several sizes may share the text.
    """

    operation: str
    shape: str
    ordinal: int | None
    labels: Sequence[str]
    order: Sequence[int]
    close: Sequence[int]
    choice: Choice | None = None
    seconds: float = 0.0  # that timing took
    _lock: Any = field(default_factory=forks.lock)

    @property
    def index(self) -> int:
        """The candidate that was chosen, or will be when nothing is timed."""
        return self.order[0] if self.choice is None else self.choice.index

    def choose(self, used: Sequence[ArrayView], trials: Callable[[], TrialCalls] | None) -> int:
        """The candidate to take for the arrays that are `used`, by times on record or those that `trials` give (None:
        nothing is timed), which go on record; raises what the last one raises when none runs.

        While the arrays' stream is captured nothing is timed: the likeliest is taken until then.
        """
        if self.choice is None and self.ordinal is not None:
            with self._lock:
                if self.choice is None:
                    self.choice = self._chosen(self.ordinal, used, trials)
        return self.index

    def _chosen(
        self, ordinal: int, used: Sequence[ArrayView], trials: Callable[[], TrialCalls] | None
    ) -> Choice | None:
        timed = sorted(self.labels[index] for index in self.close)
        key = problem_key(self.operation, arrays.target_at(ordinal), ("library", "ops"), self.shape, *timed)
        problem = TuningProblem({key: f"{self.operation} {self.shape}"}, self.labels, self.order, self.close)
        gpu = device(ordinal)
        records = Records(device_name(gpu), address=gpu.address)
        records.look_up(problem)
        if not problem.is_known and trials is not None:
            if arrays.capturing(arrays.stream_of(used), ordinal):
                return None
            began, found = time.perf_counter(), trials
            records.time(problem, lambda key: self._measured(ordinal, found()))
            self.seconds = time.perf_counter() - began
        return problem.choice()

    def _measured(self, ordinal: int, trials: TrialCalls) -> Measured:
        failures: dict[int, TilewrightError] = {}
        calls = attempt({number: partial(trials.call, number) for number in self.close}, failures)
        usable = attempt(calls, failures)  # runs each once
        if not usable:
            raise failures[max(failures)]
        with device(ordinal).active():
            if trials.launches is None:
                times = timers.alone({number: calls[number] for number in usable})
                return Measured(times, failures, "L2 flushed before each call")
            times = timers.in_graphs({number: trials.launches(number) for number in usable}, trials.expected)
            return Measured(times, failures, "in a graph, weights cold")


def described(alternatives: Alternatives) -> str:
    """How the choice was made, in words."""
    source = alternatives.choice.source if alternatives.choice else ""
    words = {"timed": f"timed in {alternatives.seconds:.1f} s", "recorded": "timed by an earlier program"}
    return words.get(source, "first by cost")
