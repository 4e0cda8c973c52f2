"""Matrix products and convolutions on GPUs: tiles of `tl.dot`, and on Hopper the kernel of tensor copies and wgmma.

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
from tilewright.kernels.gpu_convolution import convolution
from tilewright.kernels.hopper import matmul as hopper
from tilewright.kernels.hopper.choice import Problem as HopperProblem
from tilewright.kernels.hopper.choice import ranked_forms
from tilewright.kernels.hopper.forms import MatmulForm
from tilewright.kernels.packing import order_recipe
from tilewright.symbolic import Size, ceil_divide, lift, product, simplify, upper_bound
from tilewright.tactics.binding import bind_extra, bind_sizes, divides
from tilewright.tactics.blocks import Blocks, row_ranges
from tilewright.tactics.contraction import Problem, Slots, as_sum_of_products, describe, epilogue_slots, gemm_call
from tilewright.tactics.convolution import (
    checked_convolution,
    depthwise_candidate,
    is_pointwise,
    window_constants,
    window_sizes,
    with_bias_in_epilogue,
)
from tilewright.tactics.core import Candidate, KernelCall, Operand, PackedConstant, Stage, TiledOperand
from tilewright.tactics.elementwise import chain_operations, total_bytes
from tilewright.tactics.expressions import language_type
from tilewright.tactics.gpu.rows import gpu_reduction
from tilewright.tactics.weights import Weights, packed_weights
from tilewright.targets.base import Target
from tilewright.tune.cost import Cost, expected
from tilewright.tune.gpu import Product, Tile, best_tile, gpu_of

_FEW_ROWS = 56  # up to which `ranked_forms` loads all rows at once
_TILED_BYTES = 16  # what strides and addresses of tensor copies are multiples of


def gpu_contraction(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    """The candidates of a group whose anchor is a matrix product or a convolution.

    Raises `NotImplementedError` for channels-first images.
    """
    assert group.anchor is not None
    return _matmul(group, graph, target) if group.anchor.op == "matmul" else _convolution(group, graph, target)


def _matmul(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    assert group.anchor is not None
    if group.anchor.output.dtype.is_integer:
        return gpu_reduction(as_sum_of_products(group), graph, target)
    return _product_candidates(describe(group.anchor, graph, 0), epilogue_slots(group, graph), group, target)


def _product_candidates(problem: Problem, slots: Slots, group: Group, target: Target) -> list[Candidate]:
    plain = _plain(problem, slots, group, target)
    tensor_cores = _hopper(problem, slots, group, target)
    return [plain] if tensor_cores is None else [plain, tensor_cores]


def _cost(group: Group, rows: Size, columns: Size, depth: Size, batches: Size, seconds: float) -> Cost:
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
        tile, seconds = _tile(span.examples, sizes, problem.a, target)
        condition = None if at_most is None else (problem.rows, at_most)
        call = gemm_call(problem, slots, Blocks(tile.rows, tile.columns, tile.depth), condition)
        calls.append(replace(call, options={"num_warps": tile.warps}))
        reasons["rows" if at_most is None else f"rows <= {at_most}"] = str(tile)
    cost = _cost(group, problem.rows, problem.columns, problem.depth, problem.batches, seconds)
    return Candidate("tiled matmul", (Stage(tuple(calls)),), cost, (), reasons)


def _tile(rows: tuple[int, ...], sizes: tuple[Size, Size, Size], operand: Value, target: Target) -> tuple[Tile, float]:
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
    cost = _cost(group, rows, columns, depth, 1, seconds)
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


# -- Convolutions -----------------------------------------------------------------------------------------------------


def _convolution(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    group = with_bias_in_epilogue(group)
    anchor, x, w = checked_convolution(group)
    slots = epilogue_slots(group, graph)
    groups = anchor.attributes["groups"]
    if is_pointwise(anchor, w):
        weights = packed_weights(w, order_recipe((*range(2, w.rank), 1, 0)), graph, target)
        problem = Problem(
            product(x.shape[:-1]), w.shape[0], x.shape[-1], x, weights.operand, x.shape[-1], 1, w.shape[0], 1, 0
        )
        found = [replace(candidate, name=f"pointwise convolution as {candidate.name}")
                 for candidate in _product_candidates(problem, slots, group, target)]  # fmt: skip
        return [_with_weights(candidate, weights) for candidate in found]
    weights = packed_weights(w, order_recipe((*range(2, w.rank), 1, 0)), graph, target)
    if w.shape[1] == 1 and w.shape[0] == groups and groups > 1:
        candidate = depthwise_candidate(group, slots, weights.operand, target)
    else:
        candidate = _implicit(group, slots, weights.operand, target)
    return [_with_weights(candidate, weights)]


def _with_weights(candidate: Candidate, weights: Weights) -> Candidate:
    return replace(candidate, stages=weights.stages + candidate.stages, temporaries=weights.temporaries)


def _implicit(group: Group, slots: Slots, weights: Operand, target: Target) -> Candidate:
    """The implicit matrix product: output pixels by columns, over taps and channels."""
    anchor = group.anchor
    assert anchor is not None
    x, w = anchor.inputs[:2]
    assert x is not None and w is not None
    groups, channels = anchor.attributes["groups"], w.shape[1]
    columns, depth = simplify(lift(w.shape[0]) // groups), product(w.shape[1:])
    assert isinstance(columns, int) and isinstance(channels, int) and isinstance(depth, int)
    sizes = {**window_sizes(x, anchor.output), "columns": columns}
    pixels = sizes["pixels"]
    tile, seconds = _tile((expected(pixels),), (columns, depth, groups), x, target)
    constants: dict[str, Any] = {
        **window_constants(w.shape[2:], anchor.attributes), "CHANNELS": channels, "GROUPS": groups,
        "BLOCK_M": tile.rows, "BLOCK_N": tile.columns, "BLOCK_K": tile.depth,
        "MASK_M": not divides(tile.rows, pixels), "MASK_N": columns % tile.columns != 0,
        "TYPE": language_type(x.dtype), "EPILOGUE": slots.function,
    }  # fmt: skip
    operands: dict[str, Operand] = {"x": x, "w": weights, "out": slots.stored}
    types: dict[str, str] = {}
    bind_sizes(sizes, operands, types, constants)
    bind_extra(slots.extra, operands, types)
    grid = (ceil_divide(pixels, tile.rows), ceil_divide(columns, tile.columns), groups)
    call = KernelCall(convolution, operands, types, constants, grid, options={"num_warps": tile.warps})
    reasons = {"epilogue": slots.function.__name__, "pixels": str(tile)}
    cost = _cost(group, pixels, columns, depth, groups, seconds)
    return Candidate("implicit matmul", (Stage((call,)),), cost, (), reasons)
