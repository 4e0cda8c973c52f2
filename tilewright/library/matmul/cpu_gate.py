"""Gated products on CPUs: the halves of the columns are two products, the second of which reads the first's result."""

from __future__ import annotations

from dataclasses import replace

from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.fusion import Group, read_outside
from tilewright.library.candidate import Candidate, PackedConstant
from tilewright.library.cost import Cost
from tilewright.library.matmul.cpu import describe_packed, gemm_candidate
from tilewright.library.slots import epilogue_slots, gate_halves
from tilewright.symbolic import lift, simplify
from tilewright.targets.base import Target


def halves_candidates(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    """A gated product as two: the right half into a temporary, then the left half with all that follows.

    Raises `NotImplementedError` where a half is no whole number of panels of the weights.
    """
    halves = gate_halves(group)
    assert group.anchor is not None and halves is not None
    left, right = halves
    problem = describe_packed(group.anchor, graph, target)
    columns, depth = left.output.shape[-1], simplify(problem.depth)
    if not problem.width or not isinstance(columns, int) or columns % problem.width or not isinstance(depth, int):
        raise NotImplementedError(f"{group.name}: half of the columns are no whole panels")
    assert isinstance(problem.b, PackedConstant)
    aside = _aside(group)
    following = [node for node in group.epilogue if node not in (*halves, *aside) and not _is_between(node, left)]
    parts = []
    for number, half in ((1, right), (0, left)):
        anchor, between = _half(group, half)
        nodes = [anchor, *aside, *between, *(following if half is left else [])]
        stored = group.outputs if half is left else [right.output]
        part = Group(group.kind, [*group.prologue, *nodes], read_outside(nodes), stored, anchor, group.name)
        weights = replace(problem.b, offset=number * columns * depth)
        part_problem = replace(problem, columns=columns, b=weights)
        parts.append(gemm_candidate(part_problem, epilogue_slots(part, graph), part, target))
    first, second = parts
    seconds = first.cost.seconds + second.cost.seconds
    stages = (*first.stages, *second.stages)
    cost = Cost(
        simplify(lift(first.cost.bytes) + second.cost.bytes),
        simplify(lift(first.cost.flops) + second.cost.flops),
        seconds,
    )
    reasons = {**second.reasons, "halves": "two products, one after the other"}
    return [Candidate("tiled matmul", stages, cost, (right.output,), reasons)]


def _is_between(node: Node, half: Node) -> bool:
    """Whether a node stands between the product and its halves."""
    assert half.inputs[0] is not None
    return node.output.shape == half.inputs[0].shape


def _aside(group: Group) -> list[Node]:
    """Nodes behind the anchor that do not need it: how operands of the epilogue are read."""
    assert group.anchor is not None
    computed = {group.anchor.output}
    aside: list[Node] = []
    for node in group.epilogue:
        if computed.isdisjoint(node.inputs):
            aside.append(node)
        else:
            computed.add(node.output)
    return aside


def _half(group: Group, half: Node) -> tuple[Node, list[Node]]:
    """The product of half of the columns, and what stands between it and the value of that half."""
    anchor = group.anchor
    assert anchor is not None
    whole = half.inputs[0]
    assert whole is not None
    start, stop = half.attributes["start"], half.attributes["stop"]
    aside = _aside(group)
    between = [node for node in group.epilogue if _is_between(node, half) and node not in aside]
    values = {
        node.output: Value(f"{node.output.name}.{start}", node.output.dtype, half.output.shape)
        for node in (anchor, *between)
    }
    values[whole] = half.output
    nodes: list[Node] = []
    for node in between:
        inputs: list[Value | None] = []
        for item in node.inputs:
            if item in values:
                inputs.append(values[item])
            elif item is None or item.rank == 0 or item.shape[-1] == 1:
                inputs.append(item)
            else:
                part = Value(f"{item.name}.{start}", item.dtype, (*item.shape[:-1], half.output.shape[-1]))
                attributes = {"axis": item.rank - 1, "start": start, "stop": stop, "step": 1}
                nodes.append(Node("slice", [item], [part], attributes))
                inputs.append(part)
        nodes.append(Node(node.op, inputs, [values[node.output]], node.attributes, node.source))
    return Node("matmul", anchor.inputs, [values[anchor.output]], anchor.attributes, anchor.source), nodes
