"""Products by float4e2 weights, multiplied as they are stored, agree with float64."""

import numpy as np

from tilewright.build.builder import build
from tilewright.dtypes import BY_NAME, float32
from tilewright.graph.build import GraphBuilder
from tilewright.graph.passes.weight_products import weight_products
from tilewright.importers.emitter import Emitter
from tilewright.importers.quantized_weights import QuantizedMatrix, multiply
from tilewright.targets.library_facts import CPU_KERNELS

rng = np.random.default_rng(0)
codes = rng.integers(0, 16, (130, 128)).astype(np.uint8).view(BY_NAME["float4e2"].numpy)
matrix = QuantizedMatrix(codes, rng.uniform(0.001, 0.01, (130, 4)).astype(np.float32))
b = GraphBuilder("trial")
b.output(multiply(Emitter(b), b.input("x", float32, (3, 128)), matrix, "w"), "y")
graph, x = b.finish(), rng.standard_normal((3, 128)).astype(np.float32)
assert "dequantized_matmul" in [node.op for node in weight_products(graph, CPU_KERNELS).nodes]
found = build(graph, "cpu").run({"x": x})["y"]
np.testing.assert_allclose(found, x.astype(np.float64) @ matrix.numbers().T, rtol=1e-4, atol=1e-4)
