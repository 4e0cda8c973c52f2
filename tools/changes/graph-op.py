"""bessel_j0 on a CPU agrees with its meaning, and PyTorch's operation has one rule."""

import numpy as np

from tilewright.build.builder import build
from tilewright.dtypes import float32
from tilewright.graph.build import GraphBuilder
from tilewright.graph.reference import run
from tilewright.importers import torch_ops

assert torch_ops
b = GraphBuilder("trial")
b.output(b.op("bessel_j0", [b.input("x", float32, (64,))]), "y")
graph, inputs = b.finish(), {"x": np.linspace(-20, 20, 64, dtype=np.float32)}
np.testing.assert_allclose(build(graph, "cpu").run(inputs)["y"], run(graph, inputs)["y"], atol=1e-5)
