"""Float32 products on GPUs whose operands are contiguous along the depth: computed from transposed copies.

A thread of a product by multiply-add has vectors of rows and of columns in fewer registers than vectors of the depth,
and meets more of its operands in the registers of the step before (`targets.gpu.dot_scalar`). Constants are turned in
the build, other operands by a launch ahead, which costs little where there are many multiply-adds. On an H200
(2026-11-28) a product of 1024 x 8192 x 8192 reached 0.905 of PyTorch's speed as it lies; with both operands turned,
models of one such layer reached 0.98 and 0.996 of TorchInductor's. One of 2048 x 4096 x 8192 took 2989 us with both
operands along the depth, 2799 with the left one, 2688 with neither; turning an operand took 113 and 122.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tilewright.dtypes import float32
from tilewright.graph.core import Graph, Value
from tilewright.library.binding import divides
from tilewright.library.candidate import Candidate
from tilewright.library.cost import expected
from tilewright.library.matmul.problem import GraphProduct
from tilewright.library.packing import order_recipe
from tilewright.library.weights import PackedOperand, packed_weights
from tilewright.symbolic import product
from tilewright.targets.base import Target

_COPIED_ELEMENTS = 4  # elements of a copy to shared memory
_LEAST_WORK = 1 << 32  # multiply-adds of which another launch is a small part
# Of the time, by what is turned.
_RIGHT_TURNED, _BOTH_TURNED, _LEFT_TURNED = 0.95, 0.9, 0.96


def of_transposed_operands(
    problem: GraphProduct, graph: Graph, target: Target, candidates: Callable[[GraphProduct], list[Candidate]]
) -> list[Candidate]:
    """The `candidates` of the same product with a right operand along the depth turned, and those with its left operand
    turned besides."""
    if not _is_worthwhile(problem, graph, target):
        return []
    found, straight, turned = list[Candidate](), problem, list[PackedOperand]()
    if problem.b_depth == 1:
        assert isinstance(problem.b, Value)
        turned.append(packed_weights(problem.b, order_recipe((1, 0)), graph, target))
        straight = replace(problem, b=turned[0].operand, b_depth=problem.columns, b_column=1)
        found += _after(turned, candidates(straight), _RIGHT_TURNED, "the right operand", target)
    if problem.a_depth == 1:
        factor, operands = (_BOTH_TURNED, "both operands") if turned else (_LEFT_TURNED, "the left operand")
        axes = range(problem.a.rank)
        turned.append(packed_weights(problem.a, order_recipe((axes[-1], *axes[:-1])), graph, target))
        assert isinstance(turned[-1].operand, Value)
        straight = replace(straight, a=turned[-1].operand, a_row=1, a_depth=problem.rows)
        found += _after(turned, candidates(straight), factor, operands, target)
    return found


def _after(
    turned: list[PackedOperand], candidates: list[Candidate], factor: float, operands: str, target: Target
) -> list[Candidate]:
    """Candidates of a product after the launches that turn its operands."""
    stages = [stage for weights in turned for stage in weights.stages]
    temporaries = [value for weights in turned for value in weights.temporaries]
    machine = target.machine()
    elements = sum(expected(product(value.shape)) for value in temporaries)
    moving = 2 * elements * float32.itemsize / machine.memory + len(stages) * machine.launches.kernel
    return [
        replace(
            candidate,
            stages=(*stages, *candidate.stages),
            cost=replace(candidate.cost, seconds=candidate.cost.seconds * factor + moving),
            temporaries=(*temporaries, *candidate.temporaries),
            reasons={**candidate.reasons, "turned": operands},
        )
        for candidate in candidates
    ]


def _is_worthwhile(problem: GraphProduct, graph: Graph, target: Target) -> bool:
    """Whether this is a large float32 product with an operand along the depth, and its operands are copied in whole
    vectors when they are turned."""
    sizes = (problem.rows, problem.columns, problem.depth)
    if problem.a.dtype != float32 or target.tf32 or problem.batches != 1 or problem.a in graph.constants:
        return False
    if not isinstance(problem.b, Value) or 1 not in (problem.a_depth, problem.b_depth):
        return False
    if problem.b_depth == 1 and problem.b.rank != 2:
        return False
    if not all(isinstance(size, int) and divides(_COPIED_ELEMENTS, size) for size in sizes):
        return False
    return expected(product(sizes)) >= _LEAST_WORK
