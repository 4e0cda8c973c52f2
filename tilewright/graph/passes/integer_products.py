"""Products of quantized tensors as sums of 8-bit integers, for targets that have kernels for them.

    matmul(dequantize(x, sx, zx), dequantize(w, sw, zw))  ->  cast(sums) (sx sw)
    matmul(x - zx, w - zw) of int32                       ->  sums
    sums = matmul(x, w - zw) {dtype=i32} - zx (sums of the columns of w - zw)

for constant w.  Activations become uint8 (a zero point of 128 more) and weights int8, which is what instructions
multiply; weights that do not fit int8 without their zero point keep the part of it that is left, times the sums of the
rows of x.  What follows (bias, activation, residual, the next quantization) is elementwise, and becomes the product's
epilogue.  Scales that a dimension of the sum has keep a product in floats.

Every quantized tensor that does not become part of such a product is named in the remarks, with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.dtypes import DType, float32, int1, int8, int32, uint8
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.quantization import integer_range, scheme_of
from tilewright.graph.reference import run_node
from tilewright.graph.rewrite import Rewriter, apply_rules

FEWEST_CHANNELS = 16  # of an image, for its windows to be gathered
GROUP = 4  # the depth must be a multiple of what instructions add at once
_SHIFT = 128  # from int8 to uint8
_DEEPEST = 8  # nodes in the chain that computes a constant
_MOVES = ("reshape", "permute", "slice", "max_pool")


@dataclass(frozen=True)
class _Integers:
    """A tensor of floats or int32 as integers of 8 bits: (integers - zero) scale."""

    integers: Value
    zero: Value | None
    scale: Value | None  # None: 1


def integer_products(graph: Graph) -> Graph:
    """The graph with such products, and remarks on what stays quantized to no use."""
    graph = apply_rules(graph, {"quantize": [_unsigned], "dequantize": [_shifted]})
    graph = apply_rules(graph, dict.fromkeys(_MOVES, [_sunk]))
    return _with_remarks(apply_rules(graph, {"matmul": [_product], "conv": [_convolution]}))


# One form of activations ------------------------------------------------------------------------------


def _unsigned(node: Node, rewriter: Rewriter) -> Value | None:
    """int8 as uint8 less 128: the same numbers."""
    if node.attributes["dtype"] != int8:
        return None
    x, scale, zero = (*node.inputs, None)[:3]
    raised = rewriter.op("quantize", [x, scale, _raised(zero, rewriter)], dtype=uint8)
    return _signed(raised, rewriter)


def _raised(zero: Value | None, rewriter: Rewriter) -> Value:
    """A zero point of int8 as that of uint8."""
    if zero is None:
        return rewriter.number(_SHIFT, int32)
    return rewriter.op("add", [rewriter.cast(zero, int32), rewriter.number(_SHIFT, int32)])


def _signed(x: Value, rewriter: Rewriter) -> Value:
    """uint8 as int8, 128 less."""
    flipped = rewriter.op("bitwise_xor", [x, rewriter.number(_SHIFT, uint8)])
    return rewriter.op("bitcast", [flipped], of="uint8", to="int8")


def _raised_source(x: Value, rewriter: Rewriter) -> Value | None:
    """The uint8 tensor that an int8 one is 128 less than."""
    cast = rewriter.producer(x, "bitcast")
    flipped = rewriter.producer(cast.inputs[0], "bitwise_xor") if cast is not None else None
    if flipped is None or x.dtype != int8 or rewriter.uniform(flipped.inputs[1]) != _SHIFT:
        return None
    return flipped.inputs[0]


def _shifted(node: Node, rewriter: Rewriter) -> Value | None:
    """What is read of an int8 tensor is read of the uint8 one that it was made of."""
    x, scale, zero = (*node.inputs, None)[:3]
    assert x is not None
    source = _raised_source(x, rewriter)
    return None if source is None else rewriter.op("dequantize", [source, scale, _raised(zero, rewriter)])


def _sunk(node: Node, rewriter: Rewriter) -> Value | None:
    """Elements that are only moved are moved as integers: move(dequantize(x)) = dequantize(move(x))."""
    source = rewriter.producer(node.inputs[0], "dequantize")
    if source is None or len(node.inputs) != 1:
        return None
    x, scale, zero = (*source.inputs, None)[:3]
    single = scale is not None and scale.rank == 0 and (zero is None or zero.rank == 0)
    if node.op == "max_pool":
        known = _data(scale, rewriter)
        if not single or known is None or known <= 0:
            return None
    moved = [scale, zero]
    if not single:
        if node.op != "permute":
            return None
        moved = [_permuted(item, source.output.rank, node.attributes["order"], rewriter) for item in (scale, zero)]
    return rewriter.op("dequantize", [rewriter.op(node.op, [x], **node.attributes), *moved])


def _permuted(item: Value | None, rank: int, order: tuple[int, ...], rewriter: Rewriter) -> Value | None:
    """A scale that broadcasts with a tensor of `rank` dimensions, for the tensor with them in another order."""
    if item is None or item.rank == 0:
        return item
    if item.rank < rank:
        item = rewriter.op("reshape", [item], shape=(*[1] * (rank - item.rank), *item.shape))
    return rewriter.op("permute", [item], order=order)


# Products ---------------------------------------------------------------------------------------------


def _product(node: Node, rewriter: Rewriter) -> Value | None:
    if node.attributes["dtype"] is not None:
        return None
    left, right = node.inputs
    assert left is not None and right is not None
    rows, weights = _integers(left, rewriter), _weights(node, rewriter)
    if rows is None or weights is None or _reason(node, rows) is not None:
        return None
    matrix, rest, columns_scale = weights
    sums = _sums(node, _as_uint8(rows, rewriter), matrix, rest, rewriter)
    if not node.output.dtype.is_float:
        return sums
    return rewriter.cast(_scaled(sums, rows.scale, columns_scale, rewriter), node.output.dtype)


def _integers(value: Value, rewriter: Rewriter) -> _Integers | None:
    """What a product's operand is made of, if that is 8-bit integers."""
    node = rewriter.producer(value)
    if node is not None and node.op == "dequantize":
        x, scale, zero = (*node.inputs, None)[:3]
        assert x is not None
        return _Integers(x, zero, scale) if _is_narrow(x.dtype) else None
    if node is not None and node.op == "cast" and value.dtype.is_float:  # whole numbers for a convolution
        value, node = node.inputs[0] or value, rewriter.producer(node.inputs[0])
    if value.dtype != int32 or node is None:
        return None
    zero = None
    if node.op == "subtract":
        source, zero = node.inputs
        node = rewriter.producer(source)
    if node is None or node.op != "cast" or node.inputs[0] is None or not _is_narrow(node.inputs[0].dtype):
        return None
    return _Integers(node.inputs[0], zero, None)


def _is_narrow(dtype: DType) -> bool:
    return dtype in (int8, uint8)


def _reason(node: Node, rows: _Integers) -> str | None:
    """Why a product of integers on the left by known weights stays in floats; None where it does not."""
    left = node.inputs[0]
    assert left is not None
    if node.op == "conv":
        return _reason_of_convolution(node, rows)
    depth = left.shape[-1]
    if not isinstance(depth, int) or depth % GROUP:
        return f"its depth {depth} is no multiple of {GROUP}"
    for item in (rows.scale, rows.zero):
        if item is not None and item.rank and item.shape[-1] != 1:
            return "the scale or zero point of its left operand differs along the depth"
    return None


def _reason_of_convolution(node: Node, image: _Integers) -> str | None:
    x, w = node.inputs[:2]
    assert x is not None and w is not None
    if node.attributes["groups"] != 1 or x.rank > 4:
        return "there are kernels for one group of channels, and one or two spatial dimensions"
    channels = w.shape[1]
    if not isinstance(channels, int) or channels % GROUP or channels < FEWEST_CHANNELS:
        return f"its {channels} channels are few, or no multiple of {GROUP}: floats are faster"
    if any(item is not None and item.rank for item in (image.scale, image.zero)):
        return "the scale or zero point of its image is not a single number"
    return None


def _weights(node: Node, rewriter: Rewriter) -> tuple[np.ndarray, np.ndarray | None, Value | None] | None:
    """The right operand of a product as int8 of its shape, the zero point that is left of each column, and the scale
    of the columns."""
    value = node.inputs[1]
    assert value is not None
    found = _integers(value, rewriter)
    if found is None or value.rank != 2:
        return None
    data, zero = _data(found.integers, rewriter), _data(found.zero, rewriter)
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


def _convolution(node: Node, rewriter: Rewriter) -> Value | None:
    image, taps, bias = (*node.inputs, None)[:3]
    assert image is not None and taps is not None
    pixels, weights = _integers(image, rewriter), _integers(taps, rewriter)
    if pixels is None or weights is None or _reason(node, pixels) is not None:
        return None
    known = _taps(weights, taps, rewriter)
    if known is None:
        return None
    pixels = _as_uint8(pixels, rewriter)
    padded = _padded(pixels, node, rewriter)
    channels = (-1, *[1] * (image.rank - 2)) if node.attributes["layout"] == "NCHW" else (-1,)
    options = {**node.attributes, "padding": [(0, 0)] * (image.rank - 2), "dtype": int32, "exact": False}
    sums = rewriter.op("conv", [padded, rewriter.new_constant(known, "weights")], **options)
    if pixels.zero is not None:
        columns = known.astype(np.int64).reshape(len(known), -1).sum(axis=1).astype(np.int32)
        totals = rewriter.new_constant(columns.reshape(channels), "tap_sums")
        sums = rewriter.op("subtract", [sums, rewriter.op("multiply", [rewriter.cast(pixels.zero, int32), totals])])
    scale = weights.scale
    if scale is not None and scale.rank:
        scale = rewriter.op("reshape", [scale], shape=channels)
    result = _scaled(sums, pixels.scale, scale, rewriter)
    if bias is not None:
        result = rewriter.op("add", [result, rewriter.cast(rewriter.op("reshape", [bias], shape=channels), float32)])
    return rewriter.cast(result, node.output.dtype)


def _taps(weights: _Integers, taps: Value, rewriter: Rewriter) -> np.ndarray | None:
    """The weights of a convolution as int8 without a zero point; None where they do not fit, or differ otherwise than
    by their first dimension."""
    data, zero = _data(weights.integers, rewriter), _data(weights.zero, rewriter)
    if data is None or (weights.zero is not None and zero is None):
        return None
    for item in (weights.scale, weights.zero):
        if item is not None and any(extent != 1 for extent in (*[1] * (taps.rank - item.rank), *item.shape)[1:]):
            return None
    whole = data.astype(np.int64) - (0 if zero is None else zero.astype(np.int64))
    low, high = integer_range(int8)
    return whole.astype(np.int8) if low <= whole.min(initial=0) and whole.max(initial=0) <= high else None


def _padded(image: _Integers, node: Node, rewriter: Rewriter) -> Value:
    """The integers of an image with those that stand for zero around it."""
    padding = node.attributes["padding"]
    if not any(low or high for low, high in padding):
        return image.integers
    pads = ((0, 0), (0, 0), *padding) if node.attributes["layout"] == "NCHW" else ((0, 0), *padding, (0, 0))
    zero = np.zeros((), np.uint8) if image.zero is None else _data(image.zero, rewriter)
    if zero is not None:
        return rewriter.op("pad", [image.integers], pads=pads, value=int(zero.reshape(())))
    assert image.zero is not None
    here = rewriter.op("full", [], shape=image.integers.shape, value=1, dtype=uint8)
    inside = rewriter.cast(rewriter.op("pad", [here], pads=pads, value=0), int1)
    around = rewriter.op("pad", [image.integers], pads=pads, value=0)
    return rewriter.op("where", [inside, around, rewriter.cast(image.zero, uint8)])


def _as_uint8(rows: _Integers, rewriter: Rewriter) -> _Integers:
    """Activations in the one form that kernels take."""
    if rows.integers.dtype == uint8:
        return rows
    source = _raised_source(rows.integers, rewriter)
    if source is None:
        bits = rewriter.op("bitcast", [rows.integers], of="int8", to="uint8")
        source = rewriter.op("bitwise_xor", [bits, rewriter.number(_SHIFT, uint8)])
    return _Integers(source, _raised(rows.zero, rewriter), rows.scale)


def _sums(node: Node, rows: _Integers, matrix: np.ndarray, rest: np.ndarray | None, rewriter: Rewriter) -> Value:
    """(x - zx) (w - rest) in int32: the product of the integers, less what their zero points have in it."""
    weights = rewriter.new_constant(np.ascontiguousarray(matrix), "weights")
    transposed = node.attributes["transpose_b"]
    total = rewriter.op("matmul", [rows.integers, weights], transpose_b=transposed, dtype=int32)
    depth_axis = 1 if transposed else 0
    columns = matrix.astype(np.int64).sum(axis=depth_axis)
    depth = matrix.shape[depth_axis]
    if rest is not None:  # - rest (sum of the row of x), and + K zx rest with the other zero points
        wide = rewriter.cast(rows.integers, int32)
        sums = rewriter.op("reduce_sum", [wide], axes=(-1,), keepdims=True)
        part = rewriter.op("multiply", [sums, rewriter.new_constant(rest.astype(np.int32), "zero_points")])
        total = rewriter.op("subtract", [total, part])
        columns = columns - depth * rest
    if rows.zero is None:
        return total
    known = _data(rows.zero, rewriter)
    if known is not None and known.size == 1:
        share = (columns * int(known.reshape(()))).astype(np.int32)  # wraps, as the sums do
        return rewriter.op("subtract", [total, rewriter.new_constant(share, "zero_points")]) if share.any() else total
    sums_of_columns = rewriter.new_constant(columns.astype(np.int32), "column_sums")
    share_of_rows = rewriter.op("multiply", [rewriter.cast(rows.zero, int32), sums_of_columns])
    return rewriter.op("subtract", [total, share_of_rows])


def _scaled(sums: Value, left: Value | None, right: Value | None, rewriter: Rewriter) -> Value:
    """Sums times the scales of both operands, in float32; None is a scale of 1."""
    scales = [rewriter.cast(scale, float32) for scale in (left, right) if scale is not None]
    result = rewriter.cast(sums, float32)
    if not scales:
        return result
    scale = scales[0] if len(scales) == 1 else rewriter.op("multiply", scales)
    return rewriter.op("multiply", [result, scale])


def _data(value: Value | None, rewriter: Rewriter, depth: int = _DEEPEST) -> np.ndarray | None:
    """The elements of a constant, or of what is computed of constants alone."""
    found = rewriter.constant(value)
    node = rewriter.producer(value)
    if found is not None or node is None or depth == 0 or len(node.outputs) != 1:
        return found
    if node.op == "cast" or node.op in _MOVES[:3] or node.op in ("subtract", "add", "broadcast_to"):
        arrays = [_data(item, rewriter, depth - 1) for item in node.inputs]
        if all(array is not None for array in arrays):
            return run_node(node, arrays, {})
    return None


# What stays -------------------------------------------------------------------------------------------


def _with_remarks(graph: Graph) -> Graph:
    """The graph with a remark on each quantized tensor that a product reads as floats."""
    remarks: list[str] = []
    readers: dict[Value, list[Node]] = {}
    for node in graph.nodes:
        for item in node.inputs:
            if item is not None:
                readers.setdefault(item, []).append(node)
    producers = {node.output: node for node in graph.nodes if len(node.outputs) == 1}
    for node in graph.nodes:
        source = producers.get(node.inputs[0]) if node.op == "dequantize" and node.inputs[0] is not None else None
        if node.op != "dequantize" or source is None or source.op != "quantize":
            continue
        for reader in readers.get(node.output, []):
            if reader.op in ("matmul", "conv", "attention"):
                remarks.append(
                    f"quantized %{source.output.name} ({scheme_of(source)}) is read as floats by {reader.op} "
                    f"%{reader.output.name}{f' ({reader.source})' if reader.source else ''}: "
                    f"{_why(reader, node, producers, graph)}"
                )
    if not remarks:
        return graph
    rewriter = Rewriter(graph)
    rewriter.remarks += remarks
    rewriter.changed = True
    return rewriter.run({})


def _why(reader: Node, node: Node, producers: dict[Value, Node], graph: Graph) -> str:
    """Why a product that reads a quantized tensor is none of integers."""
    if reader.op == "attention":
        return "attention has no kernel for integers"
    x, scale, zero = (*node.inputs, None)[:3]
    assert x is not None
    other = producers.get(reader.inputs[1]) if reader.inputs[1] is not None else None
    side = "right operand" if reader.op == "matmul" else "weights"
    reason = _reason(reader, _Integers(x, zero, scale)) if reader.inputs[0] is node.output else None
    if reason is not None:
        return reason
    if other is None or other.op != "dequantize":
        return "its other operand is not quantized"
    narrow = other.inputs[0] is not None and _is_narrow(other.inputs[0].dtype)
    if not narrow or not _is_narrow(x.dtype):
        return "there are kernels for integers of 8 bits"
    if other.inputs[0] not in graph.constants:
        return f"its {side} {'are' if side == 'weights' else 'is'} no constant"
    if reader.op == "conv":
        return "its weights without their zero points do not fit int8, or scales differ within a feature"
    return "scales of its right operand differ along the depth"
