"""Where pools find what they give; shared by the importers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from tilewright.dtypes import int1, int64
from tilewright.graph.core import Value
from tilewright.graph.inference import pool_extent
from tilewright.importers.emitter import Emitter
from tilewright.importers.report import Unsupported
from tilewright.symbolic import lift, product, simplify


def positions_of_largest(
    emit: Emitter, x: Value, values: Value, options: Mapping[str, Any], columns_first: bool = False
) -> Value:
    """The first place of each window that holds its largest element, as a position in its plane as one line.

    `values` is the result of the graph's ``max_pool`` of x with `options`.
    `columns_first`: the spatial dimensions are counted from the first on.
    """
    extents, outs = x.shape[2:], values.shape[2:]
    needed = needed_padding(x, options)
    padded = emit.op("pad", x, pads=[(0, 0), (0, 0), *needed], value=least_of(x))
    inside = emit.op("pad", emit.full((1, 1, *extents), True, int1), pads=[(0, 0), (0, 0), *needed], value=False)
    found: Value = emit.full(values.shape, 0, int64)
    for tap in reversed(list(itertools.product(*map(range, options["kernel"])))):
        element, real, place = padded, inside, None
        for index, step in enumerate(tap):
            start, stride = step * options["dilation"][index], options["strides"][index]
            stop = simplify(lift(outs[index]) * stride + (start - stride + 1))
            element, real = (emit.slice(item, 2 + index, start, stop, stride) for item in (element, real))
            line = emit.iota(outs[index], start=start - options["padding"][index][0], step=stride)
            line = emit.reshape(line, [-1 if axis == index else 1 for axis in range(len(outs))])
            others = extents[:index] if columns_first else extents[index + 1 :]
            scaled = emit.op("multiply", line, emit.value(product(others), int64))
            place = scaled if place is None else emit.op("add", place, scaled)
        assert place is not None
        largest = emit.op("equal", element, values)
        if x.dtype.is_float:  # a window with a NaN has none that is larger
            largest = emit.op("logical_or", largest, emit.op("isnan", element))
        best = emit.op("logical_and", largest, real)
        found = emit.op("where", best, place, found)
    return found


def least_of(x: Value) -> float:
    """The number that is never the largest of a window."""
    return -math.inf if x.dtype.is_float else int(np.iinfo(x.dtype.numpy).min)


def needed_padding(x: Value, options: Mapping[str, Any]) -> list[tuple[int, int]]:
    """The padding of a pool with what the last window of `ceil_mode` reaches beyond it."""
    found = []
    for index, extent in enumerate(x.shape[2:]):
        low, high = options["padding"][index]
        if options["ceil_mode"]:
            count = pool_extent(extent, index, options)
            reach = options["dilation"][index] * (options["kernel"][index] - 1) + 1
            more = simplify((lift(count) - 1) * options["strides"][index] + (reach - low) - extent)
            if not isinstance(more, int):
                raise Unsupported("this pool with 'ceil_mode' of a dynamic image size", "fix the image size")
            high = max(high, more)
        found.append((low, high))
    return found
