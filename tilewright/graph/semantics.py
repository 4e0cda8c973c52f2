"""The meaning of the graph ops, in NumPy.

A rule takes arrays (None for a missing optional input) and attributes with concrete sizes, and
returns the output array.  Rules keep the element type of their inputs; `graph.reference` runs them
in float64.  Attributes that name an element type are a `DType`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.dtypes import BY_NAME, wrapped
from tilewright.errors import InputError, ShapeError
from tilewright.graph.inference import pool_extent

Array = np.ndarray
Arrays = Sequence[Any]  # arrays, or None for missing optional inputs
Attributes = Mapping[str, Any]
Rule = Callable[[Arrays, Attributes], Array]


def of(function: Callable[..., Any]) -> Rule:
    """The rule of a NumPy function of all inputs and no attributes."""

    def rule(inputs: Arrays, attributes: Attributes) -> Array:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            return np.asarray(function(*inputs))

    return rule


def arithmetic(function: Callable[..., Any]) -> Rule:
    """As `of`; with a float32 number, 16-bit floats are computed in float32, and the result is rounded."""

    def rule(inputs: Arrays, attributes: Attributes) -> Array:
        result = of(function)(inputs, attributes)
        halves = [item.dtype for item in inputs if item.dtype.itemsize == 2]
        return result.astype(halves[0]) if result.dtype == np.float32 and halves else result

    return rule


# Elementwise ---------------------------------------------------------------------------------------

_ERF_STEP, _ERF_END, _ERF_DEGREE = 32, 6, 9


def _erf_coefficients() -> Array:
    """Taylor coefficients of erf at the points i/32 up to 6, from the Hermite form of its derivatives:
    erf^(k+1)(x) = 2/sqrt(pi) (-1)^k H_k(x) exp(-x^2)."""
    points = np.arange(_ERF_STEP * _ERF_END + 1) / _ERF_STEP
    bell = 2 / math.sqrt(math.pi) * np.exp(-points * points)
    hermite, following = np.ones_like(points), 2 * points
    rows = [np.array([math.erf(point) for point in points])]
    for order in range(_ERF_DEGREE):
        rows.append(bell * (-1) ** order * hermite / math.factorial(order + 1))
        hermite, following = following, 2 * points * following - 2 * (order + 1) * hermite
    return np.stack(rows)


_ERF = _erf_coefficients()


def erf(x: Array) -> Array:
    """The error function to float64 accuracy: a Taylor step from the nearest tabulated point."""
    magnitude = np.minimum(np.abs(np.asarray(x, np.float64)), _ERF_END)
    nearest = np.rint(np.nan_to_num(magnitude) * _ERF_STEP).astype(np.int64)
    step = magnitude - nearest / _ERF_STEP
    result = _ERF[-1][nearest]
    for row in _ERF[-2::-1]:
        result = result * step + row[nearest]
    return np.copysign(result, x).astype(x.dtype)


def erfinv(x: Array) -> Array:
    """The inverse of erf: Winitzki's approximation ("A handy approximation for the error function and its inverse",
    2008), then four steps of Newton's method on the complement, which keeps the digits near 1."""
    wide = np.asarray(x, np.float64)
    magnitude = np.where(np.abs(wide) < 1, np.abs(wide), 0.0)
    logarithm = np.log1p(-magnitude * magnitude)
    half = 2 / (math.pi * 0.147) + logarithm / 2
    root = np.sqrt(np.sqrt(half * half - logarithm / 0.147) - half)
    for _ in range(4):
        excess = np.vectorize(math.erfc, otypes=[np.float64])(root) - (1 - magnitude)
        root = root + excess * np.exp(root * root) * (math.sqrt(math.pi) / 2)
    ends = np.where(np.abs(wide) == 1, np.inf, np.nan)
    return np.copysign(np.where(np.abs(wide) < 1, root, ends), wide).astype(x.dtype)


def _log_gamma(x: float) -> float:
    if math.isinf(x) or (x <= 0 and x == math.floor(x)):
        return math.inf
    return math.lgamma(x)


_erfc_of_one = np.frompyfunc(math.erfc, 1, 1)


def erfc(x: Array) -> Array:
    return np.asarray(_erfc_of_one(np.asarray(x, np.float64))).astype(x.dtype)


def lgamma(x: Array) -> Array:
    return np.vectorize(_log_gamma, otypes=[np.float64])(np.asarray(x, np.float64)).astype(x.dtype)


def _inside_width(x: Array, y: Array) -> Array:
    return (y >= 0) & (y < 8 * x.dtype.itemsize)


def shift_left(x: Array, y: Array) -> Array:
    inside = _inside_width(x, y)
    return np.where(inside, np.left_shift(x, np.where(inside, y, y.dtype.type(0))), x.dtype.type(0))


def shift_right(x: Array, y: Array) -> Array:
    widest = y.dtype.type(8 * x.dtype.itemsize - 1)
    inside = _inside_width(x, y)
    near = np.right_shift(x, np.where(inside, y, widest))
    return np.where(inside | (x < 0), near, x.dtype.type(0))


def sigmoid(x: Array) -> Array:
    exponential = np.exp(-np.abs(x))  # never overflows
    return np.where(x >= 0, 1 / (1 + exponential), exponential / (1 + exponential)).astype(x.dtype)


def relu(x: Array) -> Array:
    return np.maximum(x, x.dtype.type(0))


def rsqrt(x: Array) -> Array:
    return (1 / np.sqrt(x)).astype(x.dtype)


def gelu(inputs: Arrays, attributes: Attributes) -> Array:
    """Exact: x/2 (1 + erf(x/sqrt 2)); "tanh": x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))."""
    x = inputs[0]
    if attributes["approximate"] == "tanh":
        inner = np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))
    else:
        inner = erf(x * x.dtype.type(math.sqrt(0.5)))
    return (0.5 * x * (1 + inner)).astype(x.dtype)


def cast(inputs: Arrays, attributes: Attributes) -> Array:
    """Floats to integers truncate, others wrap; anything to boolean is `!= 0`.

    NaN and floats out of range become what x86 gives: the least int32, of 64-bit integers and uint32 the least int64,
    of which narrower types take the low bits.
    """
    x, dtype = inputs[0], attributes["dtype"]
    if dtype.is_bool:
        return np.asarray(x != 0)
    with np.errstate(all="ignore"):
        if dtype.is_integer and x.dtype.kind not in "iub":
            return _truncated(x.astype(np.float64), dtype.numpy)
        return x.astype(dtype.numpy)


def _truncated(x: Array, dtype: np.dtype) -> Array:
    """float64 towards zero as integers."""
    wide, limit = (np.int64, 2.0**63) if dtype in (np.int64, np.uint64, np.uint32) else (np.int32, 2.0**31)
    large = (x >= limit) if dtype == np.uint64 else np.zeros_like(x, np.bool_)
    x = np.trunc(np.where(large, x - limit, x))
    near = np.where((x >= -limit) & (x < limit), x, -limit).astype(wide)
    return np.where(large, np.bitwise_xor(near, np.iinfo(wide).min), near).astype(dtype)


def bitcast(inputs: Arrays, attributes: Attributes) -> Array:
    source, target = (BY_NAME[attributes[name]].numpy for name in ("of", "to"))
    return np.ascontiguousarray(inputs[0].astype(source)).view(target).reshape(inputs[0].shape)


def clip(inputs: Arrays, attributes: Attributes) -> Array:
    x, low, high = inputs[0], attributes["low"], attributes["high"]
    if low is not None:
        x = np.maximum(x, x.dtype.type(low))
    return x if high is None else np.minimum(x, x.dtype.type(high))


def divide(left: Array, right: Array) -> Array:
    """True division of floats; integers truncate towards zero, and give 0 where the divisor is 0."""
    if left.dtype.kind == "f" or left.dtype.kind == "V":
        return np.divide(left, right)
    divisor = np.where(right == 0, 1, right)
    with np.errstate(over="ignore"):  # the least integer by -1 is itself
        floor = left // divisor
    whole = floor + ((floor < 0) & (floor * divisor != left))
    return np.where(right == 0, 0, whole).astype(left.dtype)


def power(left: Array, right: Array) -> Array:
    """Powers; of negative whole ones the whole part, and 0 for 0."""
    if left.dtype.kind not in "iu":
        return np.power(left, right)
    whole = np.power(left, np.maximum(right, 0))
    unit = np.where(left == 1, 1, np.where((left + 1 == 0) & (left < 0), 1 - 2 * (right & 1), 0))
    return np.where(right < 0, unit, whole).astype(left.dtype)


def where(condition: Array, left: Array, right: Array) -> Array:
    return np.where(condition, left, right)


# Contractions and attention ------------------------------------------------------------------------


def matmul(inputs: Arrays, attributes: Attributes) -> Array:
    left, right = inputs
    left = np.swapaxes(left, -1, -2) if attributes["transpose_a"] else left
    right = np.swapaxes(right, -1, -2) if attributes["transpose_b"] else right
    if attributes["dtype"] is None:
        return np.matmul(left, right)
    return _sums(np.matmul(left.astype(np.float64), right.astype(np.float64)), attributes)


def _sums(exact: Array, attributes: Attributes) -> Array:
    """Sums of products of 8 or 16 bits: of floats rounded once, of integers as int32, which wraps."""
    return exact if attributes["dtype"].is_float else exact.astype(np.int64).astype(np.int32)


def grouped_matmul(inputs: Arrays, attributes: Attributes) -> Array:
    rows, matrices, ends = inputs
    matrices = np.swapaxes(matrices, 1, 2) if attributes["transpose_b"] else matrices
    result = np.zeros((rows.shape[0], matrices.shape[2]), rows.dtype)
    start = 0
    for matrix, end in zip(matrices, ends, strict=True):
        end = min(max(int(end), start), len(rows))
        result[start:end] = rows[start:end] @ matrix
        start = end
    return result


def windows(image: Array, kernel: Sequence[int], strides: Sequence[int], dilation: Sequence[int]) -> Array:
    """All windows of a padded channels-first image: a view [N, C, *out, *kernel]; none that are wider."""
    count = len(kernel)
    spans = [(size - 1) * step + 1 for size, step in zip(kernel, dilation, strict=True)]
    places = [max(0, extent - span + 1) for extent, span in zip(image.shape[2:], spans, strict=True)]
    if 0 in places:
        out = [-(-place // stride) for place, stride in zip(places, strides, strict=True)]
        return np.empty((*image.shape[:2], *out, *kernel), image.dtype)
    view = np.lib.stride_tricks.sliding_window_view(image, spans, axis=tuple(range(2, 2 + count)))
    steps = [slice(None), slice(None), *(slice(None, None, step) for step in strides)]
    return view[(*steps, *(slice(None, None, step) for step in dilation))]


def conv(inputs: Arrays, attributes: Attributes) -> Array:
    """Convolution by unfolding the windows and one product for each group."""
    image, weight, bias = (*inputs, None)[:3]
    if attributes["dtype"] is not None:
        wide = [image.astype(np.float64), weight.astype(np.float64)]
        return _sums(conv(wide, {**attributes, "dtype": None}), attributes)
    if attributes["layout"] == "NHWC":
        image = np.moveaxis(image, -1, 1)
    count, groups = weight.ndim - 2, attributes["groups"]
    image = np.pad(image, [(0, 0), (0, 0), *attributes["padding"]])
    view = windows(image, weight.shape[2:], attributes["strides"], attributes["dilation"])
    channels, features = weight.shape[1], weight.shape[0] // groups
    taps = list(range(2 + count, 2 + 2 * count))
    parts = []
    for group in range(groups):
        part = view[:, group * channels : (group + 1) * channels]
        kernel = weight[group * features : (group + 1) * features]
        parts.append(np.tensordot(part, kernel, axes=([1, *taps], list(range(1, 2 + count)))))
    result = np.concatenate(parts, axis=-1)  # [N, *out, O]
    if bias is not None:
        result = result + bias
    return result if attributes["layout"] == "NHWC" else np.moveaxis(result, -1, 1)


def softmax_array(x: Array, axis: int) -> Array:
    """Softmax; rows that are all -inf give NaN, as dividing zero by zero does."""
    with np.errstate(all="ignore"):
        exponential = np.exp(x - np.max(x, axis=axis, keepdims=True, initial=-np.inf))
        return exponential / np.sum(exponential, axis=axis, keepdims=True)


def attention(inputs: Arrays, attributes: Attributes) -> Array:
    """softmax(scale q k^T + bias) v by head; rows that may see no key at all give zeros."""
    query, key, values, bias, lengths = (*inputs, None, None)[:5]
    repeat = query.shape[1] // key.shape[1]
    if repeat > 1:
        key, values = np.repeat(key, repeat, axis=1), np.repeat(values, repeat, axis=1)
    scores = np.matmul(query, np.swapaxes(key, -1, -2)) * query.dtype.type(attributes["scale"])
    if attributes["softcap"]:
        cap = query.dtype.type(attributes["softcap"])
        scores = cap * np.tanh(scores / cap)
    if bias is not None:
        scores = scores + bias
    rows, keys = scores.shape[-2:]
    last = np.arange(rows)[:, None] + (keys - rows)  # key that a row sees, if causal
    if attributes["causal"]:
        scores = np.where(np.arange(keys) <= last, scores, -np.inf)
    if attributes["window"]:
        scores = np.where(np.arange(keys) > last - attributes["window"], scores, -np.inf)
    if lengths is not None:
        scores = np.where(np.arange(keys) < lengths[:, None, None, None], scores, -np.inf)
    with np.errstate(all="ignore"):
        weights = softmax_array(scores, -1)
    blind = np.max(scores, axis=-1, keepdims=True, initial=-np.inf) == -np.inf
    return np.matmul(np.where(blind, 0, weights), values)


# Reductions and row ops ----------------------------------------------------------------------------


def reduction(function: Callable[..., Any], **identity: Any) -> Rule:
    """The rule of a NumPy reduction over `axes`, in the input's element type."""

    def rule(inputs: Arrays, attributes: Attributes) -> Array:
        x = inputs[0]
        if not x.size and function is np.mean:  # of which NumPy warns
            empty_sum = np.sum(x, axis=tuple(attributes["axes"]), keepdims=attributes["keepdims"])
            with np.errstate(invalid="ignore"):
                return np.asarray(empty_sum * np.nan).astype(x.dtype)
        empty = {"initial": _worst(x.dtype, function is np.max)} if not x.size and function in (np.max, np.min) else {}
        result = function(x, axis=tuple(attributes["axes"]), keepdims=attributes["keepdims"], **empty)
        return np.asarray(result).astype(x.dtype)

    return rule


def _worst(dtype: np.dtype, least: bool) -> Any:
    """The least value of an element type, or the largest: the extreme of no elements."""
    if dtype.kind == "b":
        return not least
    if dtype.kind in "iu":
        return np.iinfo(dtype).min if least else np.iinfo(dtype).max
    return dtype.type(-np.inf if least else np.inf)


def arg_reduction(function: Callable[..., Any]) -> Rule:
    """The rule of argmax or argmin: the first of equal elements; of an empty axis only where there is no result."""

    def rule(inputs: Arrays, attributes: Attributes) -> Array:
        x, axis, keepdims = inputs[0], attributes["axis"], attributes["keepdims"]
        if x.ndim and 0 in np.delete(x.shape, axis):
            x = np.sum(x, axis, keepdims=True)  # NumPy asks for one element, which nobody sees
        return np.asarray(function(x, axis=axis, keepdims=keepdims), np.int64)

    return rule


def log_sum_exp(x: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
    """max + log(sum(e^(x - max)))."""
    largest = np.max(x, axis=axis, keepdims=True, initial=-np.inf)
    with np.errstate(all="ignore"):
        shift = np.where(np.isfinite(largest), largest, 0)
        total = np.log(np.sum(np.exp(x - shift), axis=axis, keepdims=True)) + shift
    return total if keepdims else np.squeeze(total, axis)


def cumulative(function: Callable[..., Any]) -> Rule:
    """The rule of a NumPy function that runs along `axis`, from its end with `reverse`."""

    def rule(inputs: Arrays, attributes: Attributes) -> Array:
        axis, back = attributes["axis"], attributes["reverse"]
        x = np.flip(inputs[0], axis) if back else inputs[0]
        result = np.asarray(function(x, axis=axis)).astype(x.dtype)
        return np.flip(result, axis) if back else result

    return rule


def running_log_sum_exp(x: Array, axis: int) -> Array:
    """log(sum of e^x up to each element), in at least float32."""
    with np.errstate(invalid="ignore"):
        return np.logaddexp.accumulate(x.astype(np.result_type(x.dtype, np.float32)), axis=axis)


def softmax(inputs: Arrays, attributes: Attributes) -> Array:
    return softmax_array(inputs[0], attributes["axis"])


def log_softmax(inputs: Arrays, attributes: Attributes) -> Array:
    x, axis = inputs[0], attributes["axis"]
    shifted = x - np.max(x, axis=axis, keepdims=True, initial=-np.inf)
    with np.errstate(divide="ignore"):  # rows without elements
        return shifted - np.log(np.sum(np.exp(shifted), axis=axis, keepdims=True))


def layer_norm(inputs: Arrays, attributes: Attributes) -> Array:
    x, scale, bias = (*map(_wide, inputs), None, None)[:3]
    assert x is not None
    axes = tuple(range(attributes["axis"], x.ndim))
    centred = x - np.mean(x, axis=axes, keepdims=True)
    variance = np.mean(centred * centred, axis=axes, keepdims=True)
    normal = _affine(centred / np.sqrt(variance + x.dtype.type(attributes["epsilon"])), scale, bias)
    return normal.astype(inputs[0].dtype)


def rms_norm(inputs: Arrays, attributes: Attributes) -> Array:
    x, scale = (*map(_wide, inputs), None)[:2]
    assert x is not None
    axes = tuple(range(attributes["axis"], x.ndim))
    power = np.mean(x * x, axis=axes, keepdims=True)
    return _affine(x / np.sqrt(power + x.dtype.type(attributes["epsilon"])), scale, None).astype(inputs[0].dtype)


def _wide(x: Array | None) -> Array | None:
    """In a type whose range holds squares of float16, as kernels take them."""
    return x.astype(np.float32) if x is not None and x.dtype.itemsize < 4 else x


def batch_norm(inputs: Arrays, attributes: Attributes) -> Array:
    x = inputs[0]
    scale, bias, mean, variance = (_per_channel(item, x.ndim) for item in inputs[1:])
    return _affine((x - mean) / np.sqrt(variance + x.dtype.type(attributes["epsilon"])), scale, bias)


def group_norm(inputs: Arrays, attributes: Attributes) -> Array:
    x, scale, bias = (*inputs, None, None)[:3]
    groups = attributes["groups"]
    grouped = x.reshape(x.shape[0], groups, math.prod(x.shape[1:]) // groups)
    normal = layer_norm([grouped], {"axis": 2, "epsilon": attributes["epsilon"]}).reshape(x.shape)
    return _affine(normal, _per_channel(scale, x.ndim), _per_channel(bias, x.ndim))


def _per_channel(item: Array | None, rank: int) -> Array | None:
    return None if item is None else item.reshape(-1, *[1] * (rank - 2))


def _affine(x: Array, scale: Array | None, bias: Array | None) -> Array:
    x = x if scale is None else x * scale
    return x if bias is None else x + bias


# Movement ------------------------------------------------------------------------------------------


def reshape(inputs: Arrays, attributes: Attributes) -> Array:
    """Raises `ShapeError` where sizes that only the run knows give another number of elements."""
    x, shape = inputs[0], attributes["shape"]
    if math.prod(shape) != x.size:
        raise ShapeError(f"a tensor of {list(x.shape)} has not the elements of {list(shape)}")
    if attributes.get("same") and x.shape != tuple(shape):  # of no elements, or of the same number
        raise ShapeError(f"a tensor of {list(x.shape)} has not the shape {list(shape)}")
    return x.reshape(shape)


def permute(inputs: Arrays, attributes: Attributes) -> Array:
    return np.transpose(inputs[0], attributes["order"])


def broadcast_to(inputs: Arrays, attributes: Attributes) -> Array:
    return np.broadcast_to(inputs[0], attributes["shape"])


def slice_(inputs: Arrays, attributes: Attributes) -> Array:
    x, axis = inputs[0], attributes["axis"]
    return np.take(x, np.arange(attributes["start"], attributes["stop"], attributes["step"]), axis=axis)


def concat(inputs: Arrays, attributes: Attributes) -> Array:
    return np.concatenate(inputs, axis=attributes["axis"])


def _check_indices(op: str, indices: Array, extent: int) -> None:
    """Indices count from the end when negative; others raise `InputError`."""
    if indices.size == 1 and -extent <= indices.item() < extent:
        return  # as most are that the host looks up
    if indices.size and not -extent <= int(indices.min()) <= int(indices.max()) < extent:
        wrong = indices[(indices < -extent) | (indices >= extent)].flat[0]
        raise InputError(f"{op}: the index {wrong} is out of range: it takes {-extent}..{extent - 1}")


def gather(inputs: Arrays, attributes: Attributes) -> Array:
    try:
        return np.take(inputs[0], inputs[1], axis=attributes["axis"])
    except IndexError:
        _check_indices("gather", inputs[1], inputs[0].shape[attributes["axis"]])
        raise


def frames(inputs: Arrays, attributes: Attributes) -> Array:
    places = np.arange(attributes["count"])[:, None] * attributes["step"] + np.arange(attributes["length"])
    return np.take(inputs[0], places, axis=attributes["axis"])


def gather_elements(inputs: Arrays, attributes: Attributes) -> Array:
    x, indices = inputs
    axis = attributes["axis"]
    _check_indices("gather_elements", indices, x.shape[axis])
    grid = list(np.indices(indices.shape, sparse=True))
    grid[axis] = indices
    return x[tuple(grid)]


def scatter_update(inputs: Arrays, attributes: Attributes) -> Array:
    target, indices, updates = inputs
    _check_indices("scatter_update", indices, target.shape[attributes["axis"]])
    result = target.copy()
    result[(slice(None),) * attributes["axis"] + (indices,)] = updates
    return result


def scatter_reduce(inputs: Arrays, attributes: Attributes) -> Array:
    target, indices, updates = inputs
    axis = attributes["axis"]
    _check_indices("scatter_reduce", indices, target.shape[axis])
    result = target.copy()
    combine = {"add": np.add, "multiply": np.multiply, "maximum": np.maximum, "minimum": np.minimum}
    combine[attributes["reduction"]].at(result, (slice(None),) * axis + (indices,), updates)
    return result


def pad(inputs: Arrays, attributes: Attributes) -> Array:
    return np.pad(inputs[0], attributes["pads"], constant_values=attributes["value"])


# Sources and pools ---------------------------------------------------------------------------------


def iota(inputs: Arrays, attributes: Attributes) -> Array:
    shape, axis, dtype = attributes["shape"], attributes["axis"], attributes["dtype"].numpy
    line = (attributes["start"] + attributes["step"] * np.arange(shape[axis])).astype(dtype)
    return np.broadcast_to(line.reshape([-1 if index == axis else 1 for index in range(len(shape))]), shape)


def full(inputs: Arrays, attributes: Attributes) -> Array:
    dtype = attributes["dtype"]
    return np.full(attributes["shape"], wrapped(attributes["value"], dtype), dtype.numpy)


def dimension(inputs: Arrays, attributes: Attributes) -> Array:
    return np.array(attributes["expression"], np.int64)


def _pool_windows(image: Array, extents: Sequence[int], attributes: Attributes, fill: Any) -> Array:
    """Windows [N, C, *out, *kernel] of a channels-first image padded with `fill`, `extents` of them."""
    pads = []
    for index, extent in enumerate(extents):
        low = attributes["padding"][index][0]
        reach = attributes["dilation"][index] * (attributes["kernel"][index] - 1) + 1
        needed = (extent - 1) * attributes["strides"][index] + reach - image.shape[2 + index] - low
        pads.append((low, max(0, needed)))
    padded = np.pad(image, [(0, 0), (0, 0), *pads], constant_values=fill)
    view = windows(padded, attributes["kernel"], attributes["strides"], attributes["dilation"])
    return view[(slice(None), slice(None), *(slice(extent) for extent in extents))]


def _pooled(inputs: Arrays, attributes: Attributes, reduce: Callable[[Array, list[int]], Array]) -> Array:
    image = inputs[0] if attributes["layout"] == "NCHW" else np.moveaxis(inputs[0], -1, 1)
    extents = [int(pool_extent(n, i, attributes)) for i, n in enumerate(image.shape[2:])]  # type: ignore[arg-type]
    result = reduce(image, extents)
    return result if attributes["layout"] == "NCHW" else np.moveaxis(result, 1, -1)


def max_pool(inputs: Arrays, attributes: Attributes) -> Array:
    def reduce(image: Array, extents: list[int]) -> Array:
        least = np.iinfo(image.dtype).min if image.dtype.kind in "iu" else -np.inf  # bfloat16 is of another kind
        view = _pool_windows(image, extents, attributes, least)
        return view.max(axis=tuple(range(2 + len(extents), view.ndim)))

    return _pooled(inputs, attributes, reduce)


def average_pool(inputs: Arrays, attributes: Attributes) -> Array:
    """Mean of each window; padding counts only with `count_include_pad`, never what lies beyond it."""

    def reduce(image: Array, extents: list[int]) -> Array:
        taps = tuple(range(2 + len(extents), 2 + 2 * len(extents)))
        counted = np.ones((1, 1, *image.shape[2:]), image.dtype)
        if attributes["count_include_pad"]:
            counted = np.pad(counted, [(0, 0), (0, 0), *attributes["padding"]], constant_values=1)
            shifted = {**attributes, "padding": tuple((0, 0) for _ in extents)}
            counts = _pool_windows(counted, extents, shifted, 0).sum(axis=taps)
        else:
            counts = _pool_windows(counted, extents, attributes, 0).sum(axis=taps)
        return _pool_windows(image, extents, attributes, 0).sum(axis=taps) / counts

    return _pooled(inputs, attributes, reduce)
