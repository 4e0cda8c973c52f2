"""The incomplete gamma functions in float64, by elementary functions and series."""

from __future__ import annotations

import functools
import math
from fractions import Fraction

from tilewright.graph.core import Value
from tilewright.graph.inference import broadcast_shapes
from tilewright.importers.emitter import Emitter
from tilewright.importers.formulas import polynomial, with_sign_of
from tilewright.importers.loops import any_of, loop

_MOST_TERMS = 5000
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360)  # B_2k / (2 k (2 k - 1))
_STIRLING_FROM = 20.0  # where that series in 1 / a leaves out less than a rounding
# Where Temme's expansion holds: elsewhere the series and the fraction converge at once.
_TEMME_FROM, _TEMME_NEAR = 200.0, 0.3
_LARGEST_ETA = 0.35
_LOGARITHM_TERMS = 14  # for |x - a| < 0.3 a


def incomplete_gamma(emit: Emitter, a: Value, x: Value, upper: bool) -> Value:
    """The regularized lower incomplete gamma function P(a, x), or Q = 1 - P with `upper`.

    For a large a and an x near it Temme's uniform expansion (DLMF 8.12); otherwise the power series for x < a + 1 (DLMF
    8.11.4) and Legendre's continued fraction for others (DLMF 8.9.2, by Lentz's method), until nothing changes.
    """
    shape = broadcast_shapes(a.shape, x.shape)
    a, x = emit.broadcast(a, shape), emit.broadcast(x, shape)
    usual = emit.op("logical_and", emit.op("greater", a, 0.0), emit.op("greater", x, 0.0))
    usual = emit.op("logical_and", usual, emit.op("less", emit.op("maximum", a, x), math.inf))
    distance = emit.op("divide", emit.op("absolute", emit.op("subtract", x, a)), a)
    uniform = emit.op("logical_and", usual, emit.op("greater_equal", a, _TEMME_FROM))
    uniform = emit.op("logical_and", uniform, emit.op("less", distance, _TEMME_NEAR))
    stepwise = emit.op("logical_and", usual, emit.op("not_equal", uniform, True))
    one = emit.builder.number(1.0, x.dtype)
    far = _by_terms(emit, emit.op("where", stepwise, a, one), emit.op("where", stepwise, x, one), upper)
    large = emit.builder.number(_TEMME_FROM, x.dtype)
    near = _by_temme(emit, emit.op("where", uniform, a, large), emit.op("where", uniform, x, large), upper)
    found = emit.op("where", uniform, near, far)
    return emit.op("where", usual, found, _at_edges(emit, a, x, usual, upper))


def _at_edges(emit: Emitter, a: Value, x: Value, usual: Value, upper: bool) -> Value:
    """Where one of both is 0 or infinite; NaN where one is negative or NaN, or both are the same edge."""
    low, high = (emit.builder.number(number, x.dtype) for number in ((1.0, 0.0) if upper else (0.0, 1.0)))
    nan = emit.builder.number(math.nan, x.dtype)
    edge = emit.op("where", emit.op("equal", x, 0.0), low, high)  # a = 0, or x infinite
    below = emit.op("logical_and", emit.op("equal", a, math.inf), emit.op("less", x, math.inf))
    edge = emit.op("where", below, low, edge)
    same_edge = emit.op("equal", emit.op("maximum", a, x), emit.op("minimum", a, x))
    edge = emit.op("where", emit.op("logical_and", same_edge, emit.op("not_equal", usual, True)), nan, edge)
    wrong = emit.op("logical_or", emit.op("less", a, 0.0), emit.op("less", x, 0.0))
    wrong = emit.op("logical_or", wrong, emit.op("isnan", emit.op("add", a, x)))
    return emit.op("where", wrong, nan, edge)


def _by_terms(emit: Emitter, a: Value, x: Value, upper: bool) -> Value:
    """The power series for x < a + 1, the continued fraction for others."""
    one = emit.builder.number(1.0, x.dtype)
    near = emit.op("less", x, emit.op("add", a, 1.0))
    front = _front(emit, a, x)
    series = emit.op("multiply", _series(emit, a, emit.op("where", near, x, one)), front)
    fraction = _fraction(
        emit, emit.op("where", near, one, a), emit.op("where", near, emit.builder.number(2.0, x.dtype), x)
    )
    fraction = emit.op("multiply", emit.op("multiply", fraction, a), front)
    if upper:
        return emit.op("where", near, emit.op("subtract", 1.0, series), fraction)
    return emit.op("where", near, series, emit.op("subtract", 1.0, fraction))


def _front(emit: Emitter, a: Value, x: Value) -> Value:
    """x^a e^-x / Gamma(a + 1); of a large a without the difference of large numbers in its exponent."""
    large = emit.op("greater_equal", a, _STIRLING_FROM)
    exponent = emit.op("add", x, emit.op("lgamma", emit.op("add", a, 1.0)))
    direct = emit.op("exp", emit.op("subtract", emit.op("multiply", a, emit.op("log", x)), exponent))
    safe = emit.op("where", large, a, _STIRLING_FROM)
    distance = emit.op("divide", emit.op("subtract", x, safe), safe)
    loss = emit.op("subtract", distance, emit.op("log", emit.op("divide", x, safe)))
    near = emit.op("less", emit.op("absolute", distance), _TEMME_NEAR)
    loss = emit.op("where", near, _loss_near(emit, emit.op("where", near, distance, 0.0)), loss)
    inverse = emit.op("reciprocal", safe)
    stirling = polynomial(emit, emit.op("multiply", inverse, inverse), _STIRLING)
    exponent = emit.op("add", emit.op("multiply", safe, loss), emit.op("multiply", stirling, inverse))
    root = emit.op("sqrt", emit.op("multiply", safe, 2 * math.pi))
    return emit.op("where", large, emit.op("divide", emit.op("exp", emit.op("negate", exponent)), root), direct)


def _loss_near(emit: Emitter, distance: Value) -> Value:
    """d - log(1 + d) for |d| < 0.3, by the series of log((1 + r) / (1 - r)) at r = d / (2 + d)."""
    ratio = emit.op("divide", distance, emit.op("add", distance, 2.0))
    square = emit.op("multiply", ratio, ratio)
    series = polynomial(emit, square, [2 / (2 * k + 3) for k in range(_LOGARITHM_TERMS)])
    series = emit.op("multiply", emit.op("multiply", series, square), ratio)
    return emit.op("subtract", emit.op("multiply", ratio, distance), series)


@functools.cache
def _temme_coefficients() -> tuple[tuple[float, ...], ...]:
    """Of each power of 1 / a the coefficients of a polynomial in eta (DLMF 8.12.11 and 8.12.12), those that count."""
    count, terms = 7, 24
    alpha = [Fraction(0), Fraction(1)]
    for n in range(2, terms + 2 * count + 2):
        products = (j * alpha[j] * alpha[n - j + 1] for j in range(2, n))
        alpha.append((alpha[n - 1] - sum(products)) / (n + 1))
    first = [Fraction(-1, 3), *((n + 2) * alpha[n + 2] for n in range(1, len(alpha) - 2))]
    rows = [first]
    for k in range(1, count):
        stirling = (-1) ** k * math.prod(range(1, 2 * k + 2, 2)) * alpha[2 * k + 1]
        last = rows[-1]
        rows.append([stirling * first[n] + (n + 2) * last[n + 2] for n in range(len(last) - 2)])
    least = 1e-18
    sizes = [[abs(item) * _LARGEST_ETA**n / _TEMME_FROM**k for n, item in enumerate(row)] for k, row in enumerate(rows)]
    lengths = [max((n + 1 for n, size in enumerate(row) if size > least), default=1) for row in sizes]
    return tuple(tuple(map(float, row[:length])) for row, length in zip(rows, lengths, strict=True))


def _by_temme(emit: Emitter, a: Value, x: Value, upper: bool) -> Value:
    """Q = erfc(eta sqrt(a / 2)) / 2 + R, P = erfc(-eta sqrt(a / 2)) / 2 - R, with eta^2 / 2 = d - log(1 + d) at
    d = (x - a) / a; R = e^(-a eta^2 / 2) / sqrt(2 pi a) times a polynomial in eta and 1 / a (DLMF 8.12.3 to 8.12.9)."""
    distance = emit.op("divide", emit.op("subtract", x, a), a)
    loss = _loss_near(emit, distance)
    size = emit.op("sqrt", emit.op("multiply", loss, 2.0))
    eta = with_sign_of(emit, size, distance)
    inverse = emit.op("reciprocal", a)
    total: Value | None = None
    for row in reversed(_temme_coefficients()):
        part = polynomial(emit, eta, row)
        total = part if total is None else emit.op("add", emit.op("multiply", total, inverse), part)
    assert total is not None
    factor = emit.op("exp", emit.op("negate", emit.op("multiply", a, loss)))
    factor = emit.op("divide", factor, emit.op("sqrt", emit.op("multiply", a, 2 * math.pi)))
    rest = emit.op("multiply", factor, total)
    place = emit.op("multiply", eta, emit.op("sqrt", emit.op("multiply", a, 0.5)))
    tail = emit.op("multiply", emit.op("erfc", place if upper else emit.op("negate", place)), 0.5)
    return emit.op("add" if upper else "subtract", tail, rest)


def _series(emit: Emitter, a: Value, x: Value) -> Value:
    """The sum of x^k / ((a + 1) … (a + k)), while terms count."""

    def step(inner: Emitter, _: Value, carried: list[Value], fixed: list[Value]) -> tuple[Value, list[Value]]:
        place, term, total = carried
        place = inner.op("add", place, 1.0)
        term = inner.op("divide", inner.op("multiply", term, fixed[0]), place)
        total = inner.op("add", total, term)
        counts = inner.op("greater", term, inner.op("multiply", total, 1e-17))
        return any_of(inner, counts), [place, term, total]

    first = emit.full(a.shape, 1.0, a.dtype)
    return loop(emit, step, [a, first, first], [x], trips=_MOST_TERMS)[2]


def _fraction(emit: Emitter, a: Value, x: Value) -> Value:
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
    return loop(emit, step, [b, c, d, d], [a], trips=_MOST_TERMS)[3]
