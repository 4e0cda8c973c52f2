"""Fake quantization: floats rounded to what integers with a scale and a zero point stand for.

Each call is a rounding to integers and `dequantize`, by which passes find products of 8-bit integers.  Observers are
off: ranges are those that the model stores.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import torch

from tilewright.dtypes import DType, float32, float64, int1, int8, int32, uint8
from tilewright.graph.core import Value
from tilewright.importers.emitter import Number
from tilewright.importers.report import Unsupported
from tilewright.importers.rules import RuleTable
from tilewright.importers.torch_fake_quantized import RANGES
from tilewright.importers.torch_fx import TorchCall

TABLE = RuleTable("Fake quantization", "aten.")
rule = TABLE.rule

_OBSERVERS = "observers of the model are on: its ranges are those it stores, which PyTorch would move with each call"
_DISABLE = "call model.apply(torch.ao.quantization.disable_observer) before the import"
Pair = tuple[Value, "Value | None"]


def _integer_type(low: int, high: int) -> DType | None:
    """The integers of 8 bits that have a range."""
    for dtype in (uint8, int8):
        limits = ml_dtypes.iinfo(dtype.numpy)
        if limits.min <= low <= high <= limits.max:
            return dtype
    return None


def _known(call: TorchCall, value: Value) -> np.ndarray | None:
    """The elements of a constant, or of one number everywhere: PyTorch makes flags of those."""
    graph = call.builder.graph
    found = graph.constants.get(value)
    if found is not None:
        return found
    node = next((node for node in reversed(graph.nodes) if value in node.outputs), None)
    return np.array(node.attributes["value"]) if node is not None and node.op == "full" else None


def _near(
    call: TorchCall, x: Value, scale: Value, zero: Value | None, low: int, high: int, late: bool = False
) -> Pair:  # fmt: skip
    """x as integers from `low` to `high` stand for it, and the mask of what is inside of the range, if that is read;
    `scale` and `zero` broadcast with x.  PyTorch multiplies by the reciprocal of the scale, and rounds before it adds
    the zero point, or `late`, after it."""
    wide = float64 if x.dtype == float64 else float32
    scale = call.cast(scale, float32)
    inverse = call.cast(call.op("reciprocal", scale), wide)
    steps = call.op("multiply", call.cast(x, wide), inverse)
    moved = zero is not None and zero.dtype.is_float  # zero points of floats are added before rounding
    late = late or moved or zero is None
    steps = steps if late else call.op("round", steps)
    steps = steps if zero is None else call.op("add", steps, call.cast(zero, wide))
    steps = call.op("round", steps) if late else steps
    mask = None
    if len(call.results) > 1 and call.is_read(1):
        ends = (call.op("greater_equal", steps, float(low)), call.op("less_equal", steps, float(high)))
        mask = call.op("logical_and", *ends)
    near = call.op("clip", steps, low=float(low), high=float(high))
    dtype = None if moved or wide == float64 else _integer_type(low, high)
    if dtype is not None:
        parts = [scale] if zero is None else [scale, call.cast(zero, int32)]
        return call.cast(call.op("dequantize", call.cast(near, dtype), *parts), x.dtype), mask
    near = near if zero is None else call.op("subtract", near, call.cast(zero, wide))
    return call.cast(call.op("multiply", near, call.cast(scale, wide)), x.dtype), mask


def _channels(call: TorchCall, given: Value, x: Value, axis: int) -> Value:
    """One number for each position of an axis, in a shape that broadcasts with x."""
    return call.reshape(given, [-1 if place == axis % x.rank else 1 for place in range(x.rank)])


def _offset(call: TorchCall, zero: Value) -> Value | None:
    """A zero point; None for zeros."""
    known = _known(call, zero)
    return None if known is not None and not known.any() else zero


def _by_tensor(
    call: TorchCall, x: Value, scale: Value, zero: Value, low: int, high: int, late: bool = False
) -> Pair:  # fmt: skip
    offset = _offset(call, zero)
    offset = None if offset is None else call.reshape(offset, ())
    return _near(call, x, call.reshape(scale, ()), offset, low, high, late)


def _by_channel(call: TorchCall, x: Value, scale: Value, zero: Value, axis: int, low: int, high: int) -> Pair:
    offset = _offset(call, zero)
    offset = None if offset is None else _channels(call, offset, x, axis)
    return _near(call, x, _channels(call, scale, x, axis), offset, low, high)


def _where(call: TorchCall, enabled: Value, x: Value, pair: Pair) -> Pair:
    """A pair where a flag of one element is set, else x."""
    known, mask = _known(call, enabled), pair[1]
    if known is not None:
        if known.any():
            return pair
        return x, None if mask is None else call.full(x.shape, True, int1)
    flag = call.cast(call.reshape(enabled, ()), int1)
    off = call.op("logical_not", flag)
    return call.op("where", flag, pair[0], x), None if mask is None else call.op("logical_or", mask, off)


@rule("fake_quantize_per_tensor_affine_cachemask.default")
def by_numbers(call: TorchCall, x: Value, scale: Number, zero: int, low: int, high: int) -> Pair:
    offset = call.builder.number(zero, int32) if zero else None
    return _near(call, x, call.builder.number(float(scale), float32), offset, low, high)


@rule("_fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default")
def by_tensors(call: TorchCall, x: Value, scale: Value, zero: Value, enabled: Value, low: int, high: int) -> Pair:
    return _where(call, enabled, x, _by_tensor(call, x, scale, zero, low, high))


@rule("fake_quantize_per_channel_affine_cachemask.default")
def by_channels(call: TorchCall, x: Value, scale: Value, zero: Value, axis: int, low: int, high: int) -> Pair:
    return _by_channel(call, x, scale, zero, axis, low, high)


def quantized_floats(call: TorchCall, x: Value, scale: Value, zero: Value, low: int, high: int) -> Value:
    """`importers.torch_fake_quantized.quantized_floats`."""
    return _by_tensor(call, x, scale, zero, low, high, late=True)[0]


@rule("quantize_per_tensor.default", "quantize_per_tensor.tensor_qparams")
def quantized(call: TorchCall, x: Value, scale: Value | Number, zero: Value | int, dtype: torch.dtype) -> Value:
    """The quantized tensors of reference models stand here as the floats that `dequantize` makes of them."""
    parts = scale if isinstance(scale, Value) else call.builder.number(float(scale), float32)
    offset = zero if isinstance(zero, Value) else call.builder.number(zero, int32)
    return quantized_floats(call, x, parts, offset, *RANGES[dtype])


@rule("quantize_per_channel.default")
def quantized_by_channel(
    call: TorchCall, x: Value, scales: Value, zeros: Value, axis: int, dtype: torch.dtype
) -> Value:  # fmt: skip
    return _by_channel(call, x, scales, zeros, axis, *RANGES[dtype])[0]


def _whole_zero(call: TorchCall, zero: Value, low: int, high: int) -> Value:
    """A learned zero point: the nearest integer in the range."""
    return call.cast(call.op("clip", call.op("round", zero), low=float(low), high=float(high)), int32)


@rule("_fake_quantize_learnable_per_tensor_affine.default")
def learned(
    call: TorchCall, x: Value, scale: Value, zero: Value, low: int, high: int, grad_factor: float = 1.0
) -> Value:
    return _by_tensor(call, x, scale, _whole_zero(call, zero, low, high), low, high)[0]


@rule("_fake_quantize_learnable_per_channel_affine.default")
def learned_by_channels(
    call: TorchCall, x: Value, scale: Value, zero: Value, axis: int, low: int, high: int, grad_factor: float = 1.0
) -> Value:
    return _by_channel(call, x, scale, _whole_zero(call, zero, low, high), axis, low, high)[0]


@rule("_fused_moving_avg_obs_fq_helper_functional.default", "_fused_moving_avg_obs_fq_helper.default")
def observed(
    call: TorchCall, x: Value, observer_on: Value, fake_quant_on: Value, least: Value, greatest: Value, scale: Value,
    zero: Value, averaging: float, low: int, high: int, axis: int, by_channel: bool = False, symmetric: bool = False,
) -> tuple[Value | None, ...]:  # fmt: skip
    """Fake quantization by the stored scale and zero point, and what the observer has stored."""
    _check_observer(call, observer_on, least, averaging)
    pair = _by_channel(call, x, scale, zero, axis, low, high) if by_channel else None
    pair = pair or _by_tensor(call, x, scale, zero, low, high)
    return *_where(call, fake_quant_on, x, pair), least, greatest, scale, zero


def _check_observer(call: TorchCall, observer_on: Value, least: Value, averaging: float) -> None:
    """A remark on an observer that is on; raises `Unsupported` for one whose ranges are not those that it stores."""
    known = _known(call, observer_on)
    if known is None:
        raise Unsupported("an observer that the model turns on and off", _DISABLE)
    if not known.any():
        return
    if averaging == 1:
        raise Unsupported(
            "fake quantization whose range is that of each input",
            "convert the model (convert_pt2e), or quantize the float model with the scheme int8-dynamic",
        )
    stored = _known(call, least)
    if stored is not None and not (stored.size and np.isfinite(stored).all()):
        raise Unsupported("an observer that is on and has seen no data", f"run data through the model; then {_DISABLE}")
    remark = f"{_OBSERVERS}; to make this fixed in PyTorch too, {_DISABLE}"
    if remark not in call.builder.graph.remarks:
        call.builder.graph.remarks.append(remark)
