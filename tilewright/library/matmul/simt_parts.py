"""Products with few tiles: CTAs share the depth, and a second kernel sums the parts.

98 pixels by 512 columns are 16 tiles of 64 x 64, for an H200's 132 SMs: with the depth in eight parts all have
something to do.  The sums of the parts go through memory; they are added in one order, so that results are the same
from run to run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tilewright.dtypes import float32
from tilewright.graph.core import Value
from tilewright.graph.fusion import Group
from tilewright.library.binding import bind_extra, bind_sizes, divides
from tilewright.library.candidate import Candidate, KernelCall, Operand, Stage
from tilewright.library.cost import Cost, expected
from tilewright.library.generated.generate import next_power_of_2
from tilewright.library.matmul.blocks import MatmulBlocks
from tilewright.library.matmul.launch import gemm_call
from tilewright.library.matmul.problem import GraphProduct, MatmulProblem
from tilewright.library.matmul.simt_parts_kernel import sum_parts
from tilewright.library.matmul.simt_tiles import SimtTile, part_length, ranked_parts, ranked_tiles
from tilewright.library.slots import Slots
from tilewright.symbolic import Size, ceil_divide, product
from tilewright.targets.base import Target

_SUMMED = 1024  # elements of a CTA that sums parts
_COLUMNS = 128
_WORTHWHILE = 0.95  # of the time of a product whose depth is not divided

Partial = Callable[[SimtTile, int, Slots], KernelCall]


def in_parts(
    product: MatmulProblem,
    slots: Slots,
    group: Group,
    target: Target,
    cost: Cost,
    call: Partial,
    shape: tuple[int, int] | None = None,
    ragged: bool = False,
) -> list[Candidate]:
    """The candidates that divide the depth of a product of known sizes, where the model says that they may pay.

    `cost` is without the seconds of the product: what its epilogue takes.  `call` makes the launch that stores the sums
    of so many parts of the depth, [parts, rows, columns] float32; `shape`: the rows and columns of the epilogue, where
    they are not those of the product.  `ragged`: the last part may be shorter than the others.
    """
    machine = target.machine()
    found = ranked_parts(product, machine, ragged)
    limit = _WORTHWHILE * ranked_tiles((product,), machine)[0][1]
    return [
        _divided(
            tile,
            parts,
            slots,
            group,
            target,
            replace(cost, seconds=cost.seconds + seconds),
            call,
            shape or (product.rows, product.columns),
        )
        for tile, parts, seconds in found
        if seconds <= limit
    ]


def _divided(
    tile: SimtTile,
    parts: int,
    slots: Slots,
    group: Group,
    target: Target,
    cost: Cost,
    call: Partial,
    shape: tuple[int, int],
) -> Candidate:
    """The candidate with so many parts of the depth."""
    sums = Value(f"{group.name}.parts", float32, (parts, *shape))
    stages = (
        Stage((call(tile, parts, Slots(sums)),)),
        Stage((sum_of_parts(sums, slots, target),)),
    )
    reasons = {"epilogue": slots.function.__name__, "tile": str(tile), "parts of the depth": parts}
    return Candidate("matmul in parts", stages, cost, (sums,), reasons)


def product_part(
    problem: GraphProduct, tile: SimtTile, parts: int, slots: Slots, constants: dict[str, Any]
) -> KernelCall:
    """The sums of each part of the depth, as a batch; the last one may be shorter than the others."""
    assert isinstance(problem.depth, int)
    length = part_length(problem.depth, parts, tile)
    a, b = ((0, product((length, step))) for step in (problem.a_depth, problem.b_depth))
    part = replace(problem, depth=length, batches=parts, inner_batches=parts, a_batch=a, b_batch=b)
    call = gemm_call(part, slots, MatmulBlocks(tile.rows, tile.columns, tile.depth), None)
    constants = {**call.constants, **constants}
    if problem.depth != parts * length:
        masked = not divides(tile.depth, problem.depth)
        constants |= {"RAGGED": True, "WHOLE_K": False, "whole_depth": problem.depth, "MASK_K": masked}
    return replace(call, constants=constants, threads=tile.threads, evenly=True)


def sum_of_parts(sums: Value, slots: Slots, target: Target) -> KernelCall:
    """The launch that adds sums [parts, rows, columns] in their order, with the epilogue."""
    parts, rows, columns = (expected(size) for size in sums.shape)
    each = next_power_of_2(-(-rows * columns // target.machine().processors))
    block_n = min(_COLUMNS, next_power_of_2(columns))
    block_m = max(1, min(_SUMMED, each) // block_n)
    sizes: dict[str, Size] = {"rows": rows, "columns": columns}
    constants: dict[str, Any] = {
        "PARTS": parts, "BLOCK_M": block_m, "BLOCK_N": block_n, "MASK_M": not divides(block_m, rows),
        "MASK_N": not divides(block_n, columns), "EPILOGUE": slots.function,
    }  # fmt: skip
    operands: dict[str, Operand] = {"parts": sums, "out": slots.stored}
    types: dict[str, str] = {}
    bind_sizes(sizes, operands, types, constants)
    bind_extra(slots.extra, operands, types)
    grid = (ceil_divide(rows, block_m), ceil_divide(columns, block_n), 1)
    return KernelCall(sum_parts, operands, types, constants, grid, threads=128)
