"""Batched products in engines for Hopper, on the stand-in."""

from __future__ import annotations

import numpy as np
import pytest

from tests.batched_products import product
from tests.host.cuda_stand_in import Driver
from tilewright.build.builder import build
from tilewright.dtypes import DType, bfloat16, float16
from tilewright.graph.core import Graph
from tilewright.graph.passes.fuse import fuse
from tilewright.graph.reference import run
from tilewright.library.select import candidates
from tilewright.targets.registry import get_target


def tried(graph: Graph) -> list[str]:
    (group,) = fuse(graph).groups
    return [each.name for each in candidates(group, graph, get_target("cuda:sm_90a"))]


@pytest.mark.parametrize(
    ("dtype", "batches", "rows", "transposed"),
    [(float16, 3, 70, True), (float16, "batches", 33, False), (bfloat16, "batches", "rows", True)],
)
def test_batches(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator, dtype: DType, batches, rows, transposed
) -> None:
    """Batches end inside tiles, whose rows beyond are the next batch's: they are neither stored nor read for."""
    graph = product(dtype, batches, rows, transposed)
    monkeypatch.setattr("tilewright.library.matmul.simt._plain", lambda *arguments: [])
    engine = build(graph, "cuda:sm_90a")
    assert engine.plan.steps[0].evidence["chosen"] == "hopper batched matmul"
    for count, lines in ((1, 1), (2, 129), (7, 64)):
        count, lines = (size if isinstance(size, int) else n for size, n in ((batches, count), (rows, lines)))
        shapes = {"left": (lines, 48), "right": (40, 48) if transposed else (48, 40), "residual": (lines, 40)}
        inputs = {name: rng.standard_normal((count, *shape)).astype(dtype.numpy) for name, shape in shapes.items()}
        exact, found = run(graph, inputs)["y"], engine.run(inputs)["y"].astype(np.float64)
        assert np.max(np.abs(found - exact)) <= 2.0**-7 * np.max(np.abs(exact))


def test_batches_that_share_a_matrix_are_rows_of_one_product() -> None:
    assert "hopper matmul" in tried(product(float16, 3, 64, True, shared=True))
    assert "hopper batched matmul" not in tried(product(float16, 3, 64, True, shared=True))
