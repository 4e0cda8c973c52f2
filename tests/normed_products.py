"""A block of a model that decodes: norms of few rows in front of products of every kind."""

from __future__ import annotations

import numpy as np

from tilewright.dtypes import DType, bfloat16
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph, Value

WIDTH, WIDE = 512, 384


def block(rows: int, rng: np.random.Generator, dtype: DType = bfloat16, op: str = "rms_norm") -> Graph:
    """Norm and product with a bias; residual, norm and gated product; residual, norm and product."""
    b = GraphBuilder("block")

    def drawn(*shape: int, scale: float = 1.0, around: float = 0.0) -> Value:
        return b.constant((around + scale * rng.standard_normal(shape)).astype(dtype.numpy), "w")

    def normed(x: Value) -> Value:
        return b.op(op, [x, drawn(WIDTH, scale=0.3, around=1.0)], axis=-1, epsilon=1e-5)

    x = b.input("x", dtype, (1, rows, WIDTH))
    inner = b.op("matmul", [normed(x), drawn(WIDTH, WIDTH, scale=WIDTH**-0.5)])
    inner = b.op("gelu", [b.op("add", [inner, drawn(WIDTH)])])
    branch = b.op("matmul", [inner, drawn(WIDTH, WIDTH, scale=WIDTH**-0.5)], transpose_b=True)
    x = b.op("add", [x, branch])
    both = b.op("matmul", [normed(x), drawn(2 * WIDE, WIDTH, scale=WIDTH**-0.5)], transpose_b=True)
    left, right = (b.op("slice", [both], axis=2, start=start, stop=start + WIDE) for start in (0, WIDE))
    gated = b.op("multiply", [b.op("silu", [left]), right])
    x = b.op("add", [x, b.op("matmul", [gated, drawn(WIDTH, WIDE, scale=WIDE**-0.5)], transpose_b=True)])
    b.output(b.op("matmul", [normed(x), drawn(3 * WIDTH, WIDTH, scale=WIDTH**-0.5)], transpose_b=True), "y")
    return b.finish()
