"""Sampling of images and volumes at positions given by a tensor; shared by the importers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import reduce

from tilewright.dtypes import float32, int32, int64
from tilewright.graph.core import Value
from tilewright.importers.emitter import Emitter
from tilewright.importers.report import Unsupported
from tilewright.symbolic import Size, lift, product, simplify, upper_bound

Tap = tuple[Value, Value]  # positions in pixels along one dimension (whole numbers), and their weights


def grid_sample(emit: Emitter, x: Value, grid: Value, mode: str, padding: str, align_corners: bool) -> Value:
    """Images [N, C, *spatial] at places [N, *out, d] (the last dimension first, from -1 to 1): [N, C, *out].

    `mode`: linear, nearest or cubic. `padding`, for places outside: zeros, border (the nearest pixel) or reflection.
    """
    if mode not in ("linear", "nearest", "cubic"):
        raise Unsupported(f"sampling in mode {mode!r}", "use linear, nearest or cubic")
    if padding not in ("zeros", "border", "reflection"):
        raise Unsupported(f"sampling with padding {padding!r}", "use zeros, border or reflection")
    batch, channels, *extents = x.shape
    count = len(extents)
    wide = max(x.dtype, grid.dtype, key=lambda dtype: dtype.bits if dtype.is_float else 0)
    grid = emit.cast(grid, float32 if wide.bits < 32 else wide)
    taps = []
    for index, extent in enumerate(extents):
        place = emit.select(grid, grid.rank - 1, count - 1 - index)
        place = _in_pixels(emit, emit.reshape(place, (batch, product(place.shape[1:]))), extent, align_corners)
        if mode != "cubic":
            place = _padded(emit, place, extent, padding, align_corners)
            found = linear_pair(emit, place) if mode == "linear" else [_nearest(emit, place)]
        else:
            found = [
                (_padded(emit, position, extent, padding, align_corners), weight)
                for position, weight in cubic_taps(emit, place)
            ]
        taps.append([inside(emit, tap, extent) for tap in found] if padding == "zeros" else found)
    pixels = emit.reshape(x, (batch, channels, product(extents)))
    found_pixels = weighted_sum(emit, weighted_taps(emit, pixels, extents, taps))
    return emit.reshape(emit.cast(found_pixels, x.dtype), (batch, channels, *grid.shape[1:-1]))


def linear_taps(emit: Emitter, place: Value, extent: Size) -> list[Tap]:
    """The two neighbours of places [N, P] in pixels; those outside weigh nothing."""
    return [inside(emit, tap, extent) for tap in linear_pair(emit, place)]


def weighted_taps(emit: Emitter, pixels: Value, extents: Sequence[Size], taps: Sequence[Sequence[Tap]]) -> list[Value]:
    """Pixels [N, C, product(extents)] at each combination of the taps of all dimensions, times its weight: [N, C, P].

    Positions outside are those of the nearest pixel.
    """
    found = []
    kind = int32 if upper_bound(product(tuple(extents))) < 1 << 31 else int64
    for corner in itertools.product(*taps):
        flat: Value | None = None
        for (position, _), extent in zip(corner, extents, strict=True):
            place = _nearest_inside(emit, emit.cast(position, kind), extent)
            before = None if flat is None else emit.op("multiply", flat, emit.value(extent, kind))
            flat = place if before is None else emit.op("add", before, place)
        assert flat is not None
        weight = reduce(lambda left, right: emit.op("multiply", left, right), [weight for _, weight in corner])
        batch, channels = pixels.shape[:2]
        index = emit.broadcast(emit.unsqueeze(flat, 1), (batch, channels, flat.shape[1]))
        pixel = emit.op("gather_elements", pixels, index, axis=2)
        found.append(emit.op("multiply", emit.cast(pixel, weight.dtype), emit.unsqueeze(weight, 1)))
    return found


def _nearest_inside(emit: Emitter, place: Value, extent: Size) -> Value:
    """Whole places from 0 up to the last one; NaN and what integers do not hold became the least of these."""
    if isinstance(extent, int):
        return emit.op("clip", place, low=0, high=extent - 1)
    last = emit.value(simplify(lift(extent) - 1), place.dtype)
    return emit.op("minimum", emit.op("maximum", place, 0), last)


def weighted_sum(emit: Emitter, parts: Sequence[Value]) -> Value:
    return reduce(lambda left, right: emit.op("add", left, right), parts)


def _in_pixels(emit: Emitter, place: Value, extent: Size, align_corners: bool) -> Value:
    """Places in pixels: -1 and 1 are the centres of the outer pixels (`align_corners`) or their outer edges."""
    size = emit.value(extent, place.dtype)
    place = emit.op("add", place, 1.0)
    if align_corners:
        return emit.op("multiply", place, emit.op("multiply", emit.op("subtract", size, 1.0), 0.5))
    return emit.op("multiply", emit.op("subtract", emit.op("multiply", place, size), 1.0), 0.5)


def _padded(emit: Emitter, place: Value, extent: Size, padding: str, align_corners: bool) -> Value:
    """Places moved into the image, by reflection at its ends or to the nearest pixel; with zeros they stay."""
    if padding == "zeros":
        return place
    size = emit.value(extent, place.dtype)
    last = emit.op("subtract", size, 1.0)
    if padding == "reflection":
        low, span = (0.0, emit.op("maximum", last, 1.0)) if align_corners else (-0.5, size)
        distance = emit.op("absolute", emit.op("subtract", place, low))
        reflections = emit.op("floor", emit.op("divide", distance, span))
        rest = emit.op("subtract", distance, emit.op("multiply", reflections, span))
        odd = emit.op("equal", emit.op("remainder", reflections, 2.0), 1.0)
        place = emit.op("add", emit.op("where", odd, emit.op("subtract", span, rest), rest), low)
    return emit.op("minimum", _positive(emit, place), last)


def _positive(emit: Emitter, place: Value) -> Value:
    """Places, 0 for those below and for NaN, which no pixel has: PyTorch reads the first one there."""
    return emit.op("where", emit.op("greater", place, 0.0), place, emit.builder.number(0.0, place.dtype))


def _nearest(emit: Emitter, place: Value) -> Tap:
    return emit.op("round", place), emit.op("full", shape=place.shape, value=1.0, dtype=place.dtype)


def linear_pair(emit: Emitter, place: Value) -> list[Tap]:
    first = emit.op("floor", place)
    far = emit.op("subtract", place, first)
    return [(first, emit.op("subtract", 1.0, far)), (emit.op("add", first, 1.0), far)]


def read_along(emit: Emitter, x: Value, axis: int, taps: Sequence[tuple[Value, Value | None]]) -> Value:
    """The weighted sum of taps [size] along one dimension of x; those beyond the image read its edge."""
    last = emit.value(simplify(lift(x.shape[axis]) - 1), taps[0][0].dtype)
    total: Value | None = None
    for position, weight in taps:
        index = emit.cast(emit.op("minimum", emit.op("maximum", position, 0.0), last), int64)
        found = emit.op("gather", x, index, axis=axis)
        if weight is not None:
            column = emit.reshape(emit.cast(weight, x.dtype), (*weight.shape, *[1] * (x.rank - 1 - axis)))
            found = emit.op("multiply", found, column)
        total = found if total is None else emit.op("add", total, found)
    assert total is not None
    return total


def linear_weight(emit: Emitter, far: Value) -> Value:
    """The weight of a pixel at a distance in linear interpolation."""
    return emit.op("maximum", emit.op("subtract", 1.0, far), 0.0)


def cubic_weight(emit: Emitter, far: Value, coefficient: float) -> Value:
    """The weight of a pixel at a distance in cubic convolution (Keys, 1981)."""
    outer = emit.op("where", emit.op("less", far, 2.0), cubic_beyond(emit, far, coefficient), 0.0)
    return emit.op("where", emit.op("less_equal", far, 1.0), cubic_near(emit, far, coefficient), outer)


def cubic_near(emit: Emitter, far: Value, coefficient: float) -> Value:
    """Up to a distance of 1."""
    curve = emit.op("subtract", emit.op("multiply", far, coefficient + 2), coefficient + 3)
    return emit.op("add", emit.op("multiply", emit.op("multiply", curve, far), far), 1.0)


def cubic_beyond(emit: Emitter, far: Value, coefficient: float) -> Value:
    """At a distance from 1 to 2."""
    curve = emit.op("add", emit.op("multiply", emit.op("subtract", far, 5.0), far), 8.0)
    return emit.op("multiply", emit.op("subtract", emit.op("multiply", curve, far), 4.0), coefficient)


def cubic_taps(emit: Emitter, place: Value, coefficient: float = -0.75) -> list[Tap]:
    """The four pixels around each place, weighted by cubic convolution (Keys, 1981)."""
    first = emit.op("floor", place)
    share = emit.op("subtract", place, first)
    found = []
    for step in range(-1, 3):
        position = emit.op("add", first, float(step))
        far = emit.op("absolute", emit.op("subtract", share, float(step)))
        weight = (cubic_near if step in (0, 1) else cubic_beyond)(emit, far, coefficient)
        found.append((position, weight))
    return found


def inside(emit: Emitter, tap: Tap, extent: Size) -> Tap:
    """A tap whose weights are 0 outside the image, and NaN where they are: for places that are NaN or infinite."""
    position, weight = tap
    size = emit.value(extent, position.dtype)
    within = emit.op("logical_and", emit.op("greater_equal", position, 0.0), emit.op("less", position, size))
    return position, emit.op("where", within, weight, emit.op("multiply", weight, 0.0))
