"""Fuses attention with the following views, as strides, and with the quantization of its results."""

from __future__ import annotations

from tilewright.graph.core import Node, Value
from tilewright.graph.fusion import is_block_attention
from tilewright.graph.passes.fuse_draft import Draft, Drafts
from tilewright.symbolic import Size, lift, modulo, product, simplify

_AFTER = ("permute", "reshape")


def take_quantization(drafts: Drafts, remarks: list[str]) -> None:
    """Merge what makes 8-bit numbers of results of attention into the group, with the views on the way."""
    for draft in list(drafts.all()):
        if draft.kind != "attention":
            continue
        assert draft.anchor is not None
        best = drafts.snapshot(draft)
        while (index := _following(drafts, draft)) is not None:
            node, value = drafts.nodes[index], drafts.outputs(draft)[0]
            other = drafts.owner[index]
            moves = node.op in _AFTER and (_keeps_rows(drafts, draft, node) or _keeps_order(drafts, draft, node))
            if not (moves or _is_arithmetic(drafts, node, value, other)) or not drafts.may_merge(draft, other):
                break
            drafts.merge(draft, other)
            if node.output.dtype.bits == 8 and not moves:
                best = drafts.snapshot(draft)
        drafts.restore(draft, best)
        merged = [drafts.nodes[index].op for index in sorted(draft.nodes) if index != draft.anchor]
        if merged:
            result = drafts.nodes[draft.anchor].output
            remarks.append(f"attention %{result.name} takes {', '.join(merged)} as its epilogue")


def _following(drafts: Drafts, draft: Draft) -> int | None:
    """The one node that reads the group's one output."""
    outputs = drafts.outputs(draft)
    readers = set(drafts.readers.get(outputs[0], []))
    return readers.pop() if len(outputs) == len(readers) == 1 and outputs[0] not in drafts.results else None


def _keeps_order(drafts: Drafts, draft: Draft, node: Node) -> bool:
    """Whether a node is a reshape of results that lie in their own order."""
    return node.op == "reshape" and all(drafts.nodes[index].op != "permute" for index in draft.nodes)


def _is_arithmetic(drafts: Drafts, node: Node, value: Value, other: Draft) -> bool:
    """Whether a node computes each element from one of `value` and numbers that are the same for all rows."""
    if other.kind != "elementwise" or len(other.nodes) > 1 or node.op == "broadcast_to":
        return False
    others = [item for item in node.inputs if item is not None and item is not value]
    return node.output.shape == value.shape and all(product(item.shape[:-1]) == 1 for item in others)


def take_views_after(drafts: Drafts, draft: Draft) -> None:
    """Merge the permute and reshape that follow attention: it writes with their strides."""
    while True:
        outputs = drafts.outputs(draft)
        readers = drafts.readers.get(outputs[0], [])
        if len(outputs) != 1 or outputs[0] in drafts.results or len(readers) != 1:
            return
        node = drafts.nodes[readers[0]]
        if node.op not in _AFTER or not _keeps_rows(drafts, draft, node):
            return
        drafts.merge(draft, drafts.owner[readers[0]])


def _keeps_rows(drafts: Drafts, draft: Draft, node: Node) -> bool:
    """Whether the output is still [batch, head, row, :] with a stride for each: one permute that keeps
    the last dimension, then one reshape that merges heads and width.  Of blocks, whether rows stay whole."""
    assert draft.anchor is not None
    if is_block_attention(drafts.nodes[draft.anchor], drafts.kernels):
        return moves_rows(node, drafts.nodes[draft.anchor].output.shape[-1])
    views = [drafts.nodes[index].op for index in draft.nodes if drafts.nodes[index].op in _AFTER]
    if node.op == "permute":
        return not views and node.attributes["order"] == (0, 2, 1, 3)
    source = node.inputs[0]
    if views != ["permute"] or source is None or source.rank != 4:
        return False
    return node.output.shape == (*source.shape[:2], simplify(lift(source.shape[2]) * source.shape[3]))


def moves_rows(node: Node, width: Size) -> bool:
    """Whether a view keeps every `width` elements of the last dimension together.

    A slice of that dimension may take some of them: the heads of a packed product.
    """
    attributes, last = node.attributes, node.output.rank - 1
    if node.op == "reshape":
        return True
    if node.op == "permute":
        whole = attributes["order"][-1] == last
    elif node.op == "slice":
        whole = attributes["axis"] != last or (attributes["step"] == 1 and modulo(attributes["start"], width) == 0)
    else:
        return False
    return whole and modulo(node.output.shape[-1], width) == 0
