"""How accesses walk memory: which loop variables follow each other without a gap, and loop spaces in which the fastest
ones of what is written, and of what is read in another order, are one variable each.

    image [n, c, z, y * x]  ->  [n, z, y * x, c * taps]         channels of 3 taps, `tap` the fastest variable
    read:     y * x, z, …                      rows of a tile
    written:  tap, c, y * x, …                 columns of a tile: c * taps + tap, of which read places take quotients
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.library.cost import MEMORY_SECTOR
from tilewright.library.generated.index import Index, coordinate, flatten, unflatten
from tilewright.library.generated.source import LoopVariable
from tilewright.symbolic import Size, lift, product, simplify

_RUN_BYTES = 128  # that a tile should have side by side at either end


def walk_of(index: Index, variables: Sequence[LoopVariable]) -> list[int]:
    """The positions of the variables along which places follow each other without a gap, the fastest first."""
    found: list[int] = []
    inner = [nested for nested in index.nested() if nested is not index]
    step: Size = 1
    while True:
        following = [
            position
            for position, variable in enumerate(variables)
            if position not in found
            and index.coefficient(variable.axes[-1]) == step
            and not any(nested.coefficient(variable.axes[-1]) != 0 for nested in inner)
        ]
        if len(following) != 1:
            return found
        found.append(following[0])
        step = simplify(lift(step) * variables[following[0]].extent)


def short_walk(
    walk: Sequence[int], variables: Sequence[LoopVariable], itemsize: int, others: Sequence[int]
) -> list[int]:  # fmt: skip
    """The first variables of a walk that a tile needs for whole sectors; the first one alone where it has enough, or
    where the next is one of `others`, which the tile has anyway."""
    group, run = list(walk[:1]), itemsize
    for position, following in zip(walk, [*walk[1:], None], strict=True):
        extent = variables[position].extent
        if not isinstance(extent, int):
            return group
        run *= extent
        enough = 2 * MEMORY_SECTOR if len(group) == 1 else _RUN_BYTES
        if run >= enough or following is None or following in others:
            return group
        if not isinstance(variables[following].extent, int):
            return group
        group.append(following)
    return group


@dataclass(frozen=True)
class LoopSpace:
    """Loop axes other than the dimensions of a result: their extents, and the row-major place of a result's element."""

    extents: tuple[Size, ...]
    line: Index


def line_space(shape: Sequence[Size]) -> LoopSpace:
    """All elements as one line."""
    total = product(list(shape))
    return LoopSpace((total,), coordinate(0, total))


def grouped_space(variables: Sequence[LoopVariable], groups: Sequence[Sequence[int]]) -> LoopSpace:
    """The variables in no group as they are, then each group (its fastest variable first) as one axis."""
    grouped = {position for group in groups for position in group}
    axes = [[position] for position in range(len(variables)) if position not in grouped]
    axes += [list(reversed(group)) for group in groups]
    extents = tuple(product([variables[position].extent for position in axis]) for axis in axes)
    places: dict[int, Index] = {}
    for number, (axis, extent) in enumerate(zip(axes, extents, strict=True)):
        parts = unflatten(coordinate(number, extent), [variables[position].extent for position in axis])
        places |= dict(zip(axis, parts, strict=True))
    shape = [variable.extent for variable in variables]
    return LoopSpace(extents, flatten([places[position] for position in range(len(variables))], shape))


@dataclass(frozen=True)
class ElementAccess:
    """Elements of so many bytes that a kernel reads or writes, at the places of an index; `run`: those side by side in
    a block, where that is known otherwise."""

    index: Index
    itemsize: int
    elements: int
    written: bool
    run: int = 0


def share_of_sectors(
    accesses: Sequence[ElementAccess], variables: Sequence[LoopVariable], block: Mapping[int, int]
) -> float:
    """Bytes of the sectors that blocks touch for each byte that they need; `block` has how far one goes along the
    variable at a position, if further than one step."""
    needed = touched = 0.0
    for access in accesses:
        amount = access.elements * access.itemsize
        needed += amount
        touched += amount * _share(access, variables, block)
    return touched / needed if needed else 1.0


def _share(access: ElementAccess, variables: Sequence[LoopVariable], block: Mapping[int, int]) -> float:
    run, size = access.run or _run(access.index, variables, block), access.itemsize
    if run == 1:  # neighbours that are a few elements apart share sectors
        steps = [
            access.index.coefficient(variables[position].axes[-1]) for position, count in block.items() if count > 1
        ]
        near = min((step for step in steps if isinstance(step, int) and step > 0), default=MEMORY_SECTOR)
        return min(near, max(1.0, MEMORY_SECTOR / size))
    line = run * size
    steps = [access.index.coefficient(variable.axes[-1]) for variable in variables]
    begins_within = any(isinstance(step, int) and step >= run and step * size % MEMORY_SECTOR for step in steps)
    if begins_within:
        inside = max(0, line - MEMORY_SECTOR)
        parts = line + MEMORY_SECTOR - inside
    else:
        inside = line - line % MEMORY_SECTOR
        parts = MEMORY_SECTOR if line % MEMORY_SECTOR else 0
    return (inside + parts * (2 if access.written else 1)) / line  # a sector written in part is read too


def _run(index: Index, variables: Sequence[LoopVariable], block: Mapping[int, int]) -> int:
    """Elements side by side in a block."""
    run = 1
    for position in walk_of(index, variables):
        extent, count = variables[position].extent, block.get(position, 1)
        if not isinstance(extent, int) or count < extent:
            return run * count
        run *= extent
    return run
