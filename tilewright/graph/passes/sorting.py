"""Sorting as the kernels of a target take it: along the last dimension, of so many bits.

A few of the largest elements are found one after the other, in rows of any length.  Where it is faster than a kernel,
in short rows or on a GPU in few long ones, every pair is compared: an element's place is the number of those before it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from tilewright.dtypes import int32, int64
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.kernel_facts import KernelFacts
from tilewright.graph.ordered_bits import ordered_bits
from tilewright.graph.rewrite import GraphRewriter, Rule, apply_rules
from tilewright.symbolic import Size, lower_bound, product, upper_bound

_FEW_POSITIONS = 8  # that are compared one by one


def sorting(graph: Graph, kernels: KernelFacts) -> Graph:
    """The graph with each `argsort` as these kernels take it, or without; the same graph when they take all."""
    rules: dict[str, list[Rule]] = {"argsort": [functools.partial(_argsort, kernels=kernels)]}
    if kernels.sorts_values:
        rules["gather_elements"] = [_values_of_rows]
    return apply_rules(graph, rules)


def _argsort(node: Node, rewriter: GraphRewriter, kernels: KernelFacts) -> Value | None:
    x, axis, count, descending = node.inputs[0], *(node.attributes[name] for name in ("axis", "count", "descending"))
    assert x is not None
    if isinstance(count, int) and 0 < count <= kernels.selected:
        return _one_by_one(rewriter, x, axis, count, descending)
    last = x.rank - 1
    if axis != last:
        order = (*range(axis), last, *range(axis + 1, last), axis)
        rows = rewriter.op("permute", [x], order=order)
        found = rewriter.op("argsort", [rows], axis=last, count=count, descending=descending)
        return rewriter.op("permute", [found], order=order)
    if _is_compared(x, kernels):
        return _compared(rewriter, x, count, descending)
    if not 0 < kernels.sorted_bits < x.dtype.bits or upper_bound(x.shape[last]) <= kernels.wide_row:
        return None
    return _by_halves(rewriter, x, count, descending)


def _values_of_rows(node: Node, rewriter: GraphRewriter) -> Value | None:
    """Numbers at the places of an `argsort` of permuted rows, looked up in those rows, whose kernel can store them."""
    source, places = node.inputs
    moved = rewriter.producer(places, "permute")
    found = None if moved is None else rewriter.producer(moved.inputs[0], "argsort")
    rows = None if found is None else rewriter.producer(found.inputs[0], "permute")
    if moved is None or found is None or rows is None or rows.inputs[0] is not source:
        return None
    order = moved.attributes["order"]
    if order != rows.attributes["order"] or order[found.attributes["axis"]] != node.attributes["axis"]:
        return None
    values = rewriter.op("gather_elements", [rows.output, found.output], axis=found.attributes["axis"])
    return rewriter.op("permute", [values], order=order)


def _is_compared(x: Value, kernels: KernelFacts) -> bool:
    """Whether comparing all pairs of the rows takes less time than a kernel: a GPU's has one SM for each row."""
    length = x.shape[-1]
    if upper_bound(length) <= kernels.compared_row:
        return True
    shortest = kernels.network_row // 2 if x.dtype.itemsize == 8 else kernels.network_row  # twice the numbers to move
    return lower_bound(length) >= shortest and upper_bound(product([*x.shape, length])) <= kernels.compared_pairs


def _compared(rewriter: GraphRewriter, x: Value, count: Size, descending: bool) -> Value:
    """The first positions along the last dimension, by comparing."""
    positions = _by_comparing(rewriter, x, descending)
    return (
        positions if count == x.shape[-1] else rewriter.op("slice", [positions], axis=x.rank - 1, start=0, stop=count)
    )


def _by_halves(rewriter: GraphRewriter, x: Value, count: Size, descending: bool) -> Value:
    """Positions in rows of 64-bit numbers, by two sorts of 32 bits, the second of which keeps the first one's order."""
    last = x.rank - 1
    if x.dtype.is_float:
        bits = ordered_bits(rewriter, x)
    else:
        bits = x if x.dtype == int64 else rewriter.op("bitcast", [x], of=x.dtype.name, to="int64")
        if not x.dtype.is_signed:
            bits = rewriter.op("bitwise_xor", [bits, rewriter.number(-(2**63), int64)])
    bits = rewriter.op("bitwise_not", [bits]) if descending else bits
    low = rewriter.op("bitwise_and", [bits, rewriter.number(2**32 - 1, int64)])
    low = rewriter.cast(rewriter.op("subtract", [low, rewriter.number(2**31, int64)]), int32)
    high = rewriter.cast(rewriter.op("shift_right", [bits, rewriter.number(32, int64)]), int32)
    first = rewriter.op("argsort", [low], axis=last, count=x.shape[last], descending=False)
    moved = rewriter.op("gather_elements", [high, first], axis=last)
    second = rewriter.op("argsort", [moved], axis=last, count=count, descending=False)
    return rewriter.op("gather_elements", [first, second], axis=last)


def _by_comparing(rewriter: GraphRewriter, x: Value, descending: bool) -> Value:
    """All positions along the last dimension."""

    def op(name: str, *values: Value) -> Value:
        return rewriter.op(name, list(values))

    length, rank = x.shape[-1], x.rank
    own = rewriter.op("reshape", [x], shape=(*x.shape, 1))  # [.., i, 1]
    other = rewriter.op("reshape", [x], shape=(*x.shape[:-1], 1, length))  # [.., 1, j]
    before, same = op("greater" if descending else "less", other, own), op("equal", other, own)
    if x.dtype.is_float:
        own_nan, other_nan = op("isnan", own), op("isnan", other)
        beyond = (other_nan, own_nan) if descending else (own_nan, other_nan)
        before = op("logical_or", before, op("logical_and", beyond[0], op("logical_not", beyond[1])))
        same = op("logical_or", same, op("logical_and", own_nan, other_nan))
    line = rewriter.op("iota", [], shape=(length,))
    column = rewriter.op("reshape", [line], shape=(length, 1))
    before = op("logical_or", before, op("logical_and", same, op("less", line, column)))
    place = rewriter.op("reduce_sum", [rewriter.cast(before, int64)], axes=(rank,))  # of each element
    place = rewriter.op("reshape", [place], shape=(*x.shape[:-1], 1, length))
    found = op("equal", place, column)  # [.., place, element]
    chosen = op("where", found, line, rewriter.number(0, int64))
    return rewriter.op("reduce_sum", [chosen], axes=(rank,))


def _one_by_one(rewriter: GraphRewriter, x: Value, axis: int, count: int, descending: bool) -> Value:
    """`count` positions; none comes twice."""
    length = x.shape[axis]
    if x.dtype.is_float and not descending:
        x = ordered_bits(rewriter, x)
    line = rewriter.op("iota", [], shape=(length,))
    if axis != x.rank - 1:
        line = rewriter.op("reshape", [line], shape=(length, *[1] * (x.rank - 1 - axis)))
    positions: list[Value] = []
    selected: Value | None = None
    worst, bounded = rewriter.number(_worst(x, descending), x.dtype), _is_bounded(rewriter, x)
    for _ in range(count):
        left = x if selected is None else rewriter.op("where", [selected, worst, x])
        position = rewriter.op("argmax" if descending else "argmin", [left], axis=axis, keepdims=True)
        if (
            selected is not None and not bounded
        ):  # all that is left may be as bad as what is taken: then the first of it
            again = _one_of(rewriter, position, positions)
            position = rewriter.op("where", [again, _first_free(rewriter, selected, positions, axis), position])
        positions.append(position)
        now = rewriter.op("equal", [line, position])
        selected = now if selected is None else rewriter.op("logical_or", [selected, now])
    return positions[0] if count == 1 else rewriter.op("concat", positions, axis=axis)


def _is_bounded(rewriter: GraphRewriter, x: Value) -> bool:
    """Whether no element is infinite: scores of experts are mostly results of softmax."""
    node = rewriter.producer(x)
    while node is not None and node.op == "cast" and x.dtype.is_float:
        node = rewriter.producer(node.inputs[0])
    return node is not None and node.op in ("softmax", "sigmoid")


def _one_of(rewriter: GraphRewriter, position: Value, positions: Sequence[Value]) -> Value:
    """Whether a position is one of several."""
    found = [rewriter.op("equal", [item, position]) for item in positions]
    return functools.reduce(lambda left, right: rewriter.op("logical_or", [left, right]), found)


def _first_free(rewriter: GraphRewriter, selected: Value, positions: Sequence[Value], axis: int) -> Value:
    """The first position that is not taken: one of the first n + 1, where n are."""
    if len(positions) > _FEW_POSITIONS:
        return rewriter.op("argmin", [rewriter.cast(selected, int32)], axis=axis, keepdims=True)
    free = rewriter.number(len(positions), int64)
    for number in reversed(range(len(positions))):
        place = rewriter.number(number, int64)
        free = rewriter.op("where", [_one_of(rewriter, place, positions), free, place])
    return free


def _worst(x: Value, descending: bool) -> float:
    """What no element is worse than."""
    if x.dtype.is_float:
        return float("-inf") if descending else float("inf")
    bits = x.dtype.bits - x.dtype.is_signed
    return (-(2**bits) if x.dtype.is_signed else 0) if descending else 2**bits - 1
