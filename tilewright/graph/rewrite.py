"""The machinery of graph passes: one forward walk that offers every node to a table of rules.

A rule is a function `rule(node, rewriter) -> Value | None`.  It looks at the node and, through the
rewriter, at the producers of its inputs (already rewritten), may append new nodes with
`rewriter.op(...)`, and returns the value that takes the place of the node's output; None means "not
mine".  Nodes that nobody reads any more are dropped.  `apply_rules` walks until nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Union

import numpy as np

from tilewright.dtypes import DType, from_numpy, wrapped
from tilewright.graph.core import Advice, Graph, Node, Value
from tilewright.graph.ops import infer_types, normalize
from tilewright.graph.reference import run_node
from tilewright.symbolic import Expression

Rule = Callable[[Node, "GraphRewriter"], Union[Value, None]]
Rules = Mapping[str, Sequence[Rule]]  # by op name

PERMUTED = ".permuted"  # follows the name of a value whose axes have another order than the model's
_MOST_SWEEPS = 64
_LONGEST_CHAIN = 8  # nodes in the chain that computes a constant
_COMPUTED_OPS = ("reshape", "permute", "slice", "cast", "broadcast_to", "subtract", "add")
_LARGEST_UNIFORM = 1 << 16  # constants above this many elements are not searched for a common value


class GraphRewriter:
    """A new graph being made from an old one."""

    def __init__(self, graph: Graph, keeps_all: bool = False) -> None:
        """With `keeps_all`, nodes that nobody reads stay: before a graph is cut, they tell sizes."""
        self.old = graph
        self._keeps_all = keeps_all
        self.changed = False
        self.nodes: list[Node] = []
        self.constants: dict[Value, np.ndarray] = dict(graph.constants)
        self.remarks = list(graph.remarks)
        self.memory: dict[Any, Any] = {}  # what rules remember during this walk
        self._map: dict[Value, Value] = {}
        self._producers: dict[Value, Node] = {}
        self._names = {value.name for value in [*graph.inputs, *graph.constants]}
        self._names.update(output.name for node in graph.nodes for output in node.outputs)
        self._uses: dict[Value, int] = _count_uses(graph)
        self._numbers: dict[tuple[DType, str], Value] = {}
        self._uniform: dict[Value, float | None] = {}
        self._source = ""
        self._fresh: set[Value] = set()

    # What rules look at

    def producer(self, value: Value | None, *ops: str) -> Node | None:
        """The node that computes a value, if there is one and it is one of `ops` (any, without)."""
        node = self._producers.get(value) if value is not None else None
        return node if node is not None and (not ops or node.op in ops) else None

    def constant(self, value: Value | None) -> np.ndarray | None:
        """The data of a constant."""
        return None if value is None else self.constants.get(value)

    def uniform(self, value: Value | None) -> float | None:
        """The number that every element of a constant (or `full`) equals, as a Python float."""
        if value is None:
            return None
        if value not in self._uniform:
            self._uniform[value] = self._find_uniform(value)
        return self._uniform[value]

    def uses(self, value: Value) -> int:
        """How often a value is read (results count), as far as the old graph tells."""
        return self._uses.get(value, 0)

    # What rules make

    def op(self, op: str, inputs: Sequence[Value | None], **attributes: Any) -> Value:
        """Append a node with inferred types; its source is that of the node being rewritten."""
        values = list(inputs)
        attributes = normalize(op, values, attributes)
        outputs = [Value(self.unique(op), dtype, shape) for dtype, shape in infer_types(op, values, attributes)]
        self._append(Node(op, values, outputs, attributes, self._source))
        self._fresh.update(outputs)
        return outputs[0]

    def cast(self, value: Value, dtype: DType) -> Value:
        """A value as another type; the value itself when it has it."""
        return value if value.dtype == dtype else self.op("cast", [value], dtype=dtype)

    def new_constant(self, data: np.ndarray, name: str) -> Value:
        """A new constant."""
        value = Value(self.unique(name), from_numpy(data.dtype), data.shape)
        self.constants[value] = data
        return value

    def number(self, number: float, dtype: DType) -> Value:
        """A scalar constant; equal ones made in this walk are shared."""
        key = (dtype, repr(number))
        if key not in self._numbers:
            self._numbers[key] = self.new_constant(np.array(wrapped(number, dtype), dtype.numpy), f"c_{number:.6g}")
        return self._numbers[key]

    def unique(self, name: str) -> str:
        """`name`, with a number appended when it is taken."""
        candidate, count = name, 0
        while candidate in self._names:
            count += 1
            candidate = f"{name}_{count}"
        self._names.add(candidate)
        return candidate

    def remark(self, text: str) -> None:
        """Note a decision for the user, with where the node being rewritten came from."""
        self.remarks.append(f"{text} (from {self._source})" if self._source else text)

    def advise(self, text: str) -> None:
        """Note what the user can change, with where the node being rewritten came from; a graph with more advice is
        another one."""
        self.remark(text)
        self.remarks[-1] = Advice(self.remarks[-1])
        self.changed = True

    # The walk

    def run(self, rules: Rules) -> Graph:
        """Walk once; the same graph object when no rule fired."""
        for node in self.old.nodes:
            inputs = [None if item is None else self._map.get(item, item) for item in node.inputs]
            if any(new is not old for new, old in zip(inputs, node.inputs, strict=True)):
                node = Node(node.op, inputs, node.outputs, node.attributes, node.source)
            if not self._rewrite(node, rules.get(node.op, ())):
                self._append(node)
        return self.finish() if self.changed else self.old

    def replace(self, old: Value, new: Value) -> None:
        """Readers of `old` read `new` from here on."""
        self._map[old] = new
        self._uses[new] = self._uses.get(new, 0) + self._uses.get(old, 0)
        self.changed = True

    def finish(self) -> Graph:
        """The new graph, without dead nodes and constants unless all are kept."""
        old = self.old
        outputs = [self._map.get(value, value) for value in old.outputs]
        mutations = {target: self._map.get(value, value) for target, value in old.mutations.items()}
        result = Graph(old.name, dict(old.symbols), list(old.inputs), outputs, list(old.output_names), self.nodes)
        result.mutations = mutations
        result.constants = self.constants
        result.remarks, result.fixed, result.seed = self.remarks, old.fixed, old.seed
        return result if self._keeps_all else drop_dead(result)

    def _rewrite(self, node: Node, rules: Sequence[Rule]) -> bool:
        self._source = node.source
        for rule in rules:
            self._fresh.clear()
            result = rule(node, self)
            if result is not None and result is not node.output:
                if result in self._fresh:  # the new value takes the place and the name of the old one
                    result.name = node.output.name
                    self._name_permuted(result)
                self.replace(node.output, result)
                return True
        return False

    def _name_permuted(self, value: Value) -> None:
        """Call what a new permute moves like its result: most of them vanish, and the name should not."""
        node = self.producer(value, "permute")
        source = node.inputs[0] if node is not None else None
        if source is not None and source in self._fresh:
            source.name = self.unique(value.name + PERMUTED)

    def _append(self, node: Node) -> None:
        self.nodes.append(node)
        for output in node.outputs:
            self._producers[output] = node

    def _find_uniform(self, value: Value) -> float | None:
        data = self.constants.get(value)
        if data is not None:
            if not 0 < data.size <= _LARGEST_UNIFORM:
                return None
            first = data.reshape(-1)[0]
            return float(first) if data.size == 1 or bool(np.all(data == first)) else None
        node = self.producer(value, "full")
        return float(node.attributes["value"]) if node is not None else None


def computed_constant(value: Value | None, rewriter: GraphRewriter, depth: int = _LONGEST_CHAIN) -> np.ndarray | None:
    """The elements of a constant, or of what is moved, cast, added and subtracted of constants alone."""
    found = rewriter.constant(value)
    node = rewriter.producer(value)
    if found is not None or node is None or depth == 0 or node.op not in _COMPUTED_OPS:
        return found
    if any(isinstance(item, Expression) for item in (*node.output.shape, *node.attributes.values())):
        return None  # only the run knows its sizes or bounds
    arrays = [computed_constant(item, rewriter, depth - 1) for item in node.inputs]
    return None if any(array is None for array in arrays) else run_node(node, arrays, {})


def apply_rules(graph: Graph, rules: Rules) -> Graph:
    """Walk with a table of rules until nothing changes; raises `RuntimeError` if that never happens."""
    for _ in range(_MOST_SWEEPS):
        result = GraphRewriter(graph).run(rules)
        if result is graph:
            return graph
        graph = result
    raise RuntimeError(f"graph {graph.name}: rules keep firing after {_MOST_SWEEPS} walks: {sorted(rules)}")


def drop_dead(graph: Graph) -> Graph:
    """The graph without nodes and constants that no result needs; the same object when all are needed."""
    needed = set(graph.results())
    live: list[Node] = []
    for node in reversed(graph.nodes):
        if any(output in needed for output in node.outputs):
            live.append(node)
            needed.update(item for item in node.inputs if item is not None)
    constants = {value: data for value, data in graph.constants.items() if value in needed}
    if len(live) == len(graph.nodes) and len(constants) == len(graph.constants):
        return graph
    result = Graph(graph.name, graph.symbols, graph.inputs, graph.outputs, graph.output_names, live[::-1])
    result.constants = constants
    result.keep_facts(graph)
    return result


def _count_uses(graph: Graph) -> dict[Value, int]:
    uses: dict[Value, int] = {}
    for node in graph.nodes:
        for item in node.inputs:
            if item is not None:
                uses[item] = uses.get(item, 0) + 1
    for value in graph.results():
        uses[value] = uses.get(value, 0) + 1
    return uses
