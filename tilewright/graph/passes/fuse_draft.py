"""Draft groups: which node belongs to which group, and whether two groups may be merged.

Groups run one after the other, each as a whole.  So a merge is legal only when no path leads out of
the merged group and back in; `Drafts.may_merge` checks that on the graph of groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.kernel_facts import KernelFacts
from tilewright.graph.ops import kind_of
from tilewright.graph.passes.scatters import combines_at_once
from tilewright.graph.updates import do_not_meet, reads_elsewhere, replaces_input
from tilewright.symbolic import product

MOST_GROUP_NODES = 128  # of one group: the time to write and compile a kernel grows faster than its length


@dataclass(eq=False)
class Draft:
    """A group in the making. `nodes` are positions in the graph; `copies` positions of nodes that
    other groups have (or may have) as well and that this one computes again for itself."""

    kind: str
    nodes: set[int]
    anchor: int | None = None
    copies: set[int] = field(default_factory=set)

    @property
    def first(self) -> int:
        return min(self.nodes)

    @property
    def last(self) -> int:
        return max(self.nodes)


class Drafts:
    """All groups in the making of one graph; every node starts as a group of its own.

    `kernels` say what groups there are kernels for."""

    def __init__(self, graph: Graph, kernels: KernelFacts) -> None:
        self.graph = graph
        self.kernels = kernels
        self.nodes = graph.nodes
        self.position = {output: index for index, node in enumerate(graph.nodes) for output in node.outputs}
        self.readers: dict[Value, list[int]] = {}
        for index, node in enumerate(graph.nodes):
            for item in node.inputs:
                if item is not None:
                    self.readers.setdefault(item, []).append(index)
        self.results = set(graph.results())
        # Positions of updates of a tensor of the caller's, and those that do not meet: elements stored, as in an
        # elementwise loop.
        self.in_place = {index for index, node in enumerate(graph.nodes) if replaces_input(node, graph)}
        self.updates = {
            index
            for index in self.in_place
            if self.nodes[index].op == "scatter_update"
            and do_not_meet(self.nodes[index])
            and not self.reads_updated({index})
        }
        self.owner: list[Draft] = [self._single(index, node) for index, node in enumerate(graph.nodes)]
        self.spanned = list(range(len(graph.nodes)))  # an earlier position, if a merged group covers both

    def _single(self, index: int, node: Node) -> Draft:
        if index in self.updates:
            return Draft("update", {index})
        # A broadcast is an elementwise op that reads its input at fewer coordinates.
        kind = "elementwise" if node.op == "broadcast_to" else kind_of(node.op)
        return Draft(kind, {index}, None if kind == "elementwise" else index)

    def is_generated_scatter(self, draft: Draft) -> bool:
        """Whether a group is a scatter whose kernels are generated from expressions."""
        return (
            self.kernels.generates_scatters and draft.anchor is not None and combines_at_once(self.nodes[draft.anchor])
        )

    def all(self) -> Iterator[Draft]:
        """Every group once, in the order of its first node."""
        seen: set[int] = set()
        for draft in self.owner:
            if id(draft) not in seen:
                seen.add(id(draft))
                yield draft

    def producer(self, value: Value | None) -> int | None:
        """The position of the node that computes a value."""
        return None if value is None else self.position.get(value)

    def members(self, draft: Draft) -> list[int]:
        """Own nodes and copies, in graph order."""
        return sorted(draft.nodes | draft.copies)

    def inputs(self, draft: Draft) -> list[Value]:
        """What the group reads and does not compute, in order of first use."""
        members = draft.nodes | draft.copies
        found: dict[Value, None] = {}
        for index in sorted(members):
            for item in self.nodes[index].inputs:
                if item is not None and self.position.get(item) not in members:
                    found[item] = None
        return list(found)

    def outputs(self, draft: Draft) -> list[Value]:
        """What the group computes and nodes outside read, or the graph returns."""
        found = []
        for index in sorted(draft.nodes):
            for output in self.nodes[index].outputs:
                outside = any(reader not in draft.nodes for reader in self.readers.get(output, ()))
                if outside or output in self.results:
                    found.append(output)
        return found

    def live(self) -> dict[Draft, list[Value]]:
        """The groups that must run, with what each has to store.

        A group whose nodes are all repeated inside the groups that read them need not run.
        """
        waiting = [self.owner[self.position[value]] for value in self.results if value in self.position]
        read: set[Value] = set(self.results)
        found: set[Draft] = set()
        while waiting:
            draft = waiting.pop()
            if draft in found:
                continue
            found.add(draft)
            for value in self.inputs(draft):
                read.add(value)
                index = self.position.get(value)
                if index is not None:
                    waiting.append(self.owner[index])
        stored: dict[Draft, list[Value]] = {}
        for draft in self.all():
            if draft in found:
                computed = [output for index in sorted(draft.nodes) for output in self.nodes[index].outputs]
                stored[draft] = [output for output in computed if output in read]
        return stored

    def reads_updated(self, members: set[int]) -> bool:
        """Whether a kernel of these members would read a tensor that it updates in place elsewhere than it writes."""
        updates = [self.nodes[index] for index in members & self.in_place]
        nodes = [self.nodes[index] for index in members] if updates else []
        return any(reads_elsewhere(update, nodes, self._node_of) for update in updates)

    def _node_of(self, value: Value) -> Node | None:
        index = self.position.get(value)
        return None if index is None else self.nodes[index]

    def depends(self, draft: Draft, on: Draft) -> bool:
        """Whether `draft` needs, directly or not, something that `on` computes.

        A group that ends before `on` begins can need it only through groups that span the positions between.
        """
        seen: set[int] = set()
        lowest = self._lowest_spanned(on.first)
        waiting = [draft]
        while waiting:
            current = waiting.pop()
            for value in self.inputs(current):
                index = self.position.get(value)
                if index is None:
                    continue
                source = self.owner[index]
                if source is on:
                    return True
                if id(source) not in seen and source.last > lowest:
                    seen.add(id(source))
                    waiting.append(source)
        return False

    def have_room(self, first: Draft, second: Draft) -> bool:
        """Whether two groups together have no more nodes than one kernel may compute."""
        return len(first.nodes) + len(second.nodes) <= MOST_GROUP_NODES

    def may_merge(self, earlier: Draft, later: Draft) -> bool:
        """Whether both can run as one: nothing that `later` reads from a third group needs `earlier`,
        and the other way round; and they are not too large together."""
        if not self.have_room(earlier, later) or self.reads_updated({*self.members(earlier), *self.members(later)}):
            return False
        return not self.depends_through_others(later, earlier) and not self.depends_through_others(earlier, later)

    def depends_through_others(self, draft: Draft, on: Draft) -> bool:
        """Whether `draft` needs `on` by way of a third group."""
        sources = {self.owner[i] for i in map(self.producer, self.inputs(draft)) if i is not None}
        return any(source is not on and source is not draft and self.depends(source, on) for source in sources)

    def merge(self, into: Draft, other: Draft) -> None:
        """Make `other` part of `into`."""
        into.nodes |= other.nodes
        into.copies = (into.copies | other.copies) - into.nodes
        for index in other.nodes:
            self.owner[index] = into
        first, position = into.first, self._lowest_spanned(into.last)
        while position > first:
            self.spanned[position] = position - 1
            position = self._lowest_spanned(position - 1)

    def _lowest_spanned(self, position: int) -> int:
        """The first position that groups which overlap one another connect with `position`."""
        while (earlier := self.spanned[position]) != position:
            self.spanned[position] = self.spanned[earlier]
            position = self.spanned[position]
        return position

    def snapshot(self, draft: Draft) -> tuple[set[int], set[int]]:
        """What `restore` needs to undo merges into a group."""
        return set(draft.nodes), set(draft.copies)

    def restore(self, draft: Draft, saved: tuple[set[int], set[int]]) -> None:
        """Undo merges of single elementwise nodes into a group."""
        for index in draft.nodes - saved[0]:
            self.owner[index] = self._single(index, self.nodes[index])
        draft.nodes, draft.copies = saved

    def readers_of(self, draft: Draft) -> Iterable[int]:
        """Nodes outside that read what the group computes, in graph order."""
        found = {
            reader
            for index in draft.nodes
            for output in self.nodes[index].outputs
            for reader in self.readers.get(output, ())
            if reader not in draft.nodes
        }
        return sorted(found)


def is_whole_row(anchor: Node, kernels: KernelFacts) -> bool:
    """Whether a kernel holds a row of the anchor at once, and so computes each element of its input once."""
    source = anchor.inputs[0]
    if anchor.op not in ("softmax", "log_softmax", "layer_norm", "rms_norm") or source is None:
        return False
    columns = product(source.shape[anchor.attributes["axis"] :])
    return isinstance(columns, int) and columns <= kernels.row_elements
