"""The graph op `choose`: a token of each row of logits, the most probable or a drawn one; its type and meaning.

    logits        [rows, n] float32
    temperatures  [rows] float32     0: the largest logit's place, the first one of equals
    shares        [rows] float32     a random number from 0 to below 1
    floors        [rows] float32     min-p: what a power must be at least, of which the largest is 1
    portions      [rows] float32     top-p: what the fewest powers that count, the largest, hold of their sum; 1: all
    counts        [rows] int32       top-k: how many powers count, the largest; 0: all
    histories     [rows] int32       whose texts change the logits before all else: rows of the two tables; 0: nobody's
    presences, frequencies, repetitions  [rows] float32     by how much
    seen          [m * n] int32      how often each token is in a text's output, and 2^30 more if it is in its prompt
    biases        [m * n] float32    what is added to each logit
    result        [rows] int32       -1 where a logit is NaN or infinite (minus infinity alone may be there)

A logit gets its bias; if its token was seen, it is divided by `repetitions` (multiplied if it is negative); if the
token is in the output, `presences` and as many times `frequencies` are subtracted.  Powers are
e^((logit - largest) / temperature).  Of those that `counts` leaves the ones that `portions` leaves, and of these the
ones that are not below the floor count; of equals the first do.  The drawn place is the first one in which the running
sum of what counts passes its share of the whole.
"""

from __future__ import annotations

import numpy as np

from tilewright.dtypes import float32, int32
from tilewright.errors import ShapeError
from tilewright.graph.inference import Attributes, Inputs, Types, value
from tilewright.graph.semantics import Array, Arrays

IN_PROMPT = 1 << 30


def choose_type(inputs: Inputs, attributes: Attributes) -> Types:
    """Raises `ShapeError` for operands that are not of their types or do not have the same rows."""
    logits, *numbers, seen, biases = (value(inputs, index) for index in range(12))
    whole = [numbers[4], numbers[5], seen]
    if any(item.dtype != (int32 if item in whole else float32) for item in (logits, *numbers, seen, biases)):
        raise ShapeError(f"{logits!r} and what tokens are chosen by are float32; counts, histories and seen int32")
    if logits.rank != 2 or any(item.shape != logits.shape[:1] for item in numbers):
        raise ShapeError(f"{logits!r} is no matrix, or {', '.join(map(repr, numbers))} are not of its rows")
    if seen.rank != 1 or seen.shape != biases.shape:
        raise ShapeError(f"{seen!r} and {biases!r} are no tables of one size")
    return [(int32, logits.shape[:1])]


def choose(inputs: Arrays, attributes: Attributes) -> Array:
    """Row by row, with sums in float64."""
    logits = _changed(inputs)
    numbers = [np.asarray(item, np.float64) for item in inputs[1:6]]
    result = np.full(len(logits), -1, np.int32)
    for row, (given, temperature, share, floor, portion, count) in enumerate(zip(logits, *numbers, strict=True)):
        greatest = given.max()
        if not np.isfinite(greatest):
            continue
        result[row] = np.argmax(given)
        if temperature > 0:
            powers = np.exp((given - greatest) / max(temperature, 1e-30))
            powers[~_that_count(given, powers, portion, int(count))] = 0.0
            powers[powers < floor] = 0.0
            sums = np.cumsum(powers)
            passed = (sums > share * sums[-1]) & (powers > 0)
            if passed.any():
                result[row] = np.argmax(passed)
    return result


def _changed(inputs: Arrays) -> Array:
    """The logits, float64, with what the rows' texts change."""
    logits = np.array(inputs[0], np.float64)
    tables = [np.reshape(table, (-1, logits.shape[1])) for table in inputs[10:12]]
    for row, (history, presence, frequency, repetition) in enumerate(zip(*inputs[6:10], strict=True)):
        if history > 0:
            seen, biases = (table[int(history)] for table in tables)
            scores, times = logits[row] + biases, seen & (IN_PROMPT - 1)
            repeated = np.where(scores > 0, scores / float(repetition), scores * float(repetition))
            scores = np.where(seen > 0, repeated, scores)
            logits[row] = scores - np.where(times > 0, float(presence) + float(frequency) * times, 0.0)
    return logits


def _that_count(logits: Array, powers: Array, portion: float, count: int) -> Array:
    """Which powers of a row top-k and top-p leave."""
    left = np.ones(len(logits), bool)
    if not count and portion >= 1.0:
        return left
    order = np.argsort(-logits, kind="stable")
    left[order[count or len(order) :]] = False
    if portion < 1.0:
        ordered = np.where(left, powers, 0.0)[order]
        left[order[np.cumsum(ordered) - ordered >= portion * ordered.sum()]] = False
    return left
