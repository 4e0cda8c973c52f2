"""Products of 8-bit floats with a scale for each block, for targets whose kernels scale the sums of a block.

    matmul(views(dequantize(x, sx)), views(dequantize(w, sw)))  ->  block_scaled_matmul(x, w, sx, sw)

where every scale of x is that of 128 steps of the depth of a row, every scale of w that of 128 columns by 128 steps.
Models write this as reshapes to [..., M, groups, 128] and [N, groups, 128] or [N / 128, 128, groups, 128] around
`dequantize`.  Other blocks stay with the passes that come after.
"""

from __future__ import annotations

import numpy as np

from tilewright.dtypes import float8e4nv, float8e5, float32
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.passes.narrow_products import scaled_casts
from tilewright.graph.quantization import SCALE_BLOCK
from tilewright.graph.rewrite import GraphRewriter, apply_rules, computed_constant

_TYPES = (float8e4nv, float8e5)
_COLUMNS = 16  # of whose multiples results of every type are stored by tensor copies


def block_products(graph: Graph) -> Graph:
    """The graph with such products."""
    return apply_rules(graph, {"multiply": [_dequantized], "matmul": [_product]})


def without_block_products(graph: Graph) -> Graph:
    """The graph with products by floats in place of `block_scaled_matmul`."""
    return apply_rules(graph, {"block_scaled_matmul": [_product_of_floats]})


def _dequantized(node: Node, rewriter: GraphRewriter) -> Value | None:
    """cast(x) scale of 8-bit floats with a scale for each 128 of the last dimension as `dequantize`."""
    for x, scale in scaled_casts(node, rewriter):
        if x.shape == node.output.shape and x.shape[-1:] == (SCALE_BLOCK,) and _in_blocks(x, scale):
            return rewriter.op("dequantize", [x, scale])
    return None


def _in_blocks(x: Value, scale: Value) -> bool:
    return scale.dtype.is_float and scale.rank == x.rank and scale.shape[-1] == 1


def _product(node: Node, rewriter: GraphRewriter) -> Value | None:
    if node.attributes["dtype"] is not None or node.attributes["transpose_a"]:
        return None
    x, w = node.inputs
    assert x is not None and w is not None
    if not node.attributes["transpose_b"]:
        turned = rewriter.producer(w, "permute")
        if turned is None or w.rank != 2 or turned.inputs[0] is None:
            return None
        w = turned.inputs[0]
    rows, weights = _source(x, rewriter), _source(w, rewriter)
    if rows is None or weights is None or w.rank != 2:
        return None
    columns, depth = w.shape
    if not isinstance(columns, int) or not isinstance(depth, int) or columns % _COLUMNS or depth % SCALE_BLOCK:
        return None
    groups = depth // SCALE_BLOCK
    left = _scales_of_rows(rows, (*x.shape[:-1], groups), rewriter)
    right = _scales_of_blocks(weights, columns, groups, rewriter)
    if left is None or right is None:
        return None
    codes, data = weights.inputs[0], computed_constant(weights.inputs[0], rewriter)
    assert codes is not None
    if data is not None:
        codes = rewriter.new_constant(np.ascontiguousarray(data.reshape(columns, depth)), f"{codes.name}.codes")
    else:
        codes = rewriter.op("reshape", [codes], shape=w.shape)
    numbers = rewriter.op("reshape", [rows.inputs[0]], shape=x.shape)
    sums = rewriter.op("block_scaled_matmul", [numbers, codes, left, right])
    return rewriter.cast(sums, node.output.dtype)


def _source(value: Value, rewriter: GraphRewriter) -> Node | None:
    """The `dequantize` of 8-bit floats that an operand is a reshape of, in its own type or a wider one than 8 bits."""
    node = rewriter.producer(value)
    while node is not None and node.op in ("reshape", "cast") and node.output.dtype.is_float:
        if node.output.dtype.bits < 16 or node.inputs[0] is None:
            return None
        node = rewriter.producer(node.inputs[0])
    if node is None or node.op != "dequantize" or node.inputs[0] is None:
        return None
    return node if node.inputs[0].dtype in _TYPES else None


def _scales_of_rows(node: Node, shape: tuple[object, ...], rewriter: GraphRewriter) -> Value | None:
    """The scales of numbers [..., groups, 128] in the given shape [..., groups]."""
    x, scale = node.inputs[:2]
    assert x is not None and scale is not None
    if x.shape != (*shape, SCALE_BLOCK) or scale.shape != (*shape, 1):
        return None
    return rewriter.cast(rewriter.op("reshape", [scale], shape=shape), float32)


def _scales_of_blocks(node: Node, columns: int, groups: int, rewriter: GraphRewriter) -> Value | None:
    """[columns / 128, groups] of weights with a scale for each block; columns of the last one may be fewer."""
    x, scale = node.inputs[:2]
    assert x is not None and scale is not None
    blocks = -(-columns // SCALE_BLOCK)
    whole = (blocks, SCALE_BLOCK, groups, SCALE_BLOCK)
    if x.shape == whole and scale.shape == (blocks, 1, groups, 1):
        return rewriter.cast(rewriter.op("reshape", [scale], shape=(blocks, groups)), float32)
    known = computed_constant(scale, rewriter)
    if known is None or x.shape not in (whole, (columns, groups, SCALE_BLOCK)) or scale.rank != x.rank:
        return None
    if scale.shape[-1] != 1:
        return None
    by_column = np.broadcast_to(known, (*x.shape[:-1], 1)).reshape(columns, groups)
    first = by_column[::SCALE_BLOCK]
    if not np.array_equal(np.repeat(first, SCALE_BLOCK, axis=0)[:columns], by_column):
        return None
    return rewriter.new_constant(np.ascontiguousarray(first, np.float32), f"{scale.name}.blocks")


def _product_of_floats(node: Node, rewriter: GraphRewriter) -> Value:
    x, w, left, right = node.inputs
    assert x is not None and w is not None and left is not None and right is not None
    (blocks, groups), columns = right.shape, w.shape[0]
    rows = rewriter.op("reshape", [x], shape=(*left.shape, SCALE_BLOCK))
    scales = rewriter.op("reshape", [left], shape=(*left.shape, 1))
    floats = rewriter.op("reshape", [rewriter.op("dequantize", [rows, scales])], shape=x.shape)
    scales = rewriter.op("reshape", [right], shape=(blocks, 1, groups))
    scales = rewriter.op("broadcast_to", [scales], shape=(blocks, SCALE_BLOCK, groups))
    assert isinstance(blocks, int)
    scales = rewriter.op("reshape", [scales], shape=(blocks * SCALE_BLOCK, groups))
    scales = rewriter.op("slice", [scales], axis=0, start=0, stop=columns, step=1)
    scales = rewriter.op("reshape", [scales], shape=(columns, groups, 1))
    codes = rewriter.op("reshape", [w], shape=(columns, groups, SCALE_BLOCK))
    matrix = rewriter.op("reshape", [rewriter.op("dequantize", [codes, scales])], shape=w.shape)
    return rewriter.op("matmul", [floats, matrix], transpose_b=True)
