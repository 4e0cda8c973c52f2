"""Scatters that write into the memory of a graph input that they replace."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.ops import kind_of

_SCATTERS = ("scatter_update", "scatter_reduce")
_VIEWS = frozenset({"reshape", "permute", "slice"})  # that may show the memory of what they read


def replaces_input(node: Node, graph: Graph) -> bool:
    """Whether a scatter's result is the next value of the graph input that it updates."""
    target = node.inputs[0] if node.op in _SCATTERS else None
    return target is not None and graph.mutations.get(target) is node.output


def writes_in_place(node: Node, members: Iterable[Node], graph: Graph) -> bool:
    """Whether a kernel of these members writes only the updates of a scatter, into the graph input itself."""
    return replaces_input(node, graph) and not reads_elsewhere(node, members, graph.producers().get)


def do_not_meet(node: Node) -> bool:
    """Whether no two updates of a scatter have to be ordered: there is one, or they go to different places."""
    indices = node.inputs[1]
    return indices is not None and (indices.shape == (1,) or node.attributes.get("distinct", False))


def reads_elsewhere(update: Node, members: Iterable[Node], producer: Callable[[Value], Node | None]) -> bool:
    """Whether a kernel of these members reads the tensor that a scatter among them updates: it would find old and new
    elements there.  An update computed from the element that it replaces finds the old one."""
    target, *operands = update.inputs
    others = [member for member in members if member is not update]
    inside = set(others)

    def shows_target(value: Value | None) -> bool:
        while value is not None and value is not target:
            view = producer(value)
            value = view.inputs[0] if view is not None and view.op in _VIEWS and view not in inside else None
        return value is not None

    if any(map(shows_target, operands)):
        return True
    readers = [member for member in others if any(map(shows_target, member.inputs))]
    return not all(_reads_what_it_replaces(reader, update, others) for reader in readers)


def _reads_what_it_replaces(reader: Node, update: Node, others: list[Node]) -> bool:
    """Whether a gather reads the places of an update, for nothing but elements at the same places."""
    if reader.op != "gather" or reader.inputs != update.inputs[:2] or not do_not_meet(update):
        return False
    following = _following(reader.output, others)
    same_places = all(
        kind_of(node.op) == "elementwise" and node.op != "broadcast_to" and node.output.shape == reader.output.shape
        for node in following
    )
    computes_place = update.inputs[1] in [node.output for node in following]
    return same_places and not computes_place and reader.attributes["axis"] == update.attributes["axis"]


def _following(value: Value, nodes: list[Node]) -> list[Node]:
    """Which of these nodes need a value."""
    found: list[Node] = []
    needed = [value]
    for item in needed:
        readers = [node for node in nodes if item in node.inputs and node not in found]
        found += readers
        needed += [node.output for node in readers]
    return found
