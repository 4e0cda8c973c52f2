"""Grouped products on GPUs: on Hopper by tensor copies and wgmma, and the portable kernel at what it costs there."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from tilewright.graph.core import Graph
from tilewright.graph.fusion import Group
from tilewright.library.candidate import Candidate
from tilewright.library.cost import expected
from tilewright.library.grouped.hopper import hopper_grouped
from tilewright.library.grouped.portable import portable_grouped, tile_of
from tilewright.library.grouped.problem import grouped_problem
from tilewright.library.matmul.simt_tiles import SimtTile, seconds_of, simt_problem
from tilewright.library.slots import epilogue_slots
from tilewright.targets.base import Target

_SLOWER = 1.4  # than a product in tiles whose rows are known (measured on an H200)


def gpu_grouped(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    """The candidates of a group whose anchor is a grouped product."""
    problem = grouped_problem(group, epilogue_slots(group, graph))
    tile = SimtTile(*tile_of(problem.rows_of_group, problem.a.dtype))
    rows = expected(problem.groups) * ceil(ceil(problem.rows_of_group) / tile.rows) * tile.rows
    sizes = (rows, expected(problem.columns), expected(problem.depth), 1)
    seconds = seconds_of(tile, simt_problem(sizes, problem.a.dtype, target), target.machine())
    portable = portable_grouped(problem, target)
    cost = replace(portable.cost, seconds=_SLOWER * seconds)
    return [*hopper_grouped(problem, target), replace(portable, cost=cost)]
