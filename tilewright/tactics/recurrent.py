"""Recurrent layers: one launch that walks the steps."""

from __future__ import annotations

from typing import Any

from tilewright.graph.core import Graph
from tilewright.graph.fusion import Group
from tilewright.graph.recurrent import GATES, SLOTS
from tilewright.kernels.recurrent import gru_first_step, gru_step, lstm_8bit_step, lstm_step, recurrent, rnn_step
from tilewright.symbolic import Size, lift, product, simplify
from tilewright.tactics.binding import bind_sizes
from tilewright.tactics.core import Candidate, KernelCall, Operand, Stage
from tilewright.tactics.elementwise import total_bytes
from tilewright.targets.base import Target
from tilewright.tune.cost import estimate, machine_of

_STEPS = {
    "rnn": rnn_step, "lstm": lstm_step, "lstm_8bit": lstm_8bit_step, "gru": gru_step, "gru_first": gru_first_step,
}  # fmt: skip
_SUMS = 8  # vectors that a step adds to at once, which hide how long one addition takes
_GPU_BLOCK = 128


def recurrent_candidates(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    """The launch of `kernels.recurrent`."""
    anchor = group.anchor
    assert anchor is not None
    x, weight, initial, bias, lengths = [*anchor.inputs, None, None][:5]
    assert x is not None and weight is not None and initial is not None
    cell = anchor.attributes["cell"]
    steps, directions, batch, _ = x.shape
    functions = (*anchor.attributes["functions"], "tanh", "tanh")
    lanes = getattr(target, "vector_bits", 0) // 32
    block = lanes * max(1, _SUMS // GATES[cell]) if lanes else _GPU_BLOCK
    constants: dict[str, Any] = {
        "GATES": GATES[cell], "SLOTS": SLOTS[cell], "STEP": _STEPS[cell],
        "REVERSE": sum(1 << number for number, flag in enumerate(anchor.attributes["reverse"]) if flag),
        "F": functions[0], "G": functions[1], "H": functions[2],
        "BIAS": bias is not None, "LENGTHS": lengths is not None, "BLOCK": block,
    }  # fmt: skip
    operands: dict[str, Operand] = {
        "x": x, "weight": weight, "initial": initial, "bias": x if bias is None else bias,
        "lengths": x if lengths is None else lengths, "out": anchor.output,
    }  # fmt: skip
    types: dict[str, str] = {}
    sizes: dict[str, Size] = {
        "steps": steps, "directions": directions, "batch": batch, "hidden": weight.shape[1],
    }  # fmt: skip
    bind_sizes(sizes, operands, types, constants)
    options = {} if lanes else {"num_warps": 4}
    call = KernelCall(recurrent, operands, types, constants, (batch, directions, 1), options=options)
    rows = simplify(lift(steps) * directions * batch)
    flops = simplify(lift(rows) * product(weight.shape[1:]) * 2)
    moved = simplify(lift(total_bytes(group.inputs, group.outputs)) + flops * weight.dtype.itemsize)
    cost = estimate(machine_of(target), moved, flops, simplify(lift(batch) * directions), x.dtype, 0.25)
    return [Candidate("recurrent", (Stage((call,)),), cost, (), {"cell": cell, "block": block})]
