"""Pools and resampling of images."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tilewright.dtypes import float32, uint8
from tilewright.graph.core import Value
from tilewright.importers import images
from tilewright.importers.report import Unsupported
from tilewright.importers.rules import RuleTable
from tilewright.importers.sampling import grid_sample
from tilewright.importers.torch_fx import Call
from tilewright.symbolic import Size

TABLE = RuleTable("Pools and resampling", "aten.")
rule = TABLE.rule

Ints = int | Sequence[int]


def _each(item: Ints, count: int) -> tuple[int, ...]:
    items = [item] if isinstance(item, int) else list(item)
    return tuple(items * count if len(items) == 1 else items)


def _pool(
    call: Call, op: str, x: Value, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints, **options: Any
) -> Value:
    """A pool over the last dimensions; an image without a batch gets one for the op."""
    count = int(call.node.target.__name__.split("pool")[1][0])  # type: ignore[union-attr]
    batched = x if x.rank == count + 2 else call.unsqueeze(x, 0)
    sizes = _each(kernel, count)
    strides = sizes if stride is None or (not isinstance(stride, int) and not stride) else _each(stride, count)
    pads = tuple((pad, pad) for pad in _each(padding, count))
    result = call.op(
        op, batched, kernel=sizes, strides=strides, padding=pads, dilation=_each(dilation, count), **options
    )
    return result if batched is x else call.reshape(result, result.shape[1:])


@rule("max_pool1d.default", "max_pool2d.default", "max_pool3d.default")
def max_pool(
    call: Call,
    x: Value,
    kernel: Ints,
    stride: Ints = (),
    padding: Ints = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
) -> Value:
    return _pool(call, "max_pool", x, kernel, stride, padding, dilation, ceil_mode=ceil_mode)


@rule("max_pool2d_with_indices.default", "max_pool3d_with_indices.default")
def max_pool_with_indices(call: Call, x: Value, *args: Any, **options: Any) -> tuple[Value, None]:
    return max_pool(call, x, *args, **options), None


@rule("avg_pool1d.default", "avg_pool2d.default", "avg_pool3d.default")
def average_pool(
    call: Call,
    x: Value,
    kernel: Ints,
    stride: Ints = (),
    padding: Ints = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Value:
    if divisor_override is not None:
        raise Unsupported("average pooling with divisor_override", "scale the result instead")
    options = {"ceil_mode": ceil_mode, "count_include_pad": count_include_pad}
    return _pool(call, "average_pool", x, kernel, stride, padding, 1, **options)


@rule(
    "adaptive_avg_pool1d.default",
    "adaptive_avg_pool2d.default",
    "adaptive_avg_pool3d.default",
    "_adaptive_avg_pool2d.default",
    "_adaptive_avg_pool3d.default",
)
def adaptive_average_pool(call: Call, x: Value, sizes: Sequence[Size]) -> Value:
    batched = x if x.rank == len(sizes) + 2 else call.unsqueeze(x, 0)
    return call.reshape(images.adaptive_average(call, batched, sizes), call.shape)


@rule("adaptive_max_pool2d.default", "adaptive_max_pool3d.default", "adaptive_max_pool1d.default")
def adaptive_max_pool(call: Call, x: Value, sizes: Sequence[Size]) -> tuple[Value, None]:
    """The largest of each part of each dimension; parts overlap where sizes do not divide."""
    first = x.rank - len(sizes)
    whole = tuple(first + place for place, size in enumerate(sizes) if size == 1)
    if whole:
        x = call.op("reduce_max", x, axes=whole, keepdims=True)
    for axis, size in enumerate(sizes, start=first):
        extent = x.shape[axis]
        if size in (1, extent):
            continue
        if not (isinstance(extent, int) and isinstance(size, int)):
            raise Unsupported(f"adaptive max pooling of {extent} to {size}", "fix the image size, or pool to 1")
        edges = [(place * extent // size, -(-(place + 1) * extent // size)) for place in range(size)]
        parts = [call.op("reduce_max", call.slice(x, axis, *edge), axes=(axis,), keepdims=True) for edge in edges]
        x = call.op("concat", *parts, axis=axis)
    return x, None


@rule(
    "upsample_nearest1d.vec",
    "upsample_nearest2d.vec",
    "upsample_nearest3d.vec",
    "upsample_nearest1d.default",
    "upsample_nearest2d.default",
    "upsample_nearest3d.default",
)
def upsample_nearest(call: Call, x: Value, sizes: Any, *scales: Any) -> Value:
    factors = _factors(scales, x.rank - 2)
    return images.upsample_nearest(call, x, zip(range(2, x.rank), call.shape[2:], factors, strict=True))


@rule("upsample_bilinear2d.vec", "upsample_bilinear2d.default", "upsample_linear1d.vec", "upsample_linear1d.default")
def upsample_linear(call: Call, x: Value, sizes: Any, align_corners: bool, *scales: Any) -> Value:
    """Linear interpolation as a product with a constant matrix for each spatial dimension."""
    matrices = []
    for axis, extent, size, factor in _resampled(call, x, scales, "linear"):
        places = sample_places(extent, size, align_corners, factor)
        matrices.append((axis, images.interpolation_matrix(places, extent)))
    return _mixed(call, x, matrices)


def _mixed(call: Call, x: Value, matrices: list[tuple[int, np.ndarray]]) -> Value:
    """Constant matrices applied along dimensions; uint8 is rounded after each, as in PyTorch, the last one first."""
    if x.dtype != uint8:
        for axis, matrix in matrices:
            x = images.mix(call, x, axis, matrix)
        return x
    for axis, matrix in reversed(matrices):
        x = images.whole(call, images.mix(call, call.cast(x, float32), axis, matrix), uint8)
    return x


def _factors(scales: Sequence[Any], count: int) -> tuple[float | None, ...]:
    """The scale of each spatial dimension, None where none is given; `.vec` overloads have them in one list."""
    factors = scales[0] if len(scales) == 1 and isinstance(scales[0], (list, tuple)) else scales
    return tuple(factors[place] if place < len(factors) else None for place in range(count))


def _resampled(call: Call, x: Value, scales: Sequence[Any], kind: str) -> Iterator[tuple[int, int, int, float | None]]:
    """The axes of an image with their extents before and after, and the scales that are given; fixed sizes only."""
    factors = _factors(scales, x.rank - 2)
    for place, (extent, size, factor) in enumerate(zip(x.shape[2:], call.shape[2:], factors, strict=True)):
        if not (isinstance(extent, int) and isinstance(size, int)):
            raise Unsupported(f"{kind} resampling of a dynamic image size", "fix the image size")
        yield 2 + place, extent, size, factor


def _smoothed(curve: Callable[[np.ndarray], np.ndarray], width: int) -> Callable[..., Value]:
    """The rule of a resampling whose curve is as wide as what one pixel of a smaller image stands for."""

    def apply(call: Call, x: Value, sizes: Any, align_corners: bool, *scales: Any) -> Value:
        matrices = []
        for axis, extent, size, factor in _resampled(call, x, scales, "smoothed"):
            step = (extent - 1) / max(size - 1, 1) if align_corners else 1 / factor if factor else extent / size
            places = (np.arange(size) + 0.5) * step - 0.5
            matrix = images.curve_matrix(places, extent, curve, width, min(1 / step if step else 1.0, 1.0), True)
            matrices.append((axis, matrix))
        return _mixed(call, x, matrices)

    return apply


for _name, _curve, _width in (("bilinear", images.linear_curve, 1), ("bicubic", images.cubic_curve(-0.5), 2)):
    for _overload in ("default", "vec"):
        TABLE.add(f"_upsample_{_name}2d_aa.{_overload}", _smoothed(_curve, _width))


def sample_places(extent: int, size: int, align_corners: bool, factor: float | None) -> np.ndarray:
    """Where in the image (in pixels) each output pixel reads."""
    target = np.arange(size, dtype=np.float64)
    if align_corners:
        return target * ((extent - 1) / max(size - 1, 1))
    return (target + 0.5) * (1 / factor if factor else extent / size) - 0.5


@rule("grid_sampler_2d.default")
def grid_sampler(call: Call, x: Value, grid: Value, mode: int, padding: int, align_corners: bool) -> Value:
    mode_name = ("linear", "nearest", "cubic")[mode]
    return grid_sample(call, x, grid, mode_name, ("zeros", "border", "reflection")[padding], align_corners)
