"""Matrix products on GPUs: tiles of `tl.dot`, and on Hopper the kernel of tensor copies and wgmma.

For run-time numbers of rows there is one plain kernel for each range of rows; the Hopper kernel takes any number.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import tilewright.language as tl
from tilewright.dtypes import bfloat16, float16, float32
from tilewright.graph.core import Graph, Value
from tilewright.graph.fusion import Group
from tilewright.kernels.hopper import matmul as hopper
from tilewright.kernels.hopper.choice import Problem as HopperProblem
from tilewright.kernels.hopper.choice import ranked_forms
from tilewright.kernels.hopper.forms import MatmulForm
from tilewright.symbolic import Size, lift, product, simplify, upper_bound
from tilewright.tactics.binding import bind_extra
from tilewright.tactics.blocks import Blocks, row_ranges
from tilewright.tactics.contraction import Problem, Slots, as_sum_of_products, describe, epilogue_slots, gemm_call
from tilewright.tactics.core import Candidate, KernelCall, Operand, PackedConstant, Stage, TiledOperand
from tilewright.tactics.elementwise import chain_operations, total_bytes
from tilewright.tactics.gpu.rows import gpu_reduction
from tilewright.targets.base import Target
from tilewright.tune.cost import Cost, expected
from tilewright.tune.gpu import Product, Tile, best_tile, gpu_of

_FEW_ROWS = 56  # up to which `ranked_forms` loads all rows at once
_TILED_BYTES = 16  # what strides and addresses of tensor copies are multiples of


def gpu_contraction(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    """The candidates of a group whose anchor is a matrix product."""
    assert group.anchor is not None
    if group.anchor.output.dtype.is_integer:
        return gpu_reduction(as_sum_of_products(group), graph, target)
    return product_candidates(describe(group.anchor, graph, 0), epilogue_slots(group, graph), group, target)


def product_candidates(problem: Problem, slots: Slots, group: Group, target: Target) -> list[Candidate]:
    plain = _plain(problem, slots, group, target)
    tensor_cores = _hopper(problem, slots, group, target)
    return [plain] if tensor_cores is None else [plain, tensor_cores]


def product_cost(group: Group, rows: Size, columns: Size, depth: Size, batches: Size, seconds: float) -> Cost:
    elements = simplify(lift(product([batches, rows])) * columns)
    flops = simplify(lift(elements) * depth * 2 + chain_operations(group.epilogue))
    return Cost(total_bytes(group.inputs, group.outputs), flops, seconds)


# -- Plain products ---------------------------------------------------------------------------------------------------


def _plain(problem: Problem, slots: Slots, group: Group, target: Target) -> Candidate:
    """`kernels.matmul` in tiles for a GPU, with a variant for each range of rows that can occur."""
    calls: list[KernelCall] = []
    reasons: dict[str, Any] = {"epilogue": slots.function.__name__}
    seconds = 0.0
    for span in row_ranges(problem.rows):
        at_most = span.at_most
        sizes = (problem.columns, problem.depth, problem.batches)
        tile, seconds = plain_tile(span.examples, sizes, problem.a, target)
        condition = None if at_most is None else (problem.rows, at_most)
        call = gemm_call(problem, slots, Blocks(tile.rows, tile.columns, tile.depth), condition)
        calls.append(replace(call, options={"num_warps": tile.warps}))
        reasons["rows" if at_most is None else f"rows <= {at_most}"] = str(tile)
    cost = product_cost(group, problem.rows, problem.columns, problem.depth, problem.batches, seconds)
    return Candidate("tiled matmul", (Stage(tuple(calls)),), cost, (), reasons)


def plain_tile(
    rows: tuple[int, ...], sizes: tuple[Size, Size, Size], operand: Value, target: Target
) -> tuple[Tile, float]:
    """The best tile of the model for examples of a number of rows: columns, depth and batches are `sizes`."""
    columns, depth, batches = map(expected, sizes)
    products = tuple(Product(count, columns, depth, batches, operand.dtype) for count in rows)
    return best_tile(products, gpu_of(target))


# -- The Hopper kernel ------------------------------------------------------------------------------------------------


def _hopper(problem: Problem, slots: Slots, group: Group, target: Target) -> Candidate | None:
    """The Hopper product; None where tensor copies cannot read the operands or it would change the precision."""
    rows, columns, depth, b = problem.rows, problem.columns, problem.depth, problem.b
    fits = getattr(target, "wgmma", False) and problem.batches == 1 and len(group.outputs) == 1
    if (
        not fits
        or not isinstance(columns, int)
        or not isinstance(depth, int)
        or not isinstance(b, (Value, PackedConstant))
    ):
        return None
    b_type = b.dtype if isinstance(b, Value) else b.value.dtype
    aligned = all(extent * 2 % _TILED_BYTES == 0 for extent in (columns, depth))
    inputs, outputs = (float16, bfloat16), (float16, bfloat16, float32)
    if not aligned or problem.a.dtype not in inputs or b_type != problem.a.dtype or slots.stored.dtype not in outputs:
        return None
    fixed = isinstance(rows, int)
    transposed = problem.b_column == 1
    # A form that loads all of few rows at once serves no more of them.
    example = expected(rows) if fixed or upper_bound(rows) <= _FEW_ROWS else max(expected(rows), _FEW_ROWS + 1)
    wanted = HopperProblem(
        example, columns, depth, 1, tl.dtype(problem.a.dtype), tl.dtype(slots.stored.dtype), False, transposed
    )
    form, seconds = _best_form(wanted, upper_bound(rows) if not fixed else expected(rows), fixed)
    form = form._replace(EPILOGUE=slots.function)
    shape = (depth, columns) if transposed else (columns, depth)
    operands: dict[str, Operand] = {
        "a": TiledOperand(problem.a, (rows, depth), (depth, 1), form.left_block),
        "b": TiledOperand(b, shape, (shape[1], 1), form.right_block),
        "c": TiledOperand(slots.stored, (rows, columns), (columns, 1), form.out_block),
        "c_tail": TiledOperand(slots.stored, (rows, columns), (columns, 1), form.tail_block),
        "M": rows, "N": columns, "K": depth, "batches": 1,
    }  # fmt: skip
    types = dict.fromkeys(("M", "N", "K", "batches"), "i32")
    bind_extra(slots.extra, operands, types)
    processors = gpu_of(target).processors
    grid = (
        form.grid(expected(rows), columns, 1, processors)
        if fixed
        else (processors // form.cluster * form.cluster, 1, 1)
    )
    call = KernelCall(hopper.matmul, operands, types, {"FORM": form}, grid)
    tile = f"{form.BM} x {form.BN}, depth {form.BK}, {form.STAGES} stages, clusters of {form.cluster}"
    reasons = {"epilogue": slots.function.__name__, "tile": tile}
    cost = product_cost(group, rows, columns, depth, 1, seconds)
    return Candidate("hopper matmul", (Stage((call,)),), cost, (), reasons)


@lru_cache(maxsize=1024)
def _best_form(problem: HopperProblem, most_rows: int, fixed: bool) -> tuple[MatmulForm, float]:
    """The form that the ranking puts first among those that take every number of rows up to `most_rows`.

    Where the number of rows is known only at run time, CTAs must be persistent and share no depth.
    """
    for form, seconds in ranked_forms(problem):
        if fixed or (form.SPLIT == 1 and form.cluster == 1 and (not form.A_ROWS or form.A_ROWS >= most_rows)):
            return form, seconds
    raise AssertionError(f"no form for {problem}")
