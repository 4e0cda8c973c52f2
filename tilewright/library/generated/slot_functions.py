"""Functions for the slots of library kernels, of the nodes around an anchor: prologues, epilogues, gates, places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilewright.dtypes import DType
from tilewright.graph.core import Node, Value
from tilewright.language.function import SourceFunction
from tilewright.launch.jit import JITFunction
from tilewright.library.activations import ACTIVATIONS
from tilewright.library.epilogue import Epilogue, EpilogueCost, function_instructions
from tilewright.library.generated.expressions import compute_type
from tilewright.library.generated.generate import (
    chain_name,
    decompose,
    forms_of,
    function_from_source,
    names_of,
    source_text,
)
from tilewright.library.generated.index import Coordinate, Index, flatten, unflatten
from tilewright.library.generated.source import (
    ExtraReferences,
    LoopVariable,
    Writer,
    expression_indices,
    first_elements,
    merge_axes,
)
from tilewright.library.generated.trace import Coordinates, Expression, ExpressionTracer, align, axes_of
from tilewright.symbolic import Size


def slot_space(shape: Sequence[Size]) -> Coordinates:
    """The loop coordinates of a slot: leading dimensions are the row, the last one the column."""
    return axes_of(shape)


def _slot_writer(
    root: Expression, stores: Sequence[tuple[Value, Index, Expression]], shape: Sequence[Size],
    tracer: ExpressionTracer, extra: ExtraReferences, rows: Size | None = None, columns: Size | None = None,
) -> tuple[Writer, list[str]]:  # fmt: skip
    """A writer for a slot function that computes `root` and stores others, and the lines that split its row; `rows` and
    `columns` as `Chain.written` has them."""
    traced_indices = [index for _, index, _ in stores]
    traced_indices += expression_indices([root, *(item for _, _, item in stores)], tracer)
    last = len(shape) - 1
    variables = merge_axes(shape, traced_indices, frozenset({last}))
    outer = [variable for variable in variables if variable.axes[-1] != last]
    inner = [variable for variable in variables if variable.axes[-1] == last]
    names = names_of(len(outer), "row")
    writer = Writer(tracer, extra, [*outer, *inner], [*names, "column"][: len(variables)], "mask")
    limits = {"row": rows, "column": columns}
    writer.limits = {name: limit for name, limit in limits.items() if limit is not None}
    writer.narrow_rows = True
    starts = first_elements([root, *(item for _, _, item in stores)], tracer)
    written = {target for target, _, _ in stores}
    writer.start_at({value: start for value, start in starts.items() if value not in written})
    needed = {
        atom.axis
        for index in traced_indices
        for nested in index.nested()
        for atom, _ in nested.terms
        if isinstance(atom, Coordinate) and atom.axis != last
    }
    lines = decompose(outer, names, "row", writer) if needed else []
    return writer, lines


def prologue_function(
    nodes: Sequence[Node], value: Value, constants: Mapping[Value, np.ndarray], extra: ExtraReferences,
    results: Sequence[Value] = (), shape: Sequence[Size] | None = None,
) -> JITFunction:  # fmt: skip
    """`prologue(row, column, mask, extra)`: the elements of `value`, computed by `nodes`.

    `results` are intermediate values that are stored too.  `shape` is the loop space when it is not
    the value's own shape (same elements in the same order).
    """
    space = tuple(shape if shape is not None else value.shape)
    coordinates = slot_space(space)

    def own(other: Value) -> Coordinates:
        return coordinates if other.shape == space else unflatten(flatten(coordinates, space), other.shape)

    tracer = ExpressionTracer(nodes, constants)
    root = tracer.trace(value, own(value))
    stores = [(other, flatten(own(other), other.shape), tracer.trace(other, own(other))) for other in results]
    writer, lines = _slot_writer(root, stores, space, tracer, extra)
    for target, index, item in stores:
        writer.store(target, index, item)
    text = writer.write(root)
    if not writer.follows_columns(expression_indices([root], tracer)):
        text = f"tl.where(column >= 0, {text}, {text})"  # a row of one number, or of equal ones: still a block
    name = chain_name(nodes, "load_input")
    source = source_text(name, ["row", "column", "mask", "extra"], [], [*lines, *writer.lines, f"return {text}"])
    return function_from_source(name, source)


def epilogue_function(
    nodes: Sequence[Node], anchor: Value, value: Value, constants: Mapping[Value, np.ndarray],
    extra: ExtraReferences, results: Sequence[Value] = (), residual: Value | None = None,
) -> SourceFunction:  # fmt: skip
    """`epilogue(acc, row, column, mask, extra[, residual])`: `value` computed by `nodes` from the anchor's result.

    `residual` is a tensor of the anchor's shape whose elements the kernel brings along.
    `results` are other values that are stored too (the anchor's own among them, if it is used
    elsewhere).  Raises `NotImplementedError` when a result does not follow the anchor's order.
    """
    return Chain(tuple(nodes), anchor, value, constants, tuple(results)).written(extra, residual=residual).function


@dataclass(frozen=True)
class Chain:
    """An epilogue as data: the nodes that compute `value` from the result of `anchor`, and `results`, which are stored
    too.  Functions are made of it for what a kernel needs.

    `moved`: permutes and reshapes among the nodes are how the kernel stores `value`; otherwise they keep the order.
    `numbers` are values of one element that each launch is given as numbers.
    """

    nodes: tuple[Node, ...]
    anchor: Value
    value: Value
    constants: Mapping[Value, np.ndarray]
    results: tuple[Value, ...] = ()
    moved: bool = False
    numbers: tuple[Value, ...] = ()

    def written(
        self, extra: ExtraReferences, columns: Size | None = None, rounded: bool = False,
        residual: Value | None = None, rows: Size | None = None,
    ) -> Epilogue:  # fmt: skip
        """The function, as `epilogue_function` says, and what it costs.

        `columns`: what depends on the column alone is masked by columns, of which there are so many, so that a thread
        loads it once for all its rows; `rows`: the same of what does not depend on the column.  `rounded`: activations
        suit the type in which `value` is stored, and nothing is rounded to 16 bits before that.
        """
        return _written(self, extra, columns, rounded, residual, rows)


def _written(
    chain: Chain, extra: ExtraReferences, columns: Size | None, rounded: bool, residual: Value | None,
    rows: Size | None,
) -> Epilogue:  # fmt: skip
    nodes, anchor, value, constants, results = chain.nodes, chain.anchor, chain.value, chain.constants, chain.results
    coordinates = slot_space(anchor.shape)

    def own(other: Value) -> Coordinates:
        if other.shape == anchor.shape:
            return coordinates
        return unflatten(flatten(coordinates, anchor.shape), other.shape)

    given: dict[Value, Coordinates] = {anchor: coordinates, **dict.fromkeys(chain.numbers, ())}
    given |= {} if residual is None else {residual: coordinates}
    tracer = ExpressionTracer(nodes, constants, given)
    root = tracer.trace(value, _place_of(tracer, chain, coordinates) if chain.moved else own(value))
    stores = [(other, flatten(own(other), other.shape), tracer.trace(other, own(other))) for other in results]
    writer, lines = _slot_writer(root, stores, anchor.shape, tracer, extra, rows, columns)
    writer.rounds_once = rounded and value.dtype.bits <= 16 and not results
    writer.rounds_before_widening = bool(results)  # a single result has no second form to agree with
    stored = value.dtype if rounded else None
    writer.of_half = forms_of(stored, "_of_half")
    writer.scaled = forms_of(stored, "_scaled") if writer.rounds_once else frozenset()
    writer.divides_roughly = writer.rounds_once and "rough" in forms_of(stored, "_quotient")
    writer.give(anchor, "acc")
    for number in chain.numbers:
        writer.give(number, extra.scalar(number))
    if residual is not None:
        writer.give(residual, f"residual.to(tl.{compute_type(residual.dtype).name})")
    for target, index, item in stores:
        writer.store(target, index, item, along=("row", "column"))
    text = writer.stored(value, root)
    name = chain_name(nodes, "identity")
    parameters = ["acc", "row", "column", "mask", "extra", *(["residual"] if residual is not None else [])]
    source = source_text(name, parameters, [], [*lines, *writer.lines, f"return {text}"])
    halved = {op for op, each in ACTIVATIONS.items() if each.of_half}
    activations = sum(writer.work[op] for op in halved)
    functions = function_instructions({op: count for op, count in writer.work.items() if op not in halved})
    bare = text == "acc" and not (lines or writer.lines)
    work = writer.work
    cost = EpilogueCost(work["by column"], work["by element"], activations, work["by row"], bare, functions=functions)
    return Epilogue(function_from_source(name, source, value.dtype if rounded else None), cost)


def _place_of(tracer: ExpressionTracer, chain: Chain, coordinates: Coordinates) -> Coordinates:
    """Where in the chain's value the kernel's element is, by the permutes and reshapes on the way from the anchor."""
    places = {chain.anchor: coordinates}
    for node in chain.nodes:
        source = next((item for item in node.inputs if item in places), None)
        if source is None:
            continue
        place = moved_coordinates(node, places[source])
        if place is not None:
            place = align(place, node.output.shape)
            tracer.know(node.output, place, tracer.trace(source, places[source]))
        places[node.output] = place or places[source]
    return places[chain.value]


def moved_coordinates(node: Node, coordinates: Coordinates) -> Coordinates | None:
    """Where a permute or reshape brings the element at `coordinates`; None for other nodes."""
    source = node.inputs[0]
    assert source is not None
    if node.op == "permute":
        return tuple(coordinates[axis] for axis in node.attributes["order"])
    if node.op == "reshape":
        return unflatten(flatten(coordinates, source.shape), node.output.shape)
    return None


@dataclass(frozen=True)
class GateChain:
    """A gate as data: the elementwise nodes that compute `value` from two blocks of its shape alone."""

    nodes: tuple[Node, ...]
    left: Value
    right: Value
    value: Value
    constants: Mapping[Value, np.ndarray]

    def joined(self, epilogue: Epilogue, rounded: DType | None = None) -> Epilogue:
        """The epilogue of the columns that a gate yields, whose activations suit results of the type `rounded`."""
        cost = replace(epilogue.cost, activations=epilogue.cost.activations + 1, gated=True, bare=False)
        return replace(epilogue, gate=self._function(rounded), cost=cost)

    def _function(self, rounded: DType | None) -> JITFunction:
        """`gate(left, right)`."""
        coordinates = slot_space(self.value.shape)
        tracer = ExpressionTracer(self.nodes, self.constants, {self.left: coordinates, self.right: coordinates})
        writer = Writer(tracer, ExtraReferences(), [], [], "")
        writer.give(self.left, "left")
        writer.give(self.right, "right")
        text = writer.write(tracer.trace(self.value, coordinates))
        name = chain_name(self.nodes, "identity")
        source = source_text(name, ["left", "right"], [], [*writer.lines, f"return {text}"])
        return function_from_source(name, source, rounded)


def place_function(index: Index, shape: Sequence[Size], extra: ExtraReferences) -> JITFunction:
    """`place(batch, head, row, extra)`: where a row of a tensor seen as [batch, head, row, column] begins, by the
    index of its elements, of which the column is a term of its own."""
    variables = [LoopVariable((axis,), extent) for axis, extent in enumerate(shape[:3])]
    writer = Writer(ExpressionTracer((), {}), extra, variables, ["batch", "head", "row"], "")
    terms = tuple(term for term in index.terms if not (isinstance(term[0], Coordinate) and term[0].axis == 3))
    text = writer.index(Index(terms, index.constant))
    source = source_text("place", ["batch", "head", "row", "extra"], [], [*writer.lines, f"return {text}"])
    return function_from_source("place", source)
