"""Advice on products and convolutions that a GPU's tensor cores do not multiply, or not all of what they could, or
whose operands are not read by tensor copies.

Nothing is changed: the last pass says of what is left which sizes and types are native to the target.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    grouped: list[str] = []

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
        elif node.op == "conv" and x.dtype.bits == 16:
            if node.attributes["groups"] > 1 and _is_narrow_group(node, kernels):
                grouped.append(f"%{node.output.name}")
            elif node.attributes["groups"] == 1 and upper_bound(w.shape[1]) < kernels.copied_channels:
                rewriter.advise(
                    f"conv %{node.output.name} of {w.shape[1]} channels in {x.dtype}: tensor cores multiply "
                    f"{kernels.channels} channels at once, so most of what they multiply is zeros, or they are not "
                    f"used; {kernels.channels} is the nearest native number"
                )
        return None

    rewriter = GraphRewriter(graph)
    result = rewriter.run({"matmul": [look], "conv": [look]})
    texts = []
    if wide:
        texts.append(
            f"{_counted(wide, 'product or convolution', 'products and convolutions')} in float32 ({listed(wide)}): "
            "tensor cores multiply float16, bfloat16, 8-bit numbers, and float32 that is rounded to tf32 several times "
            "as fast; use one of these types, or the precision tf32, if the results allow it"
        )
    if grouped:
        texts.append(
            f"{_counted(grouped, 'convolution', 'convolutions')} of groups with at most {kernels.plane_columns} output "
            f"channels ({listed(grouped)}): computed without tensor cores, which take groups of {kernels.channels} "
            "channels or more"
        )
    if not texts:
        return result
    rewriter = GraphRewriter(result)
    for text in texts:
        rewriter.advise(text)
    return rewriter.run({})


def _counted(names: Sequence[str], one: str, several: str) -> str:
    return f"1 {one}" if len(names) == 1 else f"{len(names)} {several}"


def _is_narrow_group(node: Node, kernels: KernelFacts) -> bool:
    """Whether a convolution's groups have so few output channels that each thread has a pixel of all of them."""
    w = node.inputs[1]
    assert w is not None
    return upper_bound(w.shape[0]) <= kernels.plane_columns * node.attributes["groups"]


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
