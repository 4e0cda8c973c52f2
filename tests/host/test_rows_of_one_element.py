"""Row operations along an axis of one element, which a permute brings there."""

from __future__ import annotations

import numpy as np
import pytest

from tests.host.cuda_stand_in import Driver
from tilewright.build.builder import build
from tilewright.build.tuning import Tuning
from tilewright.dtypes import DType, float16, float32
from tilewright.graph.build import GraphBuilder
from tilewright.graph.reference import run


@pytest.mark.parametrize("dtype", [float16, float32], ids=str)
@pytest.mark.parametrize(("op", "attributes"), [
    ("softmax", {"axis": 1}), ("layer_norm", {"axis": 3, "epsilon": 1e-5}), ("reduce_sum", {"axes": (1,)}),
])  # fmt: skip
def test_of_one_element(
    driver: Driver, rng: np.random.Generator, op: str, attributes: dict[str, object], dtype: DType
) -> None:
    b = GraphBuilder("one")
    x = b.input("x", dtype, (1, 3, 1, 5))
    moved = b.op("permute", [b.op("tanh", [x])], order=(1, 0, 3, 2))
    b.output(b.op(op, [moved], **attributes), "y")
    graph = b.finish()
    inputs = {"x": rng.standard_normal((1, 3, 1, 5)).astype(dtype.numpy)}
    found = build(graph, "cuda:sm_90a", tuning=Tuning(effort=0)).run(inputs)["y"]
    np.testing.assert_allclose(found.astype(np.float64), run(graph, inputs)["y"], rtol=2e-3, atol=2e-3)
