"""The configs of the Hopper convolution: what is fixed at compile time, and what follows from it."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import tilewright.language as tl
from tilewright.library.epilogue import identity
from tilewright.library.hopper import ATOM, REGISTERS, SHARED_BYTES, checked, swizzle_of

UNIT_PIXELS = 64  # at most: the rows of one warpgroup's product


class ConvolutionConfig(NamedTuple):
    """A convolution by CTAs of one warp that loads and `CONSUMERS` warpgroups that multiply.

    A warpgroup's part of a tile is a unit: a box of `UNIT` = (images, rows, columns) of output pixels, by `BN` columns.
    With `PING_PONG` a tile is a single unit, and warpgroups alternate on tiles: one multiplies, the other finishes.
    What a tap of the window sees of a unit is a box of the image, which one tensor copy brings, `BK` channels at a
    time, zeros where the window reaches over the edge.  `SPLIT` CTAs of a cluster share the taps and channels of a
    tile.  Without `SPLIT` CTAs are persistent.

    The window: extents, strides, leading padding and dilation, each (rows, columns).  `CHANNELS` of one group; with
    `GROUPS` > 1 images have a multiple of them, and columns are those of one group.
    """

    UNIT: tuple[int, int, int]
    BN: int
    CHANNELS: int
    KERNEL: tuple[int, int] = (1, 1)
    STRIDE: tuple[int, int] = (1, 1)
    PAD: tuple[int, int] = (0, 0)
    DILATION: tuple[int, int] = (1, 1)
    GROUPS: int = 1
    BK: int = 64
    STAGES: int = 4
    CONSUMERS: int = 2
    PING_PONG: bool = False
    SPLIT: int = 1
    TOGETHER: int = 1  # chunks of columns that the epilogue is given at once: what it loads, it waits for once
    BUFFERS: int = 2  # staging tiles of results for each consumer, of the chunks that go together
    RESIDUAL_TILES: int = 0  # such tiles of a second operand of the epilogue that are on their way; 0: there is none
    INPUT: Any = tl.float16
    RIGHT: Any = None  # the element type of weights, where it is not that of the image
    SUM: Any = tl.float32  # of products: float32, or int32
    OUTPUT: Any = tl.float16
    DEPENDENT: bool = False  # weights may be read before the kernels in front of this one have ended
    EPILOGUE: Any = identity  # (sums, pixel, column, mask, extra[, the second operand]) -> results

    @property
    def right_type(self) -> Any:
        """The element type of weights."""
        return self.RIGHT or self.INPUT

    @property
    def pixels(self) -> int:
        """Output pixels of a unit."""
        return prod(self.UNIT)

    @property
    def units(self) -> int:
        """Units of a tile."""
        return 1 if self.PING_PONG else self.CONSUMERS

    @property
    def taps(self) -> int:
        """Positions of the window."""
        return self.KERNEL[0] * self.KERNEL[1]

    @property
    def channel_blocks(self) -> int:
        """Stages that the channels of a tap take."""
        return -(-self.CHANNELS // self.BK)

    @property
    def blocks(self) -> int:
        """Stages of a tile, over all CTAs that share it."""
        return self.taps * self.channel_blocks

    @property
    def stored_columns(self) -> int:
        """Columns that this CTA stores of a tile."""
        return self.BN // self.SPLIT

    @property
    def chunk(self) -> int:
        """Columns that are stored at once: a row of the swizzle."""
        return int(min(self.stored_columns, ATOM // self.OUTPUT.itemsize))

    @property
    def chunks(self) -> int:
        """Chunks of a unit."""
        return -(-self.stored_columns // self.chunk)

    @property
    def span(self) -> int:
        """Columns that the epilogue is given at once."""
        return self.TOGETHER * self.chunk

    @property
    def spans(self) -> int:
        """How often it is called for a unit."""
        return self.chunks // self.TOGETHER

    @property
    def image_block(self) -> tuple[int, int, int, int]:
        """The tile of the image's tensor map [images, rows, columns, channels]; its steps are `steps`."""
        return (*self.UNIT, self.BK)

    @property
    def steps(self) -> tuple[int, int, int, int]:
        """Distance of neighbours in a tile of the image."""
        return (1, *self.STRIDE, 1)

    @property
    def weight_block(self) -> tuple[int, int, int]:
        """The tile of the weights' map [all columns, taps, channels]."""
        return (self.BN, 1, self.BK)

    @property
    def out_block(self) -> tuple[int, ...]:
        """The tile of the maps of the result, [images, rows, columns, (groups,) columns], and of a second operand."""
        return (*self.UNIT, *((1,) if self.GROUPS > 1 else ()), self.chunk)

    @property
    def stage_bytes(self) -> int:
        """Bytes that come to a stage."""
        return int((self.units * self.pixels + self.BN) * self.BK * self.INPUT.itemsize)

    @property
    def registers(self) -> tuple[int, int]:
        """Budgets of loading and multiplying threads; with one consumer all have enough."""
        return {1: (0, 0), 2: (40, 232), 3: (40, 152)}[self.CONSUMERS]

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a CTA."""
        tile = UNIT_PIXELS * self.span * self.OUTPUT.itemsize
        results = (self.CONSUMERS * self.BUFFERS + self.units * self.RESIDUAL_TILES) * tile
        parts = self.CONSUMERS * UNIT_PIXELS * self.BN * 4 if self.SPLIT > 1 else 0
        # What the last rows of a stage of fewer than 64 pixels reach over.
        over = (UNIT_PIXELS - self.pixels) * self.BK * self.INPUT.itemsize
        return int(self.STAGES * (self.stage_bytes + 16) + results + parts + 16 * self.RESIDUAL_TILES + over)

    def tiles(self, images: int, rows: int, columns: int, outputs: int) -> int:
        """Tiles of a result [images, rows, columns, outputs]."""
        units = prod(-(-extent // box) for extent, box in zip((images, rows, columns), self.UNIT, strict=True))
        return -(-units // self.units) * -(-(outputs // self.GROUPS) // self.BN) * self.GROUPS

    def grid(self, tiles: int, processors: int) -> tuple[int, int, int]:
        """CTAs to launch for so many tiles; persistent ones are at most those that run at once."""
        if self.SPLIT > 1:
            return (tiles * self.SPLIT, 1, 1)
        return (min(tiles, processors * self.resident), 1, 1)

    @property
    def resident(self) -> int:
        """CTAs that one processor holds at once, by shared memory and a guess at registers."""
        registers = 160 * min(255, self.BN // 2 + 72) if self.CONSUMERS == 1 else REGISTERS
        return max(1, min(3, SHARED_BYTES // self.shared_bytes, REGISTERS // registers))

    def check(self) -> ConvolutionConfig:
        """The config itself; raises `LaunchError` with the reason when it cannot be built."""
        row = self.BK * self.INPUT.itemsize
        rules = [
            (self.pixels <= UNIT_PIXELS and self.pixels % 8 == 0, "a unit has a multiple of 8 pixels, up to 64"),
            (self.CONSUMERS in (1, 2, 3), "there are one to three consumers"),
            (self.BN % 8 == 0 and 8 <= self.BN <= 256, "BN is a multiple of 8 up to 256"),
            (row in (32, 64, 128), "a stage has 32, 64 or 128 bytes of channels"),
            (self.INPUT.itemsize == self.right_type.itemsize <= 2, "operands have 16 bits, or 8"),
            (self.INPUT.is_floating() or self.BN % 16 == 0, "8-bit integers take BN in steps of 16"),
            (self.CHANNELS * self.INPUT.itemsize % 16 == 0, "rows of channels are multiples of 16 bytes"),
            (self.stored_columns % self.chunk == 0, "columns are stored in whole chunks"),
            (self.chunk * self.OUTPUT.itemsize in (16, 32, 64, 128), "stored rows are rows of a swizzle, or 16 bytes"),
            (self.SPLIT in (1, 2, 4, 8) and self.SPLIT <= self.blocks, "up to 8 CTAs share the depth of a tile"),
            (self.chunks % self.TOGETHER == 0, "all chunks go together in the same number"),
            (self.SPLIT == 1 or self.chunks == 1, "each CTA that shares a tile stores one chunk"),
            (
                not self.PING_PONG or (self.SPLIT == 1 and self.CONSUMERS == 2),
                "PING_PONG takes two consumers, unshared",
            ),
            (
                not self.PING_PONG or self.RESIDUAL_TILES in (0, 2 * self.spans),
                "with PING_PONG consumers have their own tiles of a second operand",
            ),
            (
                not self.RESIDUAL_TILES or (self.pixels == UNIT_PIXELS and self.SPLIT == 1),
                "a second operand has 64 pixels",
            ),
            (all(1 <= step <= 8 for step in self.STRIDE), "strides are at most 8"),
            (
                all(side * step <= 256 for side, step in zip(self.UNIT[1:], self.STRIDE, strict=True)),
                "a unit reaches over at most 256 pixels of the image",
            ),
            (self.STAGES >= 2, "there are two stages or more"),
            (self.BN <= (192 if self.CONSUMERS == 3 else 256), "accumulators fit the registers"),
            (self.shared_bytes <= SHARED_BYTES, f"{self.shared_bytes} bytes of shared memory, {SHARED_BYTES} exist"),
        ]
        return checked(self, rules)


def swizzle(columns: int, dtype: Any) -> int:
    """The swizzle of a tile with so many columns."""
    return swizzle_of(columns * dtype.itemsize)
