"""A row program: elementwise ops and several reductions over the same axes of one space, as expressions.

    space := [kept axes, reduced axes] of the tensors that are reduced, in any order
    program := reductions, each of an expression that may use the results of others; what is stored

The reductions have levels: those of level 1 need no other, those of level 2 need some of level 1, and so on.  A kernel
that does not hold a whole row walks it once for each level, and once more for what it stores of each element.  So that
there are few levels, a mean and the variance around it are one reduction (`MOMENTS`), and so are a maximum and the sum
of the powers below it (`POWERS`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tilewright.dtypes import DType
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.fusion import Group
from tilewright.graph.row_spaces import ROW_OPS, RowSpace, space_of
from tilewright.library.generated.expressions import compute_type
from tilewright.library.generated.index import Index, flatten, unflatten
from tilewright.library.generated.trace import Coordinates, Expression, ExpressionTracer, Given, Load, axes_of, walk
from tilewright.library.reduce.problem import REDUCTIONS
from tilewright.library.rows.primitives import in_primitives
from tilewright.symbolic import product, upper_bound

MOMENTS, POWERS = "moments", "powers"
_LAST_BLOCKS = 1 << 25  # elements that the blocks of all parts of a row may reach beyond its end


@dataclass(eq=False)
class RowReduction:
    """One reduction of a program: of `kind` (sum, mean, max, min, product, or both of `MOMENTS` or `POWERS`).

    `results` are the values that it computes.  Of `MOMENTS` these are the means, `others` the variances (True) and sums
    of squared deviations (False); of `POWERS` the maxima, `others` the sums, with the shift that each one has.
    """

    kind: str
    source: Value
    dtype: DType
    expression: Expression
    level: int = 1
    results: list[Value] = field(default_factory=list)
    others: list[tuple[Value, bool | Expression]] = field(default_factory=list)

    @property
    def is_pair(self) -> bool:
        return self.kind in (MOMENTS, POWERS)


@dataclass(frozen=True)
class Stored:
    """A tensor that a program stores: for each element of the space, or for each kept one."""

    value: Value
    index: Index
    expression: Expression
    is_full: bool


@dataclass
class RowProgram:
    """The traced program of a group."""

    space: RowSpace
    tracer: ExpressionTracer
    reductions: list[RowReduction]
    stored: list[Stored]

    @property
    def levels(self) -> int:
        return max(reduction.level for reduction in self.reductions)

    def roots(self) -> list[Expression]:
        """All expressions that kernels compute."""
        shifts = [shift for item in self.reductions for _, shift in item.others if not isinstance(shift, bool)]
        own = [item.expression for item in self.reductions]
        return [*own, *(item.expression for item in self.stored), *shifts]

    @property
    def is_wide(self) -> bool:
        """Whether any tensor has elements whose places 32 bits do not count, or the ends of its last blocks."""
        loads = [item.value for root in (*self.roots(), *self.tracer.loaded.values()) for item in walk(root)
                 if isinstance(item, Load)]  # fmt: skip
        shapes = [self.space.shape, *(value.shape for value in loads), *(item.value.shape for item in self.stored)]
        return any(upper_bound(product(shape)) > 2**31 - _LAST_BLOCKS for shape in shapes)

    def full_loads(self) -> list[Value]:
        """The tensors that are read at each element of the space."""
        found: dict[Value, None] = {}
        whole = product(self.space.shape)
        for root in self.roots():
            for item in walk(root):
                if isinstance(item, Load) and product(item.value.shape) == whole:
                    found[item.value] = None
        return list(found)


def row_program(group: Group, graph: Graph, joined: bool) -> RowProgram:
    """The program of a group; with `joined`, pairs of reductions are one where that saves a walk.

    Raises `NotImplementedError` when the group is none: a value is needed at other elements than it is computed at, or
    rows have one element.
    """
    space = next(space_of(node) for node in group.nodes if node.op in ROW_OPS)
    if space is None:
        raise NotImplementedError("rows of one element")
    return _Maker(space, in_primitives(group.nodes), graph.constants).program(group, joined)


class _Maker:
    """Traces the nodes of a group over its space."""

    def __init__(self, space: RowSpace, nodes: Sequence[Node], constants: Mapping[Value, np.ndarray]) -> None:
        self.space, self.nodes = space, nodes
        self.producers = {output: node for node in nodes for output in node.outputs}
        self.full = axes_of(space.shape)
        extents = tuple(extent for axis, extent in enumerate(space.shape) if axis not in space.axes)
        self.row = flatten([self.full[axis] for axis in range(len(space.shape)) if axis not in space.axes], extents)
        given = {node.output: self._row_at(node.output) for node in nodes if node.op in REDUCTIONS}
        self.tracer = ExpressionTracer(nodes, constants, given)

    def _row_at(self, value: Value) -> Coordinates:
        return unflatten(self.row, value.shape)

    def _full_at(self, value: Value) -> Coordinates:
        if value.shape == self.space.shape:
            return self.full
        return unflatten(flatten(self.full, self.space.shape), value.shape)

    def program(self, group: Group, joined: bool) -> RowProgram:
        pairs = self._pairs() if joined else {}
        found: dict[tuple[str, Value], RowReduction] = {}
        levels: dict[Value, int] = {}
        for node in self.nodes:
            if node.op not in REDUCTIONS:
                continue
            kind, source = pairs.get(node.output, (REDUCTIONS[node.op], self._source(node)))
            if (kind, source) not in found:
                expression = self.tracer.trace(source, self._full_at(source))
                level = 1 + max((levels[value] for value in _given(expression)), default=0)
                found[kind, source] = RowReduction(kind, source, compute_type(source.dtype), expression, level)
            reduction = found[kind, source]
            levels[node.output] = reduction.level
            self._add(node, reduction)
        stored = [self._stored(value) for value in group.outputs]
        return RowProgram(self.space, self.tracer, list(found.values()), stored)

    def _add(self, node: Node, reduction: RowReduction) -> None:
        """Note what a node's output is among the results of its reduction."""
        first = {MOMENTS: "reduce_mean", POWERS: "reduce_max"}.get(reduction.kind, node.op)
        if node.op == first and self._source(node) is reduction.source:
            reduction.results.append(node.output)
        elif reduction.kind == MOMENTS:
            reduction.others.append((node.output, node.op == "reduce_mean"))
        else:
            shift = self._shift(node)
            assert shift is not None
            reduction.others.append((node.output, self.tracer.trace(shift, self._row_at(shift))))

    def _stored(self, value: Value) -> Stored:
        count = product(value.shape)
        is_full = count == product(self.space.shape)
        if not is_full and count != self.space.rows:
            raise NotImplementedError(f"{value!r} has neither the elements of the rows nor one for each row")
        coordinates = self._full_at(value) if is_full else self._row_at(value)
        index = flatten(coordinates, value.shape)
        return Stored(value, index, self.tracer.trace(value, coordinates), is_full)

    # Pairs of reductions that are one

    def _pairs(self) -> dict[Value, tuple[str, Value]]:
        """By the output of a reduction that is one of a pair: the kind of the pair and what it reduces."""
        found: dict[Value, tuple[str, Value]] = {}
        for node in self.nodes:
            pair = self._moments(node) or self._powers(node)
            if pair is not None:
                kind, first = pair
                found[node.output] = found[first.output] = (kind, self._source(first))
        means = {source for kind, source in found.values() if kind == MOMENTS}
        tops = {source for kind, source in found.values() if kind == POWERS}
        for node in self.nodes:  # the same mean or maximum in another form
            if node.op == "reduce_mean" and self._source(node) in means:
                found.setdefault(node.output, (MOMENTS, self._source(node)))
            if node.op == "reduce_max" and self._source(node) in tops:
                found.setdefault(node.output, (POWERS, self._source(node)))
        return found

    def _moments(self, node: Node) -> tuple[str, Node] | None:
        """The mean around which `node` adds up or averages squares: sum((x - mean(x)) * (x - mean(x)))."""
        square = self._producer(node.inputs[0]) if node.op in ("reduce_sum", "reduce_mean") else None
        if square is None or square.op != "multiply" or square.inputs[0] is not square.inputs[1]:
            return None
        difference = self._producer(square.inputs[0])
        if difference is None or difference.op != "subtract" or not node.output.dtype.is_float:
            return None
        mean = self._producer(self._unshaped(difference.inputs[1]))
        if mean is None or mean.op != "reduce_mean" or mean.inputs[0] is not difference.inputs[0]:
            return None
        return MOMENTS, mean

    def _powers(self, node: Node) -> tuple[str, Node] | None:
        """The maximum of x that the shift in sum(exp(x - shift)) follows from, and nothing else does."""
        shift = self._shift(node)
        if shift is None:
            return None
        tops = self._reductions_of(shift)
        source = self._shifted(node)
        same = [top for top in tops if top.op == "reduce_max" and top.inputs[0] is source]
        return (POWERS, same[0]) if same and len({top.inputs[0] for top in tops}) == 1 and same == tops else None

    def _shifted(self, node: Node) -> Value | None:
        """x of sum(exp(x - shift))."""
        power = self._producer(node.inputs[0])
        difference = None if power is None else self._producer(power.inputs[0])
        return None if difference is None else difference.inputs[0]

    def _shift(self, node: Node) -> Value | None:
        """The shift, one number for each row, in sum(exp(x - shift))."""
        power = self._producer(node.inputs[0]) if node.op == "reduce_sum" else None
        difference = self._producer(power.inputs[0]) if power is not None and power.op == "exp" else None
        if difference is None or difference.op != "subtract":
            return None
        shift = self._unshaped(difference.inputs[1])
        return shift if shift is not None and product(shift.shape) == self.space.rows else None

    def _reductions_of(self, value: Value) -> list[Node]:
        """The nearest reductions that a value follows from."""
        found: dict[int, Node] = {}
        waiting: list[Value | None] = [value]
        while waiting:
            node = self._producer(waiting.pop())
            if node is None or id(node) in found:
                continue
            if node.op in REDUCTIONS:
                found[id(node)] = node
            else:
                waiting += node.inputs
        return list(found.values())

    def _source(self, node: Node) -> Value:
        """What a reduction is of, before it is widened to the type that is computed in anyway."""
        value = node.inputs[0]
        assert value is not None
        cast = self._producer(value)
        given = cast.inputs[0] if cast is not None and cast.op == "cast" else None
        narrow = given is not None and given.dtype.is_float and compute_type(given.dtype) == value.dtype
        return given if given is not None and narrow and product(given.shape) == product(value.shape) else value

    def _producer(self, value: Value | None) -> Node | None:
        return None if value is None else self.producers.get(value)

    def _unshaped(self, value: Value | None) -> Value | None:
        """A value before changes of its shape."""
        node = self._producer(value)
        while node is not None and node.op in ("reshape", "broadcast_to"):
            value = node.inputs[0]
            node = self._producer(value)
        return value


def _given(expression: Expression) -> list[Value]:
    """The results of reductions in an expression."""
    return [item.value for item in walk(expression) if isinstance(item, Given)]
