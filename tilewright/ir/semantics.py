"""NumPy meaning of the Tile IR operations that need only their operands; `ir.ops` refers to it.

Every function has the form ``meaning(*arrays, **attributes) -> array`` (`split`: a tuple), with the
attributes of the op table.  Scalars are arrays of rank 0.  Element types are the NumPy (or ml_dtypes)
dtype of `DType.numpy`; pointers are int64 virtual addresses (`ir.memory`).

Float arithmetic is carried out in float64 and rounded once to the element type: for the operations
+ - * / and square root that is the correctly rounded result, because float64 has more than twice the digits
of the narrower types (Figueroa, "When is double rounding innocuous?", 1995).
"""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np

from tilewright.dtypes import DTYPES, STORED, DType
from tilewright.errors import ExecutionError

Array = np.ndarray
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_FLOATS = frozenset(dtype.numpy for dtype in STORED if dtype.is_float)
_FLOAT8 = tuple(dtype.numpy for dtype in DTYPES if dtype.is_float and dtype.bits == 8)
_CAST_BY_NUMPY = frozenset(map(np.dtype, (np.float16, np.float32, np.float64)))


# Rounding ----------------------------------------------------------------------------------------


def is_float(dtype: np.dtype) -> bool:
    """True for NumPy's and ml_dtypes' floats."""
    return dtype in _FLOATS


def round_to(values: Array, dtype: np.dtype) -> Array:
    """float64 values rounded once, to nearest even, to a float dtype; fp8 saturates to its greatest finite."""
    with np.errstate(all="ignore"):
        return _rounded(np.asarray(values, np.float64), dtype)


def _rounded(values: Array, dtype: np.dtype) -> Array:
    if dtype in _CAST_BY_NUMPY:
        return values.astype(dtype)
    narrow = _round_to_odd(values)
    if dtype in _FLOAT8:
        greatest = np.float32(ml_dtypes.finfo(dtype).max)
        narrow = np.clip(narrow, -greatest, greatest)
    return narrow.astype(dtype)


def _round_to_odd(values: Array) -> Array:
    """float64 to float32, inexact results to the neighbour with an odd last bit.

    A second rounding to fewer digits then gives what one rounding of the float64 would (Boldo and
    Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd", 2008).
    """
    nearest = values.astype(np.float32)
    inexact = np.isfinite(values) & (nearest.astype(np.float64) != values)
    too_far = inexact & (np.abs(nearest.astype(np.float64)) > np.abs(values))
    truncated = nearest.view(np.uint32) - too_far.astype(np.uint32)
    return (truncated | inexact.astype(np.uint32)).view(np.float32)


def round_float(value: float, dtype: DType) -> float:
    """A Python float rounded to what `dtype` holds."""
    return float(round_to(np.asarray(value, np.float64), dtype.numpy))


def _truncate_to(values: Array, dtype: np.dtype) -> Array:
    """float64 values rounded toward zero to a narrower float dtype."""
    nearest = round_to(values, dtype)
    with np.errstate(all="ignore"):
        too_far = np.isfinite(values) & (np.abs(nearest.astype(np.float64)) > np.abs(values))
        bits = np.dtype(f"u{dtype.itemsize}")
        stepped = (nearest.view(bits) - too_far.astype(bits)).view(dtype)
        # Formats without -0 have NaN where a step from the least negative number ends.
        return np.where(np.isnan(stepped.astype(np.float64)) & too_far, np.zeros((), dtype), stepped)


def _in_float64(function: Any) -> Any:
    """A float operation computed in float64 and rounded to the operands' type."""

    def meaning(*operands: Array) -> Array:
        with np.errstate(all="ignore"):
            found = function(*(x.astype(np.float64) for x in operands))
            return _rounded(np.asarray(found), operands[0].dtype)

    return meaning


def _number(floats: Any, integers: Any) -> Any:
    """An operation on numbers: `floats` on float64 operands, `integers` (wrapping) on integer operands."""
    rounded = _in_float64(floats)

    def meaning(*operands: Array) -> Array:
        if operands[0].dtype in _FLOATS:
            return rounded(*operands)
        if isinstance(integers, np.ufunc):  # which do not warn of integers that wrap
            return np.asarray(integers(*operands))
        with np.errstate(all="ignore"):
            return np.asarray(integers(*operands)).astype(operands[0].dtype)

    return meaning


# Constants and indices ---------------------------------------------------------------------------


def constant(*, value: bool | int | float, dtype: DType, shape: tuple[int, ...]) -> Array:
    if dtype.is_float:
        return np.full(shape, round_to(np.asarray(value, np.float64), dtype.numpy))
    return np.full(shape, value, dtype.numpy)


def arange(*, start: int, end: int) -> Array:
    return np.arange(start, end, dtype=np.int32)


# Arithmetic --------------------------------------------------------------------------------------


def _integer_divide(x: Array, y: Array) -> Array:
    divisor = np.where(y == 0, np.ones_like(y), y)
    quotient = x // divisor
    if x.dtype.kind == "i":
        rounded_down = (x % divisor != 0) & ((x < 0) != (divisor < 0))
        quotient = quotient + rounded_down.astype(x.dtype)
    return np.where(y == 0, np.zeros_like(x), quotient)


def _integer_remainder(x: Array, y: Array) -> Array:
    return x - _integer_divide(x, y) * y


def _fma(x: Array, y: Array, z: Array) -> Array:
    """x * y + z with the rounding errors of product and sum added at the end.

    Error-free product by Veltkamp's splitting and Dekker's product, error-free sum by Knuth's two-sum.
    Within one unit in the last place of float64.
    """
    product = x * y
    total = product + z
    split = 134217729.0  # 2**27 + 1
    x_high = x * split - (x * split - x)
    y_high = y * split - (y * split - y)
    x_low, y_low = x - x_high, y - y_high
    product_error = ((x_high * y_high - product) + x_high * y_low + x_low * y_high) + x_low * y_low
    z_part = total - product
    sum_error = (product - (total - z_part)) + (z - z_part)
    corrected = total + (product_error + sum_error)
    return np.where(np.isfinite(corrected), corrected, total)


def _narrow_fma(x: Array, y: Array, z: Array) -> Array:
    """x * y + z of numbers with at most 24 digits, in float64 rounded to odd, so that rounding it again is exact.

    The product has 48 digits; what the sum loses, Knuth's two-sum tells (see `_round_to_odd` for the source).
    """
    product = x * y
    total = product + z
    z_part = total - product
    lost = (product - (total - z_part)) + (z - z_part)
    even = total.view(np.int64) % 2 == 0
    toward = np.nextafter(total, np.where(lost > 0, np.inf, -np.inf))
    return np.where(even & (lost != 0) & np.isfinite(total), toward, total)


def minimum(x: Array, y: Array, *, propagate_nan: bool) -> Array:
    return _extremum(x, y, np.minimum if propagate_nan else np.fmin)


def maximum(x: Array, y: Array, *, propagate_nan: bool) -> Array:
    return _extremum(x, y, np.maximum if propagate_nan else np.fmax)


def _extremum(x: Array, y: Array, function: Any) -> Array:
    if is_float(x.dtype):
        return function(x.astype(np.float64), y.astype(np.float64)).astype(x.dtype)
    return np.asarray(function(x, y))


def multiply_high(x: Array, y: Array) -> Array:
    bits = x.dtype.itemsize * 8
    product = x.astype(object) * y.astype(object)
    return np.asarray(product >> bits).astype(x.dtype)


def _negate_integer(x: Array) -> Array:
    return np.zeros_like(x) - x


add = _number(np.add, np.add)
subtract = _number(np.subtract, np.subtract)
multiply = _number(np.multiply, np.multiply)
divide = _number(np.divide, _integer_divide)
remainder = _number(np.fmod, _integer_remainder)
negate = _number(np.negative, _negate_integer)
absolute = _number(np.abs, lambda x: np.abs(x) if x.dtype.kind == "i" else x)
power = _in_float64(np.power)
_fma_float64, _fma_narrow = _in_float64(_fma), _in_float64(_narrow_fma)


def fma(x: Array, y: Array, z: Array) -> Array:
    return (_fma_float64 if x.dtype == np.float64 else _fma_narrow)(x, y, z)


# Bits --------------------------------------------------------------------------------------------


def and_(x: Array, y: Array) -> Array:
    return np.asarray(x & y)


def or_(x: Array, y: Array) -> Array:
    return np.asarray(x | y)


def xor(x: Array, y: Array) -> Array:
    return np.asarray(x ^ y)


def not_(x: Array) -> Array:
    return np.asarray(~x)


def shift_left(x: Array, y: Array) -> Array:
    return np.where(_shift_fits(x, y), x << _shift_count(x, y), np.zeros_like(x))


def shift_right(x: Array, y: Array) -> Array:
    emptied = x >> np.asarray(x.dtype.itemsize * 8 - 1, x.dtype) if x.dtype.kind == "i" else np.zeros_like(x)
    return np.where(_shift_fits(x, y), x >> _shift_count(x, y), emptied)


def _shift_fits(x: Array, y: Array) -> Array:
    return (y >= 0) & (y < x.dtype.itemsize * 8)


def _shift_count(x: Array, y: Array) -> Array:
    return np.where(_shift_fits(x, y), y, np.zeros_like(y))


# Math --------------------------------------------------------------------------------------------

_python_erf = np.frompyfunc(math.erf, 1, 1)

exp = _in_float64(np.exp)
exp2 = _in_float64(np.exp2)
log = _in_float64(np.log)
log2 = _in_float64(np.log2)
sin = _in_float64(np.sin)
cos = _in_float64(np.cos)
tanh = _in_float64(np.tanh)
erf = _in_float64(lambda x: np.asarray(_python_erf(x), np.float64))
sqrt = _in_float64(np.sqrt)
rsqrt = _in_float64(lambda x: 1.0 / np.sqrt(x))
floor = _in_float64(np.floor)
ceil = _in_float64(np.ceil)
round_ = _in_float64(np.rint)
truncate = _in_float64(np.trunc)


# Choice and conversion ---------------------------------------------------------------------------

_COMPARE = {"eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal"}


def compare(x: Array, y: Array, *, predicate: str) -> Array:
    if is_float(x.dtype):
        with np.errstate(invalid="ignore"):  # signalling NaNs
            x, y = x.astype(np.float64), y.astype(np.float64)
    return np.asarray(getattr(np, _COMPARE[predicate])(x, y))


def select(condition: Array, x: Array, y: Array) -> Array:
    return np.where(condition, x, y)


def cast(x: Array, *, dtype: DType, rounding: str) -> Array:
    target = dtype.numpy
    if x.dtype == target:
        return x
    with np.errstate(all="ignore"):
        if dtype.is_bool:
            return np.asarray(x != np.zeros((), x.dtype))
        if is_float(x.dtype):
            wide = x.astype(np.float64)
            if dtype.is_float:
                return _truncate_to(wide, target) if rounding == "rtz" else round_to(wide, target)
            return _float_to_integer(wide, target)
        if not dtype.is_float:
            return x.astype(target)
        return _integer_to_float(x, target)


def _float_to_integer(x: Array, target: np.dtype) -> Array:
    """Truncated; saturated where the number does not fit, zero for NaN."""
    limits = np.iinfo(target)
    low, high = float(limits.min), float(limits.max)  # high may be rounded up to 2**63 or 2**64
    whole = np.trunc(np.where(np.isnan(x), 0.0, x))
    inside = np.where((whole >= low) & (whole < high), whole, 0.0).astype(target)
    above = np.where(whole >= high, np.asarray(limits.max, target), inside)
    return np.where(whole < low, np.asarray(limits.min, target), above)


def _integer_to_float(x: Array, target: np.dtype) -> Array:
    """Rounded once, though 64-bit integers do not fit float64."""
    if target == np.float64 or target == np.float32:
        return x.astype(target)
    wide = x.astype(np.float64)
    if x.dtype.itemsize == 8:  # more digits than float64 has: those below become one that says whether there were any
        low = x & np.asarray(4095, x.dtype)
        sticky = (x - low).astype(np.float64) + (low != 0) * 2048.0
        wide = np.where(np.abs(wide) < 2**52, wide, sticky)
    return round_to(wide, target)


def bitcast(x: Array, *, element: Any) -> Array:
    target = element.numpy if isinstance(element, DType) else np.dtype(np.int64)
    return np.ascontiguousarray(x).view(target).reshape(x.shape)


# Shape -------------------------------------------------------------------------------------------


def splat(x: Array, *, shape: tuple[int, ...]) -> Array:
    return np.broadcast_to(x, shape)


def expand_dims(x: Array, *, axis: int) -> Array:
    return np.expand_dims(x, axis)


def broadcast(x: Array, *, shape: tuple[int, ...]) -> Array:
    return np.broadcast_to(x, shape)


def reshape(x: Array, *, shape: tuple[int, ...]) -> Array:
    return x.reshape(shape)


def permute(x: Array, *, order: tuple[int, ...]) -> Array:
    return x.transpose(order)


def join(x: Array, y: Array) -> Array:
    return np.stack([x, y], axis=-1)


def split(x: Array) -> tuple[Array, Array]:
    return np.asarray(x[..., 0]), np.asarray(x[..., 1])


def cat(*blocks: Array, axis: int) -> Array:
    return np.concatenate(blocks, axis=axis)


def gather_error(
    index: int, extent: int, axis: int, lanes: tuple[int, int], element: tuple[int, ...]
) -> ExecutionError:
    """The error of a gather whose indices, so many of all (`lanes`), leave the block."""
    return ExecutionError(
        f"the index {index} is outside of the {extent} elements along axis {axis} that are gathered from",
        "indices count from 0 within the block that is gathered from: clamp them, or take a remainder",
        (f"{lanes[0]} of {lanes[1]} indices are outside",) if lanes[1] > 1 else (),
        element=element,
    )


def gather(source: Array, index: Array, *, axis: int) -> Array:
    extent = source.shape[axis]
    outside = (index < 0) | (index >= extent)
    if np.any(outside):
        lane = tuple(int(place) for place in np.argwhere(outside)[0])
        raise gather_error(int(index[lane]), extent, axis, (int(np.count_nonzero(outside)), index.size), lane)
    return np.take_along_axis(source, index.astype(np.int64), axis=axis)


# Contraction, hints ------------------------------------------------------------------------------


def dot(a: Array, b: Array, accumulator: Array, *, input_precision: str) -> Array:
    if is_float(accumulator.dtype):
        with np.errstate(all="ignore"):
            total = np.matmul(a.astype(np.float64), b.astype(np.float64)) + accumulator.astype(np.float64)
            return round_to(total, accumulator.dtype)
    return np.matmul(a.astype(accumulator.dtype), b.astype(accumulator.dtype)) + accumulator


def hint(x: Array, *, divisibility: Any, contiguity: Any, constancy: Any) -> Array:
    return x
