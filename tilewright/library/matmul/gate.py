"""Gated products: the columns are two halves that are combined, as `graph.passes.fuse` groups them.

    p = x W,  W = [Wg Wu];   y = silu(p[.., :n]) * p[.., n:]  (+ what follows elementwise)

Kernels that hold a column of either half in the same thread compute y from their sums: their weights have groups of
columns of both halves in turns (`library.packing.halves_recipe`).  On a CPU the halves are two products, the second of
which reads the first's result in its epilogue.  Where neither goes, the group is split.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.fusion import Group, read_outside
from tilewright.launch.jit import JITFunction
from tilewright.library.candidate import Candidate, PackedConstant
from tilewright.library.cost import Cost
from tilewright.library.generated.generate import Chain, gate_function
from tilewright.library.generated.source import ExtraReferences
from tilewright.library.matmul.cpu import describe_packed, gemm_candidate
from tilewright.library.matmul.kernel import identity
from tilewright.library.slots import Slots, chain_slots, epilogue_slots, gate_halves
from tilewright.symbolic import lift, simplify
from tilewright.targets.base import Target


@dataclass(frozen=True)
class GateSlots:
    """What a gated product's kernel does with its sums.

    `gate` is ``(left, right) -> value`` for a column of the left half and its partner, `rounded` the same as exact as
    the stored type can tell; `rest` the epilogue behind it, over columns of one half, and the stored value.
    """

    gate: JITFunction
    rounded: JITFunction
    rest: Slots


def gate_slots(group: Group, graph: Graph, extra: ExtraReferences | None = None) -> GateSlots | None:
    """The slots of a gated product, whose operands join `extra`; None for a group without a gate.

    Raises `NotImplementedError` where something stands between the product and its halves, or where the halves meet
    only together with other tensors.
    """
    halves = gate_halves(group)
    if halves is None:
        return None
    assert group.anchor is not None
    left, right = halves
    if left.inputs[0] is not group.anchor.output:
        raise NotImplementedError(f"{group.name}: the sums change before they are halved")
    following = [node for node in group.epilogue if node not in halves]
    nodes = _meeting(following, (left.output, right.output), graph)
    if nodes is None or len(group.outputs) != 1:
        raise NotImplementedError(f"{group.name}: the halves do not meet by themselves")
    met = nodes[-1].output
    stored = group.outputs[0]
    function, rounded = (
        gate_function(nodes, left.output, right.output, met, graph.constants, dtype) for dtype in (None, stored.dtype)
    )
    extra = extra if extra is not None else ExtraReferences()
    rest = following[len(nodes) :]
    if not rest:
        return GateSlots(function, rounded, Slots(identity, extra, stored))
    return GateSlots(
        function, rounded, chain_slots(Chain((*group.prologue, *rest), met, stored, graph.constants), extra)
    )


def _meeting(nodes: list[Node], halves: tuple[Value, Value], graph: Graph) -> list[Node] | None:
    """The fewest leading nodes after which nothing reads the halves any more, but one value computed of them alone."""
    computed = set(halves)
    for count, node in enumerate(nodes, 1):
        known = all(
            item in computed or (item in graph.constants and item.rank == 0) for item in node.inputs if item is not None
        )
        if not known:
            return None
        computed.add(node.output)
        later = {item for other in nodes[count:] for item in other.inputs}
        if not (later & computed) - {node.output}:
            return nodes[:count]
    return None


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
