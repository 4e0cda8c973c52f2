"""Grouped products (experts) and weights that are asked for ahead, in engines on a GPU."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tilewright.dtypes import bfloat16, float16, int32  # noqa: E402
from tilewright.engine.builder import build  # noqa: E402
from tilewright.engine.tuning import Tuning  # noqa: E402
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


def test_products_that_ask_for_weights_give_the_same(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    b = GraphBuilder("chain")
    y = b.input("x", bfloat16, (8, 1024))
    for width in (4096, 1024, 4096, 1024):
        depth = y.shape[1]
        y = b.op("rms_norm", [y, b.constant(np.ones(depth, bfloat16.numpy))], axis=1, epsilon=1e-5)
        weights = (rng.standard_normal((depth, width)) / 32).astype(bfloat16.numpy)
        y = b.op("matmul", [y, b.constant(weights)], transpose_b=False)
    b.output(y, "y")
    graph = b.finish()
    engine = build(graph, "cuda", tuning=Tuning(0))
    given = {"x": torch.from_numpy(rng.standard_normal((8, 1024)).astype(np.float32)).bfloat16().cuda()}
    found = engine.run(given)["y"]
    monkeypatch.setattr("tilewright.engine.ahead.WANTED", 0)
    assert torch.equal(found, build(graph, "cuda", tuning=Tuning(0)).run(given)["y"])
