"""Activation functions."""

from __future__ import annotations

from tilewright.graph.core import Value
from tilewright.importers.emitter import Number
from tilewright.importers.rules import RuleTable
from tilewright.importers.torch_fx import Call
from tilewright.symbolic import floor_divide

TABLE = RuleTable("Activations", "aten.")
rule = TABLE.rule


@rule("relu.default")
def relu(call: Call, x: Value) -> Value:
    return call.op("relu", x)


@rule("relu6.default")
def relu6(call: Call, x: Value) -> Value:
    return call.op("clip", x, low=0, high=6)


@rule("gelu.default")
def gelu(call: Call, x: Value, approximate: str = "none") -> Value:
    return call.op("gelu", x, approximate=approximate)


@rule("silu.default")
def silu(call: Call, x: Value) -> Value:
    return call.op("silu", x)


@rule("mish.default")
def mish(call: Call, x: Value) -> Value:
    return call.op("multiply", x, call.op("tanh", call.softplus(x)))


@rule("softplus.default")
def softplus(call: Call, x: Value, beta: Number = 1, threshold: Number = 20) -> Value:
    """log(1 + e^(beta x)) / beta; linear above the threshold, where the two agree to rounding."""
    scaled = x if beta == 1 else call.op("multiply", x, beta)
    smooth = call.softplus(scaled)
    smooth = smooth if beta == 1 else call.op("multiply", smooth, 1 / beta)
    return call.op("where", call.op("greater", scaled, threshold), x, smooth)


@rule("log_sigmoid.default")
def log_sigmoid(call: Call, x: Value) -> Value:
    return call.op("negate", call.softplus(call.op("negate", x)))


@rule("log_sigmoid_forward.default")
def log_sigmoid_forward(call: Call, x: Value) -> tuple[Value, None]:
    return log_sigmoid(call, x), None


@rule("hardsigmoid.default")
def hard_sigmoid(call: Call, x: Value) -> Value:
    return call.op("multiply", call.op("clip", call.op("add", x, 3), low=0, high=6), 1 / 6)


@rule("hardswish.default")
def hard_swish(call: Call, x: Value) -> Value:
    return call.op("multiply", x, hard_sigmoid(call, x))


def _where_positive(call: Call, x: Value, positive: Value, other: Value) -> Value:
    return call.op("where", call.op("greater", x, 0), positive, other)


@rule("leaky_relu.default")
def leaky_relu(call: Call, x: Value, slope: Number = 0.01) -> Value:
    return _where_positive(call, x, x, call.op("multiply", x, slope))


@rule("prelu.default", "_prelu_kernel.default")
def prelu(call: Call, x: Value, weight: Value) -> Value:
    if weight.rank == 1 and x.rank > 2:
        weight = call.reshape(weight, (weight.shape[0], *[1] * (x.rank - 2)))
    return _where_positive(call, x, x, call.op("multiply", x, weight))


@rule("elu.default")
def elu(call: Call, x: Value, alpha: Number = 1, scale: Number = 1, input_scale: Number = 1) -> Value:
    scaled = x if input_scale == 1 else call.op("multiply", x, input_scale)
    negative = call.op("multiply", call.expm1(call.op("minimum", scaled, 0)), alpha * scale)
    return _where_positive(call, x, call.op("multiply", x, scale) if scale != 1 else x, negative)


@rule("selu.default")
def selu(call: Call, x: Value) -> Value:
    return elu(call, x, 1.6732632423543772, 1.0507009873554805)


@rule("celu.default")
def celu(call: Call, x: Value, alpha: Number = 1.0) -> Value:
    return elu(call, x, alpha, 1, 1 / alpha)


@rule("threshold.default")
def threshold(call: Call, x: Value, limit: Number, value: Number) -> Value:
    return call.op("where", call.op("greater", x, limit), x, call.builder.number(value, x.dtype))


@rule("glu.default")
def glu(call: Call, x: Value, dim: int = -1) -> Value:
    axis = dim % x.rank
    half = floor_divide(x.shape[axis], 2)
    gate = call.op("sigmoid", call.slice(x, axis, half, x.shape[axis]))
    return call.op("multiply", call.slice(x, axis, 0, half), gate)
