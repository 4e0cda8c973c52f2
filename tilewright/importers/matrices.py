"""Solutions, inverses, determinants and factors of matrices; shared by the importers.

Those of matrices [..., n, n] of a fixed n up to `MOST_MATRIX_ROWS` are unrolled; LAPACK computes those of others on the
host (`host_matrices`).  All is computed in float64 and rounded once.  Singular matrices give infinities or NaN, where
PyTorch raises an error.
"""

from __future__ import annotations

import functools
import math

from tilewright.dtypes import float64, int64
from tilewright.graph.core import Value
from tilewright.graph.inference import broadcast_shapes
from tilewright.importers.emitter import Emitter
from tilewright.importers.equal_sizes import must_be
from tilewright.importers.report import Invalid, Unsupported
from tilewright.symbolic import Size

MOST_MATRIX_ROWS = 32  # rows of an unrolled matrix: each is a step of a dozen nodes


def order_of(a: Value) -> Size:
    """n of matrices [..., n, n]; raises `Unsupported` for other element types than floats."""
    if not a.dtype.is_float:
        raise Unsupported(f"the factors of a matrix of {a.dtype}", "use real floating-point numbers")
    return a.shape[-1]


def square(emit: Emitter, a: Value) -> Value:
    """Matrices [..., n, n], where a model may have two names for n; raises `Invalid` and `Unsupported` for others."""
    if a.rank >= 2:
        rows, columns = a.shape[-2:]
        order = rows if isinstance(rows, int) else columns
        a = must_be(emit, a, (*a.shape[:-2], order, order))
    if a.rank < 2 or (a.shape[-2] != a.shape[-1] and all(isinstance(size, int) for size in a.shape[-2:])):
        raise Invalid(f"{a!r} has no square matrices [..., n, n]")
    if a.shape[-2] != a.shape[-1]:
        raise Unsupported(f"matrices {a!r} of two sizes", "give both one name through dynamic_shapes, or fix them")
    return a


def _steps(a: Value) -> int | None:
    """The steps of an elimination that is unrolled; None for one on the host."""
    order = order_of(a)
    return order if isinstance(order, int) and 1 <= order <= MOST_MATRIX_ROWS else None


def _on_host(emit: Emitter, a: Value, part: str) -> Value:
    return emit.op("matrix_part", emit.cast(a, float64), part=part)


def identity(emit: Emitter, order: Size) -> Value:
    """Booleans [n, n], true along the diagonal."""
    line = emit.iota(order)
    return emit.op("equal", emit.unsqueeze(line, 1), emit.unsqueeze(line, 0))


def solve(emit: Emitter, a: Value, b: Value) -> tuple[Value, Value]:
    """x of a x = b, with b [..., n, m]; and the pivots of a [..., n]."""
    order, dtype = _steps(a), a.dtype
    if order is None:
        solution = emit.op("matmul", _on_host(emit, a, "inverse"), emit.cast(b, float64))
        return emit.cast(solution, dtype), _on_host(emit, a, "pivots")
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
    solution = emit.slice(joined, joined.rank - 1, order, joined.shape[-1])
    return emit.cast(solution, dtype), found[0] if order == 1 else emit.op("concat", *found, axis=len(lead))


def inverse(emit: Emitter, a: Value) -> tuple[Value, Value]:
    """The inverse, and the pivots [..., n]."""
    if _steps(a) is None:
        return emit.cast(_on_host(emit, a, "inverse"), a.dtype), _on_host(emit, a, "pivots")
    return solve(emit, a, emit.broadcast(emit.cast(identity(emit, order_of(a)), a.dtype), a.shape))


def determinant(emit: Emitter, a: Value) -> Value:
    """[...]."""
    if _steps(a) is None:
        return emit.cast(_on_host(emit, a, "determinant"), a.dtype)
    found, sign = pivots(emit, a)
    return emit.cast(_product(emit, [sign, *found]), a.dtype)


def logarithm_of_determinant(emit: Emitter, a: Value) -> tuple[Value, Value]:
    """The sign [...], and the logarithm of the size as a sum, which does not overflow."""
    if _steps(a) is None:
        sign, total = (_on_host(emit, a, part) for part in ("sign", "logarithm"))
        return emit.cast(sign, a.dtype), emit.cast(total, a.dtype)
    found, sign = pivots(emit, a)
    one = emit.builder.number(1.0, float64)
    logs = [emit.op("log", emit.op("absolute", pivot)) for pivot in found]
    signs = []
    for pivot in found:
        below = emit.op("where", emit.op("less", pivot, 0.0), emit.op("negate", one), one)
        signs.append(emit.op("where", emit.op("equal", pivot, 0.0), emit.builder.number(0.0, float64), below))
    total = functools.reduce(lambda left, right: emit.op("add", left, right), logs)
    return emit.cast(_product(emit, [sign, *signs]), a.dtype), emit.cast(total, a.dtype)


def _product(emit: Emitter, values: list[Value]) -> Value:
    return functools.reduce(lambda left, right: emit.op("multiply", left, right), values)


def pivots(emit: Emitter, a: Value) -> tuple[list[Value], Value]:
    """The pivots [...] of an unrolled elimination in float64; the sign that their product lacks of the determinant."""
    order = _steps(a)
    assert order is not None
    a = emit.cast(a, float64)
    found = []
    sign = emit.full(a.shape[:-2], 1.0, float64)
    for step in range(order):
        a, best = _pivoted(emit, a, step)
        sign = emit.op("where", emit.op("not_equal", best, step), emit.op("negate", sign), sign)
        row = _row(emit, a, step)
        pivot = emit.slice(row, row.rank - 1, step, step + 1)
        found.append(emit.reshape(pivot, a.shape[:-2]))
        column = emit.slice(a, a.rank - 1, step, step + 1)
        zero = emit.op("equal", column, 0.0)  # all below a pivot of 0 are, and one loop divides and chooses
        ratio = emit.op("where", zero, 0.0, emit.op("divide", column, pivot))
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
    pivots = []
    for step in range(min(rows, columns)):
        if pivot:
            a, best = _pivoted(emit, a, step)
        else:
            best = emit.full(a.shape[:-2], step, int64)
        pivots.append(emit.unsqueeze(best, best.rank))
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
    places = pivots[0] if len(pivots) == 1 else emit.op("concat", *pivots, axis=pivots[0].rank - 1)
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
    if rows != columns:
        assert isinstance(rows, int) and isinstance(columns, int)
        least = min(rows, columns)
        a = emit.slice(emit.slice(a, a.rank - 2, 0, least), a.rank - 1, 0, least)
    on_diagonal = emit.op("where", identity(emit, a.shape[-1]), a, emit.builder.number(0.0, a.dtype))
    return emit.op("reduce_sum", on_diagonal, axes=(a.rank - 1,), keepdims=False)


def cholesky(emit: Emitter, a: Value, upper: bool) -> Value:
    """L of a = L Lᵀ, with zeros above the diagonal; its transpose with `upper`, which is what is read of a then."""
    order, dtype = _steps(a), a.dtype
    a = emit.cast(emit.transpose(a, a.rank - 2, a.rank - 1) if upper else a, float64)
    factor = _on_host(emit, a, "cholesky") if order is None else _unrolled_cholesky(emit, a, order)
    factor = emit.cast(factor, dtype)
    return emit.transpose(factor, a.rank - 2, a.rank - 1) if upper else factor


def _unrolled_cholesky(emit: Emitter, a: Value, order: int) -> Value:
    columns = []
    for step in range(order):
        column = emit.slice(a, a.rank - 1, step, step + 1)
        pivot = emit.slice(column, a.rank - 2, step, step + 1)
        seen = emit.op("greater_equal", emit.unsqueeze(emit.iota(order), 1), step)
        zero = emit.builder.number(0.0, float64)
        column = emit.op("where", seen, emit.op("divide", column, emit.op("sqrt", pivot)), zero)
        columns.append(column)
        a = emit.op("subtract", a, emit.op("multiply", column, emit.transpose(column, a.rank - 2, a.rank - 1)))
    return columns[0] if order == 1 else emit.op("concat", *columns, axis=a.rank - 1)


_EXP_TERMS, _SQUARES = (
    14,
    40,
)  # of the series for a norm up to 1/2, 2e-18 off; doublings of the argument up to 2^40


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
    unit = emit.broadcast(emit.cast(identity(emit, order), float64), a.shape)
    found = unit
    for term in range(_EXP_TERMS, 0, -1):
        found = emit.op("add", unit, emit.op("divide", emit.op("matmul", a, found), float(term)))
    for step in range(_SQUARES):
        wanted = emit.op("greater", squares, float(step))
        found = emit.op("where", wanted, emit.op("matmul", found, found), found)
    return emit.cast(found, dtype)


def solve_triangular(emit: Emitter, a: Value, b: Value, upper: bool, unit: bool = False) -> Value:
    """x of a x = b, where only one triangle of a is read; `unit`: its diagonal is ones."""
    order, dtype = _steps(a), a.dtype
    a, b = emit.cast(a, float64), emit.cast(b, float64)
    if order is None:
        if unit:
            one = emit.builder.number(1.0, float64)
            a = emit.op("where", identity(emit, a.shape[-1]), one, a)
        inverted = _on_host(emit, emit.keep_triangle(a, 0, upper), "inverse")
        return emit.cast(emit.op("matmul", inverted, b), dtype)
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
