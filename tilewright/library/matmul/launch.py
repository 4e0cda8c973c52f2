"""One launch of the tiled product, `library.matmul.kernel`, on any machine."""

from __future__ import annotations

from typing import Any

from tilewright.ir.ops import PAIRS_FIT
from tilewright.library.binding import bind_extra, bind_sizes, divides
from tilewright.library.candidate import KernelCall, Operand
from tilewright.library.generated.expressions import language_type
from tilewright.library.matmul.blocks import MatmulBlocks
from tilewright.library.matmul.kernel import matmul
from tilewright.library.matmul.problem import GraphProduct, sum_type
from tilewright.library.slots import Slots
from tilewright.symbolic import Size, ceil_divide


def gemm_call(
    problem: GraphProduct, slots: Slots, blocks: MatmulBlocks, condition: tuple[Size, int] | None
) -> KernelCall:
    """One launch of `library.matmul.kernel`."""
    block_m, block_n, block_k = blocks.rows, blocks.columns, blocks.depth
    batched = problem.batches != 1
    sizes: dict[str, Size] = {
        "rows": problem.rows, "columns": problem.columns, "depth": problem.depth, "a_row": problem.a_row,
        "a_depth": problem.a_depth, "b_depth": problem.b_depth, "b_column": problem.b_column,
        "c_row": problem.columns,
    }  # fmt: skip
    if batched:
        sizes |= {
            "a_outer": problem.a_batch[0], "a_batch": problem.a_batch[1], "b_outer": problem.b_batch[0],
            "b_batch": problem.b_batch[1], "inner_batches": problem.inner_batches,
        }  # fmt: skip
    panels = ceil_divide(problem.columns, problem.width) if problem.width else 0
    constants: dict[str, Any] = {
        "BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k, "WIDTH": problem.width, "BATCHED": batched,
        "WHOLE_K": problem.depth == block_k, "MASK_M": not divides(block_m, problem.rows),
        "MASK_N": not divides(block_n, problem.columns), "MASK_K": not divides(block_k, problem.depth),
        "MASK_PANEL": bool(problem.width) and not divides(block_n // problem.width, panels), "GROUP": problem.group,
        "TYPE": language_type(sum_type(problem.a.dtype)), "PRECISION": PAIRS_FIT if problem.pairs_fit else "ieee",
        "EPILOGUE": slots.function,
    }  # fmt: skip
    operands: dict[str, Operand] = {"a": problem.a, "b": problem.b, "c": slots.stored}
    types: dict[str, str] = {}
    bind_sizes(sizes, operands, types, constants)
    bind_extra(slots.extra, operands, types)
    grid = (ceil_divide(problem.rows, block_m), ceil_divide(problem.columns, block_n), problem.batches)
    return KernelCall(matmul, operands, types, constants, grid, condition)
