"""Products of floats by quantized weights, for targets whose kernels read the weights as they are stored.

    matmul(x, views(dequantize(w, scale, zero)))  ->  dequantized_matmul(x, w, scale, zero)

for constants, where every scale is that of a run of the depth, and the runs are equal: a scale for each column (or
one in all), for groups of 32 to 256 of a column, or for two-dimensional blocks, whose scales are repeated by column.
Views are reshapes, permutes and changes of the float type.  Right operands that stay are named in the remarks, and
become floats: those of other forms, of more than two dimensions, and slices, concatenations and gathers of weights.
"""

from __future__ import annotations

from functools import reduce
from math import gcd

import numpy as np

from tilewright.dtypes import DType, float8e4nv, float8e5, from_numpy, int4, int8, uint4, uint8
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.kernel_facts import KernelFacts
from tilewright.graph.rewrite import GraphRewriter, apply_rules, computed_constant
from tilewright.graph.target_passes import TargetPasses

_DEEPEST_WEIGHTS = 8  # nodes from the product to `dequantize`
_LARGEST_SCALE = 2.0**100  # kernels multiply weights by 2^16 when they round them to bfloat16
_VIEWS_OF_WEIGHTS = ("reshape", "permute", "cast")
_PARTS = ("slice", "concat", "gather", "broadcast_to")
Weights = tuple[np.ndarray, np.ndarray, "np.ndarray | None"]


def weight_products(graph: Graph, kernels: KernelFacts) -> Graph:
    """The graph with such products, and remarks on quantized weights that are none."""

    def note(node: Node, rewriter: GraphRewriter) -> Value | None:
        found = _product(node, rewriter, kernels)
        if not isinstance(found, str):
            return found
        rewriter.advise(f"the quantized weights of matmul %{node.output.name} become floats: {found}")
        return None

    return GraphRewriter(graph).run({"matmul": [note]})


def reads_weights(passes: TargetPasses, x: DType, codes: DType, scale: DType, group: int, depth: int) -> bool:
    """Whether products of rows of a type by such weights stay in graphs that take these passes of their targets."""
    return why_floats(passes, x, codes, scale, group, depth) is None


def why_floats(passes: TargetPasses, x: DType, codes: DType, scale: DType, group: int, depth: int) -> str | None:
    """Why graphs that take these passes store such weights as floats; None where they do not."""
    found = next((each.kernels for each in passes.before if each.run is weight_products), None)
    if found is None:
        return "the target has no kernels that read quantized weights"
    reasons = (reason(x, codes, scale, group, depth) for reason in found.weight_limits)
    return next((reason for reason in reasons if reason), None)


def without_weight_products(graph: Graph) -> Graph:
    """The graph with products by floats again, which are computed of the weights when the engine is built."""
    return apply_rules(graph, {"dequantized_matmul": [_product_of_floats]})


def _product(node: Node, rewriter: GraphRewriter, kernels: KernelFacts) -> Value | str | None:
    x, w = node.inputs
    assert x is not None and w is not None
    if node.attributes["dtype"] is not None or not x.dtype.is_float or x.dtype.bits > 32:
        return None
    chain = _chain(w, rewriter)
    if chain is None:
        return None
    source = chain[0]
    arrays = [computed_constant(item, rewriter) for item in source.inputs]
    if any(array is None and item is not None for array, item in zip(arrays, source.inputs, strict=True)):
        return None
    codes, scale, zero = (*arrays, None)[:3]
    assert codes is not None and scale is not None
    if codes.size < kernels.weight_elements:
        return None
    if w.rank != 2:
        return f"they have {w.rank} dimensions"
    part = next((view.op for view in chain[1:] if view.op in _PARTS), None)
    if part is not None:
        return f"{part} is between them and the product"
    found = _by_columns(codes, scale, zero, chain[1:], bool(node.attributes["transpose_b"]), kernels.weight_group)
    found = found if isinstance(found, str) else canonical(*found)
    if isinstance(found, str):
        return found
    codes, scale, depth = found[0], found[1], found[0].shape[1]
    types = (x.dtype, from_numpy(codes.dtype), from_numpy(scale.dtype))
    reasons = [unsupported(*types, depth // scale.shape[1], depth) for unsupported in kernels.weight_limits]
    if any(reasons):
        return next(reason for reason in reasons if reason)
    names = (f"{w.name}.codes", f"{w.name}.scales", f"{w.name}.zeros")
    made = [rewriter.new_constant(item, name) for item, name in zip(found, names, strict=True) if item is not None]
    return rewriter.op("dequantized_matmul", [x, *made])


def _chain(value: Value, rewriter: GraphRewriter) -> list[Node] | None:
    """`dequantize` and the views, or what takes parts, that lead from it to a product's operand."""
    found: list[Node] = []
    for _ in range(_DEEPEST_WEIGHTS):
        node = rewriter.producer(value)
        if node is None or not node.inputs or node.inputs[0] is None:
            return None
        found.append(node)
        if node.op == "dequantize":
            return found[::-1]
        if node.op not in (*_VIEWS_OF_WEIGHTS, *_PARTS) or (node.op == "cast" and not node.output.dtype.is_float):
            return None
        value = node.inputs[0]
    return None


def _by_columns(
    codes: np.ndarray, scale: np.ndarray, zero: np.ndarray | None, views: list[Node], transposed: bool, least: int
) -> Weights | str:
    """Weights [columns, depth], scales and zero points [columns, groups] of `least` steps; or why there are none."""

    def moved(array: np.ndarray) -> np.ndarray:
        found = reduce(_viewed, views, np.broadcast_to(array, codes.shape))
        return found if transposed else found.T

    matrix, scales, zeros = moved(codes), moved(scale), None if zero is None else moved(zero)
    group = _run(scales, matrix.shape[1])
    group = group if zeros is None else gcd(group, _run(zeros, matrix.shape[1]))
    if group < least:
        return "their scales or zero points differ from step to step of the depth"
    zeros = None if zeros is None else np.ascontiguousarray(zeros[:, ::group])
    return np.ascontiguousarray(matrix), np.ascontiguousarray(scales[:, ::group]), zeros


def _viewed(array: np.ndarray, node: Node) -> np.ndarray:
    """Elements in the order that a view puts them in; a change of type is none."""
    if node.op == "permute":
        return array.transpose(node.attributes["order"])
    return array.reshape(node.output.shape) if node.op == "reshape" else array  # type: ignore[arg-type]


def _run(array: np.ndarray, depth: int) -> int:
    """The largest length of equal runs of the depth in which no column changes."""
    changes = np.flatnonzero((array[:, 1:] != array[:, :-1]).any(axis=0)) + 1
    return int(np.gcd.reduce([depth, *changes.tolist()]))


def canonical(codes: np.ndarray, scales: np.ndarray, zeros: np.ndarray | None) -> Weights | str:
    """The forms that kernels take: int8, int4 and 8-bit floats without zero points; uint8 and uint4 with one for each
    group."""
    dtype, group = codes.dtype, codes.shape[1] // scales.shape[1]
    if dtype not in (*_ONES, *_FLOATS):
        return f"there are kernels for integers of 4 and 8 bits and for floats of 8 bits, and these are {dtype}"
    if dtype.itemsize == 1 and dtype in _FOURS and group % 2:
        return f"groups of {group} have no whole bytes"
    if not (np.abs(scales.astype(np.float32)) < _LARGEST_SCALE).all():
        return "scales are infinite, not a number or over 2^100"
    if dtype in _FLOATS:
        return codes, scales, None
    points = 0 if zeros is None else zeros.astype(np.int64)
    low, high = int(np.min(points, initial=255)), int(np.max(points, initial=-255))
    low, high = (0, 0) if zeros is None else (low, high)
    middle = 8 if dtype in _FOURS else 128
    signed = dtype in (int4.numpy, int8.numpy)
    if low == high == (0 if signed else middle):
        whole = codes if signed else _shifted(codes, middle, int4 if dtype in _FOURS else int8)
        return whole, scales, None
    if signed:
        codes = _shifted(codes, -middle, uint4 if dtype in _FOURS else uint8)
        low, high, points = low + middle, high + middle, points + middle
    if low < 0 or high > (127 - 15 if dtype in _FOURS else 255):
        return f"zero points from {low} to {high} are outside of the weights' range"
    return codes, scales, np.ascontiguousarray(np.broadcast_to(points, scales.shape).astype(np.uint8))


_FOURS = (int4.numpy, uint4.numpy)
_ONES = (*_FOURS, int8.numpy, uint8.numpy)
_FLOATS = (float8e4nv.numpy, float8e5.numpy)


def _shifted(codes: np.ndarray, by: int, dtype: DType) -> np.ndarray:
    """The numbers less `by`."""
    wide = codes.astype(np.int16) - np.int16(by)
    return wide.astype(np.int8 if dtype.is_signed else np.uint8).astype(dtype.numpy)


def _product_of_floats(node: Node, rewriter: GraphRewriter) -> Value:
    x, w, scale, zero = (*node.inputs, None)[:4]
    assert x is not None and w is not None and scale is not None
    groups = (*scale.shape, w.shape[1] // scale.shape[1])
    parts = [rewriter.op("reshape", [w], shape=groups)]
    parts += [rewriter.op("reshape", [item], shape=(*scale.shape, 1)) for item in (scale, zero) if item is not None]
    matrix = rewriter.op("reshape", [rewriter.op("dequantize", parts)], shape=w.shape)
    return rewriter.op("matmul", [x, rewriter.cast(matrix, x.dtype)], transpose_b=True)
