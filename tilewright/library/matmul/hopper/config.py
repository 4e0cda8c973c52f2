"""The configs of the Hopper matrix product: what is fixed at compile time, and what follows from it.

A config is a NamedTuple, so that kernels take it as one compile-time parameter and read its fields and properties.
`check` says why a config is impossible before anything is compiled.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tilewright.language as tl
from tilewright.library.epilogue import identity
from tilewright.library.hopper import ATOM, REGISTERS, SHARED_BYTES, Parameters, checked, swizzle_of


class MatmulConfig(NamedTuple):
    """A matrix product by one persistent CTA an SM: a warp that loads, and warpgroups that multiply.

    `BM` x `BN` is the tile of a CTA, `BK` the depth of a stage (whole rows of 128 bytes where it is contiguous).
    `SHARE_A` CTAs beside each other load their rows of A together by multicast, `SHARE_B` CTAs below each other their
    columns of B; `SPLIT` CTAs of a cluster share the depth.  `A_ROWS` of `BM` rows are loaded when there are no more.
    `GROUP` rows of tiles are walked together, so that both operands stay in the L2 cache.

    Consumers divide the rows of a tile.  With `PING_PONG` each of two has a tile of its own instead: one multiplies
    while the other computes and stores its results, and they change places.  That hides epilogues, at the price of a
    smaller tile, since a thread holds all of it that its warpgroup has.  With `LAG` consumers that divide a tile
    begin so many stages one after the other, and stay apart: one stores while the other still multiplies.

    With `SINGLE` a CTA has one tile, and its results are staged where its operands were; so it is with `SPLIT`.

    With `PARTS` of three each number is the sum of three of the type `INPUT`, which lie in planes (`bf16x6_kernel`). A
    stage has the tiles of all planes, and threads store the results.
    """

    BM: int = 128
    BN: int = 256
    BK: int = 64
    STAGES: int = 4
    CONSUMERS: int = 2
    SHARE_A: int = 1
    SHARE_B: int = 1
    SPLIT: int = 1
    GROUP: int = 8
    A_ROWS: int = 0
    BUFFERS: int = 2
    PING_PONG: bool = False
    LAG: int = 0
    SINGLE: bool = False
    INPUT: Any = tl.bfloat16
    RIGHT: Any = None  # the element type of B, where it is not that of A
    OUTPUT: Any = tl.bfloat16
    SUM: Any = tl.float32  # of products: float32, or int32
    A_TRANSPOSED: bool = False  # A is given as [K, M]
    B_TRANSPOSED: bool = False  # B is given as [K, N], else as [N, K]
    BATCHED: bool = False  # operands and result have a leading axis
    EVICT_A: str = ""
    EVICT_B: str = ""
    DEPENDENT: bool = False  # weights (B) may be read before the kernels in front of this one have ended
    FLIGHT: int = 0  # of the weights that are read so, stages at once: a thread of their own loads them
    PROMOTE: Any = None  # (partial, rows, first column, stage, extra) -> what is added to the sum in float32
    NORM: Any = None  # sums of the squares of A's rows -> what the rows of sums are multiplied by, before all else
    GATE: Any = None  # (left, right) -> value: columns 16 i + j and 16 i + 8 + j of the sums give column 8 i + j of C
    EPILOGUE: Any = identity
    TOGETHER: int = 1  # chunks of columns that the epilogue is given at once: what it loads, it waits for once
    WHOLE: bool = False  # a tile's results are staged all at once
    ONE_A: bool = False  # all batches have one A
    ONE_B: bool = False  # of parts
    PARTS: int = 1  # planes of numbers that are added to one, of both operands
    MULTIPLE: int = 1  # that the columns of C are multiples of, where threads store them
    SLICES: int = 1  # of the depth of a product of parts: batches, whose sums another launch adds
    WINDOW: Any = None  # of a convolution by parts, whose A are images: taps and channels are the depth
    STORED: int = ATOM  # bytes of a row of results that are stored at once, 128 or 64: fewer need fewer registers

    @property
    def out_columns(self) -> int:
        """Columns of C that a tile gives."""
        return self.BN // 2 if self.GATE else self.BN

    @property
    def rows(self) -> int:
        """Rows of a consumer."""
        return self.BM // self.sharers

    @property
    def sharers(self) -> int:
        """Consumers that divide a tile."""
        return 1 if self.PING_PONG else self.CONSUMERS

    @property
    def loaded_rows(self) -> int:
        """Rows of A that a stage holds."""
        return self.A_ROWS or self.BM

    @property
    def shared(self) -> int:
        """CTAs of a cluster that share operands."""
        return self.SHARE_A * self.SHARE_B

    @property
    def cluster(self) -> int:
        """CTAs of a cluster."""
        return self.shared * self.SPLIT

    @property
    def single(self) -> bool:
        """Whether a CTA has one tile, so that there are as many as tiles, and results lie where operands were."""
        return self.SINGLE or self.SPLIT > 1

    @property
    def right_type(self) -> Any:
        """The element type of B."""
        return self.RIGHT or self.INPUT

    @property
    def left_shape(self) -> tuple[int, int]:
        """A stage of A."""
        return (self.BK, self.loaded_rows) if self.A_TRANSPOSED else (self.loaded_rows, self.BK)

    @property
    def right_shape(self) -> tuple[int, int]:
        """A stage of B."""
        return (self.BK, self.BN) if self.B_TRANSPOSED else (self.BN, self.BK)

    @property
    def terms(self) -> tuple[tuple[int, int], ...]:
        """Which planes of A and B are multiplied, the smallest products first; smaller ones are left out."""
        return tuple((total - right, right) for total in range(self.PARTS - 1, -1, -1) for right in range(total + 1))

    @property
    def left_block(self) -> tuple[int, ...]:
        """The tile of A's tensor map: what one CTA loads of a stage."""
        return self._part(self.left_shape, self.A_TRANSPOSED, self.SHARE_A, self.ONE_A)

    @property
    def right_block(self) -> tuple[int, ...]:
        """The tile of B's tensor map."""
        return self._part(self.right_shape, self.B_TRANSPOSED, self.SHARE_B, False)

    def _part(self, shape: tuple[int, int], transposed: bool, shares: int, one: bool) -> tuple[int, ...]:
        axis = 1 if transposed else 0
        part = tuple(extent // shares if number == axis else extent for number, extent in enumerate(shape))
        return (1, *part) if (self.BATCHED and not one) or self.PARTS > 1 else part

    @property
    def stage_bytes(self) -> int:
        """Bytes that come to a stage."""
        return self.left_stage_bytes + self.right_stage_bytes

    @property
    def full_bytes(self) -> int:
        """Those of them that come with B: A may be loaded apart."""
        return self.right_stage_bytes if self.apart else self.stage_bytes

    @property
    def left_stage_bytes(self) -> int:
        """Bytes of A that come to a stage."""
        return int(self.PARTS * self.loaded_rows * self.BK * self.INPUT.itemsize)

    @property
    def right_stage_bytes(self) -> int:
        """Bytes of B that come to a stage."""
        return int(self.PARTS * self.BN * self.BK * self.INPUT.itemsize)

    @property
    def apart(self) -> bool:
        """Whether A and B are loaded by threads of their own."""
        return self.FLIGHT > 0

    @property
    def stored_rows(self) -> int:
        """Rows that a consumer stores at once; of a part of the depth no more than there are."""
        if self.SPLIT == 1:
            return 64
        least = 1 << (-(-self.loaded_rows // self.SPLIT) - 1).bit_length()
        return min(self.rows // self.SPLIT, max(8, least)) if self.A_ROWS else self.rows // self.SPLIT

    @property
    def stored_columns(self) -> int:
        """Columns that threads store at once, where they store results themselves: of convolutions, whose operands by
        column are waited for, more."""
        return 32 if self.WINDOW is not None and self.BN % 32 == 0 else 16

    @property
    def chunk(self) -> int:
        """Columns that a consumer stores at once: a row of the swizzle."""
        return int(min(self.out_columns, self.STORED // self.OUTPUT.itemsize))

    @property
    def pieces(self) -> int:
        """Stores of a consumer's part of a tile."""
        return self.rows // 64 * -(-self.out_columns // self.chunk)

    @property
    def tail(self) -> int:
        """Columns of the last, smaller chunk; 0 when all are full."""
        return self.out_columns % self.chunk

    @property
    def stores(self) -> tuple[tuple[int, int], ...]:
        """The stores of a consumer's part of a tile, row part by row part: staging tile, and how many of the latest
        stores may still read theirs when it is written. The smaller tile of the last columns is number `BUFFERS`."""
        chunks = -(-self.out_columns // self.chunk)
        parts = 1 if self.SPLIT > 1 else self.rows // 64
        tiles: list[int] = []
        for number in range(parts * chunks):
            small = self.tail > 0 and number % chunks == chunks - 1
            tiles.append(self.BUFFERS if small else sum(tile < self.BUFFERS for tile in tiles) % self.BUFFERS)
        twice = tiles * 2  # of this tile and the one before
        plan = []
        for place, tile in enumerate(tiles):
            now = len(tiles) + place
            before = max(earlier for earlier in range(now) if twice[earlier] == tile)
            plan.append((tile, now - before - 1))
        return tuple(plan)

    @property
    def out_block(self) -> tuple[int, ...]:
        """The tile of C's tensor map."""
        return (1, self.stored_rows, self.chunk) if self.BATCHED else (self.stored_rows, self.chunk)

    @property
    def tail_block(self) -> tuple[int, ...]:
        """The tile of the second tensor map of C; that of the first when there is no tail."""
        return (*self.out_block[:-1], self.tail or self.chunk)

    @property
    def registers(self) -> tuple[int, int]:
        """Budgets of loading and multiplying threads; with one consumer all have enough."""
        if self.PARTS > 1 and self.CONSUMERS == 2:
            return (40, 232)  # the places of several planes
        return {1: (0, 0), 2: (24, 240), 3: (32, 160)}[self.CONSUMERS]

    @property
    def left_bytes(self) -> int:
        """Shared memory of the stages of A."""
        return self.STAGES * self.left_stage_bytes

    @property
    def right_bytes(self) -> int:
        """Shared memory of the stages of B."""
        return self.STAGES * self.right_stage_bytes

    @property
    def sums_right(self) -> bool:
        """Whether the sums of a part of the depth lie where B was, for want of room where A was; results then lie
        there, else where B was."""
        return self.SPLIT > 1 and self.BM * self.BN * 4 > self.left_bytes

    @property
    def beyond_bytes(self) -> int:
        """Shared memory behind the sums of a part of the depth that is read with their last columns, which threads
        share out as if they were a power of two."""
        last = self.BN % self.chunk or self.chunk
        return int(((1 << (last - 1).bit_length()) - last) * self.rows * 4)

    @property
    def norm_bytes(self) -> int:
        """Shared memory of sums of squares over a part of the depth."""
        return int(self.rows * self.SUM.itemsize) if self.NORM is not None and self.SPLIT > 1 else 0

    @property
    def staging_bytes(self) -> int:
        """Shared memory of whole chunks of results on their way out."""
        if self.PARTS > 1:
            return 0
        return int(self.CONSUMERS * self.stored_rows * self.BUFFERS * self.chunk * self.OUTPUT.itemsize)

    @property
    def tail_bytes(self) -> int:
        """Shared memory of the last, smaller chunks."""
        if self.PARTS > 1:
            return 0
        return int(self.CONSUMERS * self.stored_rows * self.tail * self.OUTPUT.itemsize)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a CTA: tiles that are swizzled begin at multiples of 1024 bytes, others at those of 128."""
        lefts, rights = self.left_bytes, self.right_bytes
        staging, tail = self.staging_bytes, self.tail_bytes
        if self.sums_right:
            lefts, staging = max(lefts, staging), 0
        elif self.single:
            rights, staging = max(rights, staging), 0
        if self.single and self.SPLIT == 1:
            lefts, tail = max(lefts, tail), 0
        tiles = [(lefts, ATOM), (rights, ATOM)]
        tiles += [(staging, swizzle_of(self.chunk * self.OUTPUT.itemsize))] * (staging > 0)
        tiles += [(tail, swizzle_of(self.tail * self.OUTPUT.itemsize))] * (tail > 0) + [(self.norm_bytes, 0)]
        end = 0
        for extent, swizzle in sorted(tiles, key=lambda tile: not tile[1]):
            unit = 1024 if swizzle else 128
            end = -(-end // unit) * unit + extent
        barriers = (3 if self.apart else 2) * 8 * self.STAGES
        return int(end + -(-barriers // 16) * 16)

    @property
    def described(self) -> str:
        """What tells a config from others, in a line."""
        parts = [f"{self.BM} x {self.BN}, depth {self.BK}, {self.STAGES} stages, {self.CONSUMERS} warpgroups"]
        parts += ["ping-pong"] if self.PING_PONG else []
        parts += [f"A shared by {self.SHARE_A}"] if self.SHARE_A > 1 else []
        parts += [f"B shared by {self.SHARE_B}"] if self.SHARE_B > 1 else []
        parts += [f"depth split by {self.SPLIT}"] if self.SPLIT > 1 else []
        parts += [f"depth in {self.SLICES} slices"] if self.SLICES > 1 else []
        parts += [f"{self.A_ROWS} rows of A"] if self.A_ROWS else []
        parts += ["one tile a CTA"] if self.SINGLE else []
        parts += [f"{self.LAG} stages apart"] if self.LAG else []
        parts += [f"rows in groups of {self.GROUP}"] if self.GROUP != 8 else []
        return ", ".join(parts)

    def check(self) -> MatmulConfig:
        """The config itself; raises `LaunchError` with the reason when it cannot be built."""
        row = self.BK * self.INPUT.itemsize
        accumulators = self.rows // 64 * self.BN // 2 * (3 if self.PARTS > 1 else 2 if self.PROMOTE else 1)
        transposed = self.A_TRANSPOSED or self.B_TRANSPOSED
        partial, ring = self.BM * self.BN * 4, max(self.left_bytes, self.right_bytes)
        whole_rows = self.BM % (64 * self.sharers) == 0
        entry = min(255, REGISTERS // (128 * (self.CONSUMERS + 1)) // 8 * 8)
        most = 104 if self.CONSUMERS == 3 else 208
        normed = self.A_ROWS in (8, 16, 32) and self.sharers == 1 and self.INPUT.itemsize == 2 and not self.PROMOTE
        plain = not (self.SPLIT > 1 or self.PING_PONG or self.SINGLE or self.A_ROWS or self.FLIGHT or self.PROMOTE)
        rules = [
            (self.CONSUMERS in (1, 2, 3) and whole_rows, f"BM is a multiple of 64 rows for {self.sharers} consumers"),
            (self.BN % 8 == 0 and 8 <= self.BN <= 256, "BN is a multiple of 8 up to 256"),
            (self.INPUT.is_floating() or self.BN % 16 == 0, "8-bit integers take BN in steps of 16"),
            (self.out_columns * self.OUTPUT.itemsize % 16 == 0, "rows of a tile are stored in multiples of 16 bytes"),
            (self.right_type.itemsize == self.INPUT.itemsize, "operands have elements of one size"),
            (row % ATOM == 0, f"BK is a multiple of {ATOM // self.INPUT.itemsize}"),
            (self.INPUT.itemsize == 2 or not transposed, "only 16-bit operands are transposed"),
            (not self.A_TRANSPOSED or self.BM // self.SHARE_A % 64 == 0, "a transposed A comes in 64 rows"),
            (not self.B_TRANSPOSED or self.BN // self.SHARE_B % 64 == 0, "a transposed B comes in 64 columns"),
            (min(self.SHARE_A, self.SHARE_B) == 1, "CTAs share A or B, not both"),
            (self.BN % (8 * self.SHARE_B) == 0, "each CTA loads a multiple of 8 rows of B"),
            (self.loaded_rows % (8 * self.SHARE_A) == 0, "each CTA loads a multiple of 8 rows of A"),
            (self.A_ROWS == 0 or (self.BM == 64 and not self.A_TRANSPOSED), "A_ROWS is for BM = 64"),
            (self.SPLIT == 1 or self.stored_rows % 8 == 0, "SPLIT leaves a multiple of 8 rows"),
            (
                self.SPLIT == 1 or not self.sums_right or partial + self.beyond_bytes <= self.right_bytes,
                "the last columns of partial sums are read as a power of two: use more stages",
            ),
            (self.SPLIT == 1 or partial <= ring, "partial sums lie where the stages of A or B were: use more stages"),
            (self.SPLIT == 1 or not self.BATCHED, "a split product is not batched"),
            (not self.PING_PONG or (self.CONSUMERS == 2 and self.SPLIT == 1), "PING_PONG takes two consumers, unsplit"),
            (self.TOGETHER == 1 or (self.SPLIT == 1 and not self.GATE), "chunks go together unsplit, ungated"),
            (not self.GATE or (self.SPLIT == 1 and self.BN % 16 == 0), "gates take pairs of 8 columns, unsplit"),
            (self.cluster <= 8, "a cluster has at most 8 CTAs"),
            (self.STAGES >= 2, "there are two stages or more"),
            (accumulators <= most, f"{accumulators} accumulators a thread, which has room for {most}"),
            (self.BN // 2 + 26 <= entry, f"ptxas wants more than {entry} registers a thread for products this wide"),
            (self.shared_bytes <= SHARED_BYTES, f"{self.shared_bytes} bytes of shared memory, {SHARED_BYTES} exist"),
            (not (self.SINGLE and self.PING_PONG), "PING_PONG takes several tiles"),
            (0 <= self.LAG * (self.CONSUMERS - 1) < self.STAGES, "all consumers begin within the stages"),
            (
                not self.FLIGHT or (self.DEPENDENT and self.CONSUMERS == 1),
                "FLIGHT is for dependent products by one consumer",
            ),
            (
                not self.WHOLE or (self.BUFFERS == self.pieces and not self.tail and not self.GATE and not self.single),
                "a tile that is staged at once has room for it, whole chunks, no gate, and others after it",
            ),
            (self.STORED in (64, ATOM), "128 or 64 bytes of a row are stored at once"),
            (self.PARTS == 1 or (plain and self.INPUT.itemsize == 2), "PARTS are of 16 bits, unsplit and unpromoted"),
            (self.PARTS == 1 or self.BN % self.stored_columns == 0, f"PARTS take BN in steps of {self.stored_columns}"),
            (self.NORM is None or normed, "NORM is for up to 32 rows of 16 bits, a power of two of A_ROWS, unpromoted"),
        ]
        return checked(self, rules)

    def grid(self, rows: int, columns: int, batches: int, slots: int) -> tuple[int, int, int]:
        """CTAs to launch: as many clusters as run at once, with so many CTAs, or the tiles if they are fewer."""
        tiles = -(-rows // (self.BM * self.SHARE_B)) * -(-columns // (self.BN * self.SHARE_A)) * batches
        if self.single:
            return (tiles * self.cluster, 1, 1)
        return (min(tiles, slots // self.cluster) * self.cluster, 1, 1)


MATMUL_PARAMETERS = Parameters(
    {"a": ("left_block", "INPUT"), "b": ("right_block", "right_type"), "c": ("out_block", "OUTPUT"),
     "c_tail": ("tail_block", "OUTPUT")},
    dict.fromkeys(("M", "N", "K", "batches"), "i32"),
)  # fmt: skip
