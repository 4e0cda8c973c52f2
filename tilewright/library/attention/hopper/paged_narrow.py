"""The config of Hopper attention of few new tokens over pages of 8-bit numbers: what is fixed at compile time, and what
follows."""

from __future__ import annotations

from typing import Any, NamedTuple

import tilewright.language as tl
from tilewright.library.attention.hopper.decoding_config import CLUSTER_CTAS
from tilewright.library.attention.hopper.paged_config import LEAST_PAGE
from tilewright.library.hopper import SHARED_BYTES, checked


class NarrowPagedConfig(NamedTuple):
    """As `PagedConfig`, of keys and values in `POOL`, which are widened to `TYPE` on their way to the products.

    `STAGES` blocks of keys and of values are under way at once, in 8 bits; one of each is there in 16.  With `SCALED`
    numbers have a scale for each token and head.
    """

    D: int = 128
    BN: int = 64
    ROWS: int = 16
    STAGES: int = 2  # so that three CTAs have room on a processor, with heads of 128
    SPLITS: int = 1
    GROUP: int = 4
    PAGE: int = 16
    WINDOW: int = 0
    SOFTCAP: float = 0.0
    EARLY: bool = False  # tables, starts and lengths are read before the kernels in front have ended
    TYPE: Any = tl.bfloat16
    POOL: Any = tl.float8e4nv
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
    def columns(self) -> int:
        """Columns of the results that a CTA of the cluster puts together."""
        return self.D // self.SPLITS

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a CTA."""
        loaded = 2 * self.STAGES * self.BN * self.D * self.POOL.itemsize
        widened = (2 * self.BN + self.ROWS) * self.D * self.TYPE.itemsize + self.ROWS * self.BN * self.TYPE.itemsize
        parts = 4 * self.ROWS * (self.D + 2) if self.SPLITS > 1 else 0
        stored = 2 * self.ROWS * self.D // self.SPLITS  # half of a CTA's results at a time, as they lie in memory
        return int(loaded + widened + parts + stored + 4096)  # barriers, and what reductions pass between warps

    def check(self) -> NarrowPagedConfig:
        """The config itself; raises `LaunchError` with the reason when it cannot be built."""
        whole = self.BN % self.PAGE == 0 or self.PAGE % self.BN == 0
        rules = [
            (self.D in (64, 128, 256), "D is 64, 128 or 256"),
            (self.BN in (64, 128), "BN is 64 or 128"),
            (self.ROWS in (8, 16, 32, 64), "queries are counted as 8, 16, 32 or 64"),
            (self.ROWS * (2 * self.BN + self.D) <= 160 * 128, "exponentials, sums and results fit the registers"),
            (self.SPLITS in (1, 2, 4, CLUSTER_CTAS), f"1, 2, 4 or {CLUSTER_CTAS} CTAs make a cluster"),
            (self.STAGES >= 1, "there is one stage at least"),
            (self.TYPE.itemsize == 2 and self.POOL.itemsize == 1, "pools have 8 bits, queries 16"),
            (self.GROUP <= self.ROWS, "there is room for one token"),
            (self.PAGE >= LEAST_PAGE and whole, "blocks are whole pages, or pages whole blocks"),
            (self.shared_bytes <= SHARED_BYTES, f"{self.shared_bytes} bytes of shared memory, {SHARED_BYTES} exist"),
        ]
        return checked(self, rules)
