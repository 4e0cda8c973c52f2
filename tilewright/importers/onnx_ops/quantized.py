"""Quantized tensors: conversion from and to integers with a scale, and products and convolutions of such integers.

Every operation is written with floats and integers as its definition says, so that other passes find ordinary graph
ops; results are exact to the last bit wherever the definition is.
"""

from __future__ import annotations

import math

import ml_dtypes

from tilewright.dtypes import NARROW, DType, float8e8, float32, float64, int8, int32, uint8
from tilewright.graph.core import Value
from tilewright.importers.equal_sizes import chosen, must_be
from tilewright.importers.onnx_call import OnnxCall
from tilewright.importers.onnx_ops.network import convolve
from tilewright.importers.report import Invalid, Unsupported
from tilewright.importers.rules import RuleTable
from tilewright.symbolic import ceil_divide, lift, simplify

TABLE = RuleTable("Quantized")
rule = TABLE.rule

LARGEST_EXACT_DEPTH = 2**24 // 2**16  # products of 8 bits that float32 adds without rounding


def along(call: OnnxCall, parameter: Value, x: Value, axis: int, block: int) -> Value:
    """A scale or zero point in a shape that broadcasts with x: one number, one for each position of `axis`, or one for
    `block` positions."""
    if parameter.rank == 0 or parameter.shape == (1,):
        return call.reshape(parameter, ())
    if block:
        extent, count = x.shape[axis], ceil_divide(x.shape[axis], block)
        stretched = call.broadcast(
            call.unsqueeze(parameter, axis + 1), (*parameter.shape[: axis + 1], block, *parameter.shape[axis + 1 :])
        )
        flat = call.flatten(stretched, axis, axis + 2)
        return flat if simplify(lift(count) * block) == extent else call.slice(flat, axis, 0, extent)
    return call.reshape(parameter, [-1 if place == axis else 1 for place in range(x.rank)])


def _axis_and_block(call: OnnxCall, x: Value) -> tuple[int, int]:
    """Where scales lie along x: an axis, which means nothing to a single scale, and how many share one.

    Sizes of the inputs that must be equal get one spelling.
    """
    axis, block = call.attribute("axis", 1), call.attribute("block_size", 0)
    scale = call[1]
    if scale.rank == 0 or scale.shape == (1,):
        return 0, 0
    axis = call.place(axis, x.rank)
    if block < 0 or (block and scale.rank != x.rank) or (not block and scale.rank != 1):
        raise Invalid(f"the scale {scale!r} does not fit {x!r} in blocks of {block}")
    if not block:  # x and the scale have one spelling of the size along the axis
        size = chosen([x.shape[axis], scale.shape[0]])
        call.tensor(0).value = must_be(call, x, (*x.shape[:axis], size, *x.shape[axis + 1 :]))
        call.tensor(1).value = scale = must_be(call, scale, (size,))
    if call.has(2):
        call.tensor(2).value = must_be(call, call[2], scale.shape)
    if call.has(2) and call[2].shape != scale.shape:
        raise Invalid(f"the zero point {call[2]!r} and the scale {scale!r} must have one shape")
    return axis, block


def _saturated(call: OnnxCall, x: Value, dtype: DType) -> Value:
    """Whole numbers of a float as an integer type, those outside its range as its ends."""
    limits = ml_dtypes.iinfo(dtype.numpy)
    return call.cast(call.op("clip", x, low=float(limits.min), high=float(limits.max)), dtype)


def quantize(call: OnnxCall, x: Value, scale: Value, zero: Value | None, dtype: DType, saturate: bool = True) -> Value:
    """round(x / scale) + zero point, halves to even; `scale` and `zero` broadcast with x, which is a float."""
    if not dtype.is_integer and (dtype.bits > 8 or dtype == float8e8):
        raise Unsupported(f"quantization to {dtype}", "use integers, or floats of 8 or 4 bits")
    if dtype.is_float:
        scaled = call.op("divide", x, call.cast(scale, x.dtype))
        scaled = scaled if zero is None else call.op("add", scaled, call.cast(zero, x.dtype))
        largest = float(ml_dtypes.finfo(dtype.numpy).max)
        return call.cast(call.op("clip", scaled, low=-largest, high=largest) if saturate else scaled, dtype)
    if dtype in NARROW:
        level = call.op("round", call.op("divide", x, call.cast(scale, x.dtype)))
        level = level if zero is None else call.op("add", level, call.cast(zero, x.dtype))
        return _saturated(call, level, dtype)
    return call.op("quantize", x, scale, zero, dtype=dtype)


def _wide(dtype: DType) -> DType:
    """The float type that scales are applied in."""
    return dtype if dtype.is_float and dtype.bits >= 32 else float32


@rule("QuantizeLinear")
def quantize_linear(call: OnnxCall) -> Value:
    """The type is that of the zero point, else `output_dtype`, else uint8."""
    axis, block = _axis_and_block(call, call[0])
    x, scale = call[0], call[1]
    call.attribute("precision")  # of the division: at least float32 here
    dtype = call.tensor(2).dtype if call.has(2) else call.attribute("output_dtype") or uint8
    zero = along(call, call[2], x, axis, block) if call.has(2) else None
    x = call.cast(x, _wide(x.dtype))
    scale = along(call, scale, x, axis, block)
    return quantize(call, x, scale, zero, dtype, bool(call.attribute("saturate", 1)))


@rule("DequantizeLinear")
def dequantize_linear(call: OnnxCall) -> Value:
    """(x - zero point) scale, in the type of the scale, or `output_dtype`."""
    axis, block = _axis_and_block(call, call[0])
    x, scale = call[0], call[1]
    dtype = call.attribute("output_dtype") or scale.dtype
    zero = along(call, call[2], x, axis, block) if call.has(2) else None
    scale = along(call, scale, x, axis, block)
    stored = all(item in call.builder.graph.constants for item in (call[0], call.optional(2)) if item is not None)
    if x.dtype in NARROW and x.dtype.is_integer and not stored:  # kernels have only bytes of them
        byte = int8 if x.dtype.is_signed else uint8
        x, zero = call.cast(x, byte), None if zero is None else call.cast(zero, byte)
    if x.dtype.is_integer:
        return call.cast(call.op("dequantize", x, scale, zero), dtype)
    numbers = call.cast(x, float32)
    if zero is not None:
        numbers = call.op("subtract", numbers, call.cast(zero, float32))
    return call.cast(call.op("multiply", numbers, call.cast(scale, float32)), dtype)


@rule("DynamicQuantizeLinear")
def dynamic_quantize_linear(call: OnnxCall) -> tuple[Value, Value, Value]:
    """To uint8 by the tensor's own smallest and largest numbers, with 0 among them."""
    x = call[0]
    axes = tuple(range(x.rank))
    low = call.op("minimum", call.op("reduce_min", x, axes=axes), 0.0)
    high = call.op("maximum", call.op("reduce_max", x, axes=axes), 0.0)
    width = call.op("divide", call.op("subtract", high, low), 255.0)
    scale = call.op("where", call.op("equal", width, 0.0), 1.0, width)
    zero = _saturated(call, call.op("round", call.op("divide", call.op("negate", low), scale)), uint8)
    return quantize(call, x, scale, zero, uint8), scale, zero


# Products --------------------------------------------------------------------------------------------


def centred(call: OnnxCall, index: int, zero_index: int, shape: list[int] | None = None) -> Value:
    """An input of integers less its zero point, in int32; a zero point for each of many is given `shape`."""
    x = call.cast(call[index], int32)
    if not call.has(zero_index):
        return x
    zero = call.cast(call[zero_index], int32)
    if zero.rank == 1 and shape is not None and zero.shape != (1,):
        zero = call.reshape(zero, shape)
    elif zero.rank <= 1:
        zero = call.reshape(zero, ())
    return call.op("subtract", x, zero)


def _scale_of_rows(call: OnnxCall, index: int) -> Value:
    """A scale of the left operand: one number, or one for each row."""
    scale = call[index]
    if scale.rank == 1:
        return call.reshape(scale, () if scale.shape == (1,) else (-1, 1))
    return scale


@rule("MatMulInteger")
def matmul_integer(call: OnnxCall) -> Value:
    return call.matmul(centred(call, 0, 2, [-1, 1]), centred(call, 1, 3, [1, -1]))


@rule("QLinearMatMul")
def quantized_matmul(call: OnnxCall) -> Value:
    """Inputs: a, its scale and zero point, b, its scale and zero point, the result's scale and zero point."""
    product = call.matmul(centred(call, 0, 2, [-1, 1]), centred(call, 3, 5, [1, -1]))
    scale = call.op("multiply", call.cast(_scale_of_rows(call, 1), float32), call.cast(call[4], float32))
    scaled = call.op("multiply", call.cast(product, float32), scale)
    return quantize(call, scaled, call.reshape(call[6], ()), call.reshape(call[7], ()), call[7].dtype)


def _convolve_integers(call: OnnxCall, x: Value, weight: Value) -> Value:
    """A convolution of int32 values that stem from 8 bits, exact: as floats that hold every sum; int32."""
    depth = math.prod(size for size in weight.shape[1:] if isinstance(size, int))
    exact = depth <= LARGEST_EXACT_DEPTH and all(isinstance(size, int) for size in weight.shape[1:])
    dtype = float32 if exact else float64  # the pass `exact_products` takes float32 where the weights are small
    return call.cast(convolve(call, call.cast(x, dtype), call.cast(weight, dtype), None, exact=True), int32)


def _for_channels(weight_rank: int) -> list[int]:
    return [-1] + [1] * (weight_rank - 1)


@rule("ConvInteger")
def convolution_integer(call: OnnxCall) -> Value:
    weight = centred(call, 1, 3, _for_channels(len(call.tensor(1).shape)))
    return _convolve_integers(call, centred(call, 0, 2), weight)


@rule("QLinearConv")
def quantized_convolution(call: OnnxCall) -> Value:
    """Inputs: x, its scale and zero point, w, its scale and zero point, the result's two, an int32 bias."""
    rank = len(call.tensor(3).shape)
    weight = centred(call, 3, 5, _for_channels(rank))
    found = _convolve_integers(call, centred(call, 0, 2), weight)
    if call.has(8):
        found = call.op("add", found, call.reshape(call[8], (-1, *[1] * (rank - 2))))
    scale = call.op("multiply", call.reshape(call[1], ()), call[4])
    if scale.rank == 1:
        scale = call.reshape(scale, () if scale.shape == (1,) else (1, -1, *[1] * (rank - 2)))
    scaled = call.op("multiply", call.cast(found, float32), scale)
    return quantize(call, scaled, call.reshape(call[6], ()), call.reshape(call[7], ()), call[7].dtype)
