"""Strided views: a chain of reshapes, permutes and slices of a dense tensor as offset and strides.

    x [batch, sequence, 1152] dense
    slice 384..768   offset 384, strides (1152*sequence, 1152, 1)
    reshape          [batch, sequence, 12, 32], strides (1152*sequence, 1152, 32, 1)
    permute 0 2 1 3  [batch, 12, sequence, 32], strides (1152*sequence, 32, 1152, 1)

Offsets and strides count elements and may be symbolic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright.graph.core import Node, Value
from tilewright.graph.inference import Shape, slice_extent
from tilewright.symbolic import Size, lift, lower_bound, modulo, product, simplify


@dataclass(frozen=True)
class StridedView:
    """Element (i, j, …) lies at `offset + i * strides[0] + j * strides[1] + …`."""

    shape: Shape
    strides: tuple[Size, ...]
    offset: Size = 0


def dense_view(shape: Shape) -> StridedView:
    """A whole row-major tensor."""
    return StridedView(shape, tuple(product(shape[axis + 1 :]) for axis in range(len(shape))))


def follow(view: StridedView, node: Node) -> StridedView | None:
    """The view after one reshape, permute or slice; None when it needs a copy or is another op."""
    if node.op == "permute":
        order = node.attributes["order"]
        return StridedView(
            tuple(view.shape[axis] for axis in order), tuple(view.strides[axis] for axis in order), view.offset
        )
    if node.op == "slice":
        return _slice(view, node)
    if node.op == "reshape":
        strides = _reshaped_strides(view, node.output.shape)
        return None if strides is None else StridedView(node.output.shape, strides, view.offset)
    return None


def follow_all(view: StridedView | None, nodes: Sequence[Node]) -> StridedView | None:
    """The view after several nodes in order."""
    for node in nodes:
        view = None if view is None else follow(view, node)
    return view


def rotation(node: Node, producer: Callable[[Value | None], Node | None]) -> tuple[Value, int, Size] | None:
    """(source, axis, shift) where a concat puts the front of a tensor after its end: element i is i + shift of it,
    modulo the extent.  None for other nodes.  `producer` gives the node that computes a value."""
    if node.op != "concat" or len(node.inputs) != 2:
        return None
    parts = [producer(value) for value in node.inputs]
    axis = node.attributes["axis"]
    bounds = []
    for part in parts:
        if part is None or part.op != "slice" or part.inputs[0] is not (parts[0] or part).inputs[0]:
            return None
        if part.attributes["axis"] != axis or part.attributes["step"] != 1:
            return None
        bounds.append((part.attributes["start"], part.attributes["stop"]))
    source = node.inputs[0] if parts[0] is None else parts[0].inputs[0]
    assert source is not None
    (shift, end), (begin, rest) = bounds
    return (source, axis, shift) if begin == 0 and rest == shift and end == source.shape[axis] else None


def progression(node: Node, producer: Callable[[Value | None], Node | None]) -> tuple[Node, Size] | None:
    """(first, step) where a concat joins slices of one tensor, seen in one shape, that begin at equal steps: `first` is
    the first slice.  None for other nodes.  `producer` gives the node that computes a value."""
    slices: list[Node] = []
    for value in node.inputs:
        part = producer(value)
        while part is not None and part.op == "reshape" and not part.attributes.get("same"):
            part = producer(part.inputs[0])
        if part is None or part.op != "slice":
            return None
        slices.append(part)
    first, shapes = slices[0], {value.shape for value in node.inputs if value is not None}
    alike = (first.inputs[0], first.attributes["axis"], first.attributes["step"], first.output.shape)
    others = ((part.inputs[0], part.attributes["axis"], part.attributes["step"], part.output.shape) for part in slices)
    starts = [lift(part.attributes["start"]) for part in slices]
    steps = {simplify(after - before) for before, after in zip(starts, starts[1:], strict=False)}
    if len(slices) < 2 or len(shapes) > 1 or len(steps) > 1 or any(other != alike for other in others):
        return None
    (step,) = steps
    return (first, step) if lower_bound(step) >= 0 else None


def _slice(view: StridedView, node: Node) -> StridedView | None:
    """A slice; None where it goes backwards, which kernels of strides do not."""
    axis, start, step = (node.attributes[key] for key in ("axis", "start", "step"))
    if step < 0:
        return None
    extent = slice_extent(start, node.attributes["stop"], step)
    shape = (*view.shape[:axis], extent, *view.shape[axis + 1 :])
    strides = list(view.strides)
    offset = simplify(lift(view.offset) + lift(strides[axis]) * start)
    strides[axis] = simplify(lift(strides[axis]) * step)
    return StridedView(shape, tuple(strides), offset)


def _reshaped_strides(view: StridedView, shape: Shape) -> tuple[Size, ...] | None:
    """Strides that show the same elements under another shape, where that is possible.

    Both shapes are cut into the smallest runs of dimensions with equal products; a run of old
    dimensions must be one evenly spaced line, which the new dimensions of the run divide anew.
    """
    old = [(extent, stride) for extent, stride in zip(view.shape, view.strides, strict=True) if extent != 1]
    new = [extent for extent in shape if extent != 1]
    strides: list[Size] = []
    while old and new:
        line, cut = [old.pop(0)], [new.pop(0)]
        while (have := product([extent for extent, _ in line])) != (want := product(cut)):
            if 0 in (have, want):
                return None
            if modulo(have, want) == 0 and new:
                cut.append(new.pop(0))
            elif modulo(want, have) == 0 and old:
                line.append(old.pop(0))
            else:
                return None
        for (_, stride), (extent, inner) in zip(line, line[1:], strict=False):
            if stride != simplify(lift(inner) * extent):
                return None
        step = line[-1][1]
        strides += [simplify(lift(product(cut[position + 1 :])) * step) for position in range(len(cut))]
    if old or new:
        return None
    found = iter(strides)
    return tuple(0 if extent == 1 else next(found) for extent in shape)
