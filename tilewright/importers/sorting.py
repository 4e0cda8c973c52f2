"""Sorted rows, shared by the importers; the target decides how they are sorted."""

from __future__ import annotations

from tilewright.dtypes import uint8
from tilewright.graph.core import Value
from tilewright.importers.emitter import Emitter
from tilewright.symbolic import Size


def sort(emit: Emitter, x: Value, axis: int, descending: bool) -> tuple[Value, Value]:
    """(sorted values, int64 positions) along an axis; stable, NaN counts as the largest."""
    return top(emit, x, x.shape[axis], axis, descending)


def top(emit: Emitter, x: Value, count: Size, axis: int, largest: bool) -> tuple[Value, Value]:
    """(the largest or smallest values in order, their int64 positions) along an axis; no position comes twice."""
    keys = emit.cast(x, uint8) if x.dtype.is_bool else x
    positions = emit.op("argsort", keys, axis=axis, count=count, descending=largest)
    return emit.op("gather_elements", x, positions, axis=axis), positions
