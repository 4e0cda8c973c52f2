"""Small dense matrices by elimination with pivots; shared by the importers."""

from __future__ import annotations

from tilewright.dtypes import int64
from tilewright.graph.core import Value
from tilewright.importers.emitter import Emitter
from tilewright.importers.report import Unsupported

MOST_ELIMINATED_ROWS = 32  # rows: every step of the elimination is written out


def _size(x: Value) -> int:
    size = x.shape[-1]
    if x.rank < 2 or x.shape[-2] != size or not isinstance(size, int) or size > MOST_ELIMINATED_ROWS:
        raise Unsupported(
            f"elimination in {x!r}", f"use square matrices of a fixed size of at most {MOST_ELIMINATED_ROWS}"
        )
    return size


def _pivot(emit: Emitter, x: Value, step: int) -> tuple[Value, Value, Value]:
    """x [.., n, m] with the row of the largest element of column `step`, from this row on, in row `step`.

    Returns x, the pivot [.., 1, 1], and whether rows were exchanged [.., 1, 1].
    """
    rows, rank = x.shape[-2], x.rank
    column = emit.op("absolute", emit.slice(x, rank - 1, step, step + 1))
    below = emit.slice(column, rank - 2, step, rows)
    best = emit.op("add", emit.op("argmax", below, axis=rank - 2, keepdims=True), step)  # [.., 1, 1]
    place = emit.broadcast(best, (*x.shape[:-2], 1, x.shape[-1]))
    chosen = emit.op("gather_elements", x, place, axis=rank - 2)
    current = emit.slice(x, rank - 2, step, step + 1)
    line = emit.reshape(emit.iota(rows, int64), (rows, 1))
    x = emit.op("where", emit.op("equal", line, best), current, x)
    x = emit.op("where", emit.op("equal", line, step), chosen, x)
    return x, emit.slice(chosen, rank - 1, step, step + 1), emit.op("not_equal", best, step)


def determinant(emit: Emitter, x: Value) -> Value:
    """Of matrices [.., n, n]: [..]; raises `Unsupported` for sizes that are unknown or above `MOST_ELIMINATED_ROWS`."""
    size, rank = _size(x), x.rank
    one = emit.builder.number(1.0, x.dtype)
    total = emit.full((*x.shape[:-2], 1, 1), 1.0, x.dtype)
    for step in range(size):
        x, pivot, exchanged = _pivot(emit, x, step)
        total = emit.op("multiply", total, emit.op("where", exchanged, emit.op("negate", pivot), pivot))
        if step + 1 == size:
            break
        divisor = emit.op("where", emit.op("equal", pivot, 0.0), one, pivot)
        factor = emit.op("divide", emit.slice(x, rank - 1, step, step + 1), divisor)
        row = emit.slice(x, rank - 2, step, step + 1)
        line = emit.reshape(emit.iota(size, int64), (size, 1))
        reduced = emit.op("subtract", x, emit.op("multiply", factor, row))
        x = emit.op("where", emit.op("greater", line, step), reduced, x)
    return emit.reshape(total, x.shape[:-2])


def inverse(emit: Emitter, x: Value) -> Value:
    """Of matrices [.., n, n]; raises `Unsupported` as `determinant` does."""
    size, rank = _size(x), x.rank
    line = emit.reshape(emit.iota(size, int64), (size, 1))
    unit = emit.cast(emit.op("equal", line, emit.reshape(line, (1, size))), x.dtype)
    augmented = emit.op("concat", x, emit.broadcast(unit, x.shape), axis=rank - 1)
    for step in range(size):
        augmented, pivot, _ = _pivot(emit, augmented, step)
        row = emit.op("divide", emit.slice(augmented, rank - 2, step, step + 1), pivot)
        factor = emit.slice(augmented, rank - 1, step, step + 1)
        reduced = emit.op("subtract", augmented, emit.op("multiply", factor, row))
        augmented = emit.op("where", emit.op("equal", line, step), row, reduced)
    return emit.slice(augmented, rank - 1, size, 2 * size)
