"""Sizes of the heads that `projection_kernel` stores, and which configs of products it takes."""

from __future__ import annotations

from typing import NamedTuple

from tilewright.errors import LaunchError
from tilewright.library.hopper import ATOM, checked
from tilewright.library.matmul.hopper.config import MatmulConfig

GROUP_COLUMNS = 16  # 8 pairs, or 16 adjacent columns
SWIZZLED_STEPS = 64  # of the depth, 16 bits each, in a row of the swizzle
MOST_ROWS = 64  # of a tile


class ProjectionHeads(NamedTuple):
    """The heads of a product's columns: `QUERIES`, then `KEYS` of keys and as many of values, each of `WIDTH` columns,
    of which the first `TURNED` are turned in pairs (none: 0) in queries and keys."""

    QUERIES: int
    KEYS: int
    WIDTH: int
    TURNED: int

    @property
    def groups(self) -> int:
        """Groups of columns of a head."""
        return self.WIDTH // GROUP_COLUMNS

    @property
    def turned_heads(self) -> int:
        """Heads of queries and keys."""
        return self.QUERIES + self.KEYS

    @property
    def heads(self) -> int:
        """All heads."""
        return self.turned_heads + self.KEYS

    @property
    def columns(self) -> int:
        """Columns of the product."""
        return self.heads * self.WIDTH

    @property
    def pairs_block(self) -> tuple[int, int, int]:
        """The tile of the tensor map of both halves of heads; that of other columns where nothing is turned."""
        return (2, GROUP_COLUMNS // 2, SWIZZLED_STEPS)

    @property
    def columns_block(self) -> tuple[int, int]:
        """The tile of the tensor map of columns."""
        return (GROUP_COLUMNS, SWIZZLED_STEPS)

    def check(self) -> ProjectionHeads:
        """The sizes themselves; raises `LaunchError` with the reason where the kernel cannot store such heads."""
        return checked(
            self,
            [
                (self.WIDTH % GROUP_COLUMNS == 0, f"heads are multiples of {GROUP_COLUMNS} columns"),
                (self.TURNED % GROUP_COLUMNS == 0, f"a multiple of {GROUP_COLUMNS} columns of a head is turned"),
                (0 <= self.TURNED <= self.WIDTH, "a head has the columns that are turned"),
            ],
        )


def check_config(config: MatmulConfig) -> MatmulConfig:
    """A config that the kernel takes; raises `LaunchError` with the reason for another."""
    rules = [
        (config.BM == MOST_ROWS and config.CONSUMERS == 1, "one warpgroup has all rows"),
        (config.SINGLE and config.SPLIT == 1 and config.shared == 1, "a CTA has a tile and all of its depth"),
        (config.BN % GROUP_COLUMNS == 0, f"tiles are multiples of {GROUP_COLUMNS} columns"),
        (config.apart, "weights are constants, which come before the kernels in front have ended"),
        (
            config.INPUT.itemsize * SWIZZLED_STEPS == ATOM and not config.B_TRANSPOSED,
            "weights are 16 bits, along the depth",
        ),
        (not config.A_TRANSPOSED and config.NORM is None and config.GATE is None, "rows are as they are"),
    ]
    return checked(config, rules)


def suits(config: MatmulConfig) -> bool:
    """Whether the kernel takes a config."""
    try:
        check_config(config)
    except LaunchError:
        return False
    return True
