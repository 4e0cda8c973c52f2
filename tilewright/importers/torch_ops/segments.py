"""Reductions of the segments of a dimension, which follow each other."""

from __future__ import annotations

import math

from tilewright.dtypes import int64
from tilewright.graph.core import Value
from tilewright.importers.emitter import Number
from tilewright.importers.rules import RuleTable
from tilewright.importers.scatter import scatter_slices
from tilewright.importers.torch_fx import TorchCall
from tilewright.symbolic import Size, lift, product, simplify

TABLE = RuleTable("Segments", "aten.")

# By reduction: how elements are combined, and what a segment begins with.
_REDUCTIONS = {
    "sum": ("add", 0.0), "mean": ("add", 0.0), "prod": ("multiply", 1.0),
    "max": ("maximum", -math.inf), "min": ("minimum", math.inf),
}  # fmt: skip


@TABLE.rule("segment_reduce.default")
def segment_reduce(
    call: TorchCall,
    data: Value,
    reduce: str,
    lengths: Value | None = None,
    indices: Value | None = None,
    offsets: Value | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: Number | None = None,
) -> Value:
    """Of data [P, N, R] the segments of each row of offsets [P, S + 1], or of lengths [P, S], where P may be several
    dimensions; the mean of an empty segment is NaN unless it has an initial value."""
    axis %= data.rank
    lead, count, rest = data.shape[:axis], data.shape[axis], data.shape[axis + 1 :]
    rows, width = product(lead), product(rest)
    begins = _offsets(call, lengths, offsets, rows)
    segments = simplify(lift(begins.shape[1]) - 1)
    room = simplify(lift(segments) + 2)  # what lies before the first segment and after the last has a place, too
    places = call.op("add", _segments(call, begins, rows, count), _starts(call, rows, room))
    operation, first = _REDUCTIONS[reduce]
    elements = call.wide(call.reshape(data, (simplify(lift(rows) * count), width)))
    begun = call.full((simplify(lift(rows) * room), width), first if initial is None else initial, elements.dtype)
    found = scatter_slices(call, begun, call.reshape(places, (-1,)), elements, 0, operation)
    found = call.slice(call.reshape(found, (rows, room, width)), 1, 1, simplify(lift(segments) + 1))
    if reduce == "mean":
        found = _divided(call, found, begins, segments, initial)
    return call.cast(call.reshape(found, (*lead, segments, *rest)), data.dtype)


def _offsets(call: TorchCall, lengths: Value | None, offsets: Value | None, rows: Size) -> Value:
    """Where segments begin and the last one ends: [rows, S + 1]."""
    if offsets is not None:
        return call.cast(call.reshape(offsets, (rows, offsets.shape[-1])), int64)
    assert lengths is not None
    ends = call.op("cumsum", call.cast(call.reshape(lengths, (rows, lengths.shape[-1])), int64), axis=1)
    return call.op("concat", call.full((rows, 1), 0, int64), ends, axis=1)


def _starts(call: TorchCall, rows: Size, room: Size) -> Value:
    """Where each row begins among rows of some room, [rows, 1]."""
    return call.unsqueeze(call.op("multiply", call.iota(rows), call.value(room, int64)), 1)


def _segments(call: TorchCall, begins: Value, rows: Size, count: Size) -> Value:
    """The segment of each element [rows, count], counted from 1: how many begin, or end as the last, up to it."""
    room = simplify(lift(count) + 1)
    places = call.reshape(call.op("add", begins, _starts(call, rows, room)), (-1,))
    zeros = call.full((simplify(lift(rows) * room),), 0, int64)
    marks = scatter_slices(call, zeros, places, call.full(places.shape, 1, int64), 0, "add")
    line = call.op("cumsum", call.reshape(marks, (rows, room)), axis=1)
    return call.slice(line, 1, 0, count)


def _divided(call: TorchCall, sums: Value, begins: Value, segments: Size, initial: Number | None) -> Value:
    lengths = call.op(
        "subtract", call.slice(begins, 1, 1, simplify(lift(segments) + 1)), call.slice(begins, 1, 0, segments)
    )
    if initial is not None:  # which an empty segment has
        lengths = call.op("maximum", lengths, 1)
    return call.op("divide", sums, call.unsqueeze(call.cast(lengths, sums.dtype), 2))
