"""Norms of few rows by the products that read them, on a GPU of compute capability 9.0, against float64."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.normed_products import WIDTH, block
from tilewright.build.builder import build
from tilewright.build.tuning import Tuning
from tilewright.graph.reference import run
from tilewright.targets.nvidia.target import NvidiaTarget

NORMED_ROWS = NvidiaTarget.named("sm_90a").kernels.normed_rows

pytestmark = pytest.mark.hopper


@pytest.mark.parametrize("effort", [0, 3])
@pytest.mark.parametrize("rows", [1, 4, NORMED_ROWS, NORMED_ROWS + 1])
def test_a_block_of_few_rows(rows: int, effort: int, torch: Any, rng: np.random.Generator) -> None:
    """As exact as op by op, the same every time; a row more than few is normalised by kernels of norms."""
    graph = block(rows, rng)
    inputs = {"x": (3 * rng.standard_normal((1, rows, WIDTH))).astype(ml_dtypes.bfloat16)}
    exact, rounded = run(graph, inputs)["y"], run(graph, inputs, dtype=None)["y"].astype(np.float64)
    engine = build(graph, "cuda", tuning=Tuning(effort))
    names = [engine.kernel_name(step.choices[-1].kernel) for step in engine.plan.steps]
    assert names.count("normalize") == (0 if rows <= NORMED_ROWS else 3)
    results = [engine.run(inputs)["y"] for _ in range(3)]
    error = np.linalg.norm(results[0].astype(np.float64) - exact)
    assert error <= 1.2 * np.linalg.norm(rounded - exact)
    assert all(np.array_equal(result, results[0]) for result in results)
