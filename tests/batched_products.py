"""Graphs of batched products with an epilogue, for tests of engines."""

from __future__ import annotations

from tilewright.dtypes import DType
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph


def product(dtype: DType, batches: int | str, rows: int | str, transposed: bool, shared: bool = False) -> Graph:
    """y = gelu(a @ b * scale + residual), batch by batch."""
    b = GraphBuilder("batches")
    count = b.symbol(batches, 1, 8) if isinstance(batches, str) else batches
    lines = b.symbol(rows, 1, 150) if isinstance(rows, str) else rows
    left = b.input("left", dtype, (count, lines, 48))
    right = b.input("right", dtype, (1 if shared else count, *((40, 48) if transposed else (48, 40))))
    y = b.op("matmul", [left, right], transpose_b=transposed)
    y = b.op("add", [y, b.input("residual", dtype, (count, lines, 40))])
    b.output(b.op("gelu", [y]), "y")
    return b.finish()
