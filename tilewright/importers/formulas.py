"""Functions that the graph has no op for, written with the ops it has; shared by the importers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Concatenate, ParamSpec

from tilewright.dtypes import float32, float64, int1
from tilewright.graph.core import Value
from tilewright.importers.emitter import Emitter, Number

Unary = Callable[[Emitter, Value], Value]
P = ParamSpec("P")


def polynomial(emit: Emitter, x: Value, coefficients: Sequence[float]) -> Value:
    """The sum of c_k x^k."""
    total = emit.builder.number(coefficients[-1], x.dtype)
    for coefficient in reversed(coefficients[:-1]):
        total = emit.op("add", emit.op("multiply", total, x), coefficient)
    return total


def log1p(emit: Emitter, x: Value) -> Value:
    """log(1 + x), accurate for small x: x log(u) / (u - 1) with u = 1 + x rounded."""
    u = emit.op("add", x, 1.0)
    exact = emit.op("subtract", u, 1.0)
    unchanged = emit.op("equal", exact, 0.0)
    infinite = emit.op("equal", u, math.inf)
    ratio = emit.op("divide", x, emit.op("where", unchanged, 1.0, exact))
    scaled = emit.op("multiply", emit.op("log", u), ratio)
    return emit.op("where", unchanged, x, emit.op("where", infinite, u, scaled))


_EXPM1_TERMS = 8  # of its series, below 1/2: what is left out is a rounding of float32


def expm1(emit: Emitter, x: Value) -> Value:
    """exp(x) - 1, accurate for small x: near zero its series, or 2 tanh(x/2) / (1 - tanh(x/2)) in float64."""
    if x.dtype == float64:
        half = emit.op("tanh", emit.op("multiply", x, 0.5))
        near = emit.op("divide", emit.op("multiply", half, 2.0), emit.op("subtract", 1.0, half))
    else:
        near = emit.value(1 / math.factorial(_EXPM1_TERMS), x.dtype)
        for term in range(_EXPM1_TERMS - 1, 0, -1):
            near = emit.op("add", emit.op("multiply", near, x), 1 / math.factorial(term))
        near = emit.op("multiply", near, x)
    far = emit.op("subtract", emit.op("exp", x), 1.0)
    return emit.op("where", emit.op("less", emit.op("absolute", x), 0.5), near, far)


def tangent(emit: Emitter, x: Value) -> Value:
    return emit.op("divide", emit.op("sin", x), emit.op("cos", x))


def hyperbolic_sine(emit: Emitter, x: Value) -> Value:
    """(g + g / (g + 1)) / 2 with g = e^|x| - 1; e^(|x| / 2) twice where e^|x| would overflow first."""
    size = emit.op("absolute", x)
    grown = expm1(emit, size)
    near = emit.op("multiply", emit.op("add", grown, emit.op("divide", grown, emit.op("add", grown, 1.0))), 0.5)
    root = emit.op("exp", emit.op("multiply", size, 0.5))
    far = emit.op("multiply", emit.op("multiply", root, 0.5), root)
    enough = 20.0 if x.dtype.name == "float64" else 10.0  # e^-|x| vanishes next to e^|x|, which float16 still holds
    return with_sign_of(emit, emit.op("where", emit.op("greater", size, enough), far, near), x)


def hyperbolic_cosine(emit: Emitter, x: Value) -> Value:
    """(e^|x| + e^-|x|) / 2, of halves of the exponent because e^|x| overflows first."""
    root = emit.op("exp", emit.op("multiply", emit.op("absolute", x), 0.5))
    inverse = emit.op("reciprocal", root)
    halves = [emit.op("multiply", emit.op("multiply", item, 0.5), item) for item in (root, inverse)]
    return emit.op("add", *halves)


# From where on adding one to a square changes nothing; narrow types may be computed without roundings in between.
_LARGE = {"float16": 64.0, "float64": 2.0**28}
_LARGE_ELSEWHERE = 2.0**13


def _inverse_of_large(emit: Emitter, size: Value, near: Value) -> Value:
    """log(2 size) where its square may overflow, otherwise `near`."""
    far = emit.op("add", emit.op("log", size), math.log(2))
    return emit.op("where", emit.op("greater", size, _LARGE.get(size.dtype.name, _LARGE_ELSEWHERE)), far, near)


def inverse_hyperbolic_sine(emit: Emitter, x: Value) -> Value:
    """log1p(|x| + x^2 / (1 + sqrt(x^2 + 1))) with the sign of x."""
    squared, size = emit.op("multiply", x, x), emit.op("absolute", x)
    root = emit.op("sqrt", emit.op("add", squared, 1.0))
    inner = emit.op("add", size, emit.op("divide", squared, emit.op("add", root, 1.0)))
    return with_sign_of(emit, _inverse_of_large(emit, size, log1p(emit, inner)), x)


def inverse_hyperbolic_cosine(emit: Emitter, x: Value) -> Value:
    """log1p(d + sqrt(d (x + 1))) with d = x - 1; NaN below 1, also where the product of both is positive."""
    distance = emit.op("subtract", x, 1.0)
    root = emit.op("sqrt", emit.op("multiply", distance, emit.op("add", x, 1.0)))
    found = _inverse_of_large(emit, x, log1p(emit, emit.op("add", distance, root)))
    return emit.op("where", emit.op("less", x, 1.0), math.nan, found)


def with_sign_of(emit: Emitter, size: Value, x: Value) -> Value:
    """A number that is not negative, and 0 or NaN where x is 0, with the sign of x, -0 included."""
    signed = emit.op("where", emit.op("less", x, 0.0), emit.op("negate", size), size)
    return emit.op("where", emit.op("equal", x, 0.0), emit.op("subtract", x, size), signed)


def inverse_hyperbolic_tangent(emit: Emitter, x: Value) -> Value:
    ratio = emit.op("divide", emit.op("multiply", x, 2.0), emit.op("subtract", 1.0, x))
    return emit.op("multiply", log1p(emit, ratio), 0.5)


# Bernoulli numbers B_2k / (2 k), of digamma's series in 1 / x^2.
_OF_DIGAMMA = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)
_SERIES_FROM = 8.0  # where the series begins
# With q = x (x + 7), (x + n) (x + 7 - n) is q + n (7 - n): the product of x, x + 1, … x + 7, and its derivative by q.
_FACTORS, _DERIVATIVE = (720.0, 252.0, 28.0, 1.0), (720.0, 504.0, 84.0, 4.0)
# (1 - x^2) pi x / tan(pi x) up to x = 1 / 2, in powers of x^2: 1 - (2 zeta(2) + 1) x^2, then differences
# 2 zeta(2 k - 2) - 2 zeta(2 k), as the factor in front takes the nearest poles away.
_COTANGENT = (
    1.0, -4.289868133696453, 1.1252216662741765, 0.1299603434533781, 0.0265314115730096, 0.006165562140252508,
    0.001496977149020074, 0.00036967683649868693, 9.193175130010592e-05, 2.2929932287304065e-05,
    5.726662462254087e-06, 1.4310230622901263e-06, 3.57684627352947e-07, 8.941326844578887e-08, 2.235244160715317e-08,
)  # fmt: skip


def digamma(emit: Emitter, x: Value) -> Value:
    """log(y) - 1 / (2 y) - sum of B_2k / (2 k y^2k) at y = x, or below 8 at y = x + 8, less 1 / (x + n) for each n
    below 8; for negative x digamma(1 - x) - pi / tan(pi x), which is NaN at whole numbers, and infinite at 0 with the
    other sign."""
    negative = emit.op("less_equal", x, 0.0)
    start = emit.op("where", negative, emit.op("subtract", 1.0, x), x)
    near = emit.op("less", start, _SERIES_FROM)
    far = emit.op("where", near, emit.op("add", start, _SERIES_FROM), start)
    inverse = emit.op("reciprocal", far)
    square = emit.op("multiply", inverse, inverse)
    series = emit.op("multiply", polynomial(emit, square, _OF_DIGAMMA), square)
    found = emit.op("subtract", emit.op("log", far), emit.op("multiply", inverse, 0.5))
    found = emit.op("subtract", emit.op("subtract", found, series), _sum_of_inverses(emit, start, near))
    return emit.op("where", negative, emit.op("subtract", found, _pi_by_tangent(emit, x)), found)


def _sum_of_inverses(emit: Emitter, x: Value, near: Value) -> Value:
    """1 / x + 1 / (x + 1) + … + 1 / (x + 7) by one division where x is `near`, 0 elsewhere."""
    x = emit.op("where", near, x, 1.0)  # the product of large ones is infinite
    q = emit.op("multiply", x, emit.op("add", x, 7.0))
    inner = emit.op("add", emit.op("add", x, x), 7.0)  # the derivative of q
    above = emit.op("multiply", polynomial(emit, q, _DERIVATIVE), inner)
    below = emit.op("multiply", polynomial(emit, q, _FACTORS), q)
    return emit.op("where", near, emit.op("divide", above, below), 0.0)


def _pi_by_tangent(emit: Emitter, x: Value) -> Value:
    """pi / tan(pi x) of float64: NaN at whole numbers below 0, infinite at 0 with its sign."""
    rest = emit.op("subtract", x, emit.op("round", x))
    pole = emit.op("logical_and", emit.op("less", x, 0.0), emit.op("equal", rest, 0.0))
    rest = emit.op("where", emit.op("equal", x, 0.0), x, rest)
    square = emit.op("multiply", rest, rest)
    below = emit.op("multiply", rest, emit.op("subtract", 1.0, square))
    found = emit.op("divide", polynomial(emit, square, _COTANGENT), below)
    return emit.op("where", pole, math.nan, found)


def truncate(emit: Emitter, x: Value) -> Value:
    """Round towards zero; integers stay."""
    if not x.dtype.is_float:
        return x
    return emit.op("where", emit.op("less", x, 0.0), emit.op("ceil", x), emit.op("floor", x))


def remainder_of_truncation(emit: Emitter, left: Value, right: Value) -> Value:
    """C's fmod, exact: the sign of the left operand."""
    if left.dtype.is_float:
        rest = emit.op("remainder", emit.op("absolute", left), emit.op("absolute", right))
        return with_sign_of(emit, rest, left)
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


def in_float32(
    formula: Callable[Concatenate[Emitter, Value, P], Value],
) -> Callable[Concatenate[Emitter, Value, P], Value]:
    """The formula, with 16-bit and 8-bit floats in float32: their numbers, such as 1/6, would be rounded to the type of
    x, which moves all results the same way, so that the errors of layers add up."""

    @wraps(formula)
    def wide(emit: Emitter, x: Value, *numbers: P.args, **named: P.kwargs) -> Value:
        if not x.dtype.is_float or x.dtype.bits >= 32:
            return formula(emit, x, *numbers, **named)
        return emit.cast(formula(emit, emit.cast(x, float32), *numbers, **named), x.dtype)

    return wide


def where_positive(emit: Emitter, x: Value, positive: Value, other: Value) -> Value:
    return emit.op("where", emit.op("greater", x, 0.0), positive, other)


def softplus(emit: Emitter, x: Value) -> Value:
    """log(1 + e^x) = max(x, 0) + log(1 + t) with t = e^-|x|.

    Rounding 1 + t to u loses up to half a unit, which adds (t - (u - 1)) / (1 + t) to the logarithm; 1 - t is near
    enough to 1 / (1 + t) for that, since the loss matters where t is small.
    """
    tail = emit.op("exp", emit.op("negate", emit.op("absolute", x)))
    u = emit.op("add", tail, 1.0)
    lost = emit.op("subtract", tail, emit.op("subtract", u, 1.0))
    logarithm = emit.op("add", emit.op("log", u), emit.op("multiply", lost, emit.op("subtract", 1.0, tail)))
    return emit.op("add", emit.op("relu", x), logarithm)


_MISH_END = 20.0  # from where on tanh(softplus(x)) is 1, also in float64


@in_float32
def mish(emit: Emitter, x: Value) -> Value:
    """x tanh(log(1 + e)) = x n / (n + 2) with e = e^x and n = e (e + 2)."""
    power = emit.op("exp", emit.op("minimum", x, _MISH_END))
    n = emit.op("multiply", power, emit.op("add", power, 2.0))
    return emit.op("multiply", x, emit.op("divide", n, emit.op("add", n, 2.0)))


@in_float32
def hard_sigmoid(emit: Emitter, x: Value) -> Value:
    """(x + 3) / 6 between 0 and 1.  The sum comes first: a product with a rounded 1/6 would leave a residue at -3."""
    return emit.op("multiply", emit.op("clip", emit.op("add", x, 3.0), low=0.0, high=6.0), 1 / 6)


@in_float32
def hard_swish(emit: Emitter, x: Value) -> Value:
    return emit.op("multiply", x, hard_sigmoid(emit, x))


@in_float32
def leaky_relu(emit: Emitter, x: Value, slope: Number = 0.01) -> Value:
    return where_positive(emit, x, x, emit.op("multiply", x, slope))


@in_float32
def elu(emit: Emitter, x: Value, alpha: Number = 1, scale: Number = 1, input_scale: Number = 1) -> Value:
    """scale x above zero, scale alpha (e^(input_scale x) - 1) below; what overflows of the latter is not chosen."""
    scaled = x if input_scale == 1 else emit.op("multiply", x, input_scale)
    negative = emit.op("multiply", expm1(emit, scaled), alpha * scale)
    return where_positive(emit, x, emit.op("multiply", x, scale) if scale != 1 else x, negative)


@in_float32
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
