"""Scatters of single elements, by flat positions; shared by the importers."""

from __future__ import annotations

from tilewright.dtypes import int64
from tilewright.graph.core import Value
from tilewright.importers.emitter import Emitter
from tilewright.symbolic import product


def scatter_elements(emit: Emitter, x: Value, indices: Value, updates: Value, axis: int) -> Value:
    """x with ``x[.., indices[.., i, ..], ..] = updates[.., i, ..]``; indices and updates have one shape.

    The position of every update in the flattened x is computed from its coordinates, with `indices`
    (not negative) along `axis`.
    """
    total: Value | None = None
    for place, extent in enumerate(x.shape):
        if place == axis:
            part = emit.cast(indices, int64)
        else:
            line = tuple(indices.shape[place] if other == place else 1 for other in range(x.rank))
            part = emit.op("iota", shape=line, axis=place, dtype=int64, start=0, step=1)
        if total is None:
            total = part
        else:
            total = emit.op("add", emit.op("multiply", total, emit.value(extent, int64)), part)
    assert total is not None
    count = product(indices.shape)
    flat = emit.reshape(emit.broadcast(total, indices.shape), (count,))
    merged = emit.op(
        "scatter_update", emit.reshape(x, (product(x.shape),)), flat, emit.reshape(updates, (count,)), axis=0
    )
    return emit.reshape(merged, x.shape)
