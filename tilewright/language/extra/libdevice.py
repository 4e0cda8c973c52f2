"""The mathematical library under the names that GPU kernels use: ``from tilewright.language.extra import libdevice``.

Written in the tile language, so that it means the same on every target.  Functions of floats compute in the
dtype of their argument (narrow floats in fp32).
"""

# Their bodies are tile language, which Python's type rules do not describe.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False, disable-error-code="assignment,attr-defined,operator"
from __future__ import annotations

from tilewright.language import core
from tilewright.language import math as tl_math
from tilewright.language.context import written
from tilewright.language.extra.bessel import cyl_bessel_i0, cyl_bessel_i1, j0, j1, jn, y0, y1, yn
from tilewright.language.extra.bits import (
    brev,
    byte_perm,
    clz,
    copysign,
    double2hiint,
    double2loint,
    double_as_longlong,
    ffs,
    float_as_int,
    hadd,
    hiloint2double,
    ilogb,
    int_as_float,
    ldexp,
    logb,
    longlong_as_double,
    mul24,
    mulhi,
    nextafter,
    popc,
    rhadd,
    sad,
    signbit,
)
from tilewright.language.extra.rounding import *  # noqa: F403
from tilewright.language.extra.rounding import __all__ as _ROUNDED
from tilewright.language.extra.rounding import double2ll_rn
from tilewright.language.extra.special import (
    LOG_10,
    PI,
    cospi,
    erfc,
    erfcinv,
    erfcx,
    erfinv,
    float_of,
    lgamma,
    logarithm_1p,
    normcdf,
    normcdfinv,
    polynomial,
    power_of_ten,
    sinpi,
    tgamma,
)
from tilewright.language.extra.tables import ARCTANGENT
from tilewright.language.function import language_function
from tilewright.language.math import (
    abs,
    ceil,
    cos,
    erf,
    exp,
    exp2,
    floor,
    fma,
    log,
    log2,
    pow,
    rint,
    rsqrt,
    sin,
    sqrt,
    tanh,
    trunc,
)
from tilewright.language.types import float32, float64, uint64

fabs, nearbyint, fmaf, scalbn, rsqrt_rn = abs, rint, fma, ldexp, rsqrt
fast_expf, fast_exp2f, fast_logf, fast_log2f, fast_sinf, fast_cosf, fast_powf = exp, exp2, log, log2, sin, cos, pow
fast_tanhf, umulhi = tanh, tl_math.umulhi
uint_as_float, float_as_uint = int_as_float, float_as_int

LOG10_E = 0.4342944819032518
LOG_2 = 0.6931471805599453
NO_DECAY = 20.0  # beyond it exp(-x) vanishes next to exp(x), also in float64
LARGE = 1e9  # beyond it the 1 in sqrt(x * x + 1) is lost, and x * x might overflow


@language_function
def fast_dividef(x, y):
    """x / y"""
    return core.fdiv(x, y)


@language_function
def fmin(x, y):
    """The smaller; NaN only where both are."""
    return core.minimum(x, y)


@language_function
def fmax(x, y):
    """The larger; NaN only where both are."""
    return core.maximum(x, y)


@language_function
def fmod(x, y):
    """The remainder of x / y with the sign of x."""
    return x % y


@language_function
def rcp(x):
    """1 / x"""
    return (1.0 / x).to(x.dtype)


@language_function
def isnan(x):
    """Whether x is not a number."""
    return x != x


@language_function
def isinf(x):
    """Whether x is infinite."""
    return abs(x) == float("inf")


@language_function
def finitef(x):
    """Whether x is neither infinite nor NaN."""
    return abs(x) < float("inf")


@language_function
def round(x):
    """The nearest whole number, halves away from zero."""
    whole = trunc(x)
    away = core.where(abs(x - whole) >= 0.5, copysign(core.full(x.shape, 1, x.dtype), x), 0.0).to(x.dtype)
    return copysign(whole + away, x)


@language_function
def exp10(x):
    """10 to the power x; within 2 units in the last place."""
    return power_of_ten(x.to(float64)).to(float_of(x.dtype))


@language_function
def log10(x):
    """Logarithm to base 10."""
    return log(x) * LOG10_E


@language_function
def log1p(x):
    """log(1 + x), accurate near 0."""
    return logarithm_1p(x)


@language_function
def expm1(x):
    """exp(x) - 1, accurate near 0: the rounding of exp(x) is divided out (W. Kahan)."""
    power = exp(x)
    ordinary = (power == 1.0) | (abs(x) > 1.0)
    safe = core.where(ordinary, 2.0, power)
    near = (safe - 1.0) * (x / log(safe))
    return core.where(power == 1.0, x, core.where(ordinary, power - 1.0, near)).to(x.dtype)


@language_function
def tan(x):
    """Tangent of x in radians."""
    return sin(x) / cos(x)


@language_function
def _half_power(x):
    """exp(x) / 2, also where exp(x) itself would overflow."""
    root = exp(0.5 * x)
    return (0.5 * root) * root


@language_function
def sinh(x):
    """Hyperbolic sine."""
    size = abs(_wide(x))
    far = size > NO_DECAY
    grown = expm1(core.where(far, 0.0, size).to(size.dtype))
    result = core.where(far, _half_power(size), 0.5 * (grown + grown / (grown + 1.0)))
    return copysign(result.to(x.dtype), x)


@language_function
def cosh(x):
    """Hyperbolic cosine."""
    size = abs(_wide(x))
    power = exp(size)
    return core.where(size > NO_DECAY, _half_power(size), 0.5 * power + 0.5 / power).to(x.dtype)


@language_function
def hypot(x, y):
    """The length of (x, y), without overflow on the way; infinite if either is, else NaN if either is."""
    width, height = abs(x), abs(y)
    large = core.maximum(width, height, propagate_nan=core.PropagateNan.ALL)
    small = core.minimum(width, height)
    ratio = small / core.where(large == 0.0, 1.0, large)
    infinite = (width == float("inf")) | (height == float("inf"))
    return core.where(infinite, float("inf"), large * sqrt(1.0 + ratio * ratio)).to(large.dtype)


@language_function
def cbrt(x):
    """The cube root; one step of Newton's method after the power."""
    magnitude = abs(x)
    itself = (magnitude == 0.0) | (magnitude == float("inf"))
    safe = core.where(itself, 1.0, magnitude)
    root = exp2(log2(safe) / 3.0)
    root = root - (root - safe / (root * root)) / 3.0
    return core.where(itself, x, copysign(root, x))


@language_function
def llrint(x):
    """The nearest whole number, halves to even, as int64; kept inside its range, 0 for NaN."""
    return double2ll_rn(x)


@language_function
def fdim(x, y):
    """x - y where it is positive, else 0; NaN where either is."""
    return core.where(x <= y, 0.0, x - y).to(x.dtype)


@language_function
def _wide(x):
    """Narrow floats as fp32."""
    return x.to(float32) if x.dtype.primitive_bitwidth < 32 else x


@language_function
def _halved_arctangent(ratio):
    """Arctangent of fp64 numbers in [0, 1]: the angle is halved twice, then its power series."""
    half = ratio / (1.0 + sqrt(1.0 + ratio * ratio))
    quarter = half / (1.0 + sqrt(1.0 + half * half))
    square = quarter * quarter
    series = core.full(ratio.shape, 0.0, ratio.dtype)
    for term in core.static_range(13):
        series = 1.0 / (25 - 2 * term) - square * series
    return 4.0 * quarter * series


@language_function
def _arctangent(ratio):
    """Arctangent of numbers in [0, 1]; of fp32 by a polynomial."""
    if ratio.dtype.primitive_bitwidth == 64:
        return _halved_arctangent(ratio)
    square = ratio * ratio
    return ratio + ratio * square * polynomial(square, ARCTANGENT)


@language_function
def atan2(y, x):
    """The angle of the point (x, y), from -pi to pi; within 5 units in the last place."""
    height, width = abs(_wide(y)), abs(_wide(x))
    large, small = core.maximum(height, width), core.minimum(height, width)
    equal = large == small  # two zeros and two infinities too
    ratio = small / core.where(equal, 1.0, large)
    angle = _arctangent(core.where(equal, core.where(large == 0.0, 0.0, 1.0), ratio).to(height.dtype))
    angle = core.where(height > width, PI / 2 - angle, angle)
    angle = core.where(signbit(x), PI - angle, angle)
    angle = core.where((x != x) | (y != y), float("nan"), angle)
    return copysign(angle.to(y.dtype), y)


@language_function
def atan(x):
    """Arctangent, from -pi/2 to pi/2; within 5 units in the last place."""
    return atan2(x, core.full(x.shape, 1.0, x.dtype))


@language_function
def asin(x):
    """Arcsine, from -pi/2 to pi/2; NaN outside [-1, 1]. Within 6 units in the last place."""
    sine = _wide(x)
    return atan2(sine, sqrt((1.0 - sine) * (1.0 + sine))).to(x.dtype)


@language_function
def acos(x):
    """Arccosine, from 0 to pi; NaN outside [-1, 1]. Within 6 units in the last place."""
    cosine = _wide(x)
    return (2.0 * atan2(sqrt(1.0 - cosine), sqrt(1.0 + cosine))).to(x.dtype)


@language_function
def asinh(x):
    """Inverse hyperbolic sine; within 4 units in the last place."""
    size = abs(_wide(x))
    safe = core.where(size > LARGE, 1.0, size)
    near = log1p(safe + safe * (safe / (1.0 + sqrt(1.0 + safe * safe))))
    return copysign(core.where(size > LARGE, log(size) + LOG_2, near).to(x.dtype), x)


@language_function
def acosh(x):
    """Inverse hyperbolic cosine; NaN below 1. Within 4 units in the last place."""
    wide = _wide(x)
    excess = core.where(wide > LARGE, 1.0, wide - 1.0)
    near = log1p(excess + sqrt(excess * (excess + 2.0)))
    return core.where(wide < 1.0, float("nan"), core.where(wide > LARGE, log(wide) + LOG_2, near)).to(x.dtype)


@language_function
def atanh(x):
    """Inverse hyperbolic tangent; NaN outside [-1, 1]. Within 4 units in the last place."""
    size = abs(_wide(x))
    ends = size == 1.0
    inner = core.where(ends, 0.0, size)
    result = core.where(ends, float("inf"), 0.5 * log1p(2.0 * (inner / (1.0 - inner))))
    return copysign(core.where(size > 1.0, float("nan"), result).to(x.dtype), x)


@language_function
def saturatef(x):
    """x kept between 0 and 1; NaN gives 0."""
    return core.where(x > 0.0, core.minimum(x, 1.0), 0.0).to(x.dtype)


@language_function
def rcp64h(x):
    """1 / x of a float64, in its upper half only: the lower 32 bits are zero."""
    bits = (1.0 / x).to(uint64, bitcast=True)
    return ((bits >> 32) << 32).to(float64, bitcast=True)


@language_function
def isfinited(x):
    """Whether x is neither infinite nor NaN."""
    return abs(x) < float("inf")


@language_function
def llround(x):
    """The nearest whole number, halves away from zero, as int64; kept inside its range, 0 for NaN."""
    return double2ll_rn(round(x))


@language_function
def remainder(x, y):
    """x - n y for the whole number n nearest to x / y, halves to even; exact (IEEE 754)."""
    divisor = abs(y)
    double = 2.0 * divisor
    whole = double < float("inf")
    # One remainder by 2 y tells the parity of n, two subtractions do the rest.
    left = core.where(whole, abs(x) % core.where(whole, double, divisor), abs(x))
    half = 0.5 * divisor
    tiny = divisor < 1e-30  # half of it may be rounded there: left is doubled instead, which cannot overflow
    first = core.where(tiny, left + left > divisor, left > half)
    left = core.where(first, left - divisor, left)
    second = first & core.where(tiny, left + left >= divisor, left >= half)
    left = core.where(second, left - divisor, left)
    result = core.where(left == 0, copysign(core.full(x.shape, 0.0, x.dtype), x), core.where(signbit(x), -left, left))
    result = core.where(divisor == float("inf"), x, result)
    invalid = (x != x) | (y != y) | (abs(x) == float("inf")) | (y == 0)
    return core.where(invalid, float("nan"), result).to(x.dtype)


@language_function
def fast_tanf(x):
    """Tangent of x in radians."""
    return sin(x) / cos(x)


@language_function
def fast_exp10f(x):
    """10 to the power x."""
    return exp(x * LOG_10)


@language_function
def fast_log10f(x):
    """Logarithm to base 10."""
    return log(x) * LOG10_E


@language_function
def rcbrt(x):
    """1 / cube root."""
    return 1.0 / cbrt(x)


@language_function
def _length(x, y, z, w):
    """The length of four numbers, scaled by the largest; infinite if one is, else NaN if one is."""
    # The largest is not NaN unless all are: a NaN comes back through its square.
    largest = core.maximum(core.maximum(abs(x), abs(y)), core.maximum(abs(z), abs(w)))
    scale = core.where((largest == 0.0) | (largest == float("inf")), 1.0, largest)
    a, b, c, d = x / scale, y / scale, z / scale, w / scale
    length = scale * sqrt((a * a + b * b) + (c * c + d * d))
    return core.where(largest == float("inf"), largest, length).to(x.dtype)


@language_function
def rhypot(x, y):
    """1 / the length of (x, y)."""
    return 1.0 / hypot(x, y)


@language_function
def norm3d(x, y, z):
    """The length of three numbers, without overflow on the way."""
    return _length(x, y, z, core.full(x.shape, 0.0, x.dtype))


@language_function
def rnorm3d(x, y, z):
    """1 / the length of three numbers."""
    return 1.0 / norm3d(x, y, z)


@language_function
def norm4d(x, y, z, w):
    """The length of four numbers, without overflow on the way."""
    return _length(x, y, z, w)


@language_function
def rnorm4d(x, y, z, w):
    """1 / the length of four numbers."""
    return 1.0 / norm4d(x, y, z, w)


__all__ = [
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "brev", "byte_perm", "cbrt", "ceil", "clz",
    "copysign", "cos", "cosh", "cospi", "cyl_bessel_i0", "cyl_bessel_i1", "double2hiint", "double2loint",
    "double_as_longlong", "erf", "erfc", "erfcinv", "erfcx", "erfinv", "exp", "exp10", "exp2", "expm1", "fabs",
    "fast_cosf", "fast_dividef", "fast_exp10f", "fast_exp2f", "fast_expf", "fast_log10f", "fast_log2f", "fast_logf",
    "fast_powf", "fast_sinf", "fast_tanf", "fast_tanhf", "fdim", "ffs", "finitef", "float_as_int", "float_as_uint",
    "floor", "fma", "fmaf", "fmax", "fmin", "fmod", "hadd", "hiloint2double", "hypot", "ilogb", "int_as_float",
    "isfinited", "isinf", "isnan", "j0", "j1", "jn", "ldexp", "lgamma", "llrint", "llround", "log", "log10", "log1p",
    "log2", "logb", "longlong_as_double", "mul24", "mulhi", "nearbyint", "nextafter", "norm3d", "norm4d", "normcdf",
    "normcdfinv", "popc", "pow", "rcbrt", "rcp", "rcp64h", "remainder", "rhadd", "rhypot", "rint", "rnorm3d",
    "rnorm4d", "round", "rsqrt", "rsqrt_rn", "sad", "saturatef", "scalbn", "signbit", "sin", "sinh", "sinpi", "sqrt",
    "tan", "tanh", "tgamma", "trunc", "uint_as_float", "umulhi", "y0", "y1", "yn",
    *_ROUNDED,
]  # fmt: skip
written["libdevice"] = {name: globals()[name] for name in __all__}
