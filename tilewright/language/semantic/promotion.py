"""The type of a binary operator's operands: the promotion rules, in the order they apply.

A literal is a Python number (or a constexpr), not a kernel argument:

1. literal with tensor: a literal whose kind (bool < int < float) is not higher takes the tensor's
   dtype; a higher one is typed on its own and the rules below apply
2. either side fp64 -> fp64
3. ``/ // %`` with a float on either side -> fp32
4. either side fp32 -> fp32
5. either side fp16 -> fp16
6. bf16 with bf16 -> bf16; bf16 with anything else -> fp32
7. equal fp8 -> the same; different fp8 -> fp16; fp8 with an integer is an error
8. integers: same signedness -> the wider; mixed -> unsigned if it is at least as wide, else the signed one
"""

from __future__ import annotations

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.language.context import LanguageError
from tilewright.language.types import Number, wrap

_KINDS = {"bool": 0, "int": 1, "uint": 1, "float": 2}
_INTEGER_RANGES = {
    dtype: (-(2 ** (dtype.bits - 1)), 2 ** (dtype.bits - 1) - 1) if dtype.is_signed else (0, 2**dtype.bits - 1)
    for dtype in dtypes.DTYPES
    if dtype.is_integer
}
_FLOAT32_MAX = 3.4028234663852886e38
_FLOAT32_TINY = 2.0**-149


def literal_kind(value: Number) -> int:
    """0 for bool, 1 for int, 2 for float."""
    return 0 if isinstance(value, bool) else 1 if isinstance(value, int) else 2


def literal_dtype(value: Number) -> DType:
    """The dtype of a literal on its own."""
    if isinstance(value, bool):
        return dtypes.int1
    if isinstance(value, int):
        for dtype in (dtypes.int32, dtypes.uint32, dtypes.int64, dtypes.uint64):
            if fits(value, dtype):
                return dtype
        raise LanguageError(f"the integer {value} does not fit in 64 bits", "floats hold larger numbers")
    magnitude = abs(value)
    small = magnitude == 0.0 or magnitude != magnitude or magnitude == float("inf")
    if small or _FLOAT32_TINY <= magnitude <= _FLOAT32_MAX:
        return dtypes.float32
    return dtypes.float64


def fits(value: int, dtype: DType) -> bool:
    """Whether an integer dtype holds the value."""
    low, high = _INTEGER_RANGES[dtype]
    return low <= value <= high


def literal_with_tensor(value: Number, dtype: DType) -> DType:
    """Rule 1: the dtype that a literal takes next to a tensor of `dtype`."""
    if literal_kind(value) > _KINDS[dtype.kind]:
        return literal_dtype(value)
    if dtype.is_integer and not fits(int(value), dtype):
        low, high = _INTEGER_RANGES[dtype]
        raise LanguageError(
            f"the literal {value} does not fit {wrap(dtype)}: out of range {low} to {high}",
            "cast the tensor to a wider type first",
        )
    return dtype


def promote(left: DType, right: DType, division: bool = False) -> DType:
    """Rules 2 to 8: the common dtype of two tensors; `division` is True for ``/ // %``."""
    if dtypes.float64 in (left, right):
        return dtypes.float64
    if division and (left.is_float or right.is_float):
        return dtypes.float32
    if dtypes.float32 in (left, right):
        return dtypes.float32
    if dtypes.float16 in (left, right):
        return dtypes.float16
    if dtypes.bfloat16 in (left, right):
        return dtypes.bfloat16 if left == right else dtypes.float32
    if left.is_float or right.is_float:
        return _promote_float8(left, right)
    return _promote_integers(left, right)


def _promote_float8(left: DType, right: DType) -> DType:
    if left == right and left != dtypes.float8e4b15:
        return left
    if left.is_float and right.is_float:
        return dtypes.float16
    raise LanguageError(
        f"{wrap(left)} and {wrap(right)} have no common type", "cast the fp8 value to a wider float first"
    )


def _promote_integers(left: DType, right: DType) -> DType:
    if left.is_signed == right.is_signed:
        return left if left.bits >= right.bits else right
    unsigned, signed = (right, left) if left.is_signed else (left, right)
    return unsigned if unsigned.bits >= signed.bits else signed
