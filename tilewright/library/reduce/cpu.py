"""Reductions on CPUs: which library kernel, how rows are divided."""

from __future__ import annotations

from typing import Any

from tilewright.dtypes import DType, float32, float64
from tilewright.errors import UnsupportedOperationError
from tilewright.graph.core import Graph
from tilewright.graph.fusion import Group
from tilewright.graph.neutral import neutral_element
from tilewright.library.binding import divides, launch
from tilewright.library.candidate import Candidate, KernelCall
from tilewright.library.cpu_work import COLUMN_CHUNK, rows_per_program
from tilewright.library.generated.expressions import compute_type, language_type
from tilewright.library.reduce.kernel import (
    arg_extreme,
    cumulative_columns,
    reduce_columns,
    reduce_rows,
    running_log_columns,
    running_log_rows,
)
from tilewright.library.reduce.problem import (
    CUMULATIVE,
    REDUCTIONS,
    Deal,
    reduction_of,
    row_candidate,
)
from tilewright.symbolic import Size, ceil_divide, lift, product, simplify
from tilewright.targets.base import Target

_LANES_OF_A_ROW = 16


def cpu_reduction(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    """The candidates of a group whose anchor reduces axes, or runs along one."""
    anchor = group.anchor
    assert anchor is not None
    if anchor.op in REDUCTIONS:
        call = _reduce(group, graph)
    elif anchor.op in ("argmax", "argmin"):
        call = arg_extreme_call(group)
    elif anchor.op in CUMULATIVE:
        call = cumulative_call(group)
    else:
        raise UnsupportedOperationError(f"no kernel for reduction {anchor.op} (from {anchor.source or 'the graph'})")
    return [row_candidate([call], group, target)]


def _reduce(group: Group, graph: Graph) -> KernelCall:
    problem = reduction_of(group, graph)
    outer, reduced, inner = problem.outer, problem.reduced, problem.inner
    deal = _along_rows(outer, reduced) if inner == 1 else _over_rows(outer, reduced, inner)
    return problem.call(deal, problem.constants)


def _along_rows(outer: Size, reduced: Size) -> Deal:
    block = reduced if isinstance(reduced, int) and reduced <= COLUMN_CHUNK else COLUMN_CHUNK
    count = rows_per_program(outer, reduced)
    constants = {"ROWS": count, "BLOCK": block, "MASK": not divides(block, reduced)}
    return Deal(reduce_rows, constants, (ceil_divide(outer, count), 1, 1))


def _over_rows(outer: Size, reduced: Size, inner: Size) -> Deal:
    block = inner if isinstance(inner, int) and inner <= 512 else 512
    block_r = reduced if isinstance(reduced, int) and reduced <= 32 else 32
    constants = {"BLOCK_R": block_r, "BLOCK": block, "MASK_R": not divides(block_r, reduced),
                 "MASK": not divides(block, inner)}  # fmt: skip
    return Deal(reduce_columns, constants, (ceil_divide(inner, block), outer, 1))


def arg_extreme_call(group: Group) -> KernelCall:
    anchor = group.anchor
    assert anchor is not None and anchor.inputs[0] is not None
    source, axis = anchor.inputs[0], anchor.attributes["axis"]
    _only_anchor(group)
    inner, reduced = product(source.shape[axis + 1 :]), source.shape[axis]
    outer = product(source.shape[:axis])
    largest = anchor.op == "argmax"
    block = min(reduced, COLUMN_CHUNK) if isinstance(reduced, int) else COLUMN_CHUNK
    constants: dict[str, Any] = {
        "LARGEST": largest, "INITIAL": neutral_element("max" if largest else "min", source.dtype), "BLOCK": block,
    }  # fmt: skip
    sizes = {"reduced": reduced, "inner": inner, "outer_stride": simplify(lift(reduced) * inner),
             "reduced_stride": inner}  # fmt: skip
    grid: tuple[Size, Size, Size] = (simplify(lift(outer) * inner), 1, 1)
    return launch(arg_extreme, {"x": source, "out": anchor.output}, sizes, constants, grid)


def _running_type(op: str, dtype: DType) -> DType:
    """The type that carries the result along a row or column: sums and products of float32 in float64, so that errors
    do not add up with the length."""
    dtype = compute_type(dtype)
    return float64 if op in ("cumsum", "cumprod") and dtype == float32 else dtype


def cumulative_call(group: Group) -> KernelCall:
    """A running sum or its kin."""
    anchor = group.anchor
    assert anchor is not None and anchor.inputs[0] is not None
    source, axis = anchor.inputs[0], anchor.attributes["axis"]
    _only_anchor(group)
    length, inner, outer = source.shape[axis], product(source.shape[axis + 1 :]), product(source.shape[:axis])
    constants: dict[str, Any] = {
        "TYPE": language_type(_running_type(anchor.op, source.dtype)), "REVERSE": anchor.attributes["reverse"],
    }  # fmt: skip
    tensors, is_log = {"x": source, "out": anchor.output}, anchor.op == "cumlogsumexp"
    if inner == 1 and is_log:
        return launch(
            running_log_rows, tensors, {"length": length}, {**constants, "LANES": _LANES_OF_A_ROW}, (outer, 1, 1)
        )
    block = min(inner, COLUMN_CHUNK) if isinstance(inner, int) else COLUMN_CHUNK
    constants |= {"BLOCK": block, "MASK": not divides(block, inner)}
    if not is_log:
        constants["COMBINE"] = CUMULATIVE[anchor.op]
    kernel = running_log_columns if is_log else cumulative_columns
    grid = (outer, ceil_divide(inner, block), 1)
    return launch(kernel, tensors, {"length": length, "inner": inner}, constants, grid)


def _only_anchor(group: Group) -> None:
    if group.nodes != [group.anchor]:
        raise NotImplementedError(f"{group.name}: this kernel has no slots")
