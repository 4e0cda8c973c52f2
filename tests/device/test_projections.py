"""Products with RoPE and the cache write in their epilogue, on a GPU: each range of rows, and pages of other tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.projections import projection_graph, projection_inputs
from tilewright.build.builder import build
from tilewright.build.tuning import Tuning
from tilewright.dtypes import DType, bfloat16, float16
from tilewright.graph.reference import run
from tilewright.library.matmul import projection
from tilewright.library.matmul.hopper.projection_config import ProjectionHeads

pytestmark = pytest.mark.capability(9)

CASES = [
    (ProjectionHeads(32, 8, 128, 128), 4096, bfloat16, False),
    (ProjectionHeads(14, 2, 64, 64), 896, bfloat16, True),
    (ProjectionHeads(12, 12, 64, 0), 768, float16, True),
    (ProjectionHeads(32, 4, 80, 32), 2560, float16, False),
    (ProjectionHeads(2, 1, 32, 32), 64, bfloat16, False),
]


@pytest.mark.parametrize(("heads", "depth", "dtype", "bias"), CASES)
@pytest.mark.parametrize("together", [True, False], ids=["one kernel", "timed"])
def test_projections(
    heads: ProjectionHeads, depth: int, dtype: DType, bias: bool, together: bool, monkeypatch: pytest.MonkeyPatch,
    rng: np.random.Generator,
) -> None:  # fmt: skip
    """Queries, and both pools with the rows that nothing writes."""
    if together:
        estimate = projection._together

        def preferred(*arguments: Any) -> Any:
            found = estimate(*arguments)
            return replace(found, cost=replace(found.cost, seconds=found.cost.seconds / 100))

        monkeypatch.setattr(projection, "_together", preferred)
    graph = projection_graph(heads, None, depth, dtype, bias, rng)
    engine = build(graph, "cuda", tuning=Tuning(0 if together else 1))
    if together:
        assert engine.plan.steps[0].evidence["chosen"] == "hopper projection"
    for rows in (1, 8, 9, 33, 64, 65, 3, 1):
        inputs = projection_inputs(heads, rows, depth, dtype, rng, 128)
        given = {name: array.copy() for name, array in inputs.items()}
        found = {**engine.run(given), "keys": given["keys"], "values": given["values"]}
        for name, expected in run(graph, inputs).items():
            wanted, ours = expected.astype(np.float64), found[name].astype(np.float64)
            assert np.abs(ours - wanted).max() <= 2**-6 * np.abs(wanted).max(), (name, rows)
