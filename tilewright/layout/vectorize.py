"""Memory accesses: the widest access of a thread in a layout, and the preferred layout of an access.

The facts of an access are plain numbers for each axis of the block of pointers, as `passes/axis_info.py` finds them
(all powers of two):

    contiguity     in aligned runs of this many elements, each pointer is the one before plus one element
    divisibility   of the first pointer of each run, in bytes
    of the mask    its constancy: in aligned runs of this many elements, all lanes are on or all are off

A thread moves a vector when its elements are a run's, at an aligned address, under one bit of the mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tilewright.layout.distributed import Blocked
from tilewright.layout.gf2 import combine
from tilewright.layout.linear import LinearLayout, log2

ACCESS_BYTES = 16  # the widest access of a thread


@dataclass(frozen=True)
class Facts:
    """What is known of the pointers of an access, and of its mask (None: no mask)."""

    contiguity: tuple[int, ...]
    divisibility: tuple[int, ...]
    mask_constancy: tuple[int, ...] | None = None

    def run(self, axis: int, element_bytes: int) -> int:
        """Elements along an axis that may be moved at once, as far as memory goes (at most 16 bytes)."""
        run = min(self.contiguity[axis], max(1, self.divisibility[axis] // element_bytes))
        if self.mask_constancy is not None:
            run = min(run, self.mask_constancy[axis])
        return min(run, max(1, ACCESS_BYTES // element_bytes))


@dataclass(frozen=True)
class VectorAccess:
    """The instructions of an access: each group of registers is one, in the order of memory along `axis`."""

    axis: int
    groups: tuple[tuple[int, ...], ...]

    @property
    def width(self) -> int:
        return len(self.groups[0])

    def __str__(self) -> str:
        return f"{len(self.groups)} accesses of {self.width} elements along dim{self.axis}"


def widest_access(layout: LinearLayout, facts: Facts, element_bytes: int) -> VectorAccess:
    """The widest vectors that the registers of a layout and the facts allow; of equal ones along the axis along which
    memory is contiguous.

    A register that repeats another's element is not accessed (stores would write twice, loads are copied).
    """
    rank = len(layout.shape)
    widths = [min(_neighbours(layout, axis), facts.run(axis, element_bytes)) for axis in range(rank)]
    axis = max(range(rank), key=lambda each: (widths[each], facts.contiguity[each], each), default=0)
    if not rank:
        return VectorAccess(0, ((0,),))
    return VectorAccess(axis, _groups(layout, axis, widths[axis]))


def _neighbours(layout: LinearLayout, axis: int) -> int:
    """Aligned runs of this many elements along an axis lie in the registers of one thread."""
    stride = prod(layout.shape[axis + 1 :])
    count = 1
    while count < layout.shape[axis]:
        unit = count * stride
        holders = [(name, vector) for name, vectors in layout.inputs for vector in vectors if vector & unit]
        if holders != [("register", unit)]:
            break
        count *= 2
    return count


def _groups(layout: LinearLayout, axis: int, width: int) -> tuple[tuple[int, ...], ...]:
    """Registers, `width` neighbours along the axis to a group; one register for every element."""
    registers = layout.bases("register")
    stride = prod(layout.shape[axis + 1 :])
    fast = [registers.index(stride << bit) for bit in range(log2(width))]
    distinct = layout.without_repeats().bases("register")
    slow = [registers.index(vector) for vector in distinct if registers.index(vector) not in fast]
    run = [combine([1 << bit for bit in fast], member) for member in range(width)]
    starts = [combine([1 << bit for bit in slow], number) for number in range(1 << len(slow))]
    return tuple(tuple(start | member for member in run) for start in starts)


def coalesce(shape: Sequence[int], facts: Facts, element_bytes: int, warps: int, lanes: int = 32) -> Blocked:
    """The blocked layout for an access: 16 bytes to a thread along the axis of the longest run, its lanes side by side.

    Threads get fewer bytes where the block has not enough elements to give every thread that many.  Axes follow each
    other by the length of their runs; of equal ones the last is the fastest.
    """
    rank = len(shape)
    order = tuple(
        sorted(range(rank), key=lambda axis: (-facts.run(axis, element_bytes), -facts.contiguity[axis], -axis))
    )
    elements, lane_counts, warp_counts = [1] * rank, [1] * rank, [1] * rank
    if rank:
        each = max(1, prod(shape) // (lanes * warps))
        elements[order[0]] = min(facts.run(order[0], element_bytes), each, shape[order[0]])
    _spread(lane_counts, lanes, [extent // own for extent, own in zip(shape, elements, strict=True)], order)
    left = [extent // own // used for extent, own, used in zip(shape, elements, lane_counts, strict=True)]
    _spread(warp_counts, warps, left, order)
    return Blocked(tuple(elements), tuple(lane_counts), tuple(warp_counts), order)


def _spread(counts: list[int], number: int, room: Sequence[int], order: Sequence[int]) -> None:
    """Share `number` out over the axes, the fastest first, as each has room; what is left goes to the last one."""
    for axis in order:
        counts[axis] = min(number, max(1, room[axis]))
        number //= counts[axis]
    if order:
        counts[order[-1]] *= number
