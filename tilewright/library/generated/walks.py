"""How accesses walk memory: which loop variables follow each other without a gap, and loop spaces in which the fastest
ones of what is written, and of what is read in another order, are one variable each.

    image [n, c, z, y * x]  ->  [n, z, y * x, c * taps]         channels of 3 taps, `tap` the fastest variable
    read:     y * x, z, …                      rows of a tile
    written:  tap, c, y * x, …                 columns of a tile: c * taps + tap, of which read places take quotients
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.library.generated.index import Index, coordinate, flatten, unflatten
from tilewright.library.generated.source import LoopVariable
from tilewright.symbolic import Size, lift, product, simplify

MEMORY_SECTOR = 32  # that memory moves at least
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
