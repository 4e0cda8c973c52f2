"""Mixtures of experts: each token through the few experts that its router scores highest.

Pairs of a token and an expert are put in the order of the experts, so that each expert's rows are one product
(`grouped_matmul`); a pair's place is how many pairs have an earlier expert, or the same one and an earlier token.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.dtypes import float32, int32
from tilewright.graph.core import Value
from tilewright.importers.sorting import top
from tilewright.llm.step_graph import GenerationStep
from tilewright.symbolic import lift, simplify


@dataclass(frozen=True)
class Experts:
    """The sizes of a mixture; with `normalised` the weights of the chosen experts sum to 1."""

    count: int
    chosen: int
    hidden: int
    intermediate: int
    activation: str
    normalised: bool


def mixture(step: GenerationStep, router: str, x: Value, experts: Experts, gate_up: Value, down: Value) -> Value:
    """x [tokens, hidden] by experts: gate_up [experts, 2 * intermediate, hidden], down [experts, hidden,
    intermediate]."""
    emit = step.emit
    scores = emit.cast(step.linear(router, x, experts.count, experts.hidden), float32)
    weights, chosen = top(emit, emit.op("softmax", scores, axis=1), experts.chosen, 1, True)
    if experts.normalised:
        weights = emit.op("divide", weights, emit.op("reduce_sum", weights, axes=(1,), keepdims=True))
    place, token, ends = _order(step, emit.cast(chosen, int32), experts)
    rows = emit.op("gather", x, token, axis=0)
    gate_up_rows = emit.op("grouped_matmul", rows, gate_up, ends, transpose_b=True)
    gate = emit.slice(gate_up_rows, 1, 0, experts.intermediate)
    up = emit.slice(gate_up_rows, 1, experts.intermediate, 2 * experts.intermediate)
    inner = emit.op("multiply", step.activation(experts.activation, gate), up)
    outer = emit.op("grouped_matmul", inner, down, ends, transpose_b=True)
    back = emit.reshape(emit.op("gather", outer, place, axis=0), (step.count, experts.chosen, experts.hidden))
    weighted = emit.op("multiply", back, emit.unsqueeze(emit.cast(weights, back.dtype), 2))
    return emit.op("reduce_sum", weighted, axes=(1,))


def _order(step: GenerationStep, chosen: Value, experts: Experts) -> tuple[Value, Value, Value]:
    """Of pairs in the order of tokens the place in the order of experts; of those in that order the token; and where
    each expert's pairs end."""
    emit = step.emit
    pairs = simplify(lift(step.count) * experts.chosen)
    flat = emit.reshape(chosen, (pairs,))
    line = emit.constant(np.arange(experts.count, dtype=np.int32).reshape(1, -1), "experts")
    mine = emit.cast(emit.op("equal", emit.unsqueeze(flat, 1), line), int32)  # [pairs, experts]
    before = emit.op("cumsum", mine, axis=0)
    ends = emit.op("cumsum", emit.op("reduce_sum", mine, axes=(0,)), axis=0)
    begins = emit.op("subtract", ends, emit.op("reduce_sum", mine, axes=(0,)))
    number = emit.op("add", emit.op("subtract", before, 1), emit.unsqueeze(begins, 0))
    place = emit.op("reduce_sum", emit.op("multiply", number, mine), axes=(1,))
    tokens = emit.op("floor_divide", emit.iota(pairs, int32), experts.chosen)
    empty = emit.op("full", shape=(pairs,), value=0, dtype=int32)
    return place, emit.op("scatter_update", empty, place, tokens, axis=0), ends


def expert_weights(
    step: GenerationStep, path: str, experts: Experts, names: tuple[str, str, str]
) -> tuple[Value, Value]:
    """Gate and up, and down, of all experts: stacked in the checkpoint, or a tensor for each (`names` of gate, up and
    down), which are copied together."""
    count, hidden, intermediate = experts.count, experts.hidden, experts.intermediate
    if step.checkpoint.has(f"{path}.experts.gate_up_proj"):
        return (
            step.weight(f"{path}.experts.gate_up_proj", count, 2 * intermediate, hidden),
            step.weight(f"{path}.experts.down_proj", count, hidden, intermediate),
        )
    gate, up, down = names
    each = [f"{path}.experts.{number}" for number in range(count)]
    gates = [[f"{one}.{gate}.weight", f"{one}.{up}.weight"] for one in each]
    return step.stacked(gates, intermediate, hidden), step.stacked([[f"{one}.{down}.weight"] for one in each],
                                                                   hidden, intermediate)  # fmt: skip
