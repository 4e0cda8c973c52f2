"""The allowed ranges of index inputs, which a run checks: kernels clamp indices and cannot report wrong ones.

Gathers and scatters take -extent to extent - 1, negative ones counting from the end, and attention over pages the
numbers of pages that its pool has.  Constants are
checked when an engine is built.  Where the indices are an input, seen through views, casts and added
numbers, the plan gets the range and every run checks it.  Computed indices are not checked: the
kernels clamp those of gathers and leave out the updates of scatters.
"""

from __future__ import annotations

from collections.abc import Iterator

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
    found: dict[tuple[str, Size, Size], IndexRange] = {}
    producers = graph.producers()
    inputs = set(graph.inputs)
    for node, value, low, high in _indexing(graph):
        while value not in inputs:
            step = _before(value, low, high, producers, graph)
            if step is None:
                break
            value, low, high = step
        else:
            found.setdefault((value.name, low, high), IndexRange(value.name, low, high, _text(node)))
    return list(found.values())


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


def _before(
    value: Value, low: Size, high: Size, producers: dict[Value, Node], graph: Graph
) -> tuple[Value, Size, Size] | None:
    """What `value` is made of, and the range that this must have for `value` to lie in its own."""
    node = producers.get(value)
    source = node.inputs[0] if node is not None and node.inputs else None
    if node is None or source is None:
        return None
    if node.op in _VIEWS or (node.op == "cast" and source.dtype.is_integer):
        return source, low, high
    if node.op == "add":
        for plain, added in ((source, node.inputs[1]), (node.inputs[1], source)):
            number = _number(added, producers, graph)
            if plain is not None and number is not None:
                return plain, simplify(lift(low) - number), simplify(lift(high) - number)
    if node.op == "subtract":
        number = _number(node.inputs[1], producers, graph)
        return None if number is None else (source, simplify(lift(low) + number), simplify(lift(high) + number))
    if node.op == "where":
        return _before_wrap(node, high, producers, graph)
    return None


def _before_wrap(node: Node, high: Size, producers: dict[Value, Node], graph: Graph) -> tuple[Value, Size, Size] | None:
    """The same for ``where(i < 0, i + extent, i)``, as importers count negative indices from the end."""
    condition, shifted, plain = node.inputs
    assert condition is not None and shifted is not None and plain is not None
    test, total = producers.get(condition), producers.get(shifted)
    if test is None or total is None or (test.op, total.op) != ("less", "add"):
        return None
    if test.inputs[0] is not plain or _number(test.inputs[1], producers, graph) != 0 or plain not in total.inputs:
        return None
    (added,) = [item for item in total.inputs if item is not plain] or [None]
    extent = _number(added, producers, graph)
    return None if extent is None else (plain, simplify(-1 * lift(extent)), high)


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
