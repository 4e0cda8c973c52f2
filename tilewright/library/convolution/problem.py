"""A convolution: its problem in numbers, by which configs are ranked, and what is asked of a node in a graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tilewright.language as tl
from tilewright.errors import UnsupportedOperationError
from tilewright.graph.core import Node, Value
from tilewright.graph.fusion import Group
from tilewright.symbolic import Size, plain_symbol

_IMAGES = (1, 8, 32)  # up to which a run-time number of images has configs of its own


@dataclass(frozen=True)
class ConvolutionProblem:
    """Images of a result [images, height, width, groups * columns] and the window that gives them."""

    images: int
    height: int
    width: int
    columns: int  # of a group
    channels: int  # of a group
    groups: int = 1
    kernel: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    pad: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    input: Any = tl.float16
    output: Any = tl.float16
    right: Any = None  # the element type of weights, where it is not that of the image
    residual: bool = False  # the epilogue reads a tensor like the result
    read: int = 0  # bytes of the image; 0: as many as the result has pixels
    work: int = 0  # instructions for what follows the product, an element
    overlapped: bool = False  # pixels of the image, as copies see it, begin 32 bytes apart and reach over each other

    @property
    def pixels(self) -> int:
        """Pixels of the result."""
        return self.images * self.height * self.width


def checked_convolution(group: Group) -> tuple[Node, Value, Value]:
    """Anchor, image and weights of a convolution that there are kernels for."""
    anchor, x, w = convolution_of(group)
    if anchor.attributes["layout"] != "NHWC":
        raise NotImplementedError("channels-first convolution")
    if x.rank not in (3, 4) or not all(isinstance(extent, int) for extent in w.shape):
        raise UnsupportedOperationError(
            f"conv (from {anchor.source or 'the graph'}) of {x!r} by {w!r}: there are kernels for one and two spatial "
            "dimensions and weights of a fixed shape"
        )
    return anchor, x, w


def is_pointwise(anchor: Node, w: Value) -> bool:
    """Whether each output pixel is a product of one input pixel."""
    return anchor.attributes["groups"] == 1 and reads_one_pixel(anchor, w)


def reads_one_pixel(anchor: Node, w: Value) -> bool:
    """Whether each window is one pixel, the output's own."""
    attributes = anchor.attributes
    moved = any(step != 1 for step in attributes["strides"]) or any(low or high for low, high in attributes["padding"])
    return not moved and all(extent == 1 for extent in w.shape[2:])


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
