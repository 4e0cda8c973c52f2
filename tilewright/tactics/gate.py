"""Gated products: a product whose columns are two halves that meet again, as `graph.passes.fuse` groups them.

    p = x W,  W = [Wg Wu];   y = silu(p[.., :n]) * p[.., n:]  (+ what follows elementwise)

Kernels that hold a column of either half in the same thread compute y from their sums: their weights have groups of
columns of both halves in turns (`kernels.packing.halves_recipe`).  Other kernels leave the group to be split.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.frontend.jit import JITFunction
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.fusion import Group
from tilewright.kernels.matmul import identity
from tilewright.tactics.contraction import Slots, gate_halves
from tilewright.tactics.generate import epilogue_function, gate_function
from tilewright.tactics.source import ExtraReferences


@dataclass(frozen=True)
class GateSlots:
    """What a gated product's kernel does with its sums.

    `gate` is ``(left, right) -> value`` for a column of the left half and its partner; `rest` the epilogue behind it,
    over columns of one half, and the stored value.
    """

    gate: JITFunction
    rest: Slots


def gate_slots(group: Group, graph: Graph) -> GateSlots | None:
    """The slots of a gated product; None for a group without a gate.

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
    function = gate_function(nodes, left.output, right.output, met, graph.constants)
    extra, stored = ExtraReferences(), group.outputs[0]
    rest = following[len(nodes) :]
    if not rest:
        return GateSlots(function, Slots(identity, extra, stored))
    epilogue = epilogue_function([*group.prologue, *rest], met, stored, graph.constants, extra)
    return GateSlots(function, Slots(epilogue, extra, stored))


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
