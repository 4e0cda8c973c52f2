"""Row programs on CPUs: rows that the caches next to a core hold."""

from __future__ import annotations

from tilewright.graph.core import Graph
from tilewright.graph.fusion import Group
from tilewright.library.candidate import Candidate
from tilewright.library.makers import Maker
from tilewright.library.rows.program import row_program
from tilewright.library.rows.program_candidates import one_kernel, separate, with_failure
from tilewright.library.rows.program_text import ProgramConfig, walk_of
from tilewright.targets.base import Target

MOST_BLOCK_ELEMENTS = 32768  # elements of all tensors of a block
LEAST_ROW_ELEMENTS = 32  # elements of a row that are worth a program instance


def cpu_row_program(group: Group, graph: Graph, target: Target, candidates: Maker) -> list[Candidate]:
    """The candidates of a group of several row operations over one space: one kernel, and a kernel for each.

    Rows of unknown length, those that caches do not hold, and those that lie across memory stay with the kernels for
    each: of the last ones, blocks of 16 columns took 1.14 times as long (64 rows, 16 KiB apart).
    """
    apart = separate(group, graph, target, candidates)
    try:
        program = row_program(group, graph, joined=False)
    except NotImplementedError as reason:
        return [with_failure(apart, reason)]
    walk, tensors = walk_of(program, 0), max(1, len(program.full_loads()))
    columns = walk.column_count if walk.along and isinstance(walk.column_count, int) else 0
    if not LEAST_ROW_ELEMENTS <= columns <= MOST_BLOCK_ELEMENTS // tensors:
        return [apart]
    return [apart, one_kernel(group, program, walk, ProgramConfig(1, columns, 0, True), target)]
