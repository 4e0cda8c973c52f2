"""Grouped products (experts) in engines for GPUs, on the stand-in."""

from __future__ import annotations

import numpy as np
import pytest

from tests.host.cuda_stand_in import Driver
from tilewright.build.builder import build
from tilewright.dtypes import bfloat16, float16, float32, int32, int64
from tilewright.graph.build import GraphBuilder
from tilewright.graph.pipeline import optimize
from tilewright.graph.reference import run


@pytest.mark.parametrize(
    ("dtype", "transposed", "rows"),
    [(float16, True, 150), (float16, False, "rows"), (bfloat16, True, "rows")],
)
def test_experts(driver: Driver, rng: np.random.Generator, dtype, transposed: bool, rows: int | str) -> None:
    """Groups that end inside tiles, one without rows, rows behind the last."""
    b = GraphBuilder("experts")
    count = b.symbol("rows", 1, 300) if rows == "rows" else rows
    x = b.input("x", dtype, (count, 64))
    ends = b.input("ends", int32 if transposed else int64, (3,))
    scale = b.input("scale", dtype, (count, 1))
    weights = rng.standard_normal((3, 40, 64) if transposed else (3, 64, 40)).astype(dtype.numpy)
    y = b.op("relu", [b.op("grouped_matmul", [x, b.constant(weights), ends], transpose_b=transposed)])
    if dtype == bfloat16:
        y = b.op("cast", [y], dtype=float32)
    b.output(b.op("multiply", [y, b.op("cast", [scale], dtype=y.dtype)]), "y")
    graph = b.finish()
    engine = build(graph, "cuda:sm_90a")
    assert engine.plan.steps[0].evidence["chosen"] == "hopper grouped matmul"
    for total in (150,) if rows == 150 else (1, 70, 300):
        limits = np.array([total // 3, total // 3, total - total // 9], np.int32 if transposed else np.int64)
        inputs = {name: rng.standard_normal((total, n)).astype(dtype.numpy) for name, n in (("x", 64), ("scale", 1))}
        inputs["ends"] = limits
        exact = run(graph, inputs)["y"]
        found = engine.run(inputs)["y"].astype(np.float64)
        assert np.max(np.abs(found - exact)) <= 2.0**-7 * np.max(np.abs(exact))


def test_swapped_weights_of_experts_are_read_as_they_are(rng: np.random.Generator) -> None:
    """As published models have them: [groups, columns, depth], swapped before the product."""
    b = GraphBuilder("experts")
    x, ends = b.input("x", float16, (40, 64)), b.input("ends", int32, (3,))
    weights = b.constant(rng.standard_normal((3, 24, 64)).astype(np.float16))
    b.output(b.op("grouped_matmul", [x, b.op("permute", [weights], order=(0, 2, 1)), ends]), "y")
    (node,) = optimize(b.finish()).nodes
    assert node.op == "grouped_matmul" and node.attributes["transpose_b"]
    assert node.inputs[1] is not None and node.inputs[1].shape == (3, 24, 64)
