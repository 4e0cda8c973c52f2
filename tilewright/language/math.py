"""Elementwise mathematics; everything here is also `tl.<name>`, and most are methods of tensors.

Functions of fp16, bf16 and fp8 values are computed in fp32 and rounded back; integers become fp32.
"""

from __future__ import annotations

from typing import Any

from tilewright.language.core import builtin, clamp, div_rn, fdiv, member
from tilewright.language.semantic import arithmetic
from tilewright.language.tensor import tensor


@member
def exp(x: Any) -> tensor:
    """e to the power x. *method*"""
    return arithmetic.unary_math("exp", x)


@member
def exp2(x: Any) -> tensor:
    """2 to the power x. *method*"""
    return arithmetic.unary_math("exp2", x)


@member
def log(x: Any) -> tensor:
    """Natural logarithm. *method*"""
    return arithmetic.unary_math("log", x)


@member
def log2(x: Any) -> tensor:
    """Logarithm to base 2. *method*"""
    return arithmetic.unary_math("log2", x)


@member
def sin(x: Any) -> tensor:
    """Sine of x in radians. *method*"""
    return arithmetic.unary_math("sin", x)


@member
def cos(x: Any) -> tensor:
    """Cosine of x in radians. *method*"""
    return arithmetic.unary_math("cos", x)


@member
def sqrt(x: Any) -> tensor:
    """Square root. *method*"""
    return arithmetic.unary_math("sqrt", x)


@member
def sqrt_rn(x: Any) -> tensor:
    """Square root, rounded to nearest. *method*"""
    return arithmetic.unary_math("sqrt", x)


@member
def rsqrt(x: Any) -> tensor:
    """1 / square root. *method*"""
    return arithmetic.unary_math("rsqrt", x)


@member
def erf(x: Any) -> tensor:
    """The error function. *method*"""
    return arithmetic.unary_math("erf", x)


@member
def tanh(x: Any) -> tensor:
    """Hyperbolic tangent. *method*"""
    return arithmetic.unary_math("tanh", x)


@member
def floor(x: Any) -> tensor:
    """The greatest whole number not above x. *method*"""
    return arithmetic.unary_math("floor", x)


@member
def ceil(x: Any) -> tensor:
    """The least whole number not below x. *method*"""
    return arithmetic.unary_math("ceil", x)


@builtin
def rint(x: Any) -> tensor:
    """The nearest whole number, halves to even."""
    return arithmetic.unary_math("round", x)


@builtin
def trunc(x: Any) -> tensor:
    """The nearest whole number toward zero."""
    return arithmetic.unary_math("truncate", x)


@builtin
def pow(x: Any, y: Any) -> tensor:
    """x to the power y, in floats."""
    return arithmetic.power(x, y)


@member
def abs(x: Any) -> tensor:
    """The value without its sign, for any dtype. *method*"""
    return arithmetic.absolute(x)


@builtin
def fma(x: Any, y: Any, z: Any) -> tensor:
    """x * y + z, rounded once."""
    return arithmetic.fma(x, y, z)


@builtin
def umulhi(x: Any, y: Any) -> tensor:
    """The upper half of the product of two 32- or 64-bit integers, taken as unsigned."""
    return arithmetic.multiply_high(x, y)


__all__ = [
    "abs", "ceil", "clamp", "cos", "div_rn", "erf", "exp", "exp2", "fdiv", "floor", "fma", "log", "log2", "pow", "rint",
    "rsqrt", "sin", "sqrt", "sqrt_rn", "tanh", "trunc", "umulhi",
]  # fmt: skip
