"""Pools and resampling of images."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from tilewright.dtypes import float32, float64, int64, uint8
from tilewright.graph.core import Value
from tilewright.importers import images
from tilewright.importers.emitter import Emitter
from tilewright.importers.formulas import truncate
from tilewright.importers.pools import positions_of_largest
from tilewright.importers.rules import RuleTable
from tilewright.importers.sampling import cubic_weight, grid_sample, linear_pair, linear_weight, read_along
from tilewright.importers.torch_fx import TorchCall
from tilewright.importers.windows import WindowAxis, fold, unfold
from tilewright.symbolic import Size, floor_divide, lift, maximum, product, simplify

TABLE = RuleTable("Pools and resampling", "aten.")
rule = TABLE.rule

Ints = int | Sequence[int]


def _each(item: Ints, count: int) -> tuple[int, ...]:
    items = [item] if isinstance(item, int) else list(item)
    return tuple(items * count if len(items) == 1 else items)


def _batched(call: TorchCall, x: Value) -> Value:
    """An image with a batch, which the ops of pools need."""
    count = int(call.node.target.__name__.split("pool")[1][0])  # type: ignore[union-attr]
    return x if x.rank == count + 2 else call.unsqueeze(x, 0)


def _window(batched: Value, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints) -> dict[str, Any]:
    """The attributes of a pool over the last dimensions."""
    count = batched.rank - 2
    sizes = _each(kernel, count)
    strides = sizes if stride is None or (not isinstance(stride, int) and not stride) else _each(stride, count)
    pads = tuple((pad, pad) for pad in _each(padding, count))
    return {"kernel": sizes, "strides": strides, "padding": pads, "dilation": _each(dilation, count)}


def _pool(
    call: TorchCall, op: str, x: Value, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints, **options: Any
) -> Value:
    batched = _batched(call, x)
    result = call.op(op, batched, **_window(batched, kernel, stride, padding, dilation), **options)
    return result if batched is x else call.reshape(result, result.shape[1:])


@rule("max_pool1d.default", "max_pool2d.default", "max_pool3d.default")
def max_pool(
    call: TorchCall,
    x: Value,
    kernel: Ints,
    stride: Ints = (),
    padding: Ints = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
) -> Value:
    return _pool(call, "max_pool", x, kernel, stride, padding, dilation, ceil_mode=ceil_mode)


@rule("max_pool2d_with_indices.default", "max_pool3d_with_indices.default")
def max_pool_with_indices(
    call: TorchCall,
    x: Value,
    kernel: Ints,
    stride: Ints = (),
    padding: Ints = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
) -> tuple[Value, Value | None]:
    """The second result is the place of each largest element in its plane, where it is read."""
    batched = _batched(call, x)
    window = {**_window(batched, kernel, stride, padding, dilation), "ceil_mode": ceil_mode}
    values = call.op("max_pool", batched, **window)
    found = positions_of_largest(call, batched, window, values.shape[2:]) if call.is_read(1) else None
    if batched is x:
        return values, found
    return call.reshape(values, values.shape[1:]), found and call.reshape(found, found.shape[1:])


@rule("avg_pool1d.default", "avg_pool2d.default", "avg_pool3d.default")
def average_pool(
    call: TorchCall,
    x: Value,
    kernel: Ints,
    stride: Ints = (),
    padding: Ints = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Value:
    options = {"ceil_mode": ceil_mode, "count_include_pad": count_include_pad}
    if divisor_override is not None:
        count = 3 if "3d" in str(call.node.target) else 2
        if ceil_mode:
            x, padding = _filled_up(call, x, count, kernel, stride, padding), 0
        found = _pool(call, "average_pool", x, kernel, stride, padding, 1, ceil_mode=False, count_include_pad=True)
        return call.op("multiply", found, math.prod(_each(kernel, count)) / divisor_override)
    return _pool(call, "average_pool", x, kernel, stride, padding, 1, **options)


def _filled_up(call: TorchCall, x: Value, count: int, kernel: Ints, stride: Ints, padding: Ints) -> Value:
    """An image with zeros around it, as far as the windows of the results reach."""
    sizes = _each(kernel, count)
    strides = sizes if stride is None or (not isinstance(stride, int) and not stride) else _each(stride, count)
    pads: list[tuple[Size, Size]] = [(0, 0)] * (x.rank - count)
    extents, results = x.shape[-count:], call.shape[-count:]
    for extent, result, size, step, before in zip(extents, results, sizes, strides, _each(padding, count), strict=True):
        reach = simplify((lift(result) - 1) * step + size - before - extent)
        pads.append((before, maximum(reach, 0)))
    x = call.op("pad", x, pads=pads)
    for axis, (result, size, step) in enumerate(zip(results, sizes, strides, strict=True), start=x.rank - count):
        x = call.slice(x, axis, 0, simplify((lift(result) - 1) * step + size))
    return x


@rule(
    "adaptive_avg_pool1d.default",
    "adaptive_avg_pool2d.default",
    "adaptive_avg_pool3d.default",
    "_adaptive_avg_pool2d.default",
    "_adaptive_avg_pool3d.default",
)
def adaptive_average_pool(call: TorchCall, x: Value, sizes: Sequence[Size]) -> Value:
    batched = x if x.rank == len(sizes) + 2 else call.unsqueeze(x, 0)
    return call.reshape(images.adaptive_average(call, batched, sizes), call.shape)


@rule("adaptive_max_pool2d.default", "adaptive_max_pool3d.default", "adaptive_max_pool1d.default")
def adaptive_max_pool(call: TorchCall, x: Value, sizes: Sequence[Size]) -> tuple[Value, Value | None]:
    """The largest of each part of each dimension, parts overlap where sizes do not divide; and its place in its plane,
    where that is read."""
    first = x.rank - len(sizes)
    if call.is_read(1):
        return _largest_and_places(call, x, sizes)
    window = images.even_windows(x.shape[first:], sizes)
    if window is not None and any(size != 1 for size in sizes):
        batched = x if x.rank == len(sizes) + 2 else call.unsqueeze(x, 0)
        return call.reshape(call.op("max_pool", batched, **window), call.shape), None
    whole = tuple(first + place for place, size in enumerate(sizes) if size == 1)
    if whole:
        x = call.op("reduce_max", x, axes=whole, keepdims=True)
    for axis, size in enumerate(sizes, start=first):
        if size in (1, x.shape[axis]):
            continue
        if _vary(x.shape[axis], size):
            parts_of = call.op("gather", x, _members(call, x.shape[axis], size), axis=axis)
            x = call.op("reduce_max", parts_of, axes=(axis + 1,), keepdims=False)
            continue
        edges = _edges(x.shape[axis], size)
        parts = [call.op("reduce_max", call.slice(x, axis, *edge), axes=(axis,), keepdims=True) for edge in edges]
        x = call.op("concat", *parts, axis=axis)
    return x, None


def _edges(extent: Size, size: Size) -> list[tuple[int, Size]]:
    """Where each part of a dimension begins and ends."""
    if size == 1:
        return [(0, extent)]
    assert isinstance(extent, int) and isinstance(size, int)
    return [(place * extent // size, -(-(place + 1) * extent // size)) for place in range(size)]


def _vary(extent: Size, size: Size) -> bool:
    """Whether the parts of a dimension differ from call to call."""
    return size != 1 and not (isinstance(extent, int) and isinstance(size, int))


def _members(call: TorchCall, extent: Size, size: Size) -> Value:
    """The places [size, width] of what each part of a dimension has; shorter parts have their last one again."""
    width = simplify(lift(floor_divide(lift(extent) + size - 1, size)) + 1)
    old, new = call.value(extent, int64), call.value(size, int64)
    rows, steps = call.unsqueeze(call.iota(size), 1), call.unsqueeze(call.iota(width), 0)
    begin = call.op("floor_divide", call.op("multiply", rows, old), new)
    end = call.op("multiply", call.op("add", rows, 1), old)
    last = call.op("floor_divide", call.op("subtract", end, 1), new)
    return call.op("minimum", call.op("add", begin, steps), last)


def _largest_and_places(call: TorchCall, x: Value, sizes: Sequence[Size]) -> tuple[Value, Value]:
    """One dimension after the other, the last one first: the first of equal elements in the plane, the last of NaNs."""
    places: Value = call.full(x.shape, 0, int64)
    below: Size = 1  # elements of the plane between neighbours along the axis
    for axis in reversed(range(x.rank - len(sizes), x.rank)):
        extent, size = x.shape[axis], sizes[axis - x.rank]
        if _vary(extent, size):
            x, places = _largest_of_members(call, x, places, axis, size, below)
        else:
            found = [_largest(call, x, places, axis, edge, below) for edge in _edges(extent, size)]
            x, places = (
                call.op("concat", *parts, axis=axis) if len(parts) > 1 else parts[0]
                for parts in zip(*found, strict=True)
            )
        below = simplify(lift(extent) * below)
    return x, places


def _largest(
    call: TorchCall, x: Value, places: Value, axis: int, edge: tuple[int, Size], below: Size
) -> tuple[Value, Value]:
    """The largest of a part of an axis, which is kept with one element, and its place."""
    part, known = (call.slice(item, axis, *edge) for item in (x, places))
    best = _best(call, part, axis)
    value = call.op("gather_elements", part, best, axis=axis)
    own = call.op("multiply", call.op("add", best, call.value(edge[0], int64)), call.value(below, int64))
    return value, call.op("add", own, call.op("gather_elements", known, best, axis=axis))


def _largest_of_members(
    call: TorchCall, x: Value, places: Value, axis: int, size: Size, below: Size
) -> tuple[Value, Value]:
    """The largest of each part of an axis, and their places."""
    extent = x.shape[axis]
    line = call.op("multiply", call.iota(extent), call.value(below, int64))
    places = call.op("add", places, call.reshape(line, [-1 if at == axis else 1 for at in range(x.rank)]))
    members = _members(call, extent, size)
    x, places = (call.op("gather", item, members, axis=axis) for item in (x, places))
    best = _best(call, x, axis + 1)
    found = (call.op("gather_elements", item, best, axis=axis + 1) for item in (x, places))
    value, place = (call.squeeze(item, (axis + 1,)) for item in found)
    return value, place


def _best(call: TorchCall, x: Value, axis: int) -> Value:
    """The place of the largest element along an axis, which is kept with one element."""
    best = call.op("argmax", x, axis=axis, keepdims=True)
    return call.op("maximum", best, _last_nan(call, x, axis)) if x.dtype.is_float else best


def _last_nan(call: TorchCall, x: Value, axis: int) -> Value:
    """The place of the last NaN along an axis, which is kept with one element; -1 where there is none."""
    line = call.reshape(call.iota(x.shape[axis]), [-1 if place == axis else 1 for place in range(x.rank)])
    places = call.op("where", call.op("isnan", x), line, call.value(-1, int64))
    return call.op("reduce_max", places, axes=(axis,), keepdims=True)


@rule(
    "upsample_nearest1d.vec",
    "upsample_nearest2d.vec",
    "upsample_nearest3d.vec",
    "upsample_nearest1d.default",
    "upsample_nearest2d.default",
    "upsample_nearest3d.default",
)
def upsample_nearest(call: TorchCall, x: Value, sizes: Any, *scales: Any) -> Value:
    factors = _factors(scales, x.rank - 2)
    targets = zip(range(2, x.rank), call.shape[2:], factors, strict=True)
    return images.upsample_nearest(call, x, targets, exact_at_1_and_2=x.rank == 4 and _is_on_cpu(call))


@rule(
    "upsample_linear1d.vec",
    "upsample_bilinear2d.vec",
    "upsample_trilinear3d.vec",
    "upsample_linear1d.default",
    "upsample_bilinear2d.default",
    "upsample_trilinear3d.default",
)
def upsample_linear(call: TorchCall, x: Value, sizes: Any, align_corners: bool, *scales: Any) -> Value:
    """Linear interpolation along one spatial dimension after the other; between gathered pixels where sizes are
    dynamic."""

    def resampled(axis: int, extent: Size, size: Size, factor: float | None) -> Callable[[Value], Value]:
        if isinstance(extent, int) and isinstance(size, int):
            taps = images.interpolation_taps(sample_places(extent, size, align_corners, factor), extent)
            return lambda x: images.resampled(call, x, axis, taps)
        place = _places_at_run_time(call, extent, size, align_corners, factor)
        return lambda x: read_along(call, x, axis, linear_pair(call, call.op("maximum", place, 0.0)))

    steps = [
        (axis, resampled(axis, extent, size, factor)) for axis, extent, size, factor in _resampled(call, x, scales)
    ]
    return _one_by_one(call, x, steps)


def _one_by_one(call: TorchCall, x: Value, steps: list[tuple[int, Callable[[Value], Value]]]) -> Value:
    """An image resampled along one dimension after the other; uint8 is rounded after each, as in PyTorch, the last one
    first."""
    if x.dtype != uint8:
        for _, step in steps:
            x = step(x)
        return x
    for _, step in reversed(steps):
        x = images.whole(call, step(call.cast(x, float32)), uint8)
    return x


def _factors(scales: Sequence[Any], count: int) -> tuple[float | None, ...]:
    """The scale of each spatial dimension, None where none is given; `.vec` overloads have them in one list."""
    factors = scales[0] if len(scales) == 1 and isinstance(scales[0], (list, tuple)) else scales
    return tuple(factors[place] if place < len(factors) else None for place in range(count))


def _resampled(call: TorchCall, x: Value, scales: Sequence[Any]) -> Iterator[tuple[int, Size, Size, float | None]]:
    """The axes of an image with their extents before and after, and the scales that are given: on CPUs not where they
    leave an extent as it is, which PyTorch then copies."""
    factors = _factors(scales, x.rank - 2)
    for place, (extent, size, factor) in enumerate(zip(x.shape[2:], call.shape[2:], factors, strict=True)):
        yield 2 + place, extent, size, None if extent == size and _is_on_cpu(call) else factor


def _is_on_cpu(call: TorchCall) -> bool:
    (first, *_) = call.results
    return first is not None and first.device.type == "cpu"


def _smoothed(
    curve: Callable[[np.ndarray], np.ndarray], weight: Callable[[Emitter, Value], Value], width: int
) -> Callable[..., Value]:
    """The rule of a resampling whose curve is as wide as what one pixel of a smaller image stands for.

    `weight` is the curve of distances that only the run knows.
    """

    def apply(call: TorchCall, x: Value, sizes: Any, align_corners: bool, *scales: Any) -> Value:
        steps: list[tuple[int, Callable[[Value], Value]]] = []
        for axis, extent, size, factor in _resampled(call, x, scales):
            if not (isinstance(extent, int) and isinstance(size, int)):
                run_time = _step_at_run_time(call, extent, size, align_corners, factor)
                scale = call.op("divide", 1.0, call.op("maximum", run_time, 1.0))
                place = _centres(call, size, run_time)
                found = images.curve_matrix_at_run_time(call, place, extent, weight, width, scale, True)
                steps.append((axis, partial(_mixed_at_run_time, call, axis, found)))
                continue
            step = (extent - 1) / max(size - 1, 1) if align_corners else 1 / factor if factor else extent / size
            places = (np.arange(size) + 0.5) * step - 0.5
            taps = images.curve_taps(places, extent, curve, width, min(1 / step if step else 1.0, 1.0), True)
            steps.append((axis, partial(_resampled_by, call, axis, taps)))
        return _one_by_one(call, x, steps)

    return apply


def _mixed_at_run_time(call: TorchCall, axis: int, matrix: Value, x: Value) -> Value:
    return images.mix(call, x, axis, call.cast(matrix, x.dtype))


def _resampled_by(call: TorchCall, axis: int, taps: images.Taps, x: Value) -> Value:
    return images.resampled(call, x, axis, taps)


_CURVES = (
    ("bilinear", images.linear_curve, linear_weight, 1),
    ("bicubic", images.cubic_curve(-0.5), partial(cubic_weight, coefficient=-0.5), 2),
)
for _name, _curve, _weight, _width in _CURVES:
    for _overload in ("default", "vec"):
        TABLE.add(f"_upsample_{_name}2d_aa.{_overload}", _smoothed(_curve, _weight, _width))


def sample_places(extent: int, size: int, align_corners: bool, factor: float | None) -> np.ndarray:
    """Where in the image (in pixels) each output pixel reads."""
    target = np.arange(size, dtype=np.float64)
    if align_corners:
        return target * ((extent - 1) / max(size - 1, 1))
    return (target + 0.5) * (1 / factor if factor else extent / size) - 0.5


def _places_at_run_time(call: TorchCall, extent: Size, size: Size, align_corners: bool, factor: float | None) -> Value:
    """As `sample_places`, of sizes that only the run knows: [size] in float64."""
    step = _step_at_run_time(call, extent, size, align_corners, factor)
    return _centres(call, size, step) if not align_corners else call.op("multiply", call.iota(size, float64), step)


def _centres(call: TorchCall, size: Size, step: Value) -> Value:
    """Where in the image the centre of each output pixel is."""
    return call.op("subtract", call.op("multiply", call.op("add", call.iota(size, float64), 0.5), step), 0.5)


def _step_at_run_time(call: TorchCall, extent: Size, size: Size, align_corners: bool, factor: float | None) -> Value:
    """Pixels of the image from one output pixel to the next."""
    old, new = call.value(extent, float64), call.value(size, float64)
    if align_corners:
        steps = call.op("maximum", call.op("subtract", new, 1.0), 1.0)
        return call.op("divide", call.op("subtract", old, 1.0), steps)
    if not factor:
        return call.op("divide", old, new)
    step = call.builder.number(1 / factor, float64)
    return call.op("where", call.op("equal", old, new), 1.0, step) if _is_on_cpu(call) else step


@rule("fractional_max_pool2d.default", "fractional_max_pool3d.default")
def fractional_max_pool(call: TorchCall, x: Value, kernel: Ints, sizes: Ints, samples: Value) -> tuple[Value, Value]:
    """The largest of windows that begin at pseudo-random places (Graham, 2014), and its place in its plane.

    `samples` [N, C, 2 or 3]: a number for each plane and dimension, the last dimension of images and the first of
    volumes first.
    """
    count = samples.shape[-1]
    assert isinstance(count, int)
    batched = x if x.rank == count + 2 else call.unsqueeze(x, 0)
    planes, extents = batched.shape[:2], batched.shape[2:]
    total = simplify(lift(planes[0]) * planes[1])
    flat: Value | None = None
    for axis, (extent, size, window) in enumerate(zip(extents, _each(sizes, count), _each(kernel, count), strict=True)):
        sample = call.select(samples, 2, count - 1 - axis if count == 2 else axis)
        begins = _fractional_begins(call, call.reshape(sample, (total, 1)), extent, size, window)
        places = call.op("add", call.unsqueeze(begins, 2), call.iota(window))  # [N * C, size, window]
        shape = [total, *[1] * (2 * count)]
        shape[1 + axis], shape[1 + count + axis] = size, window
        places = call.reshape(places, shape)
        if flat is None:
            flat = places
        else:
            flat = call.op("add", call.op("multiply", flat, call.value(extent, int64)), places)
    assert flat is not None
    outputs, windows = math.prod(_each(sizes, count)), math.prod(_each(kernel, count))
    flat = call.reshape(flat, (total, outputs * windows))
    pixels = call.op("gather_elements", call.reshape(batched, (total, product(extents))), flat, axis=1)
    pixels, flat = (call.reshape(item, (total, outputs, windows)) for item in (pixels, flat))
    best = call.op("argmax", pixels, axis=2, keepdims=True)
    if x.dtype.is_float:
        best = call.op("maximum", best, _last_nan(call, pixels, 2))
    values, found = (call.op("gather_elements", item, best, axis=2) for item in (pixels, flat))
    return call.reshape(values, call.shape), call.reshape(found, call.shape)


def _fractional_begins(call: TorchCall, sample: Value, extent: Size, size: int, window: int) -> Value:
    """Where the windows of one dimension begin: [planes, size], the last one at the end of the image."""
    last = call.value(simplify(lift(extent) - window), int64)
    if size == 1:
        return call.broadcast(last, (sample.shape[0], 1))
    step = call.op("divide", call.cast(last, sample.dtype), float(size - 1))
    line = call.iota(size, sample.dtype)
    moved = truncate(call, call.op("multiply", call.op("add", line, sample), step))
    start = truncate(call, call.op("multiply", sample, step))
    begins = call.cast(call.op("subtract", moved, start), int64)
    return call.op("where", call.op("equal", line, float(size - 1)), last, begins)


@rule("grid_sampler_2d.default", "grid_sampler_3d.default")
def grid_sampler(call: TorchCall, x: Value, grid: Value, mode: int, padding: int, align_corners: bool) -> Value:
    mode_name = ("linear", "nearest", "cubic")[mode]
    return grid_sample(call, x, grid, mode_name, ("zeros", "border", "reflection")[padding], align_corners)


@rule("col2im.default")
def columns_to_image(
    call: TorchCall, x: Value, output_size: Sequence[Size], kernel_size: Sequence[int], dilation: Sequence[int],
    padding: Sequence[int], stride: Sequence[int],
) -> Value:  # fmt: skip
    """Windows [.., C taps, places] added up at their places in images [.., C, H, W]."""
    axes = _axes(output_size, kernel_size, dilation, padding, stride)
    lead, taps = x.shape[:-2], [axis.taps for axis in axes]
    channels = floor_divide(x.shape[-2], math.prod(taps))
    shaped = call.reshape(call.wide(x), (*lead, channels, *taps, *(axis.count for axis in axes)))
    return call.cast(fold(call, shaped, axes), x.dtype)


@rule("im2col.default")
def image_to_columns(
    call: TorchCall, x: Value, kernel_size: Sequence[int], dilation: Sequence[int], padding: Sequence[int],
    stride: Sequence[int],
) -> Value:  # fmt: skip
    """Images [.., C, H, W] as windows [.., C taps, places]."""
    return call.reshape(unfold(call, x, _axes(x.shape[-2:], kernel_size, dilation, padding, stride)), call.shape)


def _axes(
    extents: Sequence[Size], taps: Sequence[int], dilation: Sequence[int], padding: Sequence[int], step: Sequence[int]
) -> list[WindowAxis]:
    around = [(each, each) for each in padding]
    return [WindowAxis(*each) for each in zip(extents, taps, dilation, around, step, strict=True)]
