"""Products: the instruction that multiplies, and the layouts that it needs.

    f16, bf16            mma m16n8k16            two neighbours along k to a register
    f32 (input_precision tf32, tf32x3)           m16n8k8 with tf32
    f32 (bf16x3, bf16x6)                         m16n8k16 with the parts of each number as bfloat16
    f64                  m16n8k8, before sm_90 as four m8n8k4
    i8, u8               mma m16n8k32            four neighbours
    fp8                  m16n8k32 from sm_89 on; before, and for other formats, exactly as f16
    all else, and blocks smaller than an instruction: multiply-add, operands in shared memory (`dot_scalar.py`)

A lane may hold more neighbours along k than an instruction takes (`width`), so that operands come from shared memory in
longer vectors: a sum may be taken in any order, and instruction i takes the i-th part of every run, in A and B alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.ir.core import Operation
from tilewright.layout import LinearLayout, mma_accumulator, mma_operand
from tilewright.layout.distributed import on_threads
from tilewright.targets.gpu.transfer import padded
from tilewright.targets.nvidia.target import WARP_THREADS, NvidiaTarget

_MMA_ROWS, _MMA_COLUMNS = 16, 8  # of one mma
_VECTOR_BYTES = 16


@dataclass(frozen=True)
class MmaInstruction:
    """A form of mma.sync: `pair` is the neighbours along k that a register holds, `parts` how operands are split."""

    operands: tuple[str, str]  # PTX types of A and B
    accumulator: str  # "f32", "s32", "f64"
    pair: int
    parts: str = ""  # "", "tf32x3", "bf16x3", "bf16x6"

    @property
    def depth(self) -> int:
        return 8 * self.pair


_SMALL_FLOATS = {"float8e4nv": "e4m3", "float8e5": "e5m2"}
_SPLIT = {
    "tf32": ("tf32", 1, ""),
    "tf32x3": ("tf32", 1, "tf32x3"),
    "bf16x3": ("bf16", 2, "bf16x3"),
    "bf16x6": ("bf16", 2, "bf16x6"),
}


def instruction_of(operation: Operation, target: NvidiaTarget) -> MmaInstruction | None:
    """The instruction of a product; None for multiply-add."""
    a, b, accumulator = (value.type for value in operation.operands)
    shape = (*accumulator.shape, a.shape[-1])
    if accumulator.rank != 2 or padded(shape) != shape or shape[0] < _MMA_ROWS or shape[1] < _MMA_COLUMNS:
        return None
    found = _by_type(operation, target)
    if found is None or shape[2] < found.depth:
        return None
    return found


def _by_type(operation: Operation, target: NvidiaTarget) -> MmaInstruction | None:
    a, b, accumulator = (value.type.dtype for value in operation.operands)
    if (a.name, accumulator.name) == ("float64", "float64"):
        return MmaInstruction(("f64", "f64"), "f64", 1)
    if accumulator.name in ("float64", "int64", "uint64"):
        return None
    if a.name in ("float16", "bfloat16"):
        kind = "f16" if a.name == "float16" else "bf16"
        return MmaInstruction((kind, kind), "f32", 2)
    if a.is_float and a.bits == 8:
        names = [_SMALL_FLOATS.get(dtype.name) for dtype in (a, b)]
        if target.fp8_mma and names[0] is not None and names[1] is not None:
            return MmaInstruction((names[0], names[1]), "f32", 4)
        return MmaInstruction(("f16", "f16"), "f32", 2)
    if a.name == "float32":
        row = _SPLIT.get(str(operation.attributes["input_precision"]))
        return None if row is None else MmaInstruction((row[0], row[0]), "f32", row[1], row[2])
    if a.name in ("int8", "uint8"):
        names_of = {"int8": "s8", "uint8": "u8"}
        return MmaInstruction((names_of[a.name], names_of[b.name]), "s32", 4)
    return None


# Warps -------------------------------------------------------------------------------------------


def warp_grid(rows: int, columns: int, warps: int, chained: bool) -> tuple[int, int]:
    """Warps along the rows and along the columns of a product.

    Each warp's part is as square as can be, so that operands are read rarely; warps of chained products stand in one
    column, so that a row's scores, their maximum and the next product stay in the warp.
    """
    along_rows = along_columns = 1
    while along_rows * along_columns < warps:
        tall, wide = rows // along_rows, columns // along_columns
        if tall > _MMA_ROWS and (chained or tall >= wide or wide <= _MMA_COLUMNS):
            along_rows *= 2
        elif wide > _MMA_COLUMNS:
            along_columns *= 2
        else:
            along_rows *= 2
    return along_rows, along_columns


# Layouts -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ProductLayouts:
    """The layouts of A, B and the accumulator; `width` is the neighbours along k that a lane holds."""

    a: LinearLayout
    b: LinearLayout
    accumulator: LinearLayout
    width: int


def product_layouts(
    operation: Operation, instruction: MmaInstruction, grid: tuple[int, int], width: int
) -> ProductLayouts:
    rows, columns = operation.result.type.shape
    depth = operation.operands[0].type.shape[1]
    warps = grid[0] * grid[1]
    layouts = [
        mma_operand((rows, depth), 0, grid, width),
        mma_operand((depth, columns), 1, grid, width),
        mma_accumulator((rows, columns), grid),
    ]
    a, b, accumulator = (on_threads(layout, WARP_THREADS, warps) for layout in layouts)
    return ProductLayouts(a, b, accumulator, width)


def widths(operation: Operation, instruction: MmaInstruction, streamed: bool) -> Sequence[int]:
    """Possible widths, the instruction's own first; alone it is what ldmatrix gives operands that come from memory."""
    a = operation.operands[0].type
    own = instruction.pair
    if streamed and a.dtype.bits == 16:
        return [own]
    widest = min(_VECTOR_BYTES // a.dtype.itemsize, a.shape[1] // 8)
    return [own] if widest <= own else [own, widest]
