"""The graph op `choose`: a token of each row of logits, the most probable or a drawn one; its type and meaning.

    logits        [rows, n] float32
    temperatures  [rows] float32     0: the largest logit's place, the first one of equals
    shares        [rows] float32     a random number from 0 to below 1
    floors        [rows] float32     min-p: what a power must be at least, of which the largest is 1
    portions      [rows] float32     top-p: what the fewest powers that count, the largest, hold of their sum; 1: all
    counts        [rows] int32       top-k: how many powers count, the largest; 0: all
    result        [rows] int32       -1 where a logit is NaN or infinite (minus infinity alone may be there)

Powers are e^((logit - largest) / temperature).  Of those that `counts` leaves the ones that `portions` leaves, and of
these the ones that are not below the floor count; of equals the first do.  The drawn place is the first one in which
the running sum of what counts passes its share of the whole.
"""

from __future__ import annotations

import numpy as np

from tilewright.dtypes import float32, int32
from tilewright.errors import ShapeError
from tilewright.graph.inference import Attributes, Inputs, Types, value
from tilewright.graph.semantics import Array, Arrays


def choose_type(inputs: Inputs, attributes: Attributes) -> Types:
    """Raises `ShapeError` for operands that are not of their types or do not have the same rows."""
    logits, *numbers = (value(inputs, index) for index in range(6))
    if any(item.dtype != float32 for item in (logits, *numbers[:-1])) or numbers[-1].dtype != int32:
        raise ShapeError(f"{logits!r} and what tokens are chosen by are float32, and counts int32")
    if logits.rank != 2 or any(item.shape != logits.shape[:1] for item in numbers):
        raise ShapeError(f"{logits!r} is no matrix, or {', '.join(map(repr, numbers))} are not of its rows")
    return [(int32, logits.shape[:1])]


def choose(inputs: Arrays, attributes: Attributes) -> Array:
    """Row by row, with sums in float64."""
    logits, *numbers = (np.asarray(item, np.float64) for item in inputs)
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
