"""If, Loop and Scan that depend on data: graphs inside the graph, run between the compiled parts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import AttributeProto, GraphProto, NodeProto

from tilewright.dtypes import DType, int1, int64
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph, Node, Value
from tilewright.importers.onnx_call import OnnxCall, Tensor, known_tensor
from tilewright.importers.onnx_scope import BodyScope, Scope
from tilewright.importers.onnx_sequences import ItemShape, RunTimeList, as_value, converted, joined
from tilewright.importers.onnx_structure import DEEPEST
from tilewright.importers.report import Invalid, Unsupported
from tilewright.symbolic import Size, free_symbols, lift, simplify

if TYPE_CHECKING:
    from tilewright.importers.onnx import _Importer

_MOST_ROWS = 64  # of a batch that a Scan has
Feeds = Callable[[OnnxCall], Sequence[Tensor]]  # the tensors of a body's inputs, made in its own graph


@dataclass
class Body:
    """A graph inside: its results, and the tensors outside that are its last inputs, by name."""

    builder: GraphBuilder
    results: list[Tensor]
    captured: dict[str, Value]


@dataclass
class Control:
    """A node with graphs inside, while it is imported."""

    importer: _Importer
    node: NodeProto
    attributes: Mapping[str, AttributeProto]
    inputs: list[Tensor | None]
    scope: Scope
    source: str

    @property
    def call(self) -> OnnxCall:
        """Writes nodes to the graph outside."""
        return _call(self.importer.builder, self.source, self.scope.opset)

    def integers(self, name: str, count: int, default: int) -> list[int]:
        """A list attribute with an entry for each of `count` tensors."""
        found = list(self.attributes[name].ints) if name in self.attributes else [default] * count
        if len(found) != count:
            raise Invalid(f"the attribute {name!r} has {len(found)} entries; it must have {count}")
        return found

    def body(self, graph: GraphProto, feeds: Feeds, outputs: int) -> Body:
        """Import a graph inside."""
        importer, scope = self.importer, self.scope
        if scope.depth >= DEEPEST:
            raise Invalid(f"functions and branches are more than {DEEPEST} deep")
        if len(graph.output) != outputs:
            raise Invalid(f"its graph has {len(graph.output)} outputs; it must have {outputs}")
        with _inside(importer, graph.name or self.node.op_type):
            builder = importer.builder
            inner = BodyScope(
                scope.opset, {}, scope, scope.attributes, scope.place, scope.depth + 1, scope.versions, builder=builder
            )
            call = _call(builder, self.source, scope.opset)
            given = feeds(call)
            if len(given) != len(graph.input):
                raise Invalid(f"its graph has {len(graph.input)} inputs; it must have {len(given)}")
            inner.values.update({entry.name: item for entry, item in zip(graph.input, given, strict=True)})
            importer.initializers(graph, inner)
            importer.nodes(graph.node, inner, [entry.name for entry in graph.output])
            results = [inner.find(entry.name) for entry in graph.output]
            importer.missing(results)
            if not all(isinstance(result, Tensor) for result in results):
                raise Unsupported("its graph has operations that are not supported", "see the other entries")
            found = [as_value(call, result) for result in results if isinstance(result, Tensor)]
            for number, result in enumerate(found):
                builder.output(call.materialize(result), f"result_{number}")
            return Body(builder, found, inner.captured)

    def replace_result(self, body: Body, number: int, dtype: DType) -> None:
        """Let a graph inside give a result as an optional of what it is."""
        result = converted(_call(body.builder, self.source, self.scope.opset), body.results[number], dtype)
        if result.value is not None:
            body.results[number], body.builder.graph.outputs[number] = result, result.value

    def item_outside(self, *tensors: Tensor) -> ItemShape | None:
        """What the graph outside knows of the items of lists."""
        found: ItemShape | None = None
        for tensor in tensors:
            found = joined(found, tensor.item if isinstance(tensor, RunTimeList) else None)
        if found is None or found.sizes is None:
            return found
        return ItemShape(tuple(n if n is not None and self.seen_outside(n) else None for n in found.sizes))

    def seen_outside(self, size: Size) -> bool:
        """Whether the graph outside knows a size."""
        known = self.importer.builder.graph.symbols
        return all(symbol.name in known for symbol in free_symbols(size))

    def append(self, op: str, inputs: Sequence[Value | None], **attributes: Any) -> Node:
        """The node itself, in the graph outside."""
        return self.importer.builder.node(op, inputs, source=self.source, **attributes)


def _call(builder: GraphBuilder, source: str, opset: int) -> OnnxCall:
    return OnnxCall(builder, source, [], {}, opset, 0)


@contextmanager
def _inside(importer: _Importer, name: str) -> Iterator[None]:
    """What is imported goes to a new graph, which knows the sizes of the one outside."""
    outside = importer.builder
    importer.builder = GraphBuilder(name, outside)
    try:
        yield
    finally:
        importer.builder = outside


def _finish(bodies: Sequence[Body]) -> tuple[list[Graph], list[Value]]:
    """The graphs, all with the same last inputs, and the tensors outside that those are."""
    captured: dict[str, Value] = {}
    for body in bodies:
        for name, value in body.captured.items():
            if captured.setdefault(name, value) is not value:
                raise Unsupported(f"graphs that know two tensors by one name ({name!r})", "rename them")
    graphs = []
    for body in bodies:
        graph = body.builder.graph
        own = {value.name: value for value in graph.inputs}
        first = [value for value in graph.inputs if value.name not in captured]
        for name, value in captured.items():
            if name not in own:
                own[name] = Value(name, value.dtype, value.shape)
        graph.inputs = [*first, *(own[name] for name in captured)]
        graphs.append(body.builder.finish())
    return graphs, list(captured.values())


class RanksDiffer(Unsupported):
    """The branches of an If give a result with other numbers of dimensions."""


# If ------------------------------------------------------------------------------------------------


def branch(control: Control) -> list[Tensor]:
    """An If whose condition is computed from data: both branches, one of which is run."""
    condition = control.inputs[0]
    assert condition is not None
    count = len(control.node.output)
    bodies = [control.body(control.attributes[key].g, lambda call: [], count) for key in ("then_branch", "else_branch")]
    types = []
    for number in range(count):
        kinds = {body.results[number].dtype for body in bodies}
        for dtype in sorted(kinds, key=str):
            if dtype.kind == "optional":
                for body in bodies:
                    control.replace_result(body, number, dtype)
        left, right = (body.results[number] for body in bodies)
        if left.dtype != right.dtype:
            raise Invalid(f"its branches give {left.dtype} and {right.dtype} as result {number}; they must be the same")
        if len(left.shape) != len(right.shape):
            raise RanksDiffer(
                f"the branches give {len(left.shape)} and {len(right.shape)} dimensions as result {number}",
                "let both give the same number of dimensions",
            )
        shape = tuple(
            a if a == b and control.seen_outside(a) else control.call.fresh("branch")
            for a, b in zip(left.shape, right.shape, strict=True)
        )
        types.append((left.dtype, shape))
    (then, otherwise), captured = _finish(bodies)
    inputs = [control.call.materialize(condition), *captured]
    node = control.append("if", inputs, then=then, otherwise=otherwise, types=tuple(types))
    items = [control.item_outside(*(body.results[number] for body in bodies)) for number in range(count)]
    return _named(control, node.outputs, items)


def _named(control: Control, values: Sequence[Value], items: Sequence[ItemShape | None]) -> list[Tensor]:
    """Results of a node; `items` says what is known of those that are lists."""
    found: list[Tensor] = []
    for number, (name, value) in enumerate(zip(control.node.output, values, strict=False)):
        item = items[number] if number < len(items) else None
        found.append(_tensor(name, value, item))
    return found


def _tensor(name: str, value: Value, item: ItemShape | None) -> Tensor:
    """A value as a tensor or as a list of such items."""
    is_list = value.dtype.kind in ("sequence", "optional")
    return RunTimeList(name, value, item=item) if is_list else Tensor(name, value)


# Loop ----------------------------------------------------------------------------------------------


def loop(control: Control) -> list[Tensor]:
    """A Loop: carried values may change their sizes."""
    trips, condition, *carried = [*control.inputs, None, None][: max(2, len(control.inputs))]
    first = [as_value(control.call, item) for item in carried if item is not None]
    if len(first) != len(carried):
        raise Invalid("an initial value is left out")
    if trips is None and condition is None:
        raise Unsupported("a Loop without a trip count and a condition, which never ends")
    graph = control.attributes["body"].g
    rows = len(graph.output) - 1 - len(first)

    def feeds(call: OnnxCall, values: list[Tensor]) -> list[Tensor]:
        iteration, going = (call.builder.input(name, dtype, ()) for name, dtype in (("i", int64), ("going", int1)))
        return [Tensor("i", iteration), Tensor("going", going), *values]

    body, shapes, loose = _settled(control, graph, first, 1, rows, feeds)
    _order(body, len(first))
    going = body.results[0]
    unchanged = going.value is not None and going.value is body.builder.graph.inputs[1]
    always = _is_true(going) or (unchanged and (condition is None or _is_true(condition)))
    count = _only(trips) if always and (condition is None or _is_true(condition)) else None
    results = _loop(control, body, (trips, condition), first, (shapes, loose), count)
    return _named(
        control, results, [control.item_outside(*pair) for pair in zip(first, body.results[1:], strict=False)]
    )


def _is_true(tensor: Tensor) -> bool:
    known = tensor.known
    return known is not None and known.dtype != object and known.size == 1 and bool(known.reshape(-1)[0])


def _only(tensor: Tensor | None) -> Size | None:
    """The only element of a known tensor, as a number of rounds."""
    if tensor is None or tensor.known is None or tensor.known.size != 1:
        return None
    size = tensor.known.reshape(-1)[0]
    return max(0, int(size)) if not tensor.symbolic else size


def _settled(
    control: Control,
    graph: GraphProto,
    first: list[Tensor],
    leading: int,
    rows: int,
    feeds: Callable[[OnnxCall, list[Tensor]], list[Tensor]],
) -> tuple[Body, list[tuple[Size, ...]], list[set[int]]]:
    """The body with carried values of sizes that every round gives again: those that change are symbols of its own.

    Returns the shapes of the carried values, and which of their dimensions change.  `leading` results stand before
    the carried ones.
    """
    loose: list[set[int]] = [set() for _ in first]
    items = [tensor.item if isinstance(tensor, RunTimeList) else None for tensor in first]
    problems = list(control.importer.report.problems)
    while True:
        control.importer.report.problems[:] = problems
        shapes: list[tuple[Size, ...]] = []

        def given(call: OnnxCall, shapes: list[tuple[Size, ...]] = shapes) -> list[Tensor]:
            values = []
            for number, (tensor, changing) in enumerate(zip(first, loose, strict=True)):
                shape = tuple(
                    call.fresh("carried") if axis in changing else size for axis, size in enumerate(tensor.shape)
                )
                shapes.append(shape)
                name = f"carried_{number}"
                values.append(_tensor(name, call.builder.input(name, tensor.dtype, shape), items[number]))
            return feeds(call, values)

        body = control.body(graph, given, leading + len(first) + rows)
        for number, tensor in enumerate(first):
            control.replace_result(body, leading + number, tensor.dtype)
        after = body.results[leading : leading + len(first)]
        found = [control.item_outside(*pair) for pair in zip(first, after, strict=True)]
        if not _loosen(after, first, shapes, loose) and found == items:
            return body, shapes, loose
        items[:] = found


def _loosen(
    results: Sequence[Tensor], first: Sequence[Tensor], shapes: Sequence[tuple[Size, ...]], loose: list[set[int]]
) -> bool:
    """Add the dimensions that a round changes to `loose`; whether there were any."""
    changed = False
    for number, (result, tensor, shape) in enumerate(zip(results, first, shapes, strict=True)):
        if result.dtype != tensor.dtype:
            raise Invalid(f"carried value {number} is {tensor.dtype} first and {result.dtype} after a round")
        if len(result.shape) != len(shape):
            raise Unsupported(
                f"carried value {number} has {len(shape)} dimensions first and {len(result.shape)} after a round",
                "keep the number of dimensions",
            )
        for axis, (after, before) in enumerate(zip(result.shape, shape, strict=True)):
            if after != before and axis not in loose[number]:
                loose[number].add(axis)
                changed = True
    return changed


def _loop(
    control: Control,
    body: Body,
    operands: tuple[Tensor | None, Tensor | None],
    first: list[Tensor],
    sizes: tuple[list[tuple[Size, ...]], list[set[int]]],
    count: Size | None,
) -> list[Value]:
    """The `loop` node's results; `count` rounds, when that is known."""
    call, carried = control.call, len(first)
    types: list[Any] = []
    for tensor, changing in zip(first, sizes[1], strict=True):
        shape = [call.fresh("carried") if axis in changing else size for axis, size in enumerate(tensor.shape)]
        types.append((tensor.dtype, tuple(shape)))
    rows = body.results[1 + carried :]
    trips = call.fresh("trips") if count is None and rows else count
    for row in rows:
        shape = [size if control.seen_outside(size) else call.fresh("row") for size in row.shape]
        types.append((row.dtype, (trips, *shape)))
    (graph,), captured = _finish([body])
    initial = [call.materialize(tensor) for tensor in first]
    given = [None if item is None else call.materialize(item) for item in operands]
    if given[0] is None and given[1] is None:
        raise Unsupported("a Loop without a trip count and a condition, which never ends")
    node = control.append("loop", [*given, *initial, *captured], body=graph, carried=carried, types=tuple(types))
    return list(node.outputs)


# Scan ----------------------------------------------------------------------------------------------


def scan(control: Control) -> list[Tensor]:
    """A Scan; that of opset 8 has a batch of its own as the first dimension, whose rows are scanned one by one."""
    if control.scope.opset >= 9:
        return _scan(control)
    lengths, *inputs = control.inputs
    batch = None if not inputs or inputs[0] is None or not inputs[0].shape else inputs[0].shape[0]
    if lengths is not None or not isinstance(batch, int) or not 0 < batch <= _MOST_ROWS:
        raise Unsupported(
            f"a Scan of opset 8 with {'lengths' if lengths is not None else f'a batch of {batch}'}",
            f"fix the batch at 1 to {_MOST_ROWS}, or convert the model to opset 9 or later",
        )
    call, attributes = control.call, dict(control.attributes)
    if "directions" in attributes:
        attributes["scan_input_directions"] = attributes.pop("directions")
    values = [call.materialize(item) for item in inputs if item is not None]
    rows: list[list[Value]] = []
    for row in range(batch):
        given: list[Tensor | None] = [Tensor("", call.select(value, 0, row)) for value in values]
        results = _scan(dataclasses.replace(control, inputs=given, attributes=attributes))
        rows.append([call.unsqueeze(call.materialize(result), 0) for result in results])
    joined_rows = [call.op("concat", *column, axis=0) for column in zip(*rows, strict=True)]
    return [Tensor(name, value) for name, value in zip(control.node.output, joined_rows, strict=False)]


def _scan(control: Control) -> list[Tensor]:
    """A Scan as a loop over the positions of its inputs."""
    inputs = [item for item in control.inputs if item is not None]
    count = control.attributes["num_scan_inputs"].i
    graph = control.attributes["body"].g
    states = len(inputs) - count
    if count < 1 or states < 0 or len(graph.output) < states:
        raise Invalid(f"the attribute 'num_scan_inputs' is {count} of {len(inputs)} inputs")
    call, first = control.call, inputs[:states]
    lines = [call.materialize(item) for item in inputs[states:]]
    axes = [
        call.place(axis, value.rank)
        for axis, value in zip(control.integers("scan_input_axes", count, 0), lines, strict=True)
    ]
    backwards = control.integers("scan_input_directions", count, 0)
    rows = len(graph.output) - states
    length = lines[0].shape[axes[0]]

    def feeds(inner: OnnxCall, values: list[Tensor]) -> list[Tensor]:
        iteration = inner.builder.input("i", int64, ())
        inner.builder.input("going", int1, ())
        last = inner.value(simplify(lift(length) - 1), int64)
        slices = []
        for number, (line, axis, turned) in enumerate(zip(lines, axes, backwards, strict=True)):
            whole = inner.builder.input(f"line_{number}", line.dtype, line.shape)
            place = inner.op("subtract", last, iteration) if turned else iteration
            slices.append(Tensor(f"slice_{number}", inner.op("gather", whole, place, axis=axis)))
        return [*values, *slices]

    body, shapes, loose = _settled(control, graph, first, 0, rows, feeds)
    _as_loop(body, states, lines)
    trips = known_tensor("trips", length)
    results = _loop(control, body, (trips, None), first, (shapes, loose), length)
    turned = control.integers("scan_output_directions", rows, 0)
    places = control.integers("scan_output_axes", rows, 0)
    for number, (value, back, place) in enumerate(zip(results[states:], turned, places, strict=True), start=states):
        value = call.flip(value, 0) if back else value
        axis = call.place(place, value.rank)
        order = list(range(1, value.rank))
        order.insert(axis, 0)
        results[number] = call.permute(value, order)
    return [Tensor(name, value) for name, value in zip(control.node.output, results, strict=False)]


def _order(body: Body, carried: int) -> None:
    """A loop's inputs in their order: the iteration, the condition, the carried values."""
    graph = body.builder.graph
    by_name = {value.name: value for value in graph.inputs}
    first = [by_name[name] for name in ("i", "going", *(f"carried_{number}" for number in range(carried)))]
    graph.inputs = [*first, *(value for value in graph.inputs if value not in first)]


def _as_loop(body: Body, states: int, values: Sequence[Value]) -> None:
    """A Scan's body as a loop's: the whole inputs are captured, and it always goes on."""
    graph = body.builder.graph
    _order(body, states)
    captured = {f"line_{number}": value for number, value in enumerate(values)}
    body.captured = {**captured, **body.captured}
    going = body.builder.constant(np.array(True), "going_on")
    graph.outputs.insert(0, going)
    graph.output_names.insert(0, "going_on")
    body.results.insert(0, Tensor("going_on", going))


CONTROL_OPERATORS: dict[str, Callable[[Control], list[Tensor]]] = {"If": branch, "Loop": loop, "Scan": scan}
