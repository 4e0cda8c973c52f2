"""Elements looked up at computed positions are one loop with what computes the positions and what reads the elements.

A `gather_elements`, and a `gather` from a line, has an element for each index.  Where an elementwise group computes the
indices, the lookup is an element of its loop like any other: a load from an address that depends on data.  A binary
search is a chain of such lookups, of which nothing is stored but the end.
"""

from __future__ import annotations

from tilewright.graph.core import Node
from tilewright.graph.passes.fuse_draft import Draft, Drafts


def join_lookups(drafts: Drafts) -> None:
    """Merge each lookup with the elementwise group of its indices, then with the groups that read what was found."""
    for index, node in enumerate(drafts.nodes):
        if not _looks_up(node) or len(drafts.owner[index].nodes) > 1:
            continue
        computed = drafts.producer(node.inputs[1])
        if computed is None or drafts.owner[computed].kind != "elementwise":
            continue
        draft, lookup = drafts.owner[computed], drafts.owner[index]
        source = drafts.producer(node.inputs[0])
        if source is not None and drafts.owner[source] is draft:
            continue  # each element would be computed again where it is looked up
        if drafts.may_merge(draft, lookup):
            drafts.merge(draft, lookup)
            _join_readers(drafts, draft, node)


def _looks_up(node: Node) -> bool:
    if node.op not in ("gather", "gather_elements"):
        return False
    source, indices = node.inputs
    assert source is not None and indices is not None
    return node.op == "gather_elements" or source.rank == 1


def _join_readers(drafts: Drafts, draft: Draft, node: Node) -> None:
    for reader in drafts.readers.get(node.output, ()):
        other = drafts.owner[reader]
        if other is draft or other.kind != "elementwise" or drafts.nodes[reader].output.shape != node.output.shape:
            continue
        if drafts.may_merge(draft, other):
            drafts.merge(draft, other)
