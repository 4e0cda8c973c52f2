"""Row programs on CPUs: a row, or a few columns beside each other, that the caches next to a core hold."""

from __future__ import annotations

from tilewright.graph.core import Graph
from tilewright.graph.fusion import Group
from tilewright.library.candidate import Candidate
from tilewright.library.rows.program import RowProgram, row_program
from tilewright.library.rows.program_candidates import one_kernel, separate, told
from tilewright.library.rows.program_text import Form, Walk, walk_of
from tilewright.library.split import Maker
from tilewright.targets.base import Target

WHOLE = 32768  # elements of all tensors of a block
LEAST = 32  # elements of a row that are worth a program instance
LANES = 16  # columns of a block across rows: a line of the cache in float32


def cpu_row_program(group: Group, graph: Graph, target: Target, candidates: Maker) -> list[Candidate]:
    """The candidates of a group of several row operations over one space: one kernel, and a kernel for each.

    Rows of unknown length, and those that caches do not hold, stay with the kernels for each.
    """
    apart = separate(group, graph, target, candidates)
    try:
        program = row_program(group, graph, joined=False)
    except NotImplementedError as reason:
        return [told(apart, reason)]
    walk = walk_of(program, LANES)
    form = _form(program, walk)
    return [apart] if form is None else [apart, one_kernel(group, program, walk, form, target)]


def _form(program: RowProgram, walk: Walk) -> Form | None:
    columns, tensors = walk.column_count, max(1, len(program.full_loads()))
    if not isinstance(columns, int):
        return None
    if walk.along:
        return Form(1, columns, 0, True) if LEAST <= columns <= WHOLE // tensors else None
    if not isinstance(walk.lane_count, int) or not walk.planes and walk.lane_count < LANES:
        return None
    return Form(LANES, columns, 0, True) if LANES * columns <= WHOLE // tensors else None
