"""Products by multiply-add: both operands lie in shared memory, and every thread walks along k for its elements.

For types without a matrix instruction, for f32 whose inputs must not be rounded, and for blocks that are smaller than
an instruction or whose extents are no powers of two.
"""

from __future__ import annotations

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.ir.core import Operation, Value
from tilewright.targets.llvm.builder import LLVMValue
from tilewright.targets.nvidia.exchange import from_bits, load_shared
from tilewright.targets.nvidia.layouts import Assignment
from tilewright.targets.nvidia.lowering import KernelLowering
from tilewright.targets.nvidia.relocate import area_bytes, position, store_areas
from tilewright.targets.nvidia.transfer import element_bits, padded

_UNROLL = 4


def accumulation_type(dtype: DType) -> DType:
    """What sums are taken in."""
    return dtypes.float32 if dtype.is_float and dtype.bits < 32 else dtype


def scalar_dot(lowering: KernelLowering, operation: Operation) -> None:
    _ScalarDot(lowering, operation).run()


def scalar_dot_bytes(assignment: Assignment, operation: Operation) -> int:
    """Scratch for both operands."""
    return sum(area_bytes(value) for value in operation.operands[:2])


class _ScalarDot:
    def __init__(self, lowering: KernelLowering, operation: Operation) -> None:
        self.lowering = lowering
        self.operation = operation
        self.a, self.b, self.accumulator = operation.operands
        self.dtype = accumulation_type(self.accumulator.type.dtype)

    def run(self) -> None:
        lowering, builder = self.lowering, self.lowering.builder
        result = self.operation.result
        starts = store_areas(lowering, self.operation, [self.a, self.b])
        own = result.type.dtype
        sums = lowering.converter.cast_all(lowering.registers(self.accumulator), own, self.dtype)
        layout, numbers = lowering.layout(result), lowering.numbers(result)
        rank = result.type.rank
        places = [[position(lowering, layout, axis, number) for axis in range(rank)] for number in numbers]
        rows = {(*place[:-1],): self.row_start(starts[0], place) for place in places}
        columns = {(*place[:-2], place[-1]): self.column_start(starts[1], place) for place in places}
        depth = self.a.type.shape[-1]
        step = _UNROLL if depth % _UNROLL == 0 else 1
        with builder.loop(lowering.i32(0), lowering.i32(depth), step, sums, hint="dot") as loop:
            following = list(loop.values)
            for part in range(step):
                k = lowering.builder.add(loop.index, part)
                left = {key: self.element(self.a, start, k, 1) for key, start in rows.items()}
                stride = padded(self.b.type.shape)[-1]
                right = {key: self.element(self.b, start, k, stride) for key, start in columns.items()}
                following = [
                    self.multiply_add(left[(*place[:-1],)], right[(*place[:-2], place[-1])], total)
                    for place, total in zip(places, following, strict=True)
                ]
            loop.next(following)
        lowering.define(result, lowering.converter.cast_all(loop.results, self.dtype, own))

    def batch(self, value: Value, place: list[LLVMValue]) -> LLVMValue:
        """The number of the first element of a matrix of the batch."""
        builder, total = self.lowering.builder, self.lowering.i32(0)
        shape = padded(value.type.shape)
        for coordinate, extent in zip(place[:-2], shape[:-2], strict=True):
            total = builder.add(builder.multiply(total, self.lowering.i32(extent)), coordinate)
        return builder.multiply(total, self.lowering.i32(shape[-2] * shape[-1]))

    def row_start(self, start: LLVMValue, place: list[LLVMValue]) -> LLVMValue:
        """The address of a row of A."""
        builder, lowering = self.lowering.builder, self.lowering
        stride = padded(self.a.type.shape)[-1]
        number = builder.add(self.batch(self.a, place), builder.multiply(place[-2], lowering.i32(stride)))
        return self.address(start, self.a, number)

    def column_start(self, start: LLVMValue, place: list[LLVMValue]) -> LLVMValue:
        """The address of the first element of a column of B."""
        return self.address(start, self.b, self.lowering.builder.add(self.batch(self.b, place), place[-1]))

    def address(self, start: LLVMValue, value: Value, number: LLVMValue) -> LLVMValue:
        builder = self.lowering.builder
        return builder.add(start, builder.multiply(number, self.lowering.i32(element_bits(value) // 8)))

    def element(self, value: Value, start: LLVMValue, k: LLVMValue, stride: int) -> LLVMValue:
        """An element of an operand, in the type of the sum."""
        lowering, builder = self.lowering, self.lowering.builder
        bits = element_bits(value)
        distance = builder.multiply(k, lowering.i32(stride * bits // 8))
        pointer = lowering.shared_pointer(builder.add(start, distance))
        (loaded,) = load_shared(lowering, pointer, f"i{bits}", 1)
        register = from_bits(lowering, loaded, lowering.registers(value)[0].type)
        return lowering.converter.cast(register, value.type.dtype, self.dtype)

    def multiply_add(self, left: LLVMValue, right: LLVMValue, total: LLVMValue) -> LLVMValue:
        builder = self.lowering.builder
        if self.dtype.is_float:
            return builder.intrinsic("fma", [left, right, total])
        return builder.add(total, builder.binary("mul", left, right))
