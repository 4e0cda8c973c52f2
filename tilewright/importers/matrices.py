"""Solutions, inverses, determinants and factors of small matrices, unrolled; shared by the importers.

Matrices are [..., n, n] of a fixed n up to `MOST_MATRIX_ROWS`; all is computed in float64 and rounded once.  Singular
matrices give infinities or NaN, where PyTorch raises an error.
"""

from __future__ import annotations

import math

from tilewright.dtypes import float64, int64
from tilewright.graph.core import Value
from tilewright.graph.inference import broadcast_shapes
from tilewright.importers.emitter import Emitter
from tilewright.importers.report import Unsupported

MOST_MATRIX_ROWS = 32  # rows of a matrix: each is a step of a dozen nodes


def order_of(a: Value) -> int:
    """n of matrices [..., n, n]; raises `Unsupported` for one that is not fixed, or too large to unroll."""
    order = a.shape[-1]
    if not isinstance(order, int) or not 1 <= order <= MOST_MATRIX_ROWS:
        raise Unsupported(
            f"the factors of a matrix of {order} rows", f"use matrices of a fixed 1 to {MOST_MATRIX_ROWS} rows"
        )
    if not a.dtype.is_float:
        raise Unsupported(f"the factors of a matrix of {a.dtype}", "use real floating-point numbers")
    return order


def solve(emit: Emitter, a: Value, b: Value) -> tuple[Value, Value]:
    """x of a x = b, with b [..., n, m]; and the pivots of a [..., n]."""
    order, dtype = order_of(a), a.dtype
    lead = broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = (emit.broadcast(emit.cast(item, float64), (*lead, *item.shape[-2:])) for item in (a, b))
    joined = emit.op("concat", a, b, axis=a.rank - 1)
    found = []
    for step in range(order):
        joined, _ = _pivoted(emit, joined, step)
        row = _row(emit, joined, step)
        pivot = emit.slice(row, row.rank - 1, step, step + 1)
        found.append(emit.reshape(pivot, (*lead, 1)))
        row = emit.op("divide", row, pivot)
        column = emit.slice(joined, joined.rank - 1, step, step + 1)
        others = emit.op("subtract", joined, emit.op("multiply", column, row))
        joined = emit.op("where", _is_row(emit, order, step), row, others)
    solution = emit.cast(emit.slice(joined, joined.rank - 1, order, joined.shape[-1]), dtype)
    return solution, found[0] if order == 1 else emit.op("concat", *found, axis=len(lead))


def inverse(emit: Emitter, a: Value) -> tuple[Value, Value]:
    """The inverse, and the pivots [..., n]."""
    order = order_of(a)
    line = emit.iota(order)
    identity = emit.op("equal", emit.unsqueeze(line, 1), emit.unsqueeze(line, 0))
    return solve(emit, a, emit.broadcast(emit.cast(identity, a.dtype), a.shape))


def pivots(emit: Emitter, a: Value) -> tuple[list[Value], Value]:
    """The pivots [...] of an elimination in float64, and the sign that their product lacks of the determinant."""
    order = order_of(a)
    a = emit.cast(a, float64)
    found = []
    sign = emit.full(a.shape[:-2], 1.0, float64)
    for step in range(order):
        a, best = _pivoted(emit, a, step)
        sign = emit.op("where", emit.op("not_equal", best, step), emit.op("negate", sign), sign)
        row = _row(emit, a, step)
        pivot = emit.slice(row, row.rank - 1, step, step + 1)
        found.append(emit.reshape(pivot, a.shape[:-2]))
        zero = emit.op("equal", pivot, 0.0)  # then the column is zero already
        ratio = emit.op("divide", emit.slice(a, a.rank - 1, step, step + 1), emit.op("where", zero, 1.0, pivot))
        below = emit.op("greater", emit.unsqueeze(emit.iota(order), 1), step)
        a = emit.op("where", below, emit.op("subtract", a, emit.op("multiply", ratio, row)), a)
    return found, sign


def lower_upper(emit: Emitter, a: Value, pivot: bool = True) -> tuple[Value, Value]:
    """The factors L (its ones left out) and U of matrices [..., m, n] in one matrix, and the row that each step took
    the place of [..., min(m, n)], counted from 0."""
    rows, columns = a.shape[-2:]
    if not (isinstance(rows, int) and isinstance(columns, int)) or not 1 <= min(rows, columns) <= MOST_MATRIX_ROWS:
        raise Unsupported(
            f"the factors of a matrix of {rows} rows", f"use matrices of a fixed 1 to {MOST_MATRIX_ROWS} rows"
        )
    dtype, a = a.dtype, emit.cast(a, float64)
    taken = []
    for step in range(min(rows, columns)):
        if pivot:
            a, best = _pivoted(emit, a, step)
        else:
            best = emit.full(a.shape[:-2], step, int64)
        taken.append(emit.unsqueeze(best, best.rank))
        row = _row(emit, a, step)
        top = emit.slice(row, row.rank - 1, step, step + 1)
        column = emit.slice(a, a.rank - 1, step, step + 1)
        ratio = emit.op("divide", column, emit.op("where", emit.op("equal", top, 0.0), 1.0, top))
        below = emit.op("greater", emit.unsqueeze(emit.iota(rows), 1), step)
        line = emit.unsqueeze(emit.iota(columns), 0)
        reduced = emit.op(
            "where", emit.op("equal", line, step), ratio, emit.op("subtract", a, emit.op("multiply", ratio, row))
        )
        reduced = emit.op("where", emit.op("less", line, step), a, reduced)
        a = emit.op("where", below, reduced, a)
    places = taken[0] if len(taken) == 1 else emit.op("concat", *taken, axis=taken[0].rank - 1)
    return emit.cast(a, dtype), places


def order_after(emit: Emitter, places: Value, rows: int) -> Value:
    """Which row [..., rows] stands where after the swaps of `lower_upper`."""
    line = emit.iota(rows)
    order = emit.broadcast(line, (*places.shape[:-1], rows))
    steps = places.shape[-1]
    assert isinstance(steps, int)
    for step in range(steps):
        other = emit.slice(places, places.rank - 1, step, step + 1)
        here, there = (emit.op("gather_elements", order, item, axis=order.rank - 1)
                       for item in (emit.full(other.shape, step, int64), other))  # fmt: skip
        order = emit.op("where", emit.op("equal", line, other), here, order)
        order = emit.op("where", emit.op("equal", line, step), there, order)
    return order


def diagonal(emit: Emitter, a: Value) -> Value:
    """The diagonal [..., min(m, n)] of matrices [..., m, n]."""
    rows, columns = a.shape[-2:]
    assert isinstance(rows, int) and isinstance(columns, int)
    least = min(rows, columns)
    square = emit.slice(emit.slice(a, a.rank - 2, 0, least), a.rank - 1, 0, least)
    line = emit.iota(least)
    own = emit.op("equal", emit.unsqueeze(line, 1), emit.unsqueeze(line, 0))
    kept = emit.op("where", own, square, emit.builder.number(0.0, a.dtype))
    return emit.op("reduce_sum", kept, axes=(a.rank - 1,), keepdims=False)


def cholesky(emit: Emitter, a: Value, upper: bool) -> Value:
    """L of a = L Lᵀ, with zeros above the diagonal; its transpose with `upper`, which is what is read of a then."""
    order, dtype = order_of(a), a.dtype
    a = emit.cast(emit.transpose(a, a.rank - 2, a.rank - 1) if upper else a, float64)
    columns = []
    for step in range(order):
        column = emit.slice(a, a.rank - 1, step, step + 1)
        pivot = emit.slice(column, a.rank - 2, step, step + 1)
        seen = emit.op("greater_equal", emit.unsqueeze(emit.iota(order), 1), step)
        zero = emit.builder.number(0.0, float64)
        column = emit.op("where", seen, emit.op("divide", column, emit.op("sqrt", pivot)), zero)
        columns.append(column)
        a = emit.op("subtract", a, emit.op("multiply", column, emit.transpose(column, a.rank - 2, a.rank - 1)))
    factor = columns[0] if order == 1 else emit.op("concat", *columns, axis=a.rank - 1)
    factor = emit.cast(factor, dtype)
    return emit.transpose(factor, a.rank - 2, a.rank - 1) if upper else factor


_TERMS, _SQUARES = 14, 40  # of the series for a norm up to 1/2, 2e-18 off; doublings of the argument up to 2^40


def exponential(emit: Emitter, a: Value) -> Value:
    """exp(a) by its series at a / 2^s, squared s times, where the row sums of a / 2^s are at most 1/2 (Higham 2005).

    s is each matrix's own.  Matrices are squared while it is not reached, and kept after that.
    """
    order, dtype = order_of(a), a.dtype
    a = emit.cast(a, float64)
    rows = emit.op("reduce_sum", emit.op("absolute", a), axes=(a.rank - 1,), keepdims=True)
    norm = emit.op("reduce_max", rows, axes=(a.rank - 2,), keepdims=True)
    power = emit.op("multiply", emit.op("log", emit.op("maximum", norm, 0.5)), 1 / math.log(2))
    squares = emit.op("minimum", emit.op("add", emit.op("floor", power), 2.0), float(_SQUARES))
    a = emit.op("multiply", a, emit.op("exp2", emit.op("negate", squares)))
    line = emit.iota(order)
    same = emit.op("equal", emit.unsqueeze(line, 1), emit.unsqueeze(line, 0))
    identity = emit.broadcast(emit.cast(same, float64), a.shape)
    found = identity
    for term in range(_TERMS, 0, -1):
        found = emit.op("add", identity, emit.op("divide", emit.op("matmul", a, found), float(term)))
    for step in range(_SQUARES):
        wanted = emit.op("greater", squares, float(step))
        found = emit.op("where", wanted, emit.op("matmul", found, found), found)
    return emit.cast(found, dtype)


def solve_triangular(emit: Emitter, a: Value, b: Value, upper: bool, unit: bool = False) -> Value:
    """x of a x = b, where only one triangle of a is read; `unit`: its diagonal is ones."""
    order, dtype = order_of(a), a.dtype
    a, b = emit.cast(a, float64), emit.cast(b, float64)
    found: dict[int, Value] = {}
    for step in reversed(range(order)) if upper else range(order):
        row = _row(emit, b, step)
        column = emit.slice(a, a.rank - 1, step, step + 1)
        if not unit:
            row = emit.op("divide", row, emit.slice(column, a.rank - 2, step, step + 1))
        found[step] = row
        b = emit.op("subtract", b, emit.op("multiply", column, row))
    rows = [found[step] for step in range(order)]
    return emit.cast(rows[0] if order == 1 else emit.op("concat", *rows, axis=rows[0].rank - 2), dtype)


def _row(emit: Emitter, a: Value, step: int) -> Value:
    return emit.slice(a, a.rank - 2, step, step + 1)


def _is_row(emit: Emitter, order: int, step: int) -> Value:
    return emit.op("equal", emit.unsqueeze(emit.iota(order), 1), step)


def _pivoted(emit: Emitter, a: Value, step: int) -> tuple[Value, Value]:
    """a with the row of a column's largest element, from a step on, at that step; where that row was [...]."""
    order = a.shape[-2]
    assert isinstance(order, int)
    rest = emit.op("absolute", emit.slice(emit.slice(a, a.rank - 1, step, step + 1), a.rank - 2, step, order))
    best = emit.op("add", emit.op("argmax", rest, axis=a.rank - 2, keepdims=True), step)  # [..., 1, 1]
    line = emit.unsqueeze(emit.iota(order), 1)
    here, there = emit.op("equal", line, step), emit.op("equal", line, best)
    source = emit.op("where", there, emit.builder.number(step, int64), line)
    source = emit.op("where", here, best, source)
    moved = emit.op("gather_elements", a, emit.broadcast(source, a.shape), axis=a.rank - 2)
    return moved, emit.reshape(best, a.shape[:-2])
