"""Math functions of float64, which the hardware has none of: reductions and series, without tables.

Greatest errors in units in the last place: exp, exp2, log, log2, tanh, sin, cos 2, erf 6, power 2 and as many more as
|y ln x|.  rsqrt divides by a square root.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import cache

from tilewright.targets.llvm.builder import LLVMBuilder, LLVMValue
from tilewright.targets.llvm.math import log_special

_LN2_HIGH = 6.93147180369123816490e-01  # ends in zeros, so that its products with exponents are exact
_LN2_LOW = 1.90821492927058770002e-10
_HALF_PI = (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591833e-33)
_TRIGONOMETRIC_LIMIT = 2.0**30  # as far as the three parts of pi / 2 reach
_WORD = 2**64 - 1
_ROUNDER = 1.5 * 2.0**52
_ERF_TERMS = 44
_FRACTION_TERMS = 60


def emit_double(builder: LLVMBuilder, opcode: str, operands: Sequence[LLVMValue]) -> LLVMValue:
    """A math function of float64."""
    m = _Double(builder)
    x = operands[0]
    if opcode == "power":
        return _power(m, x, operands[1])
    return {
        "exp": _exp, "exp2": _exp2, "log": _log, "log2": _log2, "sin": _sin, "cos": _cos, "tanh": _tanh, "erf": _erf,
        "rsqrt": _rsqrt,
    }[opcode](m, x)  # fmt: skip


class _Double:
    """Short names for float64 arithmetic."""

    def __init__(self, builder: LLVMBuilder) -> None:
        self.builder = builder

    def number(self, value: float) -> LLVMValue:
        return self.builder.constant("double", value)

    def add(self, left: LLVMValue, right: LLVMValue | float) -> LLVMValue:
        return self.builder.binary("fadd", left, self._value(right))

    def subtract(self, left: LLVMValue | float, right: LLVMValue) -> LLVMValue:
        return self.builder.binary("fsub", self._value(left), right)

    def multiply(self, left: LLVMValue, right: LLVMValue | float) -> LLVMValue:
        return self.builder.binary("fmul", left, self._value(right))

    def divide(self, left: LLVMValue | float, right: LLVMValue) -> LLVMValue:
        return self.builder.binary("fdiv", self._value(left), right)

    def fma(self, left: LLVMValue, right: LLVMValue | float, addend: LLVMValue | float) -> LLVMValue:
        return self.builder.intrinsic("fma", [left, self._value(right), self._value(addend)])

    def negate(self, value: LLVMValue) -> LLVMValue:
        return self.builder.negate(value)

    def absolute(self, value: LLVMValue) -> LLVMValue:
        return self.builder.intrinsic("fabs", [value])

    def polynomial(self, x: LLVMValue, coefficients: Sequence[float]) -> LLVMValue:
        """Horner's rule; coefficients from the lowest power up."""
        result = self.number(coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            result = self.fma(result, x, coefficient)
        return result

    def select(self, predicate: str, left: LLVMValue, right: float, then: LLVMValue, otherwise: LLVMValue) -> LLVMValue:
        return self.builder.select(self.builder.compare(predicate, left, self.number(right)), then, otherwise)

    def with_sign(self, value: LLVMValue, sign: LLVMValue) -> LLVMValue:
        return self.builder.intrinsic("copysign", [value, sign])

    def bits(self, value: LLVMValue) -> LLVMValue:
        return self.builder.cast("bitcast", value, "i64")

    def rounded(self, x: LLVMValue, factor: float) -> tuple[LLVMValue, LLVMValue]:
        """The whole number nearest to x times factor, as a float and as an i64."""
        shifted = self.fma(x, factor, _ROUNDER)
        whole = self.subtract(shifted, self.number(_ROUNDER))
        return whole, self.builder.subtract(self.bits(shifted), self.bits(self.number(_ROUNDER)))

    def scaled(self, x: LLVMValue, exponent: LLVMValue) -> LLVMValue:
        """x times 2^exponent, in two steps because 2^exponent may not be a number."""
        half = self.builder.binary("ashr", exponent, LLVMValue("i64", "1"))
        return self.multiply(self.multiply(x, self._power_of_two(half)), self._power_of_two(
            self.builder.subtract(exponent, half)))  # fmt: skip

    def _power_of_two(self, exponent: LLVMValue) -> LLVMValue:
        biased = self.builder.binary("shl", self.builder.add(exponent, 1023), LLVMValue("i64", "52"))
        return self.builder.cast("bitcast", biased, "double")

    def _value(self, value: LLVMValue | float) -> LLVMValue:
        return self.number(value) if isinstance(value, float) else value


def _clamped(m: _Double, x: LLVMValue, low: float, high: float) -> LLVMValue:
    """x within [low, high]; NaN stays."""
    x = m.select("olt", x, low, m.number(low), x)
    return m.select("ogt", x, high, m.number(high), x)


_EXP = tuple(1.0 / math.factorial(power) for power in range(2, 14))


def _exp_rest(m: _Double, rest: LLVMValue) -> LLVMValue:
    """e^r for |r| <= ln(2) / 2 by its series."""
    tail = m.fma(m.multiply(rest, rest), m.polynomial(rest, _EXP), rest)
    return m.add(tail, 1.0)


def _exp(m: _Double, x: LLVMValue) -> LLVMValue:
    x = _clamped(m, x, -750.0, 710.0)
    whole, exponent = m.rounded(x, math.log2(math.e))
    rest = m.fma(whole, -_LN2_LOW, m.fma(whole, -_LN2_HIGH, x))
    return m.scaled(_exp_rest(m, rest), exponent)


def _exp2(m: _Double, x: LLVMValue) -> LLVMValue:
    x = _clamped(m, x, -1080.0, 1025.0)
    whole, exponent = m.rounded(x, 1.0)
    rest = m.subtract(x, whole)
    return m.scaled(_exp_rest(m, m.multiply(rest, math.log(2))), exponent)


def _log_parts(m: _Double, x: LLVMValue) -> tuple[LLVMValue, LLVMValue, LLVMValue]:
    """For positive x = (1 + f) 2^e: f, log(1 + f) - f, and e as a float."""
    builder = m.builder
    tiny = builder.compare("olt", x, m.number(2.0**-1022))
    x = builder.select(tiny, m.multiply(x, 2.0**54), x)
    bits = m.bits(x)
    root = m.bits(m.number(math.sqrt(0.5)))
    exponent = builder.binary("ashr", builder.subtract(bits, root), LLVMValue("i64", "52"))
    mantissa = builder.subtract(bits, builder.binary("shl", exponent, LLVMValue("i64", "52")))
    f = m.subtract(builder.cast("bitcast", mantissa, "double"), m.number(1.0))
    whole = builder.cast("sitofp", exponent, "double")
    whole = builder.select(tiny, m.subtract(whole, m.number(54.0)), whole)
    s = m.divide(f, m.add(f, 2.0))
    square = m.multiply(s, s)
    # log(1 + f) = 2 atanh(s) = f - s (f - 2 s^2 (1/3 + s^2/5 + …)), with the large part kept apart
    series = m.multiply(square, m.polynomial(square, [2.0 / (2 * power + 3) for power in range(11)]))
    half_square = m.multiply(m.multiply(f, f), 0.5)
    rest = m.subtract(m.multiply(s, m.add(half_square, series)), half_square)
    return f, rest, whole


def _log(m: _Double, x: LLVMValue) -> LLVMValue:
    f, rest, whole = _log_parts(m, x)
    mantissa = m.add(f, m.fma(whole, _LN2_LOW, rest))
    return log_special(m, x, m.fma(whole, _LN2_HIGH, mantissa))


def _log2(m: _Double, x: LLVMValue) -> LLVMValue:
    f, rest, whole = _log_parts(m, x)
    factor = math.log2(math.e)
    low = float(_LOG2E_EXACT - Fraction(factor))
    natural = m.add(f, rest)
    lost = m.add(m.subtract(f, natural), rest)
    scaled = m.fma(natural, factor, whole)
    error = m.fma(natural, factor, m.subtract(whole, scaled))
    return log_special(m, x, m.add(scaled, m.fma(lost, factor, m.fma(natural, low, error))))


# log2(e) to 40 digits
_LOG2E_EXACT = Fraction("1.4426950408889634073599246810018921374266")

_SIN = tuple((-1.0) ** (power + 1) / math.factorial(2 * power + 3) for power in range(8))
_COS = tuple((-1.0) ** power / math.factorial(2 * power + 4) for power in range(8))


def _sin(m: _Double, x: LLVMValue) -> LLVMValue:
    return _trigonometric(m, x, 0)


def _cos(m: _Double, x: LLVMValue) -> LLVMValue:
    return _trigonometric(m, x, 1)


def _trigonometric(m: _Double, x: LLVMValue, further: int) -> LLVMValue:
    """Quadrant n has sin, cos, -sin, -cos of the rest (cosine: one further)."""
    builder = m.builder
    whole, near = m.rounded(x, 2 / math.pi)
    rest = x
    for part in _HALF_PI:
        rest = m.fma(whole, -part, rest)
    huge = builder.compare("ogt", m.absolute(x), m.number(_TRIGONOMETRIC_LIMIT))
    start, far, done = builder.block, builder.new_block("far"), builder.new_block("reduced")
    builder.branch_if(huge, far, done, weights=(1, 1000))
    builder.start(far)
    slow, turned = _reduced_far(m, x)
    end = builder.block
    builder.branch(done)
    builder.start(done)
    rest = builder.phi(done, "double", [(rest, start), (slow, end)])
    quadrant = builder.phi(done, "i64", [(near, start), (turned, end)])
    square = m.multiply(rest, rest)
    sine = m.fma(m.multiply(square, m.polynomial(square, _SIN)), rest, rest)
    cosine = m.fma(m.multiply(square, square), m.polynomial(square, _COS), m.fma(square, -0.5, 1.0))
    if further:
        quadrant = builder.add(quadrant, further)
    odd = builder.compare("ne", builder.binary("and", quadrant, LLVMValue("i64", "1")), 0)
    sign = builder.binary("shl", builder.binary("and", quadrant, LLVMValue("i64", "2")), LLVMValue("i64", "62"))
    chosen = m.bits(builder.select(odd, cosine, sine))
    result = builder.cast("bitcast", builder.binary("xor", chosen, sign), "double")
    # The sine of -0 is -0, of which the reduction knows nothing.
    return result if further else m.select("oeq", x, 0.0, x, result)


@cache
def _two_over_pi(words: int) -> tuple[int, ...]:
    """The bits of 2 / pi behind the point, 64 to a word; pi by Machin's formula."""
    bits = 64 * words + 64

    def inverse_tangent(divisor: int) -> int:
        total = term = (1 << bits) // divisor
        for odd in range(3, 2 * bits, 2):
            term = -term // divisor**2
            total += term // odd
        return total

    pi = 4 * (4 * inverse_tangent(5) - inverse_tangent(239))
    fraction = (2 << 2 * bits) // pi >> 64
    return tuple(fraction >> 64 * place & _WORD for place in reversed(range(words)))


def _reduced_far(m: _Double, x: LLVMValue) -> tuple[LLVMValue, LLVMValue]:
    """What is left of x beside the nearest multiple of pi / 2, and that multiple modulo 4, as i64.

    Payne and Hanek, "Radian reduction for trigonometric functions", 1983: of the product of the mantissa with 192 bits
    of 2 / pi, chosen by the exponent, the bits below 4 and above 2^-126 are kept. No float64 is nearer to a multiple of
    pi / 2 than about 2^-62.
    """
    builder = m.builder
    bits = m.bits(x)
    exponent = builder.binary("and", builder.binary("lshr", bits, _i64(52)), _i64(0x7FF))
    mantissa = builder.binary("or", builder.binary("shl", bits, _i64(11)), _i64(-(2**63)))
    # A word of zeros in front: the first bits of small exponents lie before the point.
    table = (0, *_two_over_pi(18))
    initial = ", ".join(f"i64 {word - (word >> 63 << 64)}" for word in table)
    pointer = builder.module.constant_array(f"[{len(table)} x i64] [{initial}]", "two_over_pi", 8)
    position = builder.subtract(exponent, 1024)
    word, shift = builder.binary("lshr", position, _i64(6)), builder.binary("and", position, _i64(63))
    words = [builder.load("i64", builder.gep(pointer, builder.add(word, number), "i64"), 8) for number in range(4)]
    high, middle, low = (
        builder.call("llvm.fshl.i64", "i64", [first, second, shift])
        for first, second in zip(words, words[1:], strict=False)
    )
    wide = builder.cast("zext", mantissa, "i128")
    part = builder.binary("mul", wide, builder.cast("zext", low, "i128"))
    total = builder.add(
        builder.binary("mul", wide, builder.cast("zext", middle, "i128")), builder.binary("lshr", part, _i128(64))
    )
    top = builder.cast("zext", builder.binary("mul", mantissa, high), "i128")
    total = builder.add(total, builder.binary("shl", top, _i128(64)))
    quadrant = builder.binary("lshr", builder.add(total, _i128(1 << 125)), _i128(126))
    rest = builder.binary("sub", total, builder.binary("shl", quadrant, _i128(126)))
    below = builder.compare("slt", rest, 0)
    size = builder.select(below, builder.binary("sub", _i128(0), rest), rest)
    radians = _quarter_turns_to_radians(m, size)
    below = builder.binary("xor", below, builder.compare("slt", bits, 0))
    turned = builder.cast("trunc", quadrant, "i64")
    turned = builder.select(builder.compare("slt", bits, 0), builder.binary("sub", _i64(0), turned), turned)
    # Infinity less itself is NaN.
    return m.add(builder.select(below, m.negate(radians), radians), m.subtract(x, x)), turned


def _quarter_turns_to_radians(m: _Double, size: LLVMValue) -> LLVMValue:
    """pi / 2 times size 2^-126, of an i128: its first 64 bits in two halves, times two parts of pi / 2."""
    builder = m.builder
    high = builder.cast("trunc", builder.binary("lshr", size, _i128(64)), "i64")
    zeros = builder.call("llvm.ctlz.i64", "i64", [high, LLVMValue("i1", "false")])
    shifted = builder.binary("shl", size, builder.cast("zext", zeros, "i128"))
    first = builder.cast("trunc", builder.binary("lshr", shifted, _i128(64)), "i64")
    scale = builder.binary("shl", builder.binary("sub", _i64(1023 - 62), zeros), _i64(52))
    unit = builder.cast("bitcast", scale, "double")
    upper = builder.cast("uitofp", builder.binary("lshr", first, _i64(32)), "double")
    lower = builder.cast("uitofp", builder.binary("and", first, _i64(2**32 - 1)), "double")
    upper, lower = m.multiply(m.multiply(upper, 2.0**32), unit), m.multiply(lower, unit)
    product = m.multiply(upper, _HALF_PI[0])
    error = m.fma(upper, _HALF_PI[0], m.negate(product))
    return m.add(product, m.add(error, m.fma(upper, _HALF_PI[1], m.multiply(lower, _HALF_PI[0]))))


def _i64(number: int) -> LLVMValue:
    return LLVMValue("i64", str(number))


def _i128(number: int) -> LLVMValue:
    return LLVMValue("i128", str(number))


def _tanh(m: _Double, x: LLVMValue) -> LLVMValue:
    """sinh / cosh by their series near zero; 1 - 2 / (e^2x + 1) elsewhere."""
    size = m.absolute(x)
    square = m.multiply(x, x)
    sinh = m.polynomial(square, [1.0 / math.factorial(2 * power + 3) for power in range(8)])
    sinh = m.fma(m.multiply(square, sinh), x, x)
    cosh = m.polynomial(square, [1.0 / math.factorial(2 * power) for power in range(9)])
    small = m.divide(sinh, cosh)
    grown = _exp(m, _clamped(m, m.add(size, size), 0.0, 80.0))
    large = m.subtract(1.0, m.divide(2.0, m.add(grown, 1.0)))
    return m.select("olt", size, 0.6, small, m.with_sign(large, x))


def _erf(m: _Double, x: LLVMValue) -> LLVMValue:
    """2 / sqrt(pi) e^-x^2 times a series of positive terms up to 2.25; one minus a continued fraction beyond.

    Abramowitz and Stegun, 7.1.6 and 7.1.14.
    """
    size = _clamped(m, m.absolute(x), 0.0, 6.5)
    square = m.multiply(size, size)
    lost = m.fma(size, size, m.negate(square))
    decay = _exp(m, m.negate(square))
    decay = m.fma(decay, m.negate(lost), decay)
    total = m.number(1.0)
    for number in range(_ERF_TERMS, 0, -1):
        total = m.fma(m.multiply(total, square), 2.0 / (2 * number + 1), 1.0)
    near = m.multiply(m.multiply(m.multiply(size, total), decay), 2 / math.sqrt(math.pi))
    large = m.select("olt", size, 1.0, m.number(1.0), size)
    below = large
    for number in range(_FRACTION_TERMS, 0, -1):
        below = m.add(large, m.divide(m.number(number / 2), below))
    far = m.subtract(1.0, m.multiply(m.divide(decay, below), 1 / math.sqrt(math.pi)))
    return m.with_sign(m.select("olt", size, 2.25, near, far), x)


def _rsqrt(m: _Double, x: LLVMValue) -> LLVMValue:
    return m.divide(1.0, m.builder.intrinsic("sqrt", [x]))


def _power(m: _Double, x: LLVMValue, y: LLVMValue) -> LLVMValue:
    """2^(y log2 |x|), then C's special cases."""
    builder = m.builder
    size = m.absolute(x)
    result = _exp2(m, m.multiply(y, _log2(m, size)))
    one = m.number(1.0)
    result = m.select("oeq", size, 1.0, one, result)
    fraction = builder.compare("une", builder.intrinsic("trunc", [y]), y)
    half = m.multiply(y, 0.5)
    whole = builder.binary("xor", fraction, LLVMValue("i1", "true"))
    odd = builder.binary("and", builder.compare("une", builder.intrinsic("trunc", [half]), half), whole)
    result = builder.select(odd, m.with_sign(result, x), result)
    negative = builder.compare("olt", x, m.number(0.0))
    finite = builder.compare("one", x, m.number(-math.inf))
    undefined = builder.binary("and", builder.binary("and", negative, finite), fraction)
    result = builder.select(undefined, m.number(math.nan), result)
    result = m.select("oeq", x, 1.0, one, result)
    return m.select("oeq", y, 0.0, one, result)
