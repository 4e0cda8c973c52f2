"""The Airy function Ai, in float64: power series near 0, elsewhere an integral by Gauss's formula."""

from __future__ import annotations

import math

import numpy as np

from tilewright.graph.core import Value
from tilewright.importers.emitter import Emitter
from tilewright.importers.formulas import polynomial

_SERIES_TO = 2.0
_QUADRATURE_POINTS = 40
_ENDS = 103.892  # PyTorch's results are 0 beyond it
_AT_ZERO = (3 ** (-2 / 3) / math.gamma(2 / 3), 3 ** (-1 / 3) / math.gamma(1 / 3))  # Ai(0) and -Ai'(0)


def airy_ai(emit: Emitter, x: Value) -> Value:
    """Ai(x); NaN at infinity, as in PyTorch.

    With z = 2/3 |x|^1.5 and the mean over t of the density t^(-1/6) e^-t / gamma(5/6): for x > 0 it is
    e^-z mean((1 + t / 2z)^(-1/6)) / (2 sqrt(pi) x^(1/4)), and for x < 0 the real part of
    e^(i (pi / 4 - z)) mean((1 - i t / 2z)^(-1/6)) / (sqrt(pi) |x|^(1/4)).
    """
    size = emit.op("maximum", emit.op("absolute", x), _SERIES_TO)
    root = emit.op("sqrt", size)
    z = emit.op("multiply", emit.op("multiply", size, root), 2 / 3)
    points, weights = _gauss_laguerre(_QUADRATURE_POINTS, -1 / 6)
    ratio = emit.op("divide", emit.constant(points / 2), emit.unsqueeze(z, x.rank))
    right = emit.op("multiply", _mean(emit, emit.op("power", emit.op("add", ratio, 1.0), -1 / 6), weights), 0.5)
    right = emit.op("multiply", right, emit.op("exp", emit.op("negate", z)))
    length = emit.op("power", emit.op("add", emit.op("multiply", ratio, ratio), 1.0), -1 / 12)
    turn = emit.op("multiply", emit.op("atan", ratio), 1 / 6)
    turn = emit.op("add", turn, emit.unsqueeze(emit.op("subtract", math.pi / 4, z), x.rank))
    left = _mean(emit, emit.op("multiply", length, emit.op("cos", turn)), weights)
    far = emit.op("where", emit.op("less", x, 0.0), left, right)
    far = emit.op("divide", far, emit.op("multiply", emit.op("sqrt", root), math.sqrt(math.pi)))
    far = emit.op("where", emit.op("greater", x, _ENDS), 0.0, far)
    near = _series(emit, emit.op("clip", x, low=-_SERIES_TO, high=_SERIES_TO))
    found = emit.op("where", emit.op("less", emit.op("absolute", x), _SERIES_TO), near, far)
    unknown = emit.op("logical_or", emit.op("isnan", x), emit.op("equal", emit.op("absolute", x), math.inf))
    return emit.op("where", unknown, emit.builder.number(math.nan, x.dtype), found)


def _series(emit: Emitter, x: Value) -> Value:
    """Ai(0) (1 + x^3 / (2 3) + …) + Ai'(0) x (1 + x^3 / (3 4) + …)."""
    first, second = [_AT_ZERO[0]], [-_AT_ZERO[1]]
    for k in range(1, 20):
        first.append(first[-1] / ((3 * k - 1) * 3 * k))
        second.append(second[-1] / (3 * k * (3 * k + 1)))
    cube = emit.op("multiply", emit.op("multiply", x, x), x)
    grown = emit.op("multiply", polynomial(emit, cube, second), x)
    return emit.op("add", polynomial(emit, cube, first), grown)


def _gauss_laguerre(count: int, power: float) -> tuple[np.ndarray, np.ndarray]:
    """Points and weights of the mean over the density t^power e^-t: eigenvalues of its matrix of recurrence."""
    number = np.arange(count)
    off = np.sqrt(number[1:] * (number[1:] + power))
    points, vectors = np.linalg.eigh(np.diag(2 * number + 1 + power) + np.diag(off, 1) + np.diag(off, -1))
    return points, vectors[0] ** 2


def _mean(emit: Emitter, values: Value, weights: np.ndarray) -> Value:
    terms = emit.op("multiply", values, emit.constant(weights))
    return emit.op("reduce_sum", terms, axes=(values.rank - 1,), keepdims=False)
