"""Elementwise operations: one scalar instruction, or a few, for each register that can differ from the others.

Of a block whose facts say that runs of its elements are equal (a mask of rows whose length 16 divides), the registers
of one run are computed once.  Sums of indices keep apart what all registers of a thread have in common
(`KernelLowering.affine`), so that a block of pointers is one address and constant distances.

Floats narrower than float32 are computed in float32 and rounded after every operation, as the op table says.  Sums and
products of float16, and of bfloat16 where the GPU has them, are done two at a time by instructions of their own, with
equal results: float32 has more than twice their digits, so that rounding twice is rounding once (Figueroa, "When is
double rounding innocuous?", SIGNUM Newsletter 1995).
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.ir.core import Operation, SSAValue
from tilewright.ir.ops import ELEMENTWISE
from tilewright.ir.types import PointerType
from tilewright.targets.gpu.conversions import register_type
from tilewright.targets.gpu.division import are_divided_together, divide_in_groups
from tilewright.targets.gpu.exchange import from_bits, pack, to_bits, unpack
from tilewright.targets.gpu.functions import emit_function
from tilewright.targets.gpu.lowering import KEPT_ATTRIBUTE, KernelLowering, Rule, unsupported
from tilewright.targets.llvm.builder import LLVMValue

_FLOAT_BINARY = {"add": "fadd", "subtract": "fsub", "multiply": "fmul", "divide": "fdiv"}
_INTEGER_BINARY = {
    "add": "add", "subtract": "sub", "multiply": "mul", "and": "and", "or": "or", "xor": "xor", "shift_left": "shl",
}  # fmt: skip
_FLOAT_INTRINSICS = {
    "absolute": "fabs", "sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "round": "roundeven", "truncate": "trunc",
    "fma": "fma",
}  # fmt: skip
_EXTREMA = {"minimum": ("minnum", "minimum"), "maximum": ("maxnum", "maximum")}
# Registers that are computed at once although only one is asked for: pairs for conversions, a vector for divisions.
_TOGETHER = {"cast": 2, "divide": 8}
_FUNCTIONS = frozenset("exp exp2 log log2 sin cos tanh erf rsqrt power remainder".split())


def elementwise(lowering: KernelLowering, operation: Operation) -> None:
    """The rule of every elementwise operation."""
    operands = [lowering.registers(value) for value in operation.operands]
    count = len(operands[0])
    chosen = representatives(lowering, operation.result)
    if operation in lowering.deferred:
        _defer(lowering, operation, operands, chosen)
        return
    distinct = sorted(set(chosen))
    found = dict(zip(distinct, _computed(lowering, operation, operands, distinct), strict=True))
    lowering.define(operation.result, [found[chosen[position]] for position in range(count)])


def _computed(
    lowering: KernelLowering, operation: Operation, operands: Sequence[Sequence[LLVMValue]], positions: Sequence[int]
) -> list[LLVMValue]:
    """The registers of the result at some positions."""
    columns = [[registers[position] for position in positions] for registers in operands]
    if are_divided_together(operation, columns):
        return divide_in_groups(lowering.intrinsics, lowering.builder, columns[0], columns[1])
    if operation.opcode == "cast":
        return _cast(lowering, operation, columns[0])
    pair = _pair_type(lowering, operation)
    if pair is not None:
        return _in_pairs(lowering, operation, columns, pair)
    return [emit(lowering, operation, [column[place] for column in columns]) for place in range(len(positions))]


def _defer(
    lowering: KernelLowering, operation: Operation, operands: Sequence[Sequence[LLVMValue]], chosen: Sequence[int]
) -> None:
    """Compute a register when it is asked for, with the neighbours that it is computed together with."""
    together = _TOGETHER.get(operation.opcode, 1)
    found: dict[int, LLVMValue] = {}

    def register(position: int) -> LLVMValue:
        place = chosen[position]
        if place not in found:
            start = place // together * together
            group = sorted({chosen[near] for near in range(start, min(start + together, len(chosen)))} | {place})
            missing = [near for near in group if near not in found]
            found.update(zip(missing, _computed(lowering, operation, operands, missing), strict=True))
        return found[place]

    lowering.define_later(operation.result, register, len(chosen))


def representatives(lowering: KernelLowering, value: SSAValue) -> list[int]:
    """For each register the position of one that holds the same number for certain (often itself)."""
    if value.type.is_scalar:
        return [0]
    numbers = lowering.numbers(value)
    facts = lowering.assignment.facts.get(value)
    if facts is None or max(facts.constancy) == 1:
        return list(range(len(numbers)))
    layout = lowering.layout(value)
    # Registers whose elements differ only below the run length hold the same, when that is so for every thread.
    places: dict[int, int] = {}
    result = []
    for position, number in enumerate(numbers):
        coordinates = layout.unpack(layout.element(register=number))
        start = layout.pack([c // run * run for c, run in zip(coordinates, facts.constancy, strict=True)])
        result.append(places.setdefault(start, position))
    return result


def _cast(lowering: KernelLowering, operation: Operation, registers: Sequence[LLVMValue]) -> list[LLVMValue]:
    operand = operation.operands[0]
    source, target = operand.type.dtype, operation.result.type.dtype
    if (source.text, target.bits) == ("i32", 64) and target.is_integer and _is_index(lowering, operand):
        return [_widened(lowering, register) for register in registers]
    return lowering.converter.cast_all(registers, source, target, str(operation.attributes["rounding"]))


def _is_index(lowering: KernelLowering, value: SSAValue) -> bool:
    """Whether a block counts elements, as ranges do: such numbers are taken not to wrap around (`axis_info`)."""
    facts = lowering.assignment.facts.get(value)
    return value.type.rank > 0 and facts is not None and max(facts.contiguity) > 1


def _widened(lowering: KernelLowering, register: LLVMValue) -> LLVMValue:
    """An index as i64, its constant part outside."""
    base, distance = lowering.affine.get(register.text, (register, 0))
    wide = lowering.once(("sext", base.text), lambda: lowering.builder.cast("sext", base, "i64"))
    return lowering.plus(wide, distance)


def emit(lowering: KernelLowering, operation: Operation, operands: Sequence[LLVMValue]) -> LLVMValue:
    """One scalar of an elementwise operation."""
    opcode, element = operation.opcode, operation.operands[0].type.element
    builder = lowering.builder
    if opcode == "hint":
        return operands[0]
    if opcode == "select":
        return builder.select(*operands)
    if opcode == "bitcast":
        return _bitcast(lowering, operands[0], operation)
    if opcode == "compare":
        return lowering.converter.compare(str(operation.attributes["predicate"]), element, *operands)
    if opcode == "offset":
        return _offset(lowering, operands[0], operands[1], operation)
    if opcode == "cast":
        return _cast(lowering, operation, operands)[0]
    assert isinstance(element, DType), f"{opcode} of pointers"
    if element.is_float:
        return _float(lowering, operation, operands, element)
    return _integer(lowering, operation, operands, element)


# Floats ------------------------------------------------------------------------------------------


def _float(lowering: KernelLowering, operation: Operation, operands: Sequence[LLVMValue], dtype: DType) -> LLVMValue:
    opcode, builder, converter = operation.opcode, lowering.builder, lowering.converter
    if opcode == "negate" and operands[0].is_float:
        return builder.negate(operands[0])
    if dtype == dtypes.float16 and opcode in ("add", "subtract", "multiply"):
        return builder.emit(f"{_FLOAT_BINARY[opcode]} {operands[0]}, {operands[1].text}", "half")
    wide = [converter.widen(operand, dtype) for operand in operands]
    if opcode in _FLOAT_BINARY:
        result = builder.binary(_FLOAT_BINARY[opcode], wide[0], wide[1])
    elif opcode in _FLOAT_INTRINSICS:
        result = builder.intrinsic(_FLOAT_INTRINSICS[opcode], wide)
        if opcode == "round":
            converter.whole[result.text] = wide[0]
    elif opcode == "negate":
        result = builder.negate(wide[0])
    elif opcode in _EXTREMA:
        result = _extremum(lowering, operation, wide)
    elif opcode in _FUNCTIONS:
        result = emit_function(lowering, operation, wide)
    else:
        raise unsupported(lowering, operation, f"'{opcode}' is not defined on floats")
    return converter.narrow(result, dtype)


def _extremum(lowering: KernelLowering, operation: Operation, operands: Sequence[LLVMValue]) -> LLVMValue:
    """One instruction for float32; float64 has no form that propagates NaN."""
    builder = lowering.builder
    ignoring, propagating = _EXTREMA[operation.opcode]
    if not operation.attributes["propagate_nan"]:
        return builder.intrinsic(ignoring, operands)
    if operands[0].type == "float":
        return builder.intrinsic(propagating, operands)
    chosen = builder.intrinsic(ignoring, operands)
    unordered = builder.compare("uno", *operands)
    return builder.select(unordered, builder.constant(chosen.type, float("nan")), chosen)


def _pair_type(lowering: KernelLowering, operation: Operation) -> str | None:
    """The LLVM type of two numbers that one instruction adds, subtracts or multiplies."""
    if operation.opcode not in ("add", "subtract", "multiply"):
        return None
    dtype = operation.result.type.element
    if dtype == dtypes.float16:
        return "<2 x half>"
    return "<2 x bfloat>" if dtype == dtypes.bfloat16 and lowering.target.bfloat16_arithmetic else None


def _in_pairs(
    lowering: KernelLowering, operation: Operation, columns: Sequence[Sequence[LLVMValue]], pair: str
) -> list[LLVMValue]:
    """A sum or product of 16-bit floats, two neighbouring registers at a time."""
    builder, results = lowering.builder, []
    count = len(columns[0])
    for place in range(0, count - 1, 2):
        words = []
        for column in columns:
            bits = [to_bits(lowering, register) for register in column[place : place + 2]]
            key = ("pair", *(register.text for register in column[place : place + 2]))
            words.append(lowering.once(key, lambda bits=bits: pack(lowering, bits, 32)))  # type: ignore[misc]
        left, right = (builder.cast("bitcast", word, pair) for word in words)
        whole = builder.emit(f"{_FLOAT_BINARY[operation.opcode]} {left}, {right.text}", pair)
        parts = unpack(lowering, builder.cast("bitcast", whole, "i32"), 2, 16)
        results += [from_bits(lowering, part, columns[0][place].type) for part in parts]
    if count % 2:
        results.append(emit(lowering, operation, [column[-1] for column in columns]))
    return results


# Integers ----------------------------------------------------------------------------------------


def _integer(lowering: KernelLowering, operation: Operation, operands: Sequence[LLVMValue], dtype: DType) -> LLVMValue:
    builder, opcode = lowering.builder, operation.opcode
    if opcode in ("add", "subtract") and KEPT_ATTRIBUTE in operation.attributes:
        return builder.binary(_INTEGER_BINARY[opcode], operands[0], operands[1])
    if opcode in ("add", "subtract"):
        return _sum(lowering, opcode, operands[0], operands[1], dtype)
    if opcode == "multiply":
        return _product(lowering, operands[0], operands[1])
    if opcode == "negate":
        return builder.negate(operands[0])
    if opcode == "not":
        return builder.inverse(operands[0])
    if opcode == "absolute":
        if not dtype.is_signed:
            return operands[0]
        return builder.call(f"llvm.abs.{operands[0].type}", operands[0].type, [operands[0], LLVMValue("i1", "false")])
    if opcode == "multiply_high":
        return _multiply_high(lowering, operands, dtype)
    if opcode in _INTEGER_BINARY:
        return builder.binary(_INTEGER_BINARY[opcode], operands[0], operands[1])
    if opcode == "shift_right":
        return builder.binary("ashr" if dtype.is_signed else "lshr", operands[0], operands[1])
    if opcode in ("minimum", "maximum"):
        return _integer_extremum(lowering, opcode, operands, dtype)
    if opcode in ("divide", "remainder"):
        return _division(lowering, opcode, operands, dtype)
    raise unsupported(lowering, operation, f"'{opcode}' is not defined on integers")


def _parts(lowering: KernelLowering, register: LLVMValue) -> tuple[LLVMValue | None, int]:
    """A register as another one (None: nothing) plus a number."""
    if register.constant is not None:
        return None, register.constant
    base, distance = lowering.affine.get(register.text, (register, 0))
    return (None, base.constant + distance) if base.constant is not None else (base, distance)


def _sum(lowering: KernelLowering, opcode: str, left: LLVMValue, right: LLVMValue, dtype: DType) -> LLVMValue:
    """Sums of i32 and i64 add what is common once and the numbers apart."""
    operator = _INTEGER_BINARY[opcode]
    if dtype.bits < 32:
        return lowering.builder.binary(operator, left, right)
    (base_left, first), (base_right, second) = _parts(lowering, left), _parts(lowering, right)
    sign = 1 if opcode == "add" else -1
    if base_right is None:
        base = base_left if base_left is not None else LLVMValue(left.type, "0")
    elif base_left is None and sign > 0:
        base = base_right
    else:
        first_base = base_left if base_left is not None else LLVMValue(left.type, "0")
        key = (operator, first_base.text, base_right.text)
        base = lowering.once(key, lambda: lowering.builder.binary(operator, first_base, base_right))
    return lowering.plus(base, first + sign * second)


def _product(lowering: KernelLowering, left: LLVMValue, right: LLVMValue) -> LLVMValue:
    """Products with a number keep the common part common."""
    if left.constant is not None:
        left, right = right, left
    factor = right.constant
    base, distance = _parts(lowering, left)
    if factor is None or base is None or left.type not in ("i32", "i64"):
        if factor is not None and base is None and left.type in ("i32", "i64"):
            return lowering.plus(LLVMValue(left.type, "0"), distance * factor)
        return lowering.once(("mul", left.text, right.text), lambda: lowering.builder.binary("mul", left, right))
    number = LLVMValue(base.type, str(factor))
    scaled = lowering.once(("mul", base.text, factor), lambda: lowering.builder.binary("mul", base, number))
    return lowering.plus(scaled, distance * factor)


def _integer_extremum(lowering: KernelLowering, opcode: str, operands: Sequence[LLVMValue], dtype: DType) -> LLVMValue:
    if dtype.is_bool:
        return lowering.builder.binary("and" if opcode == "minimum" else "or", operands[0], operands[1])
    return lowering.builder.intrinsic(f"{'s' if dtype.is_signed else 'u'}{opcode[:3]}", operands)


def _multiply_high(lowering: KernelLowering, operands: Sequence[LLVMValue], dtype: DType) -> LLVMValue:
    builder, bits = lowering.builder, dtype.bits
    wide = f"i{2 * bits}"
    factors = [builder.cast("sext" if dtype.is_signed else "zext", operand, wide) for operand in operands]
    product = builder.binary("mul", factors[0], factors[1])
    return builder.cast("trunc", builder.binary("lshr", product, LLVMValue(wide, str(bits))), operands[0].type)


def _division(lowering: KernelLowering, opcode: str, operands: Sequence[LLVMValue], dtype: DType) -> LLVMValue:
    """Division by zero, and of the least number by -1, gives some number; LLVM must not take it to be impossible."""
    builder = lowering.builder
    left, right = operands
    operator = f"{'s' if dtype.is_signed else 'u'}{'div' if opcode == 'divide' else 'rem'}"
    if right.constant not in (None, 0, -1):
        return builder.binary(operator, left, right)
    bad = builder.compare("eq", right, 0)
    if dtype.is_signed:
        least = builder.compare("eq", left, -(2 ** (dtype.bits - 1)))
        bad = builder.binary("or", bad, builder.binary("and", least, builder.compare("eq", right, -1)))
    return builder.binary(operator, left, builder.select(bad, builder.constant(right.type, 1), right))


# Choice, pointers --------------------------------------------------------------------------------


def _bitcast(lowering: KernelLowering, value: LLVMValue, operation: Operation) -> LLVMValue:
    wanted = register_type(operation.result.type.element)
    if value.type == wanted:
        return value
    if value.type.startswith("ptr"):
        return lowering.builder.cast("ptrtoint", value, wanted)
    if wanted.startswith("ptr"):
        return lowering.builder.cast("inttoptr", value, wanted)
    return lowering.builder.cast("bitcast", value, wanted)


def pointee_bytes(pointer: PointerType) -> int:
    return 1 if pointer.element.kind == "void" else pointer.element.itemsize


def _offset(lowering: KernelLowering, pointer: LLVMValue, index: LLVMValue, operation: Operation) -> LLVMValue:
    """Pointer plus index: the common address is computed once, the constant bytes are added last."""
    element = operation.result.type.element
    assert isinstance(element, PointerType)
    size, kind = pointee_bytes(element), operation.operands[1].type.dtype
    base, bytes_before = lowering.affine.get(pointer.text, (pointer, 0))
    number, distance = _parts(lowering, index)
    address = base
    if number is not None:
        address = lowering.once(
            ("offset", base.text, number.text, size), lambda: _address(lowering, base, number, kind, size)
        )
    return byte_offset(lowering, address, bytes_before + distance * size)


def _address(lowering: KernelLowering, base: LLVMValue, index: LLVMValue, kind: DType, size: int) -> LLVMValue:
    wide = lowering.once(("index", kind.name, index.text), lambda: lowering.converter.cast(index, kind, dtypes.int64))
    unit = f"i{8 * size}"
    return lowering.builder.emit(f"getelementptr {unit}, {base}, {wide}", base.type)


def byte_offset(lowering: KernelLowering, pointer: LLVMValue, distance: int) -> LLVMValue:
    """A pointer plus a number of bytes, remembered as that."""
    base, known = lowering.affine.get(pointer.text, (pointer, 0))
    total = known + distance
    if not total:
        return base

    def make() -> LLVMValue:
        moved = lowering.builder.emit(f"getelementptr i8, {base}, i64 {total}", base.type)
        lowering.affine[moved.text] = base, total
        return moved

    return lowering.once(("bytes", base.text, total), make)


RULES: dict[str, Rule] = dict.fromkeys(ELEMENTWISE - {"hint"}, elementwise)  # a hint changes nothing
