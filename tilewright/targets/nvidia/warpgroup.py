"""Emits products by warpgroups, and copies of blocks to the tiles that they read.

A product is issued and left under way (`in_flight.py`); the first operation that needs its result waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright import dtypes
from tilewright.ir.core import Operation, SSAValue
from tilewright.ir.rewrite import constant_of
from tilewright.ir.types import TensorType
from tilewright.layout import LinearLayout
from tilewright.targets.gpu.exchange import pack, to_bits
from tilewright.targets.gpu.layouts import CONVERSION_ATTRIBUTE
from tilewright.targets.gpu.shape import permute
from tilewright.targets.gpu.tiles import is_tile, tile_axis
from tilewright.targets.llvm.builder import LLVMValue
from tilewright.targets.nvidia.explicit import matrix_moves, ptx, views, wgmma
from tilewright.targets.nvidia.explicit.barriers import fence_async
from tilewright.targets.nvidia.lowering import NvidiaLowering, NvidiaRule
from tilewright.targets.nvidia.warpgroup_layout import (
    ROWS,
    WarpgroupProduct,
    product_of,
    tile_swizzle,
)

_WORDS = 4  # registers of operand A in one instruction


# Tiles -------------------------------------------------------------------------------------------


def tile_view(start: LLVMValue, kind: TensorType, layout: LinearLayout) -> views.SharedView:
    """A block in the layout of a tile, `start` bytes from the kernel's shared memory."""
    dtype = kind.dtype
    swizzle = tile_swizzle(layout, dtype.itemsize)
    if tile_axis(layout) == 1:
        return views.whole(start, kind.shape, dtype, swizzle)
    return views.whole(start, kind.shape[::-1], dtype, swizzle).transpose()


def store_tile(lowering: NvidiaLowering, operation: Operation) -> None:
    """Copy a block to its tile, when all have read what was there before."""
    (block,), result = operation.operands, operation.result
    builder = lowering.builder
    view = tile_view(lowering.i32(lowering.tiles[operation]), result.type, lowering.layout(result))
    lowering.land()
    lowering.synchronize()
    chosen = matrix_moves.plan(lowering.layout(block), block.type.shape, view, stored=True)
    values = dict(zip(lowering.numbers(block), lowering.registers(block), strict=True))
    threads = matrix_moves.Threads(lowering.group.lane, lowering.group.warp)
    matrix_moves.store(builder, chosen, view, threads, values)
    fence_async(builder)
    lowering.synchronize()
    lowering.views[result] = view
    lowering.note(operation, f"{block.type} is stored to shared memory for a product")


def _permute(lowering: NvidiaLowering, operation: Operation) -> None:
    """The rule of `permute`, which conversions are: to tiles, too."""
    if CONVERSION_ATTRIBUTE in operation.attributes and is_tile(lowering.layout(operation.result)):
        store_tile(lowering, operation)
    else:
        permute(lowering, operation)


# Products ----------------------------------------------------------------------------------------


def warpgroup_dot(lowering: NvidiaLowering, operation: Operation) -> None:
    """The rule of `dot` where the right operand is a tile."""
    a, b, accumulator = operation.operands
    product = product_of(lowering.layout(operation.result))
    own = dtypes.int32 if a.type.dtype.is_integer else dtypes.float32
    dtype = operation.result.type.dtype
    if dtype != own or not _only_use(lowering, accumulator):
        lowering.land_value(accumulator)
    sums: list[LLVMValue] | None = None
    if constant_of(accumulator) != 0:
        sums = lowering.converter.cast_all(lowering.registers(accumulator), dtype, own)
    lowering.flight.take(accumulator)
    result, pinned = _multiply(lowering, product, a, b, sums)
    lowering.define(operation.result, result)
    lowering.flight.start(operation.result, result, pinned)
    if dtype != own:
        lowering.land()
        numbers = lowering.registers(operation.result)
        lowering.define(operation.result, lowering.converter.cast_all(numbers, own, dtype))


def _only_use(lowering: NvidiaLowering, value: SSAValue) -> bool:
    uses = sum(1 for operation in lowering.function.walk() for operand in operation.operands if operand is value)
    return uses == 1


def _multiply(
    lowering: NvidiaLowering, product: WarpgroupProduct, a: SSAValue, b: SSAValue, sums: Sequence[LLVMValue] | None
) -> tuple[list[LLVMValue], list[LLVMValue]]:
    """The results, and the registers that are being read."""
    builder = lowering.builder
    row, column = _group_place(lowering, product)
    instruction = wgmma.WgmmaInstruction(a.type.dtype, b.type.dtype, product.columns)
    pinned: list[LLVMValue] = []
    left: wgmma.SharedOperand | wgmma.RegisterOperand
    if is_tile(lowering.layout(a)):
        view = lowering.views[a]
        if product.grid[0] > 1:
            view = view.slice(builder, builder.multiply(row, ROWS), 0, a.type.shape[0])
        left = views.operand(builder, view, True, product.slices, product.grid[0])
    else:
        left = _in_registers(lowering, a, product.slices)
        pinned = left.pinned
    tile = lowering.views[b]
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


RULES: dict[str, NvidiaRule] = {"permute": _permute}
