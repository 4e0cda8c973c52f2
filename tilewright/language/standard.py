"""Functions of the language that are written in the language."""

# Their bodies are tile language, which Python's type rules do not describe.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False, disable-error-code="assignment"

from __future__ import annotations

from tilewright.language import core
from tilewright.language import math as tl_math
from tilewright.language.function import language_function
from tilewright.language.types import constexpr, constexpr_function, float32, int32, uint32

AS_INTEGERS = constexpr("bits of floats are x.to(tl.int32, bitcast=True), conditions are x != 0")


@constexpr_function
def require(condition, message, advice):
    """A compile error with advice, at the caller's line, where a condition on types does not hold."""
    if not condition:
        raise core.convert.LanguageError(message, advice)


@language_function
def cdiv(x, div):
    """The least integer not below ``x / div``."""
    return (x + (div - 1)) // div


@language_function
def zeros(shape, dtype):
    """A block of zeros."""
    return core.full(shape, 0, dtype)


@language_function
def zeros_like(input):
    """A block of zeros of the shape and dtype of another."""
    return core.full(input.shape, 0, input.dtype)


@language_function
def sigmoid(x):
    """1 / (1 + exp(-x))"""
    return (1 / (1 + tl_math.exp(-x))).to(x.dtype)


@language_function
def softmax(x, dim=None, keep_dims=False, ieee_rounding=False):
    """exp(x) over its sum along an axis (0 by default), shifted by the maximum."""
    axis: constexpr = 0 if dim is None else dim
    shifted = x - max(x, axis, keep_dims=True)
    numerator = tl_math.exp(shifted)
    return numerator / sum(numerator, axis, keep_dims=True)


@language_function
def swizzle2d(i, j, size_i, size_j, size_g):
    """Renumber row-major tile ids so that groups of `size_g` rows are walked column by column."""
    linear = i * size_j + j
    tiles_of_group = size_g * size_j
    group = linear // tiles_of_group
    first_row = group * size_g
    rows = core.minimum(size_i - first_row, size_g)
    inside = linear % tiles_of_group
    return first_row + inside % rows, inside // rows


@language_function
def interleave(a, b):
    """The elements of two blocks in turn along the last axis."""
    joined = core.join(a, b)
    if len(a.shape) == 0:
        return joined
    else:
        return core.reshape(joined, _merged_last(joined.shape))


@constexpr_function
def _merged_last(shape):
    return (*shape[:-2], shape[-2] * shape[-1])


# Reductions --------------------------------------------------------------------------------------


@constexpr_function
def _sum_dtype(dtype, requested):
    """Integers under 32 bits are summed in 32 bits."""
    if requested is not None:
        return requested
    if dtype.is_int() and dtype.primitive_bitwidth < 32:
        return int32 if dtype.is_int_signed() else uint32
    return dtype


@constexpr_function
def _scan_dtype(dtype, requested):
    """What running sums come in: as sums do, but for bf16, which becomes fp32."""
    return _sum_dtype.function(float32 if dtype.is_bf16() else dtype, requested)


@language_function
def _running(input, axis, reverse, combine, dtype):
    """A scan that rounds at its end, not at every step."""
    wide: constexpr = float32 if dtype.is_floating() and dtype.primitive_bitwidth < 32 else dtype
    return core.associative_scan(input.to(wide), axis, combine, reverse).to(dtype)


@constexpr_function
def _extremum_dtype(dtype):
    """Values under 32 bits are compared in 32 bits: their maximum is int32 or fp32."""
    if dtype.primitive_bitwidth >= 32:
        return dtype
    return float32 if dtype.is_floating() else int32


@constexpr_function
def _log2(extent):
    """The exponent of a power of two."""
    return extent.bit_length() - 1


@language_function
def _add(a, b):
    return a + b


@language_function
def _multiply(a, b):
    return a * b


@language_function
def _maximum(a, b):
    return core.maximum(a, b)


@language_function
def _minimum(a, b):
    return core.minimum(a, b)


@language_function
def _or(a, b):
    return a | b


@language_function
def _xor(a, b):
    return a ^ b


@language_function
def _argmax(value1, index1, value2, index2, tie_break_left=True):
    """The greater of two values with its index; of equals, the one further left.

    NaN loses to every number and equals NaN, as for `maximum`: the result does not depend on the order of the
    reduction, with `tie_break_left` or without.
    """
    return _choose(value1 > value2, value1, index1, value2, index2)


@language_function
def _argmin(value1, index1, value2, index2, tie_break_left=True):
    """The lesser of two values with its index; NaNs and equals as `_argmax` has them."""
    return _choose(value1 < value2, value1, index1, value2, index2)


@language_function
def _choose(better, value1, index1, value2, index2):
    equal = value1 == value2
    if value1.dtype.is_floating():
        second_nan = value2 != value2
        better = better | (second_nan & (value1 == value1))
        equal = equal | second_nan
    first = better | (equal & (index1 < index2))
    return core.where(first, value1, value2), core.where(first, index1, index2)


@language_function
def _with_indices(input, axis, combine, keep_dims):
    """Reduce values with their positions along an axis."""
    require(axis is not None, "an axis is needed to return indices", "name it, after tl.ravel to search a whole block")
    position: constexpr = axis + len(input.shape) if axis < 0 else axis
    places = core.arange(0, input.shape[position])
    places = core.reshape(places, _along(input.shape, position))
    places = core.broadcast_to(places, input.shape)
    return core.reduce((input, places), axis, combine, keep_dims)


@constexpr_function
def _along(shape, axis):
    return tuple(extent if number == axis else 1 for number, extent in enumerate(shape))


@language_function
def sum(input, axis=None, keep_dims=False, dtype: constexpr = None):
    """The sum along an axis (of all elements, when None). Integers under 32 bits are summed in 32."""
    return core.reduce(input.to(_sum_dtype(input.dtype, dtype)), axis, _add, keep_dims)


@language_function
def max(input, axis=None, return_indices=False, return_indices_tie_break_left=True, keep_dims=False):
    """The maximum along an axis; with `return_indices` where it is: the leftmost of equals, NaNs only among NaNs."""
    if return_indices:
        return _with_indices(input, axis, _argmax, keep_dims)
    else:
        return core.reduce(input.to(_extremum_dtype(input.dtype)), axis, _maximum, keep_dims)


@language_function
def min(input, axis=None, return_indices=False, return_indices_tie_break_left=True, keep_dims=False):
    """The minimum along an axis; with `return_indices` where it is: the leftmost of equals, NaNs only among NaNs."""
    if return_indices:
        return _with_indices(input, axis, _argmin, keep_dims)
    else:
        return core.reduce(input.to(_extremum_dtype(input.dtype)), axis, _minimum, keep_dims)


@language_function
def argmax(input, axis, tie_break_left=True, keep_dims=False):
    """The position of the maximum along an axis, as int32."""
    _, places = max(input, axis, True, tie_break_left, keep_dims)
    return places


@language_function
def argmin(input, axis, tie_break_left=True, keep_dims=False):
    """The position of the minimum along an axis, as int32."""
    _, places = min(input, axis, True, tie_break_left, keep_dims)
    return places


@language_function
def xor_sum(input, axis=None, keep_dims=False):
    """The exclusive or of all elements along an axis; integers only."""
    require(input.dtype.is_int(), f"xor_sum needs integers, got {input.dtype}", AS_INTEGERS)
    return core.reduce(input, axis, _xor, keep_dims)


@language_function
def reduce_or(input, axis, keep_dims=False):
    """The bitwise or of all elements along an axis; integers only."""
    require(input.dtype.is_int(), f"reduce_or needs integers, got {input.dtype}", AS_INTEGERS)
    return core.reduce(input, axis, _or, keep_dims)


@language_function
def cumsum(input, axis=0, reverse=False, dtype: constexpr = None):
    """Running sums along an axis. Integers under 32 bits are summed in 32, floats too; sums of bf16 are fp32."""
    return _running(input, axis, reverse, _add, _scan_dtype(input.dtype, dtype))


@language_function
def cumprod(input, axis=0, reverse=False):
    """Running products along an axis, in the types of `cumsum`."""
    return _running(input, axis, reverse, _multiply, _scan_dtype(input.dtype, None))


METHODS = {
    "sum": sum, "max": max, "min": min, "argmax": argmax, "argmin": argmin, "xor_sum": xor_sum, "reduce_or": reduce_or,
    "cumsum": cumsum, "cumprod": cumprod, "softmax": softmax, "sigmoid": sigmoid, "cdiv": cdiv,
}  # fmt: skip

NAMES_OF_TRITON = {
    "_log2": _log2, "_sum_combine": _add, "_prod_combine": _multiply, "_xor_combine": _xor, "_or_combine": _or,
    "_elementwise_max": _maximum, "_elementwise_min": _minimum,
    "_argmax_combine_tie_break_left": _argmax, "_argmax_combine_tie_break_fast": _argmax,
    "_argmin_combine_tie_break_left": _argmin, "_argmin_combine_tie_break_fast": _argmin,
    "_argmax_combine": _argmax, "_argmin_combine": _argmin,
}  # fmt: skip
"""What kernels, those that torch.compile generates among them, take from there although it is not documented."""
