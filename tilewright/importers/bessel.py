"""Bessel functions of the first and second kind, in float64: sums of their integrals' values, and series far from 0."""

from __future__ import annotations

import itertools
import math

import numpy as np

from tilewright.graph.core import Value
from tilewright.importers.emitter import Emitter
from tilewright.importers.formulas import polynomial

_HANKEL_FROM = 25.0  # where Hankel's series begin
_SERIES_TERMS = 24
_CLOSE = 5.0  # up to where power series serve
_EULER = 0.5772156649015329
_TURN_POINTS = 80  # of a whole turn: what is left out of J_n is of the order of J_80(25)


def bessel_j(emit: Emitter, x: Value, order: int) -> Value:
    """The function of the first kind, of order 0 or 1; NaN at infinity, as in PyTorch.

    J_n(x) is the mean of cos(n t - x sin t) over a turn, here of values in equal steps.
    """
    size = emit.op("absolute", x)
    near = _mean_over_turn(emit, emit.op("minimum", size, _HANKEL_FROM), order)
    cosine, sine = _phase(emit, size, order)
    p, q = _hankel(emit, size, order)
    far = emit.op("subtract", emit.op("multiply", p, cosine), emit.op("multiply", q, sine))
    found = emit.op("where", emit.op("less", size, _HANKEL_FROM), near, _scaled(emit, far, size))
    return emit.op("where", emit.op("less", x, 0.0), emit.op("negate", found), found) if order else found


def bessel_y(emit: Emitter, x: Value, order: int) -> Value:
    """The function of the second kind, of order 0 or 1: minus infinity at 0, NaN below.

    The mean of sin(x sin t - n t) over half a turn, less 1 / pi times the integral from 0 on of
    (e^(n t) + (-1)^n e^(-n t)) e^(-x sinh t), here in u = x sinh t, by Gauss-Legendre; below 5 the power series.
    """
    middle = emit.op("clip", x, low=_CLOSE, high=_HANKEL_FROM)
    nodes, weights = np.polynomial.legendre.leggauss(48)
    angles = (nodes + 1) * math.pi / 4  # a quarter of a turn, which the rest mirrors
    angle = emit.op("multiply", emit.unsqueeze(middle, x.rank), emit.constant(np.sin(angles)))
    if order:  # sin(x s - t) + sin(x s - pi + t) = -2 cos(x s) sin(t)
        values, shares = emit.op("cos", angle), -weights / 2 * np.sin(angles)
    else:
        values, shares = emit.op("sin", angle), weights / 2
    found = _sum(emit, values, shares)
    points, shares = _tail_points()
    grown = emit.op("divide", emit.constant(points), emit.unsqueeze(middle, x.rank))
    root = emit.op("sqrt", emit.op("add", emit.op("multiply", grown, grown), 1.0))
    # dt = du / (x cosh t), and e^t - e^-t = 2 sinh t, e^t + e^-t over 2 = 1 for n = 0.
    kernel = emit.op("divide", emit.op("multiply", grown, 2.0), root) if order else emit.op("divide", 2.0, root)
    tail = emit.op("divide", _sum(emit, kernel, shares / math.pi), middle)
    found = emit.op("subtract", found, tail)
    cosine, sine = _phase(emit, x, order)
    p, q = _hankel(emit, x, order)
    far = _scaled(emit, emit.op("add", emit.op("multiply", p, sine), emit.op("multiply", q, cosine)), x)
    found = emit.op("where", emit.op("less", x, _HANKEL_FROM), found, far)
    found = emit.op("where", emit.op("less", x, _CLOSE), _close_y(emit, x, order), found)
    found = emit.op("where", emit.op("equal", x, 0.0), emit.builder.number(-math.inf, x.dtype), found)
    return emit.op("where", emit.op("greater_equal", x, 0.0), found, emit.builder.number(math.nan, x.dtype))


def spherical_bessel_j0(emit: Emitter, x: Value) -> Value:
    """sin(x) / x."""
    zero = emit.op("equal", x, 0.0)
    found = emit.op("divide", emit.op("sin", x), emit.op("where", zero, 1.0, x))
    found = emit.op("where", zero, 1.0, found)
    infinite = emit.op("equal", emit.op("absolute", x), math.inf)
    return emit.op("where", infinite, emit.builder.number(0.0, x.dtype), found)


def _close_y(emit: Emitter, x: Value, order: int) -> Value:
    """2 / pi (log(x / 2) J_n(x)) less the rest of the power series, below 5."""
    half = emit.op("multiply", emit.op("clip", x, low=1e-300, high=_CLOSE), 0.5)
    square = emit.op("negate", emit.op("multiply", half, half))
    first, rest = [], []
    for k in range(30):
        term = 1 / (math.factorial(k) * math.factorial(k + order))
        first.append(term)
        harmonic = sum(1 / i for i in range(1, k + 1)) + sum(1 / i for i in range(1, k + order + 1))
        rest.append(term * (harmonic - 2 * _EULER))
    own, other = (polynomial(emit, square, terms) for terms in (first, rest))
    if order:
        own, other = emit.op("multiply", own, half), emit.op("multiply", other, half)
    found = emit.op("subtract", emit.op("multiply", emit.op("multiply", emit.op("log", half), own), 2.0), other)
    if order:
        found = emit.op("subtract", found, emit.op("reciprocal", half))
    return emit.op("multiply", found, 1 / math.pi)


def _mean_over_turn(emit: Emitter, x: Value, order: int) -> Value:
    """The mean of cos(n t - x sin t): by symmetry of a quarter of a turn, cos(x sin t) or sin(x sin t) sin(t)."""
    steps = np.arange(_TURN_POINTS // 4 + 1)
    weights = np.where((steps == 0) | (steps == _TURN_POINTS // 4), 0.5, 1.0) * 4 / _TURN_POINTS
    sines = np.sin(steps * 2 * math.pi / _TURN_POINTS)
    angle = emit.op("multiply", emit.unsqueeze(x, x.rank), emit.constant(sines))
    return _sum(emit, emit.op("sin" if order else "cos", angle), weights * sines if order else weights)


def _sum(emit: Emitter, values: Value, weights: np.ndarray) -> Value:
    terms = emit.op("multiply", values, emit.constant(weights))
    return emit.op("reduce_sum", terms, axes=(values.rank - 1,), keepdims=False)


def _tail_points() -> tuple[np.ndarray, np.ndarray]:
    """Points and weights of an integral from 0 on of what falls as e^-u does, which is in the weights."""
    nodes, weights = np.polynomial.legendre.leggauss(24)
    edges = (0.0, 3.0, 10.0, 40.0)
    points = np.concatenate([(high - low) / 2 * nodes + (high + low) / 2 for low, high in itertools.pairwise(edges)])
    shares = np.concatenate([(high - low) / 2 * weights for low, high in itertools.pairwise(edges)])
    return points, shares * np.exp(-points)


def _phase(emit: Emitter, x: Value, order: int) -> tuple[Value, Value]:
    """Cosine and sine of x - pi / 4, for order 1 of x - 3 pi / 4."""
    cosine, sine = emit.op("cos", x), emit.op("sin", x)
    total, rest = emit.op("add", sine, cosine), emit.op("subtract", sine, cosine)
    pair = (rest, emit.op("negate", total)) if order else (total, rest)
    return tuple(emit.op("multiply", item, math.sqrt(0.5)) for item in pair)  # type: ignore[return-value]


def _hankel(emit: Emitter, x: Value, order: int) -> tuple[Value, Value]:
    """P and Q of Hankel's series, whose terms are (4 n^2 - 1) (4 n^2 - 9) … / (k! (8 x)^k)."""
    terms = [1.0]
    for k in range(1, _SERIES_TERMS):
        terms.append(terms[-1] * (4 * order**2 - (2 * k - 1) ** 2) / (8 * k))
    inverse = emit.op("reciprocal", emit.op("maximum", x, _HANKEL_FROM))
    square = emit.op("negate", emit.op("multiply", inverse, inverse))
    return polynomial(emit, square, terms[::2]), emit.op("multiply", polynomial(emit, square, terms[1::2]), inverse)


def _scaled(emit: Emitter, value: Value, x: Value) -> Value:
    """Times sqrt(2 / (pi x))."""
    return emit.op(
        "divide", value, emit.op("sqrt", emit.op("multiply", emit.op("maximum", x, _HANKEL_FROM), math.pi / 2))
    )
