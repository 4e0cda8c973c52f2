"""Conversions between element types, on scalars and vectors in registers.

Registers hold i1 as i1, integers as iN, float8 and bfloat16 as their bits, i8 and i16, the other floats
as LLVM's half, float and double.  Memory holds i1 as a byte.  float8 and, where the machine has no
instruction, bfloat16 are converted by integer arithmetic, because LLVM would call library functions.
"""

from __future__ import annotations

import math

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.ir.types import Element, PointerType
from tilewright.targets.llvm.builder import LLVMBuilder, LLVMValue, suffix, vector_type

_FLOAT_TEXT = {"float16": "half", "float32": "float", "float64": "double"}
# mantissa bits, exponent bias, greatest finite number, code of NaN
_FLOAT8 = {
    "float8e5": (2, 15, 57344.0, 0x7F),
    "float8e4nv": (3, 7, 448.0, 0x7F),
    "float8e5b16": (2, 16, 57344.0, 0x80),
    "float8e4b8": (3, 8, 240.0, 0x80),
}
_FLOAT_PREDICATES = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}


def register_type(element: Element) -> str:
    """The LLVM type of one element in a register."""
    if isinstance(element, PointerType):
        return "ptr"
    return _FLOAT_TEXT.get(element.name, f"i{element.bits}")


def memory_type(element: Element) -> str:
    """The LLVM type of one element in memory."""
    return "i8" if element == dtypes.int1 else register_type(element)


class Converter:
    """Emits conversions, and comparisons of elements of any type."""

    def __init__(self, builder: LLVMBuilder) -> None:
        self.builder = builder

    def cast(self, value: LLVMValue, source: DType, target: DType, rounding: str = "rtne") -> LLVMValue:
        """The number `value` of type `source` as `target`."""
        if source == target:
            return value
        if target.is_bool:
            return self._to_bool(value, source)
        if source.is_integer and target.is_integer:
            return self._integer_to_integer(value, source, target)
        if source.is_integer:
            return self._integer_to_float(value, source, target)
        if target.is_integer:
            return self._float_to_integer(value, source, target)
        return self._float_to_float(value, source, target, rounding)

    def widen(self, value: LLVMValue, source: DType) -> LLVMValue:
        """A float narrower than float32 as float32; others unchanged."""
        return self._to_single(value, source) if source.is_float and source.bits < 32 else value

    def narrow(self, value: LLVMValue, target: DType) -> LLVMValue:
        """The float32 that `widen` gave, back in `target`."""
        return self._from_single(value, target) if target.is_float and target.bits < 32 else value

    # -- Integers ---------------------------------------------------------------------------------

    def compare(self, predicate: str, element: Element, left: LLVMValue, right: LLVMValue) -> LLVMValue:
        """A comparison (eq, ne, lt, le, gt, ge) of register values; ordered for floats, but for ne."""
        if isinstance(element, DType) and element.is_float:
            wide = (self.widen(left, element), self.widen(right, element))
            return self.builder.compare(_FLOAT_PREDICATES[predicate], *wide)
        if predicate not in ("eq", "ne"):
            predicate = ("s" if isinstance(element, DType) and element.is_signed else "u") + predicate
        return self.builder.compare(predicate, left, right)

    def _type(self, element: str, like: LLVMValue) -> str:
        return vector_type(element, like.lanes)

    def _to_bool(self, value: LLVMValue, source: DType) -> LLVMValue:
        if source.is_integer:
            return self.builder.compare("ne", value, self.builder.zero(value.type))
        wide = self.widen(value, source)
        return self.builder.compare("une", wide, self.builder.zero(wide.type))

    def _integer_to_integer(self, value: LLVMValue, source: DType, target: DType) -> LLVMValue:
        if target.bits == source.bits:
            return value
        if target.bits < source.bits:
            operator = "trunc"
        else:
            operator = "sext" if source.is_signed else "zext"
        return self.builder.cast(operator, value, self._type(f"i{target.bits}", value))

    def _integer_to_float(self, value: LLVMValue, source: DType, target: DType) -> LLVMValue:
        builder = self.builder
        operator = "sitofp" if source.is_signed else "uitofp"
        if target.bits >= 32 or source.bits < 32:
            wide = "double" if target.bits == 64 else "float"
            return self.narrow(builder.cast(operator, value, self._type(wide, value)), target)
        if source.bits == 64:  # more digits than float64 has: those below become one that says whether there were any
            low = builder.binary("and", value, builder.constant(value.type, 0xFFF))
            some = builder.cast("zext", builder.compare("ne", low, builder.zero(value.type)), value.type)
            sticky = builder.binary("shl", some, builder.constant(value.type, 11))
            rounded = builder.binary("or", builder.subtract(value, low), sticky)
            magnitude = value
            if source.is_signed:
                name = f"llvm.abs.{suffix(value.type)}"
                magnitude = builder.call(name, value.type, [value, LLVMValue("i1", "false")])
            small = builder.compare("ult", magnitude, builder.constant(value.type, 1 << 53))
            value = builder.select(small, value, rounded)
        exact = builder.cast(operator, value, self._type("double", value))
        return self._from_single(self._round_to_odd(exact), target)

    def _float_to_integer(self, value: LLVMValue, source: DType, target: DType) -> LLVMValue:
        """Truncated; the nearest number of the type where that does not fit, and 0 for NaN.

        What LLVM's own conversion is given always fits: anything else would be poison.
        """
        builder, signed = self.builder, target.is_signed
        wide = self.widen(value, source)
        bits, digits = target.bits - signed, 53 if source.bits == 64 else 24
        beyond = builder.constant(wide.type, 2.0**bits)
        lowest = builder.constant(wide.type, -(2.0**bits) if signed else 0.0)
        result = self._type(f"i{max(target.bits, 32)}", value)
        operator = "fptosi" if signed or target.bits < 32 else "fptoui"
        raised = builder.select(builder.compare("ogt", wide, lowest), wide, lowest)  # NaN too
        if bits <= digits:
            highest = builder.constant(wide.type, 2.0**bits - 1)
            fitting = builder.select(builder.compare("olt", raised, highest), raised, highest)
            number = builder.cast(operator, fitting, result)
            if signed:
                number = builder.select(builder.compare("uno", wide, wide), builder.zero(result), number)
            return builder.cast("trunc", number, self._type(f"i{target.bits}", value))
        if not signed:
            fitting = builder.select(builder.compare("olt", raised, beyond), raised, builder.zero(wide.type))
            number = builder.cast(operator, fitting, result)
            return builder.select(builder.compare("oge", wide, beyond), builder.constant(result, -1), number)
        fits = builder.compare("olt", builder.intrinsic("fabs", [wide]), beyond)
        number = builder.cast(operator, builder.select(fits, wide, builder.zero(wide.type)), result)
        number = builder.select(builder.compare("oge", wide, beyond), builder.constant(result, 2**bits - 1), number)
        return builder.select(builder.compare("ole", wide, lowest), builder.constant(result, -(2**bits)), number)

    # -- Floats -----------------------------------------------------------------------------------

    def _float_to_float(self, value: LLVMValue, source: DType, target: DType, rounding: str) -> LLVMValue:
        builder = self.builder
        if source.bits == 64 and target.bits < 64:
            if target.bits == 32:
                result = builder.cast("fptrunc", value, self._type("float", value))
            else:
                result = self._from_single(self._round_to_odd(value), target)
        elif target.bits == 64:
            result = builder.cast("fpext", self.widen(value, source), self._type("double", value))
        else:
            result = self.narrow(self.widen(value, source), target)
        return self._toward_zero(value, source, result, target) if rounding == "rtz" else result

    def _to_single(self, value: LLVMValue, source: DType) -> LLVMValue:
        builder = self.builder
        single, word = self._type("float", value), self._type("i32", value)
        if source == dtypes.float16:
            return builder.cast("fpext", value, single)
        if source == dtypes.bfloat16:
            bits = builder.cast("zext", value, word)
            return builder.cast("bitcast", builder.binary("shl", bits, builder.constant(word, 16)), single)
        if source == dtypes.float8e5:
            half = builder.binary("shl", builder.cast("zext", value, self._type("i16", value)), self._half_shift(value))
            return builder.cast("fpext", builder.cast("bitcast", half, self._type("half", value)), single)
        return self._decode_float8(value, source)

    def _half_shift(self, value: LLVMValue) -> LLVMValue:
        return self.builder.constant(self._type("i16", value), 8)

    def _decode_float8(self, value: LLVMValue, source: DType) -> LLVMValue:
        """Exponent and mantissa moved to their float32 places, then scaled by the difference of the biases."""
        builder = self.builder
        mantissa, bias, _, nan = _FLOAT8[source.name]
        single, word = self._type("float", value), self._type("i32", value)
        bits = builder.cast("zext", value, word)
        magnitude = builder.binary("and", bits, builder.constant(word, 0x7F))
        shift = builder.constant(word, 23 - mantissa)
        moved = builder.cast("bitcast", builder.binary("shl", magnitude, shift), single)
        scaled = builder.binary("fmul", moved, builder.constant(single, 2.0 ** (127 - bias)))
        is_nan = builder.compare("eq", bits if nan == 0x80 else magnitude, builder.constant(word, nan))
        number = builder.select(is_nan, builder.constant(single, math.nan), scaled)
        sign = builder.binary(
            "shl", builder.binary("and", bits, builder.constant(word, 0x80)), builder.constant(word, 24)
        )
        return builder.cast("bitcast", builder.binary("or", builder.cast("bitcast", number, word), sign), single)

    def _from_single(self, value: LLVMValue, target: DType) -> LLVMValue:
        builder = self.builder
        if target == dtypes.float16:
            return builder.cast("fptrunc", value, self._type("half", value))
        if target == dtypes.bfloat16:
            return self._round_bfloat16(value)
        return self._encode_float8(value, target)

    def _round_bfloat16(self, value: LLVMValue) -> LLVMValue:
        """In integers also where the CPU has an instruction, which takes subnormal numbers for zero."""
        builder = self.builder
        word = self._type("i32", value)
        bits = builder.cast("bitcast", value, word)
        odd = builder.binary("and", builder.binary("lshr", bits, builder.constant(word, 16)), builder.constant(word, 1))
        rounded = builder.add(builder.add(bits, odd), builder.constant(word, 0x7FFF))
        quiet = builder.binary("or", bits, builder.constant(word, 0x400000))
        chosen = builder.select(builder.compare("uno", value, value), quiet, rounded)
        if value.lanes >= 32:  # the upper halves of two registers by one exchange, where truncation takes each alone
            halves = builder.cast("bitcast", chosen, vector_type("i16", 2 * value.lanes))
            return builder.shuffle(halves, None, range(1, 2 * value.lanes, 2))
        high = builder.binary("lshr", chosen, builder.constant(word, 16))
        return builder.cast("trunc", high, self._type("i16", value))

    def _encode_float8(self, value: LLVMValue, target: DType) -> LLVMValue:
        """To nearest even; beyond the greatest finite number: that number.

        Normal numbers are rounded in their bits, with the difference of the biases taken off the exponent.  For the
        others an addition rounds: the last bit of the sum is the least number of the format.
        """
        builder = self.builder
        mantissa, bias, greatest, nan = _FLOAT8[target.name]
        single, word = value.type, self._type("i32", value)
        magnitude = builder.intrinsic(
            "minnum", [builder.intrinsic("fabs", [value]), builder.constant(single, greatest)]
        )
        bits, shift = builder.cast("bitcast", magnitude, word), 23 - mantissa
        odd = builder.binary(
            "and", builder.binary("lshr", bits, builder.constant(word, shift)), builder.constant(word, 1)
        )
        offset = (1 << (shift - 1)) - 1 - ((127 - bias) << 23)
        rounded = builder.add(builder.add(bits, odd), builder.constant(word, offset))
        anchor = 2.0 ** (24 - bias - mantissa)
        sum_bits = builder.cast("bitcast", builder.binary("fadd", magnitude, builder.constant(single, anchor)), word)
        small = builder.subtract(sum_bits, builder.cast("bitcast", builder.constant(single, anchor), word))
        is_small = builder.compare("olt", magnitude, builder.constant(single, 2.0 ** (1 - bias)))
        normal = builder.binary("lshr", rounded, builder.constant(word, shift))
        code = builder.select(is_small, small, normal)
        sign = builder.binary("lshr", builder.cast("bitcast", value, word), builder.constant(word, 24))
        signed = builder.binary("or", code, builder.binary("and", sign, builder.constant(word, 0x80)))
        if nan == 0x80:  # there is no -0: that code is NaN
            zero = builder.zero(word)
            signed = builder.select(builder.compare("eq", code, zero), zero, signed)
        chosen = builder.select(builder.compare("uno", value, value), builder.constant(word, nan), signed)
        return builder.cast("trunc", chosen, self._type("i8", value))

    def _round_to_odd(self, value: LLVMValue) -> LLVMValue:
        """float64 to float32 so that a second rounding to fewer digits is as good as one.

        Source: Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008.
        """
        builder = self.builder
        word = self._type("i32", value)
        nearest = builder.cast("fptrunc", value, self._type("float", value))
        back = builder.cast("fpext", nearest, value.type)
        finite = builder.compare("olt", builder.intrinsic("fabs", [back]), builder.constant(value.type, math.inf))
        inexact = builder.binary("and", builder.compare("one", back, value), finite)
        magnitude, exact = builder.intrinsic("fabs", [back]), builder.intrinsic("fabs", [value])
        too_far = builder.binary("and", inexact, builder.compare("ogt", magnitude, exact))
        bits = builder.cast("bitcast", nearest, word)
        truncated = builder.subtract(bits, builder.cast("zext", too_far, word))
        odd = builder.binary("or", truncated, builder.cast("zext", inexact, word))
        return builder.cast("bitcast", odd, self._type("float", value))

    def _toward_zero(self, value: LLVMValue, source: DType, nearest: LLVMValue, target: DType) -> LLVMValue:
        """One unit nearer to zero where rounding to nearest went beyond `value`."""
        builder = self.builder
        wide, back = self.cast(value, source, dtypes.float64), self.cast(nearest, target, dtypes.float64)
        beyond = builder.compare("ogt", builder.intrinsic("fabs", [back]), builder.intrinsic("fabs", [wide]))
        bits_type = self._type(f"i{target.bits}", value)
        finite = builder.compare("olt", builder.intrinsic("fabs", [wide]), builder.constant(wide.type, math.inf))
        step = builder.cast("zext", builder.binary("and", beyond, finite), bits_type)
        stepped = builder.subtract(builder.cast("bitcast", nearest, bits_type), step)
        if target.name in _FLOAT8 and _FLOAT8[target.name][3] == 0x80:  # a step from the least negative number: no -0
            vanished = builder.compare("eq", stepped, builder.constant(bits_type, -0x80))
            moved = builder.compare("ne", step, builder.zero(bits_type))
            reached_zero = builder.binary("and", vanished, moved)
            stepped = builder.select(reached_zero, builder.zero(bits_type), stepped)
        return builder.cast("bitcast", stepped, nearest.type)


def positive_nan(builder: LLVMBuilder, value: LLVMValue) -> LLVMValue:
    """A double, with one NaN for all: C libraries print the sign of others, which no operation defines."""
    return builder.select(builder.compare("uno", value, value), builder.constant("double", math.nan), value)
