"""Windows of images side by side, and the sums of such where they overlap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.graph.core import Value
from tilewright.graph.inference import window_extent
from tilewright.importers.emitter import Emitter
from tilewright.symbolic import Size, lift, simplify


@dataclass(frozen=True)
class WindowAxis:
    """Windows along an axis of `extent` elements with `padding` more before and after it: `taps` elements, `dilation`
    apart, `step` from window to window."""

    extent: Size
    taps: int
    dilation: int
    padding: tuple[int, int]
    step: int

    @property
    def reach(self) -> int:
        """From the first element of a window to the last one."""
        return self.dilation * (self.taps - 1)

    @property
    def count(self) -> Size:
        """How many windows there are."""
        return window_extent(self.extent, self.taps, self.step, self.padding, self.dilation)


def fold(emit: Emitter, x: Value, axes: Sequence[WindowAxis]) -> Value:
    """[.., taps of each axis, windows along each axis] -> [.., extents]: each element is the sum of its windows' ones.

    Elements are fetched, tap by tap, from where their windows have them; nothing is added to memory.
    """
    lead = x.rank - 2 * len(axes)
    pairs = [place for number in range(len(axes)) for place in (lead + number, lead + len(axes) + number)]
    x = emit.permute(x, [*range(lead), *pairs])
    for number, axis in reversed(list(enumerate(axes))):
        x = _folded(emit, x, lead + 2 * number, axis)
    return x


def unfold(emit: Emitter, x: Value, axes: Sequence[WindowAxis]) -> Value:
    """[.., extents] -> [.., taps of each axis, windows along each axis], with zeros around."""
    lead = x.rank - len(axes)
    pads = [axis.padding for axis in axes]
    if any(pair != (0, 0) for pair in pads):
        x = emit.op("pad", x, pads=[*[(0, 0)] * lead, *pads])
    for number, axis in enumerate(axes):
        place = lead + 2 * number
        x = emit.op("gather", x, _places(emit, axis), axis=place)
    taps, windows = range(lead, x.rank, 2), range(lead + 1, x.rank, 2)
    return emit.permute(x, [*range(lead), *taps, *windows])


def _places(emit: Emitter, axis: WindowAxis) -> Value:
    """Where the elements of windows are on a padded axis, [taps, windows]: a table for known sizes, which kernels that
    see its equal steps do not read."""
    if isinstance(axis.count, int):
        table = np.arange(axis.taps)[:, None] * axis.dilation + np.arange(axis.count) * axis.step
        return emit.constant(table, "places")
    taps = emit.reshape(emit.iota(axis.taps, step=axis.dilation), (-1, 1))
    return emit.op("add", taps, emit.iota(axis.count, step=axis.step))


def _folded(emit: Emitter, x: Value, place: int, axis: WindowAxis) -> Value:
    """One axis: [.., taps, windows, ..] -> [.., extent, ..]."""
    total = None
    for piece, start in _pieces(emit, x, place, axis):
        pads = [(start, axis.reach - start) if other == place else (0, 0) for other in range(piece.rank)]
        moved = emit.op("pad", piece, pads=pads) if pads[place] != (0, 0) else piece
        moved = emit.slice(moved, place, axis.padding[0], simplify(lift(axis.extent) + axis.padding[0]))
        total = moved if total is None else emit.op("add", total, moved)
    assert total is not None
    return total


def _pieces(emit: Emitter, x: Value, place: int, axis: WindowAxis) -> list[tuple[Value, int]]:
    """What taps give to windows side by side, [.., windows * step, ..], and where that begins: of all taps that are
    less than a step apart together, or of one."""
    together = axis.step if axis.dilation == 1 else 1
    return [
        (_side_by_side(emit, emit.slice(x, place, tap, min(tap + together, axis.taps)), place, axis.step),
         tap * axis.dilation)
        for tap in range(0, axis.taps, together)
    ]  # fmt: skip


def _side_by_side(emit: Emitter, x: Value, place: int, step: int) -> Value:
    """[.., taps, windows, ..] -> [.., windows * step, ..], with zeros for taps that are not there."""
    taps, windows = x.shape[place], x.shape[place + 1]
    assert isinstance(taps, int)
    x = emit.permute(x, [*range(place), place + 1, place, *range(place + 2, x.rank)])
    if taps < step:
        pads = [(0, 0)] * x.rank
        pads[place + 1] = (0, step - taps)
        x = emit.op("pad", x, pads=pads)
    return emit.reshape(x, (*x.shape[:place], simplify(lift(windows) * step), *x.shape[place + 2 :]))
