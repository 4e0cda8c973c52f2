"""Row operations in terms of reductions and elementwise ops, for programs that have several of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

from tilewright.dtypes import DType, int1
from tilewright.graph.core import Node, Value
from tilewright.graph.row_spaces import space_of
from tilewright.library.generated.expressions import compute_type
from tilewright.symbolic import Size


def in_primitives(nodes: Sequence[Node]) -> list[Node]:
    """Nodes in which softmax, norms and log-sum-exp are reductions, and elementwise ops in the type they compute in."""
    found: list[Node] = []
    for node in nodes:
        rule = _RULES.get(node.op)
        if rule is None:
            found.append(node)
        else:
            rule(_NodeWriter(node, found))
    return found


class _NodeWriter:
    """Appends the nodes that take the place of one."""

    def __init__(self, node: Node, nodes: list[Node]) -> None:
        source, space = node.inputs[0], space_of(node)
        assert source is not None
        self.node, self.nodes, self.source = node, nodes, source
        self.dtype = compute_type(source.dtype)
        self.axes = () if space is None else space.axes
        self.reduced_shape = tuple(1 if axis in self.axes else extent for axis, extent in enumerate(source.shape))

    def add(
        self, op: str, inputs: Sequence[Value | None], shape: Sequence[Size], dtype: DType | None = None,
        **attributes: Any,
    ) -> Value:  # fmt: skip
        """A node, and its result."""
        value = Value(f"{self.node.output.name}.{op}_{len(self.nodes)}", dtype or self.dtype, tuple(shape))
        self.nodes.append(Node(op, list(inputs), [value], attributes, self.node.source))
        return value

    def full(self, op: str, *inputs: Value | None) -> Value:
        return self.add(op, inputs, self.source.shape)

    def row(self, op: str, *inputs: Value | None) -> Value:
        return self.add(op, inputs, self.reduced_shape)

    def reduced(self, op: str, value: Value) -> Value:
        return self.add(op, [value], self.reduced_shape, axes=self.axes, keepdims=True)

    def number(self, value: float) -> Value:
        return self.add("full", [], (), value=value)

    def finish(self, value: Value) -> None:
        """Name a value as the node's result."""
        output = self.node.output
        if value.shape != output.shape:
            self.nodes.append(Node("reshape", [value], [output], {"shape": output.shape}, self.node.source))
        else:
            self.nodes.append(Node("copy", [value], [output], {}, self.node.source))


def _softmax(to: _NodeWriter) -> None:
    power = to.full("exp", to.full("subtract", to.source, to.reduced("reduce_max", to.source)))
    to.finish(to.full("multiply", power, to.row("reciprocal", to.reduced("reduce_sum", power))))


def _log_softmax(to: _NodeWriter) -> None:
    shifted = to.full("subtract", to.source, to.reduced("reduce_max", to.source))
    total = to.reduced("reduce_sum", to.full("exp", shifted))
    to.finish(to.full("subtract", shifted, to.row("log", total)))


def _log_sum_exp(to: _NodeWriter) -> None:
    """Shifted by the largest element, where that is finite."""
    largest = to.reduced("reduce_max", to.source)
    size = to.row("absolute", largest)
    infinite = to.add("equal", [size, to.number(inf)], to.reduced_shape, int1)
    shift = to.row("where", infinite, to.number(0.0), largest)
    total = to.reduced("reduce_sum", to.full("exp", to.full("subtract", to.source, shift)))
    to.finish(to.row("add", to.row("log", total), shift))


def _norm(to: _NodeWriter) -> None:
    scale, bias = (*to.node.inputs[1:], None, None)[:2]
    x = to.source
    if to.node.op == "layer_norm":
        x = to.full("subtract", x, to.reduced("reduce_mean", x))
    variance = to.reduced("reduce_mean", to.full("multiply", x, x))
    epsilon = to.number(float(to.node.attributes["epsilon"]))
    result = to.full("multiply", x, to.row("rsqrt", to.row("add", variance, epsilon)))
    result = result if scale is None else to.full("multiply", result, scale)
    to.finish(result if bias is None else to.full("add", result, bias))


_RULES: dict[str, Callable[[_NodeWriter], None]] = {
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "reduce_log_sum_exp": _log_sum_exp,
    "layer_norm": _norm,
    "rms_norm": _norm,
}
