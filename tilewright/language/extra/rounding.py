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

from collections.abc import Callable
from typing import Any

from tilewright.language import core
from tilewright.language import math as tl_math
from tilewright.language.extra.bits import step_down, step_up
from tilewright.language.extra.special import INFINITY
from tilewright.language.function import SourceFunction, language_function
from tilewright.language.math import abs, fma, sqrt
from tilewright.language.types import dtype, float32, float64, int32, int64, uint32, uint64


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


# Functions in the four modes -------------------------------------------------------------------

_MODES = {"rn": "to nearest even", "rz": "toward zero", "rd": "down", "ru": "up"}


def _in_modes(
    name: str, summary: str, function: SourceFunction, count: int = 1, kinds: tuple[dtype, dtype] | None = None
) -> list[SourceFunction]:
    """A function of `count` numbers, which takes `kinds` and a mode after them, in each mode by its public name."""
    found = []
    for mode, words in _MODES.items():
        bound = _bound(function, count, kinds, mode)
        bound.__name__ = bound.__qualname__ = f"{name}_{mode}"
        bound.__doc__ = f"{summary}, {words}."
        found.append(language_function(bound))
    return found


def _bound(function: SourceFunction, count: int, kinds: tuple[dtype, dtype] | None, mode: str) -> Callable[..., Any]:
    source, result = kinds or (None, None)

    def converted(x):
        return function(x, source, result, mode)

    def unary(x):
        return function(x, mode)

    def binary(x, y):
        return function(x, y, mode)

    def ternary(x, y, z):
        return function(x, y, z, mode)

    return converted if kinds else (unary, binary, ternary)[count - 1]


# Arithmetic --------------------------------------------------------------------------------------


@language_function
def _sum(x, y, MODE: core.constexpr):
    if MODE == "rn":
        return x + y
    else:
        return _added(x, y, MODE)


@language_function
def _difference(x, y, MODE: core.constexpr):
    if MODE == "rn":
        return x - y
    else:
        return _added(x, -y, MODE)


@language_function
def _product(x, y, MODE: core.constexpr):
    if MODE == "rn":
        return x * y
    else:
        return _multiplied(x, y, MODE)


@language_function
def _quotient(x, y, MODE: core.constexpr):
    if MODE == "rn":
        return core.div_rn(x, y)
    else:
        return _divided(x, y, MODE)


@language_function
def _reciprocal(x, MODE: core.constexpr):
    return _quotient(core.full(x.shape, 1.0, x.dtype), x, MODE)


@language_function
def _root(x, MODE: core.constexpr):
    if MODE == "rn":
        return tl_math.sqrt_rn(x)
    else:
        return _rooted(x, MODE)


@language_function
def _multiply_add(x, y, z, MODE: core.constexpr):
    if MODE == "rn":
        return fma(x, y, z)
    else:
        return _fused(x, y, z, MODE)


add_rn, add_rz, add_rd, add_ru = _in_modes("add", "x + y", _sum, 2)
sub_rn, sub_rz, sub_rd, sub_ru = _in_modes("sub", "x - y", _difference, 2)
mul_rn, mul_rz, mul_rd, mul_ru = _in_modes("mul", "x * y", _product, 2)
div_rn, div_rz, div_rd, div_ru = _in_modes("div", "x / y", _quotient, 2)
rcp_rn, rcp_rz, rcp_rd, rcp_ru = _in_modes("rcp", "1 / x", _reciprocal)
sqrt_rn, sqrt_rz, sqrt_rd, sqrt_ru = _in_modes("sqrt", "Square root", _root)
fma_rn, fma_rz, fma_rd, fma_ru = _in_modes("fma", "x * y + z, rounded once", _multiply_add, 3)


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
def _narrowed(x, MODE: core.constexpr):
    if MODE == "rn":
        return x.to(float32)
    else:
        return _directed(x.to(float64), 0.0, _finite(x), float32, MODE)


@language_function
def _whole(x, dtype: core.constexpr, seen: core.constexpr, MODE: core.constexpr):
    """`_to_integer`, whose unsigned numbers are seen as signed ones."""
    return _to_integer(x, dtype, MODE).to(seen, bitcast=True)


@language_function
def _floating(x, source: core.constexpr, dtype: core.constexpr, MODE: core.constexpr):
    return _to_float(x.to(source), dtype, MODE)


def _to_integers(name: str, result: dtype, seen: dtype) -> list[SourceFunction]:
    source = "float32" if name.startswith("float") else "float64"
    kind = str(result) if result == seen else f"{result}, seen as {seen}"
    return _in_modes(name, f"{source} to {kind}, kept inside its range", _whole, kinds=(result, seen))


def _to_floats(name: str, source: dtype, result: dtype) -> list[SourceFunction]:
    return _in_modes(name, f"{source} to {result}", _floating, kinds=(source, result))


double2float_rn, double2float_rz, double2float_rd, double2float_ru = _in_modes(
    "double2float", "float64 to float32", _narrowed
)
float2int_rn, float2int_rz, float2int_rd, float2int_ru = _to_integers("float2int", int32, int32)
float2uint_rn, float2uint_rz, float2uint_rd, float2uint_ru = _to_integers("float2uint", uint32, int32)
float2ll_rn, float2ll_rz, float2ll_rd, float2ll_ru = _to_integers("float2ll", int64, int64)
float2ull_rn, float2ull_rz, float2ull_rd, float2ull_ru = _to_integers("float2ull", uint64, int64)
double2int_rn, double2int_rz, double2int_rd, double2int_ru = _to_integers("double2int", int32, int32)
double2uint_rn, double2uint_rz, double2uint_rd, double2uint_ru = _to_integers("double2uint", uint32, int32)
double2ll_rn, double2ll_rz, double2ll_rd, double2ll_ru = _to_integers("double2ll", int64, int64)
double2ull_rn, double2ull_rz, double2ull_rd, double2ull_ru = _to_integers("double2ull", uint64, int64)
int2float_rn, int2float_rz, int2float_rd, int2float_ru = _to_floats("int2float", int32, float32)
uint2float_rn, uint2float_rz, uint2float_rd, uint2float_ru = _to_floats("uint2float", uint32, float32)
ll2float_rn, ll2float_rz, ll2float_rd, ll2float_ru = _to_floats("ll2float", int64, float32)
ull2float_rn, ull2float_rz, ull2float_rd, ull2float_ru = _to_floats("ull2float", uint64, float32)
int2double_rn, *_ = _to_floats("int2double", int32, float64)  # exact in each mode
uint2double_rn, *_ = _to_floats("uint2double", uint32, float64)
ll2double_rn, ll2double_rz, ll2double_rd, ll2double_ru = _to_floats("ll2double", int64, float64)
ull2double_rn, ull2double_rz, ull2double_rd, ull2double_ru = _to_floats("ull2double", uint64, float64)


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
