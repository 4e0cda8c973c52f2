"""The graph op `argsort`: its type and meaning."""

from __future__ import annotations

import numpy as np

from tilewright.dtypes import int64
from tilewright.errors import ShapeError
from tilewright.graph.inference import Attributes, Inputs, Types, value
from tilewright.graph.semantics import Array, Arrays
from tilewright.symbolic import lift, lower_bound, simplify


def argsort_type(inputs: Inputs, attributes: Attributes) -> Types:
    """`count` int64 positions in the place of `axis`."""
    x, axis, count = value(inputs, 0), attributes["axis"], attributes["count"]
    if x.dtype.is_bool:
        raise ShapeError(f"{x!r} has no numbers to sort")
    if not 0 <= axis < x.rank:
        raise ShapeError(f"axis is {axis}, and {x!r} has {x.rank} dimensions")
    if lower_bound(count) < 0 or lower_bound(simplify(lift(count) - x.shape[axis])) > 0:
        raise ShapeError(f"the count is {count}, and dimension {axis} of {x!r} has {x.shape[axis]} elements")
    return [(int64, (*x.shape[:axis], count, *x.shape[axis + 1 :]))]


def argsort(inputs: Arrays, attributes: Attributes) -> Array:
    """Where the first `count` elements of the order along `axis` are."""
    axis = attributes["axis"]
    keys = np.moveaxis(inputs[0], axis, -1)
    return np.moveaxis(first_positions(keys, attributes["descending"], int(attributes["count"])), -1, axis)


def first_positions(keys: Array, descending: bool, count: int) -> Array:
    """int64 positions of the first `count` elements of each row in order; equal ones in their own order, NaN the
    largest."""
    keys = keys.astype(np.float32) if keys.dtype.kind == "V" else keys  # floats that NumPy does not have
    find = _best_of_many if 0 < count < keys.shape[-1] // 8 else _sorted
    return find(keys, descending, count).astype(np.int64)


def _sorted(keys: Array, descending: bool, count: int) -> Array:
    if not descending:
        return np.argsort(keys, axis=-1, kind="stable")[..., :count]
    # From the end, so that equal ones keep their order.
    order = keys.shape[-1] - 1 - np.flip(np.argsort(np.flip(keys, -1), axis=-1, kind="stable"), -1)
    return order[..., :count]


def _best_of_many(keys: Array, descending: bool, count: int) -> Array:
    """As `_sorted`: of each row only those are sorted that are as good as the last one taken."""
    rows = keys.reshape(-1, keys.shape[-1])
    order = np.empty((len(rows), count), np.int64)
    for row, found in zip(rows, order, strict=True):
        place = len(row) - count if descending else count - 1
        last = np.partition(row, place)[place]
        places = np.flatnonzero(~(row < last) if descending else ~(row > last))  # NaN too, which is sorted last
        found[:] = places[_sorted(row[places], descending, count)]
    return order.reshape(*keys.shape[:-1], count)
