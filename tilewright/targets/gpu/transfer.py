"""Propagation of layouts through operations, and the cost of accesses and conversions: pure functions of layouts.

Extents that are no powers of two are rounded up: the layout of a 64 x 224 block is one of 64 x 256, of which the
registers that hold an element of the real block in some thread exist (`layout.live_registers`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod

from tilewright.ir.core import Operation, SSAValue
from tilewright.layout import (
    Blocked,
    Facts,
    LinearLayout,
    Plan,
    coalesce,
    joined,
    plan_conversion,
    slice_of,
    split,
    widest_access,
)
from tilewright.layout.distributed import next_power_of_two, on_threads
from tilewright.layout.gf2 import rank
from tilewright.passes.axis_info import AxisInfo

SECTOR_BYTES = 32  # what memory moves at least
_EXCHANGE_BYTES = 48 << 10  # of shared memory for one conversion, where steps allow it
_THREAD_BYTES = 32  # of one access of a thread: two vectors, so that lanes still share sectors
_LANE_STEP, _WARP_STEP = 5.0, 8.0  # of a scan, for a block of registers: a shuffle, choices, combinations
_WRITTEN_BYTES = 16  # of what is stored: each vector goes to memory by itself, and two of them fill sectors in halves


def padded(shape: Sequence[int]) -> tuple[int, ...]:
    """Extents rounded up to powers of two."""
    return tuple(next_power_of_two(extent) for extent in shape)


def is_padded(shape: Sequence[int]) -> bool:
    """Whether all extents are powers of two already."""
    return padded(shape) == tuple(shape)


@lru_cache(maxsize=1024)
def default_layout(shape: tuple[int, ...], itemsize: int, warps: int, lanes: int) -> LinearLayout:
    """Up to 16 bytes of neighbours along the last axis to a thread, threads side by side.

    Of extents that are no powers of two, threads share out the power of two that divides them, and each has all of the
    multiples: no thread has elements that do not exist, but for whole registers.
    """
    extents, even = padded(shape), tuple(extent & -extent for extent in shape)
    runs = even if even == extents else (*(1,) * (len(even) - 1), even[-1])
    facts = Facts(runs, (16,) * len(even))
    layout = on_threads(coalesce(even, facts, itemsize, warps, lanes).layout(even), lanes, warps)
    if even == extents:
        return layout
    bases = {name: list(layout.vectors(name)) for name in layout.input_names}
    for axis, (part, extent) in enumerate(zip(even, extents, strict=True)):
        while part < extent:
            bases["register"].append(tuple(part if other == axis else 0 for other in range(len(extents))))
            part *= 2
    return LinearLayout.make(bases, extents)


@lru_cache(maxsize=1024)
def blocked_layout(
    shape: tuple[int, ...], axis: int, elements: int, warps: int, lanes: int, combined: int | None = None,
    scanned: int | None = None,
) -> LinearLayout:  # fmt: skip
    """`elements` neighbours along `axis` to a thread, its lanes side by side along it, then along the last axis.

    Warps follow the lanes; but along the axis `combined`, which the kernel reduces, only when the others are full.
    Along an axis `scanned` a thread has neighbours: what it scans by itself needs no exchange.
    """
    extents = padded(shape)
    runs = tuple(elements if position == axis else 1 for position in range(len(extents)))
    contiguity = tuple(extent if position == axis else 1 for position, extent in enumerate(extents))
    each = 1
    if scanned is not None and scanned != axis:
        each = max(1, min(extents[scanned], prod(extents) // (lanes * warps * min(elements, extents[axis]))))
    fewer = tuple(extent // each if position == scanned else extent for position, extent in enumerate(extents))
    blocked = coalesce(fewer, Facts(contiguity, runs), 1, warps, lanes)
    if combined is not None:
        blocked = replace(blocked, warps=_warp_counts(blocked, fewer, combined, warps))
    if each > 1:
        own = (count * each if position == scanned else count for position, count in enumerate(blocked.elements))
        blocked = replace(blocked, elements=tuple(own))
    return on_threads(blocked.layout(extents), lanes, warps)


def _warp_counts(blocked: Blocked, extents: Sequence[int], combined: int, warps: int) -> tuple[int, ...]:
    """The warps along each axis; along `combined` only those for which the others have no room."""
    order = (*(other for other in blocked.order if other != combined), combined)
    counts, left = [1] * len(extents), warps
    for place in order:
        room = extents[place] // (blocked.elements[place] * blocked.lanes[place])
        counts[place] = min(left, max(1, room))
        left //= counts[place]
    counts[combined] *= left
    return tuple(counts)


def facts_of(pointer: AxisInfo, mask: AxisInfo | None) -> Facts:
    """The facts of an access."""
    return Facts(pointer.contiguity, pointer.divisibility, None if mask is None else mask.constancy)


def fastest_axis(facts: Facts, itemsize: int) -> int:
    """The axis along which the pointers of an access run."""
    axes = range(len(facts.contiguity))
    return min(axes, key=lambda axis: (-facts.run(axis, itemsize), -facts.contiguity[axis], -axis))


def common_width(runs: Sequence[tuple[int, int, bool]]) -> int:
    """Elements to a thread for accesses of one shape that run along one axis, given (run, item size, stored) of each.

    The widest of them, but no more than `_THREAD_BYTES` of the widest element type, `_WRITTEN_BYTES` of stored ones.
    """
    most = min((_WRITTEN_BYTES if stored else _THREAD_BYTES) // size for _, size, stored in runs)
    return max(1, min(max(run for run, _, _ in runs), most))


def reshapes_bits(before: Sequence[int], after: Sequence[int]) -> bool:
    """Whether a reshape only divides the bits of row-major numbers among other axes, rounded up as blocks are.

    So do reshapes of powers of two, and those of any extent into powers of two and what is left in front of them:
    64 x 80 to 64 x 10 x 8, not to 64 x 8 x 10.
    """
    left, right = list(before), list(after)
    while left and right:
        axes = [left.pop()], [right.pop()]
        while prod(axes[0]) != prod(axes[1]):
            small = prod(axes[0]) > prod(axes[1])
            if not (left, right)[small]:
                return False
            axes[small].append((left, right)[small].pop())
        if axes[0] != axes[1] and not all(is_padded(group[:-1]) for group in axes):
            return False
    return all(extent == 1 for extent in (*left, *right))


def moves_by_registers(operation: Operation) -> bool:
    """Whether a shape operation only gives other names to registers."""
    shapes = [value.type.shape for value in (*operation.operands, *operation.results)]
    if operation.opcode == "reshape":
        return reshapes_bits(shapes[0], shapes[1])
    if operation.opcode == "join":
        return bool(operation.operands[0].type.rank)
    if operation.opcode == "split":
        return operation.operands[0].type.rank > 1
    if operation.opcode == "cat":
        equal = len({value.type.shape for value in operation.operands}) == 1
        return equal and is_padded(shapes[0]) and is_padded(shapes[-1])
    return True


# Operands from results ---------------------------------------------------------------------------


def folded(layout: LinearLayout, shape: Sequence[int]) -> LinearLayout:
    """The layout of the operand of a broadcast: coordinates along its axes of extent 1 are forgotten."""
    extents = padded(shape)
    bases = {
        name: [
            [c if extent > 1 else 0 for c, extent in zip(vector, extents, strict=True)]
            for vector in layout.vectors(name)
        ]
        for name in layout.input_names
    }
    return LinearLayout.make(bases, extents).without_repeats()


def operand_layout(operation: Operation, number: int, layout: LinearLayout) -> LinearLayout | None:
    """Where operand `number` of an operation that moves no data has to be, for the result to be in `layout`.

    None for an operand that is no block.  Raises `ValueError` when no layout of the operand does it.
    """
    operand, opcode = operation.operands[number], operation.opcode
    if operand.type.is_scalar:
        return None
    if opcode == "expand_dims":
        return layout.reshape(padded(operand.type.shape))
    if opcode == "broadcast":
        return folded(layout, operand.type.shape)
    if opcode == "reshape":
        return layout.reshape(padded(operand.type.shape))
    if opcode == "permute":
        order = operation.attributes["order"]
        assert isinstance(order, tuple)
        inverse = [order.index(axis) for axis in range(len(order))]
        return _renamed(layout.permute(inverse))
    if opcode == "join":
        halves = split(layout)
        if halves is None:
            raise ValueError(f"{layout} does not keep both halves in one thread")
        return halves[0]
    if opcode == "cat":
        return halved(layout, operation.attributes["axis"], len(operation.operands))  # type: ignore[arg-type]
    if opcode == "split":
        return _stacked(layout)
    return layout


def result_layout(operation: Operation, layout: LinearLayout) -> LinearLayout:
    """Where the result of a shape operation is when its first operand is in `layout` and nothing is moved.

    Raises `ValueError` for halves that are not in one thread.
    """
    opcode, result = operation.opcode, operation.results[0]
    if opcode in ("expand_dims", "reshape"):
        return layout.reshape(padded(result.type.shape))
    if opcode == "permute":
        order = operation.attributes["order"]
        assert isinstance(order, tuple)
        return _renamed(layout.permute([axis for axis in order if isinstance(axis, int)]))
    if opcode == "join":
        return joined(layout)
    if opcode == "split":
        halves = split(layout)
        if halves is None:
            raise ValueError(f"{layout} does not keep both halves in one thread")
        return halves[0]
    if opcode == "cat":
        return extended(layout, operation.attributes["axis"], len(operation.operands))  # type: ignore[arg-type]
    return layout


def _renamed(layout: LinearLayout) -> LinearLayout:
    return LinearLayout(layout.inputs, tuple((f"dim{axis}", extent) for axis, extent in enumerate(layout.shape)))


def _stacked(layout: LinearLayout) -> LinearLayout:
    """Two blocks of a layout along a new last axis: the highest register bit tells them apart, so that registers that
    one instruction computes stay neighbours."""
    bases = {name: [(*vector, 0) for vector in layout.vectors(name)] for name in layout.input_names}
    bases["register"].append((*(0 for _ in layout.shape), 1))
    return LinearLayout.make(bases, (*layout.shape, 2))


def extended(layout: LinearLayout, axis: int, count: int) -> LinearLayout:
    """`count` blocks (a power of two) one after the other along an axis: the highest register bits tell them apart."""
    shape = [extent * count if position == axis else extent for position, extent in enumerate(layout.shape)]
    bases = {name: list(layout.vectors(name)) for name in layout.input_names}
    step = layout.shape[axis]
    while step < shape[axis]:
        bases["register"].append(tuple(step if position == axis else 0 for position in range(len(shape))))
        step *= 2
    return LinearLayout.make(bases, shape)


def halved(layout: LinearLayout, axis: int, count: int) -> LinearLayout:
    """The layout of one of the blocks that `extended` puts together; `ValueError` when it did not."""
    shape = [extent // count if position == axis else extent for position, extent in enumerate(layout.shape)]
    bits = count.bit_length() - 1
    registers = layout.vectors("register")
    bases = {name: layout.vectors(name) for name in layout.input_names}
    bases["register"] = registers[: len(registers) - bits]
    try:
        part = LinearLayout.make(bases, shape)
    except ValueError:
        raise ValueError(f"{layout} does not keep {count} blocks along dim{axis} apart by registers") from None
    if extended(part, axis, count) != layout:
        raise ValueError(f"{layout} does not keep {count} blocks along dim{axis} apart by registers")
    return part


def gathered(layout: LinearLayout, axis: int, elements: int) -> LinearLayout:
    """A layout whose threads have `elements` neighbours along an axis (a power of two), as near to this one as may be:
    lanes that had them give them up for registers with others further on, so that shuffles do it.

    The same layout where that cannot be.
    """
    registers, lanes = list(layout.vectors("register")), list(layout.vectors("lane"))
    steps = [1 << bit for bit in range(elements.bit_length() - 1)]
    wanted = [tuple(step if place == axis else 0 for place in range(len(layout.shape))) for step in steps]
    further = [vector for vector in registers if vector[axis] >= elements and sum(vector) == vector[axis]]
    for vector in wanted:
        if vector in lanes and further:
            given = further.pop(0)
            lanes[lanes.index(vector)] = given
            registers[registers.index(given)] = vector
        elif vector not in registers:
            return layout
    registers = wanted + [vector for vector in registers if vector not in wanted]
    bases = {name: list(layout.vectors(name)) for name in layout.input_names}
    return LinearLayout.make({**bases, "register": registers, "lane": lanes}, layout.shape)


def reduced(layout: LinearLayout, axis: int) -> LinearLayout:
    """Where a reduction leaves its results."""
    return slice_of(layout, axis)


def separable(layout: LinearLayout, axis: int) -> bool:
    """Whether every input bit moves along the axis or along others, and no two bits along the axis do the same."""
    along = []
    for name in layout.input_names:
        for vector in layout.vectors(name):
            if vector[axis]:
                if any(c for position, c in enumerate(vector) if position != axis):
                    return False
                along.append(vector[axis])
    return rank(along) == len(along)


# Costs -------------------------------------------------------------------------------------------


def element_bits(value: SSAValue) -> int:
    """Bits of an element in a register; a truth value travels as a byte."""
    return max(8, value.type.element.bits)


def conversion_cost(source: LinearLayout, target: LinearLayout, bits: int) -> float:
    """Cycles of a warp."""
    return 0.0 if source == target else conversion_plan(source, target, bits).cost


def conversion_plan(source: LinearLayout, target: LinearLayout, bits: int) -> Plan:
    """How blocks of elements of `bits` bits change their layout; large ones in steps through little memory."""
    return plan_conversion(source, target, bits, _EXCHANGE_BYTES)


def scan_cost(layout: LinearLayout, axis: int) -> float:
    """About the cycles of a warp for a scan of one operand: bits of the coordinate follow each other from the lowest,
    and what is known of blocks of registers is handed over between lanes, then between warps."""
    along = [(vector[axis], name) for name in layout.input_names for vector in layout.vectors(name) if vector[axis]]
    registers = blocks = layout.size("register")
    cost = 0.0
    for _, name in sorted(along):
        if name == "register":
            blocks //= 2
        cost += {"register": registers / 2, "lane": blocks * _LANE_STEP, "warp": blocks * _WARP_STEP}[name]
    return cost + registers


@lru_cache(maxsize=4096)
def access_cost(layout: LinearLayout, facts: Facts, itemsize: int, written: bool = False) -> float:
    """Cycles of a warp for the accesses of a block: one for each instruction and each four sectors.

    Sectors that are written in part count twice: products stored as they come, 16 bytes at once, took longer than with
    shuffles before them (H200, 128 x 256 of 16 bits: 8 percent of a product of depth 4096).
    """
    access = widest_access(layout, facts, itemsize)
    run, stride = access.width, prod(layout.shape[access.axis + 1 :])
    moving = [vector for vector in layout.bases("lane") if vector]
    while run * stride in moving and run < facts.contiguity[access.axis]:
        run *= 2
    lane_bytes = access.width * itemsize << len(moving)
    piece = min(SECTOR_BYTES, run * itemsize)
    sectors = lane_bytes / piece * (2 if written and piece < SECTOR_BYTES else 1)
    return len(access.groups) * (1.0 + sectors / 4)
