"""Traces graph nodes to expressions over loop coordinates.

A traced expression says how one element is computed: which elements are loaded (at an `Index`), which
operations follow.  Ops that only move elements (reshape, permute, slice, pad, gather, …) leave no
operation: they change the index at which their input is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Union

import numpy as np

from tilewright.dtypes import DType
from tilewright.graph.core import Node, Value
from tilewright.graph.views import progression, rotation
from tilewright.library.generated.expressions import EXPRESSIONS
from tilewright.library.generated.index import Division, Index, Loaded, bounded, coordinate, flatten, number, unflatten
from tilewright.symbolic import Size, lift, lower_bound, simplify

_MOST_MERGED = 6  # dimensions that a line of a table of places is taken apart into


@dataclass(frozen=True)
class Guard:
    """The condition 0 <= index < limit."""

    index: Index
    limit: Size


Guards = tuple[Guard, ...]
Coordinates = tuple[Index, ...]


@dataclass(eq=False)
class Literal:
    """A number known at compile time."""

    value: Any
    dtype: DType


@dataclass(eq=False)
class Load:
    """An element of a tensor outside the kernel, read only where the guards hold."""

    value: Value
    index: Index
    guards: Guards

    @property
    def dtype(self) -> DType:
        return self.value.dtype


@dataclass(eq=False)
class ElementwiseOperation:
    """An elementwise op of the graph."""

    node: Node
    operands: list[Expression]

    @property
    def dtype(self) -> DType:
        return self.node.output.dtype


@dataclass(eq=False)
class Conditional:
    """`inside` where the guards hold, else `outside`."""

    guards: Guards
    inside: Expression
    outside: Expression

    @property
    def dtype(self) -> DType:
        return self.inside.dtype


@dataclass(eq=False)
class Position:
    """The number `index * scale + offset` as an element (iota, symbolic dimensions)."""

    index: Index
    dtype: DType
    scale: float = 1
    offset: float = 0


@dataclass(eq=False)
class Given:
    """A value that the surrounding kernel computed: an epilogue's accumulator."""

    value: Value

    @property
    def dtype(self) -> DType:
        return self.value.dtype


Expression = Union[Literal, Load, ElementwiseOperation, Conditional, Position, Given]


def walk(root: Expression) -> Iterator[Expression]:
    """An expression and those that it is computed from, each once."""
    seen: set[int] = set()
    stack: list[Expression] = [root]
    while stack:
        item = stack.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        yield item
        if isinstance(item, ElementwiseOperation):
            stack.extend(item.operands)
        elif isinstance(item, Conditional):
            stack.extend((item.inside, item.outside))


def align(coordinates: Coordinates, shape: Sequence[Size]) -> Coordinates:
    """Coordinates in a tensor of `shape` that is broadcast to where `coordinates` point."""
    tail = coordinates[len(coordinates) - len(shape) :]
    return tuple(Index() if extent == 1 else index for index, extent in zip(tail, shape, strict=True))


@dataclass
class ExpressionTracer:
    """Pulls expressions out of `nodes`; everything they do not produce is loaded.

    `constants` gives the data of constants (numbers are written into the code), `given` the values
    that the surrounding kernel provides, by the coordinates at which they are provided.
    """

    nodes: Sequence[Node]
    constants: Mapping[Value, np.ndarray]
    given: Mapping[Value, Coordinates] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._producers = {output: node for node in self.nodes for output in node.outputs}
        self._memo: dict[Any, Expression] = {}
        self.loaded: dict[int, Expression] = {}  # index tensors' elements, by the identity in `Loaded`
        self._loaded_by_key: dict[Any, Loaded] = {}
        self._steps: dict[Value, tuple[_Steps, ...] | None] = {}

    def trace(self, value: Value, coordinates: Coordinates, guards: Guards = ()) -> Expression:
        """The element of `value` at `coordinates`."""
        key = (value, coordinates, guards)
        if key not in self._memo:
            self._memo[key] = self._trace(value, coordinates, guards)
        return self._memo[key]

    def know(self, value: Value, coordinates: Coordinates, expression: Expression) -> None:
        """Take an expression for the element of `value` at `coordinates`, whatever makes it."""
        self._memo[value, coordinates, ()] = expression

    def _trace(self, value: Value, coordinates: Coordinates, guards: Guards) -> Expression:
        if value in self.given:
            if self.given[value] != coordinates:
                raise NotImplementedError(f"{value!r} is needed at other coordinates than it is computed at")
            return Given(value)
        node = self._producers.get(value)
        if node is not None:
            return self._trace_node(node, coordinates, guards)
        data = self.constants.get(value)
        if data is not None and data.size == 1:
            return Literal(data.reshape(()).item(), value.dtype)
        return Load(value, flatten(coordinates, value.shape).expanded(), guards)

    def _producer(self, value: Value | None) -> Node | None:
        return None if value is None else self._producers.get(value)

    def _trace_node(self, node: Node, coordinates: Coordinates, guards: Guards) -> Expression:
        rule = getattr(self, f"_{node.op}", None)
        if rule is not None:
            result: Expression = rule(node, coordinates, guards)
            return result
        if node.op not in EXPRESSIONS:
            raise NotImplementedError(f"{node.op} cannot be part of a generated kernel")
        operands = [
            self.trace(value, align(coordinates, value.shape), guards) for value in node.inputs if value is not None
        ]
        return ElementwiseOperation(node, operands)

    # One method for each op that moves elements, named after it.

    def _reshape(self, node: Node, coordinates: Coordinates, guards: Guards) -> Expression:
        source = _input(node, 0)
        if node.attributes.get("same"):
            pairs = zip(coordinates, node.output.shape, source.shape, strict=True)
            moved = tuple(
                index if extent == written_extent else bounded(index, extent) for index, written_extent, extent in pairs
            )
            return self.trace(source, moved, guards)
        moved = unflatten(flatten(coordinates, node.output.shape), source.shape)
        return self.trace(source, moved, guards)

    def _permute(self, node: Node, coordinates: Coordinates, guards: Guards) -> Expression:
        moved = list(coordinates)
        for axis, source_axis in enumerate(node.attributes["order"]):
            moved[source_axis] = coordinates[axis]
        return self.trace(_input(node, 0), tuple(moved), guards)

    def _broadcast_to(self, node: Node, coordinates: Coordinates, guards: Guards) -> Expression:
        source = _input(node, 0)
        return self.trace(source, align(coordinates, source.shape), guards)

    def _copy(self, node: Node, coordinates: Coordinates, guards: Guards) -> Expression:
        return self.trace(_input(node, 0), coordinates, guards)

    def _slice(self, node: Node, coordinates: Coordinates, guards: Guards) -> Expression:
        axis, start, step = (node.attributes[key] for key in ("axis", "start", "step"))
        moved = list(coordinates)
        moved[axis] = coordinates[axis].times(step).plus(number(start))
        return self.trace(_input(node, 0), tuple(moved), guards)

    def _pad(self, node: Node, coordinates: Coordinates, guards: Guards) -> Expression:
        source = _input(node, 0)
        moved, conditions = list(coordinates), []
        for axis, (low, high) in enumerate(node.attributes["pads"]):
            if low != 0 or high != 0:
                shifted = coordinates[axis].plus(number(simplify(-1 * lift(low))))
                moved[axis] = bounded(shifted, source.shape[axis])
                conditions.append(Guard(shifted.expanded(), source.shape[axis]))
        inner = self.trace(source, tuple(moved), guards + tuple(conditions))
        if not conditions:
            return inner
        return Conditional(tuple(conditions), inner, Literal(node.attributes["value"], source.dtype))

    def _concat(self, node: Node, coordinates: Coordinates, guards: Guards) -> Expression:
        axis = node.attributes["axis"]
        turned = rotation(node, self._producer)
        if turned is not None and axis < node.output.rank - 1:
            rotated, _, shift = turned
            _, place = coordinates[axis].plus(number(shift)).divide(rotated.shape[axis])
            return self.trace(rotated, (*coordinates[:axis], place, *coordinates[axis + 1 :]), guards)
        steps = progression(node, self._producer)
        if steps is not None and _input(node, 0).shape[axis] == 1:
            return self._stepped(node, *steps, coordinates, guards)
        pieces: list[tuple[Guard, Expression]] = []
        start: Size = 0
        for source in node.inputs:
            assert source is not None
            moved = list(coordinates)
            shifted = coordinates[axis].plus(number(simplify(-1 * lift(start))))
            moved[axis] = bounded(shifted, source.shape[axis])
            guard = Guard(shifted.expanded(), source.shape[axis])
            pieces.append((guard, self.trace(source, tuple(moved), (*guards, guard))))
            start = simplify(lift(start) + source.shape[axis])
        result = pieces[-1][1]
        for guard, piece in reversed(pieces[:-1]):
            result = Conditional((guard,), piece, result)
        return result

    def _stepped(
        self, concat: Node, first: Node, step: Size, coordinates: Coordinates, guards: Guards
    ) -> Expression:  # fmt: skip
        """Slices side by side, each `step` further than the one before: one element whose place has the number of the
        slice in it, rather than one of each slice and a choice."""
        axis, along = concat.attributes["axis"], first.attributes["axis"]
        within = (*coordinates[:axis], Index(), *coordinates[axis + 1 :])
        moved = list(unflatten(flatten(within, _input(concat, 0).shape), first.output.shape))
        place = moved[along].times(first.attributes["step"]).plus(number(first.attributes["start"]))
        moved[along] = place.plus(coordinates[axis].times(step))
        return self.trace(_input(first, 0), tuple(moved), guards)

    def _gather(self, node: Node, coordinates: Coordinates, guards: Guards) -> Expression:
        source, indices = _input(node, 0), _input(node, 1)
        axis = node.attributes["axis"]
        chosen = self._index_of(indices, coordinates[axis : axis + indices.rank], source.shape[axis], guards)
        moved = (*coordinates[:axis], chosen, *coordinates[axis + indices.rank :])
        return self.trace(source, moved, guards)

    def _frames(self, node: Node, coordinates: Coordinates, guards: Guards) -> Expression:
        axis, step = node.attributes["axis"], node.attributes["step"]
        source = _input(node, 0)
        place = bounded(coordinates[axis].times(step).plus(coordinates[axis + 1]), source.shape[axis])
        return self.trace(source, (*coordinates[:axis], place, *coordinates[axis + 2 :]), guards)

    def _gather_elements(self, node: Node, coordinates: Coordinates, guards: Guards) -> Expression:
        source, indices = _input(node, 0), _input(node, 1)
        axis = node.attributes["axis"]
        moved = list(coordinates)
        moved[axis] = self._index_of(indices, coordinates, source.shape[axis], guards)
        return self.trace(source, tuple(moved), guards)

    def place(self, update: Node, coordinates: Coordinates) -> tuple[Index, Guards]:
        """Where a `scatter_update` stores the element of its updates at `coordinates`, and the condition for that."""
        indices, axis = _input(update, 1), update.attributes["axis"]
        extent = update.output.shape[axis]
        chosen = self._index_of(indices, coordinates[axis : axis + 1], extent, (), clamped=False)
        moved = (*coordinates[:axis], chosen, *coordinates[axis + 1 :])
        inside = chosen.is_non_negative() and chosen.is_below(extent)
        return flatten(moved, update.output.shape), () if inside else (Guard(chosen, extent),)

    def _index_of(
        self, indices: Value, coordinates: Coordinates, extent: Size, guards: Guards, clamped: bool = True
    ) -> Index:
        known = self._linear(indices, coordinates)
        if known is not None and known.is_non_negative() and known.is_below(extent):
            return known
        expression, known = self.trace(indices, coordinates, guards), None
        if isinstance(expression, Literal):
            known = number(int(expression.value))
            known = known.plus(number(extent)) if lower_bound(known.constant) < 0 else known
        elif isinstance(expression, Position):
            known = expression.index
        if known is not None and known.is_non_negative() and known.is_below(extent):
            return known
        key = (id(expression), extent, clamped)
        if key not in self._loaded_by_key:
            atom = Loaded(len(self.loaded), extent, clamped)
            self._loaded_by_key[key] = atom
            self.loaded[atom.identity] = expression
        return Index(((self._loaded_by_key[key], 1),))

    def _linear(self, indices: Value, coordinates: Coordinates) -> Index | None:
        """The element of a constant of whole numbers that advance by equal steps, as an index that divides nothing."""
        data = self.constants.get(indices)
        if data is None or data.size == 0 or data.dtype.kind not in "iu":
            return None
        if indices not in self._steps:
            self._steps[indices] = _steps(data)
        steps = self._steps[indices]
        if steps is None:
            return None
        total = number(int(data.flat[0]))
        for index, parts in zip(align(coordinates, data.shape), steps, strict=True):
            places = unflatten(index, [extent for extent, _ in parts]) if len(parts) > 1 else (index,)
            for place, (_, step) in zip(places, parts, strict=False):
                total = total.plus(place.times(step))
        return None if any(isinstance(atom, Division) for atom, _ in total.terms) else total

    def _iota(self, node: Node, coordinates: Coordinates, guards: Guards) -> Expression:
        attributes = node.attributes
        index = coordinates[attributes["axis"]] if node.output.rank else Index()
        step, start = attributes["step"], attributes["start"]
        if isinstance(step, float) or isinstance(start, float):
            return Position(index.expanded(), node.output.dtype, float(step), float(start))
        return Position(index.expanded().times(step).plus(number(start)), node.output.dtype)

    def _full(self, node: Node, coordinates: Coordinates, guards: Guards) -> Expression:
        return Literal(node.attributes["value"], node.output.dtype)

    def _dimension(self, node: Node, coordinates: Coordinates, guards: Guards) -> Expression:
        return Position(number(node.attributes["expression"]), node.output.dtype)


_Steps = tuple[tuple[int, int], ...]  # extents and what one step along each adds, the outermost first


def _steps(data: np.ndarray) -> tuple[_Steps, ...] | None:
    """How whole numbers advance along each dimension, which may be several merged into one; None where they do not
    advance by equal steps."""
    first = data.flat[0].astype(np.int64)
    lines = [np.moveaxis(data, axis, -1).reshape(-1, n)[0].astype(np.int64) for axis, n in enumerate(data.shape)]
    total = np.full((1,) * data.ndim, first)
    for axis, line in enumerate(lines):
        total = total + (line - first).reshape(tuple(-1 if other == axis else 1 for other in range(data.ndim)))
    if not np.array_equal(total, data):
        return None
    found = [_advances(line) for line in lines]
    return None if None in found else tuple(parts for parts in found if parts is not None)


def _advances(line: np.ndarray) -> _Steps | None:
    """A line as a few dimensions merged, in each of which numbers advance by equal steps."""
    parts: list[tuple[int, int]] = []
    while len(line) > 1:
        step, equal = line[1] - line[0], np.diff(line) == line[1] - line[0]
        longest = len(line) if equal.all() else int(np.argmin(equal)) + 1
        whole = (
            n for n in range(longest, 1, -1)
            if len(line) % n == 0 and (line.reshape(-1, n) == line[::n, None] + np.arange(n) * step).all()
        )  # fmt: skip
        extent = next(whole, None)
        if extent is None or len(parts) == _MOST_MERGED:
            return None
        parts.insert(0, (extent, int(step)))
        line = line[::extent]
    return tuple(parts)


def _input(node: Node, position: int) -> Value:
    value = node.inputs[position]
    assert value is not None
    return value


def axes_of(shape: Sequence[Size]) -> Coordinates:
    """A loop coordinate for each dimension of a shape."""
    return tuple(coordinate(axis, extent) for axis, extent in enumerate(shape))
