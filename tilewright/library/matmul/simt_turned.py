"""Float32 products on GPUs whose operands run along the depth in memory: turned first, so that they run along the sums.

A thread of a product by multiply-add has vectors of rows and of columns in fewer registers than vectors of the depth,
and meets more of its operands in the registers of the step before (`targets.gpu.dot_scalar`). Constants are turned in
the build, the left operand by a launch ahead: it costs little where there are many columns. On an H200, of
1024 x 8192 x 8192 with a bias and an activation, TorchInductor / ours: 0.905 as they are, 0.98 to 0.996 turned.
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
_ONE, _BOTH = 0.975, 0.93  # of the time, with one and with both turned: 1024 x 8192 x 8192 on an H200


def of_turned_operands(
    problem: Problem, graph: Graph, target: Target, candidates: Callable[[Problem], list[Candidate]]
) -> list[Candidate]:
    """The `candidates` of the same product with its right operand, a constant, turned, and with both."""
    if not _is_worthwhile(problem, graph, target):
        return []
    assert isinstance(problem.b, Value)
    right = packed_weights(problem.b, order_recipe((1, 0)), graph, target)
    axes = range(problem.a.rank)
    left = packed_weights(problem.a, order_recipe((axes[-1], *axes[:-1])), graph, target)
    assert isinstance(left.operand, Value)
    machine = target.machine()
    moving = 2 * expected(product(problem.a.shape)) * float32.itemsize / machine.memory + machine.launches.kernel
    one = replace(problem, b=right.operand, b_depth=problem.columns, b_column=1)
    both = replace(one, a=left.operand, a_row=1, a_depth=problem.rows)
    found = []
    for candidate in candidates(one):
        cost = replace(candidate.cost, seconds=candidate.cost.seconds * _ONE)
        found.append(replace(candidate, cost=cost, reasons={**candidate.reasons, "turned": "the right operand"}))
    for candidate in candidates(both):
        found.append(
            replace(
                candidate,
                stages=(*left.stages, *candidate.stages),
                cost=replace(candidate.cost, seconds=candidate.cost.seconds * _BOTH + moving),
                temporaries=(*left.temporaries, *candidate.temporaries),
                reasons={**candidate.reasons, "turned": "both operands"},
            )
        )
    return found


def _is_worthwhile(problem: Problem, graph: Graph, target: Target) -> bool:
    """Whether a large float32 product by a constant has operands that run along the depth, and are copied in whole
    vectors when they are turned."""
    sizes = (problem.rows, problem.columns, problem.depth)
    if problem.a.dtype != float32 or target.tf32 or problem.batches != 1 or problem.a in graph.constants:
        return False
    if not isinstance(problem.b, Value) or problem.b not in graph.constants or problem.b.rank != 2:
        return False
    if problem.a_depth != 1 or problem.b_depth != 1:
        return False
    if not all(isinstance(size, int) and divides(_VECTOR, size) for size in sizes):
        return False
    return expected(product(sizes)) >= _LEAST_WORK
