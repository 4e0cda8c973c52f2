"""Functions of mathematical physics and statistics, in float64, of elementary functions and series."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tilewright.graph.core import Value
from tilewright.graph.inference import broadcast_shapes
from tilewright.importers.emitter import Emitter
from tilewright.importers.formulas import log1p, with_sign_of
from tilewright.importers.repeated import any_of, repeat

_FAR = 30.0  # where series in 1 / x of Bessel functions begin
_NEAR_TERMS, _FAR_TERMS = 50, 24
_EULER = 0.5772156649015329
_TINY = 1e-10  # where K is its first term


def polynomial(emit: Emitter, x: Value, coefficients: Sequence[float]) -> Value:
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
    series = polynomial(emit, emit.op("reciprocal", size), terms)
    return emit.op("divide", series, emit.op("sqrt", emit.op("multiply", size, math.pi / 2)))


def bessel_i(emit: Emitter, x: Value, order: int, scaled: bool) -> Value:
    """The modified Bessel function of the first kind of order 0 or 1; `scaled`: times e^-|x|."""
    size = emit.op("absolute", x)
    half = emit.op("multiply", emit.op("minimum", size, _FAR), 0.5)
    terms = [1 / (math.factorial(k) * math.factorial(k + order)) for k in range(_NEAR_TERMS)]
    near = polynomial(emit, emit.op("multiply", half, half), terms)
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


# Coefficients of the Euler-Maclaurin sum: (2 k)! / B_2k.
_OF_ZETA = tuple(
    math.factorial(2 * k) / bernoulli
    for k, bernoulli in enumerate((1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510,
                                   43867 / 798, -174611 / 330, 854513 / 138, -236364091 / 2730), start=1)
)  # fmt: skip
_ZETA_TERMS = 10


def zeta(emit: Emitter, x: Value, q: Value) -> Value:
    """Hurwitz's zeta function, the sum of (q + k)^-x for k from 0 on: terms, then the Euler-Maclaurin sum.

    Infinite for x = 1; NaN for x < 1, and for q < 0 with x no whole number. For q < 0 terms are added until q + k > 0.
    """
    shape = broadcast_shapes(x.shape, q.shape)
    x, q = emit.broadcast(x, shape), emit.broadcast(q, shape)
    power = emit.op("negate", x)

    def step(inner: Emitter, _: Value, carried: list[Value], fixed: list[Value]) -> tuple[Value, list[Value]]:
        place, total = carried
        below = inner.op("less_equal", place, 0.0)
        term = inner.op("power", inner.op("where", below, place, 1.0), fixed[0])
        total = inner.op("where", below, inner.op("add", total, term), total)
        place = inner.op("where", below, inner.op("add", place, 1.0), place)
        return any_of(inner, inner.op("less_equal", place, 0.0)), [place, total]

    whole = emit.op("equal", q, emit.op("floor", q))
    pole = emit.op("logical_and", whole, emit.op("less_equal", q, 0.0))
    begin = emit.op("where", emit.op("logical_or", pole, emit.op("less", q, -_MOST_NEGATIVE)), 1.0, q)
    first = [begin, emit.full(shape, 0.0, x.dtype)]
    place, total = repeat(emit, step, first, [power], any_of(emit, emit.op("less_equal", begin, 0.0)))
    for _ in range(_ZETA_TERMS):
        total = emit.op("add", total, emit.op("power", place, power))
        place = emit.op("add", place, 1.0)
    last = emit.op("power", place, power)
    tail = emit.op("divide", emit.op("multiply", last, place), emit.op("subtract", x, 1.0))
    tail = emit.op("add", tail, emit.op("multiply", last, 0.5))
    factor, inverse = x, emit.op("reciprocal", place)
    share = emit.op("multiply", last, inverse)
    for k, divisor in enumerate(_OF_ZETA):
        tail = emit.op("add", tail, emit.op("divide", emit.op("multiply", factor, share), divisor))
        factor = emit.op(
            "multiply", factor, emit.op("multiply", emit.op("add", x, 2 * k + 1.0), emit.op("add", x, 2 * k + 2.0))
        )
        share = emit.op("multiply", share, emit.op("multiply", inverse, inverse))
    vanished = emit.op("equal", last, 0.0)  # the factors may overflow then
    found = emit.op("add", total, emit.op("where", vanished, 0.0, tail))
    nan = emit.builder.number(math.nan, x.dtype)
    odd = emit.op("logical_and", emit.op("less", q, 0.0), emit.op("not_equal", x, emit.op("floor", x)))
    found = emit.op("where", odd, nan, found)
    found = emit.op("where", pole, emit.builder.number(math.inf, x.dtype), found)
    missing = emit.op("logical_or", emit.op("isnan", emit.op("add", x, q)), emit.op("less", x, 1.0))
    found = emit.op("where", missing, nan, found)
    return emit.op("where", emit.op("equal", x, 1.0), emit.builder.number(math.inf, x.dtype), found)


_MOST_NEGATIVE = 1e6  # terms are added one by one from there on; what is below is taken for 1


def polygamma(emit: Emitter, order: int, x: Value) -> Value:
    """The derivative of digamma of an order of at least 1: (-1)^(n + 1) n! zeta(n + 1, x)."""
    found = zeta(emit, emit.builder.number(float(order + 1), x.dtype), x)
    return emit.op("multiply", found, float((-1) ** (order + 1) * math.factorial(order)))


def incomplete_gamma(emit: Emitter, a: Value, x: Value, upper: bool) -> Value:
    """The regularized lower incomplete gamma function P(a, x), or 1 - P with `upper`.

    Its power series for x < a + 1, otherwise Legendre's continued fraction (by Lentz's method), until nothing changes.
    """
    shape = broadcast_shapes(a.shape, x.shape)
    a, x = emit.broadcast(a, shape), emit.broadcast(x, shape)
    usual = emit.op("logical_and", emit.op("greater", a, 0.0), emit.op("greater", x, 0.0))
    usual = emit.op("logical_and", usual, emit.op("less", emit.op("maximum", a, x), math.inf))
    one = emit.builder.number(1.0, x.dtype)
    s, y = emit.op("where", usual, a, one), emit.op("where", usual, x, one)
    near = emit.op("less", y, emit.op("add", s, 1.0))
    front = emit.op("subtract", emit.op("multiply", s, emit.op("log", y)), emit.op("add", y, emit.op("lgamma", s)))
    front = emit.op("exp", front)
    series = emit.op("multiply", _gamma_series(emit, s, emit.op("where", near, y, one)), front)
    fraction = _gamma_fraction(
        emit, emit.op("where", near, one, s), emit.op("where", near, emit.builder.number(2.0, x.dtype), y)
    )
    fraction = emit.op("multiply", fraction, front)
    if upper:
        found = emit.op("where", near, emit.op("subtract", 1.0, series), fraction)
    else:
        found = emit.op("where", near, series, emit.op("subtract", 1.0, fraction))
    low, high = (emit.builder.number(number, x.dtype) for number in ((1.0, 0.0) if upper else (0.0, 1.0)))
    nan = emit.builder.number(math.nan, x.dtype)
    edge = emit.op("where", emit.op("equal", x, 0.0), low, high)  # a = 0, or x infinite
    edge = emit.op(
        "where", emit.op("logical_and", emit.op("equal", a, math.inf), emit.op("less", x, math.inf)), low, edge
    )
    both = emit.op("equal", emit.op("maximum", a, x), emit.op("minimum", a, x))
    edge = emit.op("where", emit.op("logical_and", both, emit.op("not_equal", usual, True)), nan, edge)
    wrong = emit.op("logical_or", emit.op("less", a, 0.0), emit.op("less", x, 0.0))
    wrong = emit.op("logical_or", wrong, emit.op("isnan", emit.op("add", a, x)))
    return emit.op("where", usual, found, emit.op("where", wrong, nan, edge))


_MOST_TERMS = 5000


def _gamma_series(emit: Emitter, a: Value, x: Value) -> Value:
    """The sum of x^k / (a (a + 1) … (a + k)), while terms count."""

    def step(inner: Emitter, _: Value, carried: list[Value], fixed: list[Value]) -> tuple[Value, list[Value]]:
        place, term, total = carried
        place = inner.op("add", place, 1.0)
        term = inner.op("divide", inner.op("multiply", term, fixed[0]), place)
        total = inner.op("add", total, term)
        counts = inner.op("greater", term, inner.op("multiply", total, 1e-17))
        return any_of(inner, counts), [place, term, total]

    first = emit.op("reciprocal", a)
    return repeat(emit, step, [a, first, first], [x], trips=_MOST_TERMS)[2]


def _gamma_fraction(emit: Emitter, a: Value, x: Value) -> Value:
    """1 / (x + 1 - a - 1 (1 - a) / (x + 3 - a - 2 (2 - a) / (x + 5 - a - …)))."""
    tiny = 1e-290

    def apart(inner: Emitter, value: Value) -> Value:
        near = inner.op("less", inner.op("absolute", value), tiny)
        return inner.op("where", near, inner.builder.number(tiny, value.dtype), value)

    def step(inner: Emitter, number: Value, carried: list[Value], fixed: list[Value]) -> tuple[Value, list[Value]]:
        b, c, d, total = carried
        k = inner.op("add", inner.cast(number, b.dtype), 1.0)
        weight = inner.op("multiply", k, inner.op("subtract", fixed[0], k))
        b = inner.op("add", b, 2.0)
        d = inner.op("reciprocal", apart(inner, inner.op("add", inner.op("multiply", weight, d), b)))
        c = apart(inner, inner.op("add", b, inner.op("divide", weight, c)))
        change = inner.op("multiply", c, d)
        counts = inner.op("greater", inner.op("absolute", inner.op("subtract", change, 1.0)), 1e-15)
        return any_of(inner, counts), [b, c, d, inner.op("multiply", total, change)]

    b = emit.op("subtract", emit.op("add", x, 1.0), a)
    d = emit.op("reciprocal", apart(emit, b))
    c = emit.full(b.shape, 1 / tiny, b.dtype)
    return repeat(emit, step, [b, c, d, d], [a], trips=_MOST_TERMS)[3]


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
