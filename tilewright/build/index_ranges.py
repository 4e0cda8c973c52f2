"""The allowed ranges of index inputs, which a run checks: kernels clamp indices and cannot report wrong ones.

Gathers and scatters take -extent to extent - 1, negative ones counting from the end, and attention over pages the
numbers of pages that its pool has.  Constants are checked when an engine is built.  Where the indices are an input,
seen through views, casts, added numbers and the numbering of several dimensions, the plan gets the range and every
run checks it.  Computed indices are not checked: the kernels clamp those of gathers and leave out the updates of
scatters.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tilewright.errors import ShapeError
from tilewright.graph.core import Graph, Node, Value
from tilewright.runtime.plan import IndexRange
from tilewright.symbolic import Size, lift, lower_bound, simplify, upper_bound

_INDEXING = ("gather", "gather_elements", "scatter_update", "scatter_reduce")
_VIEWS = ("reshape", "permute", "broadcast_to", "copy")  # all elements of the input are in the output


def check_constant_indices(graph: Graph) -> None:
    """Raise `ShapeError` for an index among the constants that is out of range whatever the sizes are."""
    for node, indices, low, high in _indexing(graph):
        data = graph.constants.get(indices)
        if data is None or data.size == 0:
            continue
        least, most = lower_bound(low), upper_bound(high)
        for number in (int(data.min()), int(data.max())):
            if not least <= number <= most:
                raise ShapeError(
                    f"{_text(node)}: the index {number} is out of range; {_indexed(node)} takes {least}..{most}"
                )


def index_ranges(graph: Graph) -> list[IndexRange]:
    """The range of every input that is used as indices; for two uses of an input two entries."""
    found: dict[tuple[str, Size, Size, int | None], IndexRange] = {}
    producers = graph.producers()
    inputs = set(graph.inputs)
    for node, indices, low, high in _indexing(graph):
        waiting = [_Allowed(indices, low, high)]
        while waiting:
            allowed = waiting.pop()
            if allowed.value in inputs:
                name, column = allowed.value.name, allowed.column
                key = name, allowed.low, allowed.high, column
                found.setdefault(key, IndexRange(name, allowed.low, allowed.high, _text(node), column))
            else:
                waiting += _before(allowed, producers, graph)
    return list(found.values())


class _Allowed(NamedTuple):
    """The numbers that a value may hold, with a `column` those at this place of its last dimension."""

    value: Value
    low: Size
    high: Size
    column: int | None = None


def _indexing(graph: Graph) -> Iterator[tuple[Node, Value, Size, Size]]:
    """Every node that uses indices, the indices, and the least and the largest that it takes."""
    for node in graph.nodes:
        if node.op in _INDEXING:
            source, indices = node.inputs[:2]
            assert source is not None and indices is not None
            extent = lift(source.shape[node.attributes["axis"]])
            yield node, indices, simplify(-1 * extent), simplify(extent - 1)
        elif node.op == "paged_attention":
            pool, tables = node.inputs[1], node.inputs[3]
            assert pool is not None and tables is not None
            yield node, tables, 0, simplify(lift(pool.shape[0]) // node.attributes["page"] - 1)


def _indexed(node: Node) -> str:
    if node.op == "paged_attention":
        return f"a page of {node.inputs[1]!r}"
    return f"dimension {node.attributes['axis']} of {node.inputs[0]!r}"


def _before(allowed: _Allowed, producers: dict[Value, Node], graph: Graph) -> list[_Allowed]:
    """What a value is made of, and the ranges that these must have for it to lie in its own."""
    value, low, high, column = allowed
    node = producers.get(value)
    source = node.inputs[0] if node is not None and node.inputs else None
    if node is None or source is None:
        return []
    if node.op in _VIEWS or (node.op == "cast" and source.dtype.is_integer):
        return [allowed._replace(value=source)] if column is None or _keeps_columns(node, source, value) else []
    if node.op == "slice" and column is None:
        return _before_column(node, source, low, high)
    if node.op == "add" and (tuples := _before_tuples(node, producers, graph)):
        return tuples
    if node.op == "add":
        for plain, added in ((source, node.inputs[1]), (node.inputs[1], source)):
            number = _number(added, producers, graph)
            if plain is not None and number is not None:
                return [_Allowed(plain, simplify(lift(low) - number), simplify(lift(high) - number), column)]
    if node.op == "subtract":
        number = _number(node.inputs[1], producers, graph)
        if number is None:
            return []
        return [_Allowed(source, simplify(lift(low) + number), simplify(lift(high) + number), column)]
    wrapped = _wrapped(node, producers, graph)
    return [] if wrapped is None else [_Allowed(wrapped[0], simplify(-1 * lift(wrapped[1])), high, column)]


def _keeps_columns(node: Node, source: Value, value: Value) -> bool:
    """Whether a view has the elements of each place of the last dimension at the same place."""
    if node.op == "permute":
        return bool(node.attributes["order"][-1] == source.rank - 1)
    return source.rank > 0 and value.rank > 0 and source.shape[-1] == value.shape[-1]


def _before_column(node: Node, source: Value, low: Size, high: Size) -> list[_Allowed]:
    """The same for one place of the last dimension: of index tuples those for one of the dimensions."""
    start, stop = node.attributes["start"], node.attributes["stop"]
    alone = node.attributes["axis"] == source.rank - 1 and isinstance(start, int) and stop == start + 1
    return [_Allowed(source, low, high, start)] if alone and lower_bound(source.shape[-1]) > start else []


def _before_tuples(node: Node, producers: dict[Value, Node], graph: Graph) -> list[_Allowed]:
    """The same for ``(i * columns) + j``, as importers number the elements of several dimensions.

    Each index has the range of its own dimension, which is known where negative ones count from its end.
    """
    for left, right in (node.inputs, node.inputs[::-1]):
        product = producers.get(left) if left is not None else None
        if product is None or product.op != "multiply":
            continue
        for rows, factor in (product.inputs, product.inputs[::-1]):
            if rows is not None and right is not None and _number(factor, producers, graph) is not None:
                return [item for part in (rows, right) for item in _in_own_range(part, producers, graph)]
    return []


def _in_own_range(value: Value, producers: dict[Value, Node], graph: Graph) -> list[_Allowed]:
    """Indices whose negative numbers count from the end of their dimension, and those of tuples, with their ranges."""
    node = producers.get(value)
    while node is not None and node.op in (*_VIEWS, "cast") and node.inputs[0] is not None:
        node = producers.get(node.inputs[0])
    if node is None:
        return []
    if node.op == "add":
        return _before_tuples(node, producers, graph)
    found = _wrapped(node, producers, graph)
    if found is None:
        return []
    plain, extent = found
    return [_Allowed(plain, simplify(-1 * lift(extent)), simplify(lift(extent) - 1))]


def _wrapped(node: Node, producers: dict[Value, Node], graph: Graph) -> tuple[Value, Size] | None:
    """Of ``where(i < 0, i + extent, i)``, as importers count negative indices from the end: i, and the extent."""
    if node.op != "where":
        return None
    condition, shifted, plain = node.inputs
    assert condition is not None and shifted is not None and plain is not None
    test, total = producers.get(condition), producers.get(shifted)
    if test is None or total is None or (test.op, total.op) != ("less", "add"):
        return None
    if test.inputs[0] is not plain or _number(test.inputs[1], producers, graph) != 0 or plain not in total.inputs:
        return None
    (added,) = [item for item in total.inputs if item is not plain] or [None]
    extent = _number(added, producers, graph)
    return None if extent is None else (plain, extent)


def _number(value: Value | None, producers: dict[Value, Node], graph: Graph) -> Size | None:
    """The number in all elements of an integer tensor, when that is known."""
    while value is not None and value.dtype.is_integer:
        data = graph.constants.get(value)
        if data is not None:
            return int(data.flat[0]) if data.size and (data == data.flat[0]).all() else None
        node = producers.get(value)
        if node is None:
            return None
        if node.op == "dimension":
            expression: Size = node.attributes["expression"]
            return expression
        if node.op == "full":
            return int(node.attributes["value"])
        if node.op not in (*_VIEWS, "cast"):
            return None
        value = node.inputs[0]
    return None


def _text(node: Node) -> str:
    source = node.inputs[0]
    assert source is not None
    return f"{node.op} on {source.name!r}" + (f" ({node.source})" if node.source else "")
