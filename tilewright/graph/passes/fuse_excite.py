"""Squeeze and excitation: the mean of an image and two small products of it become one group."""

from __future__ import annotations

from tilewright.graph.core import Node
from tilewright.graph.passes.fuse_draft import Draft, Drafts
from tilewright.symbolic import product


def join_excitations(drafts: Drafts, remarks: list[str]) -> None:
    """Merge a mean over the pixels of images, a product, what follows it, and a second product of its result.

    Products are 1x1 convolutions of single pixels, by constant weights.
    """
    for second in list(drafts.all()):
        if not _is_product(drafts, second) or drafts.owner[second.first] is not second:
            continue
        first = _only_source(drafts, second)
        mean = None if first is None or not _is_product(drafts, first) else _only_source(drafts, first)
        if first is None or mean is None or mean.kind != "reduction" or len(mean.nodes) != 1:
            continue
        weights = _weights(drafts, first) + _weights(drafts, second)
        if not _is_mean(drafts.nodes[mean.first]) or weights > drafts.kernels.excitation_weights:
            continue
        if not drafts.may_merge(first, second) or not drafts.may_merge(mean, first):
            continue
        drafts.merge(second, first)
        drafts.merge(second, mean)
        second.kind = "excitation"
        assert second.anchor is not None
        remarks.append(f"conv %{drafts.nodes[second.anchor].output.name} is one kernel with the mean of its image")


def _is_product(drafts: Drafts, draft: Draft) -> bool:
    """Whether a group is a 1x1 convolution of single pixels by constant weights."""
    if draft.kind != "contraction" or draft.anchor is None or len(drafts.outputs(draft)) != 1:
        return False
    node = drafts.nodes[draft.anchor]
    if node.op != "conv" or node.attributes["layout"] != "NHWC":
        return False
    image, weights = node.inputs[:2]
    assert image is not None and weights is not None
    constants = all(item is None or item in drafts.graph.constants for item in node.inputs[1:])
    single = all(extent == 1 for extent in (*image.shape[1:-1], *node.output.shape[1:-1], node.attributes["groups"]))
    return constants and single and isinstance(product(weights.shape), int)


def _weights(drafts: Drafts, draft: Draft) -> int:
    """Elements of a product's weights."""
    assert draft.anchor is not None
    weights = drafts.nodes[draft.anchor].inputs[1]
    count = 0 if weights is None else product(weights.shape)
    assert isinstance(count, int)
    return count


def _only_source(drafts: Drafts, draft: Draft) -> Draft | None:
    """The group that makes the image of a group's anchor, if nothing else reads what it makes."""
    assert draft.anchor is not None
    image = drafts.nodes[draft.anchor].inputs[0]
    index = drafts.producer(image)
    if image is None or index is None or image in drafts.results:
        return None
    source = drafts.owner[index]
    alone = drafts.readers.get(image) == [draft.anchor] and drafts.outputs(source) == [image]
    return source if alone and source is not draft else None


def _is_mean(node: Node) -> bool:
    """Whether a node is the mean over all pixels of images."""
    source = node.inputs[0]
    if node.op != "reduce_mean" or source is None or not node.attributes["keepdims"]:
        return False
    return tuple(node.attributes["axes"]) == tuple(range(1, source.rank - 1))
