"""Assertions, prints and barriers.

A print is a line for each element (`ir.print_lines`); a failed assertion stops the kernel with a message that names the
place.
"""

from __future__ import annotations

import os

from tilewright.ir.core import Operation, SSAValue
from tilewright.ir.print_lines import line_format
from tilewright.targets.gpu.lowering import KernelLowering, Rule
from tilewright.targets.gpu.relocate import position
from tilewright.targets.llvm.builder import LLVMValue
from tilewright.targets.llvm.conversions import positive_nan


def _barrier(lowering: KernelLowering, operation: Operation) -> None:
    lowering.synchronize()


def _assert(lowering: KernelLowering, operation: Operation) -> None:
    """Every thread looks at its elements; one of those that failed ends the kernel."""
    (condition,), builder = operation.operands, lowering.builder
    all_good: LLVMValue | None = None
    for place, register in enumerate(lowering.registers(condition)):
        outside = _outside(lowering, condition, place)
        good = register if outside is None else builder.binary("or", register, outside)
        all_good = good if all_good is None else builder.binary("and", all_good, good)
    assert all_good is not None
    failed = builder.new_block("assert.failed")
    passed = builder.new_block("assert.passed")
    builder.branch_if(all_good, passed, failed, weights=(1000, 1))
    builder.start(failed)
    where = operation.location
    texts = [
        str(operation.attributes["message"]) or "assertion failed",
        os.path.basename(where.file) if where else "unknown",  # the code is kept, and may be given away
        where.function if where and where.function else lowering.function.name,
    ]
    message, file, name = (lowering.module.string(text) for text in texts)
    lowering.intrinsics.stop(builder, message, file, where.line if where else 0, name)
    builder.start(passed)


def _outside(lowering: KernelLowering, value: SSAValue, place: int) -> LLVMValue | None:
    """Whether a register holds no element of the real block."""
    if value.type.is_scalar:
        return None
    inside = lowering.inside(lowering.layout(value), value.type.shape, lowering.numbers(value)[place])
    return None if inside is None else lowering.builder.inverse(inside)


def _print(lowering: KernelLowering, operation: Operation) -> None:
    programs = [lowering.intrinsics.program_id(lowering.builder, axis) for axis in range(3)]
    if not operation.operands:
        with lowering.builder.when(lowering.builder.compare("eq", lowering.group.thread, 0), hint="print"):
            _line(lowering, line_format(operation, None), programs)
        return
    for number, value in enumerate(operation.operands):
        for place, register in enumerate(lowering.registers(value)):
            _print_element(lowering, operation, number, place, register, programs)


def _print_element(
    lowering: KernelLowering,
    operation: Operation,
    number: int,
    place: int,
    register: LLVMValue,
    programs: list[LLVMValue],
) -> None:
    value = operation.operands[number]
    layout = None if value.type.is_scalar else lowering.layout(value)
    condition = lowering.first_holder(layout)
    indices: list[LLVMValue] = []
    if layout is not None:
        element = lowering.numbers(value)[place]
        indices = [position(lowering, layout, axis, element) for axis in range(value.type.rank)]
        condition = lowering.conjunction(condition, lowering.inside(layout, value.type.shape, element))
    wide = _widened(lowering, value, register, bool(operation.attributes["hex"]))
    with lowering.builder.when(condition or LLVMValue("i1", "true"), hint="print"):
        _line(lowering, line_format(operation, number), [*programs, *indices, wide])


def _widened(lowering: KernelLowering, value: SSAValue, register: LLVMValue, bits: bool) -> LLVMValue:
    """A register as `line_format` wants the element: a double, or 64 bits."""
    builder = lowering.builder
    if value.type.is_pointer:
        return builder.cast("ptrtoint", register, "i64")
    dtype = value.type.dtype
    if dtype.is_float:
        wide = lowering.converter.widen(register, dtype)
        return positive_nan(builder, wide if wide.type == "double" else builder.cast("fpext", wide, "double"))
    if dtype.bits == 64:
        return register
    return builder.cast("sext" if dtype.is_signed and not bits else "zext", register, "i64")


def _line(lowering: KernelLowering, text: str, values: list[LLVMValue]) -> None:
    lowering.intrinsics.print(lowering.builder, lowering.module.string(text), values)


RULES: dict[str, Rule] = {"barrier": _barrier, "assert": _assert, "print": _print}
