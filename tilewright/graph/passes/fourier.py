"""Fourier transforms as products with cosines and sines, where those are faster or nothing else is there; and what real
and imaginary parts meet in, before what moves them."""

from __future__ import annotations

import numpy as np

from tilewright.dtypes import float64
from tilewright.errors import UnsupportedOperationError
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.fourier import LARGEST_PRIME, LONGEST_DOUBLE, MOST_COSINES, half, is_product, roots_of_unity
from tilewright.graph.ops import kind_of
from tilewright.graph.rewrite import GraphRewriter, apply_rules

_MOST_NODES_BETWEEN = 24  # nodes between a transform and where its parts meet


def transforms_as_products(graph: Graph) -> Graph:
    """All of them, for targets without a kernel."""
    return apply_rules(graph, {"fourier": [as_product]})


def as_product(node: Node, rewriter: GraphRewriter) -> Value:
    """x [cos | -sin] + imaginary [sin | cos], or what makes real numbers of half of their transform."""
    x, roots, imaginary = [*node.inputs, None][:3]
    assert x is not None and roots is not None
    length, form = roots.shape[0], node.attributes["form"]
    assert isinstance(length, int)
    count = length if form == "whole" else half(length)
    if length * count > MOST_COSINES:
        raise UnsupportedOperationError(
            f"{node.source or 'the graph'}: a Fourier transform of {length} numbers is a product here, of a "
            f"table of {length * count} cosines; use lengths without prime factors above {LARGEST_PRIME}, on a CPU"
        )
    dtype = float64 if length <= LONGEST_DOUBLE else x.dtype
    steps = np.outer(np.arange(length), np.arange(count)) % length
    cosines, sines = np.moveaxis(roots_of_unity(length, dtype)[steps], -1, 0)
    if form == "real":
        twice = np.where(2 * np.arange(count) % length == 0, 1, 2).astype(dtype.numpy)[:, None]
        tables = [cosines.T * twice, -sines.T * twice]
    elif node.attributes["inverse"]:
        tables = [np.concatenate([cosines, sines], 1), np.concatenate([-sines, cosines], 1)]
    else:
        tables = [np.concatenate([cosines, -sines], 1), np.concatenate([sines, cosines], 1)]
    parts = [
        rewriter.op("matmul", [rewriter.cast(part, dtype), rewriter.new_constant(np.ascontiguousarray(table), "turns")])
        for part, table in zip((x, imaginary), tables, strict=True)
        if part is not None
    ]
    found = parts[0] if len(parts) == 1 else rewriter.op("add", parts)
    if length <= LONGEST_DOUBLE and imaginary is None and form != "real":  # sums of nothing but zeros are 0, not -0
        zero = rewriter.number(0.0, dtype)
        found = rewriter.op("where", [rewriter.op("equal", [found, zero]), zero, found])
    return rewriter.cast(found, x.dtype)


def short_as_product(node: Node, rewriter: GraphRewriter) -> Value | None:
    """A transform that no target has a faster kernel for."""
    roots = node.inputs[1]
    assert roots is not None and isinstance(roots.shape[0], int)
    return as_product(node, rewriter) if is_product(roots.shape[0]) else None


# Parts that meet --------------------------------------------------------------------------------------


def join_parts(graph: Graph) -> Graph:
    """What real and imaginary parts of a transform meet in, computed in the transform's own order and moved then: its
    kernel takes the meeting as its epilogue.

    |z|^2 = sum of squares of [re, im] over the axis where they stand side by side  ->  re re + im im
    f(permute(re), permute(im))  ->  permute(f(re, im))
    """
    if not any(node.op == "fourier" for node in graph.nodes):
        return graph
    elementwise = {node.op for node in graph.nodes if kind_of(node.op) == "elementwise"}
    rules = dict.fromkeys(elementwise, [_moved_later])
    return apply_rules(graph, {**rules, "reduce_sum": [_sum_of_parts]})


def _sum_of_parts(node: Node, rewriter: GraphRewriter) -> Value | None:
    (source,), axes = node.inputs, node.attributes["axes"]
    if source is None or len(axes) != 1 or source.shape[axes[0]] != 2 or not _comes_from_transform(source, rewriter):
        return None
    parts = _parts(source, axes[0], rewriter)
    if parts is None:
        return None
    total = rewriter.op("add", [_without(part, axes[0], rewriter) for part in parts])
    return rewriter.op("reshape", [total], shape=node.output.shape)


def _parts(value: Value, axis: int, rewriter: GraphRewriter) -> list[Value] | None:
    """The two elements of an axis of size 2, computed each by itself; None if that is not how the value is made."""
    node = rewriter.producer(value)
    if node is None:
        return None
    if node.op == "concat" and node.attributes["axis"] == axis and len(node.inputs) == 2:
        return [item for item in node.inputs if item is not None]
    if kind_of(node.op) != "elementwise" or rewriter.uses(value) > 1:
        return None
    operands: list[list[Value | None]] = [[], []]
    for item in node.inputs:
        alone = item is None or item.rank == 0
        same = item is not None and item.shape == value.shape
        pair = [item, item] if alone else _parts(item, axis, rewriter) if same else None  # type: ignore[arg-type]
        if pair is None:
            return None
        for operand, part in zip(operands, pair, strict=True):
            operand.append(part)
    return [rewriter.op(node.op, operand, **node.attributes) for operand in operands]


def _without(value: Value, axis: int, rewriter: GraphRewriter) -> Value:
    """The same without an axis of size 1."""
    return rewriter.op("reshape", [value], shape=(*value.shape[:axis], *value.shape[axis + 1 :]))


def _moved_later(node: Node, rewriter: GraphRewriter) -> Value | None:
    """f(move(a), move(b)) as move(f(a, b)), for parts of a transform."""
    if node.output.rank == 0:
        return None
    moves: list[Node] = []
    operands: list[Value | None] = []
    for item in node.inputs:
        move = rewriter.producer(item, "permute", "reshape", "slice")
        if item is None or item.rank == 0:
            operands.append(item)
        elif move is None or item.shape != node.output.shape or (moves and not _alike(moves[0], move)):
            return None
        else:
            moves.append(move)
            operands.append(move.inputs[0])
    if not moves or not all(_comes_from_transform(move.output, rewriter) for move in moves):
        return None
    first = moves[0].inputs[0]
    assert first is not None
    cut = 2 * _elements(moves[0].output) <= _elements(first)
    if moves[0].op == "slice" and (cut or rewriter.producer(first, "fourier")):
        return None  # most of what would be computed is cut off; or these are the parts themselves
    result = rewriter.op(node.op, operands, **node.attributes)
    return rewriter.op(moves[0].op, [result], **moves[0].attributes)


def _elements(value: Value) -> int:
    count = 1
    for extent in value.shape:
        count *= extent if isinstance(extent, int) else 64
    return count


def _alike(first: Node, second: Node) -> bool:
    """Whether two nodes move the elements of tensors of one shape to the same places."""
    a, b = first.inputs[0], second.inputs[0]
    same = (first.op, first.attributes) == (second.op, second.attributes)
    return same and a is not None and b is not None and a.shape == b.shape


def _comes_from_transform(value: Value, rewriter: GraphRewriter) -> bool:
    """Whether a value is nothing but elements of a transform, moved and computed with."""
    waiting, left = [value], _MOST_NODES_BETWEEN
    while waiting and left:
        node, left = rewriter.producer(waiting.pop()), left - 1
        if node is None:
            continue
        if node.op == "fourier":
            return node.attributes["form"] != "real"
        if kind_of(node.op) == "elementwise" or node.op in ("permute", "reshape", "slice", "concat"):
            waiting += [item for item in node.inputs if item is not None and item.rank > 0]
    return False
