"""Row operations and reductions on GPUs: rows in registers of a CTA, or walked in chunks."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Any

from tilewright.errors import UnsupportedOperationError
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.fusion import Group
from tilewright.kernels import gpu_slots
from tilewright.kernels.rows import normalize_chunked, softmax_chunked
from tilewright.symbolic import Size, ceil_divide, lift, simplify
from tilewright.tactics.binding import bind_extra, bind_sizes, divides
from tilewright.tactics.core import Candidate, KernelCall, Operand, Stage
from tilewright.tactics.expressions import compute_type, language_type
from tilewright.tactics.generate import next_power_of_2
from tilewright.tactics.reduction import (
    REDUCTIONS,
    arg_extreme_call,
    cumulative_sum_call,
    log_sum_exp_call,
    neutral_element,
    reduce_slots,
    reduced_space,
    row_candidate,
    row_operation,
)
from tilewright.targets.base import Target
from tilewright.tune.cost import expected
from tilewright.tune.gpu import gpu_of

WHOLE_ROW = 16384  # longest row that a CTA holds in registers
CHUNK = 2048  # columns of longer rows
CTA_ELEMENTS = 1024  # short rows are put together until there are so many elements
COLUMNS = 64  # of a reduction over rows, at most
COLUMN_ELEMENTS = 8192  # of a block of such a reduction: 32 a thread
MOST_WARPS = 16  # of a CTA
LEAST_ROWS = 128  # that are worth a CTA


def gpu_reduction(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    """The candidates of a group whose anchor works along rows or axes."""
    anchor = group.anchor
    assert anchor is not None
    if anchor.op in ("softmax", "log_softmax", "layer_norm", "rms_norm"):
        return _with_warps(row_candidate([_row_operation(group, graph)], group, target))
    if anchor.op in REDUCTIONS:
        return [other for candidate in _reductions(group, graph, target) for other in _with_warps(candidate)]
    if anchor.op in ("argmax", "argmin"):
        call = arg_extreme_call(group)
    elif anchor.op == "cumsum":
        call = cumulative_sum_call(group)
    elif anchor.op == "reduce_log_sum_exp":
        call = replace(log_sum_exp_call(group, graph, lambda rows, columns: 1, CHUNK), options=_warps(2 * CHUNK))
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


def _row_operation(group: Group, graph: Graph) -> KernelCall:
    operation = row_operation(group, graph)
    rows, columns = operation.rows, operation.columns
    constants = dict(operation.constants)
    operands: dict[str, Operand] = {"out": operation.group.outputs[-1]}
    types: dict[str, str] = {}
    sizes: dict[str, Size] = {"rows": rows}
    if isinstance(columns, int) and columns <= WHOLE_ROW:
        block = next_power_of_2(columns)
        count = max(1, CTA_ELEMENTS // block)
        constants |= {"COLUMNS": columns, "BLOCK": block, "MASK": block != columns or not divides(count, rows)}
        kernel = gpu_slots.normalize if operation.is_norm else gpu_slots.softmax
    else:
        block, count = CHUNK, 1
        constants["BLOCK"] = block
        sizes["columns"] = columns
        kernel = normalize_chunked if operation.is_norm else softmax_chunked
    constants["ROWS"] = count
    bind_sizes(sizes, operands, types, constants)
    bind_extra(operation.extra, operands, types)
    grid: tuple[Size, Size, Size] = (ceil_divide(rows, count), 1, 1)
    return KernelCall(kernel, operands, types, constants, grid, options=_warps(block * count))


def _reductions(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    """A reduction; one of many rows to few numbers in two launches, the first of which does parts of the rows."""
    parts = _parts(group, target)
    if parts == 1:
        return [row_candidate([_reduce(group, graph)], group, target)]
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
    candidate = row_candidate([_reduce(before, graph), _reduce(after, graph)], group, target)
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
    most = min(4 * gpu_of(target).processors // programs, reduced // LEAST_ROWS)
    return max((count for count in range(1, most + 1) if reduced % count == 0), default=1)


def _reduce(group: Group, graph: Graph) -> KernelCall:
    """A reduction over neighbouring axes: along rows, or over rows column by column."""
    anchor = group.anchor
    assert anchor is not None and anchor.inputs[0] is not None
    outer, reduced, inner = reduced_space(anchor)
    kind, dtype = REDUCTIONS[anchor.op], compute_type(anchor.inputs[0].dtype)
    constants: dict[str, Any] = {"KIND": kind, "INITIAL": neutral_element(kind, dtype), "TYPE": language_type(dtype)}
    operands: dict[str, Operand] = {"out": group.outputs[-1]}
    types: dict[str, str] = {}
    grid: tuple[Size, Size, Size]
    if inner == 1:
        prologue, epilogue, extra = reduce_slots(group, graph, (outer, reduced), (outer, 1))
        block = min(next_power_of_2(reduced), CHUNK) if isinstance(reduced, int) else CHUNK
        count = max(1, CTA_ELEMENTS // block)
        constants |= {"ROWS": count, "BLOCK": block, "MASK": not (divides(block, reduced) and divides(count, outer))}
        bind_sizes({"rows": outer, "columns": reduced}, operands, types, constants)
        kernel, grid, elements = gpu_slots.reduce_rows, (ceil_divide(outer, count), 1, 1), block * count
    else:
        together = simplify(lift(outer) * reduced)
        prologue, epilogue, extra = reduce_slots(group, graph, (together, inner), (outer, inner))
        block = min(next_power_of_2(inner), COLUMNS) if isinstance(inner, int) else COLUMNS
        block_r = COLUMN_ELEMENTS // block
        block_r = min(next_power_of_2(reduced), block_r) if isinstance(reduced, int) else block_r
        constants |= {"BLOCK_R": block_r, "BLOCK": block, "MASK_R": not divides(block_r, reduced),
                      "MASK": not divides(block, inner)}  # fmt: skip
        bind_sizes({"reduced": reduced, "inner": inner}, operands, types, constants)
        kernel, grid = gpu_slots.reduce_columns, (ceil_divide(inner, block), outer, 1)
        elements = block * block_r // 2
    constants |= {"PROLOGUE": prologue, "EPILOGUE": epilogue}
    bind_extra(extra, operands, types)
    return KernelCall(kernel, operands, types, constants, grid, options=_warps(elements))
