"""An engine of a product, a softmax and a sort is built for a target without a driver."""

from tilewright.build.builder import build
from tilewright.dtypes import float32
from tilewright.graph.build import GraphBuilder

b = GraphBuilder("trial")
product = b.op("matmul", [b.input("x", float32, (128, 64)), b.input("w", float32, (64, 32))])
b.output(b.op("argsort", [b.op("softmax", [product], axis=-1)], axis=-1, count=32), "y")
assert build(b.finish(), "hip:gfx942").target == "hip:gfx942"
