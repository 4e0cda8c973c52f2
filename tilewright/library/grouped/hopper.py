"""Grouped products by the Hopper kernel: a launch that lists the tiles of rows, and the product that reads the list."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import tilewright.language as tl
from tilewright.dtypes import bfloat16, float16, float32, int32
from tilewright.graph.core import Value
from tilewright.graph.fusion import Group
from tilewright.library.binding import bind_extra, launch
from tilewright.library.candidate import Candidate, KernelCall, Operand, Stage, TiledOperand
from tilewright.library.cost import Cost, expected
from tilewright.library.generated.elementwise import total_bytes
from tilewright.library.generated.generate import next_power_of_2
from tilewright.library.grouped.hopper_kernel import grouped_matmul, list_tiles
from tilewright.library.grouped.problem import GroupedProblem
from tilewright.library.hopper import is_possible
from tilewright.library.matmul.hopper.choice import filled, seconds_of
from tilewright.library.matmul.hopper.config import MatmulConfig
from tilewright.library.matmul.problem import MatmulProblem
from tilewright.library.slots import Slots
from tilewright.symbolic import Size, ceil_divide, lift, minimum, simplify
from tilewright.targets.base import Target
from tilewright.targets.machine import Machine

_GROUPED_CONFIGS = 4  # that are candidates
_ROW_TILES = ((64, 1), (128, 2), (256, 2))  # rows and warpgroups
_LISTED = 8  # tiles of rows that a CTA lists
_ROW_MULTIPLE = 8  # elements that rows are multiples of, for tensor copies


def hopper_grouped(grouped: GroupedProblem, target: Target) -> list[Candidate]:
    """The Hopper kernel in its best configs; none where tensor copies cannot read the operands."""
    group, a, b, slots = grouped.group, grouped.a, grouped.b, grouped.slots
    groups, depth, columns = grouped.groups, grouped.depth, grouped.columns
    if not isinstance(groups, int) or not isinstance(depth, int) or not isinstance(columns, int):
        return []
    if not target.wgmma or a.dtype not in (float16, bfloat16) or b.dtype != a.dtype:
        return []
    if slots.stored.dtype not in (float16, bfloat16, float32) or columns % _ROW_MULTIPLE or depth % _ROW_MULTIPLE:
        return []
    slots = slots.rounded(columns)
    problem = MatmulProblem(
        expected(grouped.rows), columns, depth, 1, a.dtype, slots.stored.dtype,
        right_transposed=not grouped.transposed, epilogue=slots.epilogue,
    )  # fmt: skip
    found = []
    machine = target.machine()
    for config, seconds in grouped_configs(problem, groups, machine):
        tiles, listing = _listing(group, grouped.rows, grouped.ends, groups, config)
        call = _product(a, b, tiles, slots, config._replace(**slots.epilogue.fields), problem, target)
        moved = total_bytes(group.inputs, group.outputs)
        cost = Cost(moved, grouped.flops, seconds + machine.launches.kernel)
        reasons = {"tile": config.described, "epilogue": slots.function.__name__}
        found.append(Candidate("hopper grouped matmul", (Stage((listing,)), Stage((call,))), cost, (tiles,), reasons))
    return found


def grouped_configs(problem: MatmulProblem, groups: int, machine: Machine) -> list[tuple[MatmulConfig, float]]:
    """The configs worth timing, the quickest by the estimate first: two for each number of rows of a tile."""

    def all_of(rows: int, consumers: int) -> Iterator[tuple[MatmulConfig, float]]:
        share = -(-problem.rows // groups)
        padded = replace(problem, rows=groups * -(-share // rows) * rows)
        for columns in range(64, 257, 16):
            config = filled(MatmulConfig(
                BM=rows, BN=columns, CONSUMERS=consumers, INPUT=tl.dtype(problem.input),
                OUTPUT=tl.dtype(problem.output), B_TRANSPOSED=problem.right_transposed,
            ))  # fmt: skip
            fits = not problem.right_transposed or problem.depth % config.BK == 0
            if fits and is_possible(config) and not config.tail:
                yield config, seconds_of(config, padded, machine)

    best = [sorted(all_of(*tile), key=lambda entry: entry[1])[:2] for tile in _ROW_TILES]
    return sorted((entry for entries in best for entry in entries), key=lambda entry: entry[1])[:_GROUPED_CONFIGS]


def _listing(group: Group, rows: Size, ends: Value, groups: int, config: MatmulConfig) -> tuple[Value, KernelCall]:
    """The list of the tiles of rows, and the launch that makes it."""
    most = simplify(lift(rows) // config.BM + (groups + 1))
    tiles = Value(f"{group.name}.tiles", int32, (simplify(lift(most) + 1), 4))
    constants: dict[str, Any] = {"BLOCK_M": config.BM, "GROUPS": next_power_of_2(groups + 1), "TILES": _LISTED}
    grid = (ceil_divide(most, _LISTED), 1, 1)
    tensors = {"ends": ends, "tiles": tiles}
    return tiles, launch(list_tiles, tensors, {"rows": rows, "groups": groups}, constants, grid, None, 32)


def _product(
    a: Value, b: Value, tiles: Value, slots: Slots, config: MatmulConfig, problem: MatmulProblem, target: Target
) -> KernelCall:
    """The launch of a config."""
    rows, groups = a.shape[0], b.shape[0]
    columns, depth = problem.columns, problem.depth
    assert isinstance(groups, int)
    below = (groups * depth, columns) if problem.right_transposed else (groups * columns, depth)
    operands: dict[str, Operand] = {
        "a": TiledOperand(a, (rows, depth), (depth, 1), config.left_block),
        "b": TiledOperand(b, below, (below[1], 1), config.right_block),
        "c": TiledOperand(slots.stored, (rows, columns), (columns, 1), config.out_block),
        "out": slots.stored, "tiles": tiles, "rows": rows, "N": columns, "K": depth, "groups": groups,
    }  # fmt: skip
    types = dict.fromkeys(("rows", "N", "K", "groups"), "i32")
    bind_extra(slots.extra, operands, types)
    most = simplify((lift(rows) // config.BM + (groups + 1)) * -(-columns // config.BN))
    grid = (minimum(most, target.machine().processors), 1, 1)
    return KernelCall(grouped_matmul, operands, types, {"CONFIG": config}, grid)
