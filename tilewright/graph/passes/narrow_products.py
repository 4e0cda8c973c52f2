"""Products of quantized tensors as sums of 8-bit integers or floats, for targets that have kernels for them.

    matmul(dequantize(x, sx, zx), dequantize(w, sw, zw))  ->  cast(sums) (sx sw)
    matmul(x - zx, w - zw) of int32                       ->  sums
    sums = matmul(x, w - zw) {dtype=i32} - zx (sums of the columns of w - zw)
    matmul(x8 sx, w8 sw) of 8-bit floats                  ->  matmul(x8, w8) {dtype=f32} (sx sw)

for constant w, if they are integers, or sums of int32 where a target's kernels read both operands as they are computed
(`narrow_computed`).  A target's instructions multiply activations of some types by int8: where int8 is
not among them, activations become uint8 (a zero point of 128 more).  Weights that do not fit int8 without their zero
point keep the part of it that is left, times the sums of the rows of x.  What follows (bias, activation, residual, the
next quantization) is elementwise, and becomes the product's epilogue.  Scales that a dimension of the sum has keep a
product in floats.

Every quantized tensor that a product reads as floats is named in the remarks, with the reason: what `quantize` or a
cast makes, and inputs of the graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from tilewright.dtypes import DType, float8e4nv, float8e5, float32, float64, int1, int8, int32, uint8
from tilewright.graph.core import Advice, Graph, Node, Value
from tilewright.graph.inference import broadcast_shapes
from tilewright.graph.kernel_facts import KernelFacts
from tilewright.graph.passes.narrow_pools import NARROW_POOLS
from tilewright.graph.quantization import integer_range, scheme_of
from tilewright.graph.rewrite import GraphRewriter, apply_rules, computed_constant
from tilewright.symbolic import Size, product

_SHIFT = 128  # from int8 to uint8
_MOVES = ("reshape", "permute", "slice", "max_pool")
_FLOATS = (float8e4nv, float8e5)


@dataclass(frozen=True)
class _Narrow:
    """A tensor of floats or int32 as numbers of 8 bits: (numbers - zero) scale."""

    numbers: Value
    zero: Value | None
    scale: Value | None  # None: 1


class _Reason(NamedTuple):
    """Why a product stays in floats, and what to change."""

    text: str
    change: str


_LEAVE = "leave what it reads in floats"
_BY_COLUMN = "give its weights a scale for each column"


def narrow_products(graph: Graph, kernels: KernelFacts) -> Graph:
    """The graph with products of activations of the `narrow_types`, and remarks on what stays quantized to no use."""
    types = kernels.narrow_types
    graph = apply_rules(graph, {"multiply": [_dequantized]})
    if not types:
        return _with_remarks(graph, kernels)
    if int8 not in types:
        graph = apply_rules(graph, {"quantize": [_unsigned], "dequantize": [_shifted]})
    graph = apply_rules(graph, {**dict.fromkeys(_MOVES, [_sunk]), **NARROW_POOLS})
    rules = {
        "matmul": [partial(_product, kernels=kernels)],
        "conv": [partial(_convolution, kernels=kernels)],
    }
    return _with_remarks(apply_rules(graph, rules), kernels)


# One form of activations ------------------------------------------------------------------------------


def scaled_casts(node: Node, rewriter: GraphRewriter) -> Iterator[tuple[Value, Value]]:
    """Each x of 8-bit floats with its scale, where a product is cast(x) scale in float32."""
    for wide, scale in (node.inputs, node.inputs[::-1]):
        cast = rewriter.producer(wide, "cast")
        x = cast.inputs[0] if cast is not None else None
        if x is not None and scale is not None and x.dtype in _FLOATS and node.output.dtype == float32:
            yield x, scale


def _dequantized(node: Node, rewriter: GraphRewriter) -> Value | None:
    """cast(x) scale of 8-bit floats as `dequantize`."""
    for x, scale in scaled_casts(node, rewriter):
        if scale.dtype.is_float and broadcast_shapes(x.shape, scale.shape) == x.shape == node.output.shape:
            return rewriter.op("dequantize", [x, scale])
    return None


def _unsigned(node: Node, rewriter: GraphRewriter) -> Value | None:
    """int8 as uint8 less 128: the same numbers."""
    if node.attributes["dtype"] != int8:
        return None
    x, scale, zero = (*node.inputs, None)[:3]
    raised = rewriter.op("quantize", [x, scale, _raised(zero, rewriter)], dtype=uint8)
    return _signed(raised, rewriter)


def _raised(zero: Value | None, rewriter: GraphRewriter) -> Value:
    """A zero point of int8 as that of uint8."""
    if zero is None:
        return rewriter.number(_SHIFT, int32)
    return rewriter.op("add", [rewriter.cast(zero, int32), rewriter.number(_SHIFT, int32)])


def _signed(x: Value, rewriter: GraphRewriter) -> Value:
    """uint8 as int8, 128 less."""
    flipped = rewriter.op("bitwise_xor", [x, rewriter.number(_SHIFT, uint8)])
    return rewriter.op("bitcast", [flipped], of="uint8", to="int8")


def _raised_source(x: Value, rewriter: GraphRewriter) -> Value | None:
    """The uint8 tensor that an int8 one is 128 less than."""
    cast = rewriter.producer(x, "bitcast")
    flipped = rewriter.producer(cast.inputs[0], "bitwise_xor") if cast is not None else None
    if flipped is None or x.dtype != int8 or rewriter.uniform(flipped.inputs[1]) != _SHIFT:
        return None
    return flipped.inputs[0]


def _shifted(node: Node, rewriter: GraphRewriter) -> Value | None:
    """What is read of an int8 tensor is read of the uint8 one that it was made of."""
    x, scale, zero = (*node.inputs, None)[:3]
    assert x is not None
    source = _raised_source(x, rewriter)
    return None if source is None else rewriter.op("dequantize", [source, scale, _raised(zero, rewriter)])


def _sunk(node: Node, rewriter: GraphRewriter) -> Value | None:
    """Elements that are only moved are moved as integers: move(dequantize(x)) = dequantize(move(x))."""
    source = rewriter.producer(node.inputs[0], "dequantize")
    if source is None or len(node.inputs) != 1:
        return None
    x, scale, zero = (*source.inputs, None)[:3]
    single = scale is not None and scale.rank == 0 and (zero is None or zero.rank == 0)
    assert x is not None
    if node.op == "max_pool":
        known = computed_constant(scale, rewriter)
        if not single or known is None or known <= 0 or x.dtype.is_float:  # not all 8-bit floats have a least number
            return None
    moved = [scale, zero]
    if not single:
        if node.op != "permute":
            return None
        moved = [_permuted(item, source.output.rank, node.attributes["order"], rewriter) for item in (scale, zero)]
    return rewriter.op("dequantize", [rewriter.op(node.op, [x], **node.attributes), *moved])


def _permuted(item: Value | None, rank: int, order: tuple[int, ...], rewriter: GraphRewriter) -> Value | None:
    """A scale that broadcasts with a tensor of `rank` dimensions, for the tensor with them in another order."""
    if item is None or item.rank == 0:
        return item
    if item.rank < rank:
        item = rewriter.op("reshape", [item], shape=(*[1] * (rank - item.rank), *item.shape))
    return rewriter.op("permute", [item], order=order)


# Products ---------------------------------------------------------------------------------------------


def _product(node: Node, rewriter: GraphRewriter, kernels: KernelFacts) -> Value | None:
    if node.attributes["dtype"] is not None:
        return None
    left, right = node.inputs
    assert left is not None and right is not None
    rows = _narrow(left, rewriter)
    types = kernels.narrow_types
    if rows is None or _reason(node, rows, kernels) is not None:
        return None
    if rows.numbers.dtype.is_float:
        return _product_of_floats(node, rows, rewriter, types)
    weights = _weights(node, rewriter) if uint8 in types else None
    if weights is None:
        return _product_of_computed(node, rows, rewriter, types) if kernels.narrow_computed else None
    matrix, rest, columns_scale = weights
    sums = _sums(node, _of_type(rows, rewriter, types), matrix, rest, kernels.narrow_depth, rewriter)
    if not node.output.dtype.is_float:
        return sums
    return rewriter.cast(_scaled(sums, rows.scale, columns_scale, _wide(node), rewriter), node.output.dtype)


def _product_of_computed(node: Node, rows: _Narrow, rewriter: GraphRewriter, types: Set[DType]) -> Value | None:
    """(x - zx) (w - zw) of integers, both computed, in int32: the product of the integers less what zero points have
    in it."""
    value, transposed = node.inputs[1], node.attributes["transpose_b"]
    assert value is not None
    columns, along = _narrow(value, rewriter), value.rank - (1 if transposed else 2)
    if node.output.dtype != int32 or columns is None or columns.numbers.dtype.is_float:
        return None
    if not {rows.numbers.dtype, columns.numbers.dtype} <= types or not _by_column(columns.zero, value, along):
        return None
    total = rewriter.op("matmul", [rows.numbers, columns.numbers], transpose_b=transposed, dtype=int32)
    zeros = [_point(each.zero, rewriter) for each in (rows, columns)]
    if zeros[1] is not None and zeros[1].rank:
        zeros[1] = rewriter.op("reshape", [zeros[1]], shape=(-1,))
    shares = [_share_of_rows(zeros[0], zeros[1], columns.numbers, along, rewriter)]
    shares.append(_share_of_columns(zeros[1], rows.numbers, rewriter))
    for share in shares:
        total = total if share is None else rewriter.op("subtract", [total, share])
    return total


def _by_column(zero: Value | None, value: Value, along: int) -> bool:
    """Whether a zero point of the right operand is one number, or one for each column."""
    if zero is None or not zero.rank:
        return True
    return value.rank == 2 and all(extent == 1 for extent in _along(zero, 2, along))


def _share_of_rows(
    zero: Value | None, other: Value | None, numbers: Value, along: int, rewriter: GraphRewriter
) -> Value | None:
    """zx times the sums of the columns of w - zw."""
    if zero is None:
        return None
    sums = rewriter.op("reduce_sum", [rewriter.cast(numbers, int32)], axes=(along,), keepdims=True)
    if along == numbers.rank - 1:
        sums = rewriter.op("permute", [sums], order=(*range(along - 1), along, along - 1))
    if other is not None:
        depth = numbers.shape[along]
        assert isinstance(depth, int)  # `_reason` wants it known
        share = rewriter.op("multiply", [other, rewriter.number(depth, int32)])
        sums = rewriter.op("subtract", [sums, share])
    return rewriter.op("multiply", [zero, sums])


def _share_of_columns(zero: Value | None, numbers: Value, rewriter: GraphRewriter) -> Value | None:
    """zw times the sums of the rows of x."""
    if zero is None:
        return None
    axis = numbers.rank - 1
    sums = rewriter.op("reduce_sum", [rewriter.cast(numbers, int32)], axes=(axis,), keepdims=True)
    return rewriter.op("multiply", [sums, zero])


def _point(zero: Value | None, rewriter: GraphRewriter) -> Value | None:
    """A zero point in int32; None for that of 0."""
    return None if zero is None or rewriter.uniform(zero) == 0 else rewriter.cast(zero, int32)


def _product_of_floats(node: Node, rows: _Narrow, rewriter: GraphRewriter, types: Set[DType]) -> Value | None:
    """A product of 8-bit floats, constants on the right in the order in which tensor copies read them."""
    value, transposed = node.inputs[1], node.attributes["transpose_b"]
    assert value is not None
    right = _narrow(value, rewriter)
    if right is None or not {rows.numbers.dtype, right.numbers.dtype} <= types & set(_FLOATS):
        return None
    scale = right.scale
    if scale is not None and scale.rank:
        if value.rank != 2 or any(
            extent != 1 for extent in _along(scale, value.rank, value.rank - (1 if transposed else 2))
        ):
            return None
        scale = rewriter.op("reshape", [scale], shape=(-1,))
    numbers, data = right.numbers, computed_constant(right.numbers, rewriter)
    if data is not None and not transposed:
        numbers, transposed = rewriter.new_constant(np.ascontiguousarray(np.swapaxes(data, -1, -2)), "weights"), True
    elif data is not None and rewriter.constant(numbers) is None:
        numbers = rewriter.new_constant(np.ascontiguousarray(data), "weights")
    sums = rewriter.op("matmul", [rows.numbers, numbers], transpose_b=transposed, dtype=float32)
    return rewriter.cast(_scaled(sums, rows.scale, scale, _wide(node), rewriter), node.output.dtype)


def _along(scale: Value, rank: int, axis: int) -> tuple[Size, ...]:
    """The extent of a scale along an axis of the tensor of `rank` dimensions that it broadcasts with; none before its
    own first."""
    place = axis - (rank - scale.rank)
    return scale.shape[place : place + 1] if place >= 0 else ()


def _narrow(value: Value, rewriter: GraphRewriter) -> _Narrow | None:
    """What a product's operand is made of, if that is numbers of 8 bits."""
    node = rewriter.producer(value)
    while node is not None and node.op == "cast" and _is_wide(value.dtype) and node.inputs[0] is not None:
        value, node = node.inputs[0], rewriter.producer(node.inputs[0])  # to 16 bits; whole numbers for a convolution
    if value.dtype in _FLOATS:
        return _Narrow(value, None, None)
    if node is not None and node.op == "dequantize":
        x, scale, zero = (*node.inputs, None)[:3]
        assert x is not None
        return _Narrow(x, zero, scale) if _is_narrow(x.dtype) else None
    if value.dtype != int32 or node is None:
        return None
    zero = None
    if node.op == "subtract":
        source, zero = node.inputs
        node = rewriter.producer(source)
    if node is None or node.op != "cast" or node.inputs[0] is None or not _is_narrow(node.inputs[0].dtype):
        return None
    return _Narrow(node.inputs[0], zero, None)


def _is_wide(dtype: DType) -> bool:
    """Whether a cast to this type only widens what is quantized; one to 8 bits rounds it."""
    return dtype.is_float and dtype.bits > 8


def _is_narrow(dtype: DType) -> bool:
    return dtype in (int8, uint8, *_FLOATS)


def _reason(node: Node, rows: _Narrow, kernels: KernelFacts) -> _Reason | None:
    """Why a product of narrow numbers on the left by known weights stays in floats; None where it does not."""
    left = node.inputs[0]
    assert left is not None
    if node.op == "conv":
        return _reason_of_convolution(node, rows, kernels)
    depth, step = left.shape[-1], kernels.narrow_depth
    if rows.numbers.dtype.is_integer and not (isinstance(depth, int) and kernels.takes_depth(depth)):
        more = f"make it {-(-depth // step) * step} with zeros" if isinstance(depth, int) else "give it a known size"
        return _Reason(f"its depth {depth} is no multiple of {step}", more)
    for item in (rows.scale, rows.zero):
        if item is not None and item.rank and item.shape[-1] != 1:
            return _Reason(
                "the scale or zero point of its left operand differs along the depth",
                "quantize that with one scale, or one for each row",
            )
    return None


def _reason_of_convolution(node: Node, image: _Narrow, kernels: KernelFacts) -> _Reason | None:
    x, w = node.inputs[:2]
    assert x is not None and w is not None
    groups = node.attributes["groups"]
    if x.rank > 4:
        return _Reason("there are kernels for one or two spatial dimensions", _LEAVE)
    channels, taps, step = w.shape[1], product(w.shape[2:]), kernels.narrow_depth
    if groups != 1 and (not isinstance(channels, int) or not kernels.takes_narrow(channels, 1, groups)):
        least = f"groups of at least {kernels.grouped_channels} channels" if kernels.grouped_channels else "one group"
        return _Reason(f"there are kernels for {least}", _LEAVE)
    if not isinstance(channels, int) or not isinstance(taps, int) or not kernels.takes_narrow(channels, taps, groups):
        return _Reason(f"its {channels} channels are few, or no multiple of {step}: floats are faster", _LEAVE)
    if any(item is not None and item.rank for item in (image.scale, image.zero)):
        return _Reason(
            "the scale or zero point of its image is not a single number", "quantize its image with one scale"
        )
    return None


def _weights(node: Node, rewriter: GraphRewriter) -> tuple[np.ndarray, np.ndarray | None, Value | None] | None:
    """The right operand of a product as int8 of its shape, the zero point that is left of each column, and the scale
    of the columns."""
    value = node.inputs[1]
    assert value is not None
    found = _narrow(value, rewriter)
    if found is None or value.rank != 2 or found.numbers.dtype.is_float:
        return None
    data, zero = computed_constant(found.numbers, rewriter), computed_constant(found.zero, rewriter)
    depth_axis = 1 if node.attributes["transpose_b"] else 0
    if data is None or (found.zero is not None and zero is None):
        return None
    scale = found.scale
    for item in (scale, found.zero):
        if item is not None and item.rank == 2 and item.shape[depth_axis] != 1:
            return None
        if item is not None and item.rank == 1 and depth_axis == 1 and item.shape[0] != 1:
            return None
    if scale is not None and scale.rank:
        scale = rewriter.op("reshape", [scale], shape=(-1,))
    points = np.zeros((), np.int64) if zero is None else zero.astype(np.int64)
    whole = data.astype(np.int64) - points
    low, high = integer_range(int8)
    if low <= whole.min(initial=0) and whole.max(initial=0) <= high:
        return whole.astype(np.int8), None, scale
    shift = 0 if data.dtype == np.int8 else _SHIFT
    columns = value.shape[1 - depth_axis]
    assert isinstance(columns, int)
    rest = np.broadcast_to((points - shift).reshape(-1), (columns,))
    return (data.astype(np.int64) - shift).astype(np.int8), np.ascontiguousarray(rest), scale


def _convolution(node: Node, rewriter: GraphRewriter, kernels: KernelFacts) -> Value | None:
    if node.attributes["dtype"] is not None:
        return None
    image, taps = node.inputs[:2]
    assert image is not None and taps is not None
    pixels, weights = _narrow(image, rewriter), _narrow(taps, rewriter)
    if pixels is None or weights is None or _reason(node, pixels, kernels) is not None:
        return None
    if pixels.numbers.dtype.is_float or weights.numbers.dtype.is_float:
        return _convolution_of_floats(node, pixels, weights, rewriter, kernels.narrow_types)
    known = _taps(weights, taps, rewriter) if uint8 in kernels.narrow_types else None
    if known is None:
        return None
    pixels = _of_type(pixels, rewriter, kernels.narrow_types)
    options = {**node.attributes, "dtype": int32, "exact": False}
    padded, centred = pixels.numbers, pixels.zero is None or rewriter.uniform(pixels.zero) == 0
    if not (centred and kernels.zeros_around):
        padded = _padded(pixels, node, rewriter)
        options["padding"] = [(0, 0)] * (image.rank - 2)
    sums = rewriter.op("conv", [padded, rewriter.new_constant(known, "weights")], **options)
    if pixels.zero is not None and not centred:
        columns = known.astype(np.int64).reshape(len(known), -1).sum(axis=1).astype(np.int32)
        totals = rewriter.new_constant(columns.reshape(_features_shape(node)), "tap_sums")
        sums = rewriter.op("subtract", [sums, rewriter.op("multiply", [rewriter.cast(pixels.zero, int32), totals])])
    return _finished_convolution(node, sums, pixels.scale, weights.scale, rewriter)


def _convolution_of_floats(
    node: Node, pixels: _Narrow, weights: _Narrow, rewriter: GraphRewriter, types: Set[DType]
) -> Value | None:
    """A convolution of an image of 8-bit floats by constants of them."""
    data = computed_constant(weights.numbers, rewriter)
    if data is None or not {pixels.numbers.dtype, weights.numbers.dtype} <= types & set(_FLOATS):
        return None
    if not _by_feature(weights.scale, data.ndim):
        return None
    numbers = weights.numbers
    if rewriter.constant(numbers) is None:
        numbers = rewriter.new_constant(np.ascontiguousarray(data), "weights")
    options = {**node.attributes, "dtype": float32, "exact": False}
    sums = rewriter.op("conv", [pixels.numbers, numbers], **options)
    return _finished_convolution(node, sums, pixels.scale, weights.scale, rewriter)


def _features_shape(node: Node) -> tuple[int, ...]:
    """The shape in which a number for each feature broadcasts with a convolution's result."""
    return (-1, *[1] * (node.output.rank - 2)) if node.attributes["layout"] == "NCHW" else (-1,)


def _finished_convolution(
    node: Node, sums: Value, scale: Value | None, taps_scale: Value | None, rewriter: GraphRewriter
) -> Value:
    """Sums times the scales of image and taps, and the bias."""
    bias, wide = (*node.inputs, None)[2], _wide(node)
    if taps_scale is not None and taps_scale.rank:
        taps_scale = rewriter.op("reshape", [taps_scale], shape=_features_shape(node))
    result = _scaled(sums, scale, taps_scale, wide, rewriter)
    if bias is not None:
        bias = rewriter.op("reshape", [bias], shape=_features_shape(node))
        result = rewriter.op("add", [result, rewriter.cast(bias, wide)])
    return rewriter.cast(result, node.output.dtype)


def _taps(weights: _Narrow, taps: Value, rewriter: GraphRewriter) -> np.ndarray | None:
    """The weights of a convolution as int8 without a zero point; None where they do not fit, or differ otherwise than
    by their first dimension."""
    data, zero = computed_constant(weights.numbers, rewriter), computed_constant(weights.zero, rewriter)
    if data is None or (weights.zero is not None and zero is None):
        return None
    if not (_by_feature(weights.scale, taps.rank) and _by_feature(weights.zero, taps.rank)):
        return None
    whole = data.astype(np.int64) - (0 if zero is None else zero.astype(np.int64))
    low, high = integer_range(int8)
    return whole.astype(np.int8) if low <= whole.min(initial=0) and whole.max(initial=0) <= high else None


def _by_feature(item: Value | None, rank: int) -> bool:
    """Whether a scale or zero point of taps differs by their first dimension alone."""
    return item is None or all(extent == 1 for extent in (*[1] * (rank - item.rank), *item.shape)[1:])


def _padded(image: _Narrow, node: Node, rewriter: GraphRewriter) -> Value:
    """The integers of an image with those that stand for zero around it."""
    padding = node.attributes["padding"]
    if not any(low or high for low, high in padding):
        return image.numbers
    pads = ((0, 0), (0, 0), *padding) if node.attributes["layout"] == "NCHW" else ((0, 0), *padding, (0, 0))
    dtype = image.numbers.dtype
    zero = np.zeros((), dtype.numpy) if image.zero is None else computed_constant(image.zero, rewriter)
    if zero is not None:
        return rewriter.op("pad", [image.numbers], pads=pads, value=int(zero.reshape(())))
    assert image.zero is not None
    here = rewriter.op("full", [], shape=image.numbers.shape, value=1, dtype=dtype)
    inside = rewriter.cast(rewriter.op("pad", [here], pads=pads, value=0), int1)
    around = rewriter.op("pad", [image.numbers], pads=pads, value=0)
    return rewriter.op("where", [inside, around, rewriter.cast(image.zero, dtype)])


def _of_type(rows: _Narrow, rewriter: GraphRewriter, types: Set[DType]) -> _Narrow:
    """Activations in a form that kernels take, uint8 if not their own."""
    if rows.numbers.dtype in types:
        return rows
    source = _raised_source(rows.numbers, rewriter)
    if source is None:
        bits = rewriter.op("bitcast", [rows.numbers], of="int8", to="uint8")
        source = rewriter.op("bitwise_xor", [bits, rewriter.number(_SHIFT, uint8)])
    return _Narrow(source, _raised(rows.zero, rewriter), rows.scale)


def _sums(
    node: Node, rows: _Narrow, matrix: np.ndarray, rest: np.ndarray | None, step: int, rewriter: GraphRewriter
) -> Value:
    """(x - zx) (w - rest) in int32: the product of the integers, less what their zero points have in it."""
    if not node.attributes["transpose_b"]:
        matrix = matrix.T  # what instructions add lies together
    depth, numbers = matrix.shape[1], rows.numbers
    more = -depth % step
    if more:  # zeros of the weights: what the rows have there does not count
        numbers = rewriter.op("pad", [numbers], pads=(*[(0, 0)] * (numbers.rank - 1), (0, more)), value=0)
    filled = np.pad(matrix, ((0, 0), (0, more)))
    weights = rewriter.new_constant(np.ascontiguousarray(filled), "weights")
    total = rewriter.op("matmul", [numbers, weights], transpose_b=True, dtype=int32)
    columns = matrix.astype(np.int64).sum(axis=1)
    if rest is not None:  # - rest (sum of the row of x), and + K zx rest with the other zero points
        wide = rewriter.cast(rows.numbers, int32)
        sums = rewriter.op("reduce_sum", [wide], axes=(-1,), keepdims=True)
        part = rewriter.op("multiply", [sums, rewriter.new_constant(rest.astype(np.int32), "zero_points")])
        total = rewriter.op("subtract", [total, part])
        columns = columns - depth * rest
    if rows.zero is None:
        return total
    known = computed_constant(rows.zero, rewriter)
    if known is not None and known.size == 1:
        share = (columns * int(known.reshape(()))).astype(np.int32)  # wraps, as the sums do
        return rewriter.op("subtract", [total, rewriter.new_constant(share, "zero_points")]) if share.any() else total
    sums_of_columns = rewriter.new_constant(columns.astype(np.int32), "column_sums")
    share_of_rows = rewriter.op("multiply", [rewriter.cast(rows.zero, int32), sums_of_columns])
    return rewriter.op("subtract", [total, share_of_rows])


def _wide(node: Node) -> DType:
    """The type in which a product is scaled: float32 does not hold all sums that a product in float64 does."""
    return float64 if node.output.dtype == float64 else float32


def _scaled(sums: Value, left: Value | None, right: Value | None, wide: DType, rewriter: GraphRewriter) -> Value:
    """Sums times the scales of both operands, in the type `wide`; None is a scale of 1."""
    scales = [rewriter.cast(scale, wide) for scale in (left, right) if scale is not None]
    if len(scales) == 2 and min(scale.rank for scale in scales) == 0:
        scales = [rewriter.op("multiply", scales)]
    result = rewriter.cast(sums, wide)
    for scale in scales:  # those of rows and of columns one after the other: nobody shall store their product
        result = rewriter.op("multiply", [result, scale])
    return result


# What stays -------------------------------------------------------------------------------------------


def _with_remarks(graph: Graph, kernels: KernelFacts) -> Graph:
    """The graph with a remark on each quantized tensor that a product reads as floats, or on all of them where a target
    multiplies none of the kind."""
    remarks: list[str] = []
    unknown: dict[DType, list[str]] = {}
    partly: set[Value] = set()
    readers: dict[Value, list[Node]] = {}
    for node in graph.nodes:
        for item in node.inputs:
            if item is not None:
                readers.setdefault(item, []).append(node)
    producers = {node.output: node for node in graph.nodes if len(node.outputs) == 1}
    for node in graph.nodes:
        source = _origin(node, producers, graph) if node.op == "dequantize" else None
        if source is None or node.inputs[0] is None:
            continue
        for reader in _through_casts(node, readers):
            if reader.op not in ("matmul", "conv", "attention"):
                continue
            partly.add(reader.output)
            dtype = node.inputs[0].dtype
            if (dtype if dtype.is_float else uint8) not in kernels.narrow_types:
                unknown.setdefault(dtype, []).append(source.name)
                continue
            why = _why(reader, node, producers, graph, kernels)
            remarks.append(
                Advice(
                    f"quantized %{source.name} ({scheme_of(node)}) is read as floats by {reader.op} "
                    f"%{reader.output.name}{f' ({reader.source})' if reader.source else ''}: "
                    f"{why.text}; {why.change}"
                )
            )
    remarks += [
        f"{len(names)} products of {dtype.name} (%{names[0]}, …) are computed in wider floats, of the same numbers: "
        "the target multiplies none of this type"
        for dtype, names in unknown.items()
    ]
    remarks += _unquantized(graph, partly, kernels)
    if not remarks:
        return graph
    rewriter = GraphRewriter(graph)
    rewriter.remarks += remarks
    rewriter.changed = True
    return rewriter.run({})


def _unquantized(graph: Graph, partly: Set[Value], kernels: KernelFacts) -> list[Advice]:
    """Advice on layers in floats where other ones are of 8-bit numbers, a line for those of a kind.  Results of layers
    that read a quantized tensor, which have their own lines, are `partly`."""
    layers = [node for node in graph.nodes if node.op in ("matmul", "conv") and node.output not in partly]
    kinds = {node.op for node in layers if node.inputs[0] is not None and _is_narrow(node.inputs[0].dtype)}
    alike: dict[tuple[str, DType, _Reason], list[str]] = {}
    for node in layers:
        x, w = node.inputs[:2]
        assert x is not None and w is not None
        if node.op not in kinds or w not in graph.constants or w.rank < 2 or not _is_wide(x.dtype):
            continue
        reason = _reason(node, _Narrow(Value(x.name, uint8, x.shape), None, None), kernels)
        if reason is None:
            reason = _Reason("neither of its operands is quantized", "quantize both if the results allow it")
        if reason.change is not _LEAVE:
            name = f"%{node.output.name}{f' ({node.source})' if node.source else ''}"
            alike.setdefault((node.op, x.dtype, reason), []).append(name)
    return [
        Advice(f"{op} {listed(names)} in {dtype} next to layers of 8 bits: {reason.text}; {reason.change}")
        for (op, dtype, reason), names in alike.items()
    ]


def listed(names: Sequence[str], most: int = 3) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _origin(node: Node, producers: dict[Value, Node], graph: Graph) -> Value | None:
    """The quantized tensor that `dequantize` reads, moved or not; None for constants and what is computed otherwise."""
    value = node.inputs[0]
    maker = producers.get(value) if value is not None else None
    while maker is not None and maker.op in (*_MOVES, "bitcast", "bitwise_xor"):  # the last two: uint8 as int8
        value = maker.inputs[0]
        maker = producers.get(value) if value is not None else None
    if maker is None:
        return value if value in graph.inputs else None
    known = maker.op == "quantize" or (maker.op == "cast" and maker.inputs[0] not in graph.constants)
    return value if known else None


def _through_casts(node: Node, readers: dict[Value, list[Node]]) -> list[Node]:
    """What reads a node's result, or casts of it to wider floats."""
    found: list[Node] = []
    for reader in readers.get(node.output, []):
        found += _through_casts(reader, readers) if reader.op == "cast" and _is_wide(reader.output.dtype) else [reader]
    return found


def _why(reader: Node, node: Node, producers: dict[Value, Node], graph: Graph, kernels: KernelFacts) -> _Reason:
    """Why a product that reads a quantized tensor is none of integers."""
    if reader.op == "attention":
        return _Reason("attention has no kernel for integers", _LEAVE)
    x, scale, zero = (*node.inputs, None)[:3]
    assert x is not None
    other = producers.get(reader.inputs[1]) if reader.inputs[1] is not None else None
    side = "right operand" if reader.op == "matmul" else "weights"
    reason = _reason(reader, _Narrow(x, zero, scale), kernels) if reader.inputs[0] is node.output else None
    if reason is not None:
        return reason
    while other is not None and other.op == "cast" and _is_wide(other.output.dtype) and other.inputs[0] is not None:
        other = producers.get(other.inputs[0])
    if other is None or other.op != "dequantize":
        if reader.op == "conv" and reader.inputs[1] in graph.constants:
            # Those of transposed convolutions are turned, and joined ones are one, as floats.
            return _Reason("its weights are floats, or were rearranged as floats", "quantize them, if they are not")
        return _Reason("its other operand is not quantized", "quantize that, too")
    if x.dtype.is_float:
        return _why_of_floats(reader, other)
    narrow = other.inputs[0] is not None and _is_narrow(other.inputs[0].dtype)
    if not narrow or not _is_narrow(x.dtype):
        return _Reason("there are kernels for integers of 8 bits", "quantize both operands to 8 bits")
    if other.inputs[0] not in graph.constants:
        return _Reason(
            f"its {side} {'are' if side == 'weights' else 'is'} no constant",
            "make that a constant, or use 8-bit floats",
        )
    if reader.op == "conv":
        return _Reason(
            "its weights without their zero points do not fit int8, or scales differ within a feature",
            "quantize them to int8 without zero points, with a scale for each feature",
        )
    return _Reason("scales of its right operand differ along the depth", _BY_COLUMN)


def _why_of_floats(reader: Node, other: Node) -> _Reason:
    """Why a product that reads 8-bit floats is none of them."""
    if other.inputs[0] is None or other.inputs[0].dtype not in _FLOATS:
        return _Reason("its other operand is no 8-bit float", "quantize both operands to 8-bit floats")
    if reader.op == "conv":
        return _Reason(
            "its weights are no constants, or scales differ within a feature",
            "make them constants, with a scale for each feature",
        )
    return _Reason("scales of its right operand differ along the depth, or it has more than two dimensions", _BY_COLUMN)
