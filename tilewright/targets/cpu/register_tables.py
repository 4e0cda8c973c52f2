"""Gathers from blocks of so few numbers that a register holds them: one instruction for each vector of results."""

from __future__ import annotations

from tilewright.ir.core import SSAValue
from tilewright.ir.types import TensorType
from tilewright.targets.cpu.affine import constant_of
from tilewright.targets.cpu.storage import Storage
from tilewright.targets.llvm.builder import LLVMBuilder, LLVMValue, vector_type
from tilewright.targets.llvm.conversions import memory_type

_INSTRUCTIONS = {"float": "llvm.x86.avx512.permvar.sf.512", "i32": "llvm.x86.avx512.permvar.si.512"}


def fits_register(block: TensorType, lanes: int) -> bool:
    """Whether a block is so small a table, for registers of `lanes` numbers of 32 bits (0: none can be a table)."""
    return block.rank == 1 and block.shape[0] <= lanes and memory_type(block.element) in _INSTRUCTIONS


def low_bits(index: SSAValue, lanes: int) -> SSAValue:
    """What has the same low bits as an index: the instruction looks at no others, so they need not be cleared."""
    operation = index.definition
    if operation is None or operation.opcode != "and":
        return index
    left, right = operation.operands
    mask = constant_of(right)
    return left if mask is not None and mask & (lanes - 1) == lanes - 1 else index


def looked_up(
    builder: LLVMBuilder, table: LLVMValue, storage: Storage, indices: LLVMValue, lanes: int
) -> LLVMValue:  # fmt: skip
    """The elements of the block at the address `table` that a vector of int32 picks by its low bits."""
    memory = memory_type(storage.element)
    register = builder.load(vector_type(memory, lanes), table, storage.element.itemsize)
    found: LLVMValue | None = None
    for first in range(0, indices.lanes, lanes):
        count = min(lanes, indices.lanes - first)
        part = indices if count == indices.lanes else builder.shuffle(indices, None, range(first, first + count))
        picked = builder.call(_INSTRUCTIONS[memory], register.type, [register, builder.with_lanes(part, lanes)])
        if found is not None:
            picked = builder.with_lanes(picked, found.lanes)
            picked = builder.shuffle(found, picked, [*range(first), *range(found.lanes, found.lanes + count)])
        found = picked
    assert found is not None
    return builder.with_lanes(found, indices.lanes)
