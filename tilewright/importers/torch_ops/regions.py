"""Operators of torchvision: deformable convolutions, boxes of images."""

from __future__ import annotations

from tilewright.dtypes import float32, int64
from tilewright.graph.core import Value
from tilewright.importers import boxes
from tilewright.importers.report import Unsupported
from tilewright.importers.rules import RuleTable
from tilewright.importers.sampling import linear_taps, weighted_sum, weighted_taps
from tilewright.importers.torch_fx import TorchCall
from tilewright.symbolic import lift, product, simplify

TABLE = RuleTable("torchvision", "torchvision.")
rule = TABLE.rule


@rule("roi_align.default")
def align_regions(
    call: TorchCall, x: Value, regions: Value, scale: float, rows: int, columns: int, ratio: int, aligned: bool
) -> Value:
    """Means of samples in the bins of regions [R, 5], which begin with the number of their image."""
    images = call.reshape(call.cast(call.slice(regions, 1, 0, 1), int64), (-1,))
    corners = call.slice(regions, 1, 1, 5)
    return boxes.align(call, x, corners, images, (rows, columns), max(ratio, 0), scale, aligned)


@rule("ps_roi_align.default")
def align_regions_by_channels(
    call: TorchCall, x: Value, regions: Value, scale: float, rows: int, columns: int, ratio: int
) -> tuple[Value, None]:
    """As `roi_align`, each bin of channels of its own, whose numbers are not given."""
    images = call.reshape(call.cast(call.slice(regions, 1, 0, 1), int64), (-1,))
    corners = call.slice(regions, 1, 1, 5)
    return boxes.align_by_channels(call, x, corners, images, (rows, columns), max(ratio, 0), scale), None


@rule("ps_roi_pool.default")
def pool_regions_by_channels(
    call: TorchCall, x: Value, regions: Value, scale: float, rows: int, columns: int
) -> tuple[Value, None]:
    """Means of the bins, each of channels of its own, whose numbers are not given."""
    return boxes.pool_by_channels(call, x, call.cast(regions, x.dtype), (rows, columns), scale), None


@rule("roi_pool.default")
def pool_regions(
    call: TorchCall, x: Value, regions: Value, scale: float, rows: int, columns: int
) -> tuple[Value, None]:
    """The largest elements of the bins; their positions are not given."""
    return boxes.pool(call, x, call.cast(regions, x.dtype), (rows, columns), scale), None


@rule("deform_conv2d.default")
def deformable_convolution(
    call: TorchCall, x: Value, weight: Value, offset: Value, mask: Value, bias: Value,
    stride_h: int, stride_w: int, pad_h: int, pad_w: int, dilation_h: int, dilation_w: int,
    groups: int, parts: int, use_mask: bool,
) -> Value:  # fmt: skip
    """A convolution whose taps are read at places that are moved by offsets, between pixels, and weighed by a mask."""
    batch, channels, *extents = x.shape
    features, depth, *kernel = weight.shape
    outs = offset.shape[2:]
    numbers = [number for number in (channels, features, depth, *kernel) if isinstance(number, int)]
    if len(numbers) != 5:
        raise Unsupported("a deformable convolution of a dynamic number of channels", "fix it")
    width, features, depth, rows, columns = numbers
    taps = rows * columns
    dtype = float32 if x.dtype.bits < 32 else x.dtype
    moved = call.cast(call.reshape(offset, (simplify(lift(batch) * parts), taps, 2, *outs)), dtype)
    window = ((stride_h, pad_h, dilation_h), (stride_w, pad_w, dilation_w))
    places = []
    for index, (stride, pad, dilation) in enumerate(window):
        line = call.iota(outs[index], dtype, start=-pad, step=stride)
        line = call.reshape(line, (1, -1, 1) if index == 0 else (1, 1, -1))
        tap = call.iota((rows, columns)[index], dtype, step=dilation)
        tap = call.reshape(tap, (-1, 1) if index == 0 else (1, -1))
        tap = call.reshape(call.broadcast(tap, (rows, columns)), (taps, 1, 1))
        place = call.op("add", call.select(moved, 2, index), call.op("add", tap, line))
        places.append(
            linear_taps(call, call.reshape(place, (place.shape[0], product(place.shape[1:]))), extents[index])
        )
    pixels = call.reshape(x, (moved.shape[0], width // parts, product(extents)))
    read = weighted_sum(call, weighted_taps(call, pixels, extents, places))  # [batch parts, channels / parts, taps out]
    if use_mask:
        read = call.op("multiply", read, call.cast(call.reshape(mask, (moved.shape[0], 1, read.shape[2])), dtype))
    patches = call.reshape(read, (batch, groups, depth * taps, product(outs)))
    matrix = call.cast(call.reshape(weight, (groups, features // groups, depth * taps)), dtype)
    result = call.reshape(call.op("matmul", matrix, patches), (batch, features, *outs))
    return call.cast(call.op("add", result, call.cast(call.reshape(bias, (1, features, 1, 1)), dtype)), x.dtype)
