"""Products by mma.sync: operands are in registers already, in the layouts of `dot_layout.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from tilewright import dtypes
from tilewright.ir.core import Operation, SSAValue
from tilewright.targets.gpu.dot_scalar import scalar_dot, scalar_dot_bytes
from tilewright.targets.gpu.exchange import pack, to_bits
from tilewright.targets.gpu.layouts import Assignment
from tilewright.targets.gpu.scratch import SIZES, Size
from tilewright.targets.llvm.builder import LLVMValue
from tilewright.targets.nvidia.dot_layout import MmaInstruction, instruction_of
from tilewright.targets.nvidia.lowering import NvidiaLowering, NvidiaRule
from tilewright.targets.nvidia.target import NvidiaTarget
from tilewright.targets.nvidia.warpgroup_layout import warpgroup_product

Place = tuple[int, int]
# Of the instruction's accumulators: LLVM's type, the letter in constraints, the type of the sums.
_SUMS = {
    "f32": ("float", "f", dtypes.float32),
    "s32": ("i32", "r", dtypes.int32),
    "f64": ("double", "d", dtypes.float64),
}
# Which parts of A and B are multiplied, the smallest products first.
_TERMS = {
    "": ((0, 0),),
    "tf32x3": ((1, 0), (0, 1), (0, 0)),
    "bf16x3": ((1, 0), (0, 1), (0, 0)),
    "bf16x6": ((1, 1), (2, 0), (0, 2), (1, 0), (0, 1), (0, 0)),
}


def dot(lowering: NvidiaLowering, operation: Operation) -> None:
    """The rule of `dot`."""
    instruction = instruction_of(operation, lowering.target)
    if warpgroup_product(operation, lowering.target, lowering.warps, chained=False, lasting=False) is not None:
        lowering.note(
            operation,
            "mma.sync instead of wgmma: an operand runs along an axis that wgmma does not read, or tiles find no room",
        )
    if instruction is None:
        scalar_dot(lowering, operation)
    else:
        _MmaProduct(lowering, operation, instruction).run()


def scratch_rules(target: NvidiaTarget) -> Mapping[str, Size]:
    """Scratch by operation: products need that of multiply-adds, where no instruction multiplies."""
    return {**SIZES, "dot": partial(_dot_bytes, target)}


def _dot_bytes(target: NvidiaTarget, assignment: Assignment, operation: Operation) -> int:
    return 0 if instruction_of(operation, target) is not None else scalar_dot_bytes(assignment, operation)


def positions_in_first_thread(lowering: NvidiaLowering, value: SSAValue) -> dict[Place, int]:
    """Positions of registers by the coordinates of their element in thread 0."""
    layout = lowering.layout(value)
    positions: dict[Place, int] = {}
    for place, number in enumerate(lowering.numbers(value)):
        row, column = layout.unpack(layout.element(register=number))
        positions.setdefault((row, column), place)
    return positions


class _MmaProduct:
    def __init__(self, lowering: NvidiaLowering, operation: Operation, instruction: MmaInstruction) -> None:
        self.lowering = lowering
        self.operation = operation
        self.instruction = instruction
        self.a, self.b, self.accumulator = operation.operands
        self.positions = [positions_in_first_thread(lowering, value) for value in operation.operands]
        self.depth = self.a.type.shape[1]

    def run(self) -> None:
        lowering = self.lowering
        dtype = self.accumulator.type.dtype
        own = _SUMS[self.instruction.accumulator][2]
        sums = lowering.converter.cast_all(lowering.registers(self.accumulator), dtype, own)
        parts = [self.parts(value) for value in (self.a, self.b)]
        of_a, of_b, positions = self.positions
        rows = sorted({row for row, column in positions if row % 16 == 0 and column == 0})
        columns = sorted({column for row, column in positions if column % 8 == 0 and row == 0})
        width = self.width()
        for start in range(0, self.depth, 8 * width):
            for part in range(width // self.instruction.pair):
                steps = [start + half * 4 * width + part * self.instruction.pair for half in (0, 1)]
                for left, right in _TERMS[self.instruction.parts]:
                    self.step(sums, parts[0][left], parts[1][right], rows, columns, steps)
        lowering.define(self.operation.result, lowering.converter.cast_all(sums, own, dtype))

    def width(self) -> int:
        """Neighbours along k that a lane holds: as many as follow each other in thread 0."""
        count = 1
        while (0, count) in self.positions[0] and count < self.depth // 8:
            count += 1
        return count

    def step(
        self,
        sums: list[LLVMValue],
        a: Sequence[LLVMValue],
        b: Sequence[LLVMValue],
        rows: Sequence[int],
        columns: Sequence[int],
        steps: Sequence[int],
    ) -> None:
        """One instruction for every tile of the result: along k at `steps`, which are of its two halves."""
        left = {
            row: self.words(a, [[(r, k) for k in self.run_of(k)] for k in steps for r in (row, row + 8)], 0)
            for row in rows
        }
        right = {column: self.words(b, [[(k, column) for k in self.run_of(k)] for k in steps], 1) for column in columns}
        for row in rows:
            for column in columns:
                places = [self.positions[2][row + r, column + c] for r in (0, 8) for c in (0, 1)]
                result = self.multiply([sums[place] for place in places], left[row], right[column])
                for place, value in zip(places, result, strict=True):
                    sums[place] = value

    def run_of(self, first: int) -> range:
        return range(first, first + self.instruction.pair)

    def words(self, registers: Sequence[LLVMValue], runs: Sequence[Sequence[Place]], operand: int) -> list[LLVMValue]:
        """32-bit registers, each of the elements of a run; float64 as it is."""
        positions = self.positions[operand]
        if self.instruction.accumulator == "f64":
            return [registers[positions[place]] for (place,) in runs]
        result = []
        for run in runs:
            bits = [to_bits(self.lowering, registers[positions[place]]) for place in run]
            key = ("word", *(value.text for value in bits))
            result.append(self.lowering.once(key, lambda bits=bits: pack(self.lowering, bits, 32)))  # type: ignore[misc]
        return result

    def multiply(self, sums: Sequence[LLVMValue], a: Sequence[LLVMValue], b: Sequence[LLVMValue]) -> list[LLVMValue]:
        """One tile: two rows and two halves of A, the halves of B."""
        form = self.instruction
        if form.accumulator == "f64" and self.lowering.target.sm < 90:
            return self.multiply_quarters(sums, a, b)
        return self.instruct(f"m16n8k{form.depth}", sums, a, b)

    def multiply_quarters(
        self, sums: Sequence[LLVMValue], a: Sequence[LLVMValue], b: Sequence[LLVMValue]
    ) -> list[LLVMValue]:
        """Eight rows and half of the depth at a time, in the order in which the large instruction adds."""
        result = list(sums)
        for half in (0, 1):
            for rows in (0, 1):
                part = slice(2 * rows, 2 * rows + 2)
                result[part] = self.instruct("m8n8k4", result[part], [a[2 * half + rows]], [b[half]])
        return result

    def instruct(
        self, shape: str, sums: Sequence[LLVMValue], a: Sequence[LLVMValue], b: Sequence[LLVMValue]
    ) -> list[LLVMValue]:
        """One mma.sync of registers of the accumulator, A and B."""
        builder, form = self.lowering.builder, self.instruction
        kind, letter, _ = _SUMS[form.accumulator]
        types = ".".join((form.accumulator, *form.operands, form.accumulator))
        count, names = len(sums), [f"${number}" for number in range(len(sums) + len(a) + len(b))]
        groups = [names[:count], names[count : count + len(a)], names[count + len(a) :], names[:count]]
        listed = ", ".join(f"{{{','.join(group)}}}" for group in groups)
        text = f"mma.sync.aligned.{shape}.row.col.{types} {listed};"
        operand = letter if form.accumulator == "f64" else "r"
        constraints = [f"={letter}"] * count + [operand] * (len(a) + len(b)) + [str(number) for number in range(count)]
        whole = f"{{{','.join([kind] * count)}}}"
        given = ", ".join(str(value) for value in (*a, *b, *sums))
        value = builder.emit(f'call {whole} asm "{text}", "{",".join(constraints)}"({given}) convergent', whole)
        return [builder.emit(f"extractvalue {whole} {value.text}, {number}", kind) for number in range(count)]

    # Parts of operands ---------------------------------------------------------------------------

    def parts(self, value: SSAValue) -> Sequence[Sequence[LLVMValue]]:
        """An operand's registers as the instruction takes them; split into parts where the precision asks for it."""
        lowering, dtype = self.lowering, value.type.dtype
        registers = lowering.registers(value)
        kind = self.instruction.operands[0]
        if dtype == dtypes.float32 and kind == "tf32":
            return self.tf32_parts(registers, 2 if self.instruction.parts else 1)
        if dtype == dtypes.float32:
            return self.bf16_parts(registers, 3 if self.instruction.parts == "bf16x6" else 2)
        if dtype.is_float and dtype.bits == 8 and kind == "f16":
            return [lowering.converter.cast_all(registers, dtype, dtypes.float16)]
        return [registers]

    def tf32_parts(self, registers: Sequence[LLVMValue], count: int) -> list[list[LLVMValue]]:
        builder = self.lowering.builder
        parts, rest = [], list(registers)
        for _ in range(count):
            rounded = [
                builder.emit(f'call i32 asm "cvt.rna.tf32.f32 $0, $1;", "=r,f"({value})', "i32") for value in rest
            ]
            parts.append(rounded)
            rest = self.without(rest, [builder.cast("bitcast", value, "float") for value in rounded])
        return parts

    def bf16_parts(self, registers: Sequence[LLVMValue], count: int) -> list[list[LLVMValue]]:
        converter = self.lowering.converter
        parts, rest = [], list(registers)
        for _ in range(count):
            rounded = converter.cast_all(rest, dtypes.float32, dtypes.bfloat16)
            parts.append(rounded)
            rest = self.without(rest, converter.cast_all(rounded, dtypes.bfloat16, dtypes.float32))
        return parts

    def without(self, values: Sequence[LLVMValue], parts: Sequence[LLVMValue]) -> list[LLVMValue]:
        """What a part leaves over; nothing of an infinity, whose first part says all."""
        builder = self.lowering.builder
        zero = builder.constant("float", 0.0)
        result = []
        for value, part in zip(values, parts, strict=True):
            finite = builder.compare("one", builder.intrinsic("fabs", [part]), builder.constant("float", float("inf")))
            result.append(builder.select(finite, builder.binary("fsub", value, part), zero))
        return result


RULES: dict[str, NvidiaRule] = {"dot": dot}
