"""`tl.dot_scaled`: products of block-scaled numbers (OCP Microscaling Formats 1.0), written in the language.

Operands are widened, multiplied by their scales and given to `tl.dot`.  bf16 holds every value of the 4- and 8-bit
formats times a power of two, within its exponent range; other combinations are computed in fp32.
"""

# Their bodies are tile language, which Python's type rules do not describe.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False
# mypy: disable-error-code="assignment,attr-defined,operator,arg-type,index,union-attr"

from __future__ import annotations

from tilewright.errors import brief
from tilewright.language import core
from tilewright.language.function import language_function
from tilewright.language.types import (
    bfloat16,
    constexpr,
    constexpr_function,
    float8e4nv,
    float8e5,
    float16,
    float32,
    int8,
    int32,
    uint8,
    uint16,
)

_FORMATS = {"e2m1": None, "e4m3": float8e4nv, "e5m2": float8e5, "bf16": bfloat16, "fp16": float16}


@constexpr_function
def _element(name, dtype):
    """The dtype that a format is read as (uint8 for pairs of e2m1)."""
    if name not in _FORMATS:
        raise core.convert.LanguageError(
            f"dot_scaled formats are {', '.join(_FORMATS)}, got {brief(name)}", "pass the format as a string"
        )
    wanted = _FORMATS[name]
    stored = (uint8,) if wanted is None else (wanted, uint8 if wanted.primitive_bitwidth == 8 else uint16)
    if dtype not in stored:
        texts = " or ".join(str(entry) for entry in stored)
        raise core.convert.LanguageError(
            f"format '{name}' is stored as {texts}, got {dtype}", "reinterpret the block with .to(dtype, bitcast=True)"
        )
    return uint8 if wanted is None else wanted


@constexpr_function
def _product_dtype(left, right, left_scale, right_scale):
    """bf16 where it is exact: no fp16 operand, and scales that are powers of two."""
    fractional = any(dtype is not None and dtype == float8e4nv for dtype in (left_scale, right_scale))
    return float32 if fractional or "fp16" in (left, right) else bfloat16


@constexpr_function
def _check_scale(values, scale, dtype):
    """The number of elements that one scale is for: 32 or 16, by the shapes."""
    if dtype not in (uint8, int8, float8e4nv):
        raise core.convert.LanguageError(
            f"scales are uint8 or int8 (e8m0), or fp8e4nv, got {dtype}",
            "scales are exponents in bytes, one for each group of 32 along K",
        )
    for group in (32, 16):
        if values[-1] % group == 0 and tuple(scale) == (*values[:-1], values[-1] // group):
            return group
    usual = 16 if dtype == float8e4nv else 32
    wanted = [*values[:-1], values[-1] // usual]
    raise core.convert.LanguageError(
        f"a scale must have shape {wanted}, one number for {usual} elements along K, got {list(scale)}",
        "the scale of rhs is [N, K / 32]: it is not transposed",
    )


@constexpr_function
def _doubled(shape):
    return (*shape[:-1], 2 * shape[-1])


@language_function
def _unpack_e2m1(pairs):
    """Bytes that hold two e2m1 numbers, the first in the low half, to floats along the last axis."""
    bits = core.reshape(core.join(pairs & 15, pairs >> 4), _doubled(pairs.shape)).to(int32)
    magnitude = bits & 7
    normal = ((magnitude << 22) + (126 << 23)).to(float32, bitcast=True)
    value = core.where(magnitude < 2, magnitude.to(float32) * 0.5, normal)
    return core.where(bits >= 8, -value, value)


@language_function
def _widened(x, FORMAT: constexpr, k_last: constexpr, k_pack: constexpr):
    """Operand values as floats with K as the last axis; `k_last` tells whether it is so in `x`."""
    kind: constexpr = _element(FORMAT, x.dtype)
    turned = x if k_last else core.trans(x)
    if FORMAT == "e2m1":
        if k_pack:
            return _unpack_e2m1(turned)
        else:
            return core.trans(_unpack_e2m1(core.trans(turned)))
    else:
        return turned.to(kind, bitcast=True).to(float32)


@language_function
def _power_of_two(exponent):
    """e8m0 to floats: 2 to the power e - 127; 255 is NaN."""
    bits = exponent.to(int32)
    ends = core.where(bits == 0, 1 << 22, (255 << 23) | (1 << 22))
    return core.where((bits == 0) | (bits == 255), ends, bits << 23).to(float32, bitcast=True)


@language_function
def _scaled(values, scale):
    """Values [..., K] times their scales [..., K / 32]."""
    if scale is None:
        return values
    else:
        group: constexpr = _check_scale(values.shape, scale.shape, scale.dtype)
        factor = scale.to(float32) if scale.dtype == float8e4nv else _power_of_two(scale.to(uint8, bitcast=True))
        spread = core.broadcast_to(core.expand_dims(factor, -1), (*factor.shape, group))
        return values * core.reshape(spread, values.shape)


@language_function
def dot_scaled(
    lhs,
    lhs_scale,
    lhs_format: constexpr,
    rhs,
    rhs_scale,
    rhs_format: constexpr,
    acc=None,
    fast_math=False,
    lhs_k_pack: constexpr = True,
    rhs_k_pack: constexpr = True,
    out_dtype: constexpr = float32,
):
    """``(lhs * lhs_scale) @ (rhs * rhs_scale) + acc`` of block-scaled numbers, in fp32.

    Formats are "e2m1" (pairs in uint8, packed along K, or along the other axis without `k_pack`), "e4m3", "e5m2"
    (fp8 or uint8), "bf16" and "fp16" (or uint16).  Scales are the bytes of exponents (e8m0, 2^(e - 127)) or fp8e4nv
    numbers, of shape [M, K / 32] and [N, K / 32], or with 16 elements to a scale; None for 1.  `fast_math` changes
    nothing here.
    """
    left_scale: constexpr = None if lhs_scale is None else lhs_scale.dtype
    right_scale: constexpr = None if rhs_scale is None else rhs_scale.dtype
    kind: constexpr = _product_dtype(lhs_format, rhs_format, left_scale, right_scale)
    left = _widened(lhs, lhs_format, True, lhs_k_pack)
    right = _widened(rhs, rhs_format, False, rhs_k_pack)
    if lhs_scale is not None and rhs_scale is not None:
        left_group: constexpr = _check_scale(left.shape, lhs_scale.shape, left_scale)
        right_group: constexpr = _check_scale(right.shape, rhs_scale.shape, right_scale)
        core.static_assert(left_group == right_group, "one scale is for 16 elements along K and the other for 32")
    left, right = _scaled(left, lhs_scale), _scaled(right, rhs_scale)
    result = core.dot(left.to(kind), core.trans(right.to(kind)), acc, input_precision="ieee")
    return result.to(out_dtype)
