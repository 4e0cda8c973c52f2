"""The epilogue of attention, for the slots of its kernels: results are quantized before they are stored."""

from __future__ import annotations

from tilewright.graph.core import Graph, Node
from tilewright.graph.fusion import Group
from tilewright.library.generated.generate import Chain
from tilewright.library.generated.source import ExtraReferences
from tilewright.library.matmul.kernel import identity
from tilewright.library.slots import Slots, chain_slots


def movement_behind(group: Group) -> list[Node]:
    """The permutes and reshapes behind the anchor."""
    return [node for node in group.epilogue if node.op in ("permute", "reshape")]


def computes(group: Group) -> bool:
    """Whether there is arithmetic behind the anchor, and not movement alone."""
    return len(movement_behind(group)) < len(group.epilogue)


def attention_slots(group: Group, graph: Graph, extra: ExtraReferences) -> Slots:
    """The epilogue of a group, of elements [batch, head, query, column]: its row counts queries of all heads."""
    assert group.anchor is not None
    (stored,) = group.outputs
    if not computes(group):
        return Slots(identity, extra, stored)
    chain = Chain(tuple(group.epilogue), group.anchor.output, stored, graph.constants, moved=True)
    return chain_slots(chain, extra).rounded()
