"""Row operations and reductions on GPUs of which one CTA for each row, or for each column, would leave others idle.

Rows and columns are divided into parts. A first launch puts each part together, a second one the parts of each row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import ceil
from typing import Any

from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.fusion import Group
from tilewright.graph.neutral import neutral_element
from tilewright.launch.jit import JITFunction
from tilewright.library.binding import bind_extra, bind_sizes
from tilewright.library.candidate import Candidate, KernelCall, Operand
from tilewright.library.cost import expected
from tilewright.library.generated.expressions import compute_type, language_type
from tilewright.library.generated.generate import next_power_of_2
from tilewright.library.generated.source import ExtraReferences
from tilewright.library.rows import simt_parts_kernel as kernels
from tilewright.library.rows.cpu import (
    REDUCTIONS,
    RowOperation,
    reduce_slots,
    reduced_space,
    row_candidate,
)
from tilewright.symbolic import Size, ceil_divide, lift, simplify
from tilewright.targets.base import Target

PART_COLUMNS = 4096  # columns that a CTA has in registers
PART_WARPS = 8
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


def launch(
    kernel: JITFunction,
    tensors: Mapping[str, Value],
    sizes: Mapping[str, Size],
    constants: Mapping[str, Any],
    grid: tuple[Size, Size, Size],
    extra: ExtraReferences | None = None,
    warps: int = PART_WARPS,
) -> KernelCall:
    """A launch on tensors and sizes by the names of the kernel's parameters."""
    operands: dict[str, Operand] = dict(tensors)
    types: dict[str, str] = {}
    known = dict(constants)
    bind_sizes(dict(sizes), operands, types, known)
    if extra is not None:
        bind_extra(extra, operands, types)
    return KernelCall(kernel, operands, types, known, grid, options={"num_warps": warps})


def _temporaries(anchor: Node, shape: tuple[Size, ...], *names: str) -> list[Value]:
    assert anchor.inputs[0] is not None
    return [Value(f"{anchor.output.name}.{name}", compute_type(anchor.inputs[0].dtype), shape) for name in names]


def long_rows(operation: RowOperation, target: Target) -> Candidate:
    """Softmax or a normalisation of rows that registers do not hold."""
    group, rows, columns = operation.group, operation.rows, operation.columns
    parts = count_parts(rows, columns, target, 2 * PART_COLUMNS)
    constants = {**operation.constants, "BLOCK": PART_COLUMNS}
    out = {"out": group.outputs[-1]}
    if parts == 1:
        kernel = kernels.normalize_long if operation.is_norm else kernels.softmax_long
        sizes = {"columns": columns}
        return row_candidate([launch(kernel, out, sizes, constants, (rows, 1, 1), operation.extra)], group, target)
    assert group.anchor is not None
    names = ("means", "squares") if operation.is_norm else ("largest", "total")
    partial = _temporaries(group.anchor, (rows, parts), *names)
    first, second = kernels.powers_of_parts, kernels.softmax_of_parts
    if operation.is_norm:
        first, second = kernels.moments_of_parts, kernels.normalize_of_parts
    tensors = dict(zip(names, partial, strict=True))
    sizes = {"columns": columns, "share": share_of(columns, parts)}
    grid: tuple[Size, Size, Size] = (simplify(lift(rows) * parts), 1, 1)
    constants |= {"PARTS": parts, "LANES": next_power_of_2(parts)}
    calls = [
        launch(first, tensors, sizes, _only(first, constants), grid, operation.extra),
        launch(second, {**out, **tensors}, sizes, constants, grid, operation.extra),
    ]
    return _candidate(calls, group, target, partial, parts)


def _only(kernel: JITFunction, constants: Mapping[str, Any]) -> dict[str, Any]:
    """The constants that a kernel has."""
    return {name: value for name, value in constants.items() if any(name == entry.name for entry in kernel.parameters)}


def _candidate(calls: list[KernelCall], group: Group, target: Target, partial: list[Value], parts: int) -> Candidate:
    candidate = row_candidate(calls, group, target)
    return replace(candidate, temporaries=tuple(partial), reasons={**candidate.reasons, "parts": parts})


def log_sum_exp_parts(group: Group, graph: Graph, target: Target, parts: int) -> Candidate:
    """`log(sum(exp))` of few long rows."""
    anchor = group.anchor
    assert anchor is not None and anchor.inputs[0] is not None
    outer, reduced, _ = reduced_space(anchor)
    prologue, epilogue, extra = reduce_slots(group, graph, (outer, reduced), (outer, 1))
    partial = _temporaries(anchor, (outer, parts), "largest", "total")
    tensors = {"largest": partial[0], "total": partial[1]}
    dtype = language_type(compute_type(anchor.inputs[0].dtype))
    own = {"BLOCK": PART_COLUMNS, "PARTS": parts, "TYPE": dtype, "PROLOGUE": prologue}
    sizes = {"columns": reduced, "share": share_of(reduced, parts)}
    rest = {"PARTS": parts, "LANES": next_power_of_2(parts), "EPILOGUE": epilogue}
    calls = [
        launch(kernels.powers_of_parts, tensors, sizes, own, (simplify(lift(outer) * parts), 1, 1), extra),
        launch(kernels.log_sum_of_parts, {"out": group.outputs[-1], **tensors}, {}, rest, (outer, 1, 1), extra, 1),
    ]
    return _candidate(calls, group, target, partial, parts)


def reduction_parts(group: Group, target: Target, ctas: int = CTAS) -> int:
    """Into how many parts the elements of each sum are divided, with so many of them for each processor."""
    assert group.anchor is not None
    outer, reduced, inner = reduced_space(group.anchor)
    if inner == 1:
        return count_parts(outer, reduced, target, ctas=ctas) if expected(reduced) > UNDIVIDED else 1
    programs = expected(outer) * ceil(expected(inner) / MIDDLE_COLUMNS)
    return max(1, min(ctas * target.machine().processors // programs, expected(reduced) // _PART_ROWS, MOST_ROW_PARTS))


def are_long(group: Group, parts: int) -> bool:
    """Whether each of so many parts is long enough to be one of many."""
    assert group.anchor is not None
    _, reduced, inner = reduced_space(group.anchor)
    return expected(reduced) * min(expected(inner), MIDDLE_COLUMNS) >= parts * LONG


def first_of_parts(group: Group, graph: Graph, parts: int) -> tuple[KernelCall, Value]:
    """The launch that reduces each part, and its result [outer, parts, inner]."""
    anchor = group.anchor
    assert anchor is not None and anchor.inputs[0] is not None
    outer, reduced, inner = reduced_space(anchor)
    kind, dtype = REDUCTIONS[anchor.op], compute_type(anchor.inputs[0].dtype)
    source: tuple[Size, Size] = (outer, reduced) if inner == 1 else (simplify(lift(outer) * reduced), inner)
    prologue, _, extra = reduce_slots(group, graph, source, (outer, inner))
    partial = Value(f"{anchor.output.name}.parts", dtype, (outer, parts, inner))
    constants = {"PARTS": parts, "KIND": kind, "INITIAL": neutral_element(kind, dtype), "TYPE": language_type(dtype),
                 "PROLOGUE": prologue}  # fmt: skip
    if inner == 1:
        sizes = {"columns": reduced, "share": share_of(reduced, parts)}
        constants["BLOCK"] = PART_COLUMNS
        grid: tuple[Size, Size, Size] = (simplify(lift(outer) * parts), 1, 1)
        return launch(kernels.reduce_parts, {"out": partial}, sizes, constants, grid, extra), partial
    block = min(next_power_of_2(inner), MIDDLE_COLUMNS) if isinstance(inner, int) else MIDDLE_COLUMNS
    block_r = COLUMN_ELEMENTS // block
    share = ceil_divide(reduced, parts)
    if isinstance(share, int):
        block_r = min(block_r, next_power_of_2(share))
    constants |= {"BLOCK": block, "BLOCK_R": block_r}
    sizes = {"reduced": reduced, "inner": inner, "share": share}
    grid = (simplify(lift(ceil_divide(inner, block)) * outer * parts), 1, 1)
    warps = min(16, max(1, block * block_r // 512))
    return launch(kernels.reduce_column_parts, {"out": partial}, sizes, constants, grid, extra, warps), partial


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
