"""Rules of warpgroup products."""

from __future__ import annotations

from tilewright.ir.core import Operation, SSAValue
from tilewright.ir.types import PendingType, SharedType
from tilewright.targets.gpu.conversions import register_type
from tilewright.targets.gpu.lowering import unsupported
from tilewright.targets.llvm.builder import LLVMValue
from tilewright.targets.nvidia.explicit import matrix_moves, ptx, views, wgmma
from tilewright.targets.nvidia.explicit.lowering import ExplicitLowering, ExplicitRule
from tilewright.targets.nvidia.target import WARP_THREADS

_WGMMA_ROWS = 64  # of one instruction
_WORDS = 4  # registers of operand A in one instruction


def _start(lowering: ExplicitLowering, operation: Operation) -> None:
    """Registers without a value: the first product does not read them."""
    if operation.operands:
        raise unsupported(lowering, operation, "accumulators of explicit kernels begin without a value")
    kind = operation.result.type.handle
    assert isinstance(kind, PendingType)
    count = _accumulator_registers(lowering, kind)
    lowering.define(operation.result, [LLVMValue(register_type(kind.element), "undef")] * count)


def _accumulator_registers(lowering: ExplicitLowering, kind: PendingType) -> int:
    return kind.shape[0] * kind.shape[1] // (WARP_THREADS * lowering.group.warps)


def _multiply(lowering: ExplicitLowering, operation: Operation) -> None:
    a, b, *rest = operation.operands
    if operation.attributes["columns"]:
        raise unsupported(lowering, operation, "warpgroups of explicit kernels share out rows alone")
    kind = operation.result.type.handle
    assert isinstance(kind, PendingType)
    builder, columns = lowering.builder, kind.shape[1]
    right = lowering.view(b)
    slices = kind.shape[0] * 4 // (_WGMMA_ROWS * lowering.group.warps)
    left: wgmma.SharedOperand | wgmma.RegisterOperand
    if isinstance(a.type.handle, SharedType):
        view = _of_group(lowering, lowering.view(a))
        left = views.operand(builder, view, True, slices, lowering.group.warps // 4)
        element = view.element
    else:
        left, element = _in_registers(lowering, a, slices), a.type.dtype
    instruction = wgmma.WgmmaInstruction(element, right.element, columns)
    accumulator = lowering.registers(rest[0]) if rest else None
    keep = lowering.scalar(rest[1]) if len(rest) > 1 else None
    result = wgmma.multiply(builder, instruction, left, views.operand(builder, right, False), accumulator, keep)
    lowering.define(operation.result, result)
    pinned = left.pinned if isinstance(left, wgmma.RegisterOperand) else []
    earlier = lowering.pinned.get(rest[0], ()) if rest else ()
    lowering.pinned[operation.result] = (*earlier, *pinned)


def _of_group(lowering: ExplicitLowering, view: views.SharedView) -> views.SharedView:
    """The rows of operand A that begin this warpgroup's: every group has 64 of them, then comes the next one's."""
    if lowering.group.warps == 4:
        return view
    builder = lowering.builder
    group = builder.binary("lshr", lowering.group.warp, builder.integer(2, "i32"))
    first = builder.multiply(ptx.uniform(builder, group), _WGMMA_ROWS)
    return view.slice(builder, first, 0, view.rows if not view.transposed else view.columns)


def _in_registers(lowering: ExplicitLowering, a: SSAValue, slices: int) -> wgmma.RegisterOperand:
    """Operand A from a block in the operand's layout, whose registers are in the order of the instructions."""
    registers = lowering.registers(a)
    width = max(1, 4 // a.type.dtype.itemsize)
    words = [_word(lowering, registers[first : first + width]) for first in range(0, len(registers), width)]
    depth = len(words) // (slices * _WORDS)
    return wgmma.RegisterOperand(
        tuple(
            tuple(tuple(words[(part * depth + k) * _WORDS :][:_WORDS]) for k in range(depth)) for part in range(slices)
        )
    )


def _word(lowering: ExplicitLowering, parts: list[LLVMValue]) -> LLVMValue:
    builder = lowering.builder
    whole = parts[0] if len(parts) == 1 else matrix_moves.gathered(builder, parts)
    return builder.cast("bitcast", whole, "i32")


def _wait(lowering: ExplicitLowering, operation: Operation) -> None:
    outstanding = operation.attributes["outstanding"]
    assert isinstance(outstanding, int)
    values = [register for operand in operation.operands for register in lowering.registers(operand)]
    pinned = {word.text: word for operand in operation.operands for word in lowering.pinned.get(operand, ())}
    retired = wgmma.wait(lowering.builder, outstanding, values, list(pinned.values()))
    for result, operand in zip(operation.results, operation.operands, strict=True):
        count = len(lowering.registers(operand))
        lowering.define(result, retired[:count])
        retired = retired[count:]


def _slice(lowering: ExplicitLowering, operation: Operation) -> None:
    """The registers whose own part of the coordinates lies in the part."""
    (block,), result = operation.operands, operation.result
    axis, start = operation.attributes["axis"], operation.attributes["start"]
    assert isinstance(axis, int) and isinstance(start, int)
    source, layout = lowering.layout(block), lowering.layout(result)
    known = {
        source.apply(register=number): register
        for number, register in zip(lowering.numbers(block), lowering.registers(block), strict=True)
    }
    registers = []
    for number in lowering.numbers(result):
        place = layout.apply(register=number)
        registers.append(known[(*place[:axis], place[axis] + start, *place[axis + 1 :])])
    lowering.define(result, registers)


RULES: dict[str, ExplicitRule] = {"wgmma_start": _start, "wgmma": _multiply, "wgmma_wait": _wait, "block_slice": _slice}
