"""Sorting in terms of counting, shared by the importers: an element's place is the number of those before it.

Every pair is compared, so rows of up to `LONGEST` elements are taken: experts of tokens, scores of classes.
"""

from __future__ import annotations

from tilewright.dtypes import int64
from tilewright.graph.core import Value
from tilewright.importers.emitter import Emitter
from tilewright.importers.report import Unsupported

LONGEST = 8192  # elements of a row
FEW = 8  # largest elements that are found one after the other


def sort(emit: Emitter, x: Value, axis: int, descending: bool) -> tuple[Value, Value]:
    """(sorted values, int64 positions) along an axis; stable, NaN counts as the largest.

    Raises `Unsupported` for rows of unknown length or of more than `LONGEST` elements.
    """
    length = x.shape[axis]
    if not isinstance(length, int) or length > LONGEST:
        raise Unsupported(f"sorting rows of {length} elements", f"sort at most {LONGEST} elements, of a fixed number")
    last = x.rank - 1
    rows = emit.transpose(x, axis, last)
    own, other = emit.unsqueeze(rows, x.rank), emit.unsqueeze(rows, last)  # [.., i, 1] and [.., 1, j]
    before = emit.op("greater" if descending else "less", other, own)
    same = emit.op("equal", other, own)
    if x.dtype.is_float:
        own_nan, other_nan = emit.op("isnan", own), emit.op("isnan", other)
        beyond = (other_nan, own_nan) if descending else (own_nan, other_nan)
        before = emit.op("logical_or", before, emit.op("logical_and", beyond[0], emit.op("logical_not", beyond[1])))
        same = emit.op("logical_or", same, emit.op("logical_and", own_nan, other_nan))
    line = emit.iota(length)
    column = emit.unsqueeze(line, 1)
    before = emit.op("logical_or", before, emit.op("logical_and", same, emit.op("less", line, column)))
    place = emit.op("reduce_sum", emit.cast(before, int64), axes=(x.rank,))  # of each element
    found = emit.op("equal", emit.unsqueeze(place, last), column)  # [.., place, element]
    chosen = emit.op("where", found, line, emit.builder.number(0, int64))
    position = emit.op("reduce_sum", chosen, axes=(x.rank,))
    values = emit.op("gather_elements", rows, position, axis=last)
    return emit.transpose(values, axis, last), emit.transpose(position, axis, last)


def top(emit: Emitter, x: Value, count: int, axis: int, largest: bool) -> tuple[Value, Value]:
    """(the largest or smallest values in order, their int64 positions) along an axis.

    Raises `Unsupported` as `sort` does when more than `FEW` are wanted.
    """
    if count > FEW:
        values, positions = sort(emit, x, axis, largest)
        return emit.slice(values, axis, 0, count), emit.slice(positions, axis, 0, count)
    line = emit.iota(x.shape[axis])
    if axis != x.rank - 1:
        line = emit.reshape(line, [x.shape[axis], *[1] * (x.rank - 1 - axis)])
    values_found, positions_found = [], []
    taken: Value | None = None
    worst = _worst(x, largest)
    for _ in range(count):
        left = x if taken is None else emit.op("where", taken, emit.builder.number(worst, x.dtype), x)
        position = emit.op("argmax" if largest else "argmin", left, axis=axis, keepdims=True)
        values_found.append(emit.op("gather_elements", x, position, axis=axis))
        positions_found.append(position)
        now = emit.op("equal", line, position)
        taken = now if taken is None else emit.op("logical_or", taken, now)
    if count == 1:
        return values_found[0], positions_found[0]
    return emit.op("concat", *values_found, axis=axis), emit.op("concat", *positions_found, axis=axis)


def _worst(x: Value, largest: bool) -> float:
    """What no element is worse than."""
    if x.dtype.is_float:
        return float("-inf") if largest else float("inf")
    bits = x.dtype.bits - 1
    return -(2**bits) if largest else 2**bits - 1
