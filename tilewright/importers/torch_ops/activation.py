"""Activation functions."""

from __future__ import annotations

from typing import Any

from tilewright.graph.core import Value
from tilewright.importers import formulas
from tilewright.importers.emitter import Number
from tilewright.importers.report import Unsupported
from tilewright.importers.rules import RuleTable
from tilewright.importers.torch_fx import TorchCall
from tilewright.symbolic import floor_divide

TABLE = RuleTable("Activations", "aten.")
rule = TABLE.rule


@rule("relu.default")
def relu(call: TorchCall, x: Value) -> Value:
    return call.op("relu", x)


@rule("relu6.default")
def relu6(call: TorchCall, x: Value) -> Value:
    return call.op("clip", x, low=0, high=6)


@rule("gelu.default")
def gelu(call: TorchCall, x: Value, approximate: str = "none") -> Value:
    return call.op("gelu", x, approximate=approximate)


@rule("silu.default")
def silu(call: TorchCall, x: Value) -> Value:
    return call.op("silu", x)


@rule("softplus.default")
def softplus(call: TorchCall, x: Value, beta: Number = 1, threshold: Number = 20) -> Value:
    """log(1 + e^(beta x)) / beta; linear above the threshold, where the two agree to rounding."""
    scaled = x if beta == 1 else call.op("multiply", x, beta)
    smooth = formulas.softplus(call, scaled)
    smooth = smooth if beta == 1 else call.op("multiply", smooth, 1 / beta)
    return call.op("where", call.op("greater", scaled, threshold), x, smooth)


@rule("log_sigmoid.default")
def log_sigmoid(call: TorchCall, x: Value) -> Value:
    return call.op("negate", formulas.softplus(call, call.op("negate", x)))


@rule("log_sigmoid_forward.default")
def log_sigmoid_forward(call: TorchCall, x: Value) -> tuple[Value, None]:
    return log_sigmoid(call, x), None


TABLE.add("mish.default", formulas.mish)
TABLE.add("hardsigmoid.default", formulas.hard_sigmoid)
TABLE.add("hardswish.default", formulas.hard_swish)
TABLE.add("leaky_relu.default", formulas.leaky_relu)
TABLE.add("elu.default", formulas.elu)
TABLE.add("selu.default", formulas.selu)


@rule("rrelu_with_noise_functional.default")
def randomized_leaky_relu(
    call: TorchCall,
    x: Value,
    noise: Value,
    lower: Number = 1 / 8,
    upper: Number = 1 / 3,
    training: bool = False,
    **_: Any,
) -> tuple[Value, Value]:
    """Outside of training, with the mean of the slopes."""
    if training:
        raise Unsupported("randomized leaky ReLU in training mode", "call model.eval() first")
    return formulas.leaky_relu(call, x, (lower + upper) / 2), noise


@rule("prelu.default", "_prelu_kernel.default")
def prelu(call: TorchCall, x: Value, weight: Value) -> Value:
    if weight.rank == 1 and x.rank > 2:
        weight = call.reshape(weight, (weight.shape[0], *[1] * (x.rank - 2)))
    return formulas.where_positive(call, x, x, call.op("multiply", x, weight))


@rule("celu.default")
def celu(call: TorchCall, x: Value, alpha: Number = 1.0) -> Value:
    return formulas.elu(call, x, alpha, 1, 1 / alpha)


@rule("threshold.default")
def threshold(call: TorchCall, x: Value, limit: Number, value: Number) -> Value:
    return call.op("where", call.op("greater", x, limit), x, call.builder.number(value, x.dtype))


@rule("glu.default")
def glu(call: TorchCall, x: Value, dim: int = -1) -> Value:
    axis = dim % x.rank
    half = floor_divide(x.shape[axis], 2)
    gate = call.op("sigmoid", call.slice(x, axis, half, x.shape[axis]))
    return call.op("multiply", call.slice(x, axis, 0, half), gate)
