"""Windows over images: pools with their positions, norms of neighbours, sums of blocks, deformable convolution."""

from __future__ import annotations

import math
from typing import Any

from tilewright.dtypes import float32, int64
from tilewright.graph.core import Value
from tilewright.graph.inference import window_extent
from tilewright.importers.equal_sizes import must_be, respelled
from tilewright.importers.onnx_call import OnnxCall
from tilewright.importers.onnx_ops.network import padded_as_same, window
from tilewright.importers.pools import least_of, needed_padding, positions_of_largest
from tilewright.importers.report import Invalid, Unsupported
from tilewright.importers.rules import RuleTable
from tilewright.importers.sampling import linear_taps, weighted_sum, weighted_taps
from tilewright.importers.scatter import scatter_slices
from tilewright.importers.windows import WindowAxis, fold
from tilewright.symbolic import Size, floor_divide, lift, lower_bound, maximum, product, simplify

TABLE = RuleTable("Windows")
rule = TABLE.rule

_MOST_NEIGHBOURS = 1024  # channels beside a channel that LRN sums over


def pool_window(call: OnnxCall, x: Value) -> dict[str, Any]:
    """The window of a pool over x, and how the last one counts."""
    call.require_rank(x, 3)
    kernel = call.integers("kernel_shape", x.rank - 2, default=0, least=1)
    strides, padding, dilation = window(call, x, kernel)
    reach = [step * (size - 1) + 1 for size, step in zip(kernel, dilation, strict=True)]
    if any(max(pair) >= size for pair, size in zip(padding, reach, strict=True)):
        raise Invalid(f"the padding {padding} is not less than the window {reach}, which could see nothing but padding")
    for index in range(len(kernel)):
        kernel[index], strides[index] = _cut(
            call, x, 2 + index, kernel[index], strides[index], sum(padding[index]), dilation[index]
        )
    ceil_mode = bool(call.attribute("ceil_mode", 0))
    return {"kernel": kernel, "strides": strides, "padding": padding, "dilation": dilation, "ceil_mode": ceil_mode}


def _cut(call: OnnxCall, x: Value, axis: int, taps: int, stride: int, padding: int, dilation: int) -> tuple[int, int]:
    """Taps and stride of a pool along a dimension, in which a window may be wider than the padded image.

    ONNX's formula rounds the count of windows down, to none; ONNX Runtime rounds towards zero: if the window is wider
    by less than a stride, there is one, of the taps inside.  So it is here; sizes of a call for which this would matter
    are refused.
    """
    extent, reach = x.shape[axis], dilation * (taps - 1) + 1
    spare = simplify(lift(extent) + (padding - reach))
    if isinstance(spare, int):
        assert isinstance(extent, int)
        if extent and -stride < spare < 0:
            return -(-(extent + padding) // dilation), extent + padding
    elif lower_bound(spare) > -stride:
        call.require_extent(x, axis, reach - padding)
    elif stride > 1 and lower_bound(spare) < 0:
        wider = floor_divide(maximum(simplify(lift(0) - spare), 0), stride)
        windows = lift(floor_divide(maximum(spare, 0), stride)) - wider
        call.require_equal(simplify(lift(floor_divide(spare, stride)) + 1), simplify(windows + 1))
    return taps, stride


def padded_for_pool(call: OnnxCall, x: Value, filled: float) -> Value:
    """x with the padding of `auto_pad` that only a call's sizes tell."""
    call.require_rank(x, 3)
    return padded_as_same(call, x, call.integers("kernel_shape", x.rank - 2, default=0, least=1), filled)


def largest_of_windows(call: OnnxCall, x: Value) -> Value:
    """The largest element of each window of a pool."""
    x = padded_for_pool(call, x, least_of(x))
    return call.op("max_pool", x, **pool_window(call, x))


def mean_of_windows(call: OnnxCall, x: Value) -> Value:
    """The mean of each window of a pool; padding counts where the attribute says so."""
    counted, attributes = bool(call.attribute("count_include_pad", 0)), call.attributes
    padded = padded_for_pool(call, x, 0)
    options = pool_window(call, padded)
    mean = call.op("average_pool", padded, **options, count_include_pad=counted)
    taps = call.integers("kernel_shape", x.rank - 2, default=0, least=1)
    if counted and call.opset < 19 and options["kernel"] != taps:  # all taps of a window that was cut count
        mean = call.op("multiply", mean, math.prod(options["kernel"]) / math.prod(taps))
    if padded is x or counted:
        return mean
    call.attributes = attributes  # once more, for the share of each window that is no padding
    real = padded_for_pool(call, call.full((1, 1, *x.shape[2:]), 1.0, x.dtype), 0)
    return call.op("divide", mean, call.op("average_pool", real, **options))


@rule("MaxPool")
def max_pool(call: OnnxCall) -> tuple[Value, Value | None]:
    """The second result is the position of each largest element in the whole tensor."""
    columns_first = bool(call.attribute("storage_order", 0))
    if call.outputs < 2:
        return largest_of_windows(call, call[0]), None
    x, options = call[0], pool_window(call, call[0])
    values = call.op("max_pool", x, **options)
    extents = x.shape[2:]
    found = positions_of_largest(call, x, options, values.shape[2:], columns_first)
    planes = call.op("multiply", call.iota(product(x.shape[:2])), call.value(product(extents), int64))
    return values, call.op("add", found, call.reshape(planes, (*x.shape[:2], *[1] * len(extents))))


@rule("AveragePool")
def average_pool(call: OnnxCall) -> Value:
    return mean_of_windows(call, call[0])


@rule("LpPool")
def lp_pool(call: OnnxCall) -> Value:
    """(sum |x|^p)^(1/p) of each window, in float32 at least: the sum is a convolution with ones."""
    x, order = padded_for_pool(call, call.wide(call[0]), 0), float(call.attribute("p", 2))
    options = pool_window(call, x)
    padding = needed_padding(x, options)
    powers = _power_of_size(call, x, order)
    planes = call.reshape(powers, (product(x.shape[:2]), 1, *x.shape[2:]))
    ones = call.full((1, 1, *options["kernel"]), 1.0, x.dtype)
    total = call.op(
        "conv", planes, ones, None, strides=options["strides"], padding=padding, dilation=options["dilation"], groups=1
    )
    found = _root(call, call.reshape(total, (*x.shape[:2], *total.shape[2:])), order)
    return call.cast(found, call[0].dtype)


@rule("GlobalLpPool")
def global_lp_pool(call: OnnxCall) -> Value:
    x, order = call.wide(call[0]), float(call.attribute("p", 2))
    call.require_rank(x, 3)
    total = call.op("reduce_sum", _power_of_size(call, x, order), axes=tuple(range(2, x.rank)), keepdims=True)
    return call.cast(_root(call, total, order), call[0].dtype)


def _power_of_size(call: OnnxCall, x: Value, order: float) -> Value:
    if order < 1:
        raise Invalid(f"the attribute 'p' is {order}; it must be at least 1")
    if order == 2:
        return call.op("multiply", x, x)
    size = call.op("absolute", x)
    return size if order == 1 else call.op("power", size, call.builder.number(order, x.dtype))


def _root(call: OnnxCall, x: Value, order: float) -> Value:
    if order == 1:
        return x
    return call.op("sqrt", x) if order == 2 else call.op("power", x, call.builder.number(1 / order, x.dtype))


@rule("GlobalAveragePool")
def global_average_pool(call: OnnxCall) -> Value:
    call.require_rank(call[0], 3)
    return call.op("reduce_mean", call[0], axes=tuple(range(2, call[0].rank)), keepdims=True)


@rule("GlobalMaxPool")
def global_max_pool(call: OnnxCall) -> Value:
    call.require_rank(call[0], 3)
    return call.op("reduce_max", call[0], axes=tuple(range(2, call[0].rank)), keepdims=True)


@rule("LRN")
def local_response_norm(call: OnnxCall) -> Value:
    """x / (bias + alpha / size sum of squares of `size` neighbouring channels)^beta."""
    x, size = call.wide(call[0]), call.positive("size")
    call.require_rank(x, 2)
    alpha, beta, bias = call.attribute("alpha", 1e-4), call.attribute("beta", 0.75), call.attribute("bias", 1.0)
    channels = x.shape[1]
    beyond = max(channels - 1, 0) if isinstance(channels, int) else size  # from there on there is no channel
    low, high = min((size - 1) // 2, beyond), min(size // 2, beyond)
    if low + high > _MOST_NEIGHBOURS:
        raise Unsupported(f"sums over {low + high + 1} channels", f"sum over at most {_MOST_NEIGHBOURS + 1}")
    pads = [(low, high) if axis == 1 else (0, 0) for axis in range(x.rank)]
    squares = call.op("pad", call.op("multiply", x, x), pads=pads)
    parts = [call.slice(squares, 1, start, simplify(lift(channels) + start)) for start in range(low + high + 1)]
    total = call.op("add", call.op("multiply", weighted_sum(call, parts), alpha / size), bias)
    return call.cast(call.op("divide", x, call.op("power", total, beta)), call[0].dtype)


# Back from windows -----------------------------------------------------------------------------------


@rule("MaxUnpool")
def max_unpool(call: OnnxCall) -> Value:
    """Elements at the positions that a MaxPool gave, zeros elsewhere."""
    x, positions = call[0], call[1]
    call.require_rank(x, 3)
    positions = must_be(call, positions, x.shape)
    if positions.shape != x.shape:
        raise Invalid(f"the positions {positions!r} are not those of {x!r}")
    count = x.rank - 2
    kernel = call.integers("kernel_shape", count, default=0, least=1)
    strides = call.integers("strides", count, default=1, least=1)
    pads = call.integers("pads", 2 * count, default=0, least=0)
    shape: list[Size] = list(x.shape[:2])
    for index in range(count):
        rest = kernel[index] - pads[index] - pads[index + count] - strides[index]
        shape.append(simplify(lift(x.shape[2 + index]) * strides[index] + rest))
    line = call.full((product(shape),), 0, x.dtype)
    flat = (product(x.shape),)
    filled = scatter_slices(call, line, call.reshape(positions, flat), call.reshape(x, flat), 0)
    result = call.reshape(filled, shape)
    if call.is_unknown(2):
        return _enlarged(call, result)
    wanted = call.sizes(2) if call.has(2) else shape
    if len(wanted) != x.rank:
        raise Invalid(f"the shape {list(map(str, wanted))} is not one of {x.rank} dimensions")
    more = [simplify(lift(want) - have) for want, have in zip(wanted, shape, strict=True)]
    if not all(isinstance(extra, int) and extra >= 0 for extra in more):
        raise Unsupported(f"the shape {list(map(str, wanted))} for {result!r}", "give one that is not smaller")
    return call.op("pad", result, pads=[(0, extra) for extra in more]) if any(more) else result


def _enlarged(call: OnnxCall, image: Value) -> Value:
    """An image with zeros after it up to a shape that is known only at run time."""
    if call.count(2) != image.rank:
        raise Invalid(f"{call.input_text(2)} has {call.count(2)} sizes; {image!r} has {image.rank} dimensions")
    more = call.op("subtract", call.numbers(2), call.extents(image))
    pads = call.op("concat", call.full((image.rank,), 0, int64), more, axis=0)
    shape = tuple(call.fresh("size") for _ in range(image.rank))
    return call.op("pad_at", image, pads, shape=shape, what=call.input_text(2))


@rule("Col2Im")
def column_to_image(call: OnnxCall) -> Value:
    """Blocks [N, C prod(block), L] added up at their places in an image [N, C, *image]."""
    x, image, block = call[0], call.ints(1), call.ints(2)
    call.require_rank(x, 3, 3)
    count = len(image)
    if len(block) != count or min([*image, *block], default=0) < 1:
        raise Invalid(f"the image {image} and the block {block} must have one positive size for each dimension")
    strides = call.integers("strides", count, default=1, least=1)
    dilation = call.integers("dilations", count, default=1, least=1)
    pads = call.integers("pads", 2 * count, default=0, least=0)
    padding = [(pads[index], pads[index + count]) for index in range(count)]
    windows = [window_extent(image[i], block[i], strides[i], padding[i], dilation[i]) for i in range(count)]
    counts = [number for number in windows if isinstance(number, int)]  # all of them: every size is a number
    x = must_be(call, x, (*x.shape[:2], math.prod(counts)))
    columns, size = x.shape[1:]
    taps = math.prod(block)
    channels = simplify(floor_divide(columns, taps))
    if not isinstance(columns, int):
        call.require_equal(columns, simplify(lift(channels) * taps))
        x = respelled(call, x, (x.shape[0], simplify(lift(channels) * taps), size))
    if size != math.prod(counts) or (isinstance(columns, int) and columns % taps):
        raise Invalid(f"{x!r} has not {taps} rows for each channel and {counts} columns")
    axes = [
        WindowAxis(image[index], block[index], dilation[index], padding[index], strides[index])
        for index in range(count)
    ]
    return fold(call, call.reshape(x, (x.shape[0], channels, *block, *counts)), axes)


# Deformed windows ------------------------------------------------------------------------------------


@rule("DeformConv")
def deformable_convolution(call: OnnxCall) -> Value:
    """A convolution whose taps are read at places that are moved by offsets, between pixels, and weighed by a mask."""
    x, weight, offset = call[0], call[1], call[2]
    for item in (x, weight, offset):
        call.require_rank(item, 4, 4)
    batch, channels, *extents = x.shape
    fixed = [number for number in (channels, *weight.shape) if isinstance(number, int)]
    if len(fixed) != 5:
        raise Unsupported("a deformable convolution of a dynamic number of channels", "fix it")
    width, features, depth, *kernel = fixed
    if list(call.attribute("kernel_shape") or kernel) != kernel:
        raise Invalid(f"the attribute 'kernel_shape' is {call.attribute('kernel_shape')}, but the weight is {weight!r}")
    groups, parts = call.positive("group", 1), call.positive("offset_group", 1)
    strides, padding, dilation = window(call, x, kernel)
    outs = [window_extent(extents[i], kernel[i], strides[i], padding[i], dilation[i]) for i in range(2)]
    taps, count = math.prod(kernel), product(outs)
    if width != depth * groups or features % groups or width % parts:
        raise Invalid(f"{groups} groups and {parts} groups of offsets do not fit {x!r} and {weight!r}")
    offset = must_be(call, offset, (batch, parts * taps * 2, *outs))
    if offset.shape != (batch, parts * taps * 2, *outs):
        raise Invalid(f"the offsets {offset!r} are not two for each of {parts * taps} taps at {outs}")
    dtype = float32 if x.dtype.bits < 32 else x.dtype
    moved = call.cast(call.reshape(offset, (simplify(lift(batch) * parts), taps, 2, *outs)), dtype)
    places = []
    for index in range(2):
        line = call.iota(outs[index], dtype, start=-padding[index][0], step=strides[index])
        line = call.reshape(line, (1, -1, 1) if index == 0 else (1, 1, -1))
        tap = call.iota(kernel[index], dtype, step=dilation[index])
        tap = call.reshape(tap, (-1, 1) if index == 0 else (1, -1))
        tap = call.reshape(call.broadcast(tap, kernel), (taps, 1, 1))
        place = call.op("add", call.select(moved, 2, index), call.op("add", tap, line))
        places.append(linear_taps(call, call.reshape(place, (place.shape[0], -1)), extents[index]))
    pixels = call.reshape(x, (moved.shape[0], width // parts, product(extents)))
    read = weighted_sum(call, weighted_taps(call, pixels, extents, places))  # [batch parts, channels / parts, taps out]
    if call.has(4):
        read = call.op("multiply", read, call.cast(call.reshape(call[4], (moved.shape[0], 1, -1)), dtype))
    rows = call.reshape(read, (batch, groups, depth * taps, count))
    matrix = call.cast(call.reshape(weight, (groups, features // groups, depth * taps)), dtype)
    result = call.reshape(call.op("matmul", matrix, rows), (batch, features, *outs))
    if call.has(3):
        result = call.op("add", result, call.cast(call.reshape(call[3], (1, -1, 1, 1)), dtype))
    return call.cast(result, x.dtype)
