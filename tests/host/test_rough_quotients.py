"""Quotients in what follows products of 16 bits: no branch, around which sums would leave their registers."""

from __future__ import annotations

import numpy as np
import pytest

from tests.host.cuda_stand_in import Driver
from tilewright.build.builder import build
from tilewright.build.tuning import Tuning
from tilewright.dtypes import DType, bfloat16, float16, float32
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph, Value
from tilewright.graph.reference import run


def mish(rows: int, depth: int, columns: int, dtype: DType) -> Graph:
    """A product and mish(x) = x n / (n + 2), n = e^x (e^x + 2), in float32."""
    b = GraphBuilder("mish")
    x, w = b.input("x", dtype, (rows, depth)), b.input("w", dtype, (columns, depth))
    wide = b.op("cast", [b.op("matmul", [x, w], transpose_b=True)], dtype=float32)

    def number(value: float) -> Value:
        return b.op("full", [], shape=(), value=value, dtype=float32)

    grown = b.op("exp", [b.op("minimum", [wide, number(20.0)])])
    above = b.op("multiply", [grown, b.op("add", [grown, number(2.0)])])
    share = b.op("divide", [above, b.op("add", [above, number(2.0)])])
    b.output(b.op("cast", [b.op("multiply", [wide, share])], dtype=dtype), "y")
    return b.finish()


@pytest.mark.parametrize("dtype", [float16, bfloat16])
def test_a_quotient_after_a_large_tile_does_not_spill(dtype: DType) -> None:
    engine = build(mish(1024, 8192, 8192, dtype), "cuda:sm_90a", tuning=Tuning(effort=0))
    (step,) = engine.plan.steps
    assert step.evidence["chosen"] == "hopper matmul"
    assert not any("spill" in remark for remark in engine.remarks)


@pytest.mark.parametrize("dtype", [float16, bfloat16])
def test_a_quotient_is_as_exact_as_results_tell(dtype: DType, driver: Driver, rng: np.random.Generator) -> None:
    graph = mish(40, 64, 48, dtype)
    inputs = {
        value.name: rng.standard_normal((len_, 64)).astype(dtype.numpy)
        for value, len_ in zip(graph.inputs, (40, 48), strict=True)
    }
    found = build(graph, "cuda:sm_90a", tuning=Tuning(effort=0)).run(inputs)["y"].astype(np.float64)
    exact = run(graph, {name: each.astype(dtype.numpy) for name, each in inputs.items()})["y"].astype(np.float64)
    step = 2.0**-10 if dtype == float16 else 2.0**-7
    np.testing.assert_allclose(found, exact, rtol=2 * step, atol=2 * step)
