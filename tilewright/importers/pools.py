"""Positions of pools' results; shared by the importers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.dtypes import int64
from tilewright.graph.core import Value
from tilewright.graph.inference import pool_extent
from tilewright.importers.emitter import Emitter
from tilewright.importers.report import Unsupported
from tilewright.symbolic import Size, lift, simplify


def positions_of_largest(
    emit: Emitter, x: Value, options: Mapping[str, Any], counts: Sequence[Size], columns_first: bool = False
) -> Value:
    """The first place of each window that holds its largest element, the last of its NaNs if it has any, as a position
    in its plane as one line.

    `options` are those of the graph's ``max_pool`` of x, `counts` the numbers of its windows in each dimension.
    `columns_first`: the spatial dimensions are counted from the first on.
    """
    extents, needed = x.shape[2:], needed_padding(x, options, exact=False)
    order = range(len(extents)) if columns_first else reversed(range(len(extents)))
    places: Value = emit.full((1, 1, *extents), 0, int64)
    below: Size = 1  # elements between neighbours along the axis
    for axis in order:
        line = emit.op("multiply", emit.iota(extents[axis]), emit.value(below, int64))
        places = emit.op(
            "add", places, emit.reshape(line, [-1 if place == axis else 1 for place in range(len(extents))])
        )
        below = simplify(lift(below) * extents[axis])
    best = _Best(
        emit.op("pad", x, pads=[(0, 0), (0, 0), *needed], value=least_of(x)),
        emit.op("pad", places, pads=[(0, 0), (0, 0), *needed], value=-1),
    )
    for axis in reversed(range(len(extents))):
        taps, step, stride = (options[name][axis] for name in ("kernel", "dilation", "strides"))
        length = 1  # taps of the windows so far, one at every place
        while 2 * length < taps:
            extent = simplify(lift(best.values.shape[2 + axis]) - length * step)
            best = best.sliced(emit, axis, 0, extent).joined(emit, best.sliced(emit, axis, length * step, extent))
            length *= 2
        last = best.sliced(emit, axis, 0, counts[axis], stride)
        if length < taps:  # windows that overlap: an element that is compared with itself stays
            last = last.joined(emit, best.sliced(emit, axis, (taps - length) * step, counts[axis], stride))
        best = last
    return emit.broadcast(best.places, (*x.shape[:2], *counts))  # windows of one element compare nothing


@dataclass(frozen=True)
class _Best:
    """The largest elements of windows, and their places: -1 where a window has padding alone."""

    values: Value
    places: Value

    def sliced(self, emit: Emitter, axis: int, start: int, count: Size, step: int = 1) -> _Best:
        """`count` windows along a spatial dimension."""
        stop = simplify((lift(count) - 1) * step + (start + 1))
        return _Best(*(emit.slice(item, 2 + axis, start, stop, step) for item in (self.values, self.places)))

    def joined(self, emit: Emitter, after: _Best) -> _Best:
        """Of windows and those that begin after them."""
        later = emit.op("logical_or", emit.op("greater", after.values, self.values), emit.op("less", self.places, 0))
        if self.values.dtype.is_float:
            later = emit.op("logical_or", later, emit.op("isnan", after.values))
        pairs = ((self.values, after.values), (self.places, after.places))
        return _Best(*(emit.op("where", later, new, old) for old, new in pairs))


def least_of(x: Value) -> float:
    """The number that is never the largest of a window."""
    return -math.inf if x.dtype.is_float else int(np.iinfo(x.dtype.numpy).min)


def needed_padding(x: Value, options: Mapping[str, Any], exact: bool = True) -> list[tuple[int, int]]:
    """The padding of a pool with what the last window of `ceil_mode` reaches beyond it; what it can reach at most where
    that depends on dynamic sizes and need not be `exact`."""
    found = []
    for index, extent in enumerate(x.shape[2:]):
        low, high = options["padding"][index]
        if options["ceil_mode"]:
            count = pool_extent(extent, index, options)
            reach = options["dilation"][index] * (options["kernel"][index] - 1) + 1
            more = simplify((lift(count) - 1) * options["strides"][index] + (reach - low) - extent)
            if not isinstance(more, int) and not exact:
                more = high + options["strides"][index] - 1
            if not isinstance(more, int):
                raise Unsupported("this pool with 'ceil_mode' of a dynamic image size", "fix the image size")
            high = max(high, more)
        found.append((low, high))
    return found
