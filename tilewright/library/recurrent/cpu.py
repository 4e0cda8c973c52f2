"""Recurrent layers on CPUs: rows of the batch in blocks, whose products are of matrices, and weights of int8."""

from __future__ import annotations

from math import ceil
from typing import Any

from tilewright.dtypes import float32, int8, uint8
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.fusion import Group
from tilewright.graph.recurrent import GATES
from tilewright.ir.ops import PAIRS_FIT
from tilewright.library.binding import bind_sizes
from tilewright.library.candidate import Candidate, KernelCall, PackedConstant, Stage
from tilewright.library.cost import Cost, expected
from tilewright.library.packing import gate_sums_recipe, gates_recipe
from tilewright.library.recurrent.blocks_kernel import recurrent_planes, recurrent_rows
from tilewright.library.recurrent.narrow_kernel import recurrent_levels
from tilewright.library.recurrent.portable import recurrent_candidates
from tilewright.library.recurrent.problem import common_parts, cost_of, flops_of
from tilewright.library.weights import pairs_fit
from tilewright.symbolic import Size, ceil_divide, lift, product, simplify
from tilewright.targets.base import Target

MOST_BLOCK_ROWS = 56  # of a block: four register tiles, which use each panel of the weights that level 1 holds


def cpu_recurrent_candidates(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    """Row by row, and of constant weights in float32 by the blocks of `library.recurrent.blocks_kernel`; of weights of
    int8 the launch of `library.recurrent.narrow_kernel`."""
    anchor = group.anchor
    assert anchor is not None and anchor.inputs[1] is not None
    if anchor.inputs[1].dtype == int8:
        return [_levels(group, graph, target)]
    found = recurrent_candidates(group, graph, target)
    x, weight = anchor.inputs[:2]
    known = weight in graph.constants and x is not None and x.dtype == float32
    if known and anchor.attributes["cell"] not in ("lstm_8bit", "lstm_peephole"):
        found += _in_blocks(group, target)
    return found


def _in_blocks(group: Group, target: Target) -> list[Candidate]:
    """Programs for a block of rows: the state's product is one of matrices.  A program walks the sequence of its block,
    or the programs of a step share its units."""
    anchor, threads = group.anchor, target.machine().processors
    assert anchor is not None
    _, _, sizes = common_parts(anchor)
    batch, panels = sizes["batch"], ceil_divide(sizes["hidden"], target.microtile(float32)[1])
    found = [_walk(group, target, _block(batch, threads))]
    if threads > 1:
        for side_by_side in _sides(len(anchor.attributes["reverse"])):
            block = _block(batch, ceil(threads / expected(product((panels, side_by_side)))))
            found.append(_share(group, target, block, panels, side_by_side))
    return found


def _sides(directions: int) -> list[int]:
    """How many directions may be walked side by side."""
    return sorted({1, directions})


def _block(batch: Size, blocks: int) -> int:
    """Rows of a block, so that there are `blocks` if the batch has as many rows, or more."""
    if not isinstance(batch, int):
        return MOST_BLOCK_ROWS
    return ceil(batch / max(ceil(batch / MOST_BLOCK_ROWS), min(batch, blocks)))


def _call(kernel: Any, group: Group, target: Target, block: int, grid: tuple[Size, Size, Size],
          **own: Any) -> tuple[KernelCall, Value]:  # fmt: skip
    """The launch of a kernel that takes blocks of rows, with constants of its `own`, and the temporary in which its
    programs keep the sums of a step."""
    anchor = group.anchor
    assert anchor is not None
    constants, operands, sizes = common_parts(anchor)
    weight, cell = anchor.inputs[1], anchor.attributes["cell"]
    assert weight is not None
    width, gates = target.microtile(weight.dtype)[1], GATES[cell]
    constants |= {"CELL": cell, "WIDTH": width, "BLOCK_B": block, "LAST": 1 if cell == "gru_first" else 0, **own}
    operands["weight"] = PackedConstant(weight, gates_recipe(width, gates))
    operands["sums"] = sums = Value(f"{anchor.output.name}.sums", float32, (product(grid[:2]), block * gates * width))
    types: dict[str, str] = {}
    bind_sizes(sizes, operands, types, constants)
    return KernelCall(kernel, operands, types, constants, grid, planes=kernel is recurrent_planes), sums


def _walk(group: Group, target: Target, block: int) -> Candidate:
    """A program for each block of rows."""
    anchor = group.anchor
    assert anchor is not None and anchor.inputs[0] is not None
    steps, directions, batch, _ = anchor.inputs[0].shape
    grid = (simplify(ceil_divide(batch, block)), directions, 1)
    call, sums = _call(recurrent_rows, group, target, block, grid)
    passes = simplify(lift(steps) * product(grid))
    cost = cost_of(group, target, flops_of(anchor), passes, product(grid), _efficiency(batch, block), 1.0)
    return Candidate("recurrent rows", (Stage((call,)),), cost, (sums,), _reasons(anchor, block))


def _levels(group: Group, graph: Graph, target: Target) -> Candidate:
    """A program for each direction, which multiplies integers; its blocks of rows share the range of a step."""
    anchor = group.anchor
    assert anchor is not None
    constants, operands, sizes = common_parts(anchor)
    x, weight, scales = anchor.inputs[0], anchor.inputs[1], anchor.inputs[3]
    assert x is not None and weight is not None and scales is not None and isinstance(weight.shape[1], int)
    steps, directions, batch, _ = x.shape
    hidden, width, gates = weight.shape[1], target.microtile(uint8)[1], GATES["lstm_8bit"]
    block = _block(batch, 1)
    fits = pairs_fit(graph.constants[weight], 1)
    depth_group = target.panel_group(uint8, 1, hidden, fits)
    for name in ("GATES", "SLOTS", "BIAS"):
        del constants[name]
    constants |= {"WIDTH": width, "GROUP": depth_group, "BLOCK_B": block, "PRECISION": PAIRS_FIT if fits else "ieee"}
    grid = (1, directions, 1)
    name = anchor.output.name
    buffers = (
        Value(f"{name}.sums", float32, (directions, block * gates * width)),
        Value(f"{name}.levels", uint8, (directions, batch, hidden)),
        Value(f"{name}.ranges", float32, (directions, batch, 2)),
    )
    del operands["bias"]
    operands |= {
        "weight": PackedConstant(weight, gates_recipe(width, gates, depth_group)),
        "totals": PackedConstant(weight, gate_sums_recipe(width, gates)),
        "scales": PackedConstant(scales, gates_recipe(width, gates)),
        **dict(zip(("sums", "levels", "ranges"), buffers, strict=True)),
    }
    types: dict[str, str] = {}
    bind_sizes(sizes, operands, types, constants)
    call = KernelCall(recurrent_levels, operands, types, constants, grid)
    passes = simplify(lift(steps) * product((directions, ceil_divide(batch, block))))
    cost = cost_of(group, target, flops_of(anchor), passes, directions, _efficiency(batch, block), 1.0)
    return Candidate("recurrent levels", (Stage((call,)),), cost, buffers, _reasons(anchor, block))


def _share(group: Group, target: Target, block: int, panels: Size, side_by_side: int) -> Candidate:
    """A program for each panel of units and each step, of each block of rows; the directions are walked side by side,
    or in turn, so that the weights of one have level 2 for themselves."""
    anchor, machine = group.anchor, target.machine()
    assert anchor is not None and anchor.inputs[0] is not None
    steps, directions, batch, _ = anchor.inputs[0].shape
    rounds = len(anchor.attributes["reverse"]) // side_by_side
    blocks, phases = simplify(ceil_divide(batch, block)), 2 if anchor.attributes["cell"] == "gru_first" else 1
    planes = simplify((lift(steps) * phases + 1) * rounds)
    grid = (simplify(lift(panels) * blocks), side_by_side, planes)
    call, sums = _call(recurrent_planes, group, target, block, grid, IN_TURN=rounds > 1)
    programs = product(grid[:2])
    threads = max(1, min(machine.processors, expected(programs)))
    passes = simplify(lift(steps) * product((blocks, directions)))
    streaming = 1.0 if side_by_side == 1 else 0.7
    cost = cost_of(group, target, flops_of(anchor), passes, programs, _efficiency(batch, block), streaming,
                 threads // side_by_side)  # fmt: skip
    starts = ceil(expected(programs) / threads) * machine.launches.program
    between = expected(planes) * (machine.launches.barrier + starts)
    cost = Cost(cost.bytes, cost.flops, cost.seconds + between)
    reasons = {**_reasons(anchor, block), "directions": side_by_side}
    return Candidate("recurrent planes", (Stage((call,)),), cost, (sums,), reasons)


def _efficiency(batch: Size, block: int) -> float:
    """Of a product with so few rows."""
    rows = min(expected(batch), block)
    return 0.6 * rows / (rows + 1.5)


def _reasons(anchor: Node, block: int) -> dict[str, Any]:
    return {"cell": anchor.attributes["cell"], "rows": block}
