"""Grouped products on GPUs: on Hopper by tensor copies and wgmma, and the plain kernel at what it costs there."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from tilewright.graph.core import Graph
from tilewright.graph.fusion import Group
from tilewright.library.candidate import Candidate
from tilewright.library.cost import expected
from tilewright.library.grouped.cpu import plain_grouped, tile_of
from tilewright.library.grouped.hopper import hopper_grouped
from tilewright.library.matmul.simt_tiles import SimtTile, seconds_of, simt_problem
from tilewright.library.slots import epilogue_slots
from tilewright.targets.base import Target

_SLOWER = 1.4  # than a product in tiles whose rows are known (measured on an H200)


def gpu_grouped(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    """The candidates of a group whose anchor is a grouped product."""
    anchor = group.anchor
    assert anchor is not None
    a, b = anchor.inputs[:2]
    assert a is not None and b is not None
    slots = epilogue_slots(group, graph)
    tile = SimtTile(*tile_of(expected(a.shape[0]), expected(b.shape[0]), a.dtype))
    groups = expected(b.shape[0])
    share = ceil(expected(a.shape[0]) / max(1, groups))
    rows = groups * ceil(share / tile.rows) * tile.rows
    product = simt_problem((rows, expected(anchor.output.shape[1]), expected(a.shape[1]), 1), a.dtype, target)
    plain = plain_grouped(group, slots, target)
    cost = replace(plain.cost, seconds=_SLOWER * seconds_of(tile, product, target.machine()))
    return [*hopper_grouped(group, slots, target), replace(plain, cost=cost)]
