"""What squeeze and excitation is made of: the mean of an image, two small products of it."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.graph.core import Node, Value
from tilewright.graph.fusion import Group


@dataclass(frozen=True)
class Excitation:
    """The parts of such a group, each with what follows it."""

    mean: Node
    first: Node
    between: tuple[Node, ...]
    hidden: Value  # what the second product reads
    second: Node
    after: tuple[Node, ...]


def parts_of(group: Group) -> Excitation:
    """The parts of a group that `graph.passes.fuse_excite` made."""
    anchor = group.anchor
    assert anchor is not None
    mean, first = (next(node for node in group.prologue if node.op == op) for op in ("reduce_mean", "conv"))
    hidden = anchor.inputs[0]
    assert hidden is not None
    between = tuple(node for node in group.prologue if node is not mean and node is not first)
    return Excitation(mean, first, between, hidden, anchor, tuple(group.epilogue))
