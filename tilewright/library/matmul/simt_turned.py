"""Float32 products on GPUs whose operands run along the depth in memory: turned first, so that they run along the sums.

A thread of a product by multiply-add has vectors of rows and of columns in fewer registers than vectors of the depth,
and meets more of its operands in the registers of the step before (`targets.gpu.dot_scalar`). Constants are turned in
the build, a left operand by a launch ahead, which costs little where there are many columns. On an H200 (2026-11-28)
a product of 1024 x 8192 x 8192 reached 0.905 of PyTorch's speed as it lies; with both operands turned, models of one
such layer reached 0.98 and 0.996 of TorchInductor's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tilewright.dtypes import float32
from tilewright.graph.core import Graph, Value
from tilewright.library.binding import divides
from tilewright.library.candidate import Candidate
from tilewright.library.cost import expected
from tilewright.library.matmul.cpu import Problem
from tilewright.library.packing import order_recipe
from tilewright.library.weights import packed_weights
from tilewright.symbolic import product
from tilewright.targets.base import Target

_VECTOR = 4  # elements of a copy to shared memory
_LEAST_WORK = 1 << 32  # multiply-adds of which another launch is a small part
# Of the time, by what is turned: 1024 x 8192 x 8192 on an H200.
_RIGHT, _BOTH, _LEFT = 0.975, 0.91, 0.97


def of_turned_operands(
    problem: Problem, graph: Graph, target: Target, candidates: Callable[[Problem], list[Candidate]]
) -> list[Candidate]:
    """The `candidates` of the same product with a right operand along the depth turned, if it is a constant, and those
    with its left operand turned besides."""
    if not _is_worthwhile(problem, graph, target):
        return []
    found, factor, what, straight = [], _LEFT, "the left operand", problem
    if problem.b_depth == 1:
        assert isinstance(problem.b, Value)
        right = packed_weights(problem.b, order_recipe((1, 0)), graph, target)
        factor, what = _BOTH, "both operands"
        straight = replace(problem, b=right.operand, b_depth=problem.columns, b_column=1)
        for candidate in candidates(straight):
            cost = replace(candidate.cost, seconds=candidate.cost.seconds * _RIGHT)
            found.append(replace(candidate, cost=cost, reasons={**candidate.reasons, "turned": "the right operand"}))
    axes = range(problem.a.rank)
    left = packed_weights(problem.a, order_recipe((axes[-1], *axes[:-1])), graph, target)
    assert isinstance(left.operand, Value)
    machine = target.machine()
    moving = 2 * expected(product(problem.a.shape)) * float32.itemsize / machine.memory + machine.launches.kernel
    for candidate in candidates(replace(straight, a=left.operand, a_row=1, a_depth=problem.rows)):
        found.append(
            replace(
                candidate,
                stages=(*left.stages, *candidate.stages),
                cost=replace(candidate.cost, seconds=candidate.cost.seconds * factor + moving),
                temporaries=(*left.temporaries, *candidate.temporaries),
                reasons={**candidate.reasons, "turned": what},
            )
        )
    return found


def _is_worthwhile(problem: Problem, graph: Graph, target: Target) -> bool:
    """Whether this is a large float32 product whose left operand runs along the depth, whose right one does not or is a
    constant, and whose operands are copied in whole vectors when they are turned."""
    sizes = (problem.rows, problem.columns, problem.depth)
    if problem.a.dtype != float32 or target.tf32 or problem.batches != 1 or problem.a in graph.constants:
        return False
    if not isinstance(problem.b, Value) or problem.a_depth != 1:
        return False
    if problem.b_depth == 1 and (problem.b not in graph.constants or problem.b.rank != 2):
        return False
    if not all(isinstance(size, int) and divides(_VECTOR, size) for size in sizes):
        return False
    return expected(product(sizes)) >= _LEAST_WORK
