"""Ping-pong: two warpgroups alternate on tiles; one multiplies while the other finishes and stores its tile.

Two hardware barriers, one for each warpgroup, keep the order.
"""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

import tilewright
import tilewright.language as tl
import tilewright.language.explicit as tx


@tilewright.jit
def take_turn(copy, tile, work, PING_PONG: tl.constexpr):
    """Wait until the consumer with the tile before this one, if there is any, has issued its products.

    `work` has the first tile of this CTA, the step to its next one, and the number of tiles.  Only after the wait
    have all phases of the ring that this tile waits for ended, and parities tell them apart from later ones.
    """
    if PING_PONG:
        if tile > work.first:
            tx.named_sync(copy + 1, 256)


@tilewright.jit
def pass_turn(copy, tile, work, PING_PONG: tl.constexpr):
    """Let the consumer with the tile after this one, if there is any, issue its products."""
    if PING_PONG:
        if tile + work.step < work.tiles:
            tx.named_arrive(2 - copy, 256)
