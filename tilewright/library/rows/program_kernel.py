"""Steps of the reductions in generated row programs: what each lane keeps while a row passes by.

Elements that do not exist come as the neutral element of a reduction, or are told by `inside` (None: all exist).
"""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl
from tilewright.library.functions import maximum, minimum
from tilewright.library.reduce.kernel import largest_finite


@tilewright.jit
def finite(x):
    """The nearest finite number, so that no difference of infinities is taken; NaN stays."""
    return minimum(maximum(x, -largest_finite(x.dtype)), largest_finite(x.dtype))


@tilewright.jit
def moments_step(mean, squares, x, inverse, inside):
    """The mean and the sum of squared deviations of each lane with one more element (Welford, 1962).

    `inverse` is one by the number of elements with this one.
    """
    difference = x - mean
    next_mean = mean + difference * inverse
    next_squares = squares + difference * (x - next_mean)
    if inside is not None:
        next_mean = tl.where(inside, next_mean, mean)
        next_squares = tl.where(inside, next_squares, squares)
    return next_mean, next_squares


@tilewright.jit
def moments_of_lanes(mean, squares, count, inverse, AXIS: tl.constexpr):
    """The mean and the sum of squared deviations of all lanes along an axis, which have `count` elements each
    (Chan, Golub and LeVeque, 1983).  `inverse` is one by the number of all elements."""
    whole = tl.expand_dims(tl.sum(mean * count, AXIS) * inverse, AXIS)
    difference = tl.where(count > 0, mean - whole, 0.0)  # its square may be infinite
    return whole, tl.expand_dims(tl.sum(squares + difference * difference * count, AXIS), AXIS)


@tilewright.jit
def powers_step(largest, total, x):
    """The largest element of each lane, and its sum of e^(element - largest), with one more element."""
    larger = maximum(largest, x)
    shift = finite(larger)
    return larger, total * tl.exp(finite(largest) - shift) + tl.exp(x - shift)


@tilewright.jit
def powers_of_lanes(largest, total, AXIS: tl.constexpr):
    """The largest element of all lanes along an axis, and the sum of e^(element - largest)."""
    whole = tl.expand_dims(tl.reduce(largest, AXIS, maximum), AXIS)
    return whole, tl.expand_dims(tl.sum(total * tl.exp(finite(largest) - finite(whole)), AXIS), AXIS)
