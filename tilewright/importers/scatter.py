"""Scatters of single elements by flat index; shared by the importers."""

from __future__ import annotations

from tilewright.dtypes import int1, int32, int64
from tilewright.graph.core import Value
from tilewright.importers.emitter import Emitter
from tilewright.symbolic import product


def scatter_slices(
    emit: Emitter, x: Value, indices: Value, updates: Value, axis: int, reduction: str = "none"
) -> Value:
    """x with its slices at indices [n] along `axis` replaced by updates, or combined with them.

    `reduction`: none, add, multiply, maximum or minimum. Truth values are added by "or" and multiplied by "and".
    Integers of 8 and 16 bits are combined in 32, for which GPUs have atomic operations.
    """
    if reduction == "none":
        return emit.op("scatter_update", x, indices, updates, axis=axis)
    dtype = x.dtype
    if dtype == int1:
        reduction = {"add": "maximum", "multiply": "minimum"}.get(reduction, reduction)
    if not dtype.is_float and dtype.bits < 32:
        x, updates = emit.cast(x, int32), emit.cast(updates, int32)
    result = emit.op("scatter_reduce", x, indices, updates, axis=axis, reduction=reduction, ordered=emit.ordered)
    return emit.cast(result, dtype)


def scatter_elements(
    emit: Emitter, x: Value, indices: Value, updates: Value, axis: int, reduction: str = "none"
) -> Value:
    """x with ``x[.., indices[.., i, ..], ..] = updates[.., i, ..]``; indices and updates have one shape.

    The position of every update in the flattened x is computed from its coordinates, with `indices`
    (not negative) along `axis`.
    """
    total: Value | None = None
    for place, extent in enumerate(x.shape):
        if place == axis:
            part = emit.cast(indices, int64)
        else:
            ones = tuple(indices.shape[place] if other == place else 1 for other in range(x.rank))
            part = emit.op("iota", shape=ones, axis=place, dtype=int64, start=0, step=1)
        if total is None:
            total = part
        else:
            total = emit.op("add", emit.op("multiply", total, emit.value(extent, int64)), part)
    assert total is not None
    count = product(indices.shape)
    flat = emit.reshape(emit.broadcast(total, indices.shape), (count,))
    line = emit.reshape(x, (product(x.shape),))
    merged = scatter_slices(emit, line, flat, emit.reshape(updates, (count,)), 0, reduction)
    return emit.reshape(merged, x.shape)
