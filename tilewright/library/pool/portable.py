"""The pool for any target: a program takes some pixels and channels of a result."""

from __future__ import annotations

from tilewright.graph.core import Graph
from tilewright.graph.fusion import Group
from tilewright.library.binding import divides, launch
from tilewright.library.candidate import Candidate, Stage
from tilewright.library.cost import estimate
from tilewright.library.generated.elementwise import total_bytes
from tilewright.library.pool.kernel import average_pool, max_pool
from tilewright.library.pool.problem import PoolProblem, pool_problem
from tilewright.library.windows import window_blocks
from tilewright.symbolic import ceil_divide, product
from tilewright.targets.base import Target


def pool_candidates(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    """The candidates of a pooling group. Raises `NotImplementedError` for channels-first images."""
    return [portable_pool(pool_problem(group, graph), target)]


def portable_pool(problem: PoolProblem, target: Target) -> Candidate:
    """The launch of `library.pool.kernel`."""
    sizes, group = problem.sizes, problem.group
    rows, block, threads = window_blocks(sizes["pixels"], problem.channels, target)
    constants = {**problem.constants, "ROWS": rows, "BLOCK": block, "MASK": not divides(block, problem.channels),
                 "EPILOGUE": problem.slots.function}  # fmt: skip
    grid = (ceil_divide(sizes["pixels"], rows), ceil_divide(problem.channels, block), 1)
    kernel = max_pool if problem.is_max else average_pool
    call = launch(kernel, problem.tensors, sizes, constants, grid, problem.slots.extra, threads)
    moved = total_bytes(group.inputs, group.outputs)
    cost = estimate(target.machine(), moved, problem.flops, product(grid), problem.image.dtype, 0.1)
    return Candidate("windows", (Stage((call,)),), cost, (), {"block": f"{rows} pixels x {block} channels"})
