"""Functions that the graph has no op for, written with the ops it has; shared by the importers."""

from __future__ import annotations

import math
from collections.abc import Callable

from tilewright.dtypes import int1
from tilewright.graph.core import Value
from tilewright.importers.emitter import Emitter, Number

Unary = Callable[[Emitter, Value], Value]


def log1p(emit: Emitter, x: Value) -> Value:
    """log(1 + x), accurate for small x: x log(u) / (u - 1) with u = 1 + x rounded."""
    u = emit.op("add", x, 1.0)
    exact = emit.op("subtract", u, 1.0)
    unchanged = emit.op("equal", exact, 0.0)
    infinite = emit.op("equal", u, math.inf)
    ratio = emit.op("divide", x, emit.op("where", unchanged, 1.0, exact))
    scaled = emit.op("multiply", emit.op("log", u), ratio)
    return emit.op("where", unchanged, x, emit.op("where", infinite, u, scaled))


def expm1(emit: Emitter, x: Value) -> Value:
    """exp(x) - 1, accurate for small x: 2 tanh(x/2) / (1 - tanh(x/2)) near zero."""
    half = emit.op("tanh", emit.op("multiply", x, 0.5))
    near = emit.op("divide", emit.op("multiply", half, 2.0), emit.op("subtract", 1.0, half))
    far = emit.op("subtract", emit.op("exp", x), 1.0)
    return emit.op("where", emit.op("less", emit.op("absolute", x), 0.5), near, far)


def tangent(emit: Emitter, x: Value) -> Value:
    return emit.op("divide", emit.op("sin", x), emit.op("cos", x))


def hyperbolic_sine(emit: Emitter, x: Value) -> Value:
    """(g + g / (g + 1)) / 2 with g = e^x - 1, odd by construction: no overflow of the wrong sign."""
    grown = expm1(emit, emit.op("absolute", x))
    other = emit.op("divide", grown, emit.op("add", grown, 1.0))
    capped = emit.op("where", emit.op("equal", grown, math.inf), 1.0, other)
    return emit.op("multiply", emit.op("sign", x), emit.op("multiply", emit.op("add", grown, capped), 0.5))


def hyperbolic_cosine(emit: Emitter, x: Value) -> Value:
    grown = emit.op("exp", x)
    return emit.op("multiply", emit.op("add", grown, emit.op("reciprocal", grown)), 0.5)


def inverse_hyperbolic_sine(emit: Emitter, x: Value) -> Value:
    """sign(x) log1p(|x| + x^2 / (1 + sqrt(x^2 + 1)))."""
    squared = emit.op("multiply", x, x)
    root = emit.op("sqrt", emit.op("add", squared, 1.0))
    inner = emit.op("add", emit.op("absolute", x), emit.op("divide", squared, emit.op("add", root, 1.0)))
    return emit.op("multiply", emit.op("sign", x), log1p(emit, inner))


def inverse_hyperbolic_cosine(emit: Emitter, x: Value) -> Value:
    root = emit.op("sqrt", emit.op("subtract", emit.op("multiply", x, x), 1.0))
    return emit.op("log", emit.op("add", x, root))


def inverse_hyperbolic_tangent(emit: Emitter, x: Value) -> Value:
    ratio = emit.op("divide", emit.op("multiply", x, 2.0), emit.op("subtract", 1.0, x))
    return emit.op("multiply", log1p(emit, ratio), 0.5)


def truncate(emit: Emitter, x: Value) -> Value:
    """Round towards zero; integers stay."""
    if not x.dtype.is_float:
        return x
    return emit.op("where", emit.op("less", x, 0.0), emit.op("ceil", x), emit.op("floor", x))


def remainder_of_truncation(emit: Emitter, left: Value, right: Value) -> Value:
    """C's fmod, exact: the sign of the left operand."""
    if left.dtype.is_float:
        rest = emit.op("remainder", emit.op("absolute", left), emit.op("absolute", right))
        return emit.op("where", emit.op("less", left, 0.0), emit.op("negate", rest), rest)
    rest = emit.op("remainder", left, right)
    if not left.dtype.is_signed:
        return rest
    other = emit.op("not_equal", emit.op("less", rest, 0), emit.op("less", left, 0))
    turned = emit.op("logical_and", emit.op("not_equal", rest, 0), other)
    return emit.op("where", turned, emit.op("subtract", rest, right), rest)


def is_infinite(emit: Emitter, x: Value) -> Value:
    if not x.dtype.is_float:
        return emit.full(x.shape, False, int1)
    return emit.op("equal", emit.op("absolute", x), math.inf)


# Activations -----------------------------------------------------------------------------------------


def where_positive(emit: Emitter, x: Value, positive: Value, other: Value) -> Value:
    return emit.op("where", emit.op("greater", x, 0.0), positive, other)


def softplus(emit: Emitter, x: Value) -> Value:
    """log(1 + e^x) = max(x, 0) + log1p(e^-|x|)."""
    tail = emit.op("exp", emit.op("negate", emit.op("absolute", x)))
    return emit.op("add", emit.op("relu", x), log1p(emit, tail))


def mish(emit: Emitter, x: Value) -> Value:
    return emit.op("multiply", x, emit.op("tanh", softplus(emit, x)))


def hard_sigmoid(emit: Emitter, x: Value, slope: float = 1 / 6, offset: float = 0.5) -> Value:
    line = emit.op("add", emit.op("multiply", x, slope), offset)
    return emit.op("clip", line, low=0.0, high=1.0)


def hard_swish(emit: Emitter, x: Value) -> Value:
    return emit.op("multiply", x, hard_sigmoid(emit, x))


def leaky_relu(emit: Emitter, x: Value, slope: Number = 0.01) -> Value:
    return where_positive(emit, x, x, emit.op("multiply", x, slope))


def elu(emit: Emitter, x: Value, alpha: Number = 1, scale: Number = 1, input_scale: Number = 1) -> Value:
    """scale x above zero, scale alpha (e^(input_scale x) - 1) below."""
    scaled = x if input_scale == 1 else emit.op("multiply", x, input_scale)
    negative = emit.op("multiply", expm1(emit, emit.op("minimum", scaled, 0.0)), alpha * scale)
    return where_positive(emit, x, emit.op("multiply", x, scale) if scale != 1 else x, negative)


def selu(emit: Emitter, x: Value, alpha: float = 1.6732632423543772, scale: float = 1.0507009873554805) -> Value:
    return elu(emit, x, alpha, scale)


def softsign(emit: Emitter, x: Value) -> Value:
    return emit.op("divide", x, emit.op("add", emit.op("absolute", x), 1.0))


def logsumexp(emit: Emitter, x: Value, axes: tuple[int, ...]) -> Value:
    """max + log(sum(e^(x - max))) with kept axes; an infinite maximum is not subtracted."""
    largest = emit.op("reduce_max", x, axes=axes, keepdims=True)
    shift = emit.op("where", is_infinite(emit, largest), emit.builder.number(0.0, x.dtype), largest)
    total = emit.op("reduce_sum", emit.op("exp", emit.op("subtract", x, shift)), axes=axes, keepdims=True)
    return emit.op("add", emit.op("log", total), shift)
