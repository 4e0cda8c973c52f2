"""A product of one column has the candidate, and its engine is right with no other."""

from unittest import mock

import numpy as np

from tilewright.build.builder import build
from tilewright.dtypes import float32
from tilewright.graph.build import GraphBuilder
from tilewright.library.matmul import cpu_vector

b = GraphBuilder("trial")
b.output(b.op("matmul", [b.input("x", float32, (40, 96)), b.input("w", float32, (96, 1))]), "y")
rng = np.random.default_rng(0)
inputs = {"x": rng.standard_normal((40, 96), np.float32), "w": rng.standard_normal((96, 1), np.float32)}
with mock.patch.object(cpu_vector, "matmul_candidates", return_value=[]):
    found = build(b.finish(), "cpu").run(inputs)["y"]
np.testing.assert_allclose(found, inputs["x"] @ inputs["w"], atol=1e-4)
