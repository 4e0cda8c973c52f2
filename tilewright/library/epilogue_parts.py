"""The epilogue of an operation on arrays, of the parts that it names: scales, bias, activation, residual, gate.

EpilogueParts(bias=bfloat16, activation="gelu").epilogue     # its operands come as `extra`, in their order there

The parts are nodes of a graph: `append_parts` adds them to any graph of sums, `EpilogueParts.epilogue` has the function
that is written of them as of every other graph's (`library.generated.slot_functions`), with sizes that a launch says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import ml_dtypes
import numpy as np

from tilewright.dtypes import DType, bfloat16, float32
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Value
from tilewright.graph.quantization import integer_range
from tilewright.language.function import SourceFunction
from tilewright.library.activations import ACTIVATIONS
from tilewright.library.epilogue import Epilogue, block_promotion
from tilewright.library.generated.slot_functions import Chain, GateChain
from tilewright.library.generated.source import ExtraReferences
from tilewright.symbolic import Size, simplify, symbol


@dataclass(frozen=True)
class EpilogueParts:
    """result = activation(sums * scale_a * scale_b + bias) + residual; or gate(columns) * other columns; of 8 bits
    that times the inverse of their scale, rounded to the nearest and saturated.

    `scale_a` is "", "tensor" (one number in memory), "row" or "block" (float32 [rows, depth / 128]); `scale_b` "",
    "tensor", "column" or "block" (float32 [columns / 128, depth / 128]).  `bias` and `residual` are the types of these
    operands, where there are any.  `activation` and `gate` are names of `ACTIVATIONS`, or "".  `exact` asks for float32
    accuracy of activations; otherwise they suit results of type `output`, and run on a GPU only.  `sums` are float32 or
    int32; scales of blocks make float32 of them.
    """

    scale_a: str = ""
    scale_b: str = ""
    bias: DType | None = None
    activation: str = ""
    residual: DType | None = None
    gate: str = ""
    exact: bool = False
    output: DType = bfloat16
    sums: DType = float32

    @property
    def in_blocks(self) -> bool:
        """Whether scales are of blocks of the depth."""
        return self.scale_a == "block"

    @property
    def follows(self) -> bool:
        """Whether anything but a gate and scales of blocks follows the sums."""
        scaled = not self.in_blocks and bool(self.scale_a or self.scale_b)
        return scaled or bool(self.bias or self.activation or self.residual or self.quantizes)

    @property
    def quantizes(self) -> bool:
        """Whether results have 8 bits, and a scale."""
        return self.output.bits == 8

    @property
    def epilogue(self) -> Epilogue:
        """What kernels are made of; the operands' names are those of the parts, and "rows", "columns",
        "residual_stride", "scale_a_stride", "scale_b_stride", "inverse_scale"."""
        return _written(self)


def append_parts(
    b: GraphBuilder, y: Value, parts: EpilogueParts, values: Mapping[str, Value], inverse: Value | None = None
) -> Value:
    """The result of sums [..., rows, columns], but for a gate and scales of blocks.

    `values` are the operands by name, of which "residual" is a matrix of all rows with as many columns or more, and
    `inverse` is that of the scale of results of 8 bits.
    """
    shape = y.shape
    if parts.follows and y.dtype != float32:
        y = b.op("cast", [y], dtype=float32)
    for name, kind, by in (("scale_a", parts.scale_a, (*shape[:-1], 1)), ("scale_b", parts.scale_b, shape[-1:])):
        if kind not in ("", "block"):
            y = b.op("multiply", [y, b.op("reshape", [values[name]], shape=() if kind == "tensor" else by)])
    if parts.bias is not None:
        y = b.op("add", [y, b.op("cast", [values["bias"]], dtype=float32)])
    y = activated(b, y, parts.activation)
    if parts.residual is not None:
        added = values["residual"]
        if added.shape[1] != shape[-1]:
            added = b.op("slice", [added], axis=1, start=0, stop=shape[-1], step=1)
        added = b.op("cast", [added], dtype=float32)
        y = b.op("add", [y, added if added.shape == shape else b.op("reshape", [added], shape=shape)])
    if inverse is not None:
        y = quantized(b, y, parts.output, inverse)
    return y


def activated(b: GraphBuilder, y: Value, activation: str | None) -> Value:
    """An activation of a value, if there is one."""
    if not activation:
        return y
    found = ACTIVATIONS[activation]
    return b.op(found.op, [y], **found.attributes)


def quantized(b: GraphBuilder, y: Value, stored: DType, inverse: Value | float) -> Value:
    """Numbers times `inverse`, to the nearest of a type of 8 bits, saturated."""
    factor = inverse if isinstance(inverse, Value) else b.constant(np.asarray(inverse, np.float32))
    y = b.op("multiply", [b.op("cast", [y], dtype=float32), factor])
    most = float(ml_dtypes.finfo(stored.numpy).max) if stored.is_float else 0.0
    low, high = integer_range(stored) if stored.is_integer else (-most, most)
    y = b.op("round", [y]) if stored.is_integer else y
    return b.op("cast", [b.op("clip", [y], low=float(low), high=float(high))], dtype=stored)


@lru_cache(maxsize=256)
def _written(parts: EpilogueParts) -> Epilogue:
    extra, b = ExtraReferences(), GraphBuilder("epilogue")
    promotion = _promotion(b, extra) if parts.in_blocks else None
    epilogue = _chain(b, parts, extra)
    if parts.gate:
        epilogue = _gate(parts.gate).joined(epilogue, None if parts.exact else parts.output)
    if promotion is not None:
        cost = replace(epilogue.cost, blocks=True, bare=False)
        epilogue = replace(epilogue, promotion=promotion, cost=cost)
    return replace(epilogue, operands=tuple(map(_name, extra.operands.values())), described=_described(parts))


_STRIDE = simplify(symbol("columns") + symbol("residual_gap", 0))  # of a residual, whose rows are as long or longer


def _name(operand: Value | Size) -> str:
    if isinstance(operand, Value):
        return operand.name
    return "residual_stride" if operand == _STRIDE else str(operand)


def _chain(b: GraphBuilder, parts: EpilogueParts, extra: ExtraReferences) -> Epilogue:
    """The epilogue but for a gate and scales of blocks."""
    if not parts.follows:
        return Epilogue()
    rows, columns, _ = b.symbol("rows"), b.symbol("columns"), b.symbol("residual_gap", 0)
    scaled = not parts.in_blocks
    operands = {
        "scale_a": (float32 if parts.scale_a and scaled else None, (rows,) if parts.scale_a == "row" else ()),
        "scale_b": (float32 if parts.scale_b and scaled else None, (columns,) if parts.scale_b == "column" else ()),
        "bias": (parts.bias, (columns,)), "residual": (parts.residual, (rows, _STRIDE)),
        "inverse_scale": (float32 if parts.quantizes else None, ()),
    }  # fmt: skip
    values = {name: b.input(name, dtype, shape) for name, (dtype, shape) in operands.items() if dtype is not None}
    sums, inverse = b.input("sums", parts.sums, (rows, columns)), values.get("inverse_scale")
    result = append_parts(b, sums, parts, values, inverse)
    if not (parts.exact or parts.quantizes):
        result = b.op("cast", [result], dtype=parts.output)  # which activations suit; the sums are rounded once
    b.output(result)
    graph = b.finish()
    numbers = () if inverse is None else (inverse,)
    chain = Chain(tuple(graph.nodes), sums, result, graph.constants, numbers=numbers)
    return chain.written(extra, columns, rounded=not parts.exact, rows=rows)


def _promotion(b: GraphBuilder, extra: ExtraReferences) -> SourceFunction:
    """What is added to the float32 sums for a product of one block of depth, when scales are of blocks."""
    rows, strides = b.symbol("rows"), {name: b.symbol(f"{name}_stride") for name in ("scale_a", "scale_b")}
    scales = [b.input(name, float32, (rows, stride)) for name, stride in strides.items()]
    return block_promotion(*(extra.place(each) for each in (*scales, *strides.values(), rows)))


def _gate(name: str) -> GateChain:
    """A gate as data: the activation of the left of two columns times the right one."""
    b = GraphBuilder("gate")
    shape = (b.symbol("rows"), b.symbol("columns"))
    left, right = (b.input(side, float32, shape) for side in ("left", "right"))
    b.output(b.op("multiply", [activated(b, left, name), right]))
    graph = b.finish()
    return GateChain(tuple(graph.nodes), left, right, graph.outputs[0], graph.constants)


def _described(parts: EpilogueParts) -> str:
    """The parts in words, which identify recorded problems together with the types of operands."""
    found = {
        "scale_a": parts.scale_a, "scale_b": parts.scale_b, "bias": parts.bias is not None,
        "activation": parts.activation, "residual": parts.residual is not None, "gate": parts.gate,
        "exact": parts.exact, "stored": parts.output if parts.quantizes else None,
    }  # fmt: skip
    return " ".join(f"{name}={value}" for name, value in found.items() if value)
