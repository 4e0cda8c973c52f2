"""Sorted numbers: the kernel that finds their positions stores them."""

from __future__ import annotations

from tilewright.graph.passes.fuse_draft import Drafts


def take_sorted(drafts: Drafts, remarks: list[str]) -> None:
    """Merge the look-up of a sorted tensor's elements at the positions found: a pass over the positions less."""
    for draft in list(drafts.all()):
        anchor = None if draft.anchor is None else drafts.nodes[draft.anchor]
        if anchor is None or anchor.op != "argsort":
            continue
        for reader in drafts.readers_of(draft):
            node = drafts.nodes[reader]
            same = node.op == "gather_elements" and node.inputs == [anchor.inputs[0], anchor.output]
            if same and node.attributes["axis"] == anchor.attributes["axis"]:
                drafts.merge(draft, drafts.owner[reader])
                remarks.append(f"argsort %{anchor.output.name} stores the elements %{node.output.name} in order")
                break
