"""Blocks of output pixels for windows so widely dilated that many of their taps lie outside of the image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from tilewright.graph.core import Value

SPARSE_PADDING = 6  # an image of at most so many paddings is small beside its windows
WIDEST = 16  # tile, and highest
FEWEST_PIXELS, MOST_PIXELS = 24, 128  # of a tile
STARTED = 6  # pixels whose products take the time that one more block of pixels costs


@dataclass(frozen=True)
class PixelTile:
    """A tile of neighbouring output pixels; `share` of all taps of all tiles are in the image for some pixel."""

    height: int
    width: int
    share: float

    @property
    def pixels(self) -> int:
        return self.height * self.width


def is_sparse(x: Value, padding: Sequence[tuple[int, int]]) -> bool:
    """Whether taps of widely dilated windows lie outside of the image for many pixels."""
    pairs = zip(x.shape[1:-1], padding, strict=True)
    return any(isinstance(extent, int) and SPARSE_PADDING * max(ends) >= extent for extent, ends in pairs)


def pixel_tile(x: Value, out: Value, windows: dict[str, Any], padding: Sequence[tuple[int, int]]) -> PixelTile | None:
    """The tile that leaves the most taps out; None where windows are not widely dilated, or sizes are unknown."""
    extents = (*x.shape[1:-1], *out.shape[1:-1])
    if x.rank != 4 or not is_sparse(x, padding) or not all(isinstance(extent, int) for extent in extents):
        return None
    shares: list[dict[int, float]] = []
    for letter, inside, outside in zip("YX", x.shape[1:-1], out.shape[1:-1], strict=True):
        assert isinstance(inside, int) and isinstance(outside, int)
        sizes = [size for size in range(1, min(outside, WIDEST) + 1) if outside % size == 0]
        shares.append({size: _share(inside, outside, size, letter, windows) for size in sizes})
    tiles = [
        PixelTile(height, width, share * other)
        for height, share in shares[0].items()
        for width, other in shares[1].items()
        if FEWEST_PIXELS <= height * width <= MOST_PIXELS
    ]
    return min(tiles, key=lambda tile: tile.share * (1 + STARTED / tile.pixels), default=None)


def _share(inside: int, outside: int, size: int, letter: str, windows: dict[str, Any]) -> float:
    """Along one axis: the part of the taps of all blocks of `size` positions that some position has in the image."""
    kernel, stride, pad, dilation = (windows[f"{name}_{letter}"] for name in ("KERNEL", "STRIDE", "PAD", "DILATION"))
    found = 0
    for first in range(0, outside, size):
        for tap in range(kernel):
            low = first * stride - pad + tap * dilation
            places = range(low, low + size * stride, stride)
            found += any(0 <= place < inside for place in places)
    return found / (ceil(outside / size) * kernel)
