"""Weights of a few bits, packed in bytes, with a scale for each block: products and embeddings of ONNX Runtime."""

from __future__ import annotations

import numpy as np

from tilewright.dtypes import float32, int64, uint8
from tilewright.graph.core import Value
from tilewright.importers.onnx_call import OnnxCall
from tilewright.importers.onnx_ops.indexing import from_front
from tilewright.importers.onnx_ops.quantized import along
from tilewright.importers.quantized_weights import QuantizedMatrix, in_runs, multiply, of_bits, unpacked_bits
from tilewright.importers.report import Invalid, Unsupported
from tilewright.importers.rules import RuleTable
from tilewright.symbolic import lift, simplify

TABLE = RuleTable("ONNX Runtime: packed weights", "com.microsoft::")
rule = TABLE.rule

# The numbers of four bits of bitsandbytes: places of a normal distribution, and floats.
_NORMAL = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
_MAGNITUDES = (0.0, 1 / 192, 2 / 3, 1.0, 1 / 3, 1 / 2, 1 / 6, 1 / 4)
_FLOATS = (*_MAGNITUDES, *(-size for size in _MAGNITUDES))


_OF_BYTES = 4  # the accuracy level of products of bytes


@rule("MatMulNBits")
def matmul_of_packed(call: OnnxCall) -> Value:
    """Rows [.., K] times weights [N, blocks, bytes] of a few bits, with a scale (and a zero point) for each block."""
    x, packed, scales = call[0], call[1], call[2]
    depth, columns, block = (call.positive(name) for name in ("K", "N", "block_size"))
    bits = call.positive("bits", 4)
    level = call.attribute("accuracy_level", 0)  # how precise the products are at least
    if bits not in (2, 4, 8):
        raise Unsupported("weights of a number of bits that does not divide 8", "use 2, 4 or 8 bits")
    if call.attribute("weight_prepacked", 0):
        raise Unsupported("weights in the order of ONNX Runtime's own kernels", "save the model without packing them")
    blocks = -(-depth // block)
    whole = bits > 2 and not call.has(4) and (not call.has(3) or call[3].dtype == uint8)
    if level == _OF_BYTES and whole and x.dtype == float32:
        x = _of_bytes(call, x, depth, block)
    matrix = _known_matrix(call, depth, columns, block, bits)
    if matrix is not None:
        result = multiply(call, x, matrix, call.tensor(1).name or "weight")
        return call.op("add", result, call[5]) if call.has(5) else result
    if call.has(4):
        raise Unsupported("weights in another order that are no constants", "make the weights initializers")
    weight = call.reshape(unpacked(call, packed, bits), (columns, blocks, -1))
    if weight.shape[2] != block:
        raise Invalid(f"{packed!r} are not {columns} columns of {blocks} blocks of {block} elements of {bits} bits")
    zero: Value | float = float(1 << (bits - 1))
    if call.has(3):
        points = call[3]
        if points.dtype == uint8:
            rows = call.reshape(unpacked(call, points, bits), (columns, -1))
            points = call.slice(rows, 1, 0, blocks)
        zero = call.reshape(call.cast(points, x.dtype), (columns, blocks, 1))
    centred = call.op("subtract", call.cast(weight, x.dtype), zero)
    scaled = call.op("multiply", centred, call.reshape(call.cast(scales, x.dtype), (columns, blocks, 1)))
    floats = call.slice(call.reshape(scaled, (columns, blocks * block)), 1, 0, depth)
    rows = call.reshape(x, (-1, depth))
    result = call.reshape(call.op("matmul", rows, floats, transpose_b=True), (*x.shape[:-1], columns))
    return call.op("add", result, call[5]) if call.has(5) else result


def _of_bytes(call: OnnxCall, x: Value, depth: int, block: int) -> Value:
    """Rows [.., K] whose blocks are bytes times a scale each, as ONNX Runtime multiplies them on CPUs.

    The largest element of a block is 127 times its scale.
    """
    blocks = -(-depth // block)
    filled = call.op("pad", x, pads=[(0, 0)] * (x.rank - 1) + [(0, blocks * block - depth)]) if depth % block else x
    parts = call.reshape(filled, (*x.shape[:-1], blocks, block))
    largest = call.op("reduce_max", call.op("absolute", parts), axes=(parts.rank - 1,), keepdims=True)
    scale = call.op("divide", largest, 127.0)
    inverse = call.op("where", call.op("greater", scale, 0.0), call.op("divide", 1.0, scale), 0.0)
    rounded = call.op("multiply", call.op("round", call.op("multiply", parts, inverse)), scale)
    result = call.reshape(rounded, (*x.shape[:-1], blocks * block))
    return call.slice(result, x.rank - 1, 0, depth) if depth % block else result


def _known_matrix(call: OnnxCall, depth: int, columns: int, block: int, bits: int) -> QuantizedMatrix | None:
    """Weights that are constants, with whole zero points; None for others.

    Raises `Invalid` where their sizes do not fit.
    """
    given = [call.tensor(index).known if call.has(index) else None for index in range(1, 5)]
    if any(call.has(index) and given[index - 1] is None for index in range(1, 5)):
        return None
    packed, scales, points, places = given
    assert packed is not None and scales is not None
    blocks = -(-depth // block)
    codes, scale = unpacked_bits(packed, bits), scales.reshape(-1)
    if codes.size != columns * blocks * block or scale.size != columns * blocks:
        raise Invalid(
            f"{packed.size} bytes and {scale.size} scales are not {columns} columns of {blocks} blocks of {block} "
            f"elements of {bits} bits"
        )
    zeros = np.full((columns, blocks), 1 << (bits - 1), np.uint8)
    if points is not None:
        if points.dtype.kind in "fV":
            return None
        rows = unpacked_bits(points.reshape(columns, -1), bits) if points.dtype == np.uint8 else points
        zeros = rows.reshape(columns, -1)[:, :blocks]
    filled = of_bits(codes.reshape(columns, blocks * block), bits)
    matrix = QuantizedMatrix(filled, scale.reshape(columns, blocks), np.ascontiguousarray(zeros), depth=depth)
    if places is None:
        return matrix
    groups = places.reshape(-1).astype(np.int64)
    if len(groups) not in (depth, blocks * block) or (groups < 0).any() or (groups >= blocks).any():
        raise Invalid(
            f"`g_idx` has {len(groups)} entries from {groups.min(initial=0)} to {groups.max(initial=0)}; expected "
            f"{depth} or {blocks * block} from 0 to {blocks - 1}"
        )
    return in_runs(matrix, groups[:depth], block)


def unpacked(call: OnnxCall, x: Value, bits: int) -> Value:
    """The elements of bytes [.., n] as uint8 [.., n 8 / bits], those in the low bits first."""
    if bits == 8:
        return call.cast(x, uint8)
    shifts = call.iota(8 // bits, uint8, step=bits)
    parts = call.op("shift_right", call.unsqueeze(call.cast(x, uint8), x.rank), shifts)
    return call.flatten(call.op("bitwise_and", parts, (1 << bits) - 1), x.rank - 1, x.rank + 1)


@rule("MatMulBnb4")
def matmul_of_numbers_by_place(call: OnnxCall) -> Value:
    """Rows [.., K] times weights of four bits that stand for the numbers of a table, with a scale for each block."""
    x, absmax = call[0], call[2]
    depth, columns, block = (call.positive(name) for name in ("K", "N", "block_size"))
    call.attribute("training_mode")
    kind, transposed = call.attribute("quant_type", 1), bool(call.attribute("transB", 1))
    if kind not in (0, 1):
        raise Invalid(f"the attribute 'quant_type' is {kind}; it must be 0 or 1")
    halves = unpacked(call, call.reshape(call[1], (-1,)), 4)  # of each byte the high half comes first
    pairs = call.reshape(halves, (-1, 2))
    order = call.op("concat", call.slice(pairs, 1, 1, 2), call.slice(pairs, 1, 0, 1), axis=1)
    count = depth * columns
    places = call.slice(call.reshape(order, (-1,)), 0, 0, count)
    table = call.constant(np.array(_NORMAL if kind else _FLOATS, x.dtype.numpy), "numbers")
    numbers = call.op("gather", table, call.cast(places, int64), axis=0)
    scales = along(call, call.cast(call.reshape(absmax, (-1,)), x.dtype), numbers, 0, block)
    shape = (columns, depth) if transposed else (depth, columns)
    weight = call.reshape(call.op("multiply", numbers, scales), shape)
    rows = call.reshape(x, (-1, depth))
    result = call.op("matmul", rows, weight, transpose_b=transposed)
    return call.reshape(result, (*x.shape[:-1], columns))


@rule("GatherBlockQuantized")
def gather_of_packed(call: OnnxCall) -> Value:
    """Slices of a tensor of a few bits, as floats: elements less a zero point, times a scale of their block."""
    data, indices, scales = call[0], call[1], call[2]
    bits, block = call.positive("bits", 4), call.positive("block_size", 128)
    packed = data.dtype == uint8
    rank = data.rank
    gather_axis = call.place(call.attribute("gather_axis", 0), rank)
    axis = call.place(call.attribute("quantize_axis", 1), rank)
    if packed and (bits not in (2, 4, 8) or axis != rank - 1 or gather_axis == axis):
        raise Unsupported(f"elements of {bits} bits along axis {axis}", "quantize the last axis to 2, 4 or 8 bits")
    if gather_axis == axis:
        raise Unsupported("slices of the axis that has blocks", "quantize another axis")
    where = from_front(call, 1, data.shape[gather_axis])
    points = call.optional(3)
    found = []
    for item, is_packed in ((data, packed), (scales, False), (points, packed)):
        gathered = None if item is None else call.op("gather", item, where, axis=gather_axis)
        found.append(unpacked(call, gathered, bits) if gathered is not None and is_packed else gathered)
    elements, factors, zeros = found
    assert elements is not None and factors is not None
    axis += indices.rank - 1 if axis > gather_axis else 0
    extent = simplify(lift(data.shape[rank - 1]) * (8 // bits)) if packed else elements.shape[axis]
    elements = call.slice(elements, axis, 0, extent)
    numbers = call.cast(elements, factors.dtype)
    if zeros is not None:
        zeros = call.slice(zeros, axis, 0, factors.shape[axis])
        centre: Value | float = along(call, call.cast(zeros, factors.dtype), numbers, axis, block)
    else:
        centre = float(1 << (bits - 1)) if packed else 0.0
    centred = call.op("subtract", numbers, centre)
    return call.op("multiply", centred, along(call, factors, numbers, axis, block))
