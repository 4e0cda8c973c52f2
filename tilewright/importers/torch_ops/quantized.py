"""Quantized tensors of `convert_pt2e`: integers or 8-bit floats with their scales and zero points.

Every operation is written with floats as PyTorch's definition says, rounding included.
"""

from __future__ import annotations

from typing import Any

import torch

from tilewright.dtypes import DType, float16, float32, float64, int8, int32, int64, uint8
from tilewright.graph.core import Value
from tilewright.importers.emitter import Scalar
from tilewright.importers.rules import RuleTable
from tilewright.importers.torch_fx import TorchCall, dtype_of
from tilewright.symbolic import Size

TABLE = RuleTable("Quantized", "quantized_decomposed.")
rule = TABLE.rule

_BYTES = (int8, uint8)  # what passes find products of, after `dequantize`


def _wide(*operands: Scalar | None) -> DType:
    """The float type that PyTorch computes in: float64 where a tensor has it."""
    return float64 if any(isinstance(item, Value) and item.dtype == float64 for item in operands) else float32


def _within(call: TorchCall, x: Value, low: Scalar, high: Scalar, dtype: Any) -> Value:
    if isinstance(low, (int, float)) and isinstance(high, (int, float)):
        return call.cast(call.op("clip", x, low=float(low), high=float(high)), dtype_of(dtype))
    limited = call.op("maximum", x, call.cast(_number(call, low, x.dtype), x.dtype))
    return call.cast(call.op("minimum", limited, call.cast(_number(call, high, x.dtype), x.dtype)), dtype_of(dtype))


def _number(call: TorchCall, given: Scalar, dtype: DType) -> Value:
    """A number, or a tensor of one element without its dimensions."""
    return call.reshape(given, ()) if isinstance(given, Value) else call.builder.number(float(given), dtype)  # type: ignore[arg-type]


@rule("quantize_per_tensor.default", "quantize_per_tensor.tensor", "quantize_per_tensor.tensor2")
def quantize(call: TorchCall, x: Value, scale: Scalar, zero: Scalar, low: Scalar, high: Scalar, dtype: Any) -> Value:
    """round(x / scale) + zero point within the limits; PyTorch takes the reciprocal in float64, and rounds it."""
    inverse = call.op("reciprocal", call.cast(_number(call, scale, float64), float64))
    whole = call.op("round", call.op("multiply", call.cast(x, float32), call.cast(inverse, float32)))
    return _within(call, call.op("add", whole, call.cast(_number(call, zero, float32), float32)), low, high, dtype)


@rule("dequantize_per_tensor.default", "dequantize_per_tensor.tensor", "dequantize_per_tensor.tensor2")
def dequantize(
    call: TorchCall, x: Value, scale: Scalar, zero: Scalar, low: Any, high: Any, dtype: Any, *, out_dtype: Any = None
) -> Value:
    """(x - zero point) scale, in the result's type."""
    if x.dtype in _BYTES and call.dtype == float32:
        scale, zero = call.cast(_number(call, scale, float64), float32), call.cast(_number(call, zero, int32), int32)
        return call.op("dequantize", x, scale, zero)
    centred = call.op("subtract", call.cast(x, call.dtype), call.cast(_number(call, zero, float32), call.dtype))
    wide = call.cast(centred, float32 if call.dtype.bits == 16 else call.dtype)
    return call.cast(call.op("multiply", wide, call.cast(_number(call, scale, float64), wide.dtype)), call.dtype)


def _channels(call: TorchCall, given: Value, rank: int, axis: int) -> Value:
    """One number for each position of an axis, in a shape that broadcasts with the tensor."""
    return call.reshape(given, [-1 if place == axis % rank else 1 for place in range(rank)])


def _quantized(call: TorchCall, x: Value, scale: Value, zero: Value, late: bool) -> Value:
    """x times the reciprocal of the scale, and the zero point; rounded before that is added, or `late`, after it."""
    dtype = _wide(x, scale)
    inverse = call.cast(call.op("reciprocal", scale), dtype)
    scaled = call.op("multiply", call.cast(x, dtype), inverse)
    found = call.op("add", scaled if late else call.op("round", scaled), call.cast(zero, dtype))
    return call.op("round", found) if late else found


def _dequantized(call: TorchCall, x: Value, scale: Value, zero: Value | None) -> Value:
    """(x - zero point) scale: a difference of integers is exact."""
    if x.dtype in _BYTES and _wide(x, scale) == float32 and (zero is None or zero.dtype.is_integer):
        parts = [call.cast(scale, float32)] + ([] if zero is None else [call.cast(zero, int32)])
        return call.cast(call.op("dequantize", x, *parts), call.dtype)
    if zero is not None:
        kind = int64 if x.dtype.is_integer and zero.dtype.is_integer else _wide(x, zero)
        x = call.op("subtract", call.cast(x, kind), call.cast(zero, kind))
    dtype = _wide(x, scale)
    return call.cast(call.op("multiply", call.cast(x, dtype), call.cast(scale, dtype)), call.dtype)


@rule("quantize_per_channel.default")
def quantize_channels(
    call: TorchCall, x: Value, scales: Value, zeros: Value, axis: int, low: int, high: int, dtype: Any
) -> Value:
    scale, zero = (_channels(call, item, x.rank, axis) for item in (scales, zeros))
    return _within(call, _quantized(call, call.cast(x, float32), scale, zero, late=False), low, high, dtype)


@rule("dequantize_per_channel.default")
def dequantize_channels(
    call: TorchCall,
    x: Value,
    scales: Value,
    zeros: Value | None,
    axis: int,
    low: int,
    high: int,
    dtype: Any,
    *,
    out_dtype: Any = None,
) -> Value:
    zero = None if zeros is None else _channels(call, zeros, x.rank, axis)
    return _dequantized(call, x, _channels(call, scales, x.rank, axis), zero)


@rule("fake_quant_per_channel.default")
def fake_quantize_channels(
    call: TorchCall, x: Value, scales: Value, zeros: Value, axis: int, low: int, high: int
) -> Value:
    scale, zero = (call.cast(_channels(call, item, x.rank, axis), float32) for item in (scales, zeros))
    near = call.op("clip", _quantized(call, x, scale, zero, late=False), low=float(low), high=float(high))
    return call.op("multiply", call.op("subtract", near, zero), scale)


@rule("quantize_per_token.default")
def quantize_tokens(call: TorchCall, x: Value, scales: Value, zeros: Value, low: int, high: int, dtype: Any) -> Value:
    return _within(call, _quantized(call, x, scales, zeros, late=True), low, high, dtype)


@rule("dequantize_per_token.default")
def dequantize_tokens(
    call: TorchCall, x: Value, scales: Value, zeros: Value, low: int, high: int, dtype: Any, output_dtype: Any = None
) -> Value:
    return _dequantized(call, x, scales, zeros)


def _groups(call: TorchCall, x: Value, size: int) -> Value:
    """[rows, groups of `size` columns, size]; a group that is larger than a row is the row."""
    extent = x.shape[-1]
    if isinstance(extent, int):
        size = min(size, extent)
    return call.reshape(x, (x.shape[0], -1, size))


def _for_groups(call: TorchCall, given: Value, rows: Size) -> Value:
    return call.reshape(given, (rows, -1, 1))


@rule("quantize_per_channel_group.default")
def quantize_groups(
    call: TorchCall, x: Value, scales: Value, zeros: Value, low: int, high: int, dtype: Any, group_size: int = 128
) -> Value:
    scale, zero = (_for_groups(call, item, x.shape[0]) for item in (scales, zeros))
    found = _quantized(call, _groups(call, x, group_size), scale, zero, late=True)
    return call.reshape(_within(call, found, low, high, dtype), call.shape)


@rule("dequantize_per_channel_group.default")
def dequantize_groups(
    call: TorchCall,
    x: Value,
    scales: Value,
    zeros: Value | None,
    low: int,
    high: int,
    dtype: Any,
    group_size: int = 128,
    output_dtype: Any = None,
) -> Value:
    zero = None if zeros is None else _for_groups(call, zeros, x.shape[0])
    found = _dequantized(call, _groups(call, x, group_size), _for_groups(call, scales, x.shape[0]), zero)
    return call.reshape(found, call.shape)


def _range(call: TorchCall, x: Value, axes: tuple[int, ...]) -> tuple[Value, Value]:
    """The least and the greatest number over axes that are kept, 0 among them."""
    low, high = (call.op(f"reduce_{name}", x, axes=axes, keepdims=True) for name in ("min", "max"))
    return call.op("minimum", low, 0.0), call.op("maximum", high, 0.0)


@rule("choose_qparams.tensor")
def choose(call: TorchCall, x: Value, low: int, high: int, eps: float, dtype: Any) -> tuple[Value, Value]:
    """The scale in which a tensor's range takes all steps, and where 0 is."""
    least, greatest = _range(call, x, tuple(range(x.rank)))
    step = call.op("divide", call.op("subtract", greatest, least), float(high - low))
    step = call.op("maximum", call.cast(step, _at_least_float32(step)), eps)
    zero = call.op("round", call.op("divide", call.cast(least, step.dtype), step))
    zero = call.op("clip", call.op("negate", zero), low=0.0, high=float(high - low))
    return _one(call, step, float64), _one(call, call.op("add", zero, float(low)), int64)


@rule("choose_qparams_symmetric.tensor")
def choose_symmetric(call: TorchCall, x: Value, low: int, high: int, eps: float, dtype: Any) -> tuple[Value, Value]:
    least, greatest = _range(call, x, tuple(range(x.rank)))
    extent = call.op("maximum", call.op("negate", least), greatest)
    step = call.op("divide", extent, (high - low) / 2)
    step = call.op("maximum", call.cast(step, _at_least_float32(step)), eps)
    zero = call.builder.number(128 if dtype == torch.uint8 else 0, int64)
    return _one(call, step, float64), call.reshape(zero, (1,))


def _at_least_float32(x: Value) -> DType:
    return float64 if x.dtype == float64 else float32


def _one(call: TorchCall, x: Value, dtype: DType) -> Value:
    return call.cast(call.reshape(x, (1,)), dtype)


@rule("choose_qparams_per_token.default")
def choose_for_tokens(call: TorchCall, x: Value, dtype: Any) -> tuple[Value, Value]:
    """For each row the scale in which its largest element is 127."""
    extent = call.op("reduce_max", call.op("absolute", x), axes=(x.rank - 1,), keepdims=True)
    extent = call.cast(extent, float32) if x.dtype == float16 else extent
    step = call.op("divide", call.op("maximum", extent, 1e-5), 127.0)
    return call.cast(step, call.dtype), call.full(step.shape, 0, int64)


@rule("choose_qparams_per_token_asymmetric.default", "_choose_qparams_per_token_asymmetric_impl.default")
def choose_asymmetric_for_tokens(call: TorchCall, x: Value, dtype: Any) -> tuple[Value, Value]:
    """For each row the scale in which its range takes 256 steps; the end with the smaller error decides on the zero."""
    least, greatest = _range(call, x, (x.rank - 1,))
    step = call.op("divide", call.op("subtract", greatest, least), 255.0)
    step = call.op("maximum", step, float(torch.finfo(torch.float32).eps))
    first, last = call.op("divide", least, step), call.op("divide", greatest, step)
    errors = call.op("add", call.op("add", first, -128.0), call.op("add", last, 127.0))
    low, high = (call.op("subtract", number, end) for number, end in ((-128.0, first), (127.0, last)))
    zero = call.op("round", call.op("clip", call.op("where", call.op("greater", errors, 0.0), low, high),
                                    low=-128.0, high=127.0))  # fmt: skip
    return call.cast(step, float64), call.cast(zero, int64)


@rule("convert_element_type.no_fuse")
def convert(call: TorchCall, x: Value, dtype: Any) -> Value:
    return call.cast(x, dtype_of(dtype))
