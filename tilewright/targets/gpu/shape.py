"""Constants, ranges, grid indices, elementwise functions, and operations that only rename registers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tilewright.ir.core import Operation, SSAValue
from tilewright.layout import split
from tilewright.targets.gpu import relocate
from tilewright.targets.gpu.conversions import register_type
from tilewright.targets.gpu.exchange import convert, width_of
from tilewright.targets.gpu.layouts import CONVERSION_ATTRIBUTE
from tilewright.targets.gpu.lowering import KEPT_ATTRIBUTE, KernelLowering, Rule
from tilewright.targets.gpu.memory import from_words, to_words
from tilewright.targets.gpu.transfer import conversion_plan, element_bits, moves_by_registers
from tilewright.targets.llvm.builder import LLVMValue

Coordinates = tuple[int, ...]


def count_of(lowering: KernelLowering, value: SSAValue) -> int:
    """How many registers a value has."""
    return 1 if value.type.is_scalar else len(lowering.numbers(value))


def _constant(lowering: KernelLowering, operation: Operation) -> None:
    result, number = operation.result, operation.attributes["value"]
    assert isinstance(number, (bool, int, float))
    dtype = result.type.dtype
    type_text = register_type(dtype)
    if dtype.is_float and type_text.startswith("i"):
        bits = int(np.asarray(number, np.float64).astype(dtype.numpy).view(f"u{dtype.itemsize}"))
        register = LLVMValue(type_text, str(bits))
    else:
        register = lowering.builder.constant(type_text, number)
    lowering.define(result, [register] * count_of(lowering, result))


def _arange(lowering: KernelLowering, operation: Operation) -> None:
    """Every register is the thread's own coordinate plus a number, where their bits do not meet."""
    result, start = operation.result, operation.attributes["start"]
    assert isinstance(start, int)
    layout = lowering.layout(result)
    registers = [lowering.plus(relocate.position(lowering, layout, 0, n), start) for n in lowering.numbers(result)]
    lowering.define(result, registers)


def _grid(lowering: KernelLowering, operation: Operation) -> None:
    axis = operation.attributes["axis"]
    assert isinstance(axis, int)
    intrinsics = lowering.intrinsics
    number = intrinsics.program_id if operation.opcode == "program_id" else intrinsics.num_programs
    lowering.define(operation.result, [number(lowering.builder, axis)])


def _splat(lowering: KernelLowering, operation: Operation) -> None:
    register = lowering.scalar(operation.operands[0])
    lowering.define(operation.result, [register] * count_of(lowering, operation.result))


def _renamed(
    lowering: KernelLowering, result: SSAValue, operand: SSAValue, place: Callable[[Coordinates], Coordinates]
) -> None:
    """Each register of the result is the operand's whose element `place` names by its coordinates."""
    registers = lowering.registers(operand)
    if result.type.is_scalar:
        lowering.define(result, registers)
        return
    if operand.type.is_scalar:
        lowering.define(result, registers * count_of(lowering, result))
        return
    source, layout = lowering.layout(operand), lowering.layout(result)
    position_of = {source.element(register=n): p for p, n in reversed(list(enumerate(lowering.numbers(operand))))}
    chosen = []
    for number in lowering.numbers(result):
        coordinates = layout.unpack(layout.element(register=number))
        chosen.append(registers[position_of[source.pack(place(coordinates))]])
    lowering.define(result, chosen)


def _expand_dims(lowering: KernelLowering, operation: Operation) -> None:
    axis = operation.attributes["axis"]
    assert isinstance(axis, int)
    _renamed(lowering, operation.result, operation.operands[0], lambda c: (*c[:axis], *c[axis + 1 :]))


def _broadcast(lowering: KernelLowering, operation: Operation) -> None:
    (operand,) = operation.operands
    shape = operand.type.shape
    _renamed(
        lowering,
        operation.result,
        operand,
        lambda c: tuple(0 if extent == 1 else own for own, extent in zip(c, shape, strict=True)),
    )


def permute(lowering: KernelLowering, operation: Operation) -> None:
    if KEPT_ATTRIBUTE in operation.attributes:
        lowering.define(operation.result, _opaque(lowering, lowering.registers(operation.operands[0])))
        return
    if CONVERSION_ATTRIBUTE in operation.attributes:
        _convert(lowering, operation)
        return
    order = operation.attributes["order"]
    assert isinstance(order, tuple)
    _renamed(
        lowering,
        operation.result,
        operation.operands[0],
        lambda c: tuple(c[order.index(axis)] for axis in range(len(order))),
    )


def _reshape(lowering: KernelLowering, operation: Operation) -> None:
    (operand,), result = operation.operands, operation.result
    if not moves_by_registers(operation):
        relocate.reshape(lowering, operation)
        return
    registers = lowering.registers(operand)  # row-major numbers stay, and with them the registers
    lowering.define(result, registers if operand.type.rank else registers * count_of(lowering, result))


def _join(lowering: KernelLowering, operation: Operation) -> None:
    """Register bit 0 tells the halves apart."""
    if not moves_by_registers(operation):
        relocate.join_scalars(lowering, operation)
        return
    left, right = (lowering.registers(value) for value in operation.operands)
    pairs = zip(left, right, strict=True)
    lowering.define(operation.result, [register for pair in pairs for register in pair])


def _split(lowering: KernelLowering, operation: Operation) -> None:
    (operand,) = operation.operands
    if not moves_by_registers(operation):
        relocate.split_scalars(lowering, operation)
        return
    layout = lowering.layout(operand)
    halves = split(layout)
    assert halves is not None  # the layout rule saw to it
    half, bit = halves
    register_of = dict(zip(lowering.numbers(operand), lowering.registers(operand), strict=True))
    for side, result in enumerate(operation.results):
        chosen = []
        for number in lowering.live(half, result.type.shape):
            low = number & (1 << bit) - 1
            chosen.append(register_of[(number ^ low) << 1 | side << bit | low])
        lowering.define(result, chosen)


def _cat(lowering: KernelLowering, operation: Operation) -> None:
    """Blocks one after the other: the highest register bits tell them apart."""
    if not moves_by_registers(operation):
        relocate.concatenate(lowering, operation)
        return
    parts = [lowering.registers(value) for value in operation.operands]
    lowering.define(operation.result, [register for part in parts for register in part])


def _hint(lowering: KernelLowering, operation: Operation) -> None:
    """The promise was used where the layouts were decided."""
    lowering.define(operation.result, lowering.registers(operation.operands[0]))


def _opaque(lowering: KernelLowering, registers: Sequence[LLVMValue]) -> list[LLVMValue]:
    """The same numbers, of which no compiler knows that they are: XOR a zero that none knows of."""
    builder = lowering.builder
    zero = lowering.intrinsics.unknown_zero(builder)
    words = to_words(lowering, registers)
    bits = int(words[0].type[1:])
    same = zero if bits == 32 else builder.cast("zext" if bits > 32 else "trunc", zero, words[0].type)
    hidden = [builder.binary("xor", word, same) for word in words]
    return from_words(lowering, hidden, registers[0].type, width_of(registers[0].type))[: len(registers)]


def _convert(lowering: KernelLowering, operation: Operation) -> None:
    (operand,) = operation.operands
    plan = conversion_plan(lowering.layout(operand), lowering.layout(operation.result), element_bits(operand))
    convert(lowering, operation, plan)
    if plan.cost:
        lowering.note(operation, f"{operand.type} changes its layout: {plan}")


def _nothing(lowering: KernelLowering, operation: Operation) -> None:
    """Facts that were used where the layouts were decided."""


def _map(lowering: KernelLowering, operation: Operation) -> None:
    """A region of scalars that the user wrote, once for each register; its branches are the thread's own."""
    columns = [lowering.registers(value) for value in operation.operands]
    found = [
        [result[0] for result in lowering.region(operation.regions[0], [[register] for register in row])]
        for row in zip(*columns, strict=True)
    ]
    for place, result in enumerate(operation.results):
        lowering.define(result, [row[place] for row in found])


RULES: dict[str, Rule] = {
    "map": _map,
    "constant": _constant,
    "arange": _arange,
    "program_id": _grid,
    "num_programs": _grid,
    "splat": _splat,
    "expand_dims": _expand_dims,
    "broadcast": _broadcast,
    "permute": permute,
    "reshape": _reshape,
    "join": _join,
    "split": _split,
    "cat": _cat,
    "gather": relocate.gather,
    "hint": _hint,
    "assume": _nothing,
}
