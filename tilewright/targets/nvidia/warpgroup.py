"""Rules of products by warpgroups, which `product_writer.py` writes, and of the waits for them."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.core import Operation, SSAValue
from tilewright.targets.gpu.exchange import pack, to_bits
from tilewright.targets.gpu.lowering import grouped
from tilewright.targets.llvm.builder import LLVMValue
from tilewright.targets.nvidia.explicit import ptx, views, wgmma
from tilewright.targets.nvidia.lowering import NvidiaLowering, NvidiaRule
from tilewright.targets.nvidia.warpgroup_layout import ROWS, WarpgroupProduct, product_of

_WORDS = 4  # registers of operand A in one instruction


def _start(lowering: NvidiaLowering, operation: Operation) -> None:
    """A block that products add to, in its registers."""
    lowering.define(operation.result, lowering.registers(operation.operands[0]))


def _product(lowering: NvidiaLowering, operation: Operation) -> None:
    a, b, *accumulators = operation.operands
    product = product_of(lowering.layout(operation.result))
    sums = lowering.registers(accumulators[0]) if accumulators else None
    result, pinned = _multiply(lowering, product, a, b, sums)
    lowering.define(operation.result, result)
    lowering.left_operands.append(pinned)


def _wait(lowering: NvidiaLowering, operation: Operation) -> None:
    """Tie the registers of what it retires, and take those that the retired groups read as operand A."""
    outstanding = operation.attributes["outstanding"]
    assert isinstance(outstanding, int)
    count = max(0, len(lowering.left_operands) - outstanding)
    retired, lowering.left_operands = lowering.left_operands[:count], lowering.left_operands[count:]
    pinned = {word.text: word for group in retired for word in group}
    own = [lowering.registers(operand) for operand in operation.operands]
    flat = [register for registers in own for register in registers]
    numbers = wgmma.wait(lowering.builder, outstanding, flat, list(pinned.values()))
    for result, registers in zip(operation.results, grouped(numbers, own), strict=True):
        lowering.define(result, registers)


def _multiply(
    lowering: NvidiaLowering, product: WarpgroupProduct, a: SSAValue, b: SSAValue, sums: Sequence[LLVMValue] | None
) -> tuple[list[LLVMValue], list[LLVMValue]]:
    """The results, and the registers that are being read."""
    builder = lowering.builder
    row, column = _group_place(lowering, product)
    tile = lowering.views[b]
    element = lowering.views[a].element if a.type.is_handle else a.type.dtype
    instruction = wgmma.WgmmaInstruction(element, tile.element, product.columns)
    pinned: list[LLVMValue] = []
    left: wgmma.SharedOperand | wgmma.RegisterOperand
    if a.type.is_handle:
        view = lowering.views[a]
        if product.grid[0] > 1:
            view = view.slice(builder, builder.multiply(row, ROWS), 0, product.rows)
        left = views.operand(builder, view, True, product.slices, product.grid[0])
    else:
        left = _in_registers(lowering, a, product.slices)
        pinned = left.pinned
    if product.grid[1] > 1:
        tile = tile.slice(builder, builder.multiply(column, product.columns), 1, product.columns)
    return wgmma.multiply(builder, instruction, left, views.operand(builder, tile, False), sums), pinned


def _group_place(lowering: NvidiaLowering, product: WarpgroupProduct) -> tuple[LLVMValue, LLVMValue]:
    """This warpgroup's number along the rows and along the columns, the same in all lanes."""
    builder, zero = lowering.builder, lowering.i32(0)
    rows, columns = product.grid
    if rows * columns == 1:
        return zero, zero
    number = lowering.once(
        ("warpgroup",),
        lambda: ptx.uniform(builder, builder.binary("lshr", lowering.group.warp, lowering.i32(2))),
    )
    row = builder.binary("and", number, lowering.i32(rows - 1)) if rows > 1 else zero
    column = builder.binary("lshr", number, lowering.i32(rows.bit_length() - 1)) if columns > 1 else zero
    return row, column


def _in_registers(lowering: NvidiaLowering, a: SSAValue, slices: int) -> wgmma.RegisterOperand:
    """A from a block in the operand's layout, whose registers are in the order of the instructions."""
    bits = [to_bits(lowering, register) for register in lowering.registers(a)]
    words = [pack(lowering, bits[first : first + 2], 32) for first in range(0, len(bits), 2)]
    depth = len(words) // (slices * _WORDS)
    steps = [tuple(words[start : start + _WORDS]) for start in range(0, len(words), _WORDS)]
    return wgmma.RegisterOperand(tuple(tuple(steps[part * depth : (part + 1) * depth]) for part in range(slices)))


RULES: dict[str, NvidiaRule] = {"wgmma_start": _start, "wgmma": _product, "wgmma_wait": _wait}
