"""Expands recurrent layers of few steps, one product each, for targets whose kernel computes batch rows separately."""

from __future__ import annotations

from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.rewrite import GraphRewriter, apply_rules

MOST_UNROLLED_STEPS = 64  # that become nodes of their own


def unrolled(graph: Graph) -> Graph:
    """The graph with the layers of at most `MOST_UNROLLED_STEPS` steps as those steps."""
    return apply_rules(graph, {"recurrent": [_steps]})


def _steps(node: Node, rewriter: GraphRewriter) -> Value | None:
    x, weight, initial, bias, lengths = [*node.inputs, None, None][:5]
    assert x is not None and weight is not None and initial is not None
    steps, hidden, cell = x.shape[0], weight.shape[1], node.attributes["cell"]
    if (
        not isinstance(steps, int)
        or not 0 < steps <= MOST_UNROLLED_STEPS
        or not isinstance(hidden, int)
        or lengths is not None
    ):
        return None
    if cell not in ("rnn", "lstm", "gru"):
        return None
    sides = []
    for number, backwards in enumerate(node.attributes["reverse"]):
        matrix, state = _at(rewriter, weight, 0, number), _at(rewriter, initial, 0, number)
        added = None if bias is None else _at(rewriter, bias, 0, number)
        mine = _at(rewriter, x, 1, number)
        rows = {steps if backwards else 0: state}
        for place in range(steps)[:: -1 if backwards else 1]:
            state = _step(rewriter, node, _at(rewriter, mine, 0, place), state, matrix, added, hidden)
            rows[place if backwards else place + 1] = state
        ordered = [rewriter.op("reshape", [rows[place]], shape=(1, 1, *state.shape)) for place in range(steps + 1)]
        sides.append(rewriter.op("concat", ordered, axis=0))
    return sides[0] if len(sides) == 1 else rewriter.op("concat", sides, axis=1)


def _at(rewriter: GraphRewriter, value: Value, axis: int, place: int) -> Value:
    """One element of an axis."""
    shape = (*value.shape[:axis], *value.shape[axis + 1 :])
    return rewriter.op("reshape", [_part(rewriter, value, axis, place, 1)], shape=shape)


def _part(rewriter: GraphRewriter, value: Value, axis: int, number: int, size: int) -> Value:
    """Part `number` of an axis, each of `size`."""
    return rewriter.op("slice", [value], axis=axis, start=number * size, stop=(number + 1) * size)


def _step(
    rewriter: GraphRewriter, node: Node, x: Value, state: Value, weight: Value, bias: Value | None, hidden: int
) -> Value:
    """[batch, slots * hidden] after one step (see `graph.recurrent`)."""
    cell, (gate, *others) = node.attributes["cell"], node.attributes["functions"]

    def op(name: str, *values: Value) -> Value:
        return rewriter.op(name, list(values))

    h = _part(rewriter, state, 1, 0, hidden)
    product = op("matmul", h, weight)
    if cell == "rnn":
        return op(gate, op("add", x, product))
    if cell == "lstm":
        total = op("add", x, product)
        into, out, forget, new = (_part(rewriter, total, 1, number, hidden) for number in range(4))
        retained = op("multiply", op(gate, forget), _part(rewriter, state, 1, 1, hidden))
        memory = op("add", retained, op("multiply", op(gate, into), op(others[0], new)))
        return rewriter.op("concat", [op("multiply", op(gate, out), op(others[1], memory)), memory], axis=1)
    product = product if bias is None else op("add", product, bias)
    of_input, of_state = ([_part(rewriter, v, 1, number, hidden) for number in range(3)] for v in (x, product))
    update, reset = (op(gate, op("add", of_input[number], of_state[number])) for number in range(2))
    new = op(others[0], op("add", of_input[2], op("multiply", reset, of_state[2])))
    return op("add", new, op("multiply", update, op("subtract", h, new)))
