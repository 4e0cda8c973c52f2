"""Arithmetic, comparisons, logic, rounding, elementary functions, casts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from tilewright.dtypes import BY_NAME, DType, float32, float64, int1, int32
from tilewright.graph.core import Value
from tilewright.importers import formulas
from tilewright.importers.emitter import Emitter, Number, Scalar
from tilewright.importers.loops import any_of, loop
from tilewright.importers.narrow_types import bitcast
from tilewright.importers.report import Unsupported
from tilewright.importers.rules import RuleTable
from tilewright.importers.torch_fx import TorchCall, wrapped
from tilewright.symbolic import Expression

Limit = Number | Expression | Value

TABLE = RuleTable("Elementwise", "aten.")
rule = TABLE.rule


def float_unary(op: str) -> Callable[[TorchCall, Value], Value]:
    """The rule of a function that gives floats; integers are converted first."""
    return lambda call, x: call.op(op, call.cast(x, call.dtype))


def rounding(op: str) -> Callable[[TorchCall, Value], Value]:
    """The rule of a rounding function: integers stay as they are."""
    return lambda call, x: call.op(op, x) if x.dtype.is_float else x


def binary(op: str) -> Callable[[TorchCall, Scalar, Scalar], Value]:
    """The rule of an arithmetic op with PyTorch's type promotion."""
    return lambda call, left, right: call.op(op, *call.pair(left, right))


def logical(op: str) -> Callable[[TorchCall, Scalar, Scalar], Value]:
    """The rule of a logical op: operands as booleans."""
    return lambda call, left, right: call.op(op, *call.pair(left, right, int1))


for _name in (
    *("exp", "exp2", "log", "sqrt", "rsqrt", "reciprocal", "sin", "cos", "tanh", "erf", "sigmoid"),
    *("asin", "acos", "atan", "erfc", "erfinv", "lgamma"),
):
    TABLE.add(f"{_name}.default", float_unary(_name))
for _name, _op in (("floor", "floor"), ("ceil", "ceil"), ("round", "round")):
    TABLE.add(f"{_name}.default", rounding(_op))
for _name, _op in (("eq", "equal"), ("ne", "not_equal"), ("lt", "less"), ("le", "less_equal")):
    TABLE.add(f"{_name}.Tensor", binary(_op))
    TABLE.add(f"{_name}.Scalar", binary(_op))
for _name, _op in (("gt", "greater"), ("ge", "greater_equal")):
    TABLE.add(f"{_name}.Tensor", binary(_op))
    TABLE.add(f"{_name}.Scalar", binary(_op))
for _name in ("maximum", "minimum"):
    TABLE.add(f"{_name}.default", binary(_name))


def _of_numbers(op: str) -> Callable[[TorchCall, Value, Value], Value]:
    """The rule of an extreme for which a NaN next to a number does not count."""

    def apply(call: TorchCall, x: Value, other: Value) -> Value:
        left, right = call.pair(x, other)
        found = call.op(op, left, right)
        if not found.dtype.is_float:
            return found
        found = call.op("where", call.op("isnan", left), right, found)
        return call.op("where", call.op("isnan", right), left, found)

    return apply


TABLE.add("fmax.default", _of_numbers("maximum"))
TABLE.add("fmin.default", _of_numbers("minimum"))
for _name, _op in (("and", "logical_and"), ("or", "logical_or"), ("xor", "not_equal")):
    TABLE.add(f"logical_{_name}.default", logical(_op))


@rule("round.decimals")
def round_to_decimals(call: TorchCall, x: Value, decimals: int = 0) -> Value:
    """To the nearest multiple of a power of ten, halves of the scaled number to even.

    NaN, as in PyTorch, for a power that the type, float32 at least, does not have.
    """
    if not x.dtype.is_float or decimals == 0:
        return call.op("round", x) if x.dtype.is_float else x
    dtype = float32 if x.dtype.bits < 32 else x.dtype
    power = float(f"1e{abs(decimals)}")
    if power > float(np.finfo(dtype.numpy).max):
        return call.full(x.shape, math.nan, x.dtype)
    scale = call.builder.number(power, dtype)
    into, back = ("multiply", "divide") if decimals > 0 else ("divide", "multiply")
    return call.cast(call.op(back, call.op("round", call.op(into, call.cast(x, dtype), scale)), scale), x.dtype)


def _has_sign(call: TorchCall, x: Value) -> Value:
    """Whether the sign is set: of zeros and of NaN, too."""
    if x.dtype.is_integer and not x.dtype.is_signed:
        return call.full(x.shape, False, int1)
    if x.dtype.is_float:
        x = bitcast(call, x, BY_NAME[f"int{x.dtype.bits}"])
    return call.op("less", x, call.builder.number(0, x.dtype))


@rule("signbit.default")
def sign_bit(call: TorchCall, x: Value) -> Value:
    return _has_sign(call, x)


@rule("copysign.Tensor", "copysign.Scalar")
def with_sign_of(call: TorchCall, x: Scalar, y: Scalar) -> Value:
    """The first operand's size with the second one's sign."""
    number, signed = call.pair(x, y, call.dtype)
    size = call.op("absolute", number)
    return call.op("where", _has_sign(call, signed), call.op("negate", size), size)


@rule("hypot.default")
def hypotenuse(call: TorchCall, x: Value, other: Value) -> Value:
    """sqrt(x^2 + y^2), of the greater size times a root from 1 to sqrt(2): nothing overflows before the result."""
    left, right = (call.op("absolute", item) for item in call.pair(x, other))
    most, least = call.op("maximum", left, right), call.op("minimum", left, right)
    ratio = call.op("divide", least, call.op("where", call.op("equal", most, 0.0), 1.0, most))
    found = call.op("multiply", most, call.op("sqrt", call.op("add", call.op("multiply", ratio, ratio), 1.0)))
    infinite = call.op("logical_or", call.op("equal", left, math.inf), call.op("equal", right, math.inf))
    return call.op("where", infinite, call.builder.number(math.inf, found.dtype), found)


@rule("angle.default")
def angle(call: TorchCall, x: Value) -> Value:
    """Of real numbers: pi below zero, NaN for NaN, otherwise 0."""
    x = call.cast(x, call.dtype)
    found = call.op("where", call.op("less", x, 0.0), *(call.builder.number(n, x.dtype) for n in (math.pi, 0.0)))
    return call.op("where", call.op("isnan", x), x, found)


@rule("atan2.default")
def arctangent_of_two(call: TorchCall, y: Value, x: Value) -> Value:
    return call.op("atan2", *call.pair(y, x, call.dtype))


@rule("abs.default")
def absolute(call: TorchCall, x: Value) -> Value:
    return call.op("absolute", x)


@rule("neg.default", "_neg_view.default", "_neg_view_copy.default")
def negate(call: TorchCall, x: Value) -> Value:
    return call.op("negate", x)


@rule("sign.default", "sgn.default")
def sign(call: TorchCall, x: Value) -> Value:
    """As in PyTorch, the sign of NaN is 0."""
    if not x.dtype.is_float:
        return call.cast(x, x.dtype) if x.dtype.is_bool else call.op("sign", x)
    negative = call.op("where", call.op("less", x, 0.0), *(call.builder.number(n, x.dtype) for n in (-1.0, 0.0)))
    return call.op("where", call.op("greater", x, 0.0), call.builder.number(1.0, x.dtype), negative)


@rule("add.Tensor", "add.Scalar")
def add(call: TorchCall, x: Scalar, other: Scalar, alpha: Number = 1) -> Value:
    left, right = _terms(call, x, other)
    if left.dtype.is_bool:
        return call.op("logical_or", left, right)
    return call.op("add", left, _weighed(call, right, alpha))


@rule("sub.Tensor", "sub.Scalar")
def subtract(call: TorchCall, x: Scalar, other: Scalar, alpha: Number = 1) -> Value:
    left, right = _terms(call, x, other)
    return call.op("subtract", left, _weighed(call, right, alpha))


@rule("rsub.Tensor", "rsub.Scalar")
def reverse_subtract(call: TorchCall, x: Scalar, other: Scalar, alpha: Number = 1) -> Value:
    left, right = _terms(call, x, other)
    return call.op("subtract", right, _weighed(call, left, alpha))


def _terms(call: TorchCall, *terms: Scalar) -> tuple[Value, Value]:
    """The terms of a sum in PyTorch's common type."""
    dtype = call.promoted(0, 1)
    left, right = (
        call.added(term, dtype) if isinstance(term, (int, float)) else call.value(term, dtype) for term in terms
    )
    return left, right


def _weighed(call: TorchCall, x: Value, factor: Number) -> Value:
    return x if factor == 1 else call.op("multiply", x, call.added(factor, x.dtype))


def _times(call: TorchCall, x: Value, factor: Number) -> Value:
    return x if factor == 1 else call.op("multiply", x, factor)


@rule("mul.Tensor", "mul.Scalar")
def multiply(call: TorchCall, x: Scalar, other: Scalar) -> Value:
    left, right = call.factors(x, other)
    return call.op("logical_and" if left.dtype.is_bool else "multiply", left, right)


@rule("div.Tensor", "div.Scalar", "true_divide.Tensor")
def divide(call: TorchCall, x: Scalar, other: Scalar) -> Value:
    return call.op("divide", call.value(x, call.dtype), call.factors(x, other, call.dtype)[1])


@rule("div.Tensor_mode", "div.Scalar_mode")
def divide_rounding(call: TorchCall, x: Scalar, other: Scalar, rounding_mode: str | None = None) -> Value:
    left, right = call.pair(x, other, _wide(call.dtype))
    if rounding_mode == "floor":
        return call.cast(call.op("floor_divide", left, right), call.dtype)
    quotient = call.op("divide", left, right)
    return call.cast(quotient if rounding_mode is None else formulas.truncate(call, quotient), call.dtype)


def _wide(dtype: DType) -> DType:
    """The type in which PyTorch computes what it rounds down or towards zero."""
    return float32 if dtype.is_float and dtype.bits == 16 else dtype


@rule("floor_divide.default")
def floor_divide(call: TorchCall, x: Scalar, other: Scalar) -> Value:
    return divide_rounding(call, x, other, "floor")


@rule("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor")
def remainder(call: TorchCall, x: Scalar, other: Scalar) -> Value:
    return call.op("remainder", *call.pair(x, other))


@rule("fmod.Tensor", "fmod.Scalar")
def fmod(call: TorchCall, x: Scalar, other: Scalar) -> Value:
    return formulas.remainder_of_truncation(call, *call.pair(x, other))


@rule("gcd.default")
def greatest_common_divisor(call: TorchCall, x: Value, other: Value) -> Value:
    """Euclid's algorithm, in a loop that ends once no remainder is left; never negative."""
    left, right = (call.broadcast(item, call.shape) for item in call.pair(x, other))
    return _greatest_common_divisor(call, left, right)


@rule("lcm.default")
def least_common_multiple(call: TorchCall, x: Value, other: Value) -> Value:
    """Never negative; 0 where one of them is."""
    left, right = (call.broadcast(item, call.shape) for item in call.pair(x, other))
    divisor = _greatest_common_divisor(call, left, right)
    share = call.op("floor_divide", call.op("absolute", left), call.op("maximum", divisor, 1))
    return call.op("multiply", share, call.op("absolute", right))


def _greatest_common_divisor(call: TorchCall, left: Value, right: Value) -> Value:
    first = [call.op("absolute", item) if item.dtype.is_signed else item for item in (left, right)]

    def step(inner: Emitter, _: Value, carried: list[Value], __: list[Value]) -> tuple[Value, list[Value]]:
        greater, rest = carried
        ended = inner.op("equal", rest, 0)
        after = inner.op("remainder", greater, inner.op("where", ended, inner.builder.number(1, rest.dtype), rest))
        found = [inner.op("where", ended, greater, rest), inner.op("where", ended, rest, after)]
        return any_of(inner, inner.op("not_equal", found[1], 0)), found

    return loop(call, step, first, going=any_of(call, call.op("not_equal", first[1], 0)))[0]


@rule("pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar")
def power(call: TorchCall, x: Scalar, exponent: Scalar) -> Value:
    """Small whole powers and roots become products and roots."""
    left = call.value(x, call.dtype)
    if isinstance(exponent, (int, float)):
        if exponent in (0, 1, 2, 3):
            return _whole_power(call, left, int(exponent))
        simple = {0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}.get(exponent)
        if simple is not None and left.dtype.is_float:
            return call.op(simple, left)
    return call.op("power", left, call.value(exponent, call.dtype))


def _whole_power(call: TorchCall, x: Value, exponent: int) -> Value:
    if exponent == 0:
        return call.full(x.shape, 1, x.dtype)
    result = x
    for _ in range(exponent - 1):
        result = call.op("multiply", result, x)
    return result


# Bits of floats ---------------------------------------------------------------------------------------


def _bits(call: TorchCall, x: Value) -> Value:
    return bitcast(call, x, BY_NAME[f"int{x.dtype.bits}"])


@rule("frexp.Tensor")
def mantissa_and_exponent(call: TorchCall, x: Value) -> tuple[Value, Value]:
    """x = m 2^e with 1/2 <= |m| < 1; 0, infinities and NaN are their own m, with an exponent of 0."""
    dtype = float32 if x.dtype.bits < 32 else x.dtype
    wide = call.cast(x, dtype)
    digits = 52 if dtype == float64 else 23
    bias = (1 << (dtype.bits - digits - 2)) - 1
    ones = 2 * bias + 1
    tiny = call.op("less", call.op("absolute", wide), float(np.finfo(dtype.numpy).tiny))
    scaled = call.op("where", tiny, call.op("multiply", wide, 2.0**digits), wide)
    bits = _bits(call, scaled)

    def number(value: int) -> Value:
        return call.builder.number(value, bits.dtype)

    field = call.op("bitwise_and", call.op("shift_right", bits, number(digits)), number(ones))
    mantissa_bits = call.op("bitwise_and", bits, number(~(ones << digits)))
    mantissa = bitcast(call, call.op("bitwise_or", mantissa_bits, number((bias - 1) << digits)), dtype)
    exponent = call.op("subtract", field, call.op("where", tiny, number(bias - 1 + digits), number(bias - 1)))
    own = call.op("logical_or", call.op("equal", wide, 0.0), call.op("equal", field, ones))
    exponent = call.op("where", own, number(0), exponent)
    return call.cast(call.op("where", own, wide, mantissa), x.dtype), call.cast(exponent, int32)


_FARTHEST, _FARTHEST_NARROW = 2200.0, 400.0  # from the least float64 or float32 to beyond the largest


@rule("ldexp.Tensor")
def times_power_of_two(call: TorchCall, x: Value, exponent: Value) -> Value:
    """x 2^e in float64, which the power of a narrower type cannot leave; that of float64 is the product of three."""
    most, factors = (_FARTHEST, (3, 2, 1)) if call.dtype == float64 else (_FARTHEST_NARROW, (1,))
    rest = call.op("clip", call.cast(exponent, float64), low=-most, high=most)
    found = call.cast(x, float64)
    for parts in factors:
        part = call.op("floor", call.op("divide", rest, float(parts))) if parts > 1 else rest
        found = call.op("multiply", found, call.op("exp2", part))
        rest = call.op("subtract", rest, part)
    return call.cast(found, call.dtype)


@rule("nextafter.default")
def next_number(call: TorchCall, x: Value, other: Value) -> Value:
    """torch.nextafter: the next number of the type towards another one."""
    start, end = (call.broadcast(item, call.shape) for item in call.pair(x, other))
    bits = _bits(call, start)
    one = call.builder.number(1, bits.dtype)
    grows = call.op("equal", call.op("greater", end, start), call.op("greater", start, 0.0))
    moved = bitcast(
        call, call.op("where", grows, call.op("add", bits, one), call.op("subtract", bits, one)), start.dtype
    )
    least = with_sign_of(call, bitcast(call, one, start.dtype), end)
    found = call.op("where", call.op("equal", start, 0.0), least, moved)
    found = call.op("where", call.op("equal", start, end), end, found)
    return call.op("where", call.op("isnan", call.op("add", start, end)), call.op("add", start, end), found)


@rule("view.dtype", "view_copy.dtype")
def view_as_type(call: TorchCall, x: Value, dtype: Any) -> Value:
    """The bits of elements as another type; the last dimension grows or shrinks where it has another width."""
    to = call.dtype
    if x.dtype.itemsize == to.itemsize:
        return bitcast(call, x, to)
    old, new = (BY_NAME[f"uint{8 * item.itemsize}"] for item in (x.dtype, to))
    whole = bitcast(call, x, old)
    if old.bits > new.bits:
        parts = [
            call.cast(call.op("shift_right", whole, call.builder.number(shift, old)), new)
            for shift in range(0, old.bits, new.bits)
        ]
        joined = call.op("concat", *(call.unsqueeze(part, x.rank) for part in parts), axis=x.rank)
    else:
        count = new.bits // old.bits
        pairs = call.cast(call.reshape(whole, (*call.shape, count)), new)
        places = call.constant(np.arange(0, new.bits, old.bits, dtype=new.numpy), "places")
        joined = call.op("reduce_sum", call.op("shift_left", pairs, places), axes=(pairs.rank - 1,))
    return bitcast(call, call.reshape(joined, call.shape), to)


@rule("square.default")
def square(call: TorchCall, x: Value) -> Value:
    return call.op("multiply", x, x)


@rule("addcmul.default")
def add_product(call: TorchCall, x: Value, left: Value, right: Value, value: Number = 1) -> Value:
    left, right = call.cast(left, call.dtype), call.cast(right, call.dtype)
    return call.op("add", call.cast(x, call.dtype), _times(call, call.op("multiply", left, right), value))


@rule("addcdiv.default")
def add_quotient(call: TorchCall, x: Value, left: Value, right: Value, value: Number = 1) -> Value:
    left, right = call.cast(left, call.dtype), call.cast(right, call.dtype)
    return call.op("add", call.cast(x, call.dtype), _times(call, call.op("divide", left, right), value))


@rule("lerp.Scalar", "lerp.Tensor")
def interpolate(call: TorchCall, start: Value, end: Value, weight: Scalar) -> Value:
    """From the nearer end, so that a weight of one gives `end`."""
    if isinstance(weight, (int, float)):
        part = call.builder.factor(weight, start.dtype)
    else:
        part = call.value(weight, start.dtype)
    distance = call.op("subtract", end, start)
    from_start = call.op("add", start, call.op("multiply", distance, part))
    from_end = call.op("subtract", end, call.op("multiply", distance, call.op("subtract", 1.0, part)))
    return call.op("where", call.op("less", call.op("absolute", part), 0.5), from_start, from_end)


# Functions made of others ----------------------------------------------------------------------------


def _log_to_base(base: float) -> Callable[[TorchCall, Value], Value]:
    scaled = formulas.in_float32(lambda emit, x: emit.op("multiply", emit.op("log", x), 1 / math.log(base)))
    return lambda call, x: scaled(call, call.cast(x, call.dtype))


TABLE.add("log2.default", _log_to_base(2))
TABLE.add("log10.default", _log_to_base(10))


def of_floats(function: formulas.Unary) -> Callable[[TorchCall, Value], Value]:
    """The rule of a formula over floats."""
    return lambda call, x: function(call, call.cast(x, call.dtype))


TABLE.add("log1p.default", of_floats(formulas.log1p))
TABLE.add("expm1.default", of_floats(formulas.expm1))
TABLE.add("tan.default", of_floats(formulas.tangent))
TABLE.add("sinh.default", of_floats(formulas.hyperbolic_sine))
TABLE.add("cosh.default", of_floats(formulas.hyperbolic_cosine))
TABLE.add("asinh.default", of_floats(formulas.inverse_hyperbolic_sine))
TABLE.add("acosh.default", of_floats(formulas.inverse_hyperbolic_cosine))
TABLE.add("atanh.default", of_floats(formulas.inverse_hyperbolic_tangent))
TABLE.add("trunc.default", formulas.truncate)
TABLE.add("isinf.default", formulas.is_infinite)


@rule("digamma.default", "special_digamma.default")
def digamma(call: TorchCall, x: Value) -> Value:
    """The derivative of lgamma, in float64."""
    return call.cast(formulas.digamma(call, call.cast(x, float64)), call.dtype)


@rule("frac.default")
def fraction(call: TorchCall, x: Value) -> Value:
    return call.op("subtract", x, formulas.truncate(call, x))


# Logic -----------------------------------------------------------------------------------------------


@rule("logical_not.default")
def logical_not(call: TorchCall, x: Value) -> Value:
    return call.op("logical_not", call.cast(x, int1))


def _bitwise(of_booleans: str, of_integers: str) -> Callable[[TorchCall, Scalar, Scalar], Value]:
    def apply(call: TorchCall, left: Scalar, right: Scalar) -> Value:
        left, right = call.pair(left, right)
        return call.op(of_booleans if left.dtype.is_bool else of_integers, left, right)

    return apply


for _name, _op in (("and", "logical_and"), ("or", "logical_or"), ("xor", "not_equal")):
    for _overload in ("Tensor", "Scalar"):
        TABLE.add(f"bitwise_{_name}.{_overload}", _bitwise(_op, f"bitwise_{_name}"))
        TABLE.add(f"__{_name}__.{_overload}", _bitwise(_op, f"bitwise_{_name}"))
TABLE.add("bitwise_and.Scalar_Tensor", _bitwise("logical_and", "bitwise_and"))
TABLE.add("bitwise_or.Scalar_Tensor", _bitwise("logical_or", "bitwise_or"))
TABLE.add("bitwise_xor.Scalar_Tensor", _bitwise("not_equal", "bitwise_xor"))
for _name, _op in (("left_shift", "shift_left"), ("right_shift", "shift_right")):
    for _overload in ("Tensor", "Tensor_Scalar", "Scalar_Tensor"):
        TABLE.add(f"bitwise_{_name}.{_overload}", binary(_op))
for _name, _op in (("lshift", "shift_left"), ("rshift", "shift_right")):
    for _overload in ("Tensor", "Scalar"):
        TABLE.add(f"__{_name}__.{_overload}", binary(_op))


@rule("bitwise_not.default")
def bitwise_not(call: TorchCall, x: Value) -> Value:
    return call.op("logical_not" if x.dtype.is_bool else "bitwise_not", x)


@rule("isnan.default")
def is_nan(call: TorchCall, x: Value) -> Value:
    return call.op("isnan", x) if x.dtype.is_float else call.full(x.shape, False, int1)


@rule("isfinite.default")
def is_finite(call: TorchCall, x: Value) -> Value:
    if not x.dtype.is_float:
        return call.full(x.shape, True, int1)
    return call.op("less", call.op("absolute", x), math.inf)


@rule("nan_to_num.default")
def nan_to_number(
    call: TorchCall, x: Value, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Value:
    if not x.dtype.is_float:
        return x
    largest = float(ml_dtypes.finfo(x.dtype.numpy).max)
    high = largest if posinf is None else posinf
    low = -largest if neginf is None else neginf
    result = call.op("where", call.op("isnan", x), call.builder.number(nan or 0.0, x.dtype), x)
    result = call.op("where", call.op("equal", x, math.inf), call.builder.number(high, x.dtype), result)
    return call.op("where", call.op("equal", x, -math.inf), call.builder.number(low, x.dtype), result)


# Selection and clamping ------------------------------------------------------------------------------


@rule("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def where(call: TorchCall, condition: Value, left: Scalar, right: Scalar) -> Value:
    return call.op("where", call.cast(condition, int1), *call.pair(left, right, call.dtype))


@rule("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(call: TorchCall, x: Value, mask: Value, value: Scalar) -> Value:
    return call.op("where", mask, call.value(value, x.dtype), x)


@rule("clamp.default")
def clamp(call: TorchCall, x: Value, low: Limit | None = None, high: Limit | None = None) -> Value:
    """Limits that are known only at run time, sizes or numbers read out of tensors, are values."""
    x = call.cast(x, call.dtype)
    if isinstance(low, (Expression, Value)) or isinstance(high, (Expression, Value)):
        if low is not None:
            x = call.op("maximum", x, call.value(low, x.dtype))
        return x if high is None else call.op("minimum", x, call.value(high, x.dtype))
    if x.dtype.is_integer:
        low, high = (None if limit is None else wrapped(limit, x.dtype) for limit in (low, high))
    return call.op("clip", x, low=low, high=high)


@rule("hardtanh.default")
def hard_tanh(call: TorchCall, x: Value, low: Number = -1, high: Number = 1) -> Value:
    return clamp(call, x, low, high)


@rule("clamp_min.default")
def clamp_min(call: TorchCall, x: Value, low: Limit) -> Value:
    return clamp(call, x, low)


@rule("clamp_max.default")
def clamp_max(call: TorchCall, x: Value, high: Limit) -> Value:
    return clamp(call, x, None, high)


@rule("clamp.Tensor")
def clamp_tensor(call: TorchCall, x: Value, low: Value | None = None, high: Value | None = None) -> Value:
    x = call.cast(x, call.dtype)
    if low is not None:
        x = call.op("maximum", x, call.cast(low, call.dtype))
    return x if high is None else call.op("minimum", x, call.cast(high, call.dtype))


@rule("clamp_min.Tensor")
def clamp_min_tensor(call: TorchCall, x: Value, low: Value) -> Value:
    return clamp_tensor(call, x, low)


@rule("clamp_max.Tensor")
def clamp_max_tensor(call: TorchCall, x: Value, high: Value) -> Value:
    return clamp_tensor(call, x, None, high)


# Casts and copies ------------------------------------------------------------------------------------


@rule(
    "_to_copy.default",
    "to.dtype",
    "to.dtype_layout",
    "to.device",
    "type_as.default",
    "clone.default",
    "alias.default",
    "detach.default",
    "contiguous.default",
    "lift_fresh_copy.default",
    "dropout.default",
    "alias_copy.default",
)
def copy_as(call: TorchCall, x: Value, *rest: Any, **options: Any) -> Value:
    """The same elements, in the element type that PyTorch gives the result."""
    return call.cast(x, call.dtype)


@rule("native_dropout.default")
def native_dropout(call: TorchCall, x: Value, probability: float, train: bool | None) -> tuple[Value, None]:
    if train:
        raise Unsupported("dropout in training mode", "call model.eval() first")
    return x, None


@rule("copy.default", "fill.Tensor", "fill.Scalar")
def copy(call: TorchCall, x: Value, source: Scalar, non_blocking: bool = False) -> Value:
    """`source` in the shape and element type of `x`."""
    return call.broadcast(call.value(source, x.dtype), x.shape)
