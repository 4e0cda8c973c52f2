"""The operands of a convolution's anchor, and the ranges of its number of images."""

from __future__ import annotations

from tilewright.graph.core import Node, Value
from tilewright.graph.fusion import Group
from tilewright.symbolic import Size, plain_symbol

_IMAGES = (1, 8, 32)  # up to which a run-time number of images has forms of its own


def convolution_of(group: Group) -> tuple[Node, Value, Value]:
    """Anchor, image and weights of a group whose anchor is a convolution."""
    anchor = group.anchor
    assert anchor is not None
    x, w = anchor.inputs[:2]
    assert x is not None and w is not None
    return anchor, x, w


def image_ranges(images: Size) -> list[tuple[int | None, dict[str, int]]]:
    """Ranges of a number of images, each up to a number, with the size that stands for it; one when it is known."""
    symbol = plain_symbol(images)
    if symbol is None:
        return [(None, {})]
    limits = [limit for limit in _IMAGES if symbol.low <= limit < symbol.high]
    last = min(symbol.high, max(symbol.low, 2 * _IMAGES[-1]))
    return [*((limit, {symbol.name: limit}) for limit in limits), (None, {symbol.name: last})]
