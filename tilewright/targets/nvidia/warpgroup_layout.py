"""Products by warpgroups (wgmma) in the plain language: which ones, and the layouts of their operands.

The right operand is a tile in shared memory; the left one too, or registers when it was computed in the layout that
the instruction reads (attention's probabilities).  A tile is a layout like any other here, with the one input `offset`:
a conversion to it is a copy to shared memory, which loops take over by copying ahead (`pipelining.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tilewright.ir.core import Operation, SSAValue
from tilewright.ir.rewrite import constant_of
from tilewright.layout import LinearLayout, SharedExchange, nvmma, wgmma_accumulator, wgmma_operand
from tilewright.layout.distributed import on_threads
from tilewright.targets.gpu.tiles import OFFSET, tile_axis
from tilewright.targets.gpu.transfer import conversion_plan, element_bits
from tilewright.targets.nvidia.dot_layout import instruction_of
from tilewright.targets.nvidia.target import WARP_THREADS, NvidiaTarget

WARPGROUP_WARPS = 4  # of a warpgroup
ROWS = 64  # of one instruction
WGMMA_REGISTERS = 26  # of a thread besides accumulators: ptxas refuses the instruction with fewer (C7602)
_MOST_COLUMNS = 256  # of one instruction at most
_LEAST_COLUMNS = 32  # of a warpgroup, that pay for reading A from shared memory
_LEAST_COLUMNS_BESIDE_LASTING = 16  # the same for an A that would take registers for a whole loop
_MOST_ACCUMULATED = 192  # of an accumulator in one thread
_STEP_BYTES = 32  # of k in one instruction
_ELEMENTS = ("float16", "bfloat16", "float8e4nv", "float8e5", "int8", "uint8")


@dataclass(frozen=True)
class WarpgroupProduct:
    """`grid` are the warpgroups along rows and columns; each has `columns`, those of one instruction."""

    rows: int
    grid: tuple[int, int]
    columns: int

    @property
    def slices(self) -> int:
        """Instructions of 64 rows that a warpgroup has below each other."""
        return self.rows // (ROWS * self.grid[0])

    def accumulator(self) -> LinearLayout:
        shape = (self.rows, self.columns * self.grid[1])
        warps = WARPGROUP_WARPS * prod(self.grid)
        return on_threads(wgmma_accumulator(shape, self.columns, self.grid), WARP_THREADS, warps)


def warpgroup_product(
    operation: Operation, target: NvidiaTarget, warps: int, chained: bool, lasting: bool
) -> WarpgroupProduct | None:
    """How warpgroups divide a product, or None where the instruction does not serve or does not pay.

    The rows are divided first, so that a row of the result stays in one warpgroup; `chained` products are divided in
    no other way.  Of `lasting` ones A is the same in all iterations of a loop.  float32 operands stay with mma.sync,
    for wgmma would cut off bits that TF32 lacks without rounding.
    """
    a, b, accumulator = (value.type for value in operation.operands)
    instruction = instruction_of(operation, target)
    if not target.wgmma or warps % WARPGROUP_WARPS or instruction is None or instruction.parts:
        return None
    if a.dtype.name not in _ELEMENTS or b.dtype.name not in _ELEMENTS or a.dtype.bits != b.dtype.bits:
        return None
    rows, columns = accumulator.shape
    groups = warps // WARPGROUP_WARPS
    along_rows = min(groups, rows // ROWS)
    if not along_rows or a.shape[1] * a.dtype.itemsize < _STEP_BYTES:
        return None
    along_columns = groups // along_rows
    share = columns // along_columns
    fresh = constant_of(operation.operands[2]) == 0  # ptxas serialises sums of few columns that loops carry
    least = _LEAST_COLUMNS_BESIDE_LASTING if lasting and fresh else _LEAST_COLUMNS
    if not least <= share <= _MOST_COLUMNS or (chained and along_columns > 1):
        return None
    if rows * columns // (WARP_THREADS * warps) > _MOST_ACCUMULATED:
        return None
    of_instruction = ROWS * share * accumulator.dtype.bits // (32 * WARP_THREADS * WARPGROUP_WARPS)
    if of_instruction + WGMMA_REGISTERS > target.registers_per_multiprocessor // (WARP_THREADS * warps):
        return None
    return WarpgroupProduct(rows, (along_rows, along_columns), share)


def product_of(layout: LinearLayout) -> WarpgroupProduct:
    """The division that an accumulator's layout tells of."""
    groups = layout.vectors("warp")[2:]
    grid = (1 << sum(1 for row, _ in groups if row), 1 << sum(1 for _, column in groups if column))
    rows, columns = layout.shape
    return WarpgroupProduct(rows, grid, columns // grid[1])


# Operands ----------------------------------------------------------------------------------------


def operand_layouts(
    operation: Operation, product: WarpgroupProduct, homes: Sequence[LinearLayout], loaded: bool
) -> tuple[LinearLayout, LinearLayout] | None:
    """Where A and B have to be, given where they are; None if an operand lies in the way that cannot be read.

    `loaded` says that A comes from memory as it is, and can be copied to its tile without passing through registers.
    """
    a, b = operation.operands[:2]
    right = _operand_tile(b, 1, homes[1], product.columns)
    left = None if loaded else _in_registers(a, product, homes[0])
    left = left or _operand_tile(a, 0, homes[0], ROWS)
    return None if left is None or right is None else (left, right)


def _in_registers(a: SSAValue, product: WarpgroupProduct, home: LinearLayout) -> LinearLayout | None:
    """The layout of an A in registers, where a 16-bit block gets into it without shared memory."""
    if a.type.dtype.bits != 16:
        return None
    wanted = on_threads(
        wgmma_operand(a.type.shape, 2, product.grid), WARP_THREADS, WARPGROUP_WARPS * prod(product.grid)
    )
    plan = conversion_plan(home, wanted, element_bits(a))
    return None if isinstance(plan, SharedExchange) else wanted


def _operand_tile(value: SSAValue, number: int, home: LinearLayout, extent: int) -> LinearLayout | None:
    """A tile that runs along the axis along which threads hold neighbours, or lanes if threads hold none.

    Along k, or for 16-bit elements along the other axis too, of which an instruction reads `extent`.
    """
    k_axis = 1 - number
    # Where a thread has no neighbours, its elements are stored one by one, side by side with those of the next lanes.
    nearest = [*home.vectors("register")[:1], *home.vectors("lane")[:1]]
    along = next((vector for vector in nearest if sum(vector) == 1), (nearest or [(0, 0)])[0])
    axis = 1 - k_axis if along[1 - k_axis] else k_axis
    size = value.type.dtype.itemsize
    if axis == k_axis:
        return tile_layout(value.type.shape, 8 * size, axis, value.type.shape[axis] * size)
    return tile_layout(value.type.shape, 16, axis, extent * size) if size == 2 else None


# Tiles -------------------------------------------------------------------------------------------


def tile_layout(shape: tuple[int, ...], bits: int, contiguous: int, row_bytes: int) -> LinearLayout:
    """A tile with the widest swizzle for rows of so many bytes (32 at least) along an axis."""
    return nvmma(shape, bits, min(128, row_bytes), contiguous).linear


def tile_swizzle(layout: LinearLayout, itemsize: int) -> int:
    """Bytes of a row of a tile's panels."""
    axis = tile_axis(layout)
    within = 0
    for vector in layout.vectors(OFFSET):
        if vector[1 - axis]:
            break
        within += 1
    return (1 << within) * itemsize
