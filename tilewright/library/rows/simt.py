"""Row operations and reductions on GPUs: rows in registers of a CTA, or walked in chunks."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from tilewright.errors import UnsupportedOperationError
from tilewright.graph.core import Graph
from tilewright.graph.fusion import Group
from tilewright.launch.jit import JITFunction
from tilewright.library.binding import divides
from tilewright.library.candidate import Candidate, KernelCall, Stage
from tilewright.library.cost import expected
from tilewright.library.generated.generate import next_power_of_2
from tilewright.library.reduce.simt import cumulative_candidate, extreme_candidate
from tilewright.library.rows import simt_slots_kernel as gpu_slots
from tilewright.library.rows.cpu import (
    CUMULATIVE,
    REDUCTIONS,
    Deal,
    log_sum_exp_call,
    reduce_call,
    reduced_space,
    row_candidate,
    row_operation,
)
from tilewright.library.rows.simt_config import MOST_WARPS, row_config, sum_config
from tilewright.library.rows.simt_parts import (
    COLUMN_ELEMENTS,
    CTAS,
    MANY_CTAS,
    MIDDLE_COLUMNS,
    are_long,
    count_parts,
    first_of_parts,
    log_sum_exp_parts,
    long_rows,
    reduction_parts,
    rest_of_parts,
)
from tilewright.symbolic import Size, ceil_divide, lift, product, simplify
from tilewright.targets.base import Target

_LONGEST_IN_REGISTERS = 16384  # longest row that a CTA holds in registers
FEW_ELEMENTS = 2048  # of a block of a reduction over few rows
FEW_CTAS = 512  # that there are then at least
OTHER = 1.02  # how much behind the likely number of parts the other one is ranked


def gpu_reduction(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    """The candidates of a group whose anchor works along rows or axes."""
    anchor = group.anchor
    assert anchor is not None
    if anchor.op in ("softmax", "log_softmax", "layer_norm", "rms_norm"):
        return _with_warps(_row_operation(group, graph, target))
    if anchor.op in REDUCTIONS:
        return [other for candidate in _reductions(group, graph, target) for other in _with_warps(candidate)]
    if anchor.op in ("argmax", "argmin"):
        return [extreme_candidate(group, graph, target)]
    if anchor.op in CUMULATIVE:
        return [cumulative_candidate(group, graph, target)]
    if anchor.op == "reduce_log_sum_exp":
        return [_log_sum_exp(group, graph, target)]
    raise UnsupportedOperationError(f"no kernel for reduction {anchor.op} (from {anchor.source or 'the graph'})")


def _with_warps(candidate: Candidate) -> list[Candidate]:
    """A candidate, and the same with half, twice and four times as many warps, which the estimate cannot tell apart."""
    found = [candidate]
    for factor in (2, 4, 0.5):
        stages = tuple(
            Stage(
                tuple(
                    replace(call, options={"num_warps": int(call.options["num_warps"] * factor)})
                    for call in stage.calls
                )
            )
            for stage in candidate.stages
        )
        counts = [call.options["num_warps"] for stage in stages for call in stage.calls]
        if min(counts) >= 1 and max(counts) <= MOST_WARPS:
            cost = replace(candidate.cost, seconds=candidate.cost.seconds * 1.01)
            reasons = {**candidate.reasons, "warps": ", ".join(map(str, counts))}
            found.append(replace(candidate, stages=stages, cost=cost, reasons=reasons))
    return found


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
    call = operation.call(Deal(kernel, constants, grid, {"num_warps": config.warps}))
    return row_candidate([call], group, target)


def _reductions(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    """A reduction; one to few numbers in two launches, the first of which does parts of what is reduced."""
    if reduction_parts(group, target) == 1:
        return [row_candidate([_reduce(group, graph, target)], group, target)]
    found: list[Candidate] = []
    few, many = (reduction_parts(group, target, ctas) for ctas in (CTAS, MANY_CTAS))
    for parts in dict.fromkeys((many, few) if are_long(group, many) else (few, many)):
        first, partial = first_of_parts(group, graph, parts)
        candidate = row_candidate([first, _reduce(rest_of_parts(group, partial), graph, target)], group, target)
        if found:  # the estimate cannot tell them apart
            seconds = max(candidate.cost.seconds, found[0].cost.seconds * OTHER)
            candidate = replace(candidate, cost=replace(candidate.cost, seconds=seconds))
        found.append(replace(candidate, temporaries=(partial,), reasons={**candidate.reasons, "parts": parts}))
    return found


def _reduce(group: Group, graph: Graph, target: Target) -> KernelCall:
    return reduce_call(group, graph, partial(_along_rows, processors=target.machine().processors), _over_rows)


def _along_rows(outer: Size, reduced: Size, processors: int, kernel: JITFunction = gpu_slots.reduce_rows) -> Deal:
    config = sum_config(expected(outer), expected(reduced), processors)
    mask = not (divides(config.block, reduced) and divides(config.rows, outer))
    constants = {"ROWS": config.rows, "BLOCK": config.block, "MASK": mask}
    return Deal(kernel, constants, (ceil_divide(outer, config.rows), 1, 1), {"num_warps": config.warps})


def _log_sum_exp(group: Group, graph: Graph, target: Target) -> Candidate:
    assert group.anchor is not None
    outer, reduced, inner = reduced_space(group.anchor)
    parts = count_parts(outer, reduced, target)
    if parts > 1 and inner == 1:
        return log_sum_exp_parts(group, graph, target, parts)
    deal = partial(_along_rows, processors=target.machine().processors, kernel=gpu_slots.log_sum_exp)
    return row_candidate([log_sum_exp_call(group, graph, deal)], group, target)


def _columns(outer: Size, reduced: Size, inner: int) -> int:
    """Columns of a block: more where there are few rows to sum, as long as there are CTAs for all processors."""
    columns = MIDDLE_COLUMNS
    if isinstance(reduced, int):
        most = FEW_ELEMENTS // next_power_of_2(reduced)
        while 2 * columns <= most and expected(outer) * inner >= FEW_CTAS * 2 * columns:
            columns *= 2
    return columns


def _over_rows(outer: Size, reduced: Size, inner: Size) -> Deal:
    block = min(next_power_of_2(inner), _columns(outer, reduced, inner)) if isinstance(inner, int) else MIDDLE_COLUMNS
    block_r = COLUMN_ELEMENTS // block
    block_r = min(next_power_of_2(reduced), block_r) if isinstance(reduced, int) else block_r
    constants = {"BLOCK_R": block_r, "BLOCK": block, "MASK_R": not divides(block_r, reduced),
                 "MASK": not divides(block, inner)}  # fmt: skip
    options = {"num_warps": min(MOST_WARPS, max(1, block * block_r // 1024))}
    return Deal(gpu_slots.reduce_columns, constants, (ceil_divide(inner, block), outer, 1), options)
