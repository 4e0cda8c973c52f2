"""The epilogue of a kernel: what it does with its sums before it stores them.

Kernels are made of an `Epilogue`, whoever asks for it: `library.slots` writes it of the nodes of a graph after an
anchor, `library.epilogue_parts` of the nodes that stand for what an operation on arrays names: scales, bias,
activation, residual, gate (`docs/internals/kernels.md`).
"""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import tilewright
import tilewright.language as tl
from tilewright.dtypes import DType
from tilewright.graph.quantization import SCALE_BLOCK
from tilewright.language.function import SourceFunction

# Instructions for an element.  ptxas 13.5 writes, for sm_90a, 1 to 2.3 for an operand by column, 3.7 to 5.9 for one by
# element, and 6 for gelu, of which one takes as long as eight.
_OF_ACTIVATION, _OF_LINE, _OF_ELEMENT, _OF_EXACT_ACTIVATION = 9, 2, 5, 50
# Of functions that no activation stands for: PTX for sm_90a, an instruction that takes as long as eight counted so.
_OF_FUNCTION = {
    "exp": 9, "exp2": 9, "log": 26, "tanh": 30, "erf": 29, "sqrt": 8, "rsqrt": 8, "reciprocal": 16, "divide": 16,
    "sin": 99, "cos": 99, "atan": 44, "atan2": 60, "asin": 44, "acos": 44, "power": 46, "remainder": 35,
    "floor_divide": 35, "erfinv": 60, "erfc": 60, "lgamma": 80,
}  # fmt: skip


@tilewright.jit
def identity(acc, rows, columns, mask, extra):
    """The epilogue that changes nothing."""
    return acc


@lru_cache(maxsize=64)
def quantizing(dtype: DType, place: int = 0) -> SourceFunction:
    """The epilogue that stores results times a number of `extra`, to the nearest of a type of 8 bits, what is beyond
    its range at the end of that."""
    stored, integers = tl.dtype(dtype), dtype.is_integer

    @tilewright.jit
    def epilogue(value, row, column, mask, extra):
        value = value * extra[place]
        if integers:
            value = tl.math.rint(value)
        return value.to(stored)

    return epilogue


@lru_cache(maxsize=64)
def block_promotion(scale_a: int, scale_b: int, a_stride: int, b_stride: int, rows: int) -> SourceFunction:
    """What the sums of a block add, by the places in `extra` of the scales of both operands, the distances of their
    rows and the number of rows."""

    @tilewright.jit
    def promote(partial, row, column, stage, extra):
        left = tl.load(extra[scale_a] + row.to(tl.int64) * extra[a_stride] + stage, mask=row < extra[rows], other=0.0)
        right = tl.load(extra[scale_b] + column // SCALE_BLOCK * extra[b_stride] + stage)  # of all columns of the tile
        return partial * (left * right)

    return promote


def function_instructions(counts: Mapping[str, int]) -> int:
    """The instructions of so many functions of each name; of others, a few each, none."""
    return sum(_OF_FUNCTION.get(name, 0) * count for name, count in counts.items())


@dataclass(frozen=True)
class EpilogueCost:
    """What an epilogue does for an element of the result, by which kernels and their configs are chosen.

    `column_loads` and `row_loads` are operands with a number for each column or row, `element_loads` those with one for
    each element; `functions` are the instructions of functions that are no activations.  `bare`: nothing follows the
    sums; `gated`: two columns make one; `blocks`: sums are promoted block by block.
    """

    column_loads: int = 0
    element_loads: int = 0
    activations: int = 0
    row_loads: int = 0
    bare: bool = False
    gated: bool = False
    blocks: bool = False
    functions: int = 0

    @property
    def instructions(self) -> int:
        """Instructions for an element."""
        lines = self.column_loads + self.row_loads
        loads = _OF_LINE * lines + _OF_ELEMENT * self.element_loads
        return _OF_ACTIVATION * self.activations + loads + self.functions

    @property
    def exact_instructions(self) -> int:
        """The same where activations are exact, as plain kernels have them."""
        return _OF_EXACT_ACTIVATION * self.activations + self.functions


@dataclass(frozen=True)
class Epilogue:
    """Functions in the tile language, their operands and their cost.

    `function` is ``(sums, row, column, mask, extra) -> values``.  `gate` is ``(left, right) -> value``, which makes one
    column of two before that; `promotion` is ``(sums, row, column, block, extra)`` -> what the sums of a block of the
    depth add to those in float32.  `operands` are names of what `extra` has, where the launch tells them by name, and
    `described` says in words what there is.
    """

    function: SourceFunction = identity
    cost: EpilogueCost = EpilogueCost(bare=True)
    gate: SourceFunction | None = None
    promotion: SourceFunction | None = None
    operands: tuple[str, ...] = ()
    described: str = ""

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of a config of products."""
        return {"EPILOGUE": self.function, "GATE": self.gate, "PROMOTE": self.promotion}
