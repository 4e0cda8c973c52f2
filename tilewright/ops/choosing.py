"""Chooses among candidates of an operation on arrays: by times on record, or by timing the close ones once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilewright.errors import TilewrightError
from tilewright.measure import timers
from tilewright.measure.choosing import Choice, Measured, Records, TuningProblem, attempt
from tilewright.measure.keys import device_name, problem_key
from tilewright.ops import arrays
from tilewright.ops.arrays import ArrayView
from tilewright.runtime.cuda.device import device


def choose(
    operation: str,
    shape: str,
    ordinal: int,
    labels: Sequence[str],
    order: Sequence[int],
    close: Sequence[int],
    used: Sequence[ArrayView],
    measure: Callable[[], Measured] | None,
) -> Choice | None:
    """The candidate to take on a GPU of the problem that `shape` tells from others of an operation.

    `labels` tell the candidates apart, `order` has their numbers, the likeliest first, `close` those worth timing:
    times of one record are of one set of them, as problems of several sizes may share the text.  What `measure` finds
    of them goes on record; None: nothing is timed.  The result is None while the stream of the arrays that are `used`
    is captured and something should be timed: the likeliest does until then.
    """
    timed = sorted(labels[index] for index in close)
    key = problem_key(operation, arrays.target_at(ordinal), ("library", "ops"), shape, *timed)
    problem = TuningProblem({key: f"{operation} {shape}"}, labels, order, close)
    gpu = device(ordinal)
    records = Records(device_name(gpu), address=gpu.address)
    records.look_up(problem)
    if not problem.is_known and measure is not None:
        if arrays.capturing(arrays.stream_of(used), ordinal):
            return None
        records.time(problem, lambda key: measure())
    return problem.choice()


def usable(
    calls: Mapping[int, Callable[[], Any]], failures: dict[int, TilewrightError]
) -> dict[int, Callable[[], Any]]:
    """The calls that run, by the numbers of their candidates; what others raise goes to `failures`, and is raised when
    none runs."""
    done = attempt(calls, failures)
    if not done:
        raise failures[max(failures)]
    return {number: calls[number] for number in done}


def timed(
    calls: Mapping[int, Callable[[], Any]], ordinal: int, failures: Mapping[int, TilewrightError] | None = None
) -> Measured:
    """The times of calls on a GPU, by the numbers of their candidates; raises what the last one raises when none runs.

    Their results go to memory of their own: the caller's may be an operand, too.  `failures` are of candidates that
    have no call.
    """
    failures = dict(failures or {})
    found = usable(calls, failures)
    with device(ordinal).active():
        return Measured(timers.alone(found), failures, "L2 flushed before each call")
