"""Advice on products that a GPU's tensor cores do not multiply, or whose operands are not read by tensor copies.

Nothing is changed: the last pass says of what is left which sizes and types are native to the target.
"""

from __future__ import annotations

from math import prod

from tilewright.dtypes import float32
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.kernel_facts import KernelFacts
from tilewright.graph.passes.narrow_products import listed
from tilewright.graph.rewrite import GraphRewriter
from tilewright.symbolic import upper_bound

_LEAST_WORK = 1 << 18  # multiply-adds that are worth a line


def native_shapes(graph: Graph, kernels: KernelFacts) -> Graph:
    """The graph with advice on what tensor copies and tensor cores do not take."""
    wide: list[str] = []

    def look(node: Node, rewriter: GraphRewriter) -> Value | None:
        x, w = node.inputs[:2]
        assert x is not None and w is not None
        if _work(node) < _LEAST_WORK:
            return None
        if x.dtype == float32 and kernels.exact:
            wide.append(f"%{node.output.name}")
        elif node.op == "matmul" and x.dtype.bits in (8, 16):
            text = _unaligned(node, x, kernels.row_bytes)
            if text:
                rewriter.advise(text)
        return None

    rewriter = GraphRewriter(graph)
    result = rewriter.run({"matmul": [look], "conv": [look]})
    if not wide:
        return result
    rewriter = GraphRewriter(result)
    counted = "1 product or convolution" if len(wide) == 1 else f"{len(wide)} products and convolutions"
    rewriter.advise(
        f"{counted} in float32 ({listed(wide)}): tensor cores multiply float16, bfloat16, 8-bit numbers, and float32 "
        "that is rounded to tf32 several times as fast; use one of these types, or the precision tf32, if the results "
        "allow it"
    )
    return rewriter.run({})


def _work(node: Node) -> int:
    """Multiply-adds at most, of a product as far as its sizes are known."""
    w = node.inputs[1]
    assert w is not None
    outputs = prod(upper_bound(extent) for extent in node.output.shape)
    if node.op == "conv":
        return outputs * prod(upper_bound(extent) for extent in w.shape[1:])
    return outputs * upper_bound(w.shape[-1] if node.attributes["transpose_b"] else w.shape[-2])


def _unaligned(node: Node, x: Value, row_bytes: int) -> str:
    """What to say of a product whose rows do not begin at multiples of `row_bytes`; nothing where they do."""
    depth, columns = x.shape[-1], node.output.shape[-1]
    if not isinstance(depth, int) or not isinstance(columns, int):
        return ""
    step = row_bytes // x.dtype.itemsize
    along = (depth,) if node.attributes["transpose_b"] else (depth, columns)
    if not any(extent % step for extent in along):
        return ""
    nearest = [-(-extent // step) * step for extent in (depth, columns)]
    return (
        f"matmul %{node.output.name} of depth {depth} and {columns} columns in {x.dtype}: its rows are not copied in "
        f"vectors of {row_bytes} bytes; {nearest[0]} and {nearest[1]} are the nearest native sizes"
    )
