"""Math functions of float64, which the hardware has none of: reductions and series, without tables.

Greatest errors in units in the last place: exp, exp2, log, log2, tanh, sin, cos 2, erf 6, power 2 and as many more as
|y ln x|.  rsqrt divides by a square root.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from tilewright.targets.gpu.angles import quarter_turns
from tilewright.targets.llvm.arithmetic import Arithmetic
from tilewright.targets.llvm.builder import LLVMBuilder, LLVMValue
from tilewright.targets.llvm.math import log_special, of_quadrant, power_special

_LN2_HIGH = 6.93147180369123816490e-01  # ends in zeros, so that its products with exponents are exact
_LN2_LOW_DOUBLE = 1.90821492927058770002e-10
_HALF_PI_DOUBLE = (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591833e-33)
_TRIGONOMETRIC_LIMIT = 2.0**30  # as far as the three parts of pi / 2 reach
_ERF_TERMS = 44
_FRACTION_TERMS = 60


def emit_double(builder: LLVMBuilder, opcode: str, operands: Sequence[LLVMValue]) -> LLVMValue:
    """A math function of float64."""
    m = Arithmetic(builder, element="double")
    x = operands[0]
    if opcode == "power":
        return _power(m, x, operands[1])
    return {
        "exp": _exp, "exp2": _exp2, "log": _log, "log2": _log2, "sin": _sin, "cos": _cos, "tanh": _tanh, "erf": _erf,
        "rsqrt": _rsqrt,
    }[opcode](m, x)  # fmt: skip


_EXP = tuple(1.0 / math.factorial(power) for power in range(2, 14))


def _exp_rest(m: Arithmetic, rest: LLVMValue) -> LLVMValue:
    """e^r for |r| <= ln(2) / 2 by its series."""
    tail = m.fma(m.multiply(rest, rest), m.polynomial(rest, _EXP), rest)
    return m.add(tail, 1.0)


def _exp(m: Arithmetic, x: LLVMValue) -> LLVMValue:
    x = m.clamp(x, -750.0, 710.0)
    whole, exponent = m.rounded(x, math.log2(math.e))
    rest = m.fma(whole, -_LN2_LOW_DOUBLE, m.fma(whole, -_LN2_HIGH, x))
    return m.scaled(_exp_rest(m, rest), whole, exponent)


def _exp2(m: Arithmetic, x: LLVMValue) -> LLVMValue:
    x = m.clamp(x, -1080.0, 1025.0)
    whole, exponent = m.rounded(x, 1.0)
    rest = m.subtract(x, whole)
    return m.scaled(_exp_rest(m, m.multiply(rest, math.log(2))), whole, exponent)


def _log_parts(m: Arithmetic, x: LLVMValue) -> tuple[LLVMValue, LLVMValue, LLVMValue]:
    """For positive x = (1 + f) 2^e: f, log(1 + f) - f, and e as a float."""
    f, whole = m.around_one(x)
    s = m.divide(f, m.add(f, 2.0))
    square = m.multiply(s, s)
    # log(1 + f) = 2 atanh(s) = f - s (f - 2 s^2 (1/3 + s^2/5 + …)), with the large part kept apart
    series = m.multiply(square, m.polynomial(square, [2.0 / (2 * power + 3) for power in range(11)]))
    half_square = m.multiply(m.multiply(f, f), 0.5)
    rest = m.subtract(m.multiply(s, m.add(half_square, series)), half_square)
    return f, rest, whole


def _log(m: Arithmetic, x: LLVMValue) -> LLVMValue:
    f, rest, whole = _log_parts(m, x)
    mantissa = m.add(f, m.fma(whole, _LN2_LOW_DOUBLE, rest))
    return log_special(m, x, m.fma(whole, _LN2_HIGH, mantissa))


def _log2(m: Arithmetic, x: LLVMValue) -> LLVMValue:
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


def _sin(m: Arithmetic, x: LLVMValue) -> LLVMValue:
    return _trigonometric(m, x, 0)


def _cos(m: Arithmetic, x: LLVMValue) -> LLVMValue:
    return _trigonometric(m, x, 1)


def _trigonometric(m: Arithmetic, x: LLVMValue, further: int) -> LLVMValue:
    """The sine of x, or of x and a quarter turn `further`."""
    builder = m.builder
    whole, near = m.rounded(x, 2 / math.pi)
    rest = x
    for part in _HALF_PI_DOUBLE:
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
    result = of_quadrant(m, builder.add(quadrant, further) if further else quadrant, sine, cosine)
    # The sine of -0 is -0, of which the reduction knows nothing.
    return result if further else m.select("oeq", x, 0.0, x, result)


def _reduced_far(m: Arithmetic, x: LLVMValue) -> tuple[LLVMValue, LLVMValue]:
    """What is left of x after the nearest multiple of pi / 2, and that multiple modulo 4, as i64.

    No float64 is nearer to a multiple of pi / 2 than about 2^-62.
    """
    builder = m.builder
    quadrant, rest = quarter_turns(m, x)
    below = builder.compare("slt", rest, 0)
    size = builder.select(below, builder.binary("sub", builder.integer(0, "i128"), rest), rest)
    radians = _radians(m, size)
    negative = builder.compare("slt", m.bits(x), 0)
    below = builder.binary("xor", below, negative)
    turned = builder.cast("trunc", quadrant, "i64")
    turned = builder.select(negative, builder.binary("sub", m.integer(0), turned), turned)
    # Infinity less itself is NaN.
    return m.add(builder.select(below, m.negate(radians), radians), m.subtract(x, x)), turned


def _radians(m: Arithmetic, size: LLVMValue) -> LLVMValue:
    """pi / 2 times size 2^-126, of an i128: its first 64 bits in two halves, times two parts of pi / 2."""
    builder = m.builder
    high = builder.cast("trunc", builder.binary("lshr", size, builder.integer(64, "i128")), "i64")
    zeros = builder.call("llvm.ctlz.i64", "i64", [high, LLVMValue("i1", "false")])
    shifted = builder.binary("shl", size, builder.cast("zext", zeros, "i128"))
    first = builder.cast("trunc", builder.binary("lshr", shifted, builder.integer(64, "i128")), "i64")
    scale = builder.binary("shl", builder.binary("sub", m.integer(1023 - 62), zeros), m.integer(52))
    unit = builder.cast("bitcast", scale, "double")
    upper = builder.cast("uitofp", builder.binary("lshr", first, m.integer(32)), "double")
    lower = builder.cast("uitofp", builder.binary("and", first, m.integer(2**32 - 1)), "double")
    upper, lower = m.multiply(m.multiply(upper, 2.0**32), unit), m.multiply(lower, unit)
    product = m.multiply(upper, _HALF_PI_DOUBLE[0])
    error = m.fma(upper, _HALF_PI_DOUBLE[0], m.negate(product))
    return m.add(product, m.add(error, m.fma(upper, _HALF_PI_DOUBLE[1], m.multiply(lower, _HALF_PI_DOUBLE[0]))))


def _tanh(m: Arithmetic, x: LLVMValue) -> LLVMValue:
    """sinh / cosh by their series near zero; 1 - 2 / (e^2x + 1) elsewhere."""
    size = m.absolute(x)
    square = m.multiply(x, x)
    sinh = m.polynomial(square, [1.0 / math.factorial(2 * power + 3) for power in range(8)])
    sinh = m.fma(m.multiply(square, sinh), x, x)
    cosh = m.polynomial(square, [1.0 / math.factorial(2 * power) for power in range(9)])
    small = m.divide(sinh, cosh)
    grown = _exp(m, m.clamp(m.add(size, size), 0.0, 80.0))
    large = m.subtract(1.0, m.divide(2.0, m.add(grown, 1.0)))
    return m.select("olt", size, 0.6, small, m.with_sign_of(large, x))


def _erf(m: Arithmetic, x: LLVMValue) -> LLVMValue:
    """2 / sqrt(pi) e^-x^2 times a series of positive terms up to 2.25; one minus a continued fraction beyond.

    Abramowitz and Stegun, 7.1.6 and 7.1.14.
    """
    size = m.clamp(m.absolute(x), 0.0, 6.5)
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
    return m.with_sign_of(m.select("olt", size, 2.25, near, far), x)


def _rsqrt(m: Arithmetic, x: LLVMValue) -> LLVMValue:
    return m.divide(1.0, m.builder.intrinsic("sqrt", [x]))


def _power(m: Arithmetic, x: LLVMValue, y: LLVMValue) -> LLVMValue:
    """2^(y log2 |x|), then C's special cases."""
    return power_special(m, x, y, _exp2(m, m.multiply(y, _log2(m, m.absolute(x)))))
