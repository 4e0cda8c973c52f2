"""Orthogonal polynomials of any order, in float64, by the recurrences that define them."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.graph.core import Value
from tilewright.importers.emitter import Emitter
from tilewright.importers.report import Unsupported

_MOST_STEPS = 256  # each of them is some nodes of the graph

# By family: P_1 = a x + b, and P_(n + 1) = (a x + b) P_n - c P_(n - 1), as (a, b, c) of n.
_Step = Callable[[int], tuple[float, float, float]]
FAMILIES: dict[str, tuple[tuple[float, float], _Step]] = {
    "chebyshev_polynomial_t": ((1, 0), lambda n: (2, 0, 1)),
    "chebyshev_polynomial_u": ((2, 0), lambda n: (2, 0, 1)),
    "chebyshev_polynomial_v": ((2, -1), lambda n: (2, 0, 1)),
    "chebyshev_polynomial_w": ((2, 1), lambda n: (2, 0, 1)),
    "shifted_chebyshev_polynomial_t": ((2, -1), lambda n: (4, -2, 1)),
    "shifted_chebyshev_polynomial_u": ((4, -2), lambda n: (4, -2, 1)),
    "shifted_chebyshev_polynomial_v": ((4, -3), lambda n: (4, -2, 1)),
    "shifted_chebyshev_polynomial_w": ((4, -1), lambda n: (4, -2, 1)),
    "hermite_polynomial_h": ((2, 0), lambda n: (2, 0, 2 * n)),
    "hermite_polynomial_he": ((1, 0), lambda n: (1, 0, n)),
    "laguerre_polynomial_l": ((-1, 1), lambda n: (-1 / (n + 1), (2 * n + 1) / (n + 1), n / (n + 1))),
    "legendre_polynomial_p": ((1, 0), lambda n: ((2 * n + 1) / (n + 1), 0, n / (n + 1))),
}


def orthogonal_polynomial(emit: Emitter, x: Value, family: str, order: int) -> Value:
    """The polynomial of an order, at each element of x; 0 for a negative one.

    Raises `Unsupported` for an order above 256.
    """
    if order > _MOST_STEPS:
        raise Unsupported(f"{family} of order {order}", f"use an order of at most {_MOST_STEPS}")
    one = emit.broadcast(emit.builder.number(1.0 if order >= 0 else 0.0, x.dtype), x.shape)
    if order <= 0:
        return one
    (slope, start), step = FAMILIES[family]
    before, found = one, _line(emit, x, slope, start)
    for n in range(1, order):
        slope, start, share = step(n)
        grown = emit.op("multiply", _line(emit, x, slope, start), found)
        before, found = found, emit.op("subtract", grown, emit.op("multiply", before, share))
    return found


def _line(emit: Emitter, x: Value, slope: float, start: float) -> Value:
    scaled = emit.op("multiply", x, float(slope)) if slope != 1 else x
    return emit.op("add", scaled, float(start)) if start else scaled
