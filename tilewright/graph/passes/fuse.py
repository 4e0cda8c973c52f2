"""Fusion by class: which nodes are computed together, without writing what lies between them to memory.

The rules, in this order:
1. A contraction takes the elementwise ops that follow it, as long as one tensor leaves the group.
   (Bias, activation, scale and residual add are done while the result is in registers.)
2. A reduction (softmax, norms, reduce_*) takes the elementwise ops after it in the same way, and those
   before it that nobody else reads.
3. Elementwise ops of one shape join into one loop nest, with as many outputs as are read outside.
4. Attention takes the reshapes, permutes and slices around it: they are only strides to it.
   Elementwise groups and reductions take them, and gathers, on their inputs: only index arithmetic.
5. What costs less to compute than to load (iota, comparisons of iota, scalar arithmetic) is computed
   again in every elementwise group and reduction that reads it.
A merge never makes two groups wait for each other, and every decision is noted in the remarks.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.fusion import FusedGraph, Group
from tilewright.graph.ops import kind_of
from tilewright.graph.passes.fuse_draft import Draft, Drafts
from tilewright.graph.views import dense_view, follow_all
from tilewright.symbolic import lift, simplify

_EXPENSIVE = {"exp", "log", "sin", "cos", "tanh", "erf", "sigmoid", "silu", "gelu", "power"}
_STRIDED = {"reshape", "permute", "slice"}  # to attention these are strides
_INDEXED = _STRIDED | {"gather", "broadcast_to"}  # to elementwise groups and reductions these are index arithmetic


def fuse(graph: Graph) -> FusedGraph:
    """Partition a graph into groups, in an order in which they can run.

    Every node belongs to one group; views and cheap nodes may be repeated in the groups that read them.
    """
    drafts = Drafts(graph)
    remarks: list[str] = []
    for kind in ("contraction", "reduction"):
        for draft in list(drafts.all()):
            if draft.kind == kind:
                _take_epilogue(drafts, draft, remarks)
    for draft in list(drafts.all()):
        if draft.kind == "reduction":
            _take_prologue(drafts, draft, remarks)
    _join_elementwise(drafts)
    for draft in list(drafts.all()):
        if draft.kind == "attention":
            _take_views_after(drafts, draft)
            _take_views_before(drafts, draft)
    _repeat_cheap(drafts)
    _absorb_index_arithmetic(drafts)
    return FusedGraph(graph, _ordered(drafts, remarks), remarks)


# 1 and 2: what follows an anchor, what leads to it ---------------------------------------------------


def _take_epilogue(drafts: Drafts, draft: Draft, remarks: list[str]) -> None:
    """Merge following elementwise nodes of the same shape; keep the last state with one output."""
    assert draft.anchor is not None
    shape = drafts.nodes[draft.anchor].output.shape
    best = drafts.snapshot(draft)
    refused = ""
    grown = True
    while grown:
        grown = False
        for reader in drafts.readers_of(draft):
            node, other = drafts.nodes[reader], drafts.owner[reader]
            if other.kind != "elementwise" or len(other.nodes) > 1:
                continue
            if node.output.shape != shape:
                refused = f"%{node.output.name} has another shape"
                continue
            if drafts.depends_through_others(other, draft):
                refused = f"%{node.output.name} also waits for what this group feeds"
                continue
            drafts.merge(draft, other)
            grown = True
            if len(drafts.outputs(draft)) == 1:
                best = drafts.snapshot(draft)
            break
    drafts.restore(draft, best)
    taken = [drafts.nodes[index].op for index in sorted(draft.nodes) if index != draft.anchor]
    anchor = drafts.nodes[draft.anchor]
    if taken:
        remarks.append(f"{anchor.op} %{anchor.output.name} takes {', '.join(taken)} as its epilogue")
    elif refused:
        remarks.append(f"{anchor.op} %{anchor.output.name} has no epilogue: {refused}")


def _take_prologue(drafts: Drafts, draft: Draft, remarks: list[str]) -> None:
    """Merge elementwise nodes that only this reduction reads and that have its input's shape."""
    assert draft.anchor is not None
    anchor = drafts.nodes[draft.anchor]
    source = anchor.inputs[0]
    assert source is not None
    taken: list[str] = []
    waiting = [source]
    while waiting:
        value = waiting.pop()
        index = drafts.producer(value)
        if index is None or drafts.owner[index].kind != "elementwise" or len(drafts.owner[index].nodes) > 1:
            continue
        node = drafts.nodes[index]
        readers = drafts.readers.get(value, [])
        if value in drafts.results or any(reader not in draft.nodes for reader in readers):
            continue
        if node.output.shape != source.shape or drafts.depends_through_others(draft, drafts.owner[index]):
            continue
        drafts.merge(draft, drafts.owner[index])
        taken.append(node.op)
        waiting += [item for item in node.inputs if item is not None]
    if taken:
        remarks.append(f"{anchor.op} %{anchor.output.name} takes {', '.join(reversed(taken))} as its prologue")


# 3: elementwise loops --------------------------------------------------------------------------------


def _join_elementwise(drafts: Drafts) -> None:
    """Merge each elementwise node with the groups of the same shape that feed it."""
    for index, node in enumerate(drafts.nodes):
        if drafts.owner[index].kind != "elementwise":
            continue
        for item in node.inputs:
            source = drafts.producer(item)
            if source is None:
                continue
            earlier, later = drafts.owner[source], drafts.owner[index]
            if earlier is later or earlier.kind != "elementwise":
                continue
            if _joins(drafts, source, node) and drafts.may_merge(earlier, later):
                drafts.merge(earlier, later)


def _joins(drafts: Drafts, source: int, node: Node) -> bool:
    """Same shape; or a smaller one that nobody else reads and that is cheap to compute for each element."""
    producer = drafts.nodes[source]
    if producer.output.shape == node.output.shape:
        return True
    others = [reader for reader in drafts.readers[producer.output] if drafts.nodes[reader] is not node]
    if others or producer.output in drafts.results or len(drafts.owner[source].nodes) > 1:
        return False
    return producer.op not in _EXPENSIVE


# 4 and 5: views and cheap nodes ----------------------------------------------------------------------


def _take_views_after(drafts: Drafts, draft: Draft) -> None:
    """Merge the permute and reshape that follow attention: it writes with their strides."""
    while True:
        outputs = drafts.outputs(draft)
        readers = drafts.readers.get(outputs[0], [])
        if len(outputs) != 1 or outputs[0] in drafts.results or len(readers) != 1:
            return
        node = drafts.nodes[readers[0]]
        if node.op not in ("permute", "reshape") or not _keeps_rows(drafts, draft, node):
            return
        drafts.merge(draft, drafts.owner[readers[0]])


def _keeps_rows(drafts: Drafts, draft: Draft, node: Node) -> bool:
    """Whether the output is still [batch, head, row, :] with a stride for each: one permute that keeps
    the last dimension, then one reshape that merges heads and width."""
    assert draft.anchor is not None
    if node.op == "permute":
        return len(draft.nodes) == 1 and node.attributes["order"] == (0, 2, 1, 3)
    source = node.inputs[0]
    if len(draft.nodes) != 2 or source is None or source.rank != 4:
        return False
    return node.output.shape == (*source.shape[:2], simplify(lift(source.shape[2]) * source.shape[3]))


def _take_views_before(drafts: Drafts, draft: Draft) -> None:
    """Copy the longest chains of views that end in q, k and v and are plain strides with dense rows."""
    assert draft.anchor is not None
    for item in drafts.nodes[draft.anchor].inputs[:3]:
        chain: list[int] = []
        index = drafts.producer(item)
        while index is not None and drafts.nodes[index].op in _STRIDED:
            chain.insert(0, index)
            index = drafts.producer(drafts.nodes[index].inputs[0])
        while chain:
            source = drafts.nodes[chain[0]].inputs[0]
            assert source is not None
            view = follow_all(dense_view(source.shape), [drafts.nodes[index] for index in chain])
            if view is not None and view.strides[-1] == 1:
                draft.copies.update(chain)
                break
            chain.pop(0)


def _take_inputs(drafts: Drafts, draft: Draft, wanted: Callable[[int], bool]) -> None:
    """Copy producers that `wanted` accepts into the group, from its inputs upwards."""
    waiting = drafts.inputs(draft)
    while waiting:
        index = drafts.producer(waiting.pop())
        if index is None or index in draft.copies or index in draft.nodes or not wanted(index):
            continue
        draft.copies.add(index)
        waiting += [item for item in drafts.nodes[index].inputs if item is not None]


def _repeat_cheap(drafts: Drafts) -> None:
    """Sources, and cheap elementwise nodes of nothing but sources and scalars, are computed where they are read."""
    cheap: set[int] = set()
    for index, node in enumerate(drafts.nodes):
        inputs = [drafts.producer(item) for item in node.inputs if item is not None and item.rank > 0]
        elementwise = kind_of(node.op) == "elementwise" or node.op in ("broadcast_to", "reshape")
        if kind_of(node.op) == "source" or (
            elementwise and node.op not in _EXPENSIVE and inputs and all(item in cheap for item in inputs)
        ):
            cheap.add(index)
    for draft in list(drafts.all()):
        if draft.kind in ("elementwise", "reduction"):
            _take_inputs(drafts, draft, lambda index: index in cheap)


def _absorb_index_arithmetic(drafts: Drafts) -> None:
    """Read through views: reshape and slice always, permute and gather when no one else reads them."""

    def wanted(index: int) -> bool:
        node = drafts.nodes[index]
        if node.op in ("reshape", "slice"):
            return True
        if node.op not in _INDEXED or node.output in drafts.results:
            return False
        readers = [drafts.owner[reader] for reader in drafts.readers.get(node.output, ())]
        if node.op == "gather" and len(readers) > 1:
            return False
        return all(reader.kind in ("elementwise", "reduction") for reader in readers)

    for draft in list(drafts.all()):
        if draft.kind in ("elementwise", "reduction"):
            _take_inputs(drafts, draft, wanted)


# The result ------------------------------------------------------------------------------------------


def _ordered(drafts: Drafts, remarks: list[str]) -> list[Group]:
    """The groups that compute something needed, each after those that it reads from."""
    needed = drafts.live()
    waits: dict[int, set[int]] = {}
    unlocks: dict[int, list[Draft]] = {}
    by_id = {id(draft): draft for draft in needed}
    for draft in needed:
        sources = {id(drafts.owner[i]) for i in map(drafts.producer, drafts.inputs(draft)) if i is not None}
        sources |= _readers_before_update(drafts, draft, by_id)
        waits[id(draft)] = sources - {id(draft)}
        for source in waits[id(draft)]:
            unlocks.setdefault(source, []).append(draft)
    ready = [(draft.last, id(draft)) for draft in needed if not waits[id(draft)]]
    heapq.heapify(ready)
    groups: list[Group] = []
    while ready:
        _, key = heapq.heappop(ready)
        groups.append(_group(drafts, by_id[key], needed[by_id[key]], len(groups)))
        for reader in unlocks.get(key, ()):
            waits[id(reader)].discard(key)
            if not waits[id(reader)]:
                heapq.heappush(ready, (reader.last, id(reader)))
    if len(groups) != len(needed):
        raise AssertionError("fusion made groups that wait for each other")
    return groups


def _readers_before_update(drafts: Drafts, draft: Draft, needed: dict[int, Draft]) -> set[int]:
    """Groups that read a mutated input must run before the group that makes its new value, which is
    written in place; readers that depend on the new value are left out (the engine copies then)."""
    before: set[int] = set()
    for target, value in drafts.graph.mutations.items():
        index = drafts.producer(value)
        if index is None or drafts.owner[index] is not draft:
            continue
        for reader in needed.values():
            if reader is not draft and target in drafts.inputs(reader) and not drafts.depends(reader, draft):
                before.add(id(reader))
    return before


def _group(drafts: Drafts, draft: Draft, outputs: list[Value], number: int) -> Group:
    """The finished group: what leads to the anchor, the anchor, what follows it."""
    members = drafts.members(draft)
    anchor = None if draft.anchor is None else drafts.nodes[draft.anchor]
    if draft.anchor is not None:
        leading = _ancestors(drafts, draft.anchor, set(members))
        members = [*sorted(leading), draft.anchor, *(i for i in members if i not in leading and i != draft.anchor)]
    nodes = [drafts.nodes[index] for index in members]
    own = [node.op for index, node in zip(members, nodes, strict=True) if index in draft.nodes]
    name = f"{number:03d}-{'-'.join(own[:4])}{'-etc' if len(own) > 4 else ''}"
    return Group(draft.kind, nodes, drafts.inputs(draft), outputs, anchor, name)


def _ancestors(drafts: Drafts, index: int, members: set[int]) -> set[int]:
    """The members that node `index` needs."""
    found: set[int] = set()
    waiting = [index]
    while waiting:
        for item in drafts.nodes[waiting.pop()].inputs:
            source = drafts.producer(item)
            if source is not None and source in members and source not in found:
                found.add(source)
                waiting.append(source)
    return found
