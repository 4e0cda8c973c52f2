"""Convolutions, pools and resampling of images beyond the graph's own ops; shared by the importers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from tilewright.dtypes import DType, float64, int64
from tilewright.graph.core import Value
from tilewright.importers.emitter import Emitter
from tilewright.importers.report import Unsupported
from tilewright.symbolic import Size, lift, simplify


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
    result of each phase, those a stride apart, are a convolution of the image by every stride-th tap.
    """
    for size, (low, high), step, more in zip(weight.shape[2:], pads, dilation, extra, strict=True):
        if not isinstance(size, int):
            raise Unsupported("a transposed convolution whose kernel size is not a number")
        if step * (size - 1) < max(low, high - more):
            hint = "use a smaller padding"
            raise Unsupported("a transposed convolution that crops more than the kernel covers", hint)
    if all(step == 1 for step in strides):
        return _turned_convolution(emit, x, weight, bias, pads, dilation, extra, groups)
    if all(stride == 1 or step == 1 for stride, step in zip(strides, dilation, strict=True)):
        return _phases(emit, x, weight, bias, strides, pads, dilation, extra, groups)
    for axis, step in enumerate(strides, start=2):
        if step != 1:
            x = _spread(emit, x, axis, step)
    return _turned_convolution(emit, x, weight, bias, pads, dilation, extra, groups)


def _turned_convolution(
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


def _phases(
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
    """A transposed convolution as one convolution whose channels are those of all phases, which are then interleaved.

    Pixel `stride * m + phase` of the whole result is the sum over j of pixel `m - j` times tap `phase + stride * j`.
    """
    count, outputs = weight.rank - 2, weight.shape[1]
    kernel = [int(size) for size in weight.shape[2:]]  # type: ignore[arg-type]  # checked before
    taps, padding, firsts = [], [], []
    for size, stride, (low, high), step, more in zip(kernel, strides, pads, dilation, extra, strict=True):
        steps = -(-size // stride)  # taps of a phase
        taps.append(steps)
        firsts.append(low % stride)
        padding.append((step * (steps - 1) - low // stride, (step * (size - 1) - high + more) // stride))
    weight = emit.op("pad", weight, pads=[(0, 0), (0, 0)] + [
        (0, steps * stride - size) for size, stride, steps in zip(kernel, strides, taps, strict=True)
    ])  # fmt: skip
    pairs = [size for pair in zip(taps, strides, strict=True) for size in pair]
    weight = emit.reshape(weight, (groups, simplify(lift(weight.shape[0]) // groups), outputs, *pairs))
    for axis in range(3, 3 + 2 * count, 2):
        weight = emit.flip(weight, axis)
    odd, even = range(4, 3 + 2 * count, 2), range(3, 3 + 2 * count, 2)
    weight = emit.flatten(emit.permute(weight, (0, *odd, 2, 1, *even)), 0, 2 + count)
    if bias is not None:
        split = emit.reshape(bias, (groups, *[1] * count, outputs))
        bias = emit.flatten(emit.broadcast(split, (groups, *strides, outputs)), 0, 2 + count)
    found = emit.op("conv", x, weight, bias, strides=[1] * count, padding=padding, dilation=tuple(dilation),
                    groups=groups)  # fmt: skip
    found = _interleaved(emit, found, strides, groups)
    for axis, (extent, size, stride, (low, high), step, more, first) in enumerate(
        zip(x.shape[2:], kernel, strides, pads, dilation, extra, firsts, strict=True), start=2
    ):
        length = simplify((lift(extent) - 1) * stride + (step * (size - 1) + 1 - low - high + more))
        found = emit.slice(found, axis, first, simplify(lift(length) + first))
    return found


def _interleaved(emit: Emitter, x: Value, strides: Sequence[int], groups: int) -> Value:
    """[N, groups * phases * C, *spatial] as [N, groups * C, *(spatial * strides)]."""
    count, (batch, channels, *spatial) = len(strides), x.shape
    lead = () if groups == 1 else (groups,)
    outputs = simplify(lift(channels) // (groups * math.prod(strides)))
    x = emit.reshape(x, (batch, *lead, *strides, outputs, *spatial))
    phase = 1 + len(lead)
    places = [place for axis in range(count) for place in (phase + count + 1 + axis, phase + axis)]
    x = emit.permute(x, (*range(phase), phase + count, *places))
    sizes = [simplify(lift(extent) * stride) for extent, stride in zip(spatial, strides, strict=True)]
    return emit.reshape(x, (batch, simplify(lift(outputs) * groups), *sizes))


def _spread(emit: Emitter, x: Value, axis: int, step: int) -> Value:
    """`step - 1` zeros between the positions of one dimension."""
    extent = x.shape[axis]
    pads = [(0, step - 1) if place == axis + 1 else (0, 0) for place in range(x.rank + 1)]
    merged = emit.flatten(emit.op("pad", emit.unsqueeze(x, axis + 1), pads=pads), axis, axis + 2)
    return emit.slice(merged, axis, 0, simplify(lift(extent) * step - (step - 1)))


def adaptive_average(emit: Emitter, x: Value, sizes: Sequence[Size]) -> Value:
    """Average pooling of the last dimensions to `sizes`, in windows that may overlap."""
    first = x.rank - len(sizes)
    if all(size == 1 for size in sizes):
        return emit.op("reduce_mean", x, axes=tuple(range(first, x.rank)), keepdims=True)
    pairs = list(zip(x.shape[first:], sizes, strict=True))
    fixed = [(extent, size) for extent, size in pairs if isinstance(extent, int) and isinstance(size, int)]
    if len(fixed) == len(pairs) and all(extent % size == 0 for extent, size in fixed):
        kernel, count = [extent // size for extent, size in fixed], len(pairs)
        windows = {"kernel": kernel, "strides": kernel, "padding": ((0, 0),) * count, "dilation": (1,) * count}
        return emit.op("average_pool", x, **windows)
    for axis, (extent, size) in enumerate(pairs, start=first):
        if extent == size:
            continue
        if isinstance(extent, int) and isinstance(size, int):
            x = mix(emit, x, axis, _averaging_matrix(extent, size))
        else:
            x = mix(emit, x, axis, _averaging_matrix_at_run_time(emit, extent, size, x.dtype))
    return x


def _averaging_matrix(extent: int, size: int) -> np.ndarray:
    """Weights [size, extent] of windows that share the image out, and overlap where it does not divide."""
    matrix = np.zeros((size, extent))
    for row in range(size):
        begin, end = row * extent // size, -(-(row + 1) * extent // size)
        matrix[row, begin:end] = 1 / (end - begin)
    return matrix


def _averaging_matrix_at_run_time(emit: Emitter, extent: Size, size: Size, dtype: DType) -> Value:
    """As `_averaging_matrix`, of sizes that only the run knows."""
    rows, columns = emit.unsqueeze(emit.iota(size), 1), emit.unsqueeze(emit.iota(extent), 0)
    old, new = emit.value(extent, int64), emit.value(size, int64)
    begin = emit.op("floor_divide", emit.op("multiply", rows, old), new)
    last = emit.op("subtract", emit.op("multiply", emit.op("add", rows, 1), old), 1)
    end = emit.op("add", emit.op("floor_divide", last, new), 1)
    within = emit.op("logical_and", emit.op("less_equal", begin, columns), emit.op("less", columns, end))
    share = emit.op("divide", 1.0, emit.cast(emit.op("subtract", end, begin), float64))
    return emit.cast(emit.op("where", within, share, emit.builder.number(0.0, float64)), dtype)


def upsample_nearest(emit: Emitter, x: Value, targets: Iterable[tuple[int, Size, float | None]]) -> Value:
    """New sizes for axes, each with its factor where one is given: whole ones repeat pixels, others gather them.

    Places are computed in float32, as PyTorch does, by the factor rather than by the sizes that follow from it.
    """
    for axis, size, factor in targets:
        extent = x.shape[axis]
        times = simplify(lift(size) // extent)
        if isinstance(times, int) and simplify(lift(extent) * times) == size and factor in (None, times):
            x = repeat(emit, x, axis, times)
        elif isinstance(extent, int) and isinstance(size, int):
            step = np.float32(1 / factor) if factor else np.float32(extent) / np.float32(size)
            positions = np.minimum((np.arange(size, dtype=np.float32) * step).astype(np.int64), extent - 1)
            x = emit.op("gather", x, emit.constant(positions, "positions"), axis=axis)
        else:
            raise Unsupported(f"nearest resampling from {extent} to {size}", "use a whole factor or fixed sizes")
    return x


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


def mix(emit: Emitter, x: Value, axis: int, matrix: np.ndarray | Value) -> Value:
    """A matrix [out, in] applied along one dimension of real numbers."""
    if not x.dtype.is_float:
        raise Unsupported(f"interpolation of {x.dtype}", "cast the image to float32 first")
    last = emit.transpose(x, axis, x.rank - 1)
    if not isinstance(matrix, Value):
        matrix = emit.constant(matrix.astype(x.dtype.numpy), "interpolation")
    return emit.transpose(emit.op("matmul", last, matrix, transpose_b=True), axis, x.rank - 1)


def interpolation_matrix(places: np.ndarray, extent: int) -> np.ndarray:
    """Weights [size, extent] that read `places` (in pixels, clamped to the image) by linear interpolation."""
    places = np.clip(places, 0.0, extent - 1)
    low = np.floor(places).astype(np.int64)
    high = np.minimum(low + 1, extent - 1)
    share = places - low
    matrix = np.zeros((len(places), extent))
    matrix[np.arange(len(places)), low] += 1 - share
    matrix[np.arange(len(places)), high] += share
    return matrix


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


def curve_matrix(
    places: np.ndarray,
    extent: int,
    curve: Callable[[np.ndarray], np.ndarray],
    width: int,
    scale: float,
    exclude_outside: bool,
) -> np.ndarray:
    """Weights [size, extent] that read `places` (in pixels) by a curve that ends at the distance `width`.

    A `scale` below 1 widens the curve to all pixels that one of a smaller image stands for. Pixels beyond the image
    are those of its edge, or count for nothing (`exclude_outside`).
    """
    rows = np.arange(len(places))
    base = np.floor(places).astype(np.int64)
    reach = math.ceil(width / scale)
    matrix = np.zeros((len(places), extent))
    for step in range(1 - reach, reach + 1):
        weight = curve(np.abs(places - (base + step)) * scale)
        inside = (base + step >= 0) & (base + step < extent)
        if exclude_outside:
            weight = np.where(inside, weight, 0.0)
        matrix[rows, np.clip(base + step, 0, extent - 1)] += weight
    return matrix / matrix.sum(1, keepdims=True) if exclude_outside or scale < 1 else matrix


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
    last = emit.value(simplify(lift(extent) - 1), int64)
    if mode == "reflect":
        from_start = emit.op("absolute", position)
        position = emit.op("subtract", last, emit.op("absolute", emit.op("subtract", last, from_start)))
    elif mode == "edge":
        position = emit.op("minimum", emit.op("maximum", position, 0), last)
    else:
        position = emit.op("remainder", position, emit.value(extent, int64))
    return emit.op("gather", x, position, axis=axis)


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
