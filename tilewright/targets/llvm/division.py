"""Division of float32 numbers by a positive divisor whose reciprocal is known.

The reciprocal r is rounded once; then for each x

    q = x r,   e = q y - x (exactly, by fma),   q - e r

is the correctly rounded quotient (Markstein, "Computation of elementary functions on the IBM RISC System/6000
processor", 1990) unless e falls below the least number: quotients of |x| < 2^-100 may be one unit off.  So may one x of
each divisor whose bits are all set.  An infinite q makes e infinite or a NaN, which become numbers that do not
change q.  An e of 0 is a positive one, which leaves q its sign if that is 0.  Divisors too large or too small for this
take the ordinary division.
"""

from __future__ import annotations

import math

import numpy as np

from tilewright.targets.llvm.builder import LLVMBuilder, LLVMValue

LEAST_DIVISOR, GREATEST_DIVISOR = 2.0**-20, 2.0**60  # their reciprocals times _LARGE are numbers
_LARGE = 2.0**107  # above every e of a finite q
_ALL_SET = 1.0 - 2.0**-24  # the mantissa whose bits are all set


def quotient(builder: LLVMBuilder, number: LLVMValue, divisor: LLVMValue, inverse: LLVMValue) -> LLVMValue:
    """`number / divisor`, which is in the range above, with `inverse` as 1 / divisor; all of one type."""
    product = builder.emit(f"fmul {number}, {inverse.text}", number.type)  # must not be contracted
    rest = builder.intrinsic("fma", [product, divisor, builder.negate(number)])
    limited = builder.intrinsic("maxnum", [rest, builder.constant(number.type, -_LARGE)])
    limited = builder.intrinsic("minnum", [limited, builder.constant(number.type, _LARGE)])
    return builder.intrinsic("fma", [builder.negate(limited), inverse, product])


def by_constant(builder: LLVMBuilder, number: LLVMValue, divisor: LLVMValue) -> LLVMValue | None:
    """`number / divisor` in five instructions, where that is a constant that pays; else None.

    The reciprocal of a power of two is exact, so LLVM multiplies by it.
    """
    value = divisor.float_constant
    if value is None or not LEAST_DIVISOR <= value <= GREATEST_DIVISOR or math.frexp(value)[0] in (0.5, _ALL_SET):
        return None
    inverse = float(np.float32(1) / np.float32(value))
    return quotient(builder, number, divisor, builder.constant(number.type, inverse))
