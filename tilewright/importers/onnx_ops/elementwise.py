"""Arithmetic, comparisons, logic, activations, casts."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce

import ml_dtypes

from tilewright.dtypes import NARROW, DType, carrier, float8e8, float32, float64, int1
from tilewright.graph.core import Value
from tilewright.graph.inference import broadcast_shapes
from tilewright.importers import formulas, narrow_types
from tilewright.importers.emitter import Emitter
from tilewright.importers.equal_sizes import must_be
from tilewright.importers.onnx_call import OnnxCall
from tilewright.importers.report import Invalid
from tilewright.importers.rules import RuleTable

TABLE = RuleTable("Elementwise")
rule = TABLE.rule

UNARY = {
    "Abs": "absolute",
    "Neg": "negate",
    "Exp": "exp",
    "Log": "log",
    "Sqrt": "sqrt",
    "Reciprocal": "reciprocal",
    "Sin": "sin",
    "Cos": "cos",
    "Tanh": "tanh",
    "Erf": "erf",
    "Sigmoid": "sigmoid",
    "Sign": "sign",
    "Relu": "relu",
    "Not": "logical_not",
    "IsNaN": "isnan",
    "Asin": "asin",
    "Acos": "acos",
    "Atan": "atan",
    "BitwiseNot": "bitwise_not",
}
ROUNDING = {"Floor": "floor", "Ceil": "ceil", "Round": "round"}
BINARY = {
    "Add": "add",
    "Sub": "subtract",
    "Mul": "multiply",
    "Div": "divide",
    "Equal": "equal",
    "Less": "less",
    "LessOrEqual": "less_equal",
    "Greater": "greater",
    "GreaterOrEqual": "greater_equal",
    "And": "logical_and",
    "Or": "logical_or",
    "Xor": "not_equal",
    "BitwiseAnd": "bitwise_and",
    "BitwiseOr": "bitwise_or",
    "BitwiseXor": "bitwise_xor",
}
VARIADIC = {"Max": "maximum", "Min": "minimum", "Sum": "add"}
FORMULAS: dict[str, formulas.Unary] = {
    "Tan": formulas.tangent,
    "Sinh": formulas.hyperbolic_sine,
    "Cosh": formulas.hyperbolic_cosine,
    "Asinh": formulas.inverse_hyperbolic_sine,
    "Acosh": formulas.inverse_hyperbolic_cosine,
    "Atanh": formulas.inverse_hyperbolic_tangent,
    "Softplus": formulas.softplus,
    "Softsign": formulas.softsign,
    "Mish": formulas.mish,
    "HardSwish": formulas.hard_swish,
}


def _unary(op: str) -> Callable[[OnnxCall], Value]:
    return lambda call: call.op(op, call[0])


def _rounding(op: str) -> Callable[[OnnxCall], Value]:
    return lambda call: call.op(op, call[0]) if call[0].dtype.is_float else call[0]


def _operands(call: OnnxCall) -> tuple[Value, Value]:
    """Both inputs; before opset 7 the second one meets the first at an axis that the node gives."""
    left, right = call[0], call[1]
    if call.opset >= 7:
        return left, right
    axis = call.attribute("axis")
    if not call.attribute("broadcast", 0):
        if left.shape != right.shape:
            raise Invalid(f"{left!r} and {right!r} differ, and the attribute 'broadcast' is not set")
    elif axis is not None and right.rank:
        trailing = left.rank - call.place(axis, left.rank) - right.rank
        if trailing < 0:
            raise Invalid(f"{right!r} does not fit into {left!r} at axis {axis}")
        right = call.reshape(right, (*right.shape, *[1] * trailing))
    return left, right


def _binary(op: str) -> Callable[[OnnxCall], Value]:
    return lambda call: call.op(op, *_operands(call))


def _variadic(op: str) -> Callable[[OnnxCall], Value]:
    return lambda call: reduce(
        lambda left, right: call.op(op, left, right), [call[index] for index in range(len(call.inputs))]
    )


def _formula(function: formulas.Unary) -> Callable[[OnnxCall], Value]:
    return lambda call: function(call, call[0])


for _name, _op in UNARY.items():
    TABLE.add(_name, _unary(_op))
for _name, _op in ROUNDING.items():
    TABLE.add(_name, _rounding(_op))
for _name, _op in BINARY.items():
    TABLE.add(_name, _binary(_op))
for _name, _op in VARIADIC.items():
    TABLE.add(_name, _variadic(_op))
for _name, _function in FORMULAS.items():
    TABLE.add(_name, _formula(_function))


@rule("Mean")
def mean(call: OnnxCall) -> Value:
    total = _variadic("add")(call)
    return call.op("multiply", total, 1 / len(call.inputs))


@rule("Mod")
def modulo(call: OnnxCall) -> Value:
    if call.attribute("fmod", 0):
        return formulas.remainder_of_truncation(call, call[0], call[1])
    return call.op("remainder", call[0], call[1])


@rule("BitShift")
def bit_shift(call: OnnxCall) -> Value:
    return call.op("shift_left" if call.attribute("direction") == "LEFT" else "shift_right", call[0], call[1])


@rule("Pow")
def power(call: OnnxCall) -> Value:
    """Small constant whole powers and roots become products and roots."""
    (base, power_of), exponent = _operands(call), call.tensor(1)
    if exponent.known is not None and not exponent.symbolic and exponent.known.size == 1 and exponent.known.ndim == 0:
        number = float(exponent.known)
        if number in (1, 2, 3):
            return reduce(lambda left, _: call.op("multiply", left, base), range(int(number) - 1), base)
        simple = {0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal"}.get(number)
        if simple is not None and base.dtype.is_float:
            return call.op(simple, base)
    if base.dtype == power_of.dtype or (base.dtype.is_integer and power_of.dtype.is_integer):
        return call.op("power", base, call.cast(power_of, base.dtype))
    # The type of the result is too narrow for the other's numbers: 4 ** 0.5, or 257 in bfloat16.
    wide = float64 if base.dtype.is_integer or base.dtype.bits == 64 else float32
    return call.cast(call.op("power", call.cast(base, wide), call.cast(power_of, wide)), base.dtype)


@rule("IsInf")
def is_infinite(call: OnnxCall) -> Value:
    x = call[0]
    negative, positive = call.attribute("detect_negative", 1), call.attribute("detect_positive", 1)
    if negative and positive:
        return formulas.is_infinite(call, x)
    if not (negative or positive):
        return call.full(x.shape, False, int1)
    return call.op("equal", x, math.inf if positive else -math.inf)


@rule("Where")
def where(call: OnnxCall) -> Value:
    return call.op("where", call[0], call[1], call[2])


@rule("Clip")
def clip(call: OnnxCall) -> Value:
    """Limits are attributes before opset 11."""
    x = call[0]
    if call.opset < 11:
        return call.op("clip", x, low=call.attribute("min"), high=call.attribute("max"))
    for index in (1, 2):
        if call.has(index) and call.tensor(index).shape not in ((), (1,)):
            raise Invalid(f"the limit {call.tensor(index).name!r} is no single number")
    if all(not call.has(index) or call.tensor(index).known is not None for index in (1, 2)):
        low, high = (call.number(index) if call.has(index) else None for index in (1, 2))
        return call.op("clip", x, low=low, high=high)
    low_value, high_value = (call.reshape(call[index], ()) if call.has(index) else None for index in (1, 2))
    x = x if low_value is None else call.op("maximum", x, low_value)
    return x if high_value is None else call.op("minimum", x, high_value)


@rule("Cast")
def cast(call: OnnxCall) -> Value:
    dtype = call.dtype("to")
    assert dtype is not None  # the attribute is required
    return _saturating_cast(call, dtype)


@rule("CastLike")
def cast_like(call: OnnxCall) -> Value:
    return _saturating_cast(call, call.tensor(1).dtype)


def _saturating_cast(call: OnnxCall, dtype: DType) -> Value:
    """To 8-bit floats, numbers out of range become the largest unless `saturate` is off.

    To integers below a byte, floats are rounded and wrap around, as ONNX Runtime has it.
    """
    x, saturate = call[0], call.attribute("saturate", 1)
    rounding = call.choice("round_mode", "up", "down", "nearest")
    if dtype == float8e8 and x.dtype != dtype:
        return narrow_types.encode(call, call.cast(x, float32), dtype, rounding)
    if dtype in NARROW:
        return call.cast(_rounded(call, x) if dtype.is_integer and x.dtype.is_float else x, dtype)
    if dtype.is_float and dtype.bits == 8 and saturate and x.dtype.is_float and x.dtype != dtype:
        largest = float(ml_dtypes.finfo(dtype.numpy).max)
        x = call.op("clip", x, low=-largest, high=largest)
    return call.cast(x, dtype)


def _rounded(call: OnnxCall, x: Value) -> Value:
    """The nearest whole numbers, halves away from zero."""
    x = call.wide(x)
    size = call.op("absolute", x)
    whole = call.op("floor", size)
    above = call.op("greater_equal", call.op("subtract", size, whole), 0.5)
    near = call.op("add", whole, call.cast(above, x.dtype))
    return call.op("where", call.op("less", x, 0.0), call.op("negate", near), near)


@rule("BitCast")
def bitcast(call: OnnxCall) -> Value:
    x, dtype = call[0], call.dtype("to")
    assert dtype is not None  # the attribute is required
    if (8 if x.dtype.is_bool else x.dtype.bits) != (8 if dtype.is_bool else dtype.bits):
        raise Invalid(f"elements of {x.dtype} and {dtype} have different sizes")
    bits = narrow_types.bitcast(call, x, carrier(x.dtype)) if x.dtype in NARROW else x
    return narrow_types.bitcast(call, bits, dtype)


@rule("Identity")
def identity(call: OnnxCall) -> Value:
    return call[0]


# Activations -----------------------------------------------------------------------------------------


@rule("Gelu")
def gelu(call: OnnxCall) -> Value:
    return call.op("gelu", call[0], approximate=call.choice("approximate", "none", "tanh"))


@rule("Swish")
def swish(call: OnnxCall) -> Value:
    x, alpha = call[0], call.attribute("alpha", 1.0)
    if alpha == 1.0:
        return call.op("silu", x)
    return call.op("multiply", x, call.op("sigmoid", call.op("multiply", x, alpha)))


@rule("LeakyRelu")
def leaky_relu(call: OnnxCall) -> Value:
    return formulas.leaky_relu(call, call[0], call.attribute("alpha", 0.01))


@rule("PRelu")
def prelu(call: OnnxCall) -> Value:
    """The slope broadcasts to the input; before opset 7 a list of slopes is one for each channel."""
    x, slope = call[0], call[1]
    if call.opset < 7 and slope.rank == 1 and slope.shape != (1,):
        slope = call.reshape(slope, (*slope.shape, *[1] * (x.rank - 2)))
    if slope.rank <= x.rank:  # sizes of x that are not known are those of the slope
        wanted = [
            own if other == 1 else other for own, other in zip(x.shape[x.rank - slope.rank :], slope.shape, strict=True)
        ]
        x = must_be(call, x, (*x.shape[: x.rank - slope.rank], *wanted))
    if broadcast_shapes(x.shape, slope.shape) != x.shape:
        raise Invalid(f"the slope {slope!r} does not broadcast to {x!r}")
    return formulas.where_positive(call, x, x, call.op("multiply", x, slope))


@rule("Elu")
def elu(call: OnnxCall) -> Value:
    return formulas.elu(call, call[0], call.attribute("alpha", 1.0))


@rule("Celu")
def celu(call: OnnxCall) -> Value:
    alpha = call.attribute("alpha", 1.0)
    if alpha == 0:
        raise Invalid("the attribute 'alpha' is 0, by which the operation divides")
    return formulas.elu(call, call[0], alpha, 1, 1 / alpha)


@rule("Selu")
def selu(call: OnnxCall) -> Value:
    alpha, gamma = (
        call.attribute("alpha", 1.67326319217681884765625),
        call.attribute("gamma", 1.05070102214813232421875),
    )
    return formulas.selu(call, call[0], alpha, gamma)


@rule("HardSigmoid")
def hard_sigmoid(call: OnnxCall) -> Value:
    return clipped_line(call, call[0], call.attribute("alpha", 0.2), call.attribute("beta", 0.5))


@formulas.in_float32
def clipped_line(call: Emitter, x: Value, slope: float = 0.2, offset: float = 0.5) -> Value:
    """slope x + offset between 0 and 1: ONNX's HardSigmoid."""
    return call.op("clip", call.op("add", call.op("multiply", x, slope), offset), low=0.0, high=1.0)


@rule("ThresholdedRelu")
def thresholded_relu(call: OnnxCall) -> Value:
    x = call[0]
    return call.op("where", call.op("greater", x, call.attribute("alpha", 1.0)), x, call.builder.number(0.0, x.dtype))


@rule("Shrink")
def shrink(call: OnnxCall) -> Value:
    """Integers are compared and moved as real numbers, and truncated at the end."""
    source, limit, bias = call[0], call.attribute("lambd", 0.5), call.attribute("bias", 0.0)
    x = source if source.dtype.is_float else call.cast(source, float64)
    low = call.op("where", call.op("less", x, -limit), call.op("add", x, bias), call.builder.number(0.0, x.dtype))
    result = call.op("where", call.op("greater", x, limit), call.op("subtract", x, bias), low)
    return call.cast(result, source.dtype)
