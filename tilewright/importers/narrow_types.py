"""Numbers of element types below a byte, and of powers of two, by arithmetic on their bits; shared by the importers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.dtypes import DType, float4e2, float8e8, float32, int8, int32, uint8
from tilewright.graph.core import Value

if TYPE_CHECKING:
    from tilewright.importers.emitter import Emitter

# Above each of these a number rounds to the next code of float4e2; at those marked it does so too (ties to even).
_FLOAT4_STEPS = ((0.25, False), (0.75, True), (1.25, False), (1.75, True), (2.5, False), (3.5, True), (5.0, False))
_EXPONENT_BIAS, _MANTISSA = 127, 23  # of float32


def bitcast(emit: Emitter, x: Value, dtype: DType) -> Value:
    """The bits of x as another type of as many bytes."""
    return x if x.dtype == dtype else emit.op("bitcast", x, of=x.dtype.name, to=dtype.name)


def decode(emit: Emitter, x: Value) -> Value:
    """Elements of a narrow type as int8, uint8 or float32."""
    bits = bitcast(emit, x, uint8)
    if x.dtype == float8e8:
        return _power_of_two(emit, bits)
    if x.dtype == float4e2:
        return _float4(emit, bits)
    if not x.dtype.is_signed:
        return bits
    half = 1 << (x.dtype.bits - 1)
    return emit.op("subtract", emit.op("bitwise_xor", emit.op("cast", bits, dtype=int8), half), half)


def encode(emit: Emitter, x: Value, dtype: DType, rounding: str = "nearest") -> Value:
    """Numbers as a narrow type: integers by their low bits, floats as the nearest element, at most the largest.

    `rounding` of powers of two: up, down or nearest.
    """
    if dtype == float8e8:
        return bitcast(emit, _exponent(emit, emit.cast(x, float32), rounding), dtype)
    if dtype == float4e2:
        wide = x if x.dtype.is_float and x.dtype.bits > 32 else emit.cast(x, float32)
        size, code = emit.op("absolute", wide), None
        for step, tie in _FLOAT4_STEPS:
            above = emit.op("cast", emit.op("greater_equal" if tie else "greater", size, step), dtype=uint8)
            code = above if code is None else emit.op("add", code, above)
        assert code is not None
        sign = emit.op("shift_right", bitcast(emit, emit.cast(wide, float32), int32), 31)
        code = emit.op("bitwise_or", code, emit.op("bitwise_and", emit.cast(sign, uint8), 8))
        # There is no NaN: it becomes -0.
        return bitcast(emit, emit.op("where", emit.op("isnan", wide), emit.builder.number(8, uint8), code), dtype)
    whole = x if x.dtype.is_integer else emit.cast(x, int32)
    low = emit.op("bitwise_and", emit.cast(whole, uint8), (1 << dtype.bits) - 1)
    return bitcast(emit, low, dtype)


def _float4(emit: Emitter, bits: Value) -> Value:
    """(-1)^s 2^(e - 1) (1 + m / 2), or m / 2 where e is 0, from the bits s e e m."""
    low = emit.op("bitwise_and", bits, 7)
    mantissa = emit.cast(emit.op("bitwise_and", low, 1), float32)
    exponent = emit.cast(emit.op("shift_right", low, 1), float32)
    power = emit.op("exp2", emit.op("subtract", exponent, 2.0))
    normal = emit.op("multiply", emit.op("add", mantissa, 2.0), power)
    small = emit.op("multiply", mantissa, 0.5)
    size = emit.op("where", emit.op("equal", exponent, 0.0), small, normal)
    return emit.op("where", emit.op("greater_equal", bits, 8), emit.op("negate", size), size)


def _power_of_two(emit: Emitter, bits: Value) -> Value:
    """2^(e - 127); NaN for 255."""
    exponent = emit.cast(bits, int32)
    normal = emit.op("shift_left", exponent, _MANTISSA)
    least = emit.op("where", emit.op("equal", exponent, 0), emit.builder.number(1 << (_MANTISSA - 1), int32), normal)
    number = bitcast(emit, least, float32)
    nan = emit.builder.number(float("nan"), float32)
    return emit.op("where", emit.op("equal", exponent, 255), nan, number)


def _exponent(emit: Emitter, x: Value, rounding: str) -> Value:
    """The exponents of float32, rounded to a power of two, as uint8; 255 for NaN and infinity. The sign is lost."""
    bits = bitcast(emit, x, int32)
    rest = emit.op("bitwise_and", bits, (1 << _MANTISSA) - 1)
    exponent = emit.op("bitwise_and", emit.op("shift_right", bits, _MANTISSA), 255)
    special = emit.op("equal", exponent, 255)
    if rounding != "down":
        half = 1 << (_MANTISSA - 1)  # all that a number below the least normal one has when it is the code 0: 2^-127
        floor = emit.op("where", emit.op("equal", exponent, 0), half, emit.builder.number(0, int32))
        more = emit.op("greater", rest, half if rounding == "nearest" else floor)
        if rounding == "nearest":  # halfway goes up, but for what is below the least normal number
            tie = emit.op("logical_and", emit.op("equal", rest, half), emit.op("greater", exponent, 0))
            more = emit.op("logical_or", more, tie)
        exponent = emit.op("add", exponent, emit.cast(more, int32))
    largest = emit.op("minimum", exponent, 254)
    return emit.cast(emit.op("where", special, emit.builder.number(255, int32), largest), uint8)
