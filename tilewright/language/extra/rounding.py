"""Arithmetic and conversions rounded in a given direction: _rn to nearest even, _rz toward zero, _rd down, _ru up.

The result to nearest is corrected by one step where the sign of its error says so.  The error of a sum, product,
quotient or root is itself computed from floats, exactly enough for its sign: sums by Knuth's two-sum, the others by
a fused multiply-add; float32 operands are widened to float64 first.  Subnormal float64 results of products,
quotients and roots may be one step off in the directed modes.
"""

# Their bodies are tile language, which Python's type rules do not describe.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False
# mypy: disable-error-code="assignment,attr-defined,operator,call-arg,arg-type"
from __future__ import annotations

from tilewright.language import core
from tilewright.language import math as tl_math
from tilewright.language.extra.bits import step_down, step_up
from tilewright.language.extra.special import INFINITY
from tilewright.language.function import language_function
from tilewright.language.math import abs, fma, sqrt
from tilewright.language.types import float32, float64, int32, int64, uint32, uint64


@language_function
def _directed(high, low, finite, dtype: core.constexpr, MODE: core.constexpr):
    """`high` (float64) plus an error of the sign of `low`, rounded to a dtype.

    `finite` says where the exact result is: an infinite `high` has overflowed there.
    """
    nearest = high.to(dtype)
    overflow = finite & (abs(nearest) == INFINITY)
    distance = high - nearest.to(float64)
    error = core.where(distance == 0, low, distance)
    error = core.where(overflow, -nearest.to(float64), error)
    return _stepped(nearest, error > 0, error < 0, MODE)


@language_function
def _stepped(nearest, above, below, MODE: core.constexpr):
    """The number to nearest, moved a step where the exact one is above or below it."""
    if MODE == "rd":
        return core.where(below, step_down(nearest), nearest)
    elif MODE == "ru":
        return core.where(above, step_up(nearest), nearest)
    else:
        toward_zero = core.where(nearest > 0, step_down(nearest), step_up(nearest))
        return core.where(((nearest > 0) & below) | ((nearest < 0) & above), toward_zero, nearest)


@language_function
def _finite(x):
    return abs(x) < INFINITY


@language_function
def _two_sum(x, y):
    """The sum to nearest and its error (D. Knuth, The Art of Computer Programming, volume 2)."""
    total = x + y
    part = total - x
    return total, (x - (total - part)) + (y - part)


@language_function
def _added(x, y, MODE: core.constexpr):
    wide, other = x.to(float64), y.to(float64)
    total, error = _two_sum(wide, other)
    result = _directed(total, error, _finite(wide) & _finite(other), (x + y).dtype, MODE)
    # An exact zero of two different signs is -0 when rounding down.
    if MODE == "rd":
        return core.where((total == 0) & (wide != 0), -0.0, result).to(result.dtype)
    else:
        return result


@language_function
def _multiplied(x, y, MODE: core.constexpr):
    wide, other = x.to(float64), y.to(float64)
    product = wide * other
    error = fma(wide, other, -product)
    return _directed(product, error, _finite(wide) & _finite(other), (x * y).dtype, MODE)


@language_function
def _divided(x, y, MODE: core.constexpr):
    wide, other = x.to(float64), y.to(float64)
    quotient = wide / other
    left = fma(-quotient, other, wide)
    error = core.where(other < 0, -left, left)
    return _directed(quotient, error, _finite(wide) & (abs(other) > 0) & _finite(other), (x / y).dtype, MODE)


@language_function
def _rooted(x, MODE: core.constexpr):
    wide = x.to(float64)
    root = sqrt(wide)
    return _directed(root, fma(-root, root, wide), _finite(wide), x.dtype, MODE)


@language_function
def _fused(x, y, z, MODE: core.constexpr):
    """The error of a fused multiply-add, after Boldo and Muller, "Exact and approximated error of the FMA" (2011)."""
    a, b, c = x.to(float64), y.to(float64), z.to(float64)
    result = fma(a, b, c)
    product = a * b
    product_error = fma(a, b, -product)
    first, first_error = _two_sum(c, product_error)
    second, second_error = _two_sum(product, first)
    error = ((second - result) + second_error) + first_error
    finite = _finite(a) & _finite(b) & _finite(c)
    return _directed(result, error, finite, (x * y + z).dtype, MODE)


@language_function
def add_rn(x, y):
    """x + y, to nearest."""
    return x + y


@language_function
def add_rz(x, y):
    """x + y, toward zero."""
    return _added(x, y, "rz")


@language_function
def add_rd(x, y):
    """x + y, down."""
    return _added(x, y, "rd")


@language_function
def add_ru(x, y):
    """x + y, up."""
    return _added(x, y, "ru")


@language_function
def sub_rn(x, y):
    """x - y, to nearest."""
    return x - y


@language_function
def sub_rz(x, y):
    """x - y, toward zero."""
    return _added(x, -y, "rz")


@language_function
def sub_rd(x, y):
    """x - y, down."""
    return _added(x, -y, "rd")


@language_function
def sub_ru(x, y):
    """x - y, up."""
    return _added(x, -y, "ru")


@language_function
def mul_rn(x, y):
    """x * y, to nearest."""
    return x * y


@language_function
def mul_rz(x, y):
    """x * y, toward zero."""
    return _multiplied(x, y, "rz")


@language_function
def mul_rd(x, y):
    """x * y, down."""
    return _multiplied(x, y, "rd")


@language_function
def mul_ru(x, y):
    """x * y, up."""
    return _multiplied(x, y, "ru")


@language_function
def div_rn(x, y):
    """x / y, to nearest."""
    return core.div_rn(x, y)


@language_function
def div_rz(x, y):
    """x / y, toward zero."""
    return _divided(x, y, "rz")


@language_function
def div_rd(x, y):
    """x / y, down."""
    return _divided(x, y, "rd")


@language_function
def div_ru(x, y):
    """x / y, up."""
    return _divided(x, y, "ru")


@language_function
def rcp_rn(x):
    """1 / x, to nearest."""
    return core.div_rn(core.full(x.shape, 1.0, x.dtype), x)


@language_function
def rcp_rz(x):
    """1 / x, toward zero."""
    return _divided(core.full(x.shape, 1.0, x.dtype), x, "rz")


@language_function
def rcp_rd(x):
    """1 / x, down."""
    return _divided(core.full(x.shape, 1.0, x.dtype), x, "rd")


@language_function
def rcp_ru(x):
    """1 / x, up."""
    return _divided(core.full(x.shape, 1.0, x.dtype), x, "ru")


@language_function
def sqrt_rn(x):
    """Square root, to nearest."""
    return tl_math.sqrt_rn(x)


@language_function
def sqrt_rz(x):
    """Square root, toward zero."""
    return _rooted(x, "rz")


@language_function
def sqrt_rd(x):
    """Square root, down."""
    return _rooted(x, "rd")


@language_function
def sqrt_ru(x):
    """Square root, up."""
    return _rooted(x, "ru")


@language_function
def fma_rn(x, y, z):
    """x * y + z, rounded once, to nearest."""
    return fma(x, y, z)


@language_function
def fma_rz(x, y, z):
    """x * y + z, rounded once, toward zero."""
    return _fused(x, y, z, "rz")


@language_function
def fma_rd(x, y, z):
    """x * y + z, rounded once, down."""
    return _fused(x, y, z, "rd")


@language_function
def fma_ru(x, y, z):
    """x * y + z, rounded once, up."""
    return _fused(x, y, z, "ru")


# Conversions -------------------------------------------------------------------------------------


@language_function
def _to_integer(x, dtype: core.constexpr, MODE: core.constexpr):
    """A float rounded to a whole number and kept inside an integer dtype; NaN gives 0."""
    wide = x.to(float64)
    if MODE == "rn":
        whole = tl_math.rint(wide)
    elif MODE == "rd":
        whole = tl_math.floor(wide)
    elif MODE == "ru":
        whole = tl_math.ceil(wide)
    else:
        whole = tl_math.trunc(wide)
    bits: core.constexpr = dtype.primitive_bitwidth
    top: core.constexpr = 2.0 ** (bits - 1 if dtype.is_int_signed() else bits)
    bottom: core.constexpr = -top if dtype.is_int_signed() else 0.0
    greatest: core.constexpr = 2 ** (bits - 1) - 1 if dtype.is_int_signed() else 2**bits - 1
    least: core.constexpr = -(2 ** (bits - 1)) if dtype.is_int_signed() else 0
    inside = (whole >= bottom) & (whole < top)
    number = core.where(inside, whole, 0.0).to(dtype)
    limit = core.where(whole >= top, core.full(x.shape, greatest, dtype), core.full(x.shape, least, dtype))
    return core.where(inside | (whole != whole), number, limit)


@language_function
def _to_float(x, dtype: core.constexpr, MODE: core.constexpr):
    """An integer as a float, by comparing the number to nearest with the integer."""
    nearest = x.to(dtype)
    if MODE == "rn":
        return nearest
    else:
        bits: core.constexpr = x.dtype.primitive_bitwidth
        top: core.constexpr = 2.0 ** (bits - 1 if x.dtype.is_int_signed() else bits)
        beyond = nearest.to(float64) >= top
        back = core.where(beyond, 0.0, nearest).to(dtype).to(x.dtype)
        return _stepped(nearest, (back < x) & ~beyond, (back > x) | beyond, MODE)


@language_function
def double2float_rn(x):
    """float64 to float32, to nearest."""
    return x.to(float32)


@language_function
def double2float_rz(x):
    """float64 to float32, toward zero."""
    return _directed(x.to(float64), 0.0, _finite(x), float32, "rz")


@language_function
def double2float_rd(x):
    """float64 to float32, down."""
    return _directed(x.to(float64), 0.0, _finite(x), float32, "rd")


@language_function
def double2float_ru(x):
    """float64 to float32, up."""
    return _directed(x.to(float64), 0.0, _finite(x), float32, "ru")


@language_function
def float2int_rn(x):
    """float32 to int32, to nearest even; kept inside its range."""
    return _to_integer(x, int32, "rn")


@language_function
def float2int_rz(x):
    """float32 to int32, toward zero; kept inside its range."""
    return _to_integer(x, int32, "rz")


@language_function
def float2int_rd(x):
    """float32 to int32, down; kept inside its range."""
    return _to_integer(x, int32, "rd")


@language_function
def float2int_ru(x):
    """float32 to int32, up; kept inside its range."""
    return _to_integer(x, int32, "ru")


@language_function
def float2uint_rn(x):
    """float32 to uint32, seen as int32, to nearest even; kept inside its range."""
    return _to_integer(x, uint32, "rn").to(int32, bitcast=True)


@language_function
def float2uint_rz(x):
    """float32 to uint32, seen as int32, toward zero; kept inside its range."""
    return _to_integer(x, uint32, "rz").to(int32, bitcast=True)


@language_function
def float2uint_rd(x):
    """float32 to uint32, seen as int32, down; kept inside its range."""
    return _to_integer(x, uint32, "rd").to(int32, bitcast=True)


@language_function
def float2uint_ru(x):
    """float32 to uint32, seen as int32, up; kept inside its range."""
    return _to_integer(x, uint32, "ru").to(int32, bitcast=True)


@language_function
def float2ll_rn(x):
    """float32 to int64, to nearest even; kept inside its range."""
    return _to_integer(x, int64, "rn")


@language_function
def float2ll_rz(x):
    """float32 to int64, toward zero; kept inside its range."""
    return _to_integer(x, int64, "rz")


@language_function
def float2ll_rd(x):
    """float32 to int64, down; kept inside its range."""
    return _to_integer(x, int64, "rd")


@language_function
def float2ll_ru(x):
    """float32 to int64, up; kept inside its range."""
    return _to_integer(x, int64, "ru")


@language_function
def float2ull_rn(x):
    """float32 to uint64, seen as int64, to nearest even; kept inside its range."""
    return _to_integer(x, uint64, "rn").to(int64, bitcast=True)


@language_function
def float2ull_rz(x):
    """float32 to uint64, seen as int64, toward zero; kept inside its range."""
    return _to_integer(x, uint64, "rz").to(int64, bitcast=True)


@language_function
def float2ull_rd(x):
    """float32 to uint64, seen as int64, down; kept inside its range."""
    return _to_integer(x, uint64, "rd").to(int64, bitcast=True)


@language_function
def float2ull_ru(x):
    """float32 to uint64, seen as int64, up; kept inside its range."""
    return _to_integer(x, uint64, "ru").to(int64, bitcast=True)


@language_function
def double2int_rn(x):
    """float64 to int32, to nearest even; kept inside its range."""
    return _to_integer(x, int32, "rn")


@language_function
def double2int_rz(x):
    """float64 to int32, toward zero; kept inside its range."""
    return _to_integer(x, int32, "rz")


@language_function
def double2int_rd(x):
    """float64 to int32, down; kept inside its range."""
    return _to_integer(x, int32, "rd")


@language_function
def double2int_ru(x):
    """float64 to int32, up; kept inside its range."""
    return _to_integer(x, int32, "ru")


@language_function
def double2uint_rn(x):
    """float64 to uint32, seen as int32, to nearest even; kept inside its range."""
    return _to_integer(x, uint32, "rn").to(int32, bitcast=True)


@language_function
def double2uint_rz(x):
    """float64 to uint32, seen as int32, toward zero; kept inside its range."""
    return _to_integer(x, uint32, "rz").to(int32, bitcast=True)


@language_function
def double2uint_rd(x):
    """float64 to uint32, seen as int32, down; kept inside its range."""
    return _to_integer(x, uint32, "rd").to(int32, bitcast=True)


@language_function
def double2uint_ru(x):
    """float64 to uint32, seen as int32, up; kept inside its range."""
    return _to_integer(x, uint32, "ru").to(int32, bitcast=True)


@language_function
def double2ll_rn(x):
    """float64 to int64, to nearest even; kept inside its range."""
    return _to_integer(x, int64, "rn")


@language_function
def double2ll_rz(x):
    """float64 to int64, toward zero; kept inside its range."""
    return _to_integer(x, int64, "rz")


@language_function
def double2ll_rd(x):
    """float64 to int64, down; kept inside its range."""
    return _to_integer(x, int64, "rd")


@language_function
def double2ll_ru(x):
    """float64 to int64, up; kept inside its range."""
    return _to_integer(x, int64, "ru")


@language_function
def double2ull_rn(x):
    """float64 to uint64, seen as int64, to nearest even; kept inside its range."""
    return _to_integer(x, uint64, "rn").to(int64, bitcast=True)


@language_function
def double2ull_rz(x):
    """float64 to uint64, seen as int64, toward zero; kept inside its range."""
    return _to_integer(x, uint64, "rz").to(int64, bitcast=True)


@language_function
def double2ull_rd(x):
    """float64 to uint64, seen as int64, down; kept inside its range."""
    return _to_integer(x, uint64, "rd").to(int64, bitcast=True)


@language_function
def double2ull_ru(x):
    """float64 to uint64, seen as int64, up; kept inside its range."""
    return _to_integer(x, uint64, "ru").to(int64, bitcast=True)


@language_function
def int2float_rn(x):
    """int32 to float32, to nearest even."""
    return _to_float(x.to(int32), float32, "rn")


@language_function
def int2float_rz(x):
    """int32 to float32, toward zero."""
    return _to_float(x.to(int32), float32, "rz")


@language_function
def int2float_rd(x):
    """int32 to float32, down."""
    return _to_float(x.to(int32), float32, "rd")


@language_function
def int2float_ru(x):
    """int32 to float32, up."""
    return _to_float(x.to(int32), float32, "ru")


@language_function
def int2double_rn(x):
    """int32 to float64, to nearest even."""
    return _to_float(x.to(int32), float64, "rn")


@language_function
def uint2float_rn(x):
    """uint32 to float32, to nearest even."""
    return _to_float(x.to(uint32), float32, "rn")


@language_function
def uint2float_rz(x):
    """uint32 to float32, toward zero."""
    return _to_float(x.to(uint32), float32, "rz")


@language_function
def uint2float_rd(x):
    """uint32 to float32, down."""
    return _to_float(x.to(uint32), float32, "rd")


@language_function
def uint2float_ru(x):
    """uint32 to float32, up."""
    return _to_float(x.to(uint32), float32, "ru")


@language_function
def uint2double_rn(x):
    """uint32 to float64, to nearest even."""
    return _to_float(x.to(uint32), float64, "rn")


@language_function
def ll2float_rn(x):
    """int64 to float32, to nearest even."""
    return _to_float(x.to(int64), float32, "rn")


@language_function
def ll2float_rz(x):
    """int64 to float32, toward zero."""
    return _to_float(x.to(int64), float32, "rz")


@language_function
def ll2float_rd(x):
    """int64 to float32, down."""
    return _to_float(x.to(int64), float32, "rd")


@language_function
def ll2float_ru(x):
    """int64 to float32, up."""
    return _to_float(x.to(int64), float32, "ru")


@language_function
def ll2double_rn(x):
    """int64 to float64, to nearest even."""
    return _to_float(x.to(int64), float64, "rn")


@language_function
def ll2double_rz(x):
    """int64 to float64, toward zero."""
    return _to_float(x.to(int64), float64, "rz")


@language_function
def ll2double_rd(x):
    """int64 to float64, down."""
    return _to_float(x.to(int64), float64, "rd")


@language_function
def ll2double_ru(x):
    """int64 to float64, up."""
    return _to_float(x.to(int64), float64, "ru")


@language_function
def ull2float_rn(x):
    """uint64 to float32, to nearest even."""
    return _to_float(x.to(uint64), float32, "rn")


@language_function
def ull2float_rz(x):
    """uint64 to float32, toward zero."""
    return _to_float(x.to(uint64), float32, "rz")


@language_function
def ull2float_rd(x):
    """uint64 to float32, down."""
    return _to_float(x.to(uint64), float32, "rd")


@language_function
def ull2float_ru(x):
    """uint64 to float32, up."""
    return _to_float(x.to(uint64), float32, "ru")


@language_function
def ull2double_rn(x):
    """uint64 to float64, to nearest even."""
    return _to_float(x.to(uint64), float64, "rn")


@language_function
def ull2double_rz(x):
    """uint64 to float64, toward zero."""
    return _to_float(x.to(uint64), float64, "rz")


@language_function
def ull2double_rd(x):
    """uint64 to float64, down."""
    return _to_float(x.to(uint64), float64, "rd")


@language_function
def ull2double_ru(x):
    """uint64 to float64, up."""
    return _to_float(x.to(uint64), float64, "ru")


__all__ = [
    "add_rd", "add_rn", "add_ru", "add_rz", "div_rd", "div_rn", "div_ru", "div_rz", "double2float_rd",
    "double2float_rn", "double2float_ru", "double2float_rz", "double2int_rd", "double2int_rn", "double2int_ru",
    "double2int_rz", "double2ll_rd", "double2ll_rn", "double2ll_ru", "double2ll_rz", "double2uint_rd",
    "double2uint_rn", "double2uint_ru", "double2uint_rz", "double2ull_rd", "double2ull_rn", "double2ull_ru",
    "double2ull_rz", "float2int_rd", "float2int_rn", "float2int_ru", "float2int_rz", "float2ll_rd", "float2ll_rn",
    "float2ll_ru", "float2ll_rz", "float2uint_rd", "float2uint_rn", "float2uint_ru", "float2uint_rz", "float2ull_rd",
    "float2ull_rn", "float2ull_ru", "float2ull_rz", "fma_rd", "fma_rn", "fma_ru", "fma_rz", "int2double_rn",
    "int2float_rd", "int2float_rn", "int2float_ru", "int2float_rz", "ll2double_rd", "ll2double_rn", "ll2double_ru",
    "ll2double_rz", "ll2float_rd", "ll2float_rn", "ll2float_ru", "ll2float_rz", "mul_rd", "mul_rn", "mul_ru",
    "mul_rz", "rcp_rd", "rcp_rn", "rcp_ru", "rcp_rz", "sqrt_rd", "sqrt_rn", "sqrt_ru", "sqrt_rz", "sub_rd", "sub_rn",
    "sub_ru", "sub_rz", "uint2double_rn", "uint2float_rd", "uint2float_rn", "uint2float_ru", "uint2float_rz",
    "ull2double_rd", "ull2double_rn", "ull2double_ru", "ull2double_rz", "ull2float_rd", "ull2float_rn",
    "ull2float_ru", "ull2float_rz",
]  # fmt: skip
