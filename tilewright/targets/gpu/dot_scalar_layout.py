"""Layouts of products by multiply-add (`dot_scalar.py`): rectangles of the result per thread.

An element of A serves as often as a thread has columns, one of B as often as it has rows, so that rectangles near a
square need the fewest loads from shared memory: 8 x 8 sums take 16 numbers for 64 multiply-adds.  Operands that a loop
copies ahead stay in shared memory; a thread holds all of the rows and columns that its sums need, in registers that are
loaded, up to 16 bytes at once, when the product comes to them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tilewright.ir.core import Operation, SSAValue
from tilewright.layout import LinearLayout
from tilewright.layout.distributed import on_threads
from tilewright.passes.axis_info import AxisInfo
from tilewright.targets.gpu.accesses import access_facts, item_size, load_of
from tilewright.targets.gpu.assigner import Assigner
from tilewright.targets.gpu.transfer import is_padded, padded

_RUN = 4  # neighbours that a thread reads at once
_LANE_COLUMNS = 8  # lanes side by side: with 16 bytes each they read all banks once
_MOST_UNROLLED_PRODUCTS = 8192  # multiply-adds of a thread that are written out one by one
_THREADS = ("lane", "warp")


@dataclass(frozen=True)
class ScalarLayouts:
    """The layouts of A, B and the accumulator of a product by multiply-add whose operands are copied ahead."""

    a: LinearLayout
    b: LinearLayout
    accumulator: LinearLayout


def scalar_layout(shape: tuple[int, ...], lanes: int, warps: int, runs: tuple[int, int] = (1, _RUN)) -> LinearLayout:
    """The accumulator of a product by multiply-add.

    A thread has `runs` neighbouring rows and columns; then come the lanes, then what more the thread has, then the
    warps.  So lanes side by side read neighbouring vectors, and those below each other neighbouring rows, which a
    swizzle keeps apart.
    """
    extents = padded(shape)
    rank = len(extents)
    elements = _shared_out(extents, max(1, prod(extents) // (lanes * warps)), (_RUN, _RUN, 2 * _RUN, 2 * _RUN))
    room = [extent // own for extent, own in zip(extents, elements, strict=True)]
    spread = _shared_out(room, min(lanes, prod(room)), (_LANE_COLUMNS,))
    first = [min(run, own) for run, own in zip(((1,) * rank + runs)[-rank:], elements, strict=True)]
    steps = (
        ("register", first),
        ("lane", spread),
        ("register", [own // run for own, run in zip(elements, first, strict=True)]),
        ("warp", [extent // own for extent, own in zip(room, spread, strict=True)]),
    )
    bases: dict[str, list[list[int]]] = {"register": [], "lane": [], "warp": [], "block": []}
    reached = [1] * rank
    for name, counts in steps:
        for axis in range(rank - 1, -1, -1):
            for _ in range(counts[axis].bit_length() - 1):
                bases[name].append([reached[axis] if other == axis else 0 for other in range(rank)])
                reached[axis] *= 2
    return on_threads(LinearLayout.make(bases, extents), lanes, warps)


def _shared_out(room: Sequence[int], count: int, limits: Sequence[int]) -> list[int]:
    """`count` as a product of one factor for each axis that its room allows.

    Columns and rows in turn get up to the `limits`, and then whatever there is room for, from the last axis on.
    """
    rank = len(room)
    factors = [1] * rank
    growth_order = [(rank - 1 - turn % min(2, rank), limit) for turn, limit in enumerate(limits)]
    growth_order += [(axis, room[axis]) for axis in (*range(rank - 2, rank), *range(rank - 3, -1, -1)) if axis >= 0]
    for axis, limit in growth_order:
        while count > 1 and factors[axis] < min(limit, room[axis]):
            factors[axis] *= 2
            count //= 2
    return factors


def multiply_add(assigner: Assigner, operation: Operation) -> None:
    """The layout rule: operands that loops copy ahead as the sums need them, others where they are."""
    operands, accumulator = operation.operands[:2], operation.operands[2]
    layouts = copied_layouts(operation, assigner.lanes, assigner.warps, assigner.facts) if assigner.copied else None
    if layouts is None:
        layout = scalar_layout(accumulator.type.shape, assigner.lanes, assigner.warps)
        assigner.require(operation, [*map(assigner.settle, operands), layout])
    else:
        layout = layouts.accumulator
        for load in map(load_of, operands):
            if load and load.result in assigner.open:  # copied as memory has them, small ones too
                assigner.demand(load.result, assigner.coalesced(load))
        assigner.operands |= {layouts.a, layouts.b}
        assigner.require(operation, [layouts.a, layouts.b, layout])
    assigner.anchor(operation.result, layout)


def copied_layouts(
    operation: Operation, lanes: int, warps: int, facts: Mapping[SSAValue, AxisInfo]
) -> ScalarLayouts | None:
    """Layouts for operands that come from memory as they are; None where they do not, or are too large."""
    a, b, accumulator = operation.operands
    loads = [load_of(value) for value in (a, b)]
    blocks = all(value.type.rank == 2 and is_padded(value.type.shape) for value in (a, b))
    depth = a.type.shape[-1]
    if None in loads or not blocks or depth * accumulator.type.size > _MOST_UNROLLED_PRODUCTS * lanes * warps:
        return None
    axes = [_memory_axis(value, load, facts) for value, load in zip((a, b), loads, strict=True) if load is not None]
    runs = (_RUN if axes[0] == 0 else 1, _RUN if axes[1] == 1 else 1)
    layout = scalar_layout(accumulator.type.shape, lanes, warps, runs)
    return ScalarLayouts(
        scalar_operand(layout, 0, depth, runs[0] > 1), scalar_operand(layout, 1, depth, runs[1] > 1), layout
    )


def _memory_axis(value: SSAValue, load: Operation, facts: Mapping[SSAValue, AxisInfo]) -> int:
    """The axis of a block along which it lies in memory, as its tile in shared memory does."""
    known, size = access_facts(load, facts), item_size(load)
    axis = max((0, 1), key=lambda candidate: (known.run(candidate, size), candidate))
    turned, operation = False, value.definition
    while operation is not None and operation is not load:
        turned ^= operation.attributes["order"] == (1, 0)
        operation = operation.operands[0].definition
    return axis ^ turned


def scalar_operand(accumulator: LinearLayout, axis: int, depth: int, along: bool) -> LinearLayout:
    """All of the rows (`axis` 0, operand A) or columns (1, operand B) of a thread's sums.

    The first registers run `along` them or along the depth, as the operand does in memory.
    """
    own = {
        name: [_placed(axis, vector[axis], 0) for vector in accumulator.vectors(name)]
        for name in accumulator.input_names
    }
    registers = [vector for vector in own["register"] if any(vector)]
    deep = [_placed(axis, 0, 1 << bit) for bit in range(depth.bit_length() - 1)]
    count = _RUN.bit_length() - 1 if along else 0
    own["register"] = [*registers[:count], *deep, *registers[count:]]
    extents = _placed(axis, accumulator.shape[axis], depth)
    return LinearLayout.make(own, extents)


def _placed(axis: int, along: int, deep: int) -> tuple[int, int]:
    """Coordinates of an operand: of A rows and depth, of B depth and columns."""
    return (along, deep) if axis == 0 else (deep, along)


def in_registers(a: LinearLayout, b: LinearLayout, accumulator: LinearLayout) -> bool:
    """Whether each thread holds all of the rows of A and the columns of B that its sums need."""
    if len(accumulator.shape) != 2:
        return False

    def follows(operand: LinearLayout, axis: int) -> bool:
        wanted = [_placed(axis, vector[axis], 0) for name in _THREADS for vector in accumulator.vectors(name)]
        return wanted == [vector for name in _THREADS for vector in operand.vectors(name)]

    return follows(a, 0) and follows(b, 1)
