"""Products whose columns are heads of attention: their parts, as nodes of a graph say what becomes of them.

    p = x W (+ b)                      [tokens, (query heads + 2 key heads) * width]
    queries = turned(p[:, :a])         [tokens, query heads, width]
    keys[slots] = turned(p[:, a:b])    pools [slots, key heads, width] of the caller, updated in place
    values[slots] = p[:, b:]

Turned is a head whose first `turned` elements are pairs (i, i + turned / 2), each turned by an angle of the token:
(a cos - b sin, b cos + a sin); the elements after them stay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.updates import do_not_meet, writes_in_place
from tilewright.graph.views import StridedView, dense_view, follow_all
from tilewright.symbolic import lift, simplify

_VIEWS = frozenset({"reshape", "slice"})
_Producers = Mapping[Value, Node]


@dataclass(frozen=True)
class HeadTurn:
    """Cosines and sines of the angles, in the order of [tokens, 1, turned / 2]."""

    cosine: Value
    sine: Value
    turned: int  # elements of a head


@dataclass(frozen=True)
class HeadColumns:
    """The columns of some heads of a product, from `start` on, and where they are stored: as `stored` is, or in the
    pool that the node `update` changes."""

    start: int
    heads: int
    width: int
    turn: HeadTurn | None
    stored: Value
    update: Node | None = None


@dataclass(frozen=True)
class Projection:
    """A product `anchor` whose `result` (with the bias, if there is one) has columns of three kinds of heads."""

    anchor: Node
    result: Value
    queries: HeadColumns
    keys: HeadColumns
    values: HeadColumns
    slots: Value  # where keys and values go in their pools

    @property
    def turn(self) -> HeadTurn | None:
        """How queries and keys are turned."""
        return self.queries.turn


def projection_of(nodes: Sequence[Node], outputs: Sequence[Value], anchor: Node, graph: Graph) -> Projection:
    """The projection that nodes compute, of which `outputs` are stored.

    Raises `NotImplementedError` with the reason where they compute anything else.
    """
    producers = {output: node for node in nodes for output in node.outputs}
    result = _with_bias(nodes, anchor, graph)
    found = [_stored(value, result, producers, nodes, graph) for value in outputs]
    parts = sorted(found, key=lambda part: part.start)
    columns, end = result.shape[-1], 0
    for part in parts:
        if part.start != end:
            raise NotImplementedError("columns of the product are stored by others, or twice")
        end += part.heads * part.width
    if end != columns or len(parts) != 3:
        raise NotImplementedError("the columns are not those of queries, keys and values")
    queries, keys, values = parts
    if queries.turn is None and queries.width % keys.width == 0:  # columns that lie as heads do
        queries = replace(queries, heads=queries.heads * (queries.width // keys.width), width=keys.width)
    if queries.update is not None or keys.update is None or values.update is None:
        raise NotImplementedError("queries are stored as they are, keys and values in pools")
    if keys.turn != queries.turn or values.turn is not None:
        raise NotImplementedError("queries and keys are turned by the same angles, values are not")
    if not queries.width == keys.width == values.width or keys.heads != values.heads:
        raise NotImplementedError("heads are of one width, and as many of keys as of values")
    if keys.update.inputs[1] is not values.update.inputs[1] or keys.stored.shape != values.stored.shape:
        raise NotImplementedError("keys and values go to the same places of their pools")
    return Projection(anchor, result, queries, keys, values, _outside(keys.update.inputs[1], producers))


def _with_bias(nodes: Sequence[Node], anchor: Node, graph: Graph) -> Value:
    """The product, or its sum with a constant that has a number for each column."""
    product = anchor.output
    readers = [node for node in nodes if product in node.inputs]
    if len(readers) != 1 or readers[0].op != "add":
        return product
    others = [item for item in readers[0].inputs if item is not product]
    constant = len(others) == 1 and others[0] in graph.constants and others[0].shape == product.shape[-1:]
    if not constant or readers[0].output.shape != product.shape or readers[0].output.dtype != product.dtype:
        raise NotImplementedError("what is added to the product is no bias")
    return readers[0].output


def _stored(value: Value, result: Value, producers: _Producers, nodes: Sequence[Node], graph: Graph) -> HeadColumns:
    """The heads that become an output."""
    node = producers.get(value)
    if node is None or node.op != "scatter_update":
        return _heads(value, value, None, result, producers)
    updates = node.inputs[2]
    assert updates is not None
    if node.attributes["axis"] != 0 or not do_not_meet(node) or not writes_in_place(node, nodes, graph):
        raise NotImplementedError("a pool is updated in place along its slots, each of which at most once")
    if value.dtype != result.dtype:
        raise NotImplementedError("pools are of the product's type")
    return _heads(updates, value, node, result, producers)


def _heads(
    value: Value, stored: Value, update: Node | None, result: Value, producers: _Producers
) -> HeadColumns:  # fmt: skip
    sizes = (1, *value.shape[1:])[-2:]
    if value.rank not in (2, 3) or not all(isinstance(size, int) for size in sizes):
        raise NotImplementedError("heads are [tokens, heads, width]")
    heads, width = cast("tuple[int, int]", sizes)
    turn, views = _turned(value, result, producers)
    start = views[0].offset
    end, steps = start, (result.shape[-1], width, 1)
    for view in views:
        found = [
            own if extent != 1 else step for extent, own, step in zip(view.shape, view.strides, steps, strict=True)
        ]
        whole = view.shape[:2] == (result.shape[0], heads)  # others are repeated, or leave rows out
        if not whole or view.offset != end or found != list(steps):
            raise NotImplementedError("heads are parts of the product's columns, one after the other")
        end = simplify(lift(end) + view.shape[2])
    if not isinstance(start, int):
        raise NotImplementedError("columns are known")
    return HeadColumns(start, heads, width, turn, stored, update)


def _turned(value: Value, result: Value, producers: _Producers) -> tuple[HeadTurn | None, list[StridedView]]:
    """How heads are turned, and the views of the product that they are made of, one after the other along a head."""
    node = producers.get(value)
    if node is None or node.op != "concat":
        return None, [_view(value, result, producers)]
    if node.attributes["axis"] != 2 or len(node.inputs) not in (2, 3):
        raise NotImplementedError("heads are not put together of two halves and a rest")
    first, second, *rest = node.inputs
    low, high, cosine, sine = _pairs(first, second, result, producers)
    half = low.shape[-1]
    angles = (low.shape[0], 1, half)
    if cosine.shape != angles or sine.shape != angles or {cosine.dtype, sine.dtype} != {value.dtype}:
        raise NotImplementedError("angles are those of a token's pairs, for all of its heads")
    if not isinstance(half, int) or high.shape[-1] != half:
        raise NotImplementedError("the halves of a head are known")
    views = [_view(item, result, producers) for item in (low, high, *rest)]
    return HeadTurn(_outside(cosine, producers), _outside(sine, producers), 2 * half), views


def _pairs(
    first: Value | None, second: Value | None, result: Value, producers: _Producers
) -> tuple[Value, Value, Value, Value]:
    """(low, high, cosine, sine) of low cosine - high sine, and high cosine + low sine."""
    (low, cosine), (high, sine) = (
        _half_and_angle(item, result, producers) for item in _operands(first, "subtract", producers)
    )
    sums = {_half_and_angle(item, result, producers) for item in _operands(second, "add", producers)}
    if sums != {(high, cosine), (low, sine)}:
        raise NotImplementedError("halves are not turned by an angle")
    return low, high, cosine, sine


def _half_and_angle(value: Value, result: Value, producers: _Producers) -> tuple[Value, Value]:
    """The operands of a product: a part of the columns first."""
    left, right = _operands(value, "multiply", producers)
    return (left, right) if _source(left, producers) is result else (right, left)


def _outside(value: Value | None, producers: _Producers) -> Value:
    """What is in memory, in the same order, before the nodes run."""
    while value is not None and (node := producers.get(value)) is not None:
        if node.op != "reshape":
            raise NotImplementedError("angles and slots are computed with the heads")
        value = node.inputs[0]
    assert value is not None
    return value


def _source(value: Value, producers: _Producers) -> Value:
    """What a value is a view of."""
    while (node := producers.get(value)) is not None and node.op in _VIEWS and node.inputs[0] is not None:
        value = node.inputs[0]
    return value


def _operands(value: Value | None, op: str, producers: _Producers) -> tuple[Value, Value]:
    node = None if value is None else producers.get(value)
    if node is None or node.op != op or len(node.inputs) != 2:
        raise NotImplementedError("halves are not turned by an angle")
    left, right = node.inputs
    assert left is not None and right is not None
    return left, right


def _view(value: Value | None, result: Value, producers: _Producers) -> StridedView:
    """A part of the product's columns."""
    chain: list[Node] = []
    while value is not None and value is not result:
        node = producers.get(value)
        if node is None or node.op not in _VIEWS:
            raise NotImplementedError("something else than views is between the product and its heads")
        chain.insert(0, node)
        value = node.inputs[0]
    view = follow_all(dense_view(result.shape), chain)
    if view is None or len(view.shape) not in (2, 3):
        raise NotImplementedError("heads do not lie in the product's columns")
    if len(view.shape) == 2:  # one head
        (rows, columns), (row, column) = view.shape, view.strides
        view = StridedView((rows, 1, columns), (row, 0, column), view.offset)
    return view
