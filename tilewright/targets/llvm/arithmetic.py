"""Arithmetic on float32 or float64, in which `targets.llvm.math` and other targets write functions."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

from tilewright.targets.llvm.builder import LLVMBuilder, LLVMValue, vector_type

ROUNDER = 1.5 * 2.0**23  # adding it to a small float32 rounds to a whole number, held in the low bits
_ROUNDER_DOUBLE = 1.5 * 2.0**52


class Arithmetic:
    """Short names for float32 (or float64) arithmetic on one lane count; floats of Python stand for constants."""

    def __init__(self, builder: LLVMBuilder, lanes: int = 1, element: str = "float") -> None:
        self.builder = builder
        self.lanes = lanes
        self.double = element == "double"
        self.type = vector_type(element, lanes)
        self.integer_type = vector_type("i64" if self.double else "i32", lanes)

    def number(self, value: float) -> LLVMValue:
        return self.builder.constant(self.type, value)

    def integer(self, value: int) -> LLVMValue:
        return self.builder.constant(self.integer_type, value)

    def add(self, left: LLVMValue, right: LLVMValue | float) -> LLVMValue:
        return self.builder.binary("fadd" if left.is_float else "add", left, self._value(right))

    def subtract(self, left: LLVMValue | float, right: LLVMValue) -> LLVMValue:
        return self.builder.binary("fsub" if right.is_float else "sub", self._value(left), right)

    def multiply(self, left: LLVMValue, right: LLVMValue | float) -> LLVMValue:
        return self.builder.binary("fmul", left, self._value(right))

    def divide(self, left: LLVMValue | float, right: LLVMValue) -> LLVMValue:
        return self.builder.binary("fdiv", self._value(left), right)

    def fma(self, left: LLVMValue, right: LLVMValue | float, addend: LLVMValue | float) -> LLVMValue:
        return self.builder.intrinsic("fma", [left, self._value(right), self._value(addend)])

    def negate(self, value: LLVMValue) -> LLVMValue:
        return self.builder.negate(value)

    def polynomial(self, x: LLVMValue, coefficients: Sequence[float]) -> LLVMValue:
        """Horner's rule; coefficients from the lowest power up."""
        result = self.number(coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            result = self.fma(result, x, coefficient)
        return result

    def select(self, predicate: str, left: LLVMValue, right: float, then: LLVMValue, otherwise: LLVMValue) -> LLVMValue:
        """`then` where `left predicate right`; an ordered predicate is false for NaN."""
        return self.builder.select(self.builder.compare(predicate, left, self.number(right)), then, otherwise)

    def clamp(self, x: LLVMValue, low: float, high: float) -> LLVMValue:
        """x within [low, high]; NaN stays."""
        x = self.select("olt", x, low, self.number(low), x)
        return self.select("ogt", x, high, self.number(high), x)

    def absolute(self, x: LLVMValue) -> LLVMValue:
        return self.builder.intrinsic("fabs", [x])

    def with_sign_of(self, x: LLVMValue, sign: LLVMValue) -> LLVMValue:
        return self.builder.intrinsic("copysign", [x, sign])

    def bits(self, x: LLVMValue) -> LLVMValue:
        return self.builder.cast("bitcast", x, self.integer_type)

    def from_bits(self, x: LLVMValue) -> LLVMValue:
        return self.builder.cast("bitcast", x, self.type)

    def bits_of(self, number: float) -> LLVMValue:
        """The bits of a constant."""
        form, whole = ("<d", "<q") if self.double else ("<f", "<i")
        return self.integer(struct.unpack(whole, struct.pack(form, number))[0])

    def rounded(self, x: LLVMValue, factor: float) -> tuple[LLVMValue, LLVMValue]:
        """The whole number nearest to `x * factor` (below 2^22 in size, 2^51 of float64), as a float and as an
        integer."""
        rounder = _ROUNDER_DOUBLE if self.double else ROUNDER
        shifted = self.fma(x, factor, rounder)
        return self.subtract(shifted, self.number(rounder)), self.subtract(self.bits(shifted), self.bits_of(rounder))

    def power_of_two(self, exponent: LLVMValue) -> LLVMValue:
        """2 to an integer in the range of normal numbers."""
        bias, shift = (1023, 52) if self.double else (127, 23)
        biased = self.add(exponent, self.integer(bias))
        return self.from_bits(self.builder.binary("shl", biased, self.integer(shift)))

    def scaled(self, x: LLVMValue, whole: LLVMValue, exponent: LLVMValue, normal: bool = False) -> LLVMValue:
        """x times 2^exponent, rounded once; `whole` is the exponent as a float.

        In two steps, because 2^exponent itself may not be a number, unless the result is known to be `normal`;
        in one instruction where there is one.
        """
        registers = not self.double and self.lanes * 32 in (256, 512)
        if registers and {"avx512f", "avx512vl"} <= self.builder.module.features:
            return self._scaled_by_instruction(x, whole)
        if normal:
            return self.multiply(x, self.power_of_two(exponent))
        half = self.builder.binary("ashr", exponent, self.integer(1))
        once = self.multiply(x, self.power_of_two(half))
        return self.multiply(once, self.power_of_two(self.subtract(exponent, half)))

    def around_one(self, x: LLVMValue) -> tuple[LLVMValue, LLVMValue]:
        """f and e (as a float) of positive x = (1 + f) 2^e, where 1 + f is between sqrt(1/2) and sqrt(2)."""
        builder, shift = self.builder, 52 if self.double else 23
        least, lifted = (2.0**-1022, 54.0) if self.double else (2.0**-126, 23.0)
        tiny = builder.compare("olt", x, self.number(least))
        bits = self.bits(builder.select(tiny, self.multiply(x, 2.0**lifted), x))
        exponent = builder.binary("ashr", self.subtract(bits, self.bits_of(math.sqrt(0.5))), self.integer(shift))
        mantissa = self.subtract(bits, builder.binary("shl", exponent, self.integer(shift)))
        f = self.subtract(self.from_bits(mantissa), self.number(1.0))
        whole = builder.cast("sitofp", exponent, self.type)
        return f, builder.select(tiny, self.subtract(whole, self.number(lifted)), whole)

    def _scaled_by_instruction(self, x: LLVMValue, whole: LLVMValue) -> LLVMValue:
        """AVX-512's vscalefps, all lanes."""
        mask = self.builder.integer(-1, f"i{max(8, self.lanes)}")
        arguments = [x, whole, x, mask]
        name = f"llvm.x86.avx512.mask.scalef.ps.{32 * self.lanes}"
        if self.lanes == 16:
            current_rounding = self.builder.integer(4, "i32")
            declared = [self.type, self.type, self.type, "i16", "i32 immarg"]
            return self.builder.call(name, self.type, [*arguments, current_rounding], declared=declared)
        return self.builder.call(name, self.type, arguments)

    def _value(self, value: LLVMValue | float) -> LLVMValue:
        return self.number(value) if isinstance(value, float) else value
