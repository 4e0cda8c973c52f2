"""Products by quantized weights on CPUs: how the weights are stored, and which kernel takes how many rows.

Few rows read every weight once, at the rate of memory; more rows widen a block of the weights in the caches, and
multiply floats.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from tilewright.dtypes import float32, int4
from tilewright.graph.core import Graph, Value
from tilewright.graph.fusion import Group
from tilewright.graph.quantization import group_of
from tilewright.library.binding import bind_extra, bind_sizes, divides
from tilewright.library.candidate import Candidate, KernelCall, Operand, PackedConstant, Stage
from tilewright.library.cost import estimate
from tilewright.library.generated.elementwise import chain_operations, tensor_bytes
from tilewright.library.generated.expressions import language_type
from tilewright.library.generated.source import ExtraReferences
from tilewright.library.matmul.dequantized_kernel import few_rows, many_rows
from tilewright.library.packing import nibbles_recipe, panels_recipe
from tilewright.library.slots import Slots, epilogue_slots
from tilewright.symbolic import Size, ceil_divide, lift, product, simplify, upper_bound
from tilewright.targets.base import Target

LARGEST_BLOCK = 128  # steps of the depth whose weights are widened at once
# Rows at most, rows of a program, panels of it (0: the kernel of few rows).
_FORMS = ((1, 1, 0), (2, 2, 0), (8, 4, 0), (16, 16, 1), (1 << 62, 64, 4))


@dataclass(frozen=True)
class _Weights:
    """Weights as the kernels read them."""

    codes: PackedConstant
    scales: PackedConstant
    zeros: Operand
    constants: dict[str, Any]


def dequantized_candidates(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    """The candidates of a group whose anchor is a `dequantized_matmul` of constants.

    Raises `NotImplementedError` for weights that are no constants.
    """
    anchor = group.anchor
    assert anchor is not None
    x, w = anchor.inputs[:2]
    assert x is not None and w is not None
    slots = epilogue_slots(group, graph, ExtraReferences(parts=True))
    weights = _weights(anchor.inputs, graph, target)
    rows, columns = product(x.shape[:-1]), w.shape[0]
    calls = [_call(x, weights, slots, rows, columns, form, target, last) for form, last in _forms_of(simplify(rows))]
    elements = simplify(lift(rows) * columns)
    flops = simplify(lift(elements) * x.shape[-1] * 2 + chain_operations(group.epilogue))
    moved: Size = 0
    for value in (*group.inputs, *group.outputs):
        moved = simplify(lift(moved) + _bytes(value))
    cost = estimate(target.machine(), moved, flops, product(calls[-1].grid), float32, 0.7)
    reasons = {"weights": f"{w.dtype.name}, a scale for {group_of(w, anchor.inputs[2])} of the depth"}  # type: ignore[arg-type]
    for call in calls:
        at_most = "rows" if call.condition is None else f"rows <= {call.condition[1]}"
        reasons[at_most] = f"{call.kernel.__name__}, {call.constants['ROWS']} at a time"
    return [Candidate("product by quantized weights", (Stage(tuple(calls)),), cost, (), reasons)]


def block_of(group: int, bits: int) -> int | None:
    """The steps of the depth that are widened at once: the largest divisor of a group that is not too large; None where
    pairs of 4 bits do not fit in."""
    unit = 2 if bits == 4 else 1
    fitting = [block for block in range(unit, LARGEST_BLOCK + 1, unit) if group % block == 0]
    return max(fitting, default=None)


def _weights(inputs: list[Value | None], graph: Graph, target: Target) -> _Weights:
    _, w, scale, zero = (*inputs, None)[:4]
    assert w is not None and scale is not None
    if any(item is not None and item not in graph.constants for item in (w, scale, zero)):
        raise NotImplementedError(f"the quantized weights {w!r} are no constants")
    width = target.microtile(float32)[1]
    group, bits = group_of(w, scale), w.dtype.bits
    block = block_of(group, bits)
    assert block is not None
    panels = panels_recipe(width, True)
    codes = PackedConstant(w, nibbles_recipe(width, block, w.dtype) if bits == 4 else panels)
    scales = PackedConstant(scale, panels)
    constants = {
        "BITS": bits, "GROUP": group, "BLOCK": block, "WIDTH": width, "ZERO": 8 if w.dtype == int4 else 0,
        "ZEROS": zero is not None,
    }  # fmt: skip
    return _Weights(codes, scales, scales if zero is None else PackedConstant(zero, panels), constants)


def _forms_of(rows: Size) -> list[tuple[tuple[int, int, int], bool]]:
    """The kernels for numbers of rows that can occur, and whether it is the last one."""
    if isinstance(rows, int):
        return [(next(form for form in _FORMS if rows <= form[0]), True)]
    most = max(1, upper_bound(rows))
    count = next(number for number, form in enumerate(_FORMS, 1) if most <= form[0])
    return [(form, number == count) for number, form in enumerate(_FORMS[:count], 1)]


def _call(
    x: Value, weights: _Weights, slots: Slots, rows: Size, columns: Size, form: tuple[int, int, int], target: Target,
    last: bool,
) -> KernelCall:  # fmt: skip
    """The launch for up to so many rows."""
    at_most, at_once, beside = form
    width = weights.constants["WIDTH"]
    panels = ceil_divide(columns, width)
    while beside > 1 and isinstance(panels, int) and panels // beside < 2 * target.machine().processors:
        beside //= 2
    depth = x.shape[-1]
    sizes: dict[str, Size] = {
        "rows": rows, "columns": columns, "depth": depth, "x_row": depth, "c_row": columns
    }  # fmt: skip
    constants = {
        **weights.constants, "ROWS": at_once, "MASK_M": not divides(at_once, rows),
        "MASK_N": not divides(width * max(beside, 1), columns), "EPILOGUE": slots.function,
    }  # fmt: skip
    if beside:
        multiplied = x.dtype if target.dot_rate(x.dtype) > 1 else float32
        constants |= {
            "PANELS": beside, "MASK_PANEL": not divides(beside, panels), "TYPE": language_type(multiplied)
        }  # fmt: skip
    operands: dict[str, Operand] = {
        "x": x, "w": weights.codes, "scales": weights.scales, "zeros": weights.zeros, "out": slots.stored
    }  # fmt: skip
    types: dict[str, str] = {}
    bind_sizes(sizes, operands, types, constants)
    bind_extra(slots.extra, operands, types)
    grid = (ceil_divide(rows, at_once), ceil_divide(panels, max(beside, 1)), 1)
    condition = None if last else (rows, at_most)
    return KernelCall(many_rows if beside else few_rows, operands, types, constants, grid, condition)


def _bytes(value: Value) -> Size:
    """The memory of a tensor as kernels read it."""
    extents = [size for size in value.shape if isinstance(size, int)]
    if value.dtype.bits < 8 and len(extents) == value.rank:
        return value.dtype.packed_bytes(prod(extents))
    return tensor_bytes(value)
