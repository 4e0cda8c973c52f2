"""The grouped product for any target: one launch whose program instances find their group at run time."""

from __future__ import annotations

from typing import Any

from tilewright.dtypes import DType
from tilewright.graph.core import Graph
from tilewright.graph.fusion import Group
from tilewright.library.binding import launch
from tilewright.library.candidate import Candidate, Stage
from tilewright.library.cost import estimate
from tilewright.library.generated.elementwise import total_bytes
from tilewright.library.generated.expressions import compute_type, language_type
from tilewright.library.grouped.kernel import grouped_matmul
from tilewright.library.grouped.problem import GroupedProblem, grouped_problem
from tilewright.library.slots import epilogue_slots
from tilewright.symbolic import ceil_divide, lift, simplify
from tilewright.targets.base import Target

_PORTABLE_TILES = ((128, 128, 64, 256), (64, 128, 64, 128), (16, 128, 64, 128))  # rows, columns, depth, threads
_WIDE_TILE = (32, 64, 32, 128)  # of elements of 4 bytes


def tile_of(rows_of_group: float, dtype: DType) -> tuple[int, int, int, int]:
    """Rows, columns, depth and threads of the tiles for groups of so many rows."""
    if dtype.itemsize > 2:
        return _WIDE_TILE
    return next((tile for tile in _PORTABLE_TILES if rows_of_group >= tile[0]), _PORTABLE_TILES[-1])


def grouped_candidates(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    """The candidates of a group whose anchor is a grouped product."""
    return [portable_grouped(grouped_problem(group, epilogue_slots(group, graph)), target)]


def portable_grouped(problem: GroupedProblem, target: Target) -> Candidate:
    """The launch of `library.grouped.kernel`."""
    group, slots, a = problem.group, problem.slots, problem.a
    block_m, block_n, block_k, threads = tile_of(problem.rows_of_group, a.dtype)
    constants: dict[str, Any] = {
        "BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k,
        "TYPE": language_type(compute_type(a.dtype)), "EPILOGUE": slots.function,
    }  # fmt: skip
    tensors = {"a": a, "b": problem.b, "ends": problem.ends, "c": slots.stored}
    grid = (
        simplify(lift(ceil_divide(problem.rows, block_m)) + problem.groups),
        ceil_divide(problem.columns, block_n),
        1,
    )
    call = launch(grouped_matmul, tensors, problem.sizes, constants, grid, slots.extra, threads)
    moved = total_bytes(group.inputs, group.outputs)
    cost = estimate(target.machine(), moved, problem.flops, simplify(lift(grid[0]) * grid[1]), a.dtype, 0.5)
    reasons = {"tile": f"{block_m} x {block_n}, depth {block_k}", "epilogue": slots.function.__name__}
    return Candidate("grouped matmul", (Stage((call,)),), cost, (), reasons)
