"""Products by quantized weights on CPUs: how the weights are stored, and which kernel takes how many rows.

Few rows widen weights in registers as they read them, at the rate of memory; more rows widen blocks of the weights in
the caches, and multiply floats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, gcd, prod
from typing import Any

from tilewright.dtypes import float32, int4
from tilewright.graph.core import Graph, Value
from tilewright.graph.fusion import Group
from tilewright.graph.quantization import group_of
from tilewright.library.binding import bind_extra, bind_sizes, divides
from tilewright.library.candidate import Candidate, KernelCall, Operand, PackedConstant, Stage
from tilewright.library.cost import estimate
from tilewright.library.generated.elementwise import chain_operations, tensor_bytes
from tilewright.library.generated.source import ExtraReferences
from tilewright.library.matmul.dequantized_kernel import few_rows, few_rows_of_words, many_rows, rows_as_floats
from tilewright.library.packing import nibbles_recipe, panels_recipe, words_recipe
from tilewright.library.slots import Slots, epilogue_slots
from tilewright.symbolic import Size, ceil_divide, lift, product, simplify, upper_bound
from tilewright.targets.base import Target

MOST_LINES = 128  # of a panel, that are widened at once
_WORD_STEPS = 8  # of the depth in a word of 4-bit numbers
_WORD_VECTOR = 256  # bits of a vector, from which on words are widened in fewer instructions than bytes
_WIDENED = 1024  # numbers of rows that a program makes float32 of
_CHAINS = 4  # sums of a row that hide how long one addition takes; as many of all rows do
_SHARERS = 4  # programs for each thread, which are not all equally fast
# Rows at most, rows of a program, panels of it (0: the kernel of few rows).
_ROW_CONFIGS = ((1, 1, 0), (2, 2, 0), (8, 4, 0), (16, 16, 4), (64, 64, 4), (1 << 62, 128, 4))
# 8 bits cost less to widen than to store and read again.
_CONFIGS_OF_8_BITS = (
    *_ROW_CONFIGS[:3],
    (64, 6, 0),
    _ROW_CONFIGS[-1],
)
# Two steps of the depth take a multiply-add for each row, and widening three to six instructions for all of them.
_CONFIGS_IN_PAIRS = (*_ROW_CONFIGS[:2], (4, 4, 0), (64, 8, 0), _ROW_CONFIGS[-1])
# 4 bits that are looked up: a vector of weights takes two instructions for all rows, and one more for each.
_FEW_ROWS_OF_WORDS = ((1, 1, 0), (2, 2, 0), (4, 4, 0))
_CONFIGS_OF_WORDS = (*_FEW_ROWS_OF_WORDS, (32, 8, 0), *_ROW_CONFIGS[4:])
_CONFIGS_OF_COMPUTED_WORDS = (*_FEW_ROWS_OF_WORDS, (32, 6, 0), *_ROW_CONFIGS[4:])  # with 16 registers
_CONFIGS_OF_WORDS_IN_16_BITS = (*_FEW_ROWS_OF_WORDS, (16, 8, 0), *_ROW_CONFIGS[4:])


@dataclass(frozen=True)
class _Weights:
    """Weights as the kernels read them."""

    codes: PackedConstant
    scales: PackedConstant
    zeros: Operand
    constants: dict[str, Any]
    bits: int
    lines: int  # of a panel, of one step of the depth or of two in 4 bits each, that are widened at once
    in_words: bool  # eight numbers of 4 bits to a word
    looked_up: bool  # which are picked from a table in a register
    in_pairs: bool  # rows are bfloat16, of which two steps of the depth are multiplied at once


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
    first, widened = _widened(x, weights, target)
    made = [_call(widened, weights, slots, rows, columns, config, target, last)
            for config, last in _configs_of(simplify(rows), _configs(x, weights, target))]  # fmt: skip
    calls, buffers = [call for call, _ in made], tuple(numbers for _, numbers in made if numbers is not None)
    buffers += (widened,) if first else ()
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
    return [Candidate("product by quantized weights", (*first, Stage(tuple(calls))), cost, buffers, reasons)]


def lines_of(depth: int, group: int, bits: int, unit: int = 1) -> int | None:
    """The lines of a panel, of one step of the depth or of two in 4 bits each, that are widened at once: so many units
    that the depth is full of them, and that they are parts of a group or whole groups; None where pairs of 4 bits do
    not fit in."""
    parts = 8 // bits
    fitting = [
        lines
        for lines in range(unit, MOST_LINES + 1, unit)
        if depth % (lines * parts) == 0 and (group % lines == 0 or lines % group == 0)
    ]
    return max(fitting, default=None)


def _weights(inputs: list[Value | None], graph: Graph, target: Target) -> _Weights:
    x, w, scale, zero = (*inputs, None)[:4]
    assert x is not None and w is not None and scale is not None
    if any(item is not None and item not in graph.constants for item in (w, scale, zero)):
        raise NotImplementedError(f"the quantized weights {w!r} are no constants")
    width = target.microtile(float32)[1]
    group, bits = group_of(w, scale), w.dtype.bits
    depth = w.shape[1]
    assert isinstance(depth, int)
    in_words = bits == 4 and group % _WORD_STEPS == 0 and target.vector_bits >= _WORD_VECTOR
    lines = lines_of(depth, group, 8 if in_words else bits, _WORD_STEPS if in_words else 1)
    assert lines is not None
    panels = panels_recipe(width, True)
    recipe = panels
    if bits == 4:
        recipe = words_recipe(width, w.dtype) if in_words else nibbles_recipe(width, 2 * lines, w.dtype)
    scales = PackedConstant(scale, panels)
    zeros = scales if zero is None else PackedConstant(zero, panels)
    constants = {"GROUP": group, "WIDTH": width, "ZERO": 8 if w.dtype == int4 else 0, "ZEROS": zero is not None}
    in_pairs = target.panel_group(x.dtype, 1, gcd(group, lines)) == 2
    looked_up = target.table_lanes == 1 << bits
    return _Weights(PackedConstant(w, recipe), scales, zeros, constants, bits, lines, in_words, looked_up, in_pairs)


def _configs(x: Value, weights: _Weights, target: Target) -> Sequence[tuple[int, int, int]]:
    """The kernels for all numbers of rows."""
    if weights.in_pairs:
        return _CONFIGS_IN_PAIRS
    if weights.in_words and not weights.looked_up:
        return _CONFIGS_OF_COMPUTED_WORDS
    if weights.in_words:
        return _CONFIGS_OF_WORDS_IN_16_BITS if target.dot_rate(x.dtype) > 1 else _CONFIGS_OF_WORDS
    if weights.bits == 4 or target.dot_rate(x.dtype) > 1:
        return _ROW_CONFIGS
    return _CONFIGS_OF_8_BITS


def _configs_of(rows: Size, configs: Sequence[tuple[int, int, int]]) -> list[tuple[tuple[int, int, int], bool]]:
    """The kernels for numbers of rows that can occur, and whether it is the last one."""
    if isinstance(rows, int):
        return [(next(config for config in configs if rows <= config[0]), True)]
    most = max(1, upper_bound(rows))
    count = next(number for number, config in enumerate(configs, 1) if most <= config[0])
    return [(config, number == count) for number, config in enumerate(configs[:count], 1)]


def _widened(x: Value, weights: _Weights, target: Target) -> tuple[tuple[Stage, ...], Value]:
    """Rows as float32, and the stage that makes them: each program of few rows reads all numbers one by one, and
    widening one takes as long as multiplying it by a panel."""
    if x.dtype.bits != 16 or weights.in_pairs or target.dot_rate(x.dtype) > 1:
        return (), x
    elements, wide = product(x.shape), Value(f"{x.name}.floats", float32, x.shape)
    constants: dict[str, Any] = {"BLOCK": _WIDENED, "MASK": not divides(_WIDENED, elements)}
    operands: dict[str, Operand] = {"x": x, "out": wide}
    types: dict[str, str] = {}
    bind_sizes({"elements": elements}, operands, types, constants)
    grid = (ceil_divide(elements, _WIDENED), 1, 1)
    return (Stage((KernelCall(rows_as_floats, operands, types, constants, grid),)),), wide


def _rows_at_once(rows: Size, most: int) -> int:
    """Rows of a program, at most so many and more than half of that, that leave the least in the last one."""
    if not isinstance(rows, int) or not rows:
        return most
    return min(range(most, most // 2, -1), key=lambda count: ceil(rows / count) * count)


def _call(
    x: Value, weights: _Weights, slots: Slots, rows: Size, columns: Size, config: tuple[int, int, int], target: Target,
    last: bool,
) -> tuple[KernelCall, Value | None]:  # fmt: skip
    """The launch for up to so many rows, and the temporary for weights as floats, if it has one."""
    at_most, at_once, neighbours = config
    at_once = _rows_at_once(rows, at_once)
    width, lines, group = weights.constants["WIDTH"], weights.lines, weights.constants["GROUP"]
    panels, depth = ceil_divide(columns, width), x.shape[-1]
    while neighbours > 1 and isinstance(panels, int) and panels // neighbours < 2 * target.machine().processors:
        neighbours //= 2
    sizes: dict[str, Size] = {
        "rows": rows, "columns": columns, "depth": depth, "x_row": depth, "c_row": columns
    }  # fmt: skip
    constants = {
        **weights.constants, "ROWS": at_once, "MASK_M": not divides(at_once, rows),
        "MASK_N": not divides(width * max(neighbours, 1), columns), "EPILOGUE": slots.function,
    }  # fmt: skip
    operands: dict[str, Operand] = {
        "x": x, "w": weights.codes, "scales": weights.scales, "zeros": weights.zeros, "out": slots.stored
    }  # fmt: skip
    # A number that one product alone reads is its operand; for two vectors it would be shuffled into a register.
    # One row by 8 bits waits for memory, which is best read from one end to the other.
    halved = target.shuffles_broadcasts and (weights.bits == 4 or at_once > 1)
    lanes = width // 2 if halved else width
    chains = max(1, min(_CHAINS, _CHAINS * width // lanes // at_once))
    across, numbers = panels, None
    if neighbours:
        across = _sharers(ceil_divide(panels, neighbours), target)
        kernel = many_rows
        # Codes of 8 bits are numbers of bfloat16 as they are.
        is_scaled = not weights.in_pairs or weights.bits < 8 or group != depth
        constants |= {"BITS": weights.bits, "HALF": lines, "PANELS": neighbours, "WORDS": weights.in_words}
        constants |= {"LOOKUP": weights.looked_up}
        constants |= {"PAIRS": weights.in_pairs, "SCALED": is_scaled}
        programs = simplify(lift(ceil_divide(rows, at_once)) * across)
        multiplied = x.dtype if target.dot_rate(x.dtype, 2 if weights.in_pairs else 1) > 1 else float32
        name = f"{slots.stored.name}.numbers{at_most if last is False else ''}"
        operands["numbers"] = numbers = Value(name, multiplied, (programs, neighbours * lines * width))
    elif weights.in_words:
        kernel = few_rows_of_words
        constants |= {"LANES": lanes, "CHAINS": chains, "LOOKUP": weights.looked_up, "PAIRS": weights.in_pairs}
    else:
        kernel = few_rows
        steps = min(group, lines) // (2 if weights.in_pairs else 1)
        constants |= {"BITS": weights.bits, "HALF": lines, "LANES": lanes, "CHAINS": gcd(steps, chains)}
        constants["PAIRS"] = weights.in_pairs
    types: dict[str, str] = {}
    bind_sizes(sizes, operands, types, constants)
    bind_extra(slots.extra, operands, types)
    grid = (ceil_divide(rows, at_once), across, 1)
    condition = None if last else (rows, at_most)
    return KernelCall(kernel, operands, types, constants, grid, condition), numbers


def _sharers(blocks: Size, target: Target) -> Size:
    """How many programs share blocks of panels equally."""
    if not isinstance(blocks, int):
        return blocks
    return ceil(blocks / ceil(blocks / (_SHARERS * target.machine().processors)))


def _bytes(value: Value) -> Size:
    """The memory of a tensor as kernels read it."""
    extents = [size for size in value.shape if isinstance(size, int)]
    if value.dtype.bits < 8 and len(extents) == value.rank:
        return value.dtype.packed_bytes(prod(extents))
    return tensor_bytes(value)
