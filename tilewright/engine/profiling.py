"""The time of each step of an engine, as `Engine.profile` tells it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilewright.runtime.plan import Plan
from tilewright.symbolic import evaluate


def step_rows(
    plan: Plan, times: Sequence[Sequence[float]], sizes: Mapping[str, int], kernel_name: Callable[[str], str]
) -> list[dict[str, Any]]:
    """For each step its name, kernel, median milliseconds of some runs, bytes and flops for these sizes."""
    rows = []
    for number, step in enumerate(plan.steps):
        choice = next(c for c in step.choices if c.at_most is None or evaluate(c.size, sizes) <= c.at_most)
        rows.append(
            {
                "name": step.name,
                "kernel": kernel_name(choice.kernel),
                "milliseconds": sorted(run[number] for run in times)[len(times) // 2],
                "bytes": evaluate(step.bytes, sizes),
                "flops": evaluate(step.flops, sizes),
            }
        )
    return rows
