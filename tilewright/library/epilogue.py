"""The epilogue of a matrix product: scales, bias, activation, residual, gate.

`Epilogue` says which parts there are, `function` makes the jit function of them, for the slot of a product kernel
(`docs/internals/kernels.md`).  Its operands come as `extra`, in the order of `Epilogue.operands`.
"""

# mypy: ignore-errors
# The bodies below are tile language, which has types of its own.

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import tilewright
import tilewright.language as tl
from tilewright.dtypes import DType, bfloat16, float8e4nv, float8e5, float16, int8, uint8
from tilewright.language.function import SourceFunction
from tilewright.library import functions

SCALE_BLOCK = 128  # depth and columns that share a scale, when scales are of blocks
_ISSUED = 128  # instructions of a multiprocessor and clock


@dataclass(frozen=True)
class EpilogueCost:
    """What an epilogue does for an element of the result, by which kernels and their configs are chosen.

    `column_loads` and `row_loads` are operands with a number for each column or row, `element_loads` those with one for
    each element; `instructions` those of an activation, of a load by column or row, and of one by element.  `bare`:
    nothing follows the sums; `gated`: two columns make one; `blocks`: sums are promoted block by block.
    """

    column_loads: int = 0
    element_loads: int = 0
    activations: int = 0
    row_loads: int = 0
    instructions: tuple[float, float, float] = (9.0, 2.0, 5.0)
    bare: bool = False
    gated: bool = False
    blocks: bool = False

    @property
    def work(self) -> float:
        """Clocks of a multiprocessor for an element."""
        activation, line, element = self.instructions
        lines = self.column_loads + self.row_loads
        return (activation * self.activations + line * lines + element * self.element_loads) / _ISSUED

    @property
    def exact_work(self) -> float:
        """The same where activations are exact, as plain kernels have them."""
        return 50.0 * self.activations / _ISSUED


@dataclass(frozen=True)
class Epilogue:
    """result = activation(sums * scale_a * scale_b + bias) + residual; or gate(columns) * other columns.

    `scale_a` is "", "tensor" (one number in memory), "row" or "block" (float32 [rows, depth / 128]); `scale_b` "",
    "tensor", "column" or "block" (float32 [columns / 128, depth / 128]).  `activation` and `gate` are names of
    `ACTIVATIONS`, or "".  `exact` asks for float32 accuracy of activations; otherwise
    they suit bfloat16, and run on a GPU only.
    """

    scale_a: str = ""
    scale_b: str = ""
    bias: bool = False
    activation: str = ""
    residual: bool = False
    gate: str = ""
    exact: bool = False

    @property
    def operands(self) -> tuple[str, ...]:
        """Names of the operands in `extra`."""
        blocks = self.scale_a == "block"
        present = {
            "scale_a": self.scale_a, "scale_b": self.scale_b, "bias": self.bias, "residual": self.residual,
            "residual_stride": self.residual, "scale_a_stride": blocks, "scale_b_stride": blocks,
            "rows": blocks or self.scale_a == "row", "columns": self.bias or self.scale_b == "column",
        }  # fmt: skip
        return tuple(name for name, there in present.items() if there)

    @property
    def cost(self) -> EpilogueCost:
        """What it takes."""
        return EpilogueCost(
            self.bias + (self.scale_b == "column"), int(self.residual), int(bool(self.activation or self.gate)),
            int(self.scale_a == "row"), (8.0, 1.0, 3.0), not (self.operands or self.activation or self.gate),
            bool(self.gate), self.scale_a == "block",
        )  # fmt: skip


@tilewright.jit
def hardware_tanh(x):
    """tanh x within 2^-11, by the special function unit."""
    return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)


# Activations for bfloat16 results, of half their argument: that half comes for nothing with what is added before.


@tilewright.jit
def gelu_of_half(half):
    """x Phi(x) within 4e-4 of x = 2 half: Phi as the logistic function of an odd polynomial, fitted for the least
    greatest error (1.4e-4; the rest is `hardware_tanh`)."""
    return tl.fma(half, hardware_tanh(half * tl.fma(half * half, 0.28225648, 1.59760284)), half)


@tilewright.jit
def gelu_tanh_of_half(half):
    """The tanh form of GELU within 3e-4 of x = 2 half."""
    return tl.fma(half, hardware_tanh(half * tl.fma(half * half, 0.2854192648, 1.5957691216)), half)


@tilewright.jit
def silu_of_half(half):
    """x / (1 + exp(-x)) within 3e-4 of x = 2 half."""
    return tl.fma(half, hardware_tanh(half), half)


@tilewright.jit
def sigmoid_of_half(half):
    """1 / (1 + exp(-x)) within 3e-4, x = 2 half."""
    return tl.fma(hardware_tanh(half), 0.5, 0.5)


OF_HALF: dict[str, SourceFunction] = {
    "gelu": gelu_of_half,
    "gelu_tanh": gelu_tanh_of_half,
    "silu": silu_of_half,
    "sigmoid": sigmoid_of_half,
}


def _of_whole(of_half):
    @tilewright.jit
    def activation(x):
        return of_half(0.5 * x)

    return activation


@tilewright.jit
def gelu_of_half_float16(half):
    """x Phi(x) within 3e-5 of x = 2 half, beside what `hardware_tanh` is off: for float16, which tells more numbers
    apart than bfloat16. Phi as the logistic function of an odd polynomial."""
    square = tl.minimum(half * half, 12.5)
    inner = tl.fma(square, tl.fma(square, -0.01124853824, 0.296045176), 1.59501568)
    return tl.fma(half, hardware_tanh(half * inner), half)


# Activations that are as exact as results of a type can tell, by one instruction of the hardware.
ROUNDED: dict[DType, dict[str, SourceFunction]] = {
    bfloat16: {name: _of_whole(of_half) for name, of_half in OF_HALF.items()},
    float16: {name: _of_whole(of_half) for name, of_half in {**OF_HALF, "gelu": gelu_of_half_float16}.items()},
}
ROUNDED |= {dtype: ROUNDED[bfloat16] for dtype in (int8, uint8, float8e4nv, float8e5)}


@tilewright.jit
def relu(x):
    """The larger of x and 0; NaN stays."""
    return functions.maximum(x, 0.0)


ACTIVATIONS: dict[str, SourceFunction] = {  # in float32 accuracy
    "relu": relu,
    "gelu": functions.gelu,
    "gelu_tanh": functions.gelu_tanh,
    "silu": functions.silu,
    "sigmoid": functions.sigmoid,
}


@lru_cache(maxsize=256)
def function(spec: Epilogue) -> SourceFunction:
    """The epilogue of a kernel that has sums, as `spec` says; scales of blocks are not its part (`promotion`)."""
    place = {name: number for number, name in enumerate(spec.operands)}
    scale_a = place.get("scale_a", -1) if spec.scale_a != "block" else -1
    scale_b = place.get("scale_b", -1) if spec.scale_b != "block" else -1
    by_row, by_column = spec.scale_a == "row", spec.scale_b == "column"
    bias, residual, stride, rows, columns = (
        place.get(name, -1) for name in ("bias", "residual", "residual_stride", "rows", "columns")
    )
    of_half = None if spec.exact else OF_HALF.get(spec.activation)
    activation = ACTIVATIONS[spec.activation] if spec.activation else None
    computes = bool(spec.operands or spec.activation)

    @tilewright.jit
    def epilogue(value, row, column, mask, extra):
        if computes:
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
        return value

    return epilogue


@lru_cache(maxsize=16)
def promotion(spec: Epilogue) -> SourceFunction | None:
    """What is added to the float32 sums for a product of one block of depth, when scales are of blocks."""
    if spec.scale_a != "block":
        return None
    place = {name: number for number, name in enumerate(spec.operands)}
    scale_a, scale_b, a_stride, b_stride, rows = (
        place[name] for name in ("scale_a", "scale_b", "scale_a_stride", "scale_b_stride", "rows")
    )

    @tilewright.jit
    def promote(partial, row, column, stage, extra):
        left = tl.load(extra[scale_a] + row.to(tl.int64) * extra[a_stride] + stage, mask=row < extra[rows], other=0.0)
        right = tl.load(extra[scale_b] + column // SCALE_BLOCK * extra[b_stride] + stage)  # of all columns of the tile
        return partial * (left * right)

    return promote


@lru_cache(maxsize=16)
def gating(spec: Epilogue) -> SourceFunction | None:
    """The function of a gate's column and the one it goes with, or None."""
    if not spec.gate:
        return None
    of_half = None if spec.exact else OF_HALF.get(spec.gate)
    activation = ACTIVATIONS[spec.gate]

    @tilewright.jit
    def gate(left, right):
        if of_half is None:
            left = activation(left)
        else:
            left = of_half(0.5 * left)
        return left * right

    return gate
