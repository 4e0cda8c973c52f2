"""Grouped products (experts) in engines on a GPU."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tilewright.build.builder import build  # noqa: E402
from tilewright.build.tuning import Tuning  # noqa: E402
from tilewright.dtypes import float16, int32  # noqa: E402
from tilewright.graph.build import GraphBuilder  # noqa: E402
from tilewright.graph.reference import run  # noqa: E402


@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("groups", [1, 8, 40])
def test_experts(groups: int, transposed: bool, rng: np.random.Generator) -> None:
    """Every candidate that is chosen untimed; groups that end anywhere, some empty, rows behind the last."""
    b = GraphBuilder("experts")
    rows = b.symbol("rows", 1, 3000)
    x, ends = b.input("x", float16, (rows, 256)), b.input("ends", int32, (groups,))
    shape = (groups, 328, 256) if transposed else (groups, 256, 328)
    weights = (rng.standard_normal(shape) / 16).astype(np.float16)
    b.output(b.op("silu", [b.op("grouped_matmul", [x, b.constant(weights), ends], transpose_b=transposed)]), "y")
    graph = b.finish()
    engine = build(graph, "cuda", tuning=Tuning(0))
    for total in (1, 77, 1500, 3000):
        cuts = np.sort(rng.integers(0, total + 1, groups)).astype(np.int32)
        given = {"x": rng.standard_normal((total, 256)).astype(np.float16), "ends": cuts}
        exact = run(graph, given)["y"]
        found = engine.run({name: torch.from_numpy(array).cuda() for name, array in given.items()})["y"]
        again = engine.run({name: torch.from_numpy(array).cuda() for name, array in given.items()})["y"]
        error = np.abs(found.double().cpu().numpy() - exact)
        assert np.max(error) <= 2.0**-9 * np.max(np.abs(exact)) and torch.equal(found, again)
