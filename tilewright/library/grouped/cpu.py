"""Grouped products on CPUs: one launch whose program instances find their group at run time."""

from __future__ import annotations

from typing import Any

from tilewright.dtypes import DType
from tilewright.graph.core import Graph
from tilewright.graph.fusion import Group
from tilewright.library.binding import bind_extra, bind_sizes
from tilewright.library.candidate import Candidate, KernelCall, Operand, Stage
from tilewright.library.cost import estimate, expected
from tilewright.library.generated.elementwise import chain_operations, total_bytes
from tilewright.library.generated.expressions import compute_type, language_type
from tilewright.library.grouped.kernel import grouped_matmul
from tilewright.library.slots import Slots, epilogue_slots
from tilewright.symbolic import Size, ceil_divide, lift, simplify
from tilewright.targets.base import Target

_TILES = ((128, 128, 64, 8), (64, 128, 64, 4), (16, 128, 64, 4))  # rows, columns, depth, warps
_WIDE = (32, 64, 32, 4)  # of elements of 4 bytes


def tile_of(rows: int, groups: int, dtype: DType) -> tuple[int, int, int, int]:
    """Rows, columns, depth and warps of the tiles for groups of so many rows in all."""
    if dtype.itemsize > 2:
        return _WIDE
    share = rows / max(1, groups)
    return next((tile for tile in _TILES if share >= tile[0]), _TILES[-1])


def grouped_candidates(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    """The candidates of a group whose anchor is a grouped product."""
    return [plain_grouped(group, epilogue_slots(group, graph), target)]


def plain_grouped(group: Group, slots: Slots, target: Target) -> Candidate:
    """The launch of `library.grouped.kernel`."""
    anchor = group.anchor
    assert anchor is not None
    a, b, ends = anchor.inputs
    assert a is not None and b is not None and ends is not None
    transposed = anchor.attributes["transpose_b"]
    rows, depth = a.shape
    groups, columns = b.shape[0], b.shape[1] if transposed else b.shape[2]
    sizes: dict[str, Size] = {
        "rows": rows, "columns": columns, "depth": depth, "groups": groups,
        "b_group": simplify(lift(depth) * columns), "b_depth": 1 if transposed else columns,
        "b_column": depth if transposed else 1,
    }  # fmt: skip
    block_m, block_n, block_k, warps = tile_of(expected(rows), expected(groups), a.dtype)
    constants: dict[str, Any] = {
        "BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k,
        "TYPE": language_type(compute_type(a.dtype)), "EPILOGUE": slots.function,
    }  # fmt: skip
    operands: dict[str, Operand] = {"a": a, "b": b, "ends": ends, "c": slots.stored}
    types: dict[str, str] = {}
    bind_sizes(sizes, operands, types, constants)
    bind_extra(slots.extra, operands, types)
    grid = (simplify(lift(ceil_divide(rows, block_m)) + groups), ceil_divide(columns, block_n), 1)
    call = KernelCall(grouped_matmul, operands, types, constants, grid, options={"num_warps": warps})
    flops = simplify(lift(rows) * columns * depth * 2 + chain_operations(group.epilogue))
    moved = total_bytes(group.inputs, group.outputs)
    cost = estimate(target.machine(), moved, flops, simplify(lift(grid[0]) * grid[1]), a.dtype, 0.5)
    reasons = {"tile": f"{block_m} x {block_n}, depth {block_k}", "epilogue": slots.function.__name__}
    return Candidate("grouped matmul", (Stage((call,)),), cost, (), reasons)
