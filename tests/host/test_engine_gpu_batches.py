"""Batched products in engines for Hopper, on the stand-in."""

from __future__ import annotations

import numpy as np
import pytest

from tests.batched_products import product
from tests.host.cuda_stand_in import Driver
from tilewright.build.builder import build
from tilewright.dtypes import DType, bfloat16, float16
from tilewright.graph.build import GraphBuilder
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


@pytest.mark.parametrize(
    ("batches", "rows", "depth", "columns", "hopper"),
    [
        (1, 72, 100, 48, True),
        (3, 136, 24, 40, True),
        (1, 64, 64, 33, False),
        (2, 12, 40, 16, False),
        (2, 12, 40, 144, True),
    ],
)
def test_transposed_left_operands_are_read_as_they_lie(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator, batches, rows, depth, columns, hopper
) -> None:
    """Those that tensor copies cannot read are copied for many columns, and read by the plain kernel for few."""
    b = GraphBuilder("transposed")
    lead = () if batches == 1 else (batches,)
    x = b.input("x", float16, (*lead, depth, rows))
    y = b.input("y", float16, (*lead, depth, columns))
    left = b.op("permute", [x], order=(*range(len(lead)), len(lead) + 1, len(lead)))
    b.output(b.op("matmul", [left, y]), "z")
    graph = b.finish()
    if hopper:
        monkeypatch.setattr("tilewright.library.matmul.simt._plain", lambda *arguments: [])
    engine = build(graph, "cuda:sm_90a")
    assert len(engine.plan.steps) == (2 if rows % 8 and hopper else 1)
    assert engine.plan.steps[-1].evidence["chosen"].startswith("hopper") == hopper
    inputs = {value.name: rng.standard_normal(value.shape).astype(np.float16) for value in graph.inputs}
    exact = np.swapaxes(inputs["x"].astype(np.float64), -1, -2) @ inputs["y"].astype(np.float64)
    np.testing.assert_allclose(engine.run(inputs)["z"].astype(np.float64), exact, 1e-2, 3e-2)
