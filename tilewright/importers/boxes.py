"""Boxes of images, resampled to one size: means or largest elements of the bins of each; shared by the importers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.dtypes import DType, float32, int64
from tilewright.graph.core import Value
from tilewright.importers.emitter import Emitter
from tilewright.importers.sampling import linear_pair, weighted_sum, weighted_taps
from tilewright.symbolic import Size, floor_divide, lift, product, simplify


def align(
    call: Emitter, x: Value, boxes: Value, images: Value, shape: Sequence[int], ratio: int, scale: float, half: bool,
    mode: str = "avg",
) -> Value:  # fmt: skip
    """Boxes [R, 4] (x1, y1, x2, y2, times `scale`) of images [N, C, H, W], the number of whose image is in `images`
    [R]: [R, C, *shape].

    Each bin is the mean (or the largest, `mode` max) of `ratio` by `ratio` samples between pixels; 0 samples as many as
    a bin has pixels.  With `half` pixels have their centres at half a pixel, and boxes may be smaller than one.
    """
    sides = _sides(call, call.cast(boxes, _accurate(x)), scale, half)
    if not half:
        sides = [(start, call.op("maximum", size, 1.0)) for start, size in sides]
    return _aligned(call, x, sides, images, shape, ratio, mode)


Sides = list[tuple[Value, Value]]  # of rows and columns: the start and the size of boxes [R, 1]


def _accurate(x: Value) -> DType:
    return x.dtype if x.dtype.bits >= 32 else float32


def _sides(call: Emitter, boxes: Value, scale: float, half: bool) -> Sides:
    boxes = call.op("multiply", boxes, scale)
    boxes = call.op("subtract", boxes, 0.5) if half else boxes
    sides = []
    for index in (1, 0):
        start = call.slice(boxes, 1, index, index + 1)
        sides.append((start, call.op("subtract", call.slice(boxes, 1, index + 2, index + 3), start)))
    return sides


def _aligned(
    call: Emitter, x: Value, sides: Sides, images: Value, shape: Sequence[int], ratio: int, mode: str = "avg"
) -> Value:
    rows, columns = shape
    dtype = sides[0][0].dtype
    if ratio <= 0:
        by_size = _largest_by_size if mode == "max" else _align_by_size
        return call.cast(by_size(call, x, images, sides, (rows, columns)), x.dtype)
    taps = []
    for (start, size), count, extent in zip(sides, (rows, columns), x.shape[2:], strict=True):
        line = call.op("divide", call.op("add", call.iota(count * ratio, dtype), 0.5), float(count * ratio))
        place = call.op("add", start, call.op("multiply", line, size))  # [R, count ratio]
        limit = call.value(extent, dtype)
        inside = call.op("logical_and", call.op("greater_equal", place, -1.0), call.op("less_equal", place, limit))
        place = call.op("minimum", call.op("maximum", place, 0.0), call.op("subtract", limit, 1.0))
        zero = call.builder.number(0.0, dtype)
        taps.append([(at, call.op("where", inside, weight, zero)) for at, weight in linear_pair(call, place)])
    grid = (rows * ratio, columns * ratio)
    spread = [
        [tuple(_over_grid(call, item, grid, index) for item in tap) for tap in found]
        for index, found in enumerate(taps)
    ]
    planes = call.op("gather", call.reshape(x, (*x.shape[:2], product(x.shape[2:]))), images, axis=0)
    parts = weighted_taps(call, planes, x.shape[2:], spread)  # type: ignore[arg-type]
    if mode == "max":
        found = parts[0]
        for part in parts[1:]:
            found = call.op("maximum", found, part)
    else:
        found = weighted_sum(call, parts)
    found = call.reshape(found, (images.shape[0], x.shape[1], rows, ratio, columns, ratio))
    return call.cast(call.op("reduce_max" if mode == "max" else "reduce_mean", found, axes=(3, 5)), x.dtype)


def _over_grid(call: Emitter, item: Value, grid: tuple[int, int], index: int) -> Value:
    """What belongs to the rows (0) or columns (1) of a grid, [R, size], at each of its places: [R, rows columns]."""
    spread = call.broadcast(call.unsqueeze(item, 2 - index), (item.shape[0], *grid))
    return call.reshape(spread, (item.shape[0], grid[0] * grid[1]))


def _samples_inside(call: Emitter, start: Value, size: Value, count: int, extent: Size) -> tuple[Value, Value, Value]:
    """Samples in each of `count` bins along one dimension, as many as a bin has pixels: their places in the image
    [R, count, samples], which of them there are, and the number of samples of a bin [R, 1, 1].

    Samples outside the image are not among them: those inside are enumerated from the first one on.
    """
    limit = call.value(extent, start.dtype)
    bin_size = call.unsqueeze(call.op("divide", size, float(count)), 2)  # [R, 1, 1]
    samples = call.op("maximum", call.op("ceil", bin_size), 0.0)
    step = call.op("divide", bin_size, call.op("maximum", samples, 1.0))
    bins = call.reshape(call.iota(count, start.dtype), (1, count, 1))
    first = call.op("add", call.unsqueeze(start, 2), call.op("multiply", bins, bin_size))  # [R, count, 1]
    first = call.op("add", first, call.op("multiply", step, 0.5))
    safe = call.op("where", call.op("greater", step, 0.0), step, 1.0)
    skipped = call.op("maximum", call.op("floor", call.op("divide", call.op("subtract", -1.0, first), safe)), 0.0)
    most = simplify(lift(extent) * 2 + 8)  # steps are above half a pixel where there are two or more
    index = call.op("add", skipped, call.iota(most, start.dtype))
    place = call.op("add", first, call.op("multiply", index, step))
    inside = call.op("logical_and", call.op("greater_equal", place, -1.0), call.op("less_equal", place, limit))
    inside = call.op("logical_and", inside, call.op("less", index, samples))
    place = call.op("minimum", call.op("maximum", place, 0.0), call.op("subtract", limit, 1.0))
    return place, inside, samples


def _largest_by_size(call: Emitter, x: Value, images: Value, sides: Sides, counts: tuple[int, int]) -> Value:
    """The largest of the pixels around as many samples as a bin has pixels, each times its weight.

    Weights are not negative, so that the dimensions follow one after the other, and of all weights of one pixel in a
    bin the largest and the smallest one suffice.  Samples outside the image are zeros, and so are bins without samples.
    """
    found = call.cast(call.op("gather", x, images, axis=0), sides[0][0].dtype)  # [R, C, H, W]
    empty: Value | None = None
    for axis, ((start, size), count, extent) in enumerate(zip(sides, counts, x.shape[2:], strict=True), start=2):
        place, inside, samples = _samples_inside(call, start, size, count, extent)
        taps = linear_pair(call, place)
        last = call.op("subtract", call.value(extent, place.dtype), 1.0)
        pixel = call.iota(extent, place.dtype)
        extremes = []  # [R, count, extent]
        for op, neutral in (("maximum", -math.inf), ("minimum", math.inf)):
            none, parts = call.builder.number(neutral, place.dtype), []
            for position, weight in taps:
                at = call.op("equal", call.unsqueeze(call.op("minimum", position, last), 3), pixel)
                there = call.op("logical_and", at, call.unsqueeze(inside, 3))
                parts.append(call.op("where", there, call.unsqueeze(weight, 3), none))
            extremum = call.op(op, *parts)
            extremes.append(call.op("reduce_max" if op == "maximum" else "reduce_min", extremum, axes=(2,)))
        least = call.builder.number(-math.inf, place.dtype)
        shape = (start.shape[0], 1, count, extent, 1) if axis == 2 else (start.shape[0], 1, 1, count, extent)
        high, low = (call.reshape(extreme, shape) for extreme in extremes)
        spread = call.unsqueeze(found, axis)
        largest = call.op("maximum", call.op("multiply", spread, high), call.op("multiply", spread, low))
        largest = call.op("where", call.op("greater_equal", high, 0.0), largest, least)
        found = call.op("reduce_max", largest, axes=(axis + 1,))
        number = call.op("reduce_sum", call.cast(inside, place.dtype), axes=(2,), keepdims=True)
        outside = call.op("less", number, samples)
        bins = (start.shape[0], 1, count, 1) if axis == 2 else (start.shape[0], 1, 1, count)
        found = call.op("where", call.reshape(outside, bins), call.op("maximum", found, 0.0), found)
        none_here = call.op("equal", call.reshape(samples, (start.shape[0], 1, 1, 1)), 0.0)
        empty = none_here if empty is None else call.op("logical_or", empty, none_here)
    assert empty is not None
    return call.op("where", empty, call.builder.number(0.0, found.dtype), found)


def _align_by_size(call: Emitter, x: Value, images: Value, sides: Sides, counts: tuple[int, int]) -> Value:
    """The mean of as many samples as a bin has pixels: the weight of every pixel row and column for every bin."""
    matrices = []
    for (start, size), count, extent in zip(sides, counts, x.shape[2:], strict=True):
        place, inside, samples = _samples_inside(call, start, size, count, extent)
        pixel = call.iota(extent, start.dtype)
        far = call.op("absolute", call.op("subtract", call.unsqueeze(place, 3), pixel))
        weight = call.op("maximum", call.op("subtract", 1.0, far), 0.0)
        weight = call.op("where", call.unsqueeze(inside, 3), weight, call.builder.number(0.0, start.dtype))
        total = call.op("reduce_sum", weight, axes=(2,))  # [R, count, extent]
        matrices.append((total, samples))
    (rows, row_number), (columns, column_number) = matrices
    planes = call.cast(call.op("gather", x, images, axis=0), rows.dtype)  # [R, C, H, W]
    left = call.op("matmul", call.unsqueeze(rows, 1), planes)
    result = call.op("matmul", left, call.unsqueeze(columns, 1), transpose_b=True)
    number = call.op("maximum", call.op("multiply", row_number, column_number), 1.0)  # [R, 1, 1]
    return call.op("divide", result, call.unsqueeze(number, 3))


def pool(call: Emitter, x: Value, boxes: Value, shape: Sequence[int], scale: float) -> Value:
    """The largest elements of the bins of boxes [R, 5], which begin with the number of their image: [R, C, *shape]."""
    images = call.reshape(call.cast(call.slice(boxes, 1, 0, 1), int64), (-1,))
    found = call.op("gather", x, images, axis=0)  # [R, C, H, W]
    least = call.builder.number(-math.inf, x.dtype)
    for axis, (index, bins) in enumerate(zip((2, 1), shape, strict=True), start=2):
        edges = [call.op("multiply", call.slice(boxes, 1, place, place + 1), scale) for place in (index, index + 2)]
        start, end = (call.op("floor", call.op("add", edge, 0.5)) for edge in edges)  # [R, 1]
        size = call.op("maximum", call.op("add", call.op("subtract", end, start), 1.0), 1.0)
        step, line = call.op("divide", size, float(bins)), call.iota(bins, boxes.dtype)
        low = call.op("add", call.op("floor", call.op("multiply", step, line)), start)  # [R, bins]
        high = call.op("add", call.op("ceil", call.op("multiply", step, call.op("add", line, 1.0))), start)
        pixel = call.iota(x.shape[axis], boxes.dtype)
        low, high = call.unsqueeze(low, 2), call.unsqueeze(high, 2)
        inside = call.op("logical_and", call.op("greater_equal", pixel, low), call.op("less", pixel, high))
        if axis == 2:
            inside = call.reshape(inside, (boxes.shape[0], 1, bins, x.shape[2], 1))
            spread = call.unsqueeze(found, 2)
        else:
            inside = call.reshape(inside, (boxes.shape[0], 1, 1, bins, x.shape[3]))
            spread = call.unsqueeze(found, 3)
        found = call.op("reduce_max", call.op("where", inside, spread, least), axes=(3 if axis == 2 else 4,))
    empty = call.op("equal", found, -math.inf)
    return call.op("where", empty, call.builder.number(0.0, x.dtype), found)


def align_by_channels(
    call: Emitter, x: Value, boxes: Value, images: Value, shape: Sequence[int], ratio: int, scale: float
) -> Value:
    """As `align` with `half`, each bin of channels of its own: x [N, C rows columns, H, W] gives [R, C, rows, columns].

    Each bin is a box of its own of the image that has its channels.
    """
    rows, columns = shape
    dtype, count = _accurate(x), rows * columns
    sides = []
    for axis, (start, size) in enumerate(_sides(call, call.cast(boxes, dtype), scale, half=True)):
        size = call.op("divide", size, float(shape[axis]))
        place = call.reshape(call.iota(shape[axis], dtype), (1, rows, 1) if axis == 0 else (1, 1, columns))
        begin = call.op("add", call.op("multiply", place, call.unsqueeze(size, 2)), call.unsqueeze(start, 2))
        sides.append((_of_bins(call, begin, shape), _of_bins(call, call.unsqueeze(size, 2), shape)))
    bins = call.op("add", call.op("multiply", call.unsqueeze(images, 1), count), call.unsqueeze(call.iota(count), 0))
    found = _aligned(call, _channels_of_bins(call, x, count), sides, call.reshape(bins, (-1,)), (1, 1), ratio)
    if ratio <= 0:  # means of no samples
        samples = call.op("multiply", *(call.op("ceil", size) for _, size in sides))
        none = call.reshape(call.op("equal", samples, 0.0), (-1, 1, 1, 1))
        found = call.op("where", none, call.builder.number(math.nan, x.dtype), found)
    found = call.reshape(found, (images.shape[0], rows, columns, found.shape[1]))
    return call.permute(found, (0, 3, 1, 2))


def _of_bins(call: Emitter, item: Value, shape: Sequence[int]) -> Value:
    """What boxes have for rows, columns or all of their bins, [R, …], for each bin: [R rows columns, 1]."""
    return call.reshape(call.broadcast(item, (item.shape[0], *shape)), (-1, 1))


def _channels_of_bins(call: Emitter, x: Value, count: int) -> Value:
    """Images [N, C count, H, W] of bins as images [N count, C, H, W]."""
    batch, channels, *extents = x.shape
    parts = call.reshape(x, (batch, floor_divide(channels, count), count, *extents))
    parts = call.permute(parts, (0, 2, 1, 3, 4))
    return call.reshape(parts, (simplify(lift(batch) * count), *parts.shape[2:]))


def pool_by_channels(call: Emitter, x: Value, boxes: Value, shape: Sequence[int], scale: float) -> Value:
    """Means of the bins of boxes [R, 5], which begin with the number of their image, each bin of channels of its own:
    x [N, C rows columns, H, W] gives [R, C, rows, columns].  The last row and column of an image are not read.
    """
    images = call.reshape(call.cast(call.slice(boxes, 1, 0, 1), int64), (-1,))
    parts = _channels_of_bins(call, x, math.prod(shape))
    parts = call.reshape(parts, (x.shape[0], *shape, *parts.shape[1:]))  # [N, rows, columns, C, H, W]
    found = call.op("gather", parts, images, axis=0)
    total, empty, size = found, None, None
    for axis, (index, bins) in enumerate(zip((2, 1), shape, strict=True)):
        low, high = _pooled_span(call, boxes, index, scale, bins, x.shape[2 + axis])  # [R, bins]
        pixel = call.iota(x.shape[2 + axis], boxes.dtype)
        inside = call.op(
            "logical_and",
            call.op("greater_equal", pixel, call.unsqueeze(low, 2)),
            call.op("less", pixel, call.unsqueeze(high, 2)),
        )
        own = [boxes.shape[0], 1, 1]
        own[1 + axis] = bins
        mask = call.reshape(inside, (*own, 1, *((x.shape[2], 1) if axis == 0 else (1, x.shape[3]))))
        total = call.op("where", mask, total, call.builder.number(0.0, x.dtype))
        extent = call.reshape(call.op("subtract", high, low), (*own, 1))
        nothing = call.op("less_equal", extent, 0.0)
        empty = nothing if empty is None else call.op("logical_or", empty, nothing)
        size = extent if size is None else call.op("multiply", size, extent)
    assert empty is not None and size is not None
    mean = call.op("divide", call.op("reduce_sum", total, axes=(4, 5), keepdims=False), call.cast(size, x.dtype))
    return call.permute(call.op("where", empty, call.builder.number(0.0, x.dtype), mean), (0, 3, 1, 2))


def _pooled_span(call: Emitter, boxes: Value, index: int, scale: float, bins: int, extent: Size) -> tuple[Value, Value]:
    """Where bins of boxes begin and end along the dimension of their numbers `index` and `index` + 2: [R, bins]."""
    edges = [call.op("multiply", call.slice(boxes, 1, place, place + 1), scale) for place in (index, index + 2)]
    start, end = (_rounded_away(call, edge) for edge in edges)  # [R, 1]
    step = call.op("divide", call.op("maximum", call.op("subtract", end, start), 1.0), float(bins))
    line, limit = call.iota(bins, boxes.dtype), call.value(simplify(lift(extent) - 1), boxes.dtype)
    low = call.op("floor", call.op("multiply", step, line))
    high = call.op("ceil", call.op("multiply", step, call.op("add", line, 1.0)))
    low, high = (
        call.op("minimum", call.op("maximum", call.op("add", place, start), 0.0), limit) for place in (low, high)
    )
    return low, high


def _rounded_away(call: Emitter, number: Value) -> Value:
    """The nearest whole number; of two the one farther from 0."""
    size = call.op("floor", call.op("add", call.op("absolute", number), 0.5))
    return call.op("where", call.op("less", number, 0.0), call.op("negate", size), size)
