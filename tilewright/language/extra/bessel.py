"""Bessel functions: Chebyshev series up to 8, amplitude and phase beyond; recurrences for whole orders.

They compute in float64.  Near zeros, and for float64 arguments beyond 8, the error is relative to the function's
amplitude: a few times 1e-16 times the argument's own rounding.
"""

# Their bodies are tile language, which Python's type rules do not describe.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False
# mypy: disable-error-code="assignment,attr-defined,operator,call-arg,arg-type"
from __future__ import annotations

from tilewright.language import core
from tilewright.language.extra.special import INFINITY, NAN, ROOT_HALF, chebyshev, float_of
from tilewright.language.extra.tables import (
    I0_FAR,
    I0_NEAR,
    I1_FAR,
    I1_NEAR,
    J0_NEAR,
    J1_NEAR,
    P0_FAR,
    P1_FAR,
    Q0_FAR,
    Q1_FAR,
    Y0_NEAR,
    Y1_NEAR,
)
from tilewright.language.function import language_function
from tilewright.language.math import abs, cos, exp, log, sin, sqrt
from tilewright.language.standard import max as largest
from tilewright.language.types import float64, int32

TWO_OVER_PI = 0.6366197723675814
LARGEST_BY_SERIES = 8.0
HUGE = 1e250


@language_function
def _near(x):
    """The argument of the series on [0, 8]."""
    return core.minimum(x * x, 64.0) * 0.03125 - 1.0


@language_function
def _waves(x, ORDER: core.constexpr):
    """Amplitude times cosine and sine of the phase, for x of at least 8: J and Y of an order (0 or 1)."""
    inverse = LARGEST_BY_SERIES / x
    square = 2.0 * inverse * inverse - 1.0
    cosine, sine = cos(x), sin(x)
    scale = sqrt(TWO_OVER_PI / x) * ROOT_HALF
    if ORDER == 0:
        p, q = chebyshev(square, P0_FAR), chebyshev(square, Q0_FAR) * inverse
        first, second = cosine + sine, sine - cosine  # root 2 times cosine and sine of x - pi / 4
    else:
        p, q = chebyshev(square, P1_FAR), chebyshev(square, Q1_FAR) * inverse
        first, second = sine - cosine, -(cosine + sine)  # of x - 3 pi / 4
    return scale * (p * first - q * second), scale * (p * second + q * first)


@language_function
def _far(x):
    """x where the waves are wanted, a harmless number elsewhere."""
    return core.where((x > LARGEST_BY_SERIES) & (x < INFINITY), x, LARGEST_BY_SERIES)


@language_function
def _first_kind(x, ORDER: core.constexpr):
    size = abs(x)
    wave, _ = _waves(_far(size), ORDER)
    if ORDER == 0:
        value = chebyshev(_near(size), J0_NEAR)
    else:
        value = chebyshev(_near(size), J1_NEAR) * core.minimum(size, LARGEST_BY_SERIES)
    value = core.where(size > LARGEST_BY_SERIES, wave, value)
    value = core.where(size == INFINITY, 0.0, core.where(x != x, x, value))
    if ORDER == 1:
        return core.where(x < 0, -value, value)
    else:
        return value


@language_function
def _second_kind(x, ORDER: core.constexpr):
    near = core.where((x > 0) & (x <= LARGEST_BY_SERIES), x, 1.0)
    _, wave = _waves(_far(x), ORDER)
    logarithm = TWO_OVER_PI * log(0.5 * near)
    if ORDER == 0:
        value = chebyshev(_near(near), Y0_NEAR) + logarithm * chebyshev(_near(near), J0_NEAR)
    else:
        value = near * (chebyshev(_near(near), Y1_NEAR) + logarithm * chebyshev(_near(near), J1_NEAR))
        value = value - TWO_OVER_PI / near
    value = core.where(x > LARGEST_BY_SERIES, wave, value)
    value = core.where(x == INFINITY, 0.0, core.where(x == 0, -INFINITY, value))
    return core.where((x < 0) | (x != x), NAN, value)


@language_function
def j0(x):
    """Bessel function of the first kind, order 0."""
    return _first_kind(x.to(float64), 0).to(float_of(x.dtype))


@language_function
def j1(x):
    """Bessel function of the first kind, order 1."""
    return _first_kind(x.to(float64), 1).to(float_of(x.dtype))


@language_function
def y0(x):
    """Bessel function of the second kind, order 0; -inf at 0, NaN below."""
    return _second_kind(x.to(float64), 0).to(float_of(x.dtype))


@language_function
def y1(x):
    """Bessel function of the second kind, order 1; -inf at 0, NaN below."""
    return _second_kind(x.to(float64), 1).to(float_of(x.dtype))


@language_function
def _greatest(n):
    """The greatest of all orders, as a scalar."""
    if len(n.shape) == 0:
        return n.to(int32)
    else:
        return largest(n.to(int32))


@language_function
def yn(n, x):
    """Bessel function of the second kind of a whole order n, by recurrence; NaN for negative orders and arguments."""
    wide = x.to(float64)
    order = core.to_tensor(n).to(int32) + core.full(x.shape, 0, int32)
    before, last = _second_kind(wide, 0), _second_kind(wide, 1)
    result = core.where(order == 0, before, last)
    inverse = 2.0 / core.where(wide > 0, wide, 1.0)
    for k in range(1, _greatest(order)):
        following = k.to(float64) * inverse * last - before
        following = core.where(last == -INFINITY, -INFINITY, following)
        before = last
        last = following
        result = core.where(order == k + 1, last, result)
    return core.where((order < 0) | (wide < 0), NAN, result).to(float_of(x.dtype))


@language_function
def jn(n, x):
    """Bessel function of the first kind of a whole order n; NaN for negative orders.

    Upward recurrence where the argument exceeds the order, else Miller's downward one, scaled by
    J0 + 2 J2 + 2 J4 + ... = 1 (F. W. J. Olver, "Numerical solution of second-order linear difference equations", 1967).
    """
    wide = x.to(float64)
    size = abs(wide)
    order = core.to_tensor(n).to(int32) + core.full(x.shape, 0, int32)
    greatest = _greatest(order)
    safe = core.where((size > 0) & (size < INFINITY), size, 1.0)
    before, last = _first_kind(safe, 0), _first_kind(safe, 1)
    upward = core.where(order == 0, before, last)
    inverse = 2.0 / safe
    for k in range(1, greatest):
        following = k.to(float64) * inverse * last - before
        before = last
        last = following
        upward = core.where(order == k + 1, last, upward)

    start = 2 * ((greatest + sqrt(40.0 * greatest.to(float64)).to(int32)) // 2 + 12)
    after = core.full(size.shape, 0.0, float64)
    value = core.full(size.shape, 1e-300, float64)
    total = core.full(size.shape, 0.0, float64)
    downward = core.full(size.shape, 0.0, float64)
    for step in range(0, start):
        k = start - step  # value is proportional to J of this order
        downward = core.where(order == k, value, downward)
        total = total + core.where(k % 2 == 0, 2.0 * value, 0.0)
        following = k.to(float64) * inverse * value - after
        after = value
        value = following
        grown = core.where(abs(value) > HUGE, 1.0 / HUGE, 1.0)
        after, value, total, downward = after * grown, value * grown, total * grown, downward * grown
    downward = core.where(order == 0, value, downward)
    downward = downward / (total + value)

    result = core.where(order.to(float64) < size, upward, downward)
    result = core.where(order == 0, _first_kind(size, 0), core.where(order == 1, _first_kind(size, 1), result))
    result = core.where((size == 0) & (order > 0), 0.0, core.where(size == INFINITY, 0.0, result))
    result = core.where((wide < 0) & (order % 2 == 1), -result, result)
    return core.where((order < 0) | (wide != wide), NAN, result).to(float_of(x.dtype))


@language_function
def _modified(x, NEAR: core.constexpr, FAR: core.constexpr):
    """exp(-x) times I(x) (over x below 8 for order 1), and exp(x), for x of at least 0."""
    near = chebyshev(core.minimum(x, LARGEST_BY_SERIES) * 0.25 - 1.0, NEAR)
    distant = core.maximum(x, LARGEST_BY_SERIES)
    far = chebyshev(2.0 * (LARGEST_BY_SERIES / distant) - 1.0, FAR) / sqrt(distant)
    return near, far


@language_function
def _grown(value, x):
    """value * exp(x), without overflow before the product does."""
    half = exp(0.5 * x)
    return core.where(x == INFINITY, x, value * half * half)


@language_function
def cyl_bessel_i0(x):
    """Modified Bessel function of the first kind, order 0. Within 6 units in the last place."""
    wide = x.to(float64)
    size = abs(wide)
    near, far = _modified(size, I0_NEAR, I0_FAR)
    result = _grown(core.where(size > LARGEST_BY_SERIES, far, near), size)
    return core.where(wide != wide, wide, result).to(float_of(x.dtype))


@language_function
def cyl_bessel_i1(x):
    """Modified Bessel function of the first kind, order 1. Within 6 units in the last place."""
    wide = x.to(float64)
    size = abs(wide)
    near, far = _modified(size, I1_NEAR, I1_FAR)
    result = _grown(core.where(size > LARGEST_BY_SERIES, far, near * core.minimum(size, LARGEST_BY_SERIES)), size)
    return core.where(wide != wide, wide, core.where(wide < 0, -result, result)).to(float_of(x.dtype))


__all__ = ["cyl_bessel_i0", "cyl_bessel_i1", "j0", "j1", "jn", "y0", "y1", "yn"]
