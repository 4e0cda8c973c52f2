"""Row operations on GPUs: rows in registers of a CTA, or walked in chunks."""

from __future__ import annotations

from tilewright.graph.core import Graph
from tilewright.graph.fusion import Group
from tilewright.library.binding import divides
from tilewright.library.candidate import Candidate
from tilewright.library.cost import expected
from tilewright.library.reduce.problem import Deal, row_candidate
from tilewright.library.reduce.simt import SHORT_ROWS, along_rows, is_short, with_threads
from tilewright.library.reduce.simt_parts import count_parts
from tilewright.library.rows import simt_slots_kernel as gpu_slots
from tilewright.library.rows.problem import log_sum_exp_of, row_operation
from tilewright.library.rows.simt_config import row_config
from tilewright.library.rows.simt_parts import log_sum_exp_parts, long_rows
from tilewright.symbolic import Size, ceil_divide, lift, product, simplify
from tilewright.targets.base import Target

_LONGEST_IN_REGISTERS = 16384  # longest row that a CTA holds in registers


def gpu_rows(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    """The candidates of a group whose anchor works along rows."""
    assert group.anchor is not None
    if group.anchor.op == "reduce_log_sum_exp":
        return [_log_sum_exp(group, graph, target)]
    return with_threads(_row_operation(group, graph, target))


def _row_operation(group: Group, graph: Graph, target: Target) -> Candidate:
    operation = row_operation(group, graph)
    rows, columns = operation.rows, operation.columns
    if not isinstance(columns, int) or columns > _LONGEST_IN_REGISTERS:
        return long_rows(operation, target)
    whole = expected(simplify(lift(rows) * columns))
    inputs = [expected(product(value.shape)) == whole for value in group.inputs]
    config = row_config(expected(rows), columns, target.machine().processors, sum(inputs), not all(inputs))
    mask = config.block != columns or not divides(config.rows, rows)
    constants = {"ROWS": config.rows, "COLUMNS": columns, "BLOCK": config.block, "MASK": mask}
    kernel = gpu_slots.normalize if operation.is_norm else gpu_slots.softmax
    grid: tuple[Size, Size, Size] = (ceil_divide(rows, config.rows), 1, 1)
    return row_candidate([operation.call(Deal(kernel, constants, grid, config.threads))], group, target)


def _log_sum_exp(group: Group, graph: Graph, target: Target) -> Candidate:
    problem = log_sum_exp_of(group, graph)
    parts = count_parts(problem.outer, problem.reduced, target)
    if parts > 1:
        return log_sum_exp_parts(problem, target, parts)
    if is_short(problem.outer, problem.reduced, target.machine().processors):
        constants = {"ROWS": SHORT_ROWS, "BLOCK": 1, "MASK": not divides(SHORT_ROWS, problem.outer)}
        deal = Deal(gpu_slots.log_sum_exp, constants, (ceil_divide(problem.outer, SHORT_ROWS), 1, 1), SHORT_ROWS // 4)
    else:
        deal = along_rows(problem, target, gpu_slots.log_sum_exp)
    return row_candidate([problem.call(deal, problem.slots)], group, target)
