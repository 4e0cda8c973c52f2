"""Scalar functions of the graph ops, in the tile language: what generated kernels call."""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl


@tilewright.jit
def fitting(mask, offset):
    """The mask of a load at `offset`: none where that is one number, which is loaded once for all lanes."""
    if len(offset.shape) == 0:
        result = None
    else:
        result = mask
    return result


@tilewright.jit
def copies(offset, inside):
    """The offset of a load under `inside`: a block of copies of a single one where the condition is a block."""
    if len(offset.shape) == 0 and len(inside.shape) > 0:
        result = tl.where(inside, offset, offset)
    else:
        result = offset
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
def total(x, y):
    """The sum of two numbers."""
    return x + y


@tilewright.jit
def times(x, y):
    """The product of two numbers."""
    return x * y


@tilewright.jit
def log_add(x, y):
    """log(e^x + e^y); NaN if either is."""
    smaller = tl.exp(tl.where(x == y, tl.zeros_like(x), -tl.abs(x - y)))  # infinite ones may be equal
    terms = 1.0 + smaller
    return maximum(x, y) + (tl.log(terms) + (smaller - (terms - 1.0)))  # and what rounding them took


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
def safe_divisor(y):
    """y, but 1 where a division of integers by it may end the process: 0, and -1, by which the least one has no answer.
    The remainder is 0 then, as that of -1 is."""
    bad = y == 0
    if y.dtype.is_int_signed():
        bad = bad | (y == -1)
    return tl.where(bad, 1, y).to(y.dtype)


@tilewright.jit
def divide_integers(x, y):
    """x / y of integers, towards zero; 0 where y is 0, and the least integer divided by -1 is itself."""
    result = tl.where(y == 0, 0, x // safe_divisor(y)).to(x.dtype)
    if y.dtype.is_int_signed():
        result = tl.where(y == -1, 0 - x, result).to(x.dtype)
    return result


@tilewright.jit
def floor_remainder(x, y):
    """x - y floor(x / y): the sign of y."""
    rest = x % y
    return tl.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest)


@tilewright.jit
def floor_divide_integers(x, y):
    """floor(x / y) of integers."""
    rest = x % safe_divisor(y)
    return divide_integers(x, y) - ((rest != 0) & ((rest < 0) != (y < 0))).to(x.dtype)


@tilewright.jit
def floor_remainder_of_integers(x, y):
    """x - y floor(x / y) of integers; 0 where y is 0."""
    return floor_remainder(x, safe_divisor(y))


@tilewright.jit
def integer_power(x, y):
    """x to the power y, modulo 2^bits; of negative powers the whole part, as PyTorch takes it (0 for x = 0)."""
    result = x * 0 + y * 0 + 1
    base = x + y * 0
    rest = y
    for _ in range(0, y.dtype.primitive_bitwidth - 1):
        result = tl.where((rest & 1) != 0, result * base, result)
        base = base * base
        rest = rest >> 1
    return tl.where(y < 0, tl.where(x == 1, x, tl.where(x + 1 == 0, tl.where((y & 1) != 0, x, x * x), x * 0)), result)


@tilewright.jit
def floor_divide_floats(x, y):
    """floor(x / y) of floats, exact before it is rounded once; NaN where x is infinite, x / y where y is 0."""
    rest = x % y
    whole = (x - rest) / y
    whole = tl.where((rest != 0) & ((rest < 0) != (y < 0)), whole - 1, whole)
    near = tl.floor(whole)
    near = tl.where(whole - near > 0.5, near + 1, near)
    near = tl.where(whole == 0, x / y * 0.0, near)  # a zero has the sign of the quotient
    return tl.where(y == 0, x / y, near)


@tilewright.jit
def truncate_to_int32(x):
    """A float towards zero; the least int32 for NaN and what int32 does not hold, as the instruction of x86 gives."""
    return tl.where((x > -2147483649.0) & (x < 2147483648.0), x, -2147483648.0).to(tl.int32)


@tilewright.jit
def truncate_to_int64(x):
    """The same for int64."""
    return tl.where((x >= -9223372036854775808.0) & (x < 9223372036854775808.0), x, -9223372036854775808.0).to(tl.int64)


@tilewright.jit
def truncate_to_uint64(x):
    """The same modulo 2^64, with numbers from 2^63 to 2^64 as they are."""
    large = x >= 9223372036854775808.0
    near = truncate_to_int64(tl.where(large, x - 9223372036854775808.0, x))
    return tl.where(large, near ^ (-9223372036854775807 - 1), near).to(tl.uint64)


@tilewright.jit
def round_to_float8(x, TYPE: tl.constexpr, LIMIT: tl.constexpr, BEYOND: tl.constexpr):
    """x rounded to an 8-bit float; the bits `BEYOND`, with the sign of x, where |x| is not below `LIMIT`."""
    bits = x.to(TYPE).to(tl.uint8, bitcast=True)
    beyond = tl.where(x < 0, BEYOND | 0x80, BEYOND).to(tl.uint8)
    return tl.where(tl.abs(x) < LIMIT, bits, tl.where(x != x, bits, beyond)).to(TYPE, bitcast=True)


@tilewright.jit
def shift_left(x, y):
    """x 2^y in the integer type of x; 0 where y is negative or at least the type's width."""
    inside = (y >= 0) & (y < x.dtype.primitive_bitwidth)
    return tl.where(inside, x << tl.where(inside, y, 0), 0).to(x.dtype)


@tilewright.jit
def shift_right(x, y):
    """floor(x / 2^y) of integers; where y is negative or at least the type's width, as for the widest shift."""
    widest = x.dtype.primitive_bitwidth - 1
    inside = (y >= 0) & (y <= widest)
    near = x >> tl.where(inside, y, widest)
    return tl.where(inside | (x < 0), near, 0).to(x.dtype)


@tilewright.jit
def random_bits(place, seed, stream: tl.constexpr):
    """64 random bits of a place in a stream, by Philox with the seed as its key."""
    low, high, _, _ = tl.philox(seed, place.to(tl.uint32), (place >> 32).to(tl.uint32), stream, 0)
    return (high.to(tl.uint64) << 32 | low.to(tl.uint64)).to(tl.int64, bitcast=True)
