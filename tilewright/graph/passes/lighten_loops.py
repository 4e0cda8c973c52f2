"""Loops whose rounds compute less: what is the same in every round is a constant, and products of the rows of a tensor
are computed at once, before the loop.

- A carried value that every round gives on as it is becomes a captured one; a captured constant is one of the body.
- `matmul(gather(x, row), weights)`, where the row follows from the number of the round, becomes
  `gather(matmul(x, weights), row)`: the product is taken of all rows together, which reads the weights once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from tilewright.dtypes import HOST_ONLY, from_numpy
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.ops import infer_types, kind_of, normalize
from tilewright.symbolic import free_symbols

_DEEPEST_ROW = 8  # nodes between the number of a round and the row that it stands for
_NUMBERS = ("elementwise", "movement", "source")  # kinds of nodes that such a row may be computed by


def lighten_loops(graph: Graph) -> Graph:
    """The graph with lighter loops, also in graphs inside; the same graph when there is nothing to do."""
    values = (*graph.inputs, *graph.constants, *(output for node in graph.nodes for output in node.outputs))
    names = {value.name for value in values}
    constants = dict(graph.constants)
    nodes: list[Node] = []
    for node in map(_lightened_inside, graph.nodes):
        nodes += _Loop(node, constants, names).lightened() if node.op == "loop" else [node]
    if nodes == graph.nodes:
        return graph
    result = Graph(graph.name, dict(graph.symbols), graph.inputs, graph.outputs, graph.output_names, nodes)
    result.constants = constants
    result.keep_facts(graph)
    return result


def _lightened_inside(node: Node) -> Node:
    attributes = {
        key: lighten_loops(item) if isinstance(item, Graph) else item for key, item in node.attributes.items()
    }
    if all(item is node.attributes[key] for key, item in attributes.items()):
        return node
    return Node(node.op, node.inputs, node.outputs, attributes, node.source)


class _Loop:
    """A loop node that is being rewritten, the constants and the names of the graph around it."""

    def __init__(self, node: Node, constants: dict[Value, np.ndarray], names: set[str]) -> None:
        self._node, self._outer, self._names = node, constants, names
        self._body: Graph = node.attributes["body"]
        self._carried: int = node.attributes["carried"]
        self._producers = self._body.producers()
        self._before: list[Node] = []

    def lightened(self) -> list[Node]:
        """The nodes that take the place of the loop: what is computed before it, the loop, values that it carried."""
        node, body, carried = self._node, self._body, self._carried
        same = [place for place in range(carried) if self._stays(place)]
        fixed = [*same, *range(carried, len(node.inputs) - 2)]
        outside = {body.inputs[2 + place]: node.inputs[2 + place] for place in fixed}
        constants = {inner: self._outer[outer] for inner, outer in outside.items() if self._is_constant(inner, outer)}
        captured = {inner: outer for inner, outer in outside.items() if inner not in constants and outer is not None}
        rows = self._products(captured, {**body.constants, **constants})
        if not (same or constants or rows):
            return [node]
        captured |= {row.inputs[0]: whole for row, whole in rows.values() if row.inputs[0] is not None}
        changing = [place for place in range(carried) if place not in same]
        inner = self._new_body(changing, [*captured], constants)
        inner.nodes = [rows[each][0] if each in rows else each for each in body.nodes]
        copies = [Node("copy", [node.inputs[2 + place]], [node.outputs[place]], {}, node.source) for place in same]
        return [*self._before, self._new_loop(inner, changing, [*captured.values()]), *copies]

    def _new_body(
        self, changing: Sequence[int], captured: Sequence[Value], constants: Mapping[Value, np.ndarray]
    ) -> Graph:
        """The body, still without nodes, that carries the values at these places."""
        body = self._body
        inputs = [*body.inputs[:2], *(body.inputs[2 + place] for place in changing), *captured]
        places = [0, *(1 + place for place in changing), *range(1 + self._carried, len(body.outputs))]
        outputs, names = [body.outputs[place] for place in places], [body.output_names[place] for place in places]
        found = Graph(body.name, dict(body.symbols), inputs, outputs, names)
        found.constants = {**body.constants, **constants}
        found.keep_facts(body)
        return found

    def _new_loop(self, body: Graph, changing: Sequence[int], captured: Sequence[Value]) -> Node:
        node, carried, types = self._node, self._carried, self._node.attributes["types"]
        types = (*(types[place] for place in changing), *types[carried:])
        attributes = {**node.attributes, "body": body, "carried": len(changing), "types": types}
        inputs = [*node.inputs[:2], *(node.inputs[2 + place] for place in changing), *captured]
        outputs = [*(node.outputs[place] for place in changing), *node.outputs[carried:]]
        return Node("loop", inputs, outputs, attributes, node.source)

    def _stays(self, place: int) -> bool:
        """Whether every round gives a carried value on as it is."""
        value, after = self._body.inputs[2 + place], self._body.outputs[1 + place]
        first = self._node.inputs[2 + place]
        while after in self._producers and self._producers[after].op == "copy":
            (source,) = self._producers[after].inputs
            assert source is not None
            after = source
        same_shape = first is not None and value.shape == first.shape == self._node.outputs[place].shape
        return after is value and same_shape and value.dtype not in HOST_ONLY

    def _is_constant(self, inner: Value, outer: Value | None) -> bool:
        return outer in self._outer and outer is not None and inner.shape == outer.shape

    # -- Products of rows ----------------------------------------------------------------------

    def _products(
        self, captured: Mapping[Value, Value], constants: Mapping[Value, np.ndarray]
    ) -> dict[Node, tuple[Node, Value]]:
        """For each product of rows of a captured tensor with a constant the node that takes its place, which reads a
        row of a new input, and the value outside that this is."""
        found: dict[Node, tuple[Node, Value]] = {}
        for node in self._body.nodes:
            read = self._row_of(node, captured) if node.op == "matmul" and node.inputs[1] in constants else None
            if read is None:
                continue
            (rows, row), weights = read, node.inputs[1]
            assert weights is not None
            whole = self._product(captured[rows], self._constant(constants[weights], weights.name), node)
            inner = Value(self._inner_name(whole.name), whole.dtype, whole.shape)
            found[node] = Node("gather", [inner, row], node.outputs, {"axis": 0}, node.source), whole
        return found

    def _row_of(self, node: Node, captured: Mapping[Value, Value]) -> tuple[Value, Value] | None:
        """The captured tensor and the number of the row of it that a product with a matrix is of."""
        left, right = node.inputs
        gather = self._producers.get(left) if left is not None else None
        if gather is None or right is None or gather.op != "gather" or gather.attributes["axis"] != 0:
            return None
        rows, row = gather.inputs
        if rows is None or row is None or rows not in captured or row.shape or not self._counts(row, _DEEPEST_ROW):
            return None
        plain = not (node.attributes["transpose_a"] or node.attributes["dtype"])
        return (rows, row) if plain and right.rank == 2 and rows.rank > 2 and self._is_known(rows) else None

    def _counts(self, value: Value, depth: int) -> bool:
        """Whether a number follows from the number of the round alone."""
        body = self._body
        if value is body.inputs[0] or value in body.constants or self._is_counter(value):
            return True
        node = self._producers.get(value)
        if node is None or depth == 0 or kind_of(node.op) not in _NUMBERS or value.shape:
            return False
        return all(item is not None and self._counts(item, depth - 1) for item in node.inputs)

    def _is_counter(self, value: Value) -> bool:
        """Whether a carried number begins with a constant, and each round adds 1."""
        carried = self._body.inputs[2 : 2 + self._carried]
        if value not in carried or value.shape or not value.dtype.is_integer:
            return False
        place = carried.index(value)
        step = self._producers.get(self._body.outputs[1 + place])
        if self._node.inputs[2 + place] not in self._outer or step is None or step.op != "add":
            return False
        ones = [self._body.constants[item] for item in step.inputs if item in self._body.constants and item is not None]
        return value in step.inputs and len(ones) == 1 and bool(np.all(ones[0] == 1))

    def _is_known(self, rows: Value) -> bool:
        """Whether the sizes of a captured tensor are those outside."""
        outer = {symbol.name for size in self._outside(rows).shape for symbol in free_symbols(size)}
        return {symbol.name for size in rows.shape for symbol in free_symbols(size)} <= outer

    def _outside(self, inner: Value) -> Value:
        outer = self._node.inputs[self._body.inputs.index(inner)]
        assert outer is not None
        return outer

    # -- Nodes outside -------------------------------------------------------------------------

    def _constant(self, data: np.ndarray, name: str) -> Value:
        """The constant outside of that memory; a new one where there is none."""
        known = next((value for value, other in self._outer.items() if other is data), None)
        if known is not None:
            return known
        value = Value(self._unique(name), from_numpy(data.dtype), data.shape)
        self._outer[value] = data
        return value

    def _product(self, left: Value, right: Value, like: Node) -> Value:
        inputs = [left, right]
        attributes = normalize("matmul", inputs, like.attributes)
        ((dtype, shape),) = infer_types("matmul", inputs, attributes)
        value = Value(self._unique(like.output.name), dtype, shape)
        self._before.append(Node("matmul", [*inputs], [value], attributes, like.source))
        return value

    def _unique(self, name: str) -> str:
        found = _free_name(name, self._names)
        self._names.add(found)
        return found

    def _inner_name(self, name: str) -> str:
        body = self._body
        values = (*body.inputs, *body.constants, *(output for node in body.nodes for output in node.outputs))
        return _free_name(f"rows.{name}", {value.name for value in values})


def _free_name(name: str, others: Collection[str]) -> str:
    """The name, with a number where there is one like it."""
    found, count = name, 0
    while found in others:
        count += 1
        found = f"{name}_{count}"
    return found
