"""Row operations on CPUs: which library kernel, how rows are divided, whole rows or chunks."""

from __future__ import annotations

from typing import Any

from tilewright.graph.core import Graph
from tilewright.graph.fusion import Group
from tilewright.library.candidate import Candidate, KernelCall
from tilewright.library.cpu_work import COLUMN_CHUNK, rows_per_program
from tilewright.library.reduce.problem import Deal, row_candidate
from tilewright.library.rows.kernel import log_sum_exp, normalize, normalize_chunked, softmax, softmax_chunked
from tilewright.library.rows.problem import log_sum_exp_of, row_operation
from tilewright.symbolic import ceil_divide
from tilewright.targets.base import Target

_LONGEST_BLOCK = 16384  # longest row that is one block


def cpu_rows(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    """The candidate of a group whose anchor works along rows."""
    assert group.anchor is not None
    whole = group.anchor.op != "reduce_log_sum_exp"
    call = _row_operation(group, graph) if whole else _log_sum_exp(group, graph)
    return [row_candidate([call], group, target)]


def _row_operation(group: Group, graph: Graph) -> KernelCall:
    operation = row_operation(group, graph)
    columns, count = operation.columns, rows_per_program(operation.rows, operation.columns)
    constants: dict[str, Any] = {"ROWS": count}
    if isinstance(columns, int) and columns <= _LONGEST_BLOCK:
        constants["COLUMNS"] = columns
        kernel = normalize if operation.is_norm else softmax
    else:
        constants["BLOCK"] = COLUMN_CHUNK
        kernel = normalize_chunked if operation.is_norm else softmax_chunked
    return operation.call(Deal(kernel, constants, (ceil_divide(operation.rows, count), 1, 1)))


def _log_sum_exp(group: Group, graph: Graph) -> KernelCall:
    problem = log_sum_exp_of(group, graph)
    count = rows_per_program(problem.outer, problem.reduced)
    deal = Deal(log_sum_exp, {"ROWS": count, "BLOCK": COLUMN_CHUNK}, (ceil_divide(problem.outer, count), 1, 1))
    return problem.call(deal, problem.slots)
