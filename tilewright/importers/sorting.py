"""Sorting in terms of counting, shared by the importers: an element's place is the number of those before it.

Every pair is compared, so rows of up to `LONGEST` elements are taken: experts of tokens, scores of classes. A few of
the largest elements are found one after the other, in rows of any length.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from tilewright.dtypes import int32, int64
from tilewright.graph.core import Value
from tilewright.importers.emitter import Emitter
from tilewright.importers.report import Unsupported
from tilewright.symbolic import upper_bound

LONGEST = 8192  # elements of a row
FEW = 8  # largest elements that are found one after the other
MANY = 64  # that are found so in rows that cannot be sorted


def sort(emit: Emitter, x: Value, axis: int, descending: bool) -> tuple[Value, Value]:
    """(sorted values, int64 positions) along an axis; stable, NaN counts as the largest.

    Raises `Unsupported` for rows that may have more than `LONGEST` elements.
    """
    length = x.shape[axis]
    most = upper_bound(length)
    if most > LONGEST:
        count = f"{length} elements" if most == length else f"{length}, up to {most}, elements"
        raise Unsupported(f"sorting rows of {count}", f"sort at most {LONGEST} elements, or narrow the size's range")
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
    """(the largest or smallest values in order, their int64 positions) along an axis; no position comes twice.

    Raises `Unsupported` as `sort` does when more than `FEW` are wanted, of longer rows more than `MANY`.
    """
    length = x.shape[axis]
    if count > (FEW if upper_bound(length) <= LONGEST else MANY):
        values, positions = sort(emit, x, axis, largest)
        return emit.slice(values, axis, 0, count), emit.slice(positions, axis, 0, count)
    line = emit.iota(length)
    if axis != x.rank - 1:
        line = emit.reshape(line, [length, *[1] * (x.rank - 1 - axis)])
    values_found: list[Value] = []
    positions_found: list[Value] = []
    taken: Value | None = None
    worst, bounded = _worst(x, largest), _is_bounded(emit, x)
    for _ in range(count):
        left = x if taken is None else emit.op("where", taken, emit.builder.number(worst, x.dtype), x)
        position = emit.op("argmax" if largest else "argmin", left, axis=axis, keepdims=True)
        if taken is not None and not bounded:  # all that is left may be as bad as what is taken: then the first of it
            again = _one_of(emit, position, positions_found)
            position = emit.op("where", again, _first_free(emit, taken, positions_found, axis), position)
        values_found.append(emit.op("gather_elements", x, position, axis=axis))
        positions_found.append(position)
        now = emit.op("equal", line, position)
        taken = now if taken is None else emit.op("logical_or", taken, now)
    if count == 1:
        return values_found[0], positions_found[0]
    return emit.op("concat", *values_found, axis=axis), emit.op("concat", *positions_found, axis=axis)


def _is_bounded(emit: Emitter, x: Value) -> bool:
    """Whether no element is infinite: scores of experts are mostly results of softmax."""
    producers = {value: node for node in emit.builder.graph.nodes for value in node.outputs}
    node = producers.get(x)
    while node is not None and node.op == "cast" and node.inputs[0] is not None and x.dtype.is_float:
        node = producers.get(node.inputs[0])
    return node is not None and node.op in ("softmax", "sigmoid")


def _one_of(emit: Emitter, position: Value | int, positions: Sequence[Value]) -> Value:
    """Whether a position is one of several."""
    found = [emit.op("equal", item, position) for item in positions]
    return functools.reduce(lambda left, right: emit.op("logical_or", left, right), found)


def _first_free(emit: Emitter, taken: Value, positions: Sequence[Value], axis: int) -> Value:
    """The first position that is not taken: one of the first n + 1, where n are."""
    if len(positions) > FEW:
        return emit.op("argmin", emit.cast(taken, int32), axis=axis, keepdims=True)
    free: Value = emit.builder.number(len(positions), int64)
    for number in reversed(range(len(positions))):
        free = emit.op("where", _one_of(emit, number, positions), free, emit.builder.number(number, int64))
    return free


def _worst(x: Value, largest: bool) -> float:
    """What no element is worse than."""
    if x.dtype.is_float:
        return float("-inf") if largest else float("inf")
    bits = x.dtype.bits - x.dtype.is_signed
    return (-(2**bits) if x.dtype.is_signed else 0) if largest else 2**bits - 1
