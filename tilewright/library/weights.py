"""The packed form of weights: constants are packed when the engine is built, others by a copy at run time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.graph.core import Graph, Node, Value
from tilewright.library.candidate import Operand, PackedConstant, Stage
from tilewright.library.generated.generate import Result, elementwise_call
from tilewright.library.packing import Recipe
from tilewright.symbolic import Size, ceil_divide, floor_divide, lift, product, simplify
from tilewright.targets.base import Target

_MOST_BYTE, _MOST_WORD = 255, 32767


def pairs_fit(weights: np.ndarray, axis: int) -> bool:
    """Whether uint8 by these, of int8, give numbers of 16 bits where products of two neighbours along `axis` are added:
    the larger half of weights is rare enough, or left out as quantisers do for CPUs without VNNI."""
    if weights.dtype != np.int8 or weights.shape[axis] % 2:
        return False
    rows = np.moveaxis(weights, axis, 0).reshape(weights.shape[axis], -1).astype(np.int16)
    sums = [(np.maximum(sign * rows[::2], 0) + np.maximum(sign * rows[1::2], 0)).max(initial=0) for sign in (1, -1)]
    return int(max(sums)) * _MOST_BYTE <= _MOST_WORD


@dataclass(frozen=True)
class PackedOperand:
    """Packed weights as a kernel's operand, and what must run first to have them."""

    operand: Operand
    stages: tuple[Stage, ...] = ()
    temporaries: tuple[Value, ...] = ()


def packed_weights(value: Value, recipe: Recipe, graph: Graph, target: Target) -> PackedOperand:
    """Weights in the order of a `taps`, `order`, `windows` or `runs` recipe, those that are no constants with one pixel
    a run."""
    if value in graph.constants:
        return PackedOperand(PackedConstant(value, recipe))
    fields = dict(recipe)
    moves = _Moves(value)
    if fields["kind"] == "order":
        moves.permute(fields["axes"])
    elif fields["kind"] == "windows":
        _to_windows(moves, fields["channels"], fields["taps"], fields["length"])
    elif fields["kind"] == "runs":
        assert "pixels" not in fields
        _to_runs(moves, fields["channels"], fields["fold"], fields["length"])
    else:
        _to_panels(moves, fields["groups"], fields["width"])
    call = elementwise_call(moves.nodes, [Result(moves.value, moves.value)], graph.constants, target)
    return PackedOperand(moves.value, (Stage((call,)),), (moves.value,))


class _Moves:
    """A chain of movement nodes from one value."""

    def __init__(self, value: Value) -> None:
        self.value = value
        self.nodes: list[Node] = []
        self._name = value.name

    def _append(self, op: str, result_shape: tuple[Size, ...], **attributes: Any) -> None:
        result = Value(f"{self._name}.packed{len(self.nodes)}", self.value.dtype, result_shape)
        self.nodes.append(Node(op, [self.value], [result], attributes))
        self.value = result

    def reshape(self, *shape: Size) -> None:
        self._append("reshape", shape, shape=shape)

    def permute(self, order: tuple[int, ...]) -> None:
        self._append("permute", tuple(self.value.shape[axis] for axis in order), order=order)

    def pad(self, *extents: Size) -> None:
        """Zeros at the end of each axis, up to an extent."""
        pads = tuple((0, simplify(lift(extent) - own)) for extent, own in zip(extents, self.value.shape, strict=True))
        if any(pad != (0, 0) for pad in pads):
            self._append("pad", extents, pads=pads, value=0)

    def pad_last(self, extent: Size) -> None:
        self.pad(*self.value.shape[:-1], extent)


def _to_panels(moves: _Moves, groups: int, width: int) -> None:
    """[O, I, *kernel] to [groups, panels, kernel * I, width]."""
    features, channels, *kernel = moves.value.shape
    columns = simplify(lift(features) // groups)
    panels = ceil_divide(columns, width)
    moves.reshape(groups, columns, channels, *kernel)
    moves.permute((0, *range(3, 3 + len(kernel)), 2, 1))
    depth = product([channels, *kernel])
    moves.reshape(groups, depth, columns)
    moves.pad_last(simplify(lift(panels) * width))
    moves.reshape(groups, depth, panels, width)
    moves.permute((0, 2, 1, 3))


def _to_windows(moves: _Moves, channels: int, taps: int, length: int) -> None:
    """[O, I, *kernel] to [O, kernel / taps * length]."""
    outputs, _, *kernel = moves.value.shape
    runs = floor_divide(product(kernel), taps)
    moves.permute((0, *range(2, 2 + len(kernel)), 1))
    moves.pad_last(channels)
    moves.reshape(outputs, runs, taps * channels)
    moves.pad_last(length)
    moves.reshape(outputs, simplify(lift(runs) * length))


def _to_runs(moves: _Moves, wide: int, fold: int, length: int) -> None:
    """[O, I, rows, columns] to [O, lines, length], lines of `fold` rows together whose pixels have `wide` channels."""
    outputs, _, rows, columns = moves.value.shape
    assert isinstance(rows, int) and isinstance(columns, int)
    lines = -(-rows // fold)
    moves.permute((0, 2, 3, 1))
    moves.pad(outputs, lines * fold, columns, wide)
    moves.reshape(outputs, lines, fold, columns, wide)
    moves.permute((0, 1, 3, 2, 4))
    moves.reshape(outputs, lines, columns * fold * wide)
    moves.pad_last(length)
