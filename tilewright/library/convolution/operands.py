"""The operands of a convolution's anchor."""

from __future__ import annotations

from tilewright.graph.core import Node, Value
from tilewright.graph.fusion import Group


def convolution_of(group: Group) -> tuple[Node, Value, Value]:
    """Anchor, image and weights of a group whose anchor is a convolution."""
    anchor = group.anchor
    assert anchor is not None
    x, w = anchor.inputs[:2]
    assert x is not None and w is not None
    return anchor, x, w
