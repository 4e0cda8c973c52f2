"""Compile the configs that products will be tuned with, on all processors, so that no GPU waits for compilers."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor

from tilewright.library.matmul.problem import MatmulProblem
from tilewright.ops.products import MatmulPlan
from tilewright.settings import settings


def compile_one(task: tuple[MatmulProblem, int]) -> None:
    """One candidate, into the object cache."""
    problem, index = task
    plan = MatmulPlan(problem, None, 0)
    plan.compiled(plan.ranked[index].config)


def compile_ahead(problems: Iterable[MatmulProblem]) -> None:
    """All candidates of the problems' shape classes, where they will be timed; failures show when they are."""
    if not settings.tune:
        return
    classes = {problem.shape_class for problem in problems}
    tasks = [(problem, index) for problem in classes for index in range(len(MatmulPlan(problem, None, 0).ranked))]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max(1, len(os.sched_getaffinity(0)) - 1), context) as pool:
        for future in [pool.submit(compile_one, task) for task in tasks]:
            future.exception()
