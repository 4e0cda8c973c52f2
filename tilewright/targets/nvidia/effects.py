"""Assertions, prints and barriers.

A print is a line for each element, ``pid (0, 0, 0) idx (3) prefix value``, through the driver's buffer; a failed
assertion stops the kernel with the driver's message, which names the place.
"""

from __future__ import annotations

from tilewright.ir.core import Operation, Value
from tilewright.targets.llvm.builder import LLVMValue
from tilewright.targets.nvidia.lowering import KernelLowering, Rule
from tilewright.targets.nvidia.relocate import position


def _barrier(lowering: KernelLowering, operation: Operation) -> None:
    lowering.synchronize()


def _assert(lowering: KernelLowering, operation: Operation) -> None:
    """Every thread looks at its elements; the driver's `__assertfail` ends the kernel."""
    (condition,), builder = operation.operands, lowering.builder
    held: LLVMValue | None = None
    for place, register in enumerate(lowering.registers(condition)):
        outside = _outside(lowering, condition, place)
        good = register if outside is None else builder.binary("or", register, outside)
        held = good if held is None else builder.binary("and", held, good)
    assert held is not None
    failed = builder.new_block("assert.failed")
    passed = builder.new_block("assert.passed")
    builder.branch_if(held, passed, failed, weights=(1000, 1))
    builder.start(failed)
    where = operation.location
    texts = [
        str(operation.attributes["message"]) or "assertion failed",
        where.file if where else "unknown",
        where.function if where and where.function else lowering.function.name,
    ]
    message, file, name = (lowering.module.string(text) for text in texts)
    arguments = [message, file, lowering.i32(where.line if where else 0), name, LLVMValue("i64", "1")]
    builder.call("__assertfail", "void", arguments, attributes="noreturn")
    builder.unreachable()
    builder.start(passed)


def _outside(lowering: KernelLowering, value: Value, place: int) -> LLVMValue | None:
    """Whether a register holds no element of the real block."""
    if value.type.is_scalar:
        return None
    inside = lowering.inside(lowering.layout(value), value.type.shape, lowering.numbers(value)[place])
    return None if inside is None else lowering.builder.binary("xor", inside, LLVMValue("i1", "true"))


def _print(lowering: KernelLowering, operation: Operation) -> None:
    prefix = str(operation.attributes["prefix"])
    programs = [lowering.special_register(f"ctaid.{axis}") for axis in "xyz"]
    if not operation.operands:
        with lowering.builder.when(_first(lowering), hint="print"):
            _line(lowering, f"pid (%d, %d, %d) {_escaped(prefix)}\n", programs)
        return
    for number, value in enumerate(operation.operands):
        label = prefix if len(operation.operands) == 1 else f"{prefix}(operand {number}) "
        for place, register in enumerate(lowering.registers(value)):
            _print_element(lowering, value, place, register, label, programs)


def _first(lowering: KernelLowering) -> LLVMValue:
    return lowering.builder.compare("eq", lowering.group.thread, 0)


def _escaped(text: str) -> str:
    return text.replace("%", "%%")


def _print_element(
    lowering: KernelLowering, value: Value, place: int, register: LLVMValue, label: str, programs: list[LLVMValue]
) -> None:
    layout = None if value.type.is_scalar else lowering.layout(value)
    condition = lowering.first_holder(layout)
    indices: list[LLVMValue] = []
    if layout is not None:
        number = lowering.numbers(value)[place]
        indices = [position(lowering, layout, axis, number) for axis in range(value.type.rank)]
        condition = lowering.both(condition, lowering.inside(layout, value.type.shape, number))
    form, wide = _formatted(lowering, value, register)
    places = f" idx ({', '.join(['%d'] * len(indices))})" if indices else ""
    text = f"pid (%d, %d, %d){places} {_escaped(label)}{form}\n"
    with lowering.builder.when(condition or LLVMValue("i1", "true"), hint="print"):
        _line(lowering, text, [*programs, *indices, wide])


def _formatted(lowering: KernelLowering, value: Value, register: LLVMValue) -> tuple[str, LLVMValue]:
    """printf's format, and the register as it is passed."""
    builder, element = lowering.builder, value.type.element
    if value.type.is_pointer:
        return "%p", builder.cast("ptrtoint", register, "i64")
    dtype = value.type.dtype
    if dtype.is_float:
        wide = lowering.converter.widen(register, dtype)
        return "%f", wide if wide.type == "double" else builder.cast("fpext", wide, "double")
    if element.bits == 64:
        return ("%lld" if dtype.is_signed else "%llu"), register
    return ("%d" if dtype.is_signed else "%u"), builder.cast("sext" if dtype.is_signed else "zext", register, "i32")


def _line(lowering: KernelLowering, text: str, values: list[LLVMValue]) -> None:
    """One call of vprintf, whose arguments lie in a structure on the thread's stack."""
    builder = lowering.builder
    offsets, size = [], 0
    for value in values:
        width = 4 if value.type == "i32" else 8
        size = -(-size // width) * width
        offsets.append(size)
        size += width
    area = builder.alloca("i8", -(-size // 8) * 8, 8)
    for value, offset in zip(values, offsets, strict=True):
        builder.store(value, builder.gep(area, offset, "i8"), 4 if value.type == "i32" else 8)
    builder.call("vprintf", "i32", [lowering.module.string(text), area])


RULES: dict[str, Rule] = {"barrier": _barrier, "assert": _assert, "print": _print}
