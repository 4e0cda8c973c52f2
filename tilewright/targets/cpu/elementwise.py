"""Elementwise Tile IR operations on registers: scalars, or vectors of any number of lanes.

`Elementwise.emit` takes the operands of one operation as LLVM values of equal lane count and gives its
result.  Floats narrower than float32 are computed in float32 and rounded after every operation, as the
op table says.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.errors import CompilationError
from tilewright.ir.core import Operation
from tilewright.ir.diagnostics import unsupported_error
from tilewright.ir.types import PointerType
from tilewright.targets.cpu.wide_division import EXACT_BITS, divide_wide
from tilewright.targets.llvm.builder import LLVMBuilder, LLVMValue, vector_type
from tilewright.targets.llvm.conversions import Converter, register_type
from tilewright.targets.llvm.division import by_constant
from tilewright.targets.llvm.math import TRIGONOMETRIC_LIMIT, emit_math

_FLOAT_BINARY = {"add": "fadd", "subtract": "fsub", "multiply": "fmul", "divide": "fdiv", "remainder": "frem"}
_INTEGER_BINARY = {
    "add": "add", "subtract": "sub", "multiply": "mul", "and": "and", "or": "or", "xor": "xor", "shift_left": "shl",
}  # fmt: skip
_FLOAT_INTRINSICS = {
    "absolute": "fabs", "sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "round": "roundeven", "truncate": "trunc",
    "fma": "fma",
}  # fmt: skip
_MATH = {"exp", "exp2", "log", "log2", "sin", "cos", "tanh", "erf"}


class Elementwise:
    """Emits elementwise operations through one builder; a register has `register_lanes` lanes of 32 bits."""

    def __init__(self, builder: LLVMBuilder, converter: Converter, register_lanes: int, has_fma: bool) -> None:
        self.has_fma = has_fma
        self.register_lanes = register_lanes
        self.builder = builder
        self.converter = converter
        self.on_lanes: Callable[[Operation, str], None] = lambda operation, reason: None  # told what has no vectors

    def emit(self, operation: Operation, operands: list[LLVMValue]) -> LLVMValue:
        """The result of `operation`; the operands are in the order of the op table, equal in lanes."""
        opcode = operation.opcode
        source = operation.operands[0].type.element
        if opcode == "hint":
            return operands[0]
        if opcode == "select":
            return self.builder.select(*operands)
        if opcode == "cast":
            rounding = str(operation.attributes["rounding"])
            target = operation.result.type.dtype
            return self.converter.cast(operands[0], operation.operands[0].type.dtype, target, rounding)
        if opcode == "bitcast":
            return self._bitcast(operands[0], operation)
        if opcode == "compare":
            return self.converter.compare(str(operation.attributes["predicate"]), source, *operands)
        if opcode == "offset":
            return self._offset(operands[0], operands[1], operation)
        assert not isinstance(source, PointerType), f"{opcode} of pointers"
        if operands[0].is_vector and (reason := _without_vectors(opcode, source, operands)):
            self.on_lanes(operation, reason)
        if source.is_float:
            return self._float(operation, operands, source)
        return self._integer(operation, operands, source)

    def combine(self, opcode: str, left: LLVMValue, right: LLVMValue, dtype: DType, nan: str = "loses") -> LLVMValue:
        """A reduction's step; `left` is the accumulator.

        `nan` says what NaN does in a minimum or maximum of floats: "wins"; "loses" to every number, so that `left` is
        NaN until there was one (`right` comes first in the intrinsic, because x86 tests its first operand, which is off
        the chain of steps); or is "passed over" by one comparison, when `left` is always a number.
        """
        if opcode not in ("minimum", "maximum") or not dtype.is_float:
            return self._combine_plainly(opcode, left, right, dtype)
        builder = self.builder
        wide_left, wide_right = self.converter.widen(left, dtype), self.converter.widen(right, dtype)
        if nan == "loses":
            name = "minnum" if opcode == "minimum" else "maxnum"
            return self.converter.narrow(builder.intrinsic(name, [wide_right, wide_left]), dtype)
        better = builder.compare("ogt" if opcode == "maximum" else "olt", wide_right, wide_left)
        chosen = builder.select(better, right, left)
        if nan == "passed over":
            return chosen
        return builder.select(builder.compare("uno", wide_right, wide_right), right, chosen)

    def _combine_plainly(self, opcode: str, left: LLVMValue, right: LLVMValue, dtype: DType) -> LLVMValue:
        if dtype.is_float:
            wide = [self.converter.widen(value, dtype) for value in (left, right)]
            return self.converter.narrow(self.builder.binary(_FLOAT_BINARY[opcode], wide[0], wide[1]), dtype)
        return self._integer_binary(opcode, left, right, dtype)

    # -- Kinds ------------------------------------------------------------------------------------

    def _float(self, operation: Operation, operands: list[LLVMValue], dtype: DType) -> LLVMValue:
        if operation.opcode == "negate" and operands[0].is_float:
            return self.builder.negate(operands[0])
        wide = [self.converter.widen(operand, dtype) for operand in operands]
        return self.converter.narrow(self._wide_float(operation, wide), dtype)

    def _wide_float(self, operation: Operation, operands: list[LLVMValue]) -> LLVMValue:
        builder, opcode = self.builder, operation.opcode
        if opcode == "divide" and self.has_fma and (found := by_constant(builder, *operands)) is not None:
            return found
        if opcode in _FLOAT_BINARY:
            return builder.binary(_FLOAT_BINARY[opcode], operands[0], operands[1])
        if opcode in _FLOAT_INTRINSICS:
            return builder.intrinsic(_FLOAT_INTRINSICS[opcode], operands)
        if opcode in _MATH:
            return self._by_register(opcode, operands[0])
        if opcode == "negate":
            return builder.negate(operands[0])
        if opcode == "rsqrt":
            one = builder.constant(operands[0].type, 1.0)
            return builder.binary("fdiv", one, builder.intrinsic("sqrt", operands))
        if opcode in ("minimum", "maximum"):
            return self._float_extremum(opcode, operands, bool(operation.attributes["propagate_nan"]))
        if opcode == "power":
            return self.by_lane(lambda x, y: builder.intrinsic("pow", [x, y]), operands)
        raise unsupported(operation, f"'{opcode}' is not defined on floats")

    def _by_register(self, opcode: str, operand: LLVMValue) -> LLVMValue:
        """A transcendental function on a wide vector, one register at a time, so that machine instructions fit."""
        if operand.lanes <= self.register_lanes:
            return emit_math(self.builder, opcode, operand)
        half = operand.lanes // 2
        low, high = (self.builder.shuffle(operand, None, range(start, start + half)) for start in (0, half))
        parts = self._by_register(opcode, low), self._by_register(opcode, high)
        return self.builder.shuffle(parts[0], parts[1], range(operand.lanes))

    def _float_extremum(self, opcode: str, operands: list[LLVMValue], propagate: bool) -> LLVMValue:
        """With one NaN: the other operand, or NaN if `propagate`; by one comparison and one test for NaN, which a
        number on the right does not need.  Of two zeros it is the left one, as x86's `max(right, left)` gives it.  NaN
        becomes a constant other than 0 by one comparison alone, as `max(left, right)` gives it.
        """
        builder = self.builder
        left, right = operands
        constant = right.float_constant
        if not propagate and constant is not None and constant != 0 and not math.isnan(constant):
            better = builder.compare("olt" if opcode == "minimum" else "ogt", left, right)
            return builder.select(better, left, right)
        better = builder.compare("olt" if opcode == "minimum" else "ogt", right, left)  # false where one is NaN
        chosen = builder.select(better, right, left)
        tested = right if propagate else left
        return builder.select(builder.compare("uno", tested, tested), right, chosen)

    def by_lane(self, function: Callable[..., LLVMValue], operands: list[LLVMValue]) -> LLVMValue:
        """A scalar operation applied lane by lane, for library calls that have no vector form."""
        builder, lanes = self.builder, operands[0].lanes
        if lanes == 1:
            return function(*operands)
        result: LLVMValue | None = None
        for lane in range(lanes):
            value = function(*(builder.extract(operand, lane) for operand in operands))
            result = builder.insert(result or builder.poison(vector_type(value.type, lanes)), value, lane)
        assert result is not None
        return result

    def _integer(self, operation: Operation, operands: list[LLVMValue], dtype: DType) -> LLVMValue:
        builder, opcode = self.builder, operation.opcode
        if opcode == "negate":
            return builder.negate(operands[0])
        if opcode == "not":
            return builder.inverse(operands[0])
        if opcode == "absolute":
            if not dtype.is_signed:
                return operands[0]
            name = f"llvm.abs.{_suffix(operands[0])}"
            return builder.call(name, operands[0].type, [operands[0], LLVMValue("i1", "false")])
        if opcode == "multiply_high":
            return self._multiply_high(operands, dtype)
        if len(operands) == 2:
            return self._integer_binary(opcode, operands[0], operands[1], dtype)
        raise unsupported(operation, f"'{opcode}' is not defined on integers")

    def _integer_binary(self, opcode: str, left: LLVMValue, right: LLVMValue, dtype: DType) -> LLVMValue:
        builder = self.builder
        if opcode in _INTEGER_BINARY:
            return builder.binary(_INTEGER_BINARY[opcode], left, right)
        if opcode == "shift_right":
            return builder.binary("ashr" if dtype.is_signed else "lshr", left, right)
        if opcode in ("minimum", "maximum"):
            sign = "s" if dtype.is_signed else "u"
            return builder.intrinsic(f"{sign}{opcode[:3]}", [left, right])
        if opcode in ("divide", "remainder"):
            return self._integer_division(opcode, left, right, dtype)
        raise NotImplementedError(opcode)

    def _integer_division(self, opcode: str, left: LLVMValue, right: LLVMValue, dtype: DType) -> LLVMValue:
        """Division that cannot trap: by zero (and the least number by -1) gives some number."""
        builder = self.builder
        sign = "s" if dtype.is_signed else "u"
        operator = f"{sign}{'div' if opcode == 'divide' else 'rem'}"
        constant = _splat_constant(right)
        if constant is not None and constant not in (0, -1):
            return builder.binary(operator, left, right)
        if left.is_vector and dtype.bits <= 32:
            return self._division_by_doubles(opcode, left, right, dtype)
        one = builder.constant(right.type, 1)
        bad = builder.compare("eq", right, builder.constant(right.type, 0))
        if dtype.is_signed:
            least = builder.constant(left.type, -(2 ** (dtype.bits - 1)))
            overflow = builder.binary(
                "and",
                builder.compare("eq", left, least),
                builder.compare("eq", right, builder.constant(right.type, -1)),
            )
            bad = builder.binary("or", bad, overflow)
        safe = builder.select(bad, one, right)
        if not left.is_vector or dtype.bits < 64:
            return builder.binary(operator, left, safe)
        quotient = divide_wide(builder, left, safe, dtype.is_signed)
        return quotient if opcode == "divide" else builder.subtract(left, builder.multiply(quotient, safe))

    def _division_by_doubles(self, opcode: str, left: LLVMValue, right: LLVMValue, dtype: DType) -> LLVMValue:
        """Exact for integers of up to 32 bits: numbers plus a half are at least 2^-33 of a quotient away from the next.

        A reciprocal, rounded, and a product, rounded, are off by 2^-52 of it; where all lanes have one divisor, the
        reciprocal is computed before a loop.
        """
        builder = self.builder
        wide = vector_type("double", left.lanes)
        to_float, to_integer = ("sitofp", "fptosi") if dtype.is_signed else ("uitofp", "fptoui")
        zero = builder.compare("eq", right, builder.constant(right.type, 0))
        safe = builder.select(zero, builder.constant(right.type, 1), right)
        inverse = builder.binary("fdiv", builder.constant(wide, 1.0), builder.cast(to_float, safe, wide))
        number, half = builder.cast(to_float, left, wide), builder.constant(wide, 0.5)
        if dtype.is_signed:
            half = builder.intrinsic("copysign", [half, number])
        quotient = builder.binary("fmul", builder.binary("fadd", number, half), inverse)
        # Through 64 bits, because the least number divided by -1 leaves the range.
        whole = builder.cast(to_integer, quotient, vector_type("i64", left.lanes))
        narrow = builder.cast("trunc", whole, left.type)
        return narrow if opcode == "divide" else builder.subtract(left, builder.multiply(narrow, safe))

    def _multiply_high(self, operands: list[LLVMValue], dtype: DType) -> LLVMValue:
        builder = self.builder
        wide = vector_type(f"i{2 * dtype.bits}", operands[0].lanes)
        extend = "sext" if dtype.is_signed else "zext"
        left, right = (builder.cast(extend, operand, wide) for operand in operands)
        product = builder.binary("mul", left, right)
        high = builder.binary("lshr", product, builder.constant(wide, dtype.bits))
        return builder.cast("trunc", high, operands[0].type)

    # -- Others -----------------------------------------------------------------------------------

    def _bitcast(self, value: LLVMValue, operation: Operation) -> LLVMValue:
        target = operation.result.type.element
        wanted = vector_type(register_type(target), value.lanes)
        if value.type == wanted:
            return value
        if value.element == "ptr":
            return self.builder.cast("ptrtoint", value, wanted)
        if wanted.endswith("ptr") or wanted.endswith("ptr>"):
            return self.builder.cast("inttoptr", value, wanted)
        return self.builder.cast("bitcast", value, wanted)

    def _offset(self, pointer: LLVMValue, integer: LLVMValue, operation: Operation) -> LLVMValue:
        element = operation.result.type.element
        assert isinstance(element, PointerType)
        kind = operation.operands[1].type.dtype
        index = self.converter.cast(integer, kind, dtypes.int64)
        return self.builder.gep(pointer, index, pointee_type(element))


def _without_vectors(opcode: str, dtype: DType, operands: list[LLVMValue]) -> str | None:
    """Why an operation on vectors becomes scalar code, one lane after the other; None where it does not."""
    if dtype.is_float and (opcode in ("power", "remainder") or (opcode in _MATH and dtype.bits == 64)):
        name = f"float{max(dtype.bits, 32)} {opcode}"
        return f"{name} is a call of the C library"
    if dtype.is_float and opcode in ("sin", "cos"):
        reach = f"{TRIGONOMETRIC_LIMIT:.0f}"
        return f"{opcode} of numbers beyond {reach} is a call of the C library; vectors without one stay whole"
    if opcode in ("divide", "remainder") and not dtype.is_float and dtype.bits == 64:
        if _splat_constant(operands[1]) in (None, 0, -1):
            beyond = f"{dtype.name} {opcode} of numbers beyond {EXACT_BITS} bits is a scalar division"
            return f"{beyond}; vectors without one stay whole"
    return None


def pointee_type(pointer: PointerType) -> str:
    """The LLVM type that addresses through `pointer` are counted in."""
    if pointer.element.kind == "void":
        return "i8"
    return f"i{8 * pointer.element.itemsize}" if pointer.element.bits < 16 else register_type(pointer.element)


def unsupported(operation: Operation, reason: str) -> CompilationError:
    """The error for an operation that the CPU target cannot lower, at the user's line."""
    return unsupported_error(operation, "the CPU target", reason)


def _suffix(value: LLVMValue) -> str:
    return f"v{value.lanes}{value.element}" if value.is_vector else value.type


def _splat_constant(value: LLVMValue) -> int | None:
    text = value.text
    if text.startswith("splat ("):
        text = text[len("splat (") : -1].split(" ")[1]
    return int(text) if text.lstrip("-").isdigit() else None


def identity_of(opcode: str, dtype: DType) -> float | int | bool:
    """The neutral element of a reduction's combination."""
    if opcode in ("add", "or", "xor"):
        return False if dtype.is_bool else 0
    if opcode == "multiply":
        return 1
    if opcode == "and":
        return True if dtype.is_bool else -1
    if dtype.is_float:
        return math.inf if opcode == "minimum" else -math.inf
    if dtype.is_bool:
        return opcode == "minimum"
    least = -(2 ** (dtype.bits - 1)) if dtype.is_signed else 0
    greatest = 2 ** (dtype.bits - 1) - 1 if dtype.is_signed else 2**dtype.bits - 1
    return greatest if opcode == "minimum" else least
