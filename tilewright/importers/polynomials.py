"""Orthogonal polynomials of any order, in float64, by the recurrences that define them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilewright.dtypes import float64, int64
from tilewright.graph.core import Value
from tilewright.importers.emitter import Emitter
from tilewright.importers.loops import any_of, loop
from tilewright.importers.report import Unsupported

_MOST_STEPS = 256  # each of them is some nodes of the graph

# By family: P_1 = a x + b, and P_(n + 1) = (a x + b) P_n - c P_(n - 1), as (a, b, c) of n.
_Step = Callable[[int], tuple[float, float, float]]
POLYNOMIALS: dict[str, tuple[tuple[float, float], _Step]] = {
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
    (slope, start), step = POLYNOMIALS[family]
    before, found = one, _line(emit, x, slope, start)
    for n in range(1, order):
        slope, start, share = step(n)
        grown = emit.op("multiply", _line(emit, x, slope, start), found)
        before, found = found, emit.op("subtract", grown, emit.op("multiply", before, share))
    return found


def polynomials_of_orders(emit: Emitter, x: Value, family: str, orders: Value) -> Value:
    """As `orthogonal_polynomial` with an order for each element, of x's shape; those above 256 fail at the call."""
    orders = emit.cast(orders, int64)
    all_low = emit.op("less_equal", emit.op("maximum", _largest(emit, orders), 0), _MOST_STEPS)
    emit.op("condition", all_low, what=f"{family} has an order above {_MOST_STEPS}")
    first, step = POLYNOMIALS[family]
    table = emit.constant(np.array([(*first, 0), *map(step, range(1, _MOST_STEPS))], np.float64), "steps")
    zero, one = (emit.broadcast(emit.builder.number(number, float64), x.shape) for number in (0.0, 1.0))
    found = emit.op("where", emit.op("equal", orders, 0), one, zero)

    def grow(
        emit: Emitter, number: Value, carried: list[Value], captured: list[Value]
    ) -> tuple[Value | None, list[Value]]:
        (before, last, found), (x, orders, table) = carried, captured
        row = emit.op("gather", table, emit.op("minimum", number, _MOST_STEPS - 1), axis=0)
        slope, start, share = (emit.reshape(emit.slice(row, 0, place, place + 1), ()) for place in range(3))
        line = emit.op("add", emit.op("multiply", x, slope), start)
        grown = emit.op("subtract", emit.op("multiply", line, last), emit.op("multiply", before, share))
        order = emit.op("add", number, 1)
        found = emit.op("where", emit.op("equal", orders, order), grown, found)
        return any_of(emit, emit.op("greater", orders, order)), [last, grown, found]

    going = any_of(emit, emit.op("greater", orders, 0))
    return loop(emit, grow, [zero, one, found], [x, orders, table], going)[2]


def _largest(emit: Emitter, x: Value) -> Value:
    return emit.op("reduce_max", x, axes=tuple(range(x.rank))) if x.rank else x


def _line(emit: Emitter, x: Value, slope: float, start: float) -> Value:
    scaled = emit.op("multiply", x, float(slope)) if slope != 1 else x
    return emit.op("add", scaled, float(start)) if start else scaled
