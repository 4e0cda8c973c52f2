"""Matrix products on GPUs: tiles of `tl.dot`, and on Hopper the kernel of tensor copies and wgmma.

For run-time numbers of rows there is one plain kernel for each range of rows; the Hopper kernel takes any number.
"""

from __future__ import annotations

from collections import Counter
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
from tilewright.tune.gpu import Product, Tile, gpu_of, ranked_tiles

PLAIN_FORMS = 6  # tiles of the plain kernel that are candidates
HOPPER_FORMS = 14  # forms of the Hopper kernel that are candidates
TURNS = 4  # of these, forms in which warpgroups take turns
_FEW_ROWS = 56  # up to which `ranked_forms` loads all rows at once
_TILED_BYTES = 16  # what strides and addresses of tensor copies are multiples of


def gpu_contraction(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    """The candidates of a group whose anchor is a matrix product."""
    assert group.anchor is not None
    if group.anchor.output.dtype.is_integer:
        return gpu_reduction(as_sum_of_products(group), graph, target)
    return product_candidates(describe(group.anchor, graph, 0), epilogue_slots(group, graph), group, target)


def product_candidates(problem: Problem, slots: Slots, group: Group, target: Target) -> list[Candidate]:
    """Ways to compute a product, several of each kernel, in the order of their estimates."""
    return [*_plain(problem, slots, group, target), *_hopper(problem, slots, group, target)]


def product_cost(group: Group, rows: Size, columns: Size, depth: Size, batches: Size, seconds: float) -> Cost:
    elements = simplify(lift(product([batches, rows])) * columns)
    flops = simplify(lift(elements) * depth * 2 + chain_operations(group.epilogue))
    return Cost(total_bytes(group.inputs, group.outputs), flops, seconds)


# -- Plain products ---------------------------------------------------------------------------------------------------


def _plain(problem: Problem, slots: Slots, group: Group, target: Target) -> list[Candidate]:
    """`kernels.matmul` in tiles for a GPU, with a variant for each range of rows that can occur.

    The first candidate has the best tile for each range, the second the second best, and so on.
    """
    spans = row_ranges(problem.rows)
    sizes = (problem.columns, problem.depth, problem.batches)
    ranked = [plain_tiles(span.examples, sizes, problem.a, target) for span in spans]
    found = []
    for tiles in zip(*(each[:PLAIN_FORMS] for each in ranked), strict=True):
        calls: list[KernelCall] = []
        reasons: dict[str, Any] = {"epilogue": slots.function.__name__}
        for span, (tile, _) in zip(spans, tiles, strict=True):
            condition = None if span.at_most is None else (problem.rows, span.at_most)
            call = gemm_call(problem, slots, Blocks(tile.rows, tile.columns, tile.depth), condition)
            calls.append(replace(call, options={"num_warps": tile.warps}))
            reasons["rows" if span.at_most is None else f"rows <= {span.at_most}"] = str(tile)
        cost = product_cost(group, problem.rows, problem.columns, problem.depth, problem.batches, tiles[-1][1])
        found.append(Candidate("tiled matmul", (Stage(tuple(calls)),), cost, (), reasons))
    return found


def plain_tiles(
    rows: tuple[int, ...], sizes: tuple[Size, Size, Size], operand: Value, target: Target
) -> tuple[tuple[Tile, float], ...]:
    """Tiles for examples of a number of rows, the best by the model first: columns, depth and batches are `sizes`."""
    columns, depth, batches = map(expected, sizes)
    products = tuple(Product(count, columns, depth, batches, operand.dtype) for count in rows)
    return ranked_tiles(products, gpu_of(target))


def plain_tile(
    rows: tuple[int, ...], sizes: tuple[Size, Size, Size], operand: Value, target: Target
) -> tuple[Tile, float]:
    """The first of `plain_tiles`."""
    return plain_tiles(rows, sizes, operand, target)[0]


# -- The Hopper kernel ------------------------------------------------------------------------------------------------


def _hopper(problem: Problem, slots: Slots, group: Group, target: Target) -> list[Candidate]:
    """The Hopper product in several forms; none where tensor copies cannot read the operands or it would change the
    precision."""
    rows, columns, depth, b = problem.rows, problem.columns, problem.depth, problem.b
    fits = getattr(target, "wgmma", False) and problem.batches == 1 and len(group.outputs) == 1
    if (
        not fits
        or not isinstance(columns, int)
        or not isinstance(depth, int)
        or not isinstance(b, (Value, PackedConstant))
    ):
        return []
    b_type = b.dtype if isinstance(b, Value) else b.value.dtype
    aligned = all(extent * 2 % _TILED_BYTES == 0 for extent in (columns, depth))
    inputs, outputs = (float16, bfloat16), (float16, bfloat16, float32)
    if not aligned or problem.a.dtype not in inputs or b_type != problem.a.dtype or slots.stored.dtype not in outputs:
        return []
    fixed = isinstance(rows, int)
    # A form that loads all of few rows at once serves no more of them.
    example = expected(rows) if fixed or upper_bound(rows) <= _FEW_ROWS else max(expected(rows), _FEW_ROWS + 1)
    wanted = HopperProblem(
        example, columns, depth, 1, tl.dtype(problem.a.dtype), tl.dtype(slots.stored.dtype), False,
        problem.b_column == 1,
    )  # fmt: skip
    forms = _first_forms(wanted, upper_bound(rows) if not fixed else expected(rows), fixed)
    found = []
    for form, seconds in forms:
        call = _hopper_call(problem, slots, form._replace(EPILOGUE=slots.function), target)
        reasons = {"epilogue": slots.function.__name__, "tile": _described(form)}
        cost = product_cost(group, rows, columns, depth, 1, seconds)
        found.append(Candidate("hopper matmul", (Stage((call,)),), cost, (), reasons))
    return found


def _hopper_call(problem: Problem, slots: Slots, form: MatmulForm, target: Target) -> KernelCall:
    """The launch of a form."""
    rows, columns, depth, b = problem.rows, problem.columns, problem.depth, problem.b
    assert isinstance(columns, int) and isinstance(depth, int) and isinstance(b, (Value, PackedConstant))
    shape = (depth, columns) if problem.b_column == 1 else (columns, depth)
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
        form.grid(rows, columns, 1, processors)
        if isinstance(rows, int)
        else (processors // form.cluster * form.cluster, 1, 1)
    )
    return KernelCall(hopper.matmul, operands, types, {"FORM": form}, grid)


def _described(form: MatmulForm) -> str:
    """What tells a form from others."""
    parts = [f"{form.BM} x {form.BN}, depth {form.BK}, {form.STAGES} stages, {form.CONSUMERS} warpgroups"]
    parts += ["in turns"] if form.PINGPONG else []
    parts += [f"A shared by {form.SHARE_A}"] if form.SHARE_A > 1 else []
    parts += [f"B shared by {form.SHARE_B}"] if form.SHARE_B > 1 else []
    parts += [f"depth split by {form.SPLIT}"] if form.SPLIT > 1 else []
    return ", ".join(parts)


@lru_cache(maxsize=1024)
def _first_forms(problem: HopperProblem, most_rows: int, fixed: bool) -> tuple[tuple[MatmulForm, float], ...]:
    """The forms that the ranking puts first, at most two of a tile, among those that take every number of rows up to
    `most_rows`; forms in which warpgroups take turns, which are not to be taken untimed, are put behind the others.

    Where the number of rows is known only at run time, CTAs must be persistent and share no depth.
    """
    found: list[tuple[MatmulForm, float]] = []
    tiles: Counter[tuple[int, int, bool]] = Counter()
    for form, seconds in sorted(ranked_forms(problem), key=lambda entry: entry[0].PINGPONG):
        tile = (form.BM, form.BN, form.PINGPONG)
        usable = fixed or (form.SPLIT == 1 and form.cluster == 1 and (not form.A_ROWS or form.A_ROWS >= most_rows))
        room = HOPPER_FORMS - (0 if form.PINGPONG else TURNS)
        if usable and len(found) < room and tiles[tile] < 2:
            tiles[tile] += 1
            found.append((form, max(seconds, 1.01 * found[0][1]) if form.PINGPONG and found else seconds))
    return tuple(found)
