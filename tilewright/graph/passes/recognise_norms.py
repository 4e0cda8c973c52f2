"""Normalisations from their formulas: layer_norm and rms_norm over the last dimensions.

d = x - mean(x);  d / sqrt(mean(d * d) + epsilon)          -> layer_norm(x)
x / sqrt(mean(x * x) + epsilon)                            -> rms_norm(x)
layer_norm(x) * scale + bias                               -> layer_norm(x, scale, bias)
"""

from __future__ import annotations

from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.rewrite import GraphRewriter, apply_rules


def recognise_norms(graph: Graph) -> Graph:
    """Replace the formulas by `layer_norm` and `rms_norm` with their scale and bias."""
    rules = {"multiply": [_product, _scale], "divide": [_quotient], "add": [_bias]}
    return apply_rules(graph, rules)


def _product(node: Node, rewriter: GraphRewriter) -> Value | None:
    """d * rsqrt(…), d * (1 / sqrt(…))."""
    for index in (0, 1):
        root = rewriter.producer(node.inputs[index], "rsqrt")
        if root is not None:
            found = _norm(node.inputs[1 - index], root.inputs[0], node, rewriter)
            if found is not None:
                return found
    return None


def _quotient(node: Node, rewriter: GraphRewriter) -> Value | None:
    """d / sqrt(…)."""
    root = rewriter.producer(node.inputs[1], "sqrt")
    return _norm(node.inputs[0], root.inputs[0], node, rewriter) if root is not None else None


def _norm(row: Value | None, radicand: Value | None, node: Node, rewriter: GraphRewriter) -> Value | None:
    """The norm of which `row` is the centred (or plain) input and `radicand` the variance plus epsilon."""
    total = rewriter.producer(radicand, "add")
    if total is None or row is None or row.shape != node.output.shape:
        return None
    for index in (0, 1):
        epsilon = rewriter.uniform(total.inputs[index])
        mean = rewriter.producer(_before_cast(total.inputs[1 - index], rewriter), "reduce_mean")
        if epsilon is None or mean is None:
            continue
        axis, root = _trailing_axis(mean), _root(mean.inputs[0], rewriter)
        if axis is None or root is None:
            continue
        source = _centred(row, mean, rewriter)
        if root is not row and (source is None or _centred(root, mean, rewriter) is not source):
            continue
        if source is not None:
            return rewriter.op("layer_norm", [source], axis=axis, epsilon=epsilon)
        return rewriter.op("rms_norm", [row], axis=axis, epsilon=epsilon)
    return None


def _root(square: Value | None, rewriter: GraphRewriter) -> Value | None:
    """x of x * x."""
    node = rewriter.producer(square, "multiply")
    return node.inputs[0] if node is not None and node.inputs[0] is node.inputs[1] else None


def _trailing_axis(mean: Node) -> int | None:
    """The first reduced axis, if the last dimensions are reduced and kept as 1s."""
    axes, source = mean.attributes["axes"], mean.inputs[0]
    if source is None or not mean.attributes["keepdims"] or axes != tuple(range(axes[0], source.rank)):
        return None
    return axes[0]


def _centred(row: Value, mean: Node, rewriter: GraphRewriter) -> Value | None:
    """x of x - mean(x) over the same axes."""
    difference = rewriter.producer(row, "subtract")
    if difference is None:
        return None
    centre = rewriter.producer(_before_cast(difference.inputs[1], rewriter), "reduce_mean")
    if centre is None or centre.attributes != mean.attributes:
        return None
    source = _before_cast(difference.inputs[0], rewriter)
    return source if _before_cast(centre.inputs[0], rewriter) is source else None


def _before_cast(value: Value | None, rewriter: GraphRewriter) -> Value | None:
    """A 16-bit float that was made float32, or a float32 that became one: statistics of such rows are wide."""
    node = rewriter.producer(value, "cast")
    source = None if node is None else node.inputs[0]
    if node is None or source is None or not (source.dtype.is_float and node.output.dtype.is_float):
        return value
    return source if {source.dtype.bits, node.output.dtype.bits} == {16, 32} else value


def _inner(node: Node, rewriter: GraphRewriter) -> tuple[Node, Value] | None:
    """(a norm that only this node reads, the other operand if it covers the normalised dimensions)."""
    for index in (0, 1):
        norm = rewriter.producer(node.inputs[index], "layer_norm", "rms_norm")
        other = node.inputs[1 - index]
        if norm is None or other is None or rewriter.uses(norm.output) > 1:
            continue
        if other.shape == norm.output.shape[norm.attributes["axis"] :]:
            return norm, other
    return None


def _scale(node: Node, rewriter: GraphRewriter) -> Value | None:
    found = _inner(node, rewriter)
    if found is None or any(item is not None for item in found[0].inputs[1:]):
        return None
    return rewriter.op(found[0].op, [found[0].inputs[0], found[1]], **found[0].attributes)


def _bias(node: Node, rewriter: GraphRewriter) -> Value | None:
    found = _inner(node, rewriter)
    if found is None or found[0].op != "layer_norm" or len(found[0].inputs) > 2:
        return None
    x, scale = (*found[0].inputs, None)[:2]
    return rewriter.op("layer_norm", [x, scale, found[1]], **found[0].attributes)
