"""Convolutions, pools and resampling of images beyond the graph's own ops; shared by the importers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.dtypes import DType, float32, float64, int64
from tilewright.graph.core import Value
from tilewright.graph.taps import read_again
from tilewright.importers.emitter import Emitter
from tilewright.importers.report import Unsupported
from tilewright.symbolic import Size, lift, lower_bound, product, simplify

# Multiply-adds of float32 by zeros that are worth some launches and reads of the image (40 us on an H200), and those of
# each element of the result that are worth putting it together from several tensors.
_MUCH, _MUCH_OF_EACH = 1 << 30, 96
_MOST_WRITTEN = 4  # taps of a result that are added one after the other


def transposed_convolution(
    emit: Emitter,
    x: Value,
    weight: Value,
    bias: Value | None,
    strides: Sequence[int],
    pads: Sequence[tuple[int, int]],
    dilation: Sequence[int],
    extra: Sequence[int],
    groups: int,
) -> Value:
    """Transposed convolution of [N, I, *spatial] by a weight [I, O/groups, *kernel].

    `pads` are cropped from both ends of the result, `extra` is added to its far end.  With strides the pixels of the
    result of each phase, those a stride apart, are a convolution of the image by some of the taps, or zeros.
    """
    for size, (low, high), step, more in zip(weight.shape[2:], pads, dilation, extra, strict=True):
        if not isinstance(size, int):
            raise Unsupported("a transposed convolution whose kernel size is not a number")
        if step * (size - 1) < max(low, high - more):
            hint = "use a smaller padding"
            raise Unsupported("a transposed convolution that crops more than the kernel covers", hint)
    if all(step == 1 for step in strides):
        return _transposed_convolution(emit, x, weight, bias, pads, dilation, extra, groups)
    axes = [
        _Phases(*of_axis)
        for of_axis in zip(map(int, weight.shape[2:]), strides, dilation, pads, extra, strict=True)  # type: ignore[arg-type]
    ]
    return _by_phases(emit, x, weight, bias, axes, groups)


def _transposed_convolution(
    emit: Emitter,
    x: Value,
    weight: Value,
    bias: Value | None,
    pads: Sequence[tuple[int, int]],
    dilation: Sequence[int],
    extra: Sequence[int],
    groups: int,
) -> Value:
    """A transposed convolution with strides of 1: a convolution by the taps in reverse."""
    count = weight.rank - 2
    for axis in range(2, 2 + count):
        weight = emit.flip(weight, axis)
    inputs, outputs, *kernel = weight.shape
    split = emit.reshape(weight, (groups, simplify(lift(inputs) // groups), outputs, *kernel))
    weight = emit.flatten(emit.transpose(split, 1, 2), 0, 2)
    padding = []
    for size, (low, high), step, more in zip(kernel, pads, dilation, extra, strict=True):
        reach = step * (size - 1)
        padding.append((reach - low, reach - high + more))
    return emit.op(
        "conv", x, weight, bias, strides=[1] * count, padding=padding, dilation=tuple(dilation), groups=groups
    )


@dataclass(frozen=True)
class _Phases:
    """One dimension of a transposed convolution with a stride.

    Pixel `stride * i + dilation * tap` of the whole result takes pixel i of the image times a tap.  So a pixel of the
    result, number m of its phase, sees each `apart`-th tap from some first one on, and those see pixels of the image
    `dilation / shared` apart.  Only every `shared`-th phase has taps, and of those no more than there are taps.
    """

    size: int
    stride: int
    dilation: int
    crop: tuple[int, int]
    extra: int

    @property
    def shared(self) -> int:
        return math.gcd(self.stride, self.dilation)

    @property
    def apart(self) -> int:
        """How far apart the taps of a phase are."""
        return self.stride // self.shared

    @property
    def taps(self) -> int:
        """The most of one phase."""
        return -(-self.size // self.apart)

    @property
    def step(self) -> int:
        """How far apart the pixels of the image are that neighbouring taps of a phase see."""
        return self.dilation // self.shared

    @property
    def firsts(self) -> dict[int, int]:
        """The first tap of each phase that has taps, in order of the phases."""
        return dict(sorted((self.dilation * tap % self.stride, tap) for tap in range(min(self.size, self.apart))))

    def lag(self, phase: int) -> int:
        """How many pixels of the image the first tap of a phase sees after the pixel of the phase's own number."""
        return self.dilation * self.firsts[phase] // self.stride

    @property
    def spacing(self) -> int | None:
        """How far apart the phases with taps are, if evenly from the first one on, and all see the same pixels."""
        found = list(self.firsts)
        spacing = found[1] if len(found) > 1 else self.shared
        even = all(phase == place * spacing for place, phase in enumerate(found))
        return spacing if even and not any(map(self.lag, found)) else None

    @property
    def first(self) -> int:
        """The number, in its phase, of the first pixel that is not cropped."""
        return self.crop[0] // self.stride

    @property
    def last(self) -> int:
        """That of the last pixel, less the number of the image's last one."""
        return (self.dilation * (self.size - 1) - self.crop[1] + self.extra) // self.stride

    @property
    def early(self) -> int:
        """How many pixels before that are computed: what other phases see after it."""
        return max(map(self.lag, self.firsts))

    def padding(self, taps: int) -> tuple[int, int]:
        """Of a convolution that computes phases of so many taps."""
        return (self.step * (taps - 1) - self.first + self.early, self.last)

    @property
    def runs(self) -> tuple[tuple[int, int, int], ...]:
        """(taps, begin, end) of phases side by side, by their place among those with taps, with equally many taps:
        a run of the most taps, and one of a tap less."""
        order, most = list(self.firsts.values()), self.size - (self.taps - 1) * self.apart
        if order != sorted(order) or self.taps == 1 or most >= len(order) or self.padding(self.taps - 1)[0] < 0:
            return ((self.taps, 0, len(order)),)
        return ((self.taps, 0, most), (self.taps - 1, most, len(order)))

    def extent(self, image: Size) -> Size:
        """Pixels of the result."""
        whole = lift(image) * self.stride - self.stride + self.dilation * (self.size - 1) + 1
        return simplify(whole - sum(self.crop) + self.extra)


def _by_phases(
    emit: Emitter, x: Value, weight: Value, bias: Value | None, axes: Sequence[_Phases], groups: int
) -> Value:
    """A transposed convolution as convolutions whose channels are those of phases, which are then interleaved.

    One convolution has all phases, those of fewer taps with zeros; where these are much work in float32, phases with
    equally many taps have one of their own.
    """
    count, phases = len(axes), [len(axis.firsts) for axis in axes]
    inner = bias if math.prod(phases) == math.prod(axis.stride for axis in axes) else None  # no phase is zeros
    runs = [axis.runs if _is_divided(x, weight, axes, groups) else ((axis.taps, 0, len(axis.firsts)),) for axis in axes]
    arranged = _taps_of_phases(emit, weight, axes, groups)

    def computed(chosen: tuple[tuple[int, int, int], ...]) -> Value:
        if len(chosen) < count:
            parts = [computed((*chosen, run)) for run in runs[len(chosen)]]
            return parts[0] if len(parts) == 1 else emit.op("concat", *parts, axis=len(lead) + 1 + len(chosen))
        return _of_runs(emit, x, arranged, inner, axes, groups, chosen)

    lead = () if groups == 1 else (groups,)
    extents = [axis.extent(size) for axis, size in zip(axes, x.shape[2:], strict=True)]
    found = _interleaved(emit, computed(()), extents, axes, len(lead))
    if bias is not None and inner is None:
        found = emit.op("add", found, emit.reshape(bias, (1, bias.shape[0], *[1] * count)))
    return found


def _is_divided(x: Value, weight: Value, axes: Sequence[_Phases], groups: int) -> bool:
    """Whether multiply-adds by zeros, of one convolution for all phases, are much work."""
    zeros = math.prod(axis.taps * len(axis.firsts) for axis in axes) - math.prod(axis.size for axis in axes)
    inputs, pixels = lower_bound(weight.shape[0]), lower_bound(product((x.shape[0], *x.shape[2:])))
    much = zeros * inputs * lower_bound(weight.shape[1]) * pixels >= _MUCH
    each = zeros * inputs // groups // math.prod(axis.stride for axis in axes)
    return x.dtype.bits >= 32 and much and each >= _MUCH_OF_EACH


def _of_runs(
    emit: Emitter, x: Value, arranged: Value, bias: Value | None, axes: Sequence[_Phases], groups: int,
    runs: Sequence[tuple[int, int, int]],
) -> Value:  # fmt: skip
    """[N, groups (if there are several), *phases of the runs, O/groups, *numbers in the phases]: one convolution."""
    count, outputs = len(axes), arranged.shape[1 + len(axes)]
    phases = [end - begin for _, begin, end in runs]
    for place, (taps, begin, end) in enumerate(runs):
        arranged = emit.slice(arranged, 1 + place, begin, end)
        reversed_taps = arranged.shape[3 + count + place]  # the last ones are the first of a phase
        assert isinstance(reversed_taps, int)
        arranged = emit.slice(arranged, 3 + count + place, reversed_taps - taps, reversed_taps)
    if bias is not None:
        split = emit.reshape(bias, (groups, *[1] * count, outputs))
        bias = emit.flatten(emit.broadcast(split, (groups, *phases, outputs)), 0, 2 + count)
    found = emit.op(
        "conv", x, emit.flatten(arranged, 0, 2 + count), bias, strides=[1] * count,
        padding=[axis.padding(taps) for axis, (taps, _, _) in zip(axes, runs, strict=True)],
        dilation=tuple(axis.step for axis in axes), groups=groups,
    )  # fmt: skip
    lead = () if groups == 1 else (groups,)
    return emit.reshape(found, (found.shape[0], *lead, *phases, outputs, *found.shape[2:]))


def _taps_of_phases(emit: Emitter, weight: Value, axes: Sequence[_Phases], groups: int) -> Value:
    """The weight [I, O/groups, *kernel] as [groups, *phases, O/groups, I/groups, *taps of a phase, in reverse]."""
    count, outputs = len(axes), weight.shape[1]
    counts = [len(axis.firsts) for axis in axes]
    ends = [(0, axis.taps * phases - axis.size) for axis, phases in zip(axes, counts, strict=True)]
    weight = emit.op("pad", weight, pads=[(0, 0), (0, 0), *ends])
    pairs = [size for axis, phases in zip(axes, counts, strict=True) for size in (axis.taps, phases)]
    weight = emit.reshape(weight, (groups, simplify(lift(weight.shape[0]) // groups), outputs, *pairs))
    for place, axis in enumerate(axes):
        weight = emit.flip(weight, 3 + 2 * place)
        order = list(axis.firsts.values())
        if order != sorted(order):
            weight = emit.op("gather", weight, emit.constant(np.array(order), "phases"), axis=4 + 2 * place)
    odd, even = range(4, 3 + 2 * count, 2), range(3, 3 + 2 * count, 2)
    return emit.permute(weight, (0, *odd, 2, 1, *even))


def _interleaved(emit: Emitter, x: Value, extents: Sequence[Size], axes: Sequence[_Phases], lead: int) -> Value:
    """What `_of_runs` gives of all phases, with `lead` dimensions of groups, as [N, channels, *extents]."""
    count, phase = len(axes), 1 + lead
    places = [place for axis in range(count) for place in (phase + count + 1 + axis, phase + axis)]
    x = emit.permute(x, (*range(phase), phase + count, *places))
    for place, axis in enumerate(axes, start=phase + 1):  # each leaves one dimension: the next ones move up
        x = _merged_phases(emit, x, place, axis)
    for place, (axis, extent) in enumerate(zip(axes, extents, strict=True), start=phase + 1):
        first = axis.crop[0] % axis.stride
        x = emit.slice(x, place, first, simplify(lift(extent) + first))
    return emit.flatten(x, 1, 2 + lead) if lead else x


def _merged_phases(emit: Emitter, x: Value, place: int, axis: _Phases) -> Value:
    """The dimensions `place` (numbers in the phases) and the next one (phases that have taps) as the pixels of all."""
    if axis.spacing is None:
        return _joined_phases(emit, x, place, axis)
    pads = [(0, 0)] * (x.rank + 1)
    if axis.spacing > 1:
        pads[place + 2] = (0, axis.spacing - 1)
        x = emit.flatten(emit.op("pad", emit.unsqueeze(x, place + 2), pads=pads), place + 1, place + 3)
    beyond = axis.stride - len(axis.firsts) * axis.spacing
    if beyond > 0:
        x = emit.op("pad", x, pads=[(0, beyond if other == place + 1 else 0) for other in range(x.rank)])
    elif beyond < 0:
        x = emit.slice(x, place + 1, 0, axis.stride)
    return emit.flatten(x, place, place + 2)


def _joined_phases(emit: Emitter, x: Value, place: int, axis: _Phases) -> Value:
    """The same for phases that see other pixels, or are not evenly spaced."""
    numbers = simplify(lift(x.shape[place]) - axis.early)
    found: list[Value] = []
    for phase in range(axis.stride):
        if phase not in axis.firsts:
            found.append(emit.broadcast(emit.builder.number(0.0, x.dtype), found[0].shape))
            continue
        one = emit.slice(x, place + 1, (index := list(axis.firsts).index(phase)), index + 1)
        start = axis.early - axis.lag(phase)
        found.append(emit.slice(one, place, start, simplify(lift(numbers) + start)))
    return emit.flatten(emit.op("concat", *found, axis=place + 1), place, place + 2)


def adaptive_average(emit: Emitter, x: Value, sizes: Sequence[Size]) -> Value:
    """Average pooling of the last dimensions to `sizes`, in windows that may overlap."""
    first = x.rank - len(sizes)
    if all(size == 1 for size in sizes):
        return emit.op("reduce_mean", x, axes=tuple(range(first, x.rank)), keepdims=True)
    window = even_windows(x.shape[first:], sizes)
    if window is not None:
        return emit.op("average_pool", x, **window)
    for axis, (extent, size) in enumerate(zip(x.shape[first:], sizes, strict=True), start=first):
        if extent == size:
            continue
        if isinstance(extent, int) and isinstance(size, int):
            x = resampled(emit, x, axis, _averaging_taps(extent, size))
        else:
            x = mix(emit, x, axis, _averaging_matrix_at_run_time(emit, extent, size, x.dtype))
    return x


def even_windows(extents: Sequence[Size], sizes: Sequence[Size]) -> dict[str, Any] | None:
    """The attributes of the pool whose windows share an image out, of sizes that divide it."""
    kernel: list[int] = []
    for extent, size in zip(extents, sizes, strict=True):
        if not isinstance(extent, int) or not isinstance(size, int) or size == 0 or extent % size:
            return None
        kernel.append(extent // size)
    count = len(kernel)
    return {"kernel": kernel, "strides": kernel, "padding": ((0, 0),) * count, "dilation": (1,) * count}


def _averaging_taps(extent: int, size: int) -> Taps:
    """Those of windows that share the image out, and overlap where it does not divide."""
    rows = np.arange(size)
    begin, end = rows * extent // size, -(-(rows + 1) * extent // size)
    places = begin + np.arange(int((end - begin).max(initial=1)))[:, None]
    weights = np.where(places < end, 1 / (end - begin), 0.0)
    return Taps(*read_again(np.minimum(places, end - 1), weights))


def _averaging_matrix_at_run_time(emit: Emitter, extent: Size, size: Size, dtype: DType) -> Value:
    """The same as a matrix [size, extent], of sizes that only the run knows."""
    rows, columns = emit.unsqueeze(emit.iota(size), 1), emit.unsqueeze(emit.iota(extent), 0)
    old, new = emit.value(extent, int64), emit.value(size, int64)
    begin = emit.op("floor_divide", emit.op("multiply", rows, old), new)
    last = emit.op("subtract", emit.op("multiply", emit.op("add", rows, 1), old), 1)
    end = emit.op("add", emit.op("floor_divide", last, new), 1)
    within = emit.op("logical_and", emit.op("less_equal", begin, columns), emit.op("less", columns, end))
    share = emit.op("divide", 1.0, emit.cast(emit.op("subtract", end, begin), float64))
    return emit.cast(emit.op("where", within, share, emit.builder.number(0.0, float64)), dtype)


def upsample_nearest(
    emit: Emitter, x: Value, targets: Iterable[tuple[int, Size, float | None]], exact_at_1_and_2: bool = False
) -> Value:
    """New sizes for axes, each with its factor where one is given: whole ones repeat pixels, others gather them.

    Places are computed in float32, as PyTorch does, by the factor rather than by the sizes that follow from it.
    With `exact_at_1_and_2`, as for images on CPUs, an axis whose size stays or doubles repeats its pixels, whatever
    its factor.
    """
    for axis, size, factor in targets:
        extent = x.shape[axis]
        if exact_at_1_and_2 and any(simplify(lift(extent) * times) == size for times in (1, 2)):
            factor = None
        times = simplify(lift(size) // extent)
        if isinstance(times, int) and simplify(lift(extent) * times) == size and factor in (None, times):
            x = repeat(emit, x, axis, times)
        elif isinstance(extent, int) and isinstance(size, int):
            step = np.float32(1 / factor) if factor else np.float32(extent) / np.float32(size)
            positions = np.minimum((np.arange(size, dtype=np.float32) * step).astype(np.int64), extent - 1)
            x = emit.op("gather", x, emit.constant(positions, "positions"), axis=axis)
        else:
            x = emit.op("gather", x, _nearest_at_run_time(emit, extent, size, factor, exact_at_1_and_2), axis=axis)
    return x


def _nearest_at_run_time(
    emit: Emitter, extent: Size, size: Size, factor: float | None, exact_at_1_and_2: bool
) -> Value:
    """The places that new pixels take theirs from, of sizes that only the run knows."""
    old, new = emit.value(extent, float32), emit.value(size, float32)
    step = emit.op("divide", old, new)
    if factor:
        by_factor = emit.builder.number(float(np.float32(1 / factor)), float32)
        is_simple = [emit.op("equal", new, emit.op("multiply", old, times)) for times in (1.0, 2.0)]
        step = emit.op("where", emit.op("logical_or", *is_simple), step, by_factor) if exact_at_1_and_2 else by_factor
    places = emit.cast(emit.op("multiply", emit.cast(emit.iota(size), float32), step), int64)
    last = emit.op("subtract", emit.value(extent, int64), 1)
    return emit.op("minimum", places, last)


def repeat(emit: Emitter, x: Value, axis: int, count: Size) -> Value:
    """Every position of one dimension `count` times in a row."""
    if count == 1:
        return x
    shape = x.shape
    stretched = emit.broadcast(emit.unsqueeze(x, axis + 1), (*shape[: axis + 1], count, *shape[axis + 1 :]))
    return emit.flatten(stretched, axis, axis + 2)


def tile(emit: Emitter, x: Value, repeats: Sequence[Size]) -> Value:
    """The whole tensor again and again along each dimension."""
    for axis, count in enumerate(repeats):
        if count != 1:
            shape = x.shape
            stretched = emit.broadcast(emit.unsqueeze(x, axis), (*shape[:axis], count, *shape[axis:]))
            x = emit.flatten(stretched, axis, axis + 2)
    return x


def whole(emit: Emitter, x: Value, dtype: DType) -> Value:
    """Real numbers as the nearest integers of a type, and its limits beyond them."""
    limits = np.iinfo(dtype.numpy)
    return emit.cast(emit.op("clip", emit.op("round", x), low=float(limits.min), high=float(limits.max)), dtype)


def mix(emit: Emitter, x: Value, axis: int, matrix: Value) -> Value:
    """A matrix [out, in] applied along one dimension of real numbers."""
    _check_real(x)
    last = emit.transpose(x, axis, x.rank - 1)
    return emit.transpose(emit.op("matmul", last, matrix, transpose_b=True), axis, x.rank - 1)


def _check_real(x: Value) -> None:
    if not x.dtype.is_float:
        raise Unsupported(f"interpolation of {x.dtype}", "cast the image to float32 first")


@dataclass(frozen=True)
class Taps:
    """What a resampling reads along one dimension: for each result places of pixels and their weights [tap, result]."""

    places: np.ndarray
    weights: np.ndarray


def resampled(emit: Emitter, x: Value, axis: int, taps: Taps) -> Value:
    """Real numbers resampled along a dimension, as sums of what is looked up: a few written out, more as a reduction.

    What has no weight is not read, so infinities and NaNs stay where they are.
    """
    _check_real(x)
    count, size = taps.places.shape
    if size == x.shape[axis] and (taps.places == np.arange(size)).all():
        return x
    wide = float32 if x.dtype.bits < 32 else x.dtype

    def weighted(places: np.ndarray, weights: np.ndarray) -> Value:
        seen = emit.cast(emit.op("gather", x, emit.constant(places, "places"), axis=axis), wide)
        column = weights.astype(wide.numpy).reshape(*weights.shape, *[1] * (x.rank - 1 - axis))
        return emit.op("multiply", seen, emit.constant(column, "weights"))

    if count > _MOST_WRITTEN:
        parts = weighted(np.ascontiguousarray(taps.places.T), np.ascontiguousarray(taps.weights.T))
        return emit.cast(emit.op("reduce_sum", parts, axes=(axis + 1,), keepdims=False), x.dtype)
    total = weighted(taps.places[0], taps.weights[0])
    for places, weights in zip(taps.places[1:], taps.weights[1:], strict=True):
        total = emit.op("add", total, weighted(places, weights))
    return emit.cast(total, x.dtype)


def interpolation_taps(places: np.ndarray, extent: int) -> Taps:
    """Those of linear interpolation at `places` (in pixels, clamped to the image)."""
    places = np.clip(places, 0.0, extent - 1)
    low = np.floor(places).astype(np.int64)
    share = places - low
    return Taps(*read_again(np.stack([low, np.minimum(low + 1, extent - 1)]), np.stack([1 - share, share])))


def linear_curve(far: np.ndarray) -> np.ndarray:
    """The weight of a pixel at a distance in linear interpolation."""
    return np.maximum(1 - far, 0.0)


def cubic_curve(coefficient: float) -> Callable[[np.ndarray], np.ndarray]:
    """The weight of a pixel at a distance in cubic convolution (Keys, 1981)."""

    def weight(far: np.ndarray) -> np.ndarray:
        near = ((coefficient + 2) * far - (coefficient + 3)) * far * far + 1
        beyond = coefficient * (((far - 5) * far + 8) * far - 4)
        return np.where(far <= 1, near, np.where(far < 2, beyond, 0.0))

    return weight


def curve_taps(
    places: np.ndarray,
    extent: int,
    curve: Callable[[np.ndarray], np.ndarray],
    width: int,
    scale: float,
    exclude_outside: bool,
) -> Taps:
    """Those of a curve that ends at the distance `width` around `places` (in pixels).

    A `scale` below 1 widens the curve to all pixels that one of a smaller image stands for. Pixels beyond the image
    are those of its edge, or count for nothing (`exclude_outside`).
    """
    reach = math.ceil(width / scale)
    read = np.floor(places).astype(np.int64) + np.arange(1 - reach, reach + 1)[:, None]
    weights = curve(np.abs(places - read) * scale)
    if exclude_outside:
        weights = np.where((read >= 0) & (read < extent), weights, 0.0)
    if exclude_outside or scale < 1:
        weights = weights / weights.sum(0)
    return Taps(*read_again(np.clip(read, 0, extent - 1), weights))


def curve_matrix_at_run_time(
    emit: Emitter,
    place: Value,
    extent: Size,
    curve: Callable[[Emitter, Value], Value],
    width: int,
    scale: Value | None,
    exclude_outside: bool,
) -> Value:
    """As `curve_taps`, of places [size] and a scale (None: 1) that only the run knows: [size, extent] in float64.

    What lies beyond an edge is added to it: no curve is wider than `width` images of `extent` pixels, or than `width`
    pixels where it has no scale.
    """
    rows = emit.unsqueeze(place, 1)

    def weights(columns: Value) -> Value:
        far = emit.op("absolute", emit.op("subtract", rows, emit.unsqueeze(columns, 0)))
        return curve(emit, far if scale is None else emit.op("multiply", far, scale))

    columns = emit.iota(extent, float64)
    matrix = weights(columns)
    if not exclude_outside:
        last = emit.value(simplify(lift(extent) - 1), float64)
        beyond = emit.op("add", emit.iota(simplify(lift(extent) * width) if scale is not None else width, float64), 1.0)
        for edge, outside in ((0.0, emit.op("negate", beyond)), (last, emit.op("add", last, beyond))):
            share = emit.op("reduce_sum", weights(outside), axes=(1,), keepdims=True)
            at_edge = emit.unsqueeze(emit.op("equal", columns, edge), 0)
            matrix = emit.op("add", matrix, emit.op("where", at_edge, share, emit.builder.number(0.0, float64)))
    if scale is None and not exclude_outside:
        return matrix
    return emit.op("divide", matrix, emit.op("reduce_sum", matrix, axes=(1,), keepdims=True))


def depth_to_space(emit: Emitter, x: Value, factor: int, columns_first: bool) -> Value:
    """[.., C f f, H, W] -> [.., C, H f, W f]; `columns_first`: channel index = (row, column, channel)."""
    lead, (channels, height, width) = x.shape[:-3], x.shape[-3:]
    count, depth = len(lead), channels // (factor * factor)
    if columns_first:
        x = emit.reshape(x, (*lead, factor, factor, depth, height, width))
        order = [*range(count), count + 2, count + 3, count, count + 4, count + 1]
    else:
        x = emit.reshape(x, (*lead, depth, factor, factor, height, width))
        order = [*range(count), count, count + 3, count + 1, count + 4, count + 2]
    return emit.reshape(emit.permute(x, order), (*lead, depth, height * factor, width * factor))


def space_to_depth(emit: Emitter, x: Value, factor: int, columns_first: bool) -> Value:
    """The inverse of `depth_to_space`."""
    lead, (channels, height, width) = x.shape[:-3], x.shape[-3:]
    count, rows, columns = len(lead), height // factor, width // factor
    x = emit.reshape(x, (*lead, channels, rows, factor, columns, factor))
    inner = [count + 2, count + 4, count] if columns_first else [count, count + 2, count + 4]
    x = emit.permute(x, [*range(count), *inner, count + 1, count + 3])
    return emit.reshape(x, (*lead, channels * factor * factor, rows, columns))


def pad_from_image(emit: Emitter, x: Value, axis: int, low: int, high: int, mode: str) -> Value:
    """One dimension padded with the image itself: mode "reflect", "edge" or "wrap" (as in NumPy's pad).

    The source position of every element is arithmetic on an iota, so that the dimension may be dynamic.
    """
    if low < 0 or high < 0:
        raise Unsupported("a negative padding with the image itself", "crop with a slice")
    if not (low or high):
        return x
    extent = x.shape[axis]
    position = emit.iota(simplify(lift(extent) + (low + high)), start=-low)
    return emit.op("gather", x, _inside(emit, position, extent, mode), axis=axis)


def _inside(emit: Emitter, position: Value, extent: Size, mode: str) -> Value:
    """Where in a dimension the elements of a padded one come from."""
    last = emit.value(simplify(lift(extent) - 1), int64)
    if mode == "reflect":
        from_start = emit.op("absolute", position)
        return emit.op("subtract", last, emit.op("absolute", emit.op("subtract", last, from_start)))
    if mode == "edge":
        return emit.op("minimum", emit.op("maximum", position, 0), last)
    return emit.op("remainder", position, emit.value(extent, int64))


def pad_by_sizes(emit: Emitter, x: Value, axis: int, low: Size, high: Size, value: Value) -> Value:
    """One dimension padded by numbers of elements that are sizes, with one value; negative ones cut."""
    extent = x.shape[axis]
    place = emit.iota(simplify(lift(extent) + low + high))
    place = emit.op("subtract", place, emit.value(low, int64)) if low != 0 else place
    last = emit.value(simplify(lift(extent) - 1), int64)
    inside = emit.op("logical_and", emit.op("greater_equal", place, 0), emit.op("less_equal", place, last))
    read = emit.op("gather", x, emit.op("minimum", emit.op("maximum", place, 0), last), axis=axis)
    inside = emit.unsqueeze(inside, *range(1, x.rank - axis)) if axis + 1 < x.rank else inside
    return emit.op("where", inside, read, value)
