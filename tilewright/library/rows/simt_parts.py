"""Row operations on GPUs of which one CTA for each row would leave others idle, or whose rows registers do not hold.

Rows are divided into parts. A first launch puts each part together, a second one the parts of each row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tilewright.graph.core import Node, Value
from tilewright.graph.fusion import Group
from tilewright.launch.jit import JITFunction
from tilewright.library.binding import launch
from tilewright.library.candidate import Candidate, KernelCall
from tilewright.library.generated.expressions import compute_type
from tilewright.library.generated.generate import next_power_of_2
from tilewright.library.reduce.problem import Reduction, row_candidate
from tilewright.library.reduce.simt_parts import PART_COLUMNS, PART_THREADS, count_parts, share_of
from tilewright.library.rows import simt_parts_kernel as kernels
from tilewright.library.rows.problem import RowOperation
from tilewright.symbolic import Size, lift, simplify
from tilewright.targets.base import Target


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
        call = launch(kernel, out, sizes, constants, (rows, 1, 1), operation.extra, PART_THREADS)
        return row_candidate([call], group, target)
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
        launch(first, tensors, sizes, _only(first, constants), grid, operation.extra, PART_THREADS),
        launch(second, {**out, **tensors}, sizes, constants, grid, operation.extra, PART_THREADS),
    ]
    return _candidate(calls, group, target, partial, parts)


def _only(kernel: JITFunction, constants: Mapping[str, Any]) -> dict[str, Any]:
    """The constants that a kernel has."""
    return {name: value for name, value in constants.items() if any(name == entry.name for entry in kernel.parameters)}


def _candidate(calls: list[KernelCall], group: Group, target: Target, partial: list[Value], parts: int) -> Candidate:
    candidate = row_candidate(calls, group, target)
    return replace(candidate, temporaries=tuple(partial), reasons={**candidate.reasons, "parts": parts})


def log_sum_exp_parts(problem: Reduction, target: Target, parts: int) -> Candidate:
    """`log(sum(exp))` of few long rows."""
    group, extra = problem.group, problem.extra
    assert group.anchor is not None
    partial = _temporaries(group.anchor, (problem.outer, parts), "largest", "total")
    tensors = {"largest": partial[0], "total": partial[1]}
    own = {"BLOCK": PART_COLUMNS, "PARTS": parts, **_only(kernels.powers_of_parts, problem.slots)}
    sizes = {"columns": problem.reduced, "share": share_of(problem.reduced, parts)}
    rest = {"PARTS": parts, "LANES": next_power_of_2(parts), "EPILOGUE": problem.epilogue}
    grid: tuple[Size, Size, Size] = (simplify(lift(problem.outer) * parts), 1, 1)
    last: tuple[Size, Size, Size] = (problem.outer, 1, 1)
    calls = [
        launch(kernels.powers_of_parts, tensors, sizes, own, grid, extra, PART_THREADS),
        launch(kernels.log_sum_of_parts, {"out": group.outputs[-1], **tensors}, {}, rest, last, extra, 1),
    ]
    return _candidate(calls, group, target, partial, parts)
