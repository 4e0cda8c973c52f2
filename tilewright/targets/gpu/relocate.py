"""Gathers, and shape operations that renumber elements non-linearly: through shared memory, element by element.

Every operand is stored row by row (extents rounded up), and each thread loads the elements of its result by number.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilewright.ir.core import Operation, SSAValue
from tilewright.layout import LinearLayout
from tilewright.targets.gpu.exchange import from_bits, load_shared, store_shared, to_bits
from tilewright.targets.gpu.layouts import Assignment
from tilewright.targets.gpu.lowering import KernelLowering
from tilewright.targets.gpu.transfer import element_bits, moves_by_registers, padded
from tilewright.targets.llvm.builder import LLVMValue

_PIECE_ALIGNMENT = 16


def position(lowering: KernelLowering, layout: LinearLayout, axis: int, number: int) -> LLVMValue:
    """The coordinate of a register's element along an axis (i32)."""
    own = layout.unpack(layout.element(register=number))[axis]
    moving = 0
    for name in ("lane", "warp"):
        for vector in layout.vectors(name):
            moving |= vector[axis]
    place = lowering.coordinate(layout, axis)
    if own & moving:
        return lowering.once(
            ("position", place.text, own), lambda: lowering.builder.binary("xor", place, lowering.i32(own))
        )
    return lowering.plus(place, own)


def row_major(lowering: KernelLowering, coordinates: Sequence[LLVMValue], shape: Sequence[int]) -> LLVMValue:
    """The number of an element."""
    builder, total = lowering.builder, lowering.i32(0)
    for coordinate, extent in zip(coordinates, shape, strict=True):
        total = builder.add(builder.multiply(total, lowering.i32(extent)), coordinate)
    return total


def _coordinates(lowering: KernelLowering, number: LLVMValue, shape: Sequence[int]) -> list[LLVMValue]:
    """Coordinates of the element of a number."""
    result: list[LLVMValue] = []
    for extent in reversed(shape):
        divisor = lowering.i32(extent)
        result.append(lowering.builder.emit(f"urem {number}, {divisor.text}", "i32"))
        number = lowering.builder.emit(f"udiv {number}, {divisor.text}", "i32")
    return result[::-1]


def row_shape(value: SSAValue, gap: int = 0) -> tuple[int, ...]:
    """The extents of a block in scratch, where each row is followed by `gap` elements that are nothing."""
    shape = padded(value.type.shape)
    return (*shape[:-1], shape[-1] + gap) if shape else ()


def area_bytes(value: SSAValue, gap: int = 0) -> int:
    """Scratch for all elements of a block."""
    size = prod(row_shape(value, gap)) * element_bits(value) // 8
    return -(-size // _PIECE_ALIGNMENT) * _PIECE_ALIGNMENT


class _Areas:
    """The operands of an operation in scratch memory."""

    def __init__(
        self, lowering: KernelLowering, operation: Operation, operands: Sequence[SSAValue], gaps: Sequence[int]
    ) -> None:
        self.lowering = lowering
        self.starts: list[LLVMValue] = []
        self.gaps = gaps
        offset = lowering.allocation.scratch[operation]
        for value, gap in zip(operands, gaps, strict=True):
            self.starts.append(lowering.builder.add(lowering.group.scratch, lowering.i32(offset)))
            offset += area_bytes(value, gap)

    def store(self, number: int, value: SSAValue) -> None:
        """Put an operand in its place."""
        lowering = self.lowering
        registers = lowering.registers(value)
        if value.type.is_scalar:
            store_shared(lowering, self.pointer(number, value, lowering.i32(0)), [to_bits(lowering, registers[0])])
            return
        layout = lowering.layout(value)
        for register, place in zip(registers, lowering.numbers(value), strict=True):
            coordinates = [position(lowering, layout, axis, place) for axis in range(value.type.rank)]
            index = row_major(lowering, coordinates, row_shape(value, self.gaps[number]))
            store_shared(lowering, self.pointer(number, value, index), [to_bits(lowering, register)])

    def load(self, number: int, value: SSAValue, coordinates: Sequence[LLVMValue]) -> LLVMValue:
        """An element of an operand; coordinates beyond it give some other element."""
        lowering = self.lowering
        shape = padded(value.type.shape)
        index = row_major(lowering, coordinates, shape)
        last = lowering.i32(prod(shape) - 1)
        index = lowering.builder.intrinsic("umin", [index, last])
        bits = f"i{element_bits(value)}"
        (loaded,) = load_shared(lowering, self.pointer(number, value, index), bits, 1)
        return from_bits(lowering, loaded, lowering.registers(value)[0].type)

    def pointer(self, number: int, value: SSAValue, index: LLVMValue) -> LLVMValue:
        lowering = self.lowering
        distance = lowering.builder.multiply(index, lowering.i32(element_bits(value) // 8))
        return lowering.shared_pointer(lowering.builder.add(self.starts[number], distance))


def _stored(
    lowering: KernelLowering, operation: Operation, operands: Sequence[SSAValue], gaps: Sequence[int] | None = None
) -> _Areas:
    areas = _Areas(lowering, operation, operands, gaps or [0] * len(operands))
    for number, value in enumerate(operands):
        areas.store(number, value)
    lowering.synchronize()
    return areas


def store_areas(
    lowering: KernelLowering, operation: Operation, operands: Sequence[SSAValue], gaps: Sequence[int]
) -> list[LLVMValue]:
    """Put blocks into scratch, row by row, one after the other; their first bytes' offsets, after a barrier.

    `gaps` are elements that are left out after each row of a block.
    """
    return _stored(lowering, operation, operands, gaps).starts


def _result_coordinates(lowering: KernelLowering, value: SSAValue) -> list[list[LLVMValue]]:
    layout = lowering.layout(value)
    return [
        [position(lowering, layout, axis, number) for axis in range(value.type.rank)]
        for number in lowering.numbers(value)
    ]


def reshape(lowering: KernelLowering, operation: Operation) -> None:
    (operand,), result = operation.operands, operation.result
    areas = _stored(lowering, operation, [operand])
    registers = []
    for coordinates in _result_coordinates(lowering, result):
        number = row_major(lowering, coordinates, result.type.shape)
        registers.append(areas.load(0, operand, _coordinates(lowering, number, operand.type.shape)))
    lowering.define(result, registers)


def concatenate(lowering: KernelLowering, operation: Operation) -> None:
    result, axis = operation.result, operation.attributes["axis"]
    assert isinstance(axis, int)
    areas = _stored(lowering, operation, operation.operands)
    registers = []
    for coordinates in _result_coordinates(lowering, result):
        chosen: LLVMValue | None = None
        start = 0
        for number, operand in enumerate(operation.operands):
            shifted = list(coordinates)
            shifted[axis] = lowering.plus(coordinates[axis], -start)
            element = areas.load(number, operand, shifted)
            if chosen is None:
                chosen = element
            else:
                here = lowering.builder.compare("uge", coordinates[axis], start)
                chosen = lowering.builder.select(here, element, chosen)
            start += operand.type.shape[axis]
        assert chosen is not None
        registers.append(chosen)
    lowering.define(result, registers)


def gather(lowering: KernelLowering, operation: Operation) -> None:
    """source[…, index, …]: every thread loads what its indices name."""
    (source, index), axis = operation.operands, operation.attributes["axis"]
    assert isinstance(axis, int)
    areas = _stored(lowering, operation, [source])
    kind = index.type.dtype
    registers = []
    for coordinates, register in zip(_result_coordinates(lowering, index), lowering.registers(index), strict=True):
        number = register
        if kind.bits > 32:
            number = lowering.builder.cast("trunc", register, "i32")
        elif kind.bits < 32:
            number = lowering.builder.cast("zext", register, "i32")
        registers.append(areas.load(0, source, [*coordinates[:axis], number, *coordinates[axis + 1 :]]))
    lowering.define(operation.result, registers)


def join_scalars(lowering: KernelLowering, operation: Operation) -> None:
    """Two scalars as a block of two elements: each register chooses."""
    left, right = (lowering.scalar(value) for value in operation.operands)
    registers = []
    for (coordinate,) in _result_coordinates(lowering, operation.result):
        registers.append(lowering.builder.select(lowering.builder.compare("eq", coordinate, 0), left, right))
    lowering.define(operation.result, registers)


def split_scalars(lowering: KernelLowering, operation: Operation) -> None:
    """A block of two elements as two scalars that every thread has."""
    (operand,) = operation.operands
    areas = _stored(lowering, operation, [operand])
    for number, result in enumerate(operation.results):
        lowering.define(result, [areas.load(0, operand, [lowering.i32(number)])])


def relocation_bytes(assignment: Assignment, operation: Operation) -> int:
    """Scratch of an operation of this module; nothing when registers only get other names."""
    if operation.opcode == "gather":
        return area_bytes(operation.operands[0])
    if moves_by_registers(operation) or operation.opcode == "join":
        return 0
    return sum(area_bytes(value) for value in operation.operands)
