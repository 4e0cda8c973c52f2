"""Layouts: which register, lane, warp and block, or which offset of shared memory, holds each element of a block.

linear.py        `LinearLayout`: the maps, as values
distributed.py   blocked, mma, wgmma, operand and slice layouts of registers
shared.py        plain, padded, swizzled and TMA/wgmma layouts of shared memory; bank conflicts
convert.py       conversions computed from two maps (shuffles.py, exchange.py); simulate.py runs them
vectorize.py     the widest accesses of a layout, and the layout an access wants
gf2.py           the linear algebra
"""

from tilewright.layout.convert import Plan, RegisterMoves, plan_conversion
from tilewright.layout.distributed import (
    Blocked,
    joined,
    live_registers,
    mma_accumulator,
    mma_operand,
    on_threads,
    slice_of,
    split,
    wgmma_accumulator,
    wgmma_operand,
)
from tilewright.layout.exchange import SharedExchange
from tilewright.layout.linear import LinearLayout
from tilewright.layout.matrix import Descriptor, MatrixAccess, matrix_access, wgmma_descriptor
from tilewright.layout.shared import SharedLayout, bank_conflicts, nvmma, padded, swizzled, unswizzled
from tilewright.layout.shuffles import Shuffles
from tilewright.layout.vectorize import Facts, VectorAccess, coalesce, widest_access

__all__ = [
    "Blocked",
    "Descriptor",
    "Facts",
    "LinearLayout",
    "MatrixAccess",
    "Plan",
    "RegisterMoves",
    "SharedExchange",
    "SharedLayout",
    "Shuffles",
    "VectorAccess",
    "bank_conflicts",
    "coalesce",
    "joined",
    "live_registers",
    "matrix_access",
    "mma_accumulator",
    "mma_operand",
    "nvmma",
    "on_threads",
    "padded",
    "plan_conversion",
    "slice_of",
    "split",
    "swizzled",
    "unswizzled",
    "wgmma_accumulator",
    "wgmma_descriptor",
    "wgmma_operand",
    "widest_access",
]
