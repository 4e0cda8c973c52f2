"""Each fusion on a GPU: `tests.fusion_cases` in float32 and in halves, against the unfused graphs in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.fusion_cases import CASES, case
from tilewright.build.builder import build
from tilewright.dtypes import DType, bfloat16, float16, float32
from tilewright.graph.reference import run

ROUNDINGS = {float32: 2.0**-23, float16: 2.0**-10, bfloat16: 2.0**-7}


@pytest.mark.parametrize("dtype", ROUNDINGS, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_fusions(torch: Any, name: str, dtype: DType, rng: np.random.Generator) -> None:
    """The largest error is at most three times that of the graph computed op by op in its own types."""
    found = case(name, rng, dtype)
    inputs = found.inputs(rng)
    exact, rounded = run(found.graph, inputs), run(found.graph, inputs, dtype=None)
    results = {**inputs, **build(found.graph, "cuda").run(inputs)}  # mutated inputs hold their new values
    for key, wanted in exact.items():
        error, own = (np.abs(np.asarray(item, np.float64) - wanted).max() for item in (results[key], rounded[key]))
        assert error <= 3 * own + 4 * ROUNDINGS[dtype] * (1 + np.abs(wanted).max()), (key, error, own)
