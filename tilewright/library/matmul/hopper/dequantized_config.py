"""The configs of Hopper's product by quantized weights: what is fixed at compile time, and what follows from it."""

from __future__ import annotations

from typing import Any, NamedTuple

import tilewright.language as tl
from tilewright.library.epilogue import identity
from tilewright.library.hopper import SHARED_BYTES, Parameters, checked

COLUMNS = 64  # of the result, whose weights a warpgroup multiplies at once
PACKED_LINE = 256  # elements of a line of packed weights: words of integers, 8-bit floats
GATE_COLUMNS = COLUMNS // 2  # of either half of a gated result, that are multiplied together
PIECE = 64  # steps of the depth that are widened at once: a row of the widest swizzle


class DequantizedConfig(NamedTuple):
    """A product of few rows by weights of 4 or 8 bits: the weights are the left operand of wgmma, from registers, in
    which they are widened; rows of x are its columns.

    A CTA computes `BATCH` rows of 64 `CONSUMERS` columns, of which each consumer has 64.  `DEPTH` steps of the depth
    are a stage; `SPLIT` CTAs of a cluster share the depth.  `GROUP` steps share a scale, all of them where it is 0.
    With `SCALED` weights are multiplied by their scales before the product, else sums are behind it.
    """

    BATCH: int = 8
    CONSUMERS: int = 1
    DEPTH: int = 128
    STAGES: int = 8
    SPLIT: int = 1
    SLICES: int = 1  # consumers of the same columns, which take turns at the stages
    AHEAD: bool = False  # warpgroups widen a stage while they multiply the one in front
    WARPS: int = 4  # of a consumer: 4 multiply by wgmma, 1 by mma.sync
    GROUP: int = 128
    SCALED: bool = False
    CODES: Any = tl.int32  # elements of packed weights: words of integers, or 8-bit floats
    BITS: int = 4
    LOW: int = 8  # what integers are stored more than they are
    ZEROS: bool = False  # there are zero points
    TYPE: Any = tl.bfloat16  # of x
    SCALE: Any = tl.float32  # of the scales
    OUTPUT: Any = tl.bfloat16
    MULTIPLE: int = 1  # that the number of columns is of, 8 at most
    BATCHED: bool = False  # never: what the epilogue of the other Hopper products asks
    DEPENDENT: bool = False  # weights may be read before the kernels in front of this one have ended
    EPILOGUE: Any = identity
    GATE: Any = None  # makes one column of two that are half a block apart

    @property
    def zeros_type(self) -> Any:
        """The element type of zero points; the scales stand for what is not there."""
        return tl.uint8 if self.ZEROS else self.SCALE

    @property
    def unit(self) -> int:
        """Steps of the depth whose weights of 64 columns are a 16-byte load of each thread."""
        return 64 if self.BITS == 4 else 32

    @property
    def unit_lines(self) -> int:
        """Lines of packed weights of a unit."""
        return 2048 // (PACKED_LINE * int(self.CODES.itemsize))

    @property
    def lines(self) -> int:
        """Lines of packed weights of a consumer's stage."""
        return self.DEPTH // self.unit * self.unit_lines

    @property
    def groups(self) -> int:
        """Scales of a column in a stage."""
        return max(1, self.DEPTH // self.GROUP) if self.GROUP else 1

    @property
    def low_bits(self) -> int:
        """The bits of both halves of a word that become those of a float at once."""
        return 0x000F000F if self.BITS == 4 else 0x007F007F if self.TYPE == tl.bfloat16 else 0x00FF00FF

    @property
    def base(self) -> int:
        """What floats that are made by bits are more than the integers they stand for."""
        if self.CODES != tl.int32:
            return 0
        if self.TYPE == tl.bfloat16:
            return self.LOW + (128 if self.BITS == 4 else -128)
        return self.LOW + 1024

    @property
    def wide(self) -> Any:
        """The type in which weights are scaled: that of x where scales have it too."""
        return tl.float32 if self.SCALED and self.SCALE != self.TYPE else self.TYPE

    @property
    def pieces(self) -> int:
        """Pieces of a stage of 64 steps, which are widened at once."""
        return self.DEPTH // PIECE

    @property
    def piece_groups(self) -> int:
        """Scales of a column in a piece."""
        return max(1, self.groups // self.pieces)

    @property
    def together(self) -> int:
        """Pieces whose sums are scaled at once."""
        return self.pieces if self.SCALED else max(1, self.pieces // self.groups)

    @property
    def least_group(self) -> int:
        """Steps at least whose sums are scaled apart from others."""
        return PIECE if self.WARPS == 4 else 16

    @property
    def codes_block(self) -> tuple[int, int, int]:
        """The tile of the packed weights' tensor map."""
        return self.CONSUMERS, self.lines, PACKED_LINE

    @property
    def scales_block(self) -> tuple[int, int, int]:
        """The tile of the tensor maps of scales and zero points."""
        return self.CONSUMERS, self.groups, COLUMNS

    @property
    def x_block(self) -> tuple[int, int]:
        """The tile of x's tensor map."""
        return self.BATCH, self.DEPTH

    @property
    def storing(self) -> int:
        """CTAs that store, of those that share the depth."""
        return 1 << (self.SPLIT.bit_length() - 1)

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights, scales and zero points that come to a stage."""
        codes = self.lines * PACKED_LINE * int(self.CODES.itemsize)
        scales = self.groups * COLUMNS * (int(self.SCALE.itemsize) + (1 if self.ZEROS else 0))
        return self.CONSUMERS * (codes + scales)

    @property
    def centre_rows(self) -> int:
        """Rows of zero points in a stage: copies begin at multiples of 128 bytes."""
        return max(2, self.CONSUMERS * self.groups)

    @property
    def x_bytes(self) -> int:
        """Bytes of x that come to a stage."""
        return self.BATCH * self.DEPTH * int(self.TYPE.itemsize)

    @property
    def stage_bytes(self) -> int:
        """Bytes that come to a stage."""
        return self.weight_bytes + self.x_bytes

    @property
    def copies(self) -> int:
        """Consumers of a CTA."""
        return self.CONSUMERS * self.SLICES

    @property
    def least_stages(self) -> int:
        """Stages in whose x all sums have room."""
        least = max(2, -(-self.copies * self.BATCH * COLUMNS * 4 // self.x_bytes))
        return -(-least // self.SLICES) * self.SLICES

    @property
    def block_columns(self) -> int:
        """Columns of the result of a consumer."""
        return COLUMNS if self.GATE is None else GATE_COLUMNS

    @property
    def loaded_columns(self) -> int:
        """Columns of those that a CTA of those that share the depth stores."""
        return self.block_columns // self.storing

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a CTA; tiles begin at multiples of 128 bytes, those of x at those of 1024."""
        tiles = self.STAGES * self.stage_bytes
        # Results of a part of the columns change hands where rows begin anywhere; those narrower than the sums, whose
        # stores are wider, may behind any epilogue.
        moved = self.CONSUMERS * self.BATCH * self.loaded_columns * int(self.OUTPUT.itemsize)
        unlike = (self.EPILOGUE is not identity or self.GATE is not None) and self.OUTPUT.itemsize < 4
        exchanged = moved if unlike or (self.SPLIT > 1 and self.MULTIPLE < 8) else 0
        filled = self.STAGES * COLUMNS if self.ZEROS and self.CONSUMERS * self.groups == 1 else 0
        return tiles + filled + 1024 + 3 * 128 + 24 * self.STAGES + exchanged

    @property
    def threads(self) -> int:
        """Threads of a CTA: consumers that multiply, and one group of as many warps that loads."""
        return 32 * self.WARPS * (self.copies + 1)

    @property
    def registers(self) -> tuple[int, int]:
        """Budgets of loading and multiplying threads; (0, 0) where all have enough."""
        if self.WARPS < 4 or self.BATCH < 64:
            return 0, 0
        return {1: (0, 0), 2: (24, 240), 4: (24, 112)}[self.copies]

    @property
    def described(self) -> str:
        """What tells a config from others, in a line."""
        parts = [f"{self.BATCH} rows by {COLUMNS * self.CONSUMERS} columns, depth {self.DEPTH}, {self.STAGES} stages"]
        parts += [f"depth split by {self.SPLIT}"] if self.SPLIT > 1 else []
        parts += [f"{self.SLICES} slices"] if self.SLICES > 1 else []
        parts += ["widened ahead"] if self.AHEAD else []
        parts += ["by warps"] if self.WARPS == 1 else []
        return ", ".join([*parts, "weights scaled" if self.SCALED else "sums scaled"])

    def check(self) -> DequantizedConfig:
        """The config itself; raises `LaunchError` with the reason when it cannot be built."""
        step = self.GROUP or self.DEPTH
        rules = [
            (self.BATCH in (8, 16, 32, 64, 128, 256), "BATCH is a power of two from 8 to 256"),
            (self.BITS in (4, 8), "weights have 4 or 8 bits"),
            (self.CONSUMERS in (1, 2, 4), "there are 1, 2 or 4 consumers"),
            (self.DEPTH in (64, 128, 256), "DEPTH is 64, 128 or 256"),
            (self.DEPTH % step == 0 or step % self.DEPTH == 0, "groups divide a stage, or stages a group"),
            (self.SCALED or step >= self.least_group, f"sums of {self.least_group} steps at least are scaled apart"),
            (self.WARPS in (1, 4), "a consumer is a warp or a warpgroup"),
            (self.SLICES in (1, 2, 4, 8), "1, 2, 4 or 8 consumers take turns at the stages"),
            # So that a consumer waits for every phase of the barriers of its stages.
            (self.STAGES % self.SLICES == 0, "every stage belongs to one of the consumers that take turns"),
            (self.WARPS == 1 or self.copies <= 4, "at most four warpgroups"),
            (1 <= self.SPLIT <= 8, "1 to 8 CTAs share the depth"),
            (self.TYPE in (tl.bfloat16, tl.float16), "x is bfloat16 or float16"),
            (
                not self.AHEAD or (self.WARPS == 4 and not self.SCALED and self.groups == 1),
                "what is widened ahead is of one group, and not scaled",
            ),
            (not self.AHEAD or self.STAGES >= 2 * self.SLICES, "two stages of a consumer are under way at once"),
            (not self.AHEAD or self.copies <= 2, "two warpgroups at most have the registers to widen ahead"),
            (self.STAGES >= self.least_stages, "sums lie where the stages of x were: use more stages"),
            (self.shared_bytes <= SHARED_BYTES, f"{self.shared_bytes} bytes of shared memory, {SHARED_BYTES} exist"),
        ]
        return checked(self, rules)

    def grid(self, rows: int, columns: int) -> tuple[int, int, int]:
        """CTAs to launch."""
        return -(-columns // (COLUMNS * self.CONSUMERS)) * self.SPLIT, -(-rows // self.BATCH), 1


DEQUANTIZED_PARAMETERS = Parameters(
    {"x": ("x_block", "TYPE"), "w": ("codes_block", "CODES"), "scales": ("scales_block", "SCALE"),
     "zeros": ("scales_block", "zeros_type")},
    {"out": "*{0.OUTPUT.element}", **dict.fromkeys(("M", "N", "K"), "i32")},
)  # fmt: skip
