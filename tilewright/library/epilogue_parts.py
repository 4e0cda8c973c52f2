"""The epilogue of an operation on arrays, of the parts that it names: scales, bias, activation, residual, gate.

EpilogueParts(bias=True, activation="gelu").epilogue     # its operands come as `extra`, in their order there
"""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import tilewright
import tilewright.language as tl
from tilewright.dtypes import DType
from tilewright.graph.quantization import SCALE_BLOCK
from tilewright.language.function import SourceFunction
from tilewright.library.activations import ACTIVATIONS, Activation
from tilewright.library.epilogue import Epilogue, EpilogueCost, identity, quantizing

_NO_ACTIVATION = Activation(None, "")


@dataclass(frozen=True)
class EpilogueParts:
    """result = activation(sums * scale_a * scale_b + bias) + residual; or gate(columns) * other columns; of 8 bits
    that times the inverse of their scale, rounded to the nearest and saturated.

    `scale_a` is "", "tensor" (one number in memory), "row" or "block" (float32 [rows, depth / 128]); `scale_b` "",
    "tensor", "column" or "block" (float32 [columns / 128, depth / 128]).  `activation` and `gate` are names of
    `ACTIVATIONS`, or "".  `exact` asks for float32 accuracy of activations; otherwise
    they suit bfloat16, and run on a GPU only.  `stored` is the type of results of 8 bits.
    """

    scale_a: str = ""
    scale_b: str = ""
    bias: bool = False
    activation: str = ""
    residual: bool = False
    gate: str = ""
    exact: bool = False
    stored: DType | None = None

    @property
    def operands(self) -> tuple[str, ...]:
        """Names of the operands in `extra`."""
        blocks = self.scale_a == "block"
        present = {
            "scale_a": self.scale_a, "scale_b": self.scale_b, "bias": self.bias, "residual": self.residual,
            "residual_stride": self.residual, "scale_a_stride": blocks, "scale_b_stride": blocks,
            "rows": blocks or self.scale_a == "row", "columns": self.bias or self.scale_b == "column",
            "inverse_scale": self.stored is not None,
        }  # fmt: skip
        return tuple(name for name, there in present.items() if there)

    @property
    def cost(self) -> EpilogueCost:
        """What it takes."""
        return EpilogueCost(
            self.bias + (self.scale_b == "column"), int(self.residual), int(bool(self.activation or self.gate)),
            int(self.scale_a == "row"), not (self.operands or self.activation or self.gate),
            bool(self.gate), self.scale_a == "block",
        )  # fmt: skip

    @property
    def epilogue(self) -> Epilogue:
        """What kernels are made of."""
        return _written(self)


@lru_cache(maxsize=256)
def _written(parts: EpilogueParts) -> Epilogue:
    described = " ".join(f"{name}={value}" for name, value in vars(parts).items() if value)
    return Epilogue(_function(parts), parts.cost, _gate(parts), _promotion(parts), parts.operands, described)


def _function(parts: EpilogueParts) -> SourceFunction:
    """What follows the sums; scales of blocks are not its part (`_promotion`)."""
    if not (parts.operands or parts.activation):
        return identity
    place = {name: number for number, name in enumerate(parts.operands)}
    scale_a = place.get("scale_a", -1) if parts.scale_a != "block" else -1
    scale_b = place.get("scale_b", -1) if parts.scale_b != "block" else -1
    by_row, by_column = parts.scale_a == "row", parts.scale_b == "column"
    bias, residual, stride, rows, columns = (
        place.get(name, -1) for name in ("bias", "residual", "residual_stride", "rows", "columns")
    )
    found = ACTIVATIONS.get(parts.activation, _NO_ACTIVATION)
    of_half, activation = None if parts.exact else found.of_half, found.exact
    quantize = None if parts.stored is None else quantizing(parts.stored, place["inverse_scale"])

    @tilewright.jit
    def epilogue(value, row, column, mask, extra):
        value = value.to(tl.float32)
        if scale_a >= 0:
            if by_row:
                value = value * tl.load(extra[scale_a] + row, mask=row < extra[rows])
            else:
                value = value * tl.load(extra[scale_a])
        if scale_b >= 0:
            if by_column:
                value = value * tl.load(extra[scale_b] + column, mask=column < extra[columns])
            else:
                value = value * tl.load(extra[scale_b])
        if bias >= 0:
            # One mask of the columns, not of all elements: rows share what is loaded.
            summand = tl.load(extra[bias] + column, mask=column < extra[columns]).to(tl.float32)
            if of_half is None:
                value = value + summand
            else:
                value = tl.fma(value, 0.5, 0.5 * summand)
        elif of_half is not None:
            value = 0.5 * value
        if of_half is not None:
            value = of_half(value)
        elif activation is not None:
            value = activation(value)
        if residual >= 0:
            place = row.to(tl.int64) * extra[stride] + column
            value = value + tl.load(extra[residual] + place, mask=mask).to(tl.float32)
        if quantize is not None:
            value = quantize(value, row, column, mask, extra)
        return value

    return epilogue


def _promotion(parts: EpilogueParts) -> SourceFunction | None:
    """What is added to the float32 sums for a product of one block of depth, when scales are of blocks."""
    if parts.scale_a != "block":
        return None
    place = {name: number for number, name in enumerate(parts.operands)}
    return block_promotion(
        *(place[name] for name in ("scale_a", "scale_b", "scale_a_stride", "scale_b_stride", "rows"))
    )


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


def _gate(parts: EpilogueParts) -> SourceFunction | None:
    """The function of a gate's column and the one it goes with, or None."""
    if not parts.gate:
        return None
    found = ACTIVATIONS[parts.gate]
    of_half, activation = None if parts.exact else found.of_half, found.exact

    @tilewright.jit
    def gate(left, right):
        if of_half is None:
            left = activation(left)
        else:
            left = of_half(0.5 * left)
        return left * right

    return gate
