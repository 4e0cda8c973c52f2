"""Weights that come to the L2 cache before the kernel that reads them: memory does not idle between products.

A product that streams its weights ends with its last loads on their way, its sums to be stored, and kernels behind it
that move little: norms, rotary positions, attention of a few queries.  Kernels that can (with an operand `AHEAD`) use
that time: their loading thread asks for a part of the next weights that the plan reads from end to end
(`KernelCall.weights`).  What is asked for is a part of what would be read anyway, and changes no result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Union

from tilewright.graph.core import Value
from tilewright.graph.fusion import Group
from tilewright.symbolic import product
from tilewright.tactics.core import AHEAD, Candidate, KernelCall, PackedConstant, Stage, TiledOperand
from tilewright.tune.cost import expected

LINE = 128  # bytes, of the cache
WANTED = 0  # bytes that are asked for: what memory gives in the time between two products, and a margin
KEPT = 24 << 20  # bytes that kernels in between may move, for the cache to keep what was asked for

Constant = Union[Value, PackedConstant]
Scheduled = list[tuple[Group, Candidate | None]]


def fetch_ahead(scheduled: Scheduled) -> Scheduled:
    """The plan's groups in order, with kernels told what to ask for."""
    following: Constant | None = None
    between = 0.0  # bytes that are moved until it is read
    found: Scheduled = []
    for group, candidate in reversed(scheduled):
        if candidate is None:
            found.append((group, None))
            continue
        stages: list[Stage] = []
        for stage in reversed(candidate.stages):
            if following is not None and between <= KEPT:
                stage = Stage(tuple(_told(call, following) for call in stage.calls))
            stages.append(stage)
            weights = _weights(stage.calls)
            if weights is not None:
                following, between = weights, 0.0
            else:
                between += expected(candidate.cost.bytes) / len(candidate.stages)
        found.append((group, replace(candidate, stages=tuple(reversed(stages)))))
    return list(reversed(found))


def _weights(calls: Sequence[KernelCall]) -> Constant | None:
    """What a stage reads from end to end, if it is a constant."""
    for call in calls:
        if call.weights:
            operand = call.operands[call.weights]
            assert isinstance(operand, TiledOperand)
            return operand.value
    return None


def _told(call: KernelCall, weights: Constant) -> KernelCall:
    """A call that asks for a part of `weights`, if its kernel can."""
    if AHEAD not in call.operands:
        return call
    value = weights.value if isinstance(weights, PackedConstant) else weights
    size = expected(product(value.shape)) * value.dtype.itemsize
    told = {AHEAD: weights, "ahead_lines": size // LINE, "ahead_wanted": min(size, WANTED) // LINE}
    return replace(call, operands={**call.operands, **told})
