"""The graph op `choose`: a token of each row of logits, the most probable or a drawn one; its type and meaning.

    logits        [rows, n] float32
    temperatures  [rows] float32     0: the largest logit's place, the first one of equals
    shares        [rows] float32     a random number from 0 to below 1
    floors        [rows] float32     min-p: what a power must be at least, of which the largest is 1
    result        [rows] int32       -1 where a logit is NaN or infinite (minus infinity alone may be there)

Powers are e^((logit - largest) / temperature); those below the floor count as none.  The drawn place is the first one
in which the running sum of powers passes its share of the whole.
"""

from __future__ import annotations

import numpy as np

from tilewright.dtypes import float32, int32
from tilewright.errors import ShapeError
from tilewright.graph.inference import Attributes, Inputs, Types, value
from tilewright.graph.semantics import Array, Arrays


def choose_type(inputs: Inputs, attributes: Attributes) -> Types:
    """Raises `ShapeError` for operands that are not float32 or do not have the same rows."""
    logits, *numbers = (value(inputs, index) for index in range(4))
    if any(item.dtype != float32 for item in (logits, *numbers)):
        raise ShapeError(f"{logits!r} and what tokens are chosen by are float32")
    if logits.rank != 2 or any(item.shape != logits.shape[:1] for item in numbers):
        raise ShapeError(f"{logits!r} is no matrix, or {', '.join(map(repr, numbers))} are not of its rows")
    return [(int32, logits.shape[:1])]


def choose(inputs: Arrays, attributes: Attributes) -> Array:
    """Row by row, with sums in float64."""
    logits, temperatures, shares, floors = (np.asarray(item, np.float64) for item in inputs)
    result = np.full(len(logits), -1, np.int32)
    for row, (given, temperature, share, floor) in enumerate(zip(logits, temperatures, shares, floors, strict=True)):
        greatest = given.max()
        if not np.isfinite(greatest):
            continue
        result[row] = np.argmax(given)
        if temperature > 0:
            powers = np.exp((given - greatest) / max(temperature, 1e-30))
            powers[powers < floor] = 0.0
            sums = np.cumsum(powers)
            passed = (sums > share * sums[-1]) & (powers > 0)
            if passed.any():
                result[row] = np.argmax(passed)
    return result
