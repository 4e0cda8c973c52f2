"""How much memory moves when a block of a tensor is read or written: whole sectors, of which it may use a part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tilewright.library.cost import MEMORY_SECTOR, expected
from tilewright.library.generated.index import Bounded, Coordinate, Division, Index
from tilewright.symbolic import Size

_LONG = 8 * MEMORY_SECTOR  # of a run whose ends count no more


def covered_by(shape: Sequence[Size], elements: int) -> dict[int, int]:
    """By axis, how many of its elements a block of so many neighbours in row-major order has."""
    found: dict[int, int] = {}
    for axis in reversed(range(len(shape))):
        extent = expected(shape[axis])
        found[axis] = max(1, min(extent, elements))
        elements = -(-elements // max(1, extent))
    return found


def times_used(index: Index, covered: Mapping[int, int], itemsize: int) -> float:
    """How many bytes of sectors are moved for each byte of a block that is needed: 1 where its elements are neighbours.

    `covered`: how many elements the block has along each loop axis.
    """
    steps = sorted((step, extent) for step, extent in _steps(index, covered) if extent > 1)
    span, used = 1, 1  # of the run that lies together: its elements, and those that are needed
    for step, extent in steps:
        if (step - span) * itemsize >= MEMORY_SECTOR:
            break
        span, used = max(span, step * (extent - 1) + span), used * extent
    size = span * itemsize
    if size < _LONG:
        size = -(-size // MEMORY_SECTOR) * MEMORY_SECTOR
    return max(1.0, size / (min(used, span) * itemsize))


def _steps(index: Index, covered: Mapping[int, int]) -> Iterator[tuple[int, int]]:
    """How far apart elements are along each loop axis, and how many of them there are."""
    for atom, coefficient in index.terms:
        step = expected(coefficient) if not isinstance(coefficient, int) else abs(coefficient)
        if isinstance(atom, Coordinate):
            yield step, covered.get(atom.axis, 1)
        elif isinstance(atom, Bounded):
            yield from ((step * inner, extent) for inner, extent in _steps(atom.index, covered))
        elif isinstance(atom, Division):
            divisor = expected(atom.divisor)
            for inner, extent in _steps(atom.index, covered):
                if atom.remainder:
                    yield step * inner, min(extent, max(1, divisor // max(1, inner)))
                else:
                    yield step * max(1, inner // divisor), -(-extent * max(1, inner) // divisor)
