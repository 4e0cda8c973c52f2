"""Gated products: the columns are two halves that are combined, as `graph.passes.fuse` groups them.

    p = x W,  W = [Wg Wu];   y = silu(p[.., :n]) * p[.., n:]  (+ what follows elementwise)

Kernels that hold a column of either half in the same thread compute y from their sums: their weights have groups of
columns of both halves in turns (`library.packing.halves_recipe`).  On a CPU the halves are two products, the second of
which reads the first's result in its epilogue.  Where neither goes, the group is split.
"""

from __future__ import annotations

from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.fusion import Group
from tilewright.library.epilogue import Epilogue
from tilewright.library.generated.slot_functions import Chain, GateChain
from tilewright.library.generated.source import ExtraReferences
from tilewright.library.slots import Slots, chain_slots, gate_halves


def gate_slots(group: Group, graph: Graph, extra: ExtraReferences | None = None) -> Slots | None:
    """The epilogue of a gated product, whose operands join `extra`, over columns of one half; None without a gate.

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
    gate = GateChain(tuple(nodes), left.output, right.output, met, graph.constants)
    extra = extra if extra is not None else ExtraReferences()
    rest = following[len(nodes) :]
    if not rest:
        return Slots(stored, extra, gate.joined(Epilogue()), gate=gate)
    return chain_slots(Chain((*group.prologue, *rest), met, stored, graph.constants), extra, gate)


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
