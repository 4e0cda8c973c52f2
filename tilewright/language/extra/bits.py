"""The library's functions of bits: counting, reversing, exponents, neighbours, and numbers seen as other types."""

# Their bodies are tile language, which Python's type rules do not describe.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False, disable-error-code="assignment,attr-defined,operator"
from __future__ import annotations

from tilewright.language import core
from tilewright.language import math as tl_math
from tilewright.language.function import language_function
from tilewright.language.math import abs
from tilewright.language.types import constexpr_function, float32, float64, get_int_dtype, int32, int64, uint32, uint64


@constexpr_function
def bits_of(dtype, signed):
    """The integer dtype as wide as another dtype."""
    return get_int_dtype(dtype.primitive_bitwidth, signed)


@constexpr_function
def sign_bit(dtype):
    """The integer that has only the sign bit of a dtype."""
    return 1 << (dtype.primitive_bitwidth - 1)


@constexpr_function
def _is_wide(dtype):
    return dtype.primitive_bitwidth == 64


@constexpr_function
def mantissa_bits(dtype):
    """Stored mantissa bits of float32 or float64."""
    return dtype.fp_mantissa_width


@constexpr_function
def exponent_bias(dtype):
    """What is added to the exponents of float32 or float64."""
    return 1023 if dtype.primitive_bitwidth == 64 else 127


@constexpr_function
def _masks(dtype):
    """Every other bit, every other pair, every other four bits, and ones in each byte."""
    repeats = dtype.primitive_bitwidth // 8
    return tuple(int(pattern * repeats, 16) for pattern in ("55", "33", "0f", "01"))


@language_function
def popc(x):
    """How many of the bits (32, or 64 for 64-bit integers) are set, as int32."""
    bits = x.to(uint64 if _is_wide(x.dtype) else uint32)
    masks: core.constexpr = _masks(bits.dtype)
    bits = bits - ((bits >> 1) & masks[0])
    bits = (bits & masks[1]) + ((bits >> 2) & masks[1])
    bits = (bits + (bits >> 4)) & masks[2]
    return ((bits * masks[3]) >> (bits.dtype.primitive_bitwidth - 8)).to(int32)


@language_function
def clz(x):
    """How many of the bits (32, or 64 for 64-bit integers) are zero before the first that is set, as int32."""
    bits = x.to(uint64 if _is_wide(x.dtype) else uint32)
    for shift in core.static_range(6 if _is_wide(x.dtype) else 5):
        bits = bits | (bits >> (1 << shift))
    return bits.dtype.primitive_bitwidth - popc(bits)


@language_function
def ffs(x):
    """The number, from 1, of the lowest bit that is set; 0 for none. As int32."""
    bits = x.to(uint64 if _is_wide(x.dtype) else uint32)
    return core.where(bits == 0, 0, popc(bits ^ (bits - 1)))


@language_function
def brev(x):
    """The bits in reverse order."""
    bits = x.to(uint64 if _is_wide(x.dtype) else uint32)
    masks: core.constexpr = _masks(bits.dtype)
    for step in core.static_range(3):
        bits = ((bits >> (1 << step)) & masks[step]) | ((bits & masks[step]) << (1 << step))
    result = core.full(bits.shape, 0, bits.dtype)
    for byte in core.static_range(bits.dtype.primitive_bitwidth // 8):
        result = (result << 8) | ((bits >> (8 * byte)) & 0xFF)
    return result.to(int64 if _is_wide(x.dtype) else x.dtype)


@language_function
def byte_perm(x, y, selector):
    """Four bytes of the eight of x (0 to 3) and y (4 to 7), picked by the low four-bit groups of the selector.

    With the top bit of a group set, the byte is all copies of the picked byte's sign bit.
    """
    joined = (y.to(uint32).to(uint64) << 32) | x.to(uint32).to(uint64)
    groups = selector.to(uint32)
    result = core.full(joined.shape, 0, uint32)
    for place in core.static_range(4):
        group = (groups >> (4 * place)) & 0xF
        byte = ((joined >> ((group & 7) * 8).to(uint64)) & 0xFF).to(uint32)
        byte = core.where((group & 8) != 0, core.where(byte >= 0x80, 0xFF, 0).to(uint32), byte)
        result = result | (byte << (8 * place))
    return result.to(int32)


@language_function
def mulhi(x, y):
    """The upper half of the product of two integers of one type (32 or 64 bits)."""
    high = tl_math.umulhi(x, y)
    if x.dtype.is_int_signed() and y.dtype.is_int_signed():
        # A negative factor was taken as itself plus 2 to the width.
        return high - core.where(x < 0, y, 0) - core.where(y < 0, x, 0)
    else:
        return high


@language_function
def mul24(x, y):
    """The product of the low 24 bits of two 32-bit integers; the low 32 bits of it."""
    return ((x << 8) >> 8) * ((y << 8) >> 8)


@language_function
def sad(x, y, z):
    """The distance of two 32-bit integers, added to a third."""
    distance = core.where(x < y, y - x, x - y)
    return (distance.to(uint32) + z.to(uint32)).to(x.dtype)


@language_function
def hadd(x, y):
    """The average of two integers, rounded down, without overflow."""
    return (x & y) + ((x ^ y) >> 1)


@language_function
def rhadd(x, y):
    """The average of two integers, rounded up, without overflow."""
    return (x | y) - ((x ^ y) >> 1)


# Numbers seen as other types ---------------------------------------------------------------------


@language_function
def int_as_float(x):
    """The float32 with the bits of an int32."""
    return x.to(float32, bitcast=True)


@language_function
def float_as_int(x):
    """The bits of a float32 as int32."""
    return x.to(int32, bitcast=True)


@language_function
def longlong_as_double(x):
    """The float64 with the bits of an int64."""
    return x.to(float64, bitcast=True)


@language_function
def double_as_longlong(x):
    """The bits of a float64 as int64."""
    return x.to(int64, bitcast=True)


@language_function
def hiloint2double(high, low):
    """The float64 whose upper and lower halves are two int32."""
    bits = (high.to(uint32, bitcast=True).to(uint64) << 32) | low.to(uint32, bitcast=True).to(uint64)
    return bits.to(float64, bitcast=True)


@language_function
def double2loint(x):
    """The lower 32 bits of a float64 as int32."""
    return x.to(uint64, bitcast=True).to(uint32).to(int32, bitcast=True)


@language_function
def double2hiint(x):
    """The upper 32 bits of a float64 as int32."""
    return (x.to(uint64, bitcast=True) >> 32).to(uint32).to(int32, bitcast=True)


@language_function
def signbit(x):
    """Whether the sign bit is set, that of zeros and NaNs included."""
    return x.to(bits_of(x.dtype, True), bitcast=True) < 0


@language_function
def copysign(x, y):
    """The magnitude of x with the sign of y."""
    bits: core.constexpr = bits_of(x.dtype, False)
    sign: core.constexpr = sign_bit(x.dtype)
    magnitude = x.to(bits, bitcast=True) & (sign - 1)
    return (magnitude | (y.to(x.dtype).to(bits, bitcast=True) & sign)).to(x.dtype, bitcast=True)


# Exponents and neighbours ------------------------------------------------------------------------


@language_function
def step_up(x):
    """The next float above x; the greatest finite number gives infinity, infinity and NaN stay."""
    word: core.constexpr = bits_of(x.dtype, True)
    bits = x.to(word, bitcast=True)
    moved = core.where(bits < 0, bits - 1, bits + 1).to(x.dtype, bitcast=True)
    least = core.full(x.shape, 1, word).to(x.dtype, bitcast=True)
    return core.where(x == 0, least, core.where((x != x) | (x == float("inf")), x, moved))


@language_function
def step_down(x):
    """The next float below x."""
    return -step_up(-x)


@language_function
def nextafter(x, y):
    """The next float after x toward y; y where they are equal, NaN where either is."""
    moved = core.where(y > x, step_up(x), step_down(x))
    return core.where((x != x) | (y != y), x + y, core.where(x == y, y, moved))


@language_function
def _normal(x):
    """x, or x times 2 to the 64 where it is subnormal, and what to add to its exponent."""
    tiny = abs(x) < 2.2250738585072014e-308 if _is_wide(x.dtype) else abs(x) < 1.1754943508222875e-38
    return core.where(tiny, x * 18446744073709551616.0, x), core.where(tiny, -64, 0)


@language_function
def exponent(x):
    """The exponent of a finite number other than 0: x is 2 to this power times a number in [1, 2). As int32."""
    width: core.constexpr = mantissa_bits(x.dtype)
    bias: core.constexpr = exponent_bias(x.dtype)
    scaled, shift = _normal(x)
    bits = abs(scaled).to(bits_of(x.dtype, True), bitcast=True)
    return (bits >> width).to(int32) - bias + shift


@language_function
def ilogb(x):
    """The exponent as int32; the least integer for 0 and NaN, the greatest for infinities."""
    special = core.where(abs(x) == float("inf"), 2147483647, -2147483648)
    return core.where((x == 0) | (x != x) | (abs(x) == float("inf")), special, exponent(x)).to(int32)


@language_function
def logb(x):
    """The exponent as a float; -inf for 0, inf for infinities."""
    size = abs(x)
    regular = core.where((x == 0) | (size == float("inf")), 1.0, x).to(x.dtype)
    result = exponent(regular).to(x.dtype)
    return core.where(x == 0, -float("inf"), core.where((size == float("inf")) | (x != x), size, result)).to(x.dtype)


@language_function
def _power_of_two(n, dtype: core.constexpr):
    """2 to the power n, a normal number of the dtype."""
    width: core.constexpr = mantissa_bits(dtype)
    bias: core.constexpr = exponent_bias(dtype)
    word: core.constexpr = bits_of(dtype, True)
    return ((n + bias).to(word) << width).to(dtype, bitcast=True)


@language_function
def ldexp(x, n):
    """x times 2 to the integer n, rounded once."""
    bias: core.constexpr = exponent_bias(x.dtype)
    width: core.constexpr = mantissa_bits(x.dtype)
    left = core.clamp(n, -3 * bias, 3 * bias).to(int32)
    result = x
    # Up by the greatest power while more than that is left; down by powers that leave all digits, so that only the
    # last product rounds.
    for _ in core.static_range(2):
        high, low = left > bias, left < 1 - bias
        step = core.where(high, bias, core.where(low, 1 - bias + width + 1, 0))
        result = result * _power_of_two(step, x.dtype)
        left = left - step
    left = core.clamp(left, 1 - bias, bias)
    return result * _power_of_two(left, x.dtype)


__all__ = [
    "brev", "byte_perm", "clz", "copysign", "double2hiint", "double2loint", "double_as_longlong", "ffs",
    "float_as_int", "hadd", "hiloint2double", "ilogb", "int_as_float", "ldexp", "logb", "longlong_as_double", "mul24",
    "mulhi", "nextafter", "popc", "rhadd", "sad", "signbit",
]  # fmt: skip
