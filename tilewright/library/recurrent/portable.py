"""Recurrent layers: one launch that walks the steps, for rows of the batch by themselves."""

from __future__ import annotations

from tilewright.graph.core import Graph
from tilewright.graph.fusion import Group
from tilewright.graph.recurrent import GATES
from tilewright.library.binding import bind_sizes
from tilewright.library.candidate import Candidate, KernelCall, Stage
from tilewright.library.recurrent.kernel import gru_first_step, gru_step, lstm_step, recurrent, recurrent_8bit, rnn_step
from tilewright.library.recurrent.problem import common_parts, cost_of, flops_of
from tilewright.symbolic import lift, product, simplify
from tilewright.targets.base import Target

_STEPS = {
    "rnn": rnn_step, "lstm": lstm_step, "lstm_8bit": lstm_step, "lstm_peephole": lstm_step, "gru": gru_step,
    "gru_first": gru_first_step,
}  # fmt: skip
_SUMS = 8  # vectors that a step adds to at once, which hide how long one addition takes
_GPU_BLOCK = 128


def recurrent_candidates(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    """The launch of `library.recurrent.kernel`: a program for each row of the batch, or for all of them, where the
    state's product is one of a vector."""
    anchor = group.anchor
    assert anchor is not None
    constants, operands, sizes = common_parts(anchor)
    x, cell = anchor.inputs[0], anchor.attributes["cell"]
    assert x is not None
    lanes = target.vector_bits // 32
    block = lanes * max(1, _SUMS // GATES[cell]) if lanes else _GPU_BLOCK
    constants |= {"STEP": _STEPS[cell], "BLOCK": block}
    types: dict[str, str] = {}
    bind_sizes(sizes, operands, types, constants)
    together = cell == "lstm_8bit"
    grid = (1 if together else sizes["batch"], sizes["directions"], 1)
    call = KernelCall(
        recurrent_8bit if together else recurrent, operands, types, constants, grid, threads=0 if lanes else 128
    )
    cost = cost_of(group, target, flops_of(anchor), product(x.shape[:3]), simplify(lift(grid[0]) * grid[1]), 0.33, 0.7)
    return [Candidate("recurrent", (Stage((call,)),), cost, (), {"cell": cell, "block": block})]
