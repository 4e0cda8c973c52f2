"""Recurrent layers: one launch that walks the steps, for rows of the batch by themselves or, on CPUs, in blocks."""

from __future__ import annotations

from math import ceil
from typing import Any

from tilewright.dtypes import float32
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.fusion import Group
from tilewright.graph.recurrent import GATES, SLOTS
from tilewright.kernels.packing import gates_recipe
from tilewright.kernels.recurrent import gru_first_step, gru_step, lstm_8bit_step, lstm_step, recurrent, rnn_step
from tilewright.kernels.recurrent_rows import recurrent_rows
from tilewright.symbolic import Size, ceil_divide, lift, product, simplify
from tilewright.tactics.binding import bind_sizes
from tilewright.tactics.core import Candidate, KernelCall, Operand, PackedConstant, Stage
from tilewright.tactics.elementwise import total_bytes
from tilewright.targets.base import Target
from tilewright.tune.cost import Cost, balance, estimate, expected, machine_of

_STEPS = {
    "rnn": rnn_step, "lstm": lstm_step, "lstm_8bit": lstm_8bit_step, "gru": gru_step, "gru_first": gru_first_step,
}  # fmt: skip
_SUMS = 8  # vectors that a step adds to at once, which hide how long one addition takes
_GPU_BLOCK = 128
MOST_ROWS = 56  # of a block: four register tiles, which use each panel of the weights that level 1 holds


def recurrent_candidates(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    """The launches of `kernels.recurrent`, and on CPUs of `kernels.recurrent_rows`."""
    anchor = group.anchor
    assert anchor is not None
    found = [_row_by_row(group, target)]
    x, weight = anchor.inputs[:2]
    known = weight in graph.constants and x is not None and x.dtype == float32
    if known and target.name == "cpu" and anchor.attributes["cell"] in ("rnn", "lstm", "gru"):
        found.append(_in_blocks(group, target))
    return found


def _common(anchor: Node) -> tuple[dict[str, Any], dict[str, Operand], dict[str, Size]]:
    """The constants, operands and sizes that all kernels have."""
    x, weight, initial, bias, lengths = [*anchor.inputs, None, None][:5]
    assert x is not None and weight is not None and initial is not None
    cell, functions = anchor.attributes["cell"], (*anchor.attributes["functions"], "tanh", "tanh")
    steps, directions, batch, _ = x.shape
    constants: dict[str, Any] = {
        "GATES": GATES[cell], "SLOTS": SLOTS[cell],
        "REVERSE": sum(1 << number for number, flag in enumerate(anchor.attributes["reverse"]) if flag),
        "F": functions[0], "G": functions[1], "H": functions[2],
        "BIAS": bias is not None, "LENGTHS": lengths is not None,
    }  # fmt: skip
    operands: dict[str, Operand] = {
        "x": x, "weight": weight, "initial": initial, "bias": x if bias is None else bias,
        "lengths": x if lengths is None else lengths, "out": anchor.output,
    }  # fmt: skip
    return constants, operands, {"steps": steps, "directions": directions, "batch": batch, "hidden": weight.shape[1]}


def _row_by_row(group: Group, target: Target) -> Candidate:
    """A program for each row of the batch: the state's product is one of a vector."""
    anchor = group.anchor
    assert anchor is not None
    constants, operands, sizes = _common(anchor)
    x, weight, cell = anchor.inputs[0], anchor.inputs[1], anchor.attributes["cell"]
    assert x is not None and weight is not None
    lanes = getattr(target, "vector_bits", 0) // 32
    block = lanes * max(1, _SUMS // GATES[cell]) if lanes else _GPU_BLOCK
    constants |= {"STEP": _STEPS[cell], "BLOCK": block}
    types: dict[str, str] = {}
    bind_sizes(sizes, operands, types, constants)
    options = {} if lanes else {"num_warps": 4}
    grid = (sizes["batch"], sizes["directions"], 1)
    call = KernelCall(recurrent, operands, types, constants, grid, options=options)
    rows = product(x.shape[:3])
    flops = simplify(lift(rows) * product(weight.shape[1:]) * 2)
    cost = _cost(group, target, flops, rows, simplify(lift(grid[0]) * grid[1]), 0.33, 0.7)
    return Candidate("recurrent", (Stage((call,)),), cost, (), {"cell": cell, "block": block})


def _in_blocks(group: Group, target: Target) -> Candidate:
    """A program for a block of rows: the state's product is one of matrices."""
    anchor = group.anchor
    assert anchor is not None
    constants, operands, sizes = _common(anchor)
    x, weight, cell = anchor.inputs[0], anchor.inputs[1], anchor.attributes["cell"]
    assert x is not None and weight is not None
    width, gates = target.microtile(x.dtype)[1], GATES[cell]
    batch, threads = sizes["batch"], machine_of(target).threads
    block = MOST_ROWS
    if isinstance(batch, int):
        block = ceil(batch / max(ceil(batch / MOST_ROWS), min(batch, threads)))
    grid = (simplify(ceil_divide(batch, block)), sizes["directions"], 1)
    constants |= {"CELL": cell, "WIDTH": width, "BLOCK_B": block}
    operands["weight"] = PackedConstant(weight, gates_recipe(width, gates))
    sums = Value(f"{anchor.output.name}.sums", x.dtype, (product(grid), block * gates * width))
    operands["sums"] = sums
    types: dict[str, str] = {}
    bind_sizes(sizes, operands, types, constants)
    call = KernelCall(recurrent_rows, operands, types, constants, grid)
    passes = simplify(lift(sizes["steps"]) * product(grid))
    flops = simplify(lift(product(x.shape[:3])) * product(weight.shape[1:]) * 2)
    rows = min(expected(batch), block)
    cost = _cost(group, target, flops, passes, product(grid), 0.6 * rows / (rows + 1.5), 1.0)
    return Candidate("recurrent rows", (Stage((call,)),), cost, (sums,), {"cell": cell, "rows": block})


def _cost(
    group: Group, target: Target, flops: Size, passes: Size, programs: Size, efficiency: float, streaming: float
) -> Cost:
    """Of a launch that reads the weights of a direction `passes` times, from beyond level 2 with a part `streaming` of
    the bandwidth there is."""
    anchor, machine = group.anchor, machine_of(target)
    assert anchor is not None and anchor.inputs[1] is not None
    weight = anchor.inputs[1]
    size = product(weight.shape[1:])
    held = expected(size) * weight.dtype.itemsize
    bandwidth = machine.cache_bandwidth if held <= machine.l2_bytes else streaming * machine.memory_bandwidth
    moved = simplify(lift(total_bytes(group.inputs, group.outputs)) + lift(passes) * size * weight.dtype.itemsize)
    cost = estimate(machine, 0, flops, programs, weight.dtype, efficiency)
    used = balance(max(1, expected(programs)), machine.threads)
    return Cost(moved, flops, max(cost.seconds, expected(passes) * held / bandwidth / machine.threads / used))
