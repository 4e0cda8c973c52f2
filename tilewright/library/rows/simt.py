"""Row operations and reductions on GPUs: rows in registers of a CTA, or walked in chunks."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import ceil
from typing import Any

from tilewright.errors import UnsupportedOperationError
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.fusion import Group
from tilewright.library.binding import divides
from tilewright.library.candidate import Candidate, KernelCall, Stage
from tilewright.library.cost import expected
from tilewright.library.generated.expressions import compute_type
from tilewright.library.generated.generate import next_power_of_2
from tilewright.library.rows import simt_slots_kernel as gpu_slots
from tilewright.library.rows.cpu import (
    CUMULATIVE,
    REDUCTIONS,
    Deal,
    arg_extreme_call,
    cumulative_call,
    log_sum_exp_call,
    reduce_call,
    reduced_space,
    row_candidate,
    row_operation,
)
from tilewright.library.rows.kernel import log_sum_exp, normalize_chunked, softmax_chunked
from tilewright.library.rows.simt_config import RowForm, row_form, sum_form
from tilewright.symbolic import Size, ceil_divide, lift, product, simplify
from tilewright.targets.base import Target

WHOLE_ROW = 16384  # longest row that a CTA holds in registers
CHUNK = 2048  # columns of longer rows
COLUMNS = 64  # of a reduction over rows, at most, unless there are few
FEW_ELEMENTS = 2048  # of a block of a reduction over few rows
FEW_CTAS = 512  # that there are then at least
COLUMN_ELEMENTS = 8192  # of a block of such a reduction: 32 a thread
MOST_WARPS = 16  # of a CTA
LEAST_ROWS = 128  # that are worth a CTA


def gpu_reduction(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    """The candidates of a group whose anchor works along rows or axes."""
    anchor = group.anchor
    assert anchor is not None
    if anchor.op in ("softmax", "log_softmax", "layer_norm", "rms_norm"):
        return _with_warps(row_candidate([_row_operation(group, graph, target)], group, target))
    if anchor.op in REDUCTIONS:
        return [other for candidate in _reductions(group, graph, target) for other in _with_warps(candidate)]
    if anchor.op in ("argmax", "argmin"):
        call = arg_extreme_call(group)
    elif anchor.op in CUMULATIVE:
        call = cumulative_call(group, parallel=True)
    elif anchor.op == "reduce_log_sum_exp":
        call = log_sum_exp_call(group, graph, _log_sum_exp)
    else:
        raise UnsupportedOperationError(f"no kernel for reduction {anchor.op} (from {anchor.source or 'the graph'})")
    return [row_candidate([call], group, target)]


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


def _warps(elements: int) -> dict[str, Any]:
    """Up to sixteen elements a thread, and from one warp to sixteen."""
    return {"num_warps": min(MOST_WARPS, max(1, elements // 512))}


def _row_operation(group: Group, graph: Graph, target: Target) -> KernelCall:
    operation = row_operation(group, graph)
    rows, columns = operation.rows, operation.columns
    if isinstance(columns, int) and columns <= WHOLE_ROW:
        whole = expected(simplify(lift(rows) * columns))
        inputs = [expected(product(value.shape)) == whole for value in group.inputs]
        form = row_form(expected(rows), columns, target.machine().processors, sum(inputs), not all(inputs))
        mask = form.block != columns or not divides(form.rows, rows)
        constants = {"COLUMNS": columns, "BLOCK": form.block, "MASK": mask}
        kernel = gpu_slots.normalize if operation.is_norm else gpu_slots.softmax
    else:
        form = RowForm(1, CHUNK, CHUNK // 512, long=True)
        constants = {"BLOCK": CHUNK}
        kernel = normalize_chunked if operation.is_norm else softmax_chunked
    grid: tuple[Size, Size, Size] = (ceil_divide(rows, form.rows), 1, 1)
    return operation.call(Deal(kernel, {"ROWS": form.rows, **constants}, grid, {"num_warps": form.warps}))


def _reductions(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    """A reduction; one of many rows to few numbers in two launches, the first of which does parts of the rows."""
    parts = _parts(group, target)
    if parts == 1:
        return [row_candidate([_reduce(group, graph, target)], group, target)]
    anchor = group.anchor
    assert anchor is not None and anchor.inputs[0] is not None
    outer, reduced, inner = reduced_space(anchor)
    length = simplify(lift(reduced) // parts)
    attributes = {"axes": (2,), "keepdims": False}
    view = Value(f"{anchor.output.name}.rows", anchor.inputs[0].dtype, (outer, parts, length, inner))
    partial = Value(f"{anchor.output.name}.parts", compute_type(view.dtype), (outer, parts, inner))
    total = Value(f"{anchor.output.name}.total", anchor.output.dtype, (outer, inner))
    split = Node("reshape", [anchor.inputs[0]], [view], {"shape": view.shape}, anchor.source)
    first = Node(anchor.op, [view], [partial], attributes, anchor.source)
    second = Node(anchor.op, [partial], [total], {**attributes, "axes": (1,)}, anchor.source)
    shaped = Node("reshape", [total], [anchor.output], {"shape": anchor.output.shape}, anchor.source)
    before = Group(group.kind, [*group.prologue, split, first], group.inputs, [partial], first, group.name)
    rest = [second, shaped, *group.epilogue]
    read = {value for node in rest for value in node.inputs}
    inputs = [partial, *(value for value in group.inputs if value in read)]
    after = Group(group.kind, rest, inputs, group.outputs, second, group.name)
    candidate = row_candidate([_reduce(before, graph, target), _reduce(after, graph, target)], group, target)
    return [replace(candidate, temporaries=(partial,), reasons={**candidate.reasons, "parts": parts})]


def _parts(group: Group, target: Target) -> int:
    """Into how many parts the rows of a reduction are divided, so that all processors have some."""
    anchor = group.anchor
    assert anchor is not None
    outer, reduced, inner = reduced_space(anchor)
    stored = [value for node in group.prologue for value in node.outputs if value in group.outputs]
    if inner == 1 or stored or not isinstance(reduced, int):
        return 1
    programs = expected(outer) * ceil(expected(inner) / COLUMNS)
    most = min(4 * target.machine().processors // programs, reduced // LEAST_ROWS)
    return max((count for count in range(1, most + 1) if reduced % count == 0), default=1)


def _reduce(group: Group, graph: Graph, target: Target) -> KernelCall:
    return reduce_call(group, graph, partial(_along_rows, processors=target.machine().processors), _over_rows)


def _along_rows(outer: Size, reduced: Size, processors: int) -> Deal:
    form = sum_form(expected(outer), expected(reduced), processors)
    mask = not (divides(form.block, reduced) and divides(form.rows, outer))
    constants = {"ROWS": form.rows, "BLOCK": form.block, "MASK": mask}
    return Deal(gpu_slots.reduce_rows, constants, (ceil_divide(outer, form.rows), 1, 1), {"num_warps": form.warps})


def _log_sum_exp(outer: Size, reduced: Size) -> Deal:
    return Deal(log_sum_exp, {"ROWS": 1, "BLOCK": CHUNK}, (outer, 1, 1), _warps(2 * CHUNK))


def _columns(outer: Size, reduced: Size, inner: int) -> int:
    """Columns of a block: more where there are few rows to sum, as long as there are CTAs for all processors."""
    columns = COLUMNS
    if isinstance(reduced, int):
        most = FEW_ELEMENTS // next_power_of_2(reduced)
        while 2 * columns <= most and expected(outer) * inner >= FEW_CTAS * 2 * columns:
            columns *= 2
    return columns


def _over_rows(outer: Size, reduced: Size, inner: Size) -> Deal:
    block = min(next_power_of_2(inner), _columns(outer, reduced, inner)) if isinstance(inner, int) else COLUMNS
    block_r = COLUMN_ELEMENTS // block
    block_r = min(next_power_of_2(reduced), block_r) if isinstance(reduced, int) else block_r
    constants = {"BLOCK_R": block_r, "BLOCK": block, "MASK_R": not divides(block_r, reduced),
                 "MASK": not divides(block, inner)}  # fmt: skip
    return Deal(
        gpu_slots.reduce_columns, constants, (ceil_divide(inner, block), outer, 1), _warps(block * block_r // 2)
    )
