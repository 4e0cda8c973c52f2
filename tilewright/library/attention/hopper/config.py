"""The configs of Hopper attention: what is fixed at compile time, and what follows from it; and its tiles' schedule."""

from __future__ import annotations

from math import gcd
from typing import Any, NamedTuple

import numpy as np

import tilewright.language as tl
from tilewright.errors import LaunchError
from tilewright.library.epilogue import identity
from tilewright.library.hopper import SHARED_BYTES, Parameters, checked, swizzle_of
from tilewright.runtime import tables


class AttentionConfig(NamedTuple):
    """Attention by one persistent CTA an SM: a warp that loads, and warpgroups of 64 queries each.

    `BN` keys make a block.  `FLAT` joins the end of a tile with the beginning of the next; `LAZY` rescales only when
    a maximum has been outgrown by 2^8; `PING_PONG`: warpgroups issue their products one after the other.
    """

    D: int = 128
    BN: int = 80
    CONSUMERS: int = 3
    STAGES: int = 2
    CAUSAL: bool = False
    WINDOW: bool = False  # with CAUSAL: a query sees only so many keys
    LENGTHS: int = 0  # 1: each batch has queries and keys of its own, 2: keys alone
    SOFTCAP: float = 0.0  # c: scores are c tanh(scores / c); 0: as they are
    LSE: bool = False
    FLAT: bool = True
    LAZY: bool = True
    PING_PONG: bool = True
    TYPE: Any = tl.bfloat16
    WHOLE: bool = False  # all keys are in whole blocks, and seen by all queries
    BIAS: int = 0  # what is added to the scores: 1 a number for each key, 2 for each query and key
    PAIRED: bool = False  # biases of two keys are one load
    SPLITS: int = 1  # parts of the keys, each with results of its own
    DEPENDENT: bool = False  # starts before the kernels in front of it have ended, and asks for keys and values
    PAGE: int = 0  # keys that lie together where they come by pages, else 0
    OUTPUT: Any = None  # the type of results; None: that of the operands
    EPILOGUE: Any = identity

    @property
    def BM(self) -> int:
        """Queries of a tile."""
        return 64 * self.CONSUMERS

    @property
    def stored(self) -> Any:
        """The type of results."""
        return self.TYPE if self.OUTPUT is None else self.OUTPUT

    @property
    def swizzle(self) -> int:
        """The swizzle of the tiles of operands."""
        return swizzle_of(self.D * self.TYPE.itemsize)

    @property
    def out_stride(self) -> int:
        """Tiles of results from one warpgroup's to the next one's: those that lie over queries begin where these do."""
        return 1 if self.separate_outs else int(self.TYPE.itemsize // self.stored.itemsize)

    @property
    def biased_ahead(self) -> bool:
        """Whether the bias of a block is loaded under the block before it: one warpgroup has nobody to wait under, and
        registers to hold it."""
        return self.BIAS == 1 and self.CONSUMERS == 1

    @property
    def query_stages(self) -> int:
        """Tiles of queries in shared memory: the next one comes while a flat loop works on this one."""
        return 2 if self.FLAT else 1

    @property
    def query_block(self) -> tuple[int, int, int, int]:
        """The tile of the maps of queries and results."""
        return (1, 1, 64, self.D)

    @property
    def box(self) -> int:
        """Keys that a copy moves: a block, or what it has of a page."""
        return gcd(self.BN, self.PAGE)

    @property
    def key_block(self) -> tuple[int, int, int, int]:
        """The tile of the maps of keys and values."""
        return (1, 1, self.box, self.D)

    @property
    def registers(self) -> tuple[int, int]:
        """Budgets of loading and multiplying threads."""
        return {1: (0, 0), 2: (24, 240), 3: (32, 160), 4: (24, 112)}[self.CONSUMERS]

    @property
    def loaded_bytes(self) -> int:
        """Shared memory of queries, keys and values."""
        rows = self.query_stages * self.BM + 2 * self.STAGES * self.BN
        return int(rows * self.D * self.TYPE.itemsize)

    @property
    def separate_outs(self) -> bool:
        """Whether results have shared memory of their own; otherwise they are staged where the queries were."""
        return self.FLAT or self.shared_bytes_with(True) <= SHARED_BYTES

    def shared_bytes_with(self, separate: bool) -> int:
        """Shared memory with or without tiles of their own for results."""
        outs = self.BM * self.D * self.stored.itemsize if separate else 0
        return int(self.loaded_bytes + outs + 8 * (2 * self.query_stages * self.CONSUMERS + 4 * self.STAGES))

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a CTA."""
        return self.shared_bytes_with(self.separate_outs)

    def check(self) -> AttentionConfig:
        """The config itself; raises `LaunchError` with the reason when it cannot be built."""
        rules = [
            (self.CONSUMERS in (1, 2, 3, 4), "there are one to four consumers"),
            (self.D % 16 == 0 and 16 <= self.D <= 256, "D is a multiple of 16 up to 256"),
            (self.BN % 16 == 0 and 16 <= self.BN <= 256, "BN is a multiple of 16 up to 256"),
            (self.TYPE.itemsize == 2, "operands have 16 bits"),
            (self.stored.itemsize <= 2, "results have 8 or 16 bits"),
            (self.CAUSAL or not self.WINDOW, "a window is of causal attention"),
            (
                not self.CAUSAL or -(-(self.BM - 64) // self.BN) <= self.STAGES,
                "the first queries of a tile would wait for blocks that the last ones hold up: take a larger BN",
            ),
            (self.CONSUMERS > 1 or not self.PING_PONG, "PING_PONG takes several consumers"),
            (self.SPLITS == 1 or not (self.CAUSAL or self.LENGTHS), "keys are split where all are seen"),
            (not self.WHOLE or not (self.CAUSAL or self.LENGTHS), "blocks are whole where all keys are seen"),
            (not self.WHOLE or self.SPLITS == 1, "parts of the keys may end within a block"),
            (not (self.DEPENDENT and self.LENGTHS), "lengths are not known before the kernels in front have ended"),
            (self.SPLITS == 1 or self.LSE, "parts are put together by their log-sum-exp"),
            (self.STAGES >= 2, "there are two stages or more"),
            (self.box % 8 == 0, "pages have a multiple of 8 tokens"),
            (self.shared_bytes <= SHARED_BYTES, f"{self.shared_bytes} bytes of shared memory, {SHARED_BYTES} exist"),
        ]
        return checked(self, rules)


def attention_schedule(
    config: AttentionConfig, batches: int, heads: int, queries: int, keys: int, group: int, processors: int
) -> np.ndarray:
    """Each CTA's tiles, [CTAs, tiles + 1] i32, as `runtime.tables.attention_schedule` says.

    Raises `LaunchError` for more batches and heads, or queries, than its entries count.
    """
    if batches * heads > tables.PAIRS or queries > tables.TILES * config.BM:
        raise LaunchError(
            f"one launch of attention takes at most {tables.PAIRS} batches times heads and {tables.TILES * config.BM} "
            f"queries, got {batches} x {heads} and {queries}: divide them among several"
        )
    row_bytes = int(config.D * config.TYPE.itemsize)
    return tables.attention_schedule(
        batches, heads, group, queries, keys, config.BM, config.BN, row_bytes, config.CAUSAL, processors
    )


ATTENTION_PARAMETERS = Parameters(
    {"q": ("query_block", "TYPE"), "k": ("key_block", "TYPE"), "v": ("key_block", "TYPE"),
     "out": ("query_block", "stored")},
    {"lse": "*f32", "lengths": "*k i32", "schedule": "*k i32",
     **dict.fromkeys(("tiles_per_cta", "queries", "keys", "heads", "group", "window"), "i32"), "scale": "f32"},
)  # fmt: skip
