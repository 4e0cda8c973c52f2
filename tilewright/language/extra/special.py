"""Special functions: error functions and their inverses, gamma functions, and functions of multiples of pi.

They compute in float64, whatever the argument's dtype, so that float32 results are correct but for the last rounding.
"""

# Their bodies are tile language, which Python's type rules do not describe.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False, disable-error-code="assignment,attr-defined,operator"
from __future__ import annotations

from tilewright.language import core
from tilewright.language import math as tl_math
from tilewright.language.extra.bits import copysign, ldexp
from tilewright.language.extra.tables import ERFCX, LGAMMA, STIRLING
from tilewright.language.function import language_function
from tilewright.language.math import abs, cos, erf, exp, floor, fma, log, rint, sin, sqrt
from tilewright.language.types import constexpr_function, float32, float64, int32

INFINITY = float("inf")
NAN = float("nan")
PI = 3.141592653589793
ROOT_2 = 1.4142135623730951
ROOT_HALF = 0.7071067811865476
LOG_10 = 2.302585092994046
LOG2_OF_10 = 3.321928094887362
LOG10_OF_2_HIGH = 0.3010299956513336
LOG10_OF_2_LOW = 1.2647602381650425e-11
HALF_ROOT_PI = 0.886226925452758
HALF_LOG_2_PI = 0.9189385332046728
ERFCX_SCALE = 3.75  # the series is in (x - 3.75) / (x + 3.75)
STIRLING_FROM = 10.0
GAMMA_STEPS = 31  # arguments of the gamma function up to 33.5 are brought to [1.5, 2.5] by its recurrence


@constexpr_function
def float_of(dtype):
    """The dtype of a function's result: that of a float argument, float32 for integers."""
    return dtype if dtype.is_floating() else float32


@language_function
def chebyshev(t, coefficients: core.constexpr):
    """A Chebyshev series at t in [-1, 1] by Clenshaw's recurrence; the coefficient of the highest degree first."""
    twice = t + t
    last = core.full(t.shape, coefficients[0], t.dtype)
    before = core.full(t.shape, 0.0, t.dtype)
    for coefficient in coefficients[1:-1]:
        following = twice * last - before + coefficient
        before = last
        last = following
    return t * last - before + coefficients[-1]


@language_function
def polynomial(x, coefficients: core.constexpr):
    """A polynomial, the coefficient of the lowest degree first, by Horner's rule."""
    result = core.full(x.shape, coefficients[-1], x.dtype)
    for coefficient in coefficients[-2::-1]:
        result = result * x + coefficient
    return result


@language_function
def logarithm_1p(x):
    """log(1 + x), accurate near 0: the rounding of 1 + x is divided out (W. Kahan)."""
    shifted = 1.0 + x
    near = shifted == 1.0
    safe = core.where(near, 2.0, shifted)
    far = core.where(shifted == INFINITY, shifted, log(safe) * (x / (safe - 1.0)))
    return core.where(near, x, far).to(x.dtype)


@language_function
def power_of_ten(x):
    """10 to the power x for float64: the power of two is split off exactly, the rest is below log(2) / 2."""
    bounded = core.clamp(x, -400.0, 400.0)
    whole = rint(bounded * LOG2_OF_10)
    # log10(2) in two parts, the first with few enough digits that products with whole numbers are exact.
    rest = (bounded - whole * LOG10_OF_2_HIGH) - whole * LOG10_OF_2_LOW
    return core.where(x != x, x, ldexp(exp(rest * LOG_10), whole.to(int32)))


# Functions of multiples of pi --------------------------------------------------------------------


@language_function
def _quadrant(x):
    """x in half turns as a quadrant (0 to 3) and an angle from -pi / 4 to pi / 4."""
    half_turns = x - 2.0 * rint(0.5 * x)
    quarters = rint(2.0 * half_turns)
    return quarters - 4.0 * floor(0.25 * quarters), (half_turns - 0.5 * quarters) * PI


@language_function
def _sine_of_turns(x):
    """sin(pi x) for float64, exact zeros at whole numbers."""
    quadrant, angle = _quadrant(x)
    odd = (quadrant == 1.0) | (quadrant == 3.0)
    value = core.where(odd, cos(angle), sin(angle))
    return core.where(quadrant >= 2.0, -value, value)


@language_function
def sinpi(x):
    """Sine of pi times x; exact at multiples of a half. Within 2 units in the last place."""
    wide = x.to(float64)
    value = _sine_of_turns(wide)
    return copysign(value, core.where(value == 0, wide, value)).to(float_of(x.dtype))


@language_function
def cospi(x):
    """Cosine of pi times x; exact at multiples of a half. Within 2 units in the last place."""
    quadrant, angle = _quadrant(x.to(float64))
    odd = (quadrant == 1.0) | (quadrant == 3.0)
    value = core.where(odd, sin(angle), cos(angle))
    value = core.where((quadrant == 1.0) | (quadrant == 2.0), -value, value)
    return core.where(value == 0, 0.0, value).to(float_of(x.dtype))


# Error functions ---------------------------------------------------------------------------------


@language_function
def _scaled_complement(x):
    """exp(x * x) * erfc(x) for x of at least 0, by one Chebyshev series.

    M. M. Shepherd and J. G. Laframboise, "Chebyshev approximation of (1 + 2x) exp(x^2) erfc x" (1981).
    """
    bounded = core.minimum(x, 1e300)
    t = (bounded - ERFCX_SCALE) / (bounded + ERFCX_SCALE)
    return chebyshev(t, ERFCX) / (1.0 + 2.0 * bounded)


@language_function
def _exp_of_square(x, SIGN: core.constexpr):
    """exp(x * x), or exp(-x * x): the rounding of the square is made good."""
    square = x * x
    error = fma(x, x, -square)
    finite = square < INFINITY
    correction = core.where(finite, error, 0.0)
    return exp(SIGN * square) * (1.0 + SIGN * correction)


@language_function
def _complement(x):
    """erfc for float64."""
    size = abs(x)
    value = _scaled_complement(size) * _exp_of_square(size, -1.0)
    value = core.where(size > 28.0, 0.0, value)
    return core.where(x != x, x, core.where(x < 0, 2.0 - value, value))


@language_function
def erfc(x):
    """1 - erf(x), without cancellation. Within 4 units in the last place."""
    return _complement(x.to(float64)).to(float_of(x.dtype))


@language_function
def erfcx(x):
    """exp(x * x) * erfc(x). Within 4 units in the last place."""
    wide = x.to(float64)
    size = abs(wide)
    value = _scaled_complement(size)
    negative = core.where(size > 27.0, INFINITY, 2.0 * _exp_of_square(core.minimum(size, 27.0), 1.0) - value)
    value = core.where(size == INFINITY, 0.0, value)
    return core.where(wide != wide, wide, core.where(wide < 0, negative, value)).to(float_of(x.dtype))


@language_function
def normcdf(x):
    """The distribution function of the standard normal distribution. Within 5 units in the last place."""
    wide = x.to(float64)
    size = abs(wide)
    argument = size * ROOT_HALF
    tail = 0.5 * _scaled_complement(argument) * _exp_of_half_square(size)
    tail = core.where(size > 39.0, 0.0, tail)
    return core.where(wide != wide, wide, core.where(wide > 0, 1.0 - tail, tail)).to(float_of(x.dtype))


@language_function
def _exp_of_half_square(x):
    """exp(-x * x / 2), the rounding of the square made good."""
    square = x * x
    error = fma(x, x, -square)
    return exp(-0.5 * square) * (1.0 - 0.5 * core.where(square < INFINITY, error, 0.0))


@language_function
def _inverse_complement(y):
    """The x of at least 0 whose erfc is y, for y in (0, 1].

    Newton's method with its third-order correction, from the first terms of the asymptotic series.
    """
    level = sqrt(-2.0 * log(0.5 * y))
    # A rational start for the normal quantile: C. Hastings, "Approximations for digital computers" (1955), sheet 67.
    top = 2.30753 + 0.27061 * level
    bottom = 1.0 + level * (0.99229 + 0.04481 * level)
    root = core.maximum((level - top / bottom) * ROOT_HALF, 0.0)
    for _ in core.static_range(3):
        # (erfc(x) - y) over the slope, with both sides scaled by exp(x * x).
        excess = HALF_ROOT_PI * (_scaled_complement(root) - y * _exp_of_square(root, 1.0))
        root = root + excess / (1.0 - root * excess)
    return root


@language_function
def _inverse_near(x):
    """erfinv for |x| up to 1 / 2: Newton's method with its third-order correction on erf."""
    root = HALF_ROOT_PI * x * (1.0 + x * x * (PI / 12.0))
    for _ in core.static_range(3):
        excess = HALF_ROOT_PI * (erf(root) - x) * _exp_of_square(root, 1.0)
        root = root - excess / (1.0 + root * excess)
    return root


@language_function
def erfinv(x):
    """The inverse of erf; NaN outside [-1, 1]. Within 4 units in the last place."""
    wide = x.to(float64)
    size = abs(wide)
    near = _inverse_near(core.where(size < 0.5, wide, 0.0))
    far = _inverse_complement(core.where((size >= 0.5) & (size < 1.0), 1.0 - size, 0.5))
    far = core.where(size == 1.0, INFINITY, core.where(size > 1.0, NAN, far))
    result = core.where(size < 0.5, near, copysign(far, wide))
    return core.where(wide != wide, wide, result).to(float_of(x.dtype))


@language_function
def _quantile_of_complement(y):
    """The inverse of erfc for float64."""
    middle = (y >= 0.5) & (y <= 1.5)
    lower = core.where((y > 0.0) & (y < 0.5), y, 0.5)
    upper = core.where((y > 1.5) & (y < 2.0), 2.0 - y, 0.5)
    low, high = _inverse_complement(lower), -_inverse_complement(upper)
    near = _inverse_near(core.where(middle, 1.0 - y, 0.0))
    result = core.where(middle, near, core.where(y < 0.5, low, high))
    result = core.where(y == 0.0, INFINITY, core.where(y == 2.0, -INFINITY, result))
    return core.where((y < 0.0) | (y > 2.0) | (y != y), NAN, result)


@language_function
def erfcinv(x):
    """The inverse of erfc; NaN outside [0, 2]. Within 4 units in the last place."""
    return _quantile_of_complement(x.to(float64)).to(float_of(x.dtype))


@language_function
def normcdfinv(x):
    """The inverse of normcdf; NaN outside [0, 1]. Within 5 units in the last place."""
    return (-ROOT_2 * _quantile_of_complement(2.0 * x.to(float64))).to(float_of(x.dtype))


# Gamma functions ---------------------------------------------------------------------------------


@language_function
def _log_gamma_near(offset):
    """The logarithm of the gamma function at 2 + offset, |offset| up to 1 / 2."""
    return offset * chebyshev(2.0 * offset, LGAMMA)


@language_function
def _stirling(x):
    """What the series of Stirling adds to (x - 1/2) log x - x + log(2 pi) / 2."""
    inverse = 1.0 / x
    return inverse * polynomial(inverse * inverse, STIRLING)


@language_function
def _log_gamma(x):
    """The logarithm of the gamma function for x above 0."""
    large = x >= STIRLING_FROM
    far = core.where(large, core.minimum(x, 1e306), STIRLING_FROM)
    logarithm = log(far)
    series = far * (logarithm - 1.0) - 0.5 * logarithm + (HALF_LOG_2_PI + _stirling(far))
    # Steps down to [1.5, 2.5], their factors collected.
    near = core.where(large, 2.0, x)
    factors = core.full(x.shape, 1.0, float64)
    for _ in core.static_range(8):
        down = near > 2.5
        near = core.where(down, near - 1.0, near)
        factors = core.where(down, factors * near, factors)
    up = near < 0.5
    below = near < 1.5
    offset = core.where(up, near, core.where(below, near - 1.0, near - 2.0))
    value = _log_gamma_near(offset) + log(factors)
    value = value - core.where(below & ~up, logarithm_1p(core.where(below & ~up, offset, 0.0)), 0.0)
    small = core.where(up, near, 1.0)
    value = core.where(up, value - log(small) - logarithm_1p(small), value)
    result = core.where(large, series, value)
    return core.where(x > 2.5e305, INFINITY, result)


@language_function
def lgamma(x):
    """The logarithm of the gamma function's absolute value; infinite at 0 and below at whole numbers.

    Within 6 units in the last place for x above 0; below, within 1e-15 of the greater of 1 and its size.
    """
    wide = x.to(float64)
    size = abs(wide)
    positive = core.where((wide > 0) & (wide < INFINITY), wide, 1.0)
    value = _log_gamma(positive)
    negative = core.where((wide < 0) & (size < INFINITY), size, 0.5)
    sine = abs(_sine_of_turns(negative))
    pole = sine == 0.0
    mirrored = log(PI / (core.where(pole, 1.0, sine) * negative)) - _log_gamma(negative)
    mirrored = core.where(pole, INFINITY, mirrored)
    result = core.where(wide > 0, value, mirrored)
    result = core.where((wide == 0) | (size == INFINITY), INFINITY, result)
    return core.where(wide != wide, wide, result).to(float_of(x.dtype))


@language_function
def _gamma(x):
    """The gamma function for x from 1 / 2 on: its recurrence up to 33.5, then Stirling's series."""
    far = core.minimum(core.maximum(x, 33.0), 172.0)
    half = tl_math.pow(far, 0.5 * far - 0.25)
    series = half * (half * exp(-far)) * exp(HALF_LOG_2_PI + _stirling(far))
    near = core.where(x > 33.5, 2.0, x)
    factors = core.full(x.shape, 1.0, float64)
    for _ in core.static_range(GAMMA_STEPS):
        down = near > 2.5
        near = core.where(down, near - 1.0, near)
        factors = core.where(down, factors * near, factors)
    below = near < 1.5
    divisor = core.where(below, near, 1.0)
    offset = core.where(below, near - 1.0, near - 2.0)
    value = exp(_log_gamma_near(offset)) * factors / divisor
    return core.where(x > 171.7, INFINITY, core.where(x > 33.5, series, value))


@language_function
def tgamma(x):
    """The gamma function; NaN below 0 at whole numbers.

    Within 20 units in the last place for float64, correct to the last one for float32.
    """
    wide = x.to(float64)
    direct = _gamma(core.where(wide >= 0.5, wide, 0.5))
    # Below 1 / 2 by reflection: gamma(x) gamma(1 - x) = pi / sin(pi x), with gamma(1 - x) = -x gamma(-x) for x < -1/2.
    sine = _sine_of_turns(core.where(wide < 0.5, wide, 0.5))
    pole = (sine == 0.0) & (wide != 0)
    deep = wide < -0.5
    other = _gamma(core.minimum(core.where(deep, -wide, core.where(wide < 0.5, 1.0 - wide, 1.0)), 171.6))
    other = core.where(deep, -wide * other, other)
    mirrored = PI / (core.where(sine == 0.0, 1.0, sine) * other)
    mirrored = core.where(wide < -170.6, mirrored * 0.0, mirrored)
    mirrored = core.where(pole | (wide == -INFINITY), NAN, mirrored)
    mirrored = core.where(wide == 0, 1.0 / wide, mirrored)
    result = core.where(wide >= 0.5, direct, mirrored)
    return core.where(wide != wide, wide, result).to(float_of(x.dtype))


__all__ = [
    "cospi", "erfc", "erfcinv", "erfcx", "erfinv", "lgamma", "normcdf", "normcdfinv", "sinpi", "tgamma",
]  # fmt: skip
