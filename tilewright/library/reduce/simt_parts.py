"""Reductions on GPUs of which one CTA for each row, or for each column, would leave others idle.

Rows and columns are divided into parts. A first launch puts each part together, a second one the parts of each row.
"""

from __future__ import annotations

from math import ceil

from tilewright.graph.core import Node, Value
from tilewright.graph.fusion import Group
from tilewright.library.binding import launch
from tilewright.library.candidate import KernelCall
from tilewright.library.cost import expected
from tilewright.library.generated.generate import next_power_of_2
from tilewright.library.reduce import simt_parts_kernel as kernels
from tilewright.library.reduce.problem import Reduction, reduced_space
from tilewright.library.reduce.simt_config import LEAST_CTA_THREADS, MOST_CTA_THREADS
from tilewright.symbolic import Size, ceil_divide, lift, simplify
from tilewright.targets.base import Target

PART_COLUMNS = 4096  # columns that a CTA has in registers
PART_THREADS = 256
MOST_ROW_PARTS = 2048  # of a row
CTAS = 4  # of each processor, with parts of rows
MANY_CTAS = 16  # the same where parts are long: none is late by much then, as the processors share memory unevenly
LONG = 16 * PART_COLUMNS  # elements of such a part
MIDDLE_COLUMNS = 64  # of a block of a reduction over rows, at most
COLUMN_ELEMENTS = 8192  # of such a block
_PART_ROWS = 128  # that are worth a CTA
UNDIVIDED = 1 << 14  # of a reduced row: no more than that are not divided


def count_parts(rows: Size, columns: Size, target: Target, block: int = PART_COLUMNS, ctas: int = CTAS) -> int:
    """Into how many parts of at least `block` columns a row is divided, so that each processor has `ctas` of them; 1:
    not."""
    programs, length = expected(rows), expected(columns)
    wanted = ctas * target.machine().processors // max(1, programs)
    return max(1, min(MOST_ROW_PARTS, wanted, length // block))


def share_of(columns: Size, parts: int, block: int = PART_COLUMNS) -> Size:
    """The columns of a part, whole blocks."""
    return simplify(lift(ceil_divide(ceil_divide(columns, block), parts)) * block)


def reduction_parts(group: Group, target: Target, ctas: int = CTAS) -> int:
    """Into how many parts the elements of each sum are divided, with so many of them for each processor."""
    assert group.anchor is not None
    outer, reduced, inner = reduced_space(group.anchor)
    if inner == 1:
        return count_parts(outer, reduced, target, ctas=ctas) if expected(reduced) > UNDIVIDED else 1
    programs, rows = expected(outer) * ceil(expected(inner) / MIDDLE_COLUMNS), expected(reduced)
    # No part has a few rows more than a block: they would take it as long as a block.
    worth = ceil(rows / _PART_ROWS) if rows >= 2 * _PART_ROWS else 1
    return max(1, min(ctas * target.machine().processors // programs, worth, MOST_ROW_PARTS))


def are_long(group: Group, parts: int) -> bool:
    """Whether each of so many parts is long enough to be one of many."""
    assert group.anchor is not None
    _, reduced, inner = reduced_space(group.anchor)
    return expected(reduced) * min(expected(inner), MIDDLE_COLUMNS) >= parts * LONG


def first_of_parts(problem: Reduction, parts: int) -> tuple[KernelCall, Value]:
    """The launch that reduces each part, and its result [outer, parts, inner]."""
    anchor = problem.group.anchor
    assert anchor is not None
    outer, reduced, inner = problem.outer, problem.reduced, problem.inner
    partial = Value(f"{anchor.output.name}.parts", problem.dtype, (outer, parts, inner))
    constants = {"PARTS": parts, **problem.constants}
    del constants["EPILOGUE"]
    out, extra = {"out": partial}, problem.extra
    if inner == 1:
        sizes = {"columns": reduced, "share": share_of(reduced, parts)}
        constants["BLOCK"] = PART_COLUMNS
        grid: tuple[Size, Size, Size] = (simplify(lift(outer) * parts), 1, 1)
        return launch(kernels.reduce_parts, out, sizes, constants, grid, extra, PART_THREADS), partial
    block = min(next_power_of_2(inner), MIDDLE_COLUMNS) if isinstance(inner, int) else MIDDLE_COLUMNS
    block_r = COLUMN_ELEMENTS // block
    share = ceil_divide(reduced, parts)
    if isinstance(share, int):
        block_r = min(block_r, next_power_of_2(share))
    constants |= {"BLOCK": block, "BLOCK_R": block_r}
    sizes = {"reduced": reduced, "inner": inner, "share": share}
    grid = (simplify(lift(ceil_divide(inner, block)) * outer * parts), 1, 1)
    threads = max(LEAST_CTA_THREADS, min(MOST_CTA_THREADS, block * block_r // 16))
    return launch(kernels.reduce_column_parts, out, sizes, constants, grid, extra, threads), partial


def rest_of_parts(group: Group, partial: Value) -> Group:
    """What is left to do with the reduced parts: the same reduction over them, and what came after it."""
    anchor = group.anchor
    assert anchor is not None
    outer, _, inner = partial.shape
    op = "reduce_sum" if anchor.op == "reduce_mean" else anchor.op
    total = Value(f"{anchor.output.name}.total", anchor.output.dtype, (outer, inner))
    second = Node(op, [partial], [total], {"axes": (1,), "keepdims": False}, anchor.source)
    shaped = Node("reshape", [total], [anchor.output], {"shape": anchor.output.shape}, anchor.source)
    rest = [second, shaped, *_needed(group), *group.epilogue]
    read = {value for node in rest for value in node.inputs}
    inputs = [partial, *(value for value in group.inputs if value in read)]
    stored = {value for node in group.prologue for value in node.outputs}
    outputs = [value for value in group.outputs if value not in stored]
    return Group(group.kind, rest, inputs, outputs, second, group.name)


def _needed(group: Group) -> list[Node]:
    """The nodes of the prologue that the epilogue reads, too."""
    wanted = {value for node in group.epilogue for value in node.inputs} - set(group.inputs)
    found: list[Node] = []
    for node in reversed(group.prologue):
        if wanted.intersection(node.outputs):
            found.insert(0, node)
            wanted.update(node.inputs)
    return found
