"""The config of Hopper attention of few new tokens over pages: what is fixed at compile time, and what follows."""

from __future__ import annotations

from typing import Any, NamedTuple

import tilewright.language as tl
from tilewright.library.attention.hopper.decoding_config import few_query_bytes, few_query_rules, gathered_bytes
from tilewright.library.hopper import checked

LEAST_PAGE = 8  # tokens: rows that a copy into a tile has at least


class PagedConfig(NamedTuple):
    """Attention of few new tokens of a sequence by `SPLITS` CTAs of a cluster for each head of keys: a warp that loads,
    and a warpgroup.

    Keys are the rows of the products; the new tokens of a sequence, `GROUP` query heads each, their `ROWS` columns.
    `BN` keys make a block, which comes page by page; `TILES` blocks of keys or values are under way at once, and
    there is room for the exponentials of `WEIGHTS` blocks.

    Keys and values of 8 bits (`POOL`) are widened to `TYPE` on their way to the products: `stages` blocks of each are
    under way at once as they lie, and one of each is there widened.  With `SCALED` they have a scale for each token and
    head.
    """

    D: int = 128
    BN: int = 64
    ROWS: int = 16
    TILES: int = 4  # so that three CTAs have room on a processor, with heads of 128
    WEIGHTS: int = 2  # with one, warps wait for each other once more
    SPLITS: int = 1
    GROUP: int = 4
    PAGE: int = 16
    WINDOW: int = 0
    SOFTCAP: float = 0.0
    EARLY: bool = False  # tables, starts and lengths are read before the kernels in front have ended
    AHEAD: bool = False  # so are keys and values of tokens before the new ones
    TYPE: Any = tl.bfloat16
    POOL: Any = None  # what pages hold, where it is not `TYPE`
    SCALED: bool = False

    @property
    def box(self) -> int:
        """Keys that a copy moves: those of a page, of which a block has all or a part."""
        return min(self.PAGE, self.BN)

    @property
    def key_block(self) -> tuple[int, int, int]:
        """The tile of the maps of keys and values."""
        return (1, self.box, self.D)

    @property
    def tiles(self) -> int:
        """Blocks of keys or values that are under way at once."""
        return self.TILES

    @property
    def stages(self) -> int:
        """Blocks of keys, and of values, that are under way at once."""
        return self.TILES // 2

    @property
    def columns(self) -> int:
        """Columns of the results that a CTA of the cluster puts together."""
        return self.D // self.SPLITS

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a CTA."""
        if self.POOL is None:
            return few_query_bytes(self)
        loaded = 2 * self.stages * self.BN * self.D * self.POOL.itemsize
        widened = (2 * self.BN + self.ROWS) * self.D * self.TYPE.itemsize + self.ROWS * self.BN * self.TYPE.itemsize
        return int(loaded + widened) + gathered_bytes(self)

    def check(self) -> PagedConfig:
        """The config itself; raises `LaunchError` with the reason when it cannot be built."""
        whole = self.BN % self.PAGE == 0 or self.PAGE % self.BN == 0
        rules = [
            *few_query_rules(self),
            (self.BN in (64, 128), "BN is 64 or 128"),
            (self.WEIGHTS in (1, 2), "there is room for the exponentials of one or two blocks"),
            (self.POOL is None or self.POOL.itemsize == 1, "pages hold what queries are, or 8 bits"),
            (self.GROUP <= self.ROWS, "there is room for one token"),
            (self.EARLY or not self.AHEAD, "AHEAD takes tables, starts and lengths that are read early"),
            (self.PAGE >= LEAST_PAGE and whole, "blocks are whole pages, or pages whole blocks"),
        ]
        return checked(self, rules)
