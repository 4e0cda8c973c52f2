"""Resampling: nearest, linear and cubic, with and without antialiasing; sampling at given positions."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from tilewright.dtypes import float32, float64, int1, int64
from tilewright.graph.core import Value
from tilewright.importers import images
from tilewright.importers.equal_sizes import must_be
from tilewright.importers.onnx_call import OnnxCall
from tilewright.importers.report import Invalid, Unsupported
from tilewright.importers.rules import RuleTable
from tilewright.importers.sampling import cubic_taps, cubic_weight, grid_sample, linear_pair, linear_weight, read_along
from tilewright.symbolic import Expression, Size, floor_divide, lift, lower_bound, simplify

TABLE = RuleTable("Resampling")
rule = TABLE.rule

_COORDINATES = ("pytorch_half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric", "tf_crop_and_resize",
                "tf_half_pixel_for_nn")  # fmt: skip
_LARGEST_MATRIX = 1 << 24  # elements of the weights between two sizes
_LONGEST_LINE = 1 << 20  # pixels whose places are constants; those of longer lines are computed by each run
_LARGEST_DENOMINATOR = 64  # of the scale of a dynamic size
_TIE = 1e-6  # pixels from the middle of two, within which a place counts as the middle; as ONNX Runtime has it


@dataclass(frozen=True)
class _ResizeSettings:
    """The attributes of a Resize."""

    mode: str
    coordinates: str
    nearest: str
    coefficient: float
    exclude_outside: bool
    antialias: bool
    beyond: float  # what crops read outside the image

    @property
    def between_scaled_corners(self) -> bool:
        """Whether aligned corners are as far apart as the scale says, of which the size is the whole part.

        ONNX's cases for linear and cubic have it so.  ONNX Runtime takes the size, which has no other reading here.
        """
        return self.mode != "nearest"


@dataclass(frozen=True)
class _Target:
    """One dimension's new size, its scale where one is given, and the part of the image that a crop reads.

    What only the run knows is a number in the graph, of float64.
    """

    axis: int
    size: Size
    factor: float | Value | None
    region: tuple[float | Value, float | Value] | None = None


@rule("Resize", "Upsample")
def resize(call: OnnxCall) -> Value:
    """Upsample, and Resize before opset 11, have no modes of coordinates."""
    x, mode = call[0], call.choice("mode", "nearest", "linear", "bilinear", "cubic").removeprefix("bi")
    coordinates = call.choice("coordinate_transformation_mode", "half_pixel", *_COORDINATES)
    if call.opset < 11:
        coordinates = "asymmetric"
    policy = call.choice("keep_aspect_ratio_policy", "stretch", "not_larger", "not_smaller")
    settings = _ResizeSettings(
        mode,
        coordinates,
        call.choice("nearest_mode", "round_prefer_floor", "round_prefer_ceil", "floor", "ceil"),
        float(call.attribute("cubic_coeff_a", -0.75)),
        bool(call.attribute("exclude_outside", 0)),
        bool(call.attribute("antialias", 0)),
        float(call.attribute("extrapolation_value", 0.0)),
    )
    axes = call.places(call.attribute("axes") or range(x.rank), x.rank)
    targets = _with_regions(call, settings, _targets(call, x, axes, policy))
    if mode == "nearest" or x.dtype.is_float:
        return _all_resized(call, x, targets, settings)
    if x.dtype == int1:
        raise Unsupported(f"{mode} resampling of truth values", "cast the image to float32 first")
    exact = float32 if x.dtype.bits <= 16 else float64
    return images.whole(call, _all_resized(call, call.cast(x, exact), targets, settings), x.dtype)


def _all_resized(call: OnnxCall, x: Value, targets: list[_Target], settings: _ResizeSettings) -> Value:
    """An image whose sizes all stay is not resampled, whatever its scales; so does ONNX Runtime."""
    if all(target.region is None and target.size == x.shape[target.axis] for target in targets):
        return x
    for target in targets:
        x = _resized(call, x, target, settings)
    return x


def _with_regions(call: OnnxCall, settings: _ResizeSettings, targets: list[_Target]) -> list[_Target]:
    """The targets of a crop with the parts of the image that it reads."""
    if settings.coordinates != "tf_crop_and_resize":
        return targets
    region = _numbers(call, 1)
    if len(region) != 2 * len(targets):
        raise Invalid(f"the region has {len(region)} numbers for {len(targets)} dimensions; there must be two for each")
    count = len(targets)
    return [
        _Target(target.axis, target.size, target.factor, (region[place], region[place + count]))
        for place, target in enumerate(targets)
    ]


def _numbers(call: OnnxCall, index: int) -> list[float | Value]:
    """The elements of an input of real numbers, in the graph where they are not known."""
    known = call.tensor(index).known
    if known is not None and not call.tensor(index).symbolic:
        return [float(item) for item in known.reshape(-1)]
    line = call.reshape(call.cast(call[index], float64), (call.count(index),))
    return [call.select(line, 0, element) for element in range(call.count(index))]


def _resized(call: OnnxCall, x: Value, target: _Target, settings: _ResizeSettings) -> Value:
    """One dimension with a new size."""
    axis, size, extent = target.axis, target.size, x.shape[target.axis]
    if size == extent and (target.factor in (None, 1.0) or settings.antialias):
        if settings.antialias or target.region in (None, (0.0, 1.0)):
            return x
    at_run_time = isinstance(target.factor, Value) or any(isinstance(item, Value) for item in target.region or ())
    if at_run_time or not (isinstance(extent, int) and isinstance(size, int)) or max(extent, size) > _LONGEST_LINE:
        return _resized_at_run_time(call, x, target, settings)
    if extent < 1 or size < 1:
        if size == 0 and extent > 0:
            return call.slice(x, axis, 0, 0)
        raise Invalid(f"dimension {axis} of {extent} elements cannot be resized to {size}")
    places = _places(extent, size, target, settings)
    mode, beyond = settings.mode, (places < 0) | (places > extent - 1)
    if mode == "nearest":
        positions = np.clip(_nearest(call, places, size < extent, settings), 0, extent - 1).astype(np.int64)
        result = call.op("gather", x, call.constant(positions, "positions"), axis=axis)
    else:
        if extent * size > _LARGEST_MATRIX:
            raise Unsupported(f"Resize from {extent} to {size}", f"keep their product below {_LARGEST_MATRIX}")
        assert not isinstance(target.factor, Value)
        scale = min(target.factor or size / extent, 1.0) if settings.antialias else 1.0
        if mode == "linear" and scale == 1.0 and not settings.exclude_outside:
            taps = images.interpolation_taps(places, extent)
        else:
            curve = images.cubic_curve(settings.coefficient) if mode == "cubic" else images.linear_curve
            width = 2 if mode == "cubic" else 1
            taps = images.curve_taps(places, extent, curve, width, scale, settings.exclude_outside)
        result = images.resampled(call, x, axis, taps)
    if target.region is None or not beyond.any():
        return result
    outside = call.reshape(call.constant(beyond, "outside"), (-1, *[1] * (x.rank - 1 - axis)))
    return call.op("where", outside, call.builder.number(settings.beyond, x.dtype), result)


def _resized_at_run_time(call: OnnxCall, x: Value, target: _Target, settings: _ResizeSettings) -> Value:
    """One dimension with a new size, dynamic or long: whole factors repeat pixels, others are gathered."""
    axis, size, extent = target.axis, target.size, x.shape[target.axis]
    whole = simplify(lift(size) // extent) if lower_bound(extent) > 0 else 0
    exact = isinstance(whole, int) and simplify(lift(extent) * whole) == size
    if exact and _repeats(call, settings):
        return images.repeat(call, x, axis, whole)
    place = _place_at_run_time(call, target, extent, settings)
    if settings.antialias:
        stays = call.op("equal", call.value(size, int64), call.value(extent, int64))
        place = call.op("where", stays, call.iota(size, place.dtype), place)
    last = call.value(simplify(lift(extent) - 1), place.dtype)
    taps: Sequence[tuple[Value, Value | None]]
    if settings.mode == "nearest":
        taps = [(_nearest_at_run_time(call, place, target, extent, settings.nearest), None)]
        total = read_along(call, x, axis, taps)
    elif settings.antialias or settings.exclude_outside:
        total = _mixed_at_run_time(call, x, place, target, settings)
    else:
        inside = call.op("minimum", call.op("maximum", place, 0.0), last)
        linear = settings.mode == "linear"
        taps = linear_pair(call, inside) if linear else cubic_taps(call, place, settings.coefficient)
        total = read_along(call, x, axis, taps)
    if target.region is None:
        return total
    beyond = call.op("logical_or", call.op("less", place, 0.0), call.op("greater", place, last))
    outside = call.reshape(beyond, (size, *[1] * (x.rank - 1 - axis)))
    return call.op("where", outside, call.builder.number(settings.beyond, x.dtype), total)


def _mixed_at_run_time(call: OnnxCall, x: Value, place: Value, target: _Target, settings: _ResizeSettings) -> Value:
    """One dimension by weights of as many pixels as the scale says."""
    extent, size = x.shape[target.axis], target.size
    if isinstance(extent, int) and isinstance(size, int) and extent * size > _LARGEST_MATRIX:
        raise Unsupported(f"Resize from {extent} to {size}", f"keep their product below {_LARGEST_MATRIX}")
    scale: Value | None = None
    if settings.antialias:
        factor = call.op("divide", call.value(size, float64), call.value(extent, float64))
        factor = factor if target.factor is None else call.value(target.factor, float64)
        scale = call.op("minimum", factor, 1.0)
    cubic = settings.mode == "cubic"
    curve = functools.partial(cubic_weight, coefficient=settings.coefficient) if cubic else linear_weight
    width = 2 if cubic else 1
    matrix = images.curve_matrix_at_run_time(call, place, extent, curve, width, scale, settings.exclude_outside)
    return images.mix(call, x, target.axis, call.cast(matrix, x.dtype))


def _repeats(call: OnnxCall, settings: _ResizeSettings) -> bool:
    """Whether a whole factor repeats every pixel."""
    if settings.mode != "nearest" or settings.antialias:
        return False
    rounds = settings.nearest in ("round_prefer_floor", "round_prefer_ceil")
    if settings.coordinates in ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric"):
        return rounds
    return settings.coordinates in ("asymmetric", "tf_half_pixel_for_nn") and (
        settings.nearest == "floor" or call.opset < 11
    )


def _scales(call: OnnxCall, rank: int) -> list[float | Value]:
    """The factors: an attribute of Upsample before opset 9, else an input."""
    if call.opset < 9:
        given = call.attribute("scales")
        if given is None:  # opset 1
            given = [1.0] * (rank - 2) + [call.attribute("height_scale"), call.attribute("width_scale")]
        return [float(scale) for scale in given]
    return _numbers(call, 1 if call.opset < 11 else 2)


def _targets(call: OnnxCall, x: Value, axes: Sequence[int], policy: str) -> list[_Target]:
    """The new size of each axis, and its scale where scales are given or the aspect ratio is kept."""
    if call.opset >= 11 and call.has(3):
        sizes = call.lengths(3)
        if sizes or not call.has(2):
            if len(sizes) != len(axes):
                raise Invalid(f"there are {len(sizes)} sizes for {len(axes)} dimensions")
            if policy != "stretch":
                return _in_proportion(call, x, axes, sizes, policy)
            return [_Target(axis, size, None) for axis, size in zip(axes, sizes, strict=True)]
    scales = _scales(call, x.rank)
    if len(scales) != len(axes):
        raise Invalid(f"there are {len(scales)} scales for {len(axes)} dimensions")
    targets: list[_Target] = []
    for axis, scale in zip(axes, scales, strict=True):
        extent = x.shape[axis]
        if isinstance(scale, Value):
            targets.append(_Target(axis, _scaled(call, extent, call.cast(scale, float32), 0.0), scale))
            continue
        if not 0 < scale < 2**31:
            raise Invalid(f"the scale of dimension {axis} is {scale}; it must be a positive number")
        if isinstance(extent, int):
            targets.append(_Target(axis, int(np.float32(extent) * np.float32(scale)), scale))
            continue
        ratio = Fraction(scale)
        if ratio.denominator > _LARGEST_DENOMINATOR:
            targets.append(_Target(axis, _scaled(call, extent, call.builder.number(scale, float32), 0.0), scale))
            continue
        size = floor_divide(lift(extent) * ratio.numerator, ratio.denominator)
        targets.append(_Target(axis, simplify(size), scale))
    return targets


def _scaled(call: OnnxCall, extent: Size, scale: Value, more: float) -> Size:
    """floor(extent * scale + more), of a scale that only the run knows; rounded as the product of its type is."""
    size = call.op("floor", call.op("add", call.op("multiply", call.value(extent, scale.dtype), scale), more))
    (found,) = call.read_sizes(call.reshape(call.cast(size, int64), (1,)), "size", f"the scaled size {extent}")
    return found


def _in_proportion(call: OnnxCall, x: Value, axes: Sequence[int], sizes: Sequence[Size], policy: str) -> list[_Target]:
    """One scale for all axes, by which none becomes larger (or smaller) than its size."""
    extents = [x.shape[axis] for axis in axes]
    if any(isinstance(size, Expression) for size in (*extents, *sizes)) or 0 in extents:
        least = "minimum" if policy == "not_larger" else "maximum"
        factors = [
            call.op("divide", call.value(s, float64), call.value(e, float64))
            for s, e in zip(sizes, extents, strict=True)
        ]
        common = functools.reduce(lambda left, right: call.op(least, left, right), factors)
        return [_Target(axis, _scaled(call, x.shape[axis], common, 0.5), common) for axis in axes]
    ratios = [size / extent for size, extent in zip(sizes, extents, strict=True)]  # type: ignore[operator]
    scale = min(ratios) if policy == "not_larger" else max(ratios)
    return [
        _Target(axis, int(math.floor(extent * scale + 0.5)), scale)  # type: ignore[operator]
        for axis, extent in zip(axes, extents, strict=True)
    ]


# Coordinates -----------------------------------------------------------------------------------------


def _places(extent: int, size: int, target: _Target, settings: _ResizeSettings) -> np.ndarray:
    """Where in the image each output pixel reads, by `coordinate_transformation_mode`.

    Places of the nearest pixel are in float32, as ONNX Runtime has them, so that halves fall to the same side.
    """
    assert not isinstance(target.factor, Value)
    working: Any = np.float32 if settings.mode == "nearest" else np.float64
    scale = working(target.factor) if target.factor else working(size) / working(extent)
    line: Any = np.arange(size, dtype=working)
    half = working(0.5)
    mode = settings.coordinates
    if target.region is not None:
        first, last = (item for item in target.region if not isinstance(item, Value))
        middle = (last - first) * (extent - 1) / 2
        spread = line * (last - first) * (extent - 1) / (size - 1) if size != 1 else np.full(size, middle)
        return np.asarray(spread + first * (extent - 1), working)
    if mode == "asymmetric":
        return line / scale
    if mode == "align_corners":
        whole = extent * scale if settings.between_scaled_corners and target.factor else size
        return line * (extent - 1) / (whole - 1) if whole != 1 else np.zeros(size)
    if mode == "pytorch_half_pixel" and size == 1:
        return np.zeros(1)
    if mode == "half_pixel_symmetric":
        offset = working(extent) / 2 * (1 - working(size) / (scale * working(extent)))
        exact = np.float64(offset) + (np.arange(size) + 0.5) / np.float64(scale) - 0.5
        return exact.astype(working)
    if mode == "tf_half_pixel_for_nn":
        return (line + half) / scale
    return (line + half) / scale - half


def _place_at_run_time(call: OnnxCall, target: _Target, extent: Size, settings: _ResizeSettings) -> Value:
    """As `_places`, of sizes that are known at run time: [size]."""
    working = float32 if settings.mode == "nearest" else float64
    old, new, mode = call.value(extent, working), call.value(target.size, working), settings.coordinates
    line = call.iota(target.size, working)
    scale = call.op("divide", new, old) if target.factor is None else call.value(target.factor, working)
    if target.region is not None:
        return _place_in_region(call, target.region, line, call.op("subtract", old, 1.0), new)
    if mode == "align_corners":
        scaled = settings.between_scaled_corners and target.factor is not None
        whole = call.op("multiply", old, scale) if scaled else new
        span = call.op("subtract", whole, 1.0)
        span = call.op("where", call.op("equal", span, 0.0), 1.0, span)
        return call.op("divide", call.op("multiply", line, call.op("subtract", old, 1.0)), span)
    if mode == "asymmetric":
        return call.op("divide", line, scale)
    place = call.op("divide", call.op("add", line, 0.5), scale)
    if mode == "tf_half_pixel_for_nn":  # which is no place of its own where the size stays
        return call.op("where", call.op("equal", scale, 1.0), line, place)
    place = call.op("subtract", place, 0.5)
    if mode == "pytorch_half_pixel":
        return call.op("where", call.op("equal", new, 1.0), call.builder.number(0.0, working), place)
    if mode == "half_pixel_symmetric":
        adjustment = call.op("divide", new, call.op("multiply", old, scale))
        shift = call.op("multiply", call.op("multiply", old, 0.5), call.op("subtract", 1.0, adjustment))
        line, scale, shift = (call.cast(item, float64) for item in (line, scale, shift))
        place = call.op("subtract", call.op("divide", call.op("add", line, 0.5), scale), 0.5)
        return call.cast(call.op("add", place, shift), working)
    return place


def _place_in_region(
    call: OnnxCall, region: tuple[float | Value, float | Value], line: Value, end: Value, whole: Value
) -> Value:
    """What a crop reads: from the first part of the image to the last, or their middle."""
    first, last = (call.value(item, line.dtype) for item in region)
    width = call.op("multiply", call.op("subtract", last, first), end)
    steps = call.op("subtract", whole, 1.0)
    alone = call.op("equal", steps, 0.0)
    spread = call.op("divide", call.op("multiply", line, width), call.op("where", alone, 1.0, steps))
    place = call.op("where", alone, call.op("multiply", width, 0.5), spread)
    return call.op("add", place, call.op("multiply", first, end))


def _nearest(call: OnnxCall, places: np.ndarray, smaller: bool, settings: _ResizeSettings) -> np.ndarray:
    """The pixel of each place; before opset 11 the next one when the image becomes smaller, else the one before."""
    mode, places = settings.nearest, places.astype(np.float64)
    if call.opset < 11:
        mode = "ceil" if smaller else "floor"
    if mode == "floor":
        return np.floor(places)
    if mode == "ceil":
        return np.ceil(places)
    half = 0.5 + _TIE
    return np.ceil(places - half) if mode == "round_prefer_floor" else np.floor(places + half)


def _nearest_at_run_time(call: OnnxCall, place: Value, target: _Target, extent: Size, mode: str) -> Value:
    if call.opset < 11:
        smaller = call.op("less", call.value(target.size, int64), call.value(extent, int64))
        return call.op("where", smaller, call.op("ceil", place), call.op("floor", place))
    if mode in ("floor", "ceil"):
        return call.op(mode, place)
    place = call.cast(place, float64)
    if mode == "round_prefer_floor":
        return call.op("ceil", call.op("subtract", place, 0.5 + _TIE))
    return call.op("floor", call.op("add", place, 0.5 + _TIE))


@rule("GridSample")
def sample_grid(call: OnnxCall) -> Value:
    """Modes have other names before opset 20."""
    names = ("linear", "nearest", "cubic") if call.opset >= 20 else ("bilinear", "nearest", "bicubic")
    mode = call.choice("mode", *names).removeprefix("bi")
    padding = call.choice("padding_mode", "zeros", "border", "reflection")
    x, places = call[0], call[1]
    call.require_rank(x, 3)
    call.require_rank(places, x.rank, x.rank)
    places = must_be(call, places, (x.shape[0], *places.shape[1:-1], x.rank - 2))
    if places.shape[-1] != x.rank - 2 or places.shape[0] != x.shape[0]:
        raise Invalid(f"the places {places!r} are not those of images {x!r}: [{x.shape[0]}, ..., {x.rank - 2}]")
    return grid_sample(call, x, places, mode, padding, bool(call.attribute("align_corners", 0)))
