"""Products of groups of rows with a matrix each, found at run time: on Hopper by tensor copies and wgmma, behind a
launch that lists the tiles of rows; else one launch whose programs find their group themselves."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Any

from tilewright.graph.core import Graph
from tilewright.graph.fusion import Group
from tilewright.kernels.grouped import grouped_matmul
from tilewright.symbolic import Size, ceil_divide, lift, simplify
from tilewright.tactics.binding import bind_extra, bind_sizes
from tilewright.tactics.contraction import epilogue_slots
from tilewright.tactics.core import Candidate, KernelCall, Operand, Stage
from tilewright.tactics.elementwise import chain_operations, total_bytes
from tilewright.tactics.expressions import compute_type, language_type
from tilewright.tactics.gpu.hopper_grouped import hopper_grouped
from tilewright.targets.base import Target
from tilewright.tune.cost import estimate, expected, machine_of
from tilewright.tune.gpu import Product, Tile, gpu_of, seconds_of

_TILES = ((128, 128, 64, 8), (64, 128, 64, 4), (16, 128, 64, 4))  # rows, columns, depth, warps
_WIDE = (32, 64, 32, 4)  # of elements of 4 bytes
_SLOWER = 1.4  # than a product in tiles whose rows are known (measured on an H200)


def _tile(share: float, itemsize: int) -> tuple[int, int, int, int]:
    """The tile for groups of so many rows."""
    if itemsize > 2:
        return _WIDE
    return next((tile for tile in _TILES if share >= tile[0]), _TILES[-1])


def grouped_candidates(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    """The candidates of a group whose anchor is a grouped product."""
    anchor = group.anchor
    assert anchor is not None
    a, b, ends = anchor.inputs
    assert a is not None and b is not None and ends is not None
    slots = epilogue_slots(group, graph)
    transposed = anchor.attributes["transpose_b"]
    rows, depth = a.shape
    groups, columns = b.shape[0], b.shape[1] if transposed else b.shape[2]
    sizes: dict[str, Size] = {
        "rows": rows, "columns": columns, "depth": depth, "groups": groups,
        "b_group": simplify(lift(depth) * columns), "b_depth": 1 if transposed else columns,
        "b_column": depth if transposed else 1,
    }  # fmt: skip
    block_m, block_n, block_k, warps = _tile(expected(rows) / max(1, expected(groups)), a.dtype.itemsize)
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
    cost = estimate(machine_of(target), moved, flops, simplify(lift(grid[0]) * grid[1]), a.dtype, 0.5)
    if hasattr(target, "multiprocessors"):
        share = ceil(expected(rows) / max(1, expected(groups)))
        padded = expected(groups) * ceil(share / block_m) * block_m
        posed = Product(padded, expected(columns), expected(depth), 1, a.dtype)
        seconds = _SLOWER * seconds_of(Tile(block_m, block_n, block_k, warps), posed, gpu_of(target))
        cost = replace(cost, seconds=seconds)
    reasons = {"tile": f"{block_m} x {block_n}, depth {block_k}", "epilogue": slots.function.__name__}
    plain = Candidate("grouped matmul", (Stage((call,)),), cost, (), reasons)
    return [*hopper_grouped(group, slots, target), plain]
