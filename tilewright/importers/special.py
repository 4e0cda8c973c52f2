"""Functions of mathematical physics and statistics, in float64, of elementary functions and series."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tilewright.graph.core import Value
from tilewright.importers.emitter import Emitter
from tilewright.importers.formulas import log1p, with_sign_of

_FAR = 30.0  # where series in 1 / x of Bessel functions begin
_NEAR_TERMS, _FAR_TERMS = 50, 24
_EULER = 0.5772156649015329
_TINY = 1e-10  # where K is its first term


def _polynomial(emit: Emitter, x: Value, coefficients: Sequence[float]) -> Value:
    """The sum of c_k x^k."""
    total = emit.builder.number(coefficients[-1], x.dtype)
    for coefficient in reversed(coefficients[:-1]):
        total = emit.op("add", emit.op("multiply", total, x), coefficient)
    return total


def _far_series(emit: Emitter, size: Value, order: int, sign: int) -> Value:
    """sqrt(2 / (pi x)) times the sum of sign^k (4 n^2 - 1) (4 n^2 - 9) … / (k! (8 x)^k), for x >= 30."""
    terms = [1.0]
    for k in range(1, _FAR_TERMS):
        terms.append(terms[-1] * sign * (4 * order**2 - (2 * k - 1) ** 2) / (8 * k))
    size = emit.op("maximum", size, _FAR)
    series = _polynomial(emit, emit.op("reciprocal", size), terms)
    return emit.op("divide", series, emit.op("sqrt", emit.op("multiply", size, math.pi / 2)))


def bessel_i(emit: Emitter, x: Value, order: int, scaled: bool) -> Value:
    """The modified Bessel function of the first kind of order 0 or 1; `scaled`: times e^-|x|."""
    size = emit.op("absolute", x)
    half = emit.op("multiply", emit.op("minimum", size, _FAR), 0.5)
    terms = [1 / (math.factorial(k) * math.factorial(k + order)) for k in range(_NEAR_TERMS)]
    near = _polynomial(emit, emit.op("multiply", half, half), terms)
    near = emit.op("multiply", near, half) if order else near
    far = emit.op("multiply", _far_series(emit, size, order, -1), 0.5)
    if scaled:
        near = emit.op("multiply", near, emit.op("exp", emit.op("negate", size)))
    else:
        grown = emit.op("exp", emit.op("multiply", size, 0.5))  # e^|x| may overflow where the result does not
        far = emit.op("multiply", emit.op("multiply", far, grown), grown)
    found = emit.op("where", emit.op("less", size, _FAR), near, far)
    found = emit.op("where", emit.op("isnan", x), x, found)
    return with_sign_of(emit, found, x) if order else found


def bessel_k(emit: Emitter, x: Value, order: int, scaled: bool) -> Value:
    """The modified Bessel function of the second kind of order 0 or 1; `scaled`: times e^x.

    e^x K_n(x) is the integral of e^(-x (cosh t - 1)) cosh(n t) from 0 on, here a sum in steps of 1 / 10.
    """
    steps = np.arange(280) / 10
    weights = np.where(steps == 0, 0.05, 0.1) * np.cosh(order * steps)
    middle = emit.op("clip", x, low=_TINY, high=_FAR)
    exponent = emit.op("multiply", emit.unsqueeze(middle, x.rank), emit.constant(1 - np.cosh(steps)))
    terms = emit.op("multiply", emit.op("exp", exponent), emit.constant(weights))
    found = emit.op("reduce_sum", terms, axes=(x.rank,), keepdims=False)
    if order:
        first = emit.op("reciprocal", x)
    else:
        first = emit.op("subtract", math.log(2) - _EULER, emit.op("log", x))
    far = emit.op("multiply", _far_series(emit, x, order, 1), math.pi / 2)
    found = emit.op("where", emit.op("less", x, _FAR), found, far)
    if not scaled:
        found = emit.op("multiply", found, emit.op("exp", emit.op("negate", x)))
    found = emit.op("where", emit.op("less", x, _TINY), first, found)
    found = emit.op("where", emit.op("equal", x, 0.0), emit.builder.number(math.inf, x.dtype), found)
    return emit.op("where", emit.op("greater_equal", x, 0.0), found, emit.builder.number(math.nan, x.dtype))


def scaled_erfc(emit: Emitter, x: Value) -> Value:
    """e^(x^2) erfc(x): as it stands up to 10, with a square in two parts of which one is exact; then a series."""
    near = emit.op("minimum", x, 10.0)
    high = emit.op("divide", emit.op("round", emit.op("multiply", near, 64.0)), 64.0)
    rest = emit.op("multiply", emit.op("subtract", near, high), emit.op("add", near, high))
    grown = emit.op("multiply", emit.op("exp", emit.op("multiply", high, high)), emit.op("exp", rest))
    # Below -26.7 the square of `high` may overflow alone; then the result does as well.
    near = emit.op("where", emit.op("less", x, -27.0), math.inf, emit.op("multiply", grown, emit.op("erfc", near)))
    far = emit.op("maximum", x, 10.0)
    terms = [1.0]
    for k in range(1, 16):
        terms.append(terms[-1] * -(2 * k - 1) / 2)
    inverse = emit.op("reciprocal", far)
    series = _polynomial(emit, emit.op("multiply", inverse, inverse), terms)
    series = emit.op("multiply", emit.op("multiply", series, inverse), 1 / math.sqrt(math.pi))
    found = emit.op("where", emit.op("less", x, 10.0), near, series)
    return emit.op("where", emit.op("isnan", x), x, found)


def log_ndtr(emit: Emitter, x: Value) -> Value:
    """The logarithm of the normal distribution function."""
    low = emit.op("minimum", x, -1.0)
    tail = emit.op("log", emit.op("multiply", scaled_erfc(emit, emit.op("multiply", low, -math.sqrt(0.5))), 0.5))
    tail = emit.op("subtract", tail, emit.op("multiply", emit.op("multiply", low, low), 0.5))
    high = emit.op("multiply", emit.op("erfc", emit.op("multiply", x, math.sqrt(0.5))), -0.5)
    return emit.op("where", emit.op("less", x, -1.0), tail, log1p(emit, high))


def ndtri(emit: Emitter, p: Value) -> Value:
    """The inverse of the normal distribution function: by erfinv, and in the tails by Newton's method for its
    logarithm, beginning with the tail's first terms."""
    upper = emit.op("greater", p, 0.5)
    q = emit.op("where", upper, emit.op("subtract", 1.0, p), p)
    middle = emit.op("erfinv", emit.op("subtract", 1.0, emit.op("multiply", q, 2.0)))
    middle = emit.op("multiply", middle, -math.sqrt(2))
    small = emit.op("clip", q, low=1e-320, high=0.02)
    wanted = emit.op("log", small)
    root = emit.op("sqrt", emit.op("multiply", wanted, -2.0))
    x = emit.op("divide", emit.op("log", emit.op("multiply", root, math.sqrt(2 * math.pi))), root)
    x = emit.op("subtract", x, root)
    for _ in range(4):
        reached = log_ndtr(emit, x)
        density = emit.op("subtract", emit.op("multiply", emit.op("multiply", x, x), -0.5), math.log(2 * math.pi) / 2)
        slope = emit.op("exp", emit.op("subtract", density, reached))
        x = emit.op("subtract", x, emit.op("divide", emit.op("subtract", reached, wanted), slope))
    found = emit.op("where", emit.op("less", q, 0.02), x, middle)
    found = emit.op("where", emit.op("equal", q, 0.0), emit.builder.number(-math.inf, p.dtype), found)
    found = emit.op("where", upper, emit.op("negate", found), found)
    inside = emit.op("logical_and", emit.op("greater_equal", p, 0.0), emit.op("less_equal", p, 1.0))
    return emit.op("where", inside, found, emit.builder.number(math.nan, p.dtype))
