"""Scalar functions of the graph ops, in the tile language: what generated kernels call."""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl
from tilewright.language.extra import libdevice


@tilewright.jit
def both(mask, condition):
    """The conjunction of a mask, which may be None, and a condition."""
    if mask is None:
        result = condition
    else:
        result = mask & condition
    return result


@tilewright.jit
def fitting(mask, offset):
    """The mask of a load at `offset`: none where that is one number, which is loaded once for all lanes."""
    if len(offset.shape) == 0:
        result = None
    else:
        result = mask
    return result


@tilewright.jit
def maximum(x, y):
    """The larger of two numbers; NaN if either is."""
    return tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)


@tilewright.jit
def minimum(x, y):
    """The smaller of two numbers; NaN if either is."""
    return tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL)


@tilewright.jit
def sign(x):
    """-1, 0 or 1; NaN stays NaN."""
    return tl.where(x > 0, tl.full((), 1, x.dtype), tl.where(x < 0, tl.full((), -1, x.dtype), x))


@tilewright.jit
def sigmoid(x):
    """1 / (1 + e^-x)."""
    return 1.0 / (1.0 + tl.exp(-x))


@tilewright.jit
def silu(x):
    """x sigmoid(x)."""
    return x / (1.0 + tl.exp(-x))


@tilewright.jit
def gelu(x):
    """x Phi(x), with the error function."""
    return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))


@tilewright.jit
def gelu_tanh(x):
    """The tanh form of GELU."""
    return 0.5 * x * (1.0 + tl.math.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


@tilewright.jit
def floor_remainder(x, y):
    """x - y floor(x / y): the sign of y."""
    rest = x % y
    return tl.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest)


@tilewright.jit
def floor_divide_integers(x, y):
    """floor(x / y) of integers."""
    return (x - floor_remainder(x, y)) // y


@tilewright.jit
def floor_divide_floats(x, y):
    """floor(x / y) of floats."""
    return tl.floor(x / y)


@tilewright.jit
def shift_left(x, y):
    """x 2^y in the integer type of x; 0 where y is negative or at least the type's width."""
    inside = (y >= 0) & (y < x.dtype.primitive_bitwidth)
    return tl.where(inside, x << tl.where(inside, y, 0), 0)


@tilewright.jit
def shift_right(x, y):
    """floor(x / 2^y) of integers; where y is negative or at least the type's width, as for the widest shift."""
    widest = x.dtype.primitive_bitwidth - 1
    inside = (y >= 0) & (y <= widest)
    near = x >> tl.where(inside, y, widest)
    return tl.where(inside | (x < 0), near, 0)


@tilewright.jit
def arcsine(x):
    """Arcsine; NaN outside [-1, 1]."""
    return libdevice.asin(x)


@tilewright.jit
def arccosine(x):
    """Arccosine; NaN outside [-1, 1]."""
    return libdevice.acos(x)


@tilewright.jit
def arctangent(x):
    """Arctangent, from -pi/2 to pi/2."""
    return libdevice.atan(x)


@tilewright.jit
def arctangent_of_two(y, x):
    """The angle of the point (x, y), from -pi to pi."""
    return libdevice.atan2(y, x)


@tilewright.jit
def inverse_error_function(x):
    """The inverse of erf; NaN outside [-1, 1]."""
    return libdevice.erfinv(x)


@tilewright.jit
def log_gamma(x):
    """The logarithm of the gamma function's absolute value."""
    return libdevice.lgamma(x)
