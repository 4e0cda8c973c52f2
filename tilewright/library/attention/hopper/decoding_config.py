"""The config of Hopper attention for few queries: what is fixed at compile time, and what follows from it."""

from __future__ import annotations

from typing import Any, NamedTuple

import tilewright.language as tl
from tilewright.library.epilogue import identity
from tilewright.library.hopper import SHARED_BYTES, checked

FRESH_ROWS = 8  # that a copy into a tile has at least
CLUSTER_CTAS = 8  # CTAs that every Hopper GPU can run together


def few_query_bytes(config: Any) -> int:
    """Shared memory of a CTA that takes all queries at once."""
    loaded = (config.ROWS + config.tiles * config.BN) * config.D * config.TYPE.itemsize
    weights = 2 * config.ROWS * config.BN * config.TYPE.itemsize
    return int(loaded + weights) + gathered_bytes(config)


def gathered_bytes(config: Any) -> int:
    """Shared memory of such a CTA for results, barriers, and what reductions pass between warps."""
    parts = 4 * config.ROWS * (config.D + 2) if config.SPLITS > 1 else 0
    stored = 2 * config.ROWS * config.D // config.SPLITS  # half of a CTA's results at a time, as they lie in memory
    return int(parts + stored + 4096)


def few_query_rules(config: Any) -> list[tuple[bool, str]]:
    """What must hold for such a CTA to be built, and what to say where it does not."""
    return [
        (config.D in (64, 128, 256), "D is 64, 128 or 256"),
        (config.ROWS in (8, 16, 32, 64), "queries are counted as 8, 16, 32 or 64"),
        (config.ROWS * (2 * config.BN + config.D) <= 160 * 128, "exponentials, sums and results fit the registers"),
        (config.SPLITS in (1, 2, 4, CLUSTER_CTAS), f"1, 2, 4 or {CLUSTER_CTAS} CTAs make a cluster"),
        (config.tiles >= 2, "there is room for a block of keys and values"),
        (config.TYPE.itemsize == 2, "operands have 16 bits"),
        (config.shared_bytes <= SHARED_BYTES, f"{config.shared_bytes} bytes of shared memory, {SHARED_BYTES} exist"),
    ]


class DecodingConfig(NamedTuple):
    """Attention of few queries by `SPLITS` CTAs of a cluster for each head of keys: a warp that loads, and a warpgroup.

    Keys are the rows of the products and queries their columns, of which there may be as few as 8 (`ROWS`).  `BN` keys
    make a block; `STAGES` blocks are under way at once.
    """

    D: int = 128
    BN: int = 128
    ROWS: int = 8
    STAGES: int = 2
    SPLITS: int = 8
    TYPE: Any = tl.bfloat16
    BIAS: bool = False  # a number for each key is added to its scores
    AHEAD: bool = False  # keys and values are read before the kernels in front have ended …
    FRESH: bool = False  # … which may write those of one number, in every batch and head
    EPILOGUE: Any = identity

    @property
    def query_block(self) -> tuple[int, int, int, int]:
        """The tile of the map of queries."""
        return (1, 1, self.ROWS, self.D)

    @property
    def key_block(self) -> tuple[int, int, int, int]:
        """The tile of the maps of keys and values."""
        return (1, 1, self.BN, self.D)

    @property
    def fresh_block(self) -> tuple[int, int, int, int]:
        """The tile of the maps of keys and values that are read anew."""
        return (1, 1, FRESH_ROWS, self.D)

    @property
    def tiles(self) -> int:
        """Blocks of keys or values that are under way at once."""
        return 2 * self.STAGES

    @property
    def columns(self) -> int:
        """Columns of the results that a CTA of the cluster puts together."""
        return self.D // self.SPLITS

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a CTA."""
        return few_query_bytes(self)

    def check(self) -> DecodingConfig:
        """The config itself; raises `LaunchError` with the reason when it cannot be built."""
        rules = [
            *few_query_rules(self),
            (self.BN in (64, 128, 256), "BN is 64, 128 or 256"),
            (self.AHEAD or not self.FRESH, "what is written late matters to those who read early"),
        ]
        return checked(self, rules)
