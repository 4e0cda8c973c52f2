"""Functions of mathematical physics and statistics, in float64, of elementary functions and series."""

from __future__ import annotations

import math

import numpy as np

from tilewright.graph.core import Value
from tilewright.graph.inference import broadcast_shapes
from tilewright.importers.emitter import Emitter
from tilewright.importers.formulas import log1p, polynomial, with_sign_of
from tilewright.importers.report import Unsupported

_ASYMPTOTIC_FROM = 30.0  # where series in 1 / x of Bessel functions begin
_NEAR_TERMS, _FAR_TERMS = 50, 24
_EULER = 0.5772156649015329
_TINY = 1e-10  # where K is its first term


def _far_series(emit: Emitter, size: Value, order: int, sign: int) -> Value:
    """sqrt(2 / (pi x)) times the sum of sign^k (4 n^2 - 1) (4 n^2 - 9) … / (k! (8 x)^k), for x >= 30."""
    terms = [1.0]
    for k in range(1, _FAR_TERMS):
        terms.append(terms[-1] * sign * (4 * order**2 - (2 * k - 1) ** 2) / (8 * k))
    size = emit.op("maximum", size, _ASYMPTOTIC_FROM)
    series = polynomial(emit, emit.op("reciprocal", size), terms)
    return emit.op("divide", series, emit.op("sqrt", emit.op("multiply", size, math.pi / 2)))


def bessel_i(emit: Emitter, x: Value, order: int, scaled: bool) -> Value:
    """The modified Bessel function of the first kind of order 0 or 1; `scaled`: times e^-|x|."""
    size = emit.op("absolute", x)
    half = emit.op("multiply", emit.op("minimum", size, _ASYMPTOTIC_FROM), 0.5)
    terms = [1 / (math.factorial(k) * math.factorial(k + order)) for k in range(_NEAR_TERMS)]
    near = polynomial(emit, emit.op("multiply", half, half), terms)
    near = emit.op("multiply", near, half) if order else near
    far = emit.op("multiply", _far_series(emit, size, order, -1), 0.5)
    if scaled:
        near = emit.op("multiply", near, emit.op("exp", emit.op("negate", size)))
    else:
        grown = emit.op("exp", emit.op("multiply", size, 0.5))  # e^|x| may overflow where the result does not
        far = emit.op("multiply", emit.op("multiply", far, grown), grown)
    found = emit.op("where", emit.op("less", size, _ASYMPTOTIC_FROM), near, far)
    found = emit.op("where", emit.op("isnan", x), x, found)
    return with_sign_of(emit, found, x) if order else found


def bessel_k(emit: Emitter, x: Value, order: int, scaled: bool) -> Value:
    """The modified Bessel function of the second kind of order 0 or 1; `scaled`: times e^x.

    e^x K_n(x) is the integral of e^(-x (cosh t - 1)) cosh(n t) from 0 on, here a sum in steps of 1 / 10.
    """
    steps = np.arange(280) / 10
    weights = np.where(steps == 0, 0.05, 0.1) * np.cosh(order * steps)
    middle = emit.op("clip", x, low=_TINY, high=_ASYMPTOTIC_FROM)
    exponent = emit.op("multiply", emit.unsqueeze(middle, x.rank), emit.constant(1 - np.cosh(steps)))
    terms = emit.op("multiply", emit.op("exp", exponent), emit.constant(weights))
    found = emit.op("reduce_sum", terms, axes=(x.rank,), keepdims=False)
    if order:
        first = emit.op("reciprocal", x)
    else:
        first = emit.op("subtract", math.log(2) - _EULER, emit.op("log", x))
    far = emit.op("multiply", _far_series(emit, x, order, 1), math.pi / 2)
    found = emit.op("where", emit.op("less", x, _ASYMPTOTIC_FROM), found, far)
    if not scaled:
        found = emit.op("multiply", found, emit.op("exp", emit.op("negate", x)))
    found = emit.op("where", emit.op("less", x, _TINY), first, found)
    found = emit.op("where", emit.op("equal", x, 0.0), emit.builder.number(math.inf, x.dtype), found)
    return emit.op("where", emit.op("greater_equal", x, 0.0), found, emit.builder.number(math.nan, x.dtype))


# Coefficients of the Euler-Maclaurin sum: (2 k)! / B_2k.
_OF_ZETA = tuple(
    math.factorial(2 * k) / bernoulli
    for k, bernoulli in enumerate((1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510,
                                   43867 / 798, -174611 / 330, 854513 / 138, -236364091 / 2730), start=1)
)  # fmt: skip
_ZETA_TERMS = 10


def zeta(emit: Emitter, x: Value, q: Value) -> Value:
    """Hurwitz's zeta function, the sum of (q + k)^-x for k from 0 on.

    Infinite for x = 1; NaN for x < 1, and for q < 0 with x no whole number.  For q < 0 the sum over all whole k less
    that of k below 0, each of them by zeta for positive q: zeta(x, f) + s zeta(x, 1 - f) - s zeta(x, 1 - q) with f the
    fraction of q and s = (-1)^x.
    """
    shape = broadcast_shapes(x.shape, q.shape)
    x, q = emit.broadcast(x, shape), emit.broadcast(q, shape)
    down = emit.op("floor", q)
    whole = emit.op("equal", q, down)
    pole = emit.op("logical_and", whole, emit.op("less_equal", q, 0.0))
    mirrored = emit.op("logical_and", emit.op("less", q, 0.0), emit.op("not_equal", whole, True))
    one = emit.builder.number(1.0, q.dtype)
    places = [
        emit.op("where", pole, one, emit.op("where", mirrored, emit.op("subtract", q, down), q)),
        emit.op("where", mirrored, emit.op("subtract", emit.op("ceil", q), q), one),
        emit.op("where", mirrored, emit.op("subtract", 1.0, q), one),
    ]
    joined = emit.op("concat", *(emit.unsqueeze(place, 0) for place in places), axis=0)
    sums = _zeta_of_positive(emit, emit.unsqueeze(x, 0), joined)
    found, above, below = (emit.select(sums, 0, number) for number in range(3))
    even = emit.op("equal", emit.op("remainder", x, 2.0), 0.0)
    others = emit.op("subtract", above, below)
    others = emit.op("where", even, others, emit.op("negate", others))
    found = emit.op("where", mirrored, emit.op("add", found, others), found)
    nan = emit.builder.number(math.nan, x.dtype)
    odd = emit.op("logical_and", emit.op("less", q, 0.0), emit.op("not_equal", x, emit.op("floor", x)))
    found = emit.op("where", odd, nan, found)
    found = emit.op("where", pole, emit.builder.number(math.inf, x.dtype), found)
    missing = emit.op("logical_or", emit.op("isnan", emit.op("add", x, q)), emit.op("less", x, 1.0))
    found = emit.op("where", missing, nan, found)
    return emit.op("where", emit.op("equal", x, 1.0), emit.builder.number(math.inf, x.dtype), found)


def _zeta_of_positive(emit: Emitter, x: Value, place: Value) -> Value:
    """The same for q > 0: terms, then the Euler-Maclaurin sum."""
    power = emit.op("negate", x)
    total: Value | None = None
    for _ in range(_ZETA_TERMS):
        term = emit.op("power", place, power)
        total = term if total is None else emit.op("add", total, term)
        place = emit.op("add", place, 1.0)
    assert total is not None
    last = emit.op("power", place, power)
    tail = emit.op("divide", emit.op("multiply", last, place), emit.op("subtract", x, 1.0))
    tail = emit.op("add", tail, emit.op("multiply", last, 0.5))
    factor, inverse = x, emit.op("reciprocal", place)
    share = emit.op("multiply", last, inverse)
    for k, divisor in enumerate(_OF_ZETA):
        tail = emit.op("add", tail, emit.op("divide", emit.op("multiply", factor, share), divisor))
        pair = emit.op("multiply", emit.op("add", x, 2 * k + 1.0), emit.op("add", x, 2 * k + 2.0))
        factor = emit.op("multiply", factor, pair)
        share = emit.op("multiply", share, emit.op("multiply", inverse, inverse))
    vanished = emit.op("equal", last, 0.0)  # the factors may overflow then
    return emit.op("add", total, emit.op("where", vanished, 0.0, tail))


_LARGEST_ORDER = 170  # of a factorial in float64


def polygamma(emit: Emitter, order: int, x: Value) -> Value:
    """The derivative of digamma of an order from 1 to 170: (-1)^(n + 1) n! zeta(n + 1, x).

    Raises `Unsupported` for a higher one, whose factorial float64 cannot hold.
    """
    if order > _LARGEST_ORDER:
        raise Unsupported(
            f"polygamma of order {order}, whose factorial overflows", f"use an order of at most {_LARGEST_ORDER}"
        )
    found = zeta(emit, emit.builder.number(float(order + 1), x.dtype), x)
    return emit.op("multiply", found, float((-1) ** (order + 1) * math.factorial(order)))


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
    series = polynomial(emit, emit.op("multiply", inverse, inverse), terms)
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
