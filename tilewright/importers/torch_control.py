"""`torch.cond`, `while_loop`, `scan`, `associative_scan` and `map`: graphs inside the graph, run between the compiled
parts.

Small branches without a product are both computed instead, and loops of few rounds are unrolled: then nothing is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import fx

from tilewright.dtypes import DType, int1, int64
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph, Value
from tilewright.importers.report import Unsupported
from tilewright.importers.torch_complex import Complex
from tilewright.importers.torch_fx import TorchCall, Walker, dtype_of, target_name
from tilewright.importers.torch_numbers import Numeric, read
from tilewright.importers.torch_ops import activation, creation, elementwise, reduction
from tilewright.symbolic import Size, lift, simplify

_CHEAP = frozenset(
    name for table in (activation, creation, elementwise, reduction) for name in table.TABLE.rules
)  # that may be computed in vain
_FEW_OPERATIONS = 12  # of a branch that is computed in any case
_FEW_ROUNDS = 8  # of a loop that is unrolled


class _Missing(Exception):
    """A graph inside has operations that are not imported; they are reported already."""


@dataclass
class _Body:
    """A graph inside, while it is imported."""

    builder: GraphBuilder
    call: TorchCall  # writes nodes to it
    results: list[Value]

    def finish(self) -> Graph:
        for number, value in enumerate(self.results):
            self.builder.output(value, f"result_{number}")
        return self.builder.finish()


class _Control:
    """A node with graphs inside."""

    def __init__(self, walker: Walker, node: fx.Node) -> None:
        self.walker = walker
        self.node = node

    @property
    def call(self) -> TorchCall:
        """Writes nodes to the graph that is imported at this time."""
        return TorchCall(self.walker.builder, self.walker.symbols, self.node)

    def module(self, item: fx.Node) -> fx.GraphModule:
        """The graph that an argument of the node names."""
        found: fx.GraphModule = getattr(item.graph.owning_module, str(item.target))
        return found

    def operands(self, items: Sequence[Any]) -> list[Any]:
        """Values, sizes and numbers for arguments of the node."""
        found = [self.walker.values.get(item) if isinstance(item, fx.Node) else item for item in items]
        if any(item is None for item in found):
            raise _Missing
        if any(isinstance(item, Complex) for item in found):
            raise Unsupported("complex numbers in control flow", "pass real and imaginary parts")
        return found

    def results(self, module: fx.GraphModule, given: Sequence[Any]) -> list[Any]:
        """The results of a graph for some operands, in the graph that is imported at this time."""
        walker = self.walker
        values, walker.values = walker.values, {}
        sizes, walker.symbols.sizes = walker.symbols.sizes, dict(walker.symbols.sizes)
        try:
            for placeholder, item in zip(module.graph.find_nodes(op="placeholder"), given, strict=True):
                walker.values[placeholder] = self._named(placeholder, item)
            for node in module.graph.find_nodes(op="get_attr"):
                data = getattr(module, str(node.target))
                if isinstance(data, torch.Tensor):
                    walker.values[node] = walker.constant(data, str(node.target))
            walker.run(module.graph.nodes)
            (output,) = module.graph.find_nodes(op="output")
            wanted = output.args[0] if isinstance(output.args[0], (tuple, list)) else [output.args[0]]
            return self.operands(wanted)
        finally:
            walker.values, walker.symbols.sizes = values, sizes

    def _named(self, placeholder: fx.Node, item: Any) -> Any:
        """An operand by the name that a graph inside has for it: its sizes are those outside by other names."""
        known = placeholder.meta.get("val")
        symbols = self.walker.symbols
        pairs: list[tuple[Any, Any]] = [(known, item)] if isinstance(known, torch.SymInt) else []
        if isinstance(known, torch.Tensor) and isinstance(item, Value):
            pairs = list(zip(known.shape, item.shape, strict=True))
        for size, value in pairs:
            if symbols.is_untold(size) and not isinstance(value, Value):
                symbols.sizes[str(size.node.expr)] = value
        if isinstance(known, Numeric) and isinstance(item, Value):
            return read(self.call, symbols, known, item)
        return item

    def carried(self, module: fx.GraphModule, first: int, values: Sequence[Any]) -> list[Value]:
        """Values as tensors, from placeholder `first` of a graph on; numbers become tensors."""
        found = []
        for item, placeholder in zip(values, self._placeholders(module)[first:], strict=False):
            found.append(self.call.value(item, _type_of(placeholder.meta["val"])))
        return found

    def _placeholders(self, module: fx.GraphModule) -> list[fx.Node]:
        return list(module.graph.find_nodes(op="placeholder"))

    @contextmanager
    def inside(self, name: str) -> Iterator[TorchCall]:
        """What is imported goes to a new graph, which knows the sizes of the one outside."""
        walker = self.walker
        outside, constants = walker.builder, walker.constants
        sizes = dict(walker.symbols.sizes)
        walker.builder = walker.symbols.builder = GraphBuilder(name, outside)
        walker.constants = {}
        try:
            yield self.call
        finally:
            walker.builder = walker.symbols.builder = outside
            walker.constants, walker.symbols.sizes = constants, sizes

    def capture(self, outside: GraphBuilder, item: Any, name: str, used: bool = True) -> Any:
        """What a graph inside has for an operand: constants are its own, other tensors inputs, sizes as they are."""
        builder = self.walker.builder
        if not isinstance(item, Value):
            return item
        data = outside.graph.constants.get(item)
        if data is not None:
            return builder.constant(data, item.name) if used else item
        return builder.input(name, item.dtype, item.shape)

    def passed(self, outside: GraphBuilder, items: Sequence[Any]) -> list[Value]:
        """Those of some operands that are inputs of a graph inside."""
        return [item for item in items if isinstance(item, Value) and item not in outside.graph.constants]

    def agreed(self, results: Sequence[Any]) -> tuple[Any, ...]:
        """Results in the shapes that PyTorch tells, which may be spelled in another way."""
        pairs = zip(results, self.call.results, strict=True)
        return tuple(
            self.call.reshape(value, self.walker.symbols.shape(fake.shape)) if isinstance(fake, torch.Tensor) else value
            for value, fake in pairs
        )

    def types(self, fakes: Sequence[Any], lead: Sequence[Size] = ()) -> list[tuple[DType, tuple[Size, ...]]]:
        """The types of results as PyTorch tells them; its new sizes become symbols."""
        symbols = self.walker.symbols
        return [(_type_of(fake), (*lead, *symbols.shape(getattr(fake, "shape", ())[len(lead) :]))) for fake in fakes]


def _type_of(known: Any) -> DType:
    if isinstance(known, torch.Tensor):
        return dtype_of(known.dtype)
    if isinstance(known, (bool, torch.SymBool)):
        return int1
    return int64 if isinstance(known, (int, torch.SymInt)) else dtype_of(torch.float64)


# Branches --------------------------------------------------------------------------------------------


def branch(control: _Control) -> tuple[Any, ...]:
    """`torch.cond`: one of two graphs of the same operands."""
    walker, node = control.walker, control.node
    condition, *names, operands = node.args[:4]
    given = control.operands(operands)  # type: ignore[arg-type]
    (chosen,) = control.operands([condition])
    modules = [control.module(name) for name in names]  # type: ignore[arg-type]
    if not isinstance(chosen, Value) and isinstance(chosen, (bool, int)):
        return tuple(control.results(modules[0 if chosen else 1], given))
    chosen = control.call.reshape(control.call.value(chosen, int1), ())
    if all(map(_is_cheap, modules)):
        pairs = zip(*(control.results(module, given) for module in modules), strict=True)
        call = control.call
        return tuple(
            call.op("where", chosen, *(call.value(item, _type_of(fake)) for item in pair))
            for pair, fake in zip(pairs, call.results, strict=True)
        )
    outside, bodies = walker.builder, []
    fakes = control.call.results
    for module, name in zip(modules, ("then", "otherwise"), strict=True):
        placeholders = list(module.graph.find_nodes(op="placeholder"))
        with control.inside(name) as call:
            inner = [
                control.capture(outside, item, f"given_{number}", bool(place.users))
                for number, (item, place) in enumerate(zip(given, placeholders, strict=True))
            ]
            results = control.results(module, inner)
            results = [call.value(item, _type_of(fake)) for item, fake in zip(results, fakes, strict=True)]
            bodies.append(_Body(walker.builder, call, _own(call, results)).finish())
    inputs = [chosen, *control.passed(outside, given)]
    types = tuple(control.types(fakes))
    made = outside.node("if", inputs, source=control.call.source, then=bodies[0], otherwise=bodies[1], types=types)
    return tuple(made.outputs)


def _is_cheap(module: fx.GraphModule) -> bool:
    """Whether a branch may be computed in vain: it is small, reads nothing by position and checks nothing."""
    calls = [node for node in module.graph.nodes if node.op == "call_function"]
    names = [target_name(node.target) for node in calls if not isinstance(node.meta.get("val"), Numeric)]
    return len(calls) <= _FEW_OPERATIONS and all(name in _CHEAP for name in names)


def _own(call: TorchCall, values: Sequence[Value]) -> list[Value]:
    """Results of a graph inside: inputs, constants and repeated values as copies."""
    found: list[Value] = []
    graph = call.builder.graph
    for value in values:
        given = value in graph.inputs or value in graph.constants or value in found
        found.append(call.op("copy", value) if given else value)
    return found


# Loops -----------------------------------------------------------------------------------------------


def while_loop(control: _Control) -> tuple[Any, ...]:
    """`while_loop(condition, body, carried, captured)`."""
    walker, node = control.walker, control.node
    condition, body = (control.module(item) for item in node.args[:2])  # type: ignore[arg-type]
    first = control.carried(body, 0, control.operands(node.args[2]))  # type: ignore[arg-type]
    captured = control.operands(node.args[3] if len(node.args) > 3 else ())  # type: ignore[arg-type]
    begin = control.call.value(control.results(condition, [*first, *captured])[0], int1)
    outside = walker.builder
    with control.inside("body") as call:
        inner = _round_inputs(control, body, first)
        extra = [control.capture(outside, item, f"captured_{number}") for number, item in enumerate(captured)]
        results = control.results(body, [*inner, *extra])
        results = [call.value(item, value.dtype) for item, value in zip(results, first, strict=True)]
        going = call.value(control.results(condition, [*results, *extra])[0], int1)
        graph = _Body(walker.builder, call, _own(call, [call.reshape(going, ()), *results])).finish()
    inputs = [None, control.call.reshape(begin, ()), *first, *control.passed(outside, captured)]
    types = tuple(control.types(control.call.results))
    made = outside.node("loop", inputs, source=control.call.source, body=graph, carried=len(first), types=types)
    return tuple(made.outputs)


def _round_inputs(control: _Control, body: fx.GraphModule, first: Sequence[Value]) -> list[Value]:
    """The inputs of a loop's body: the iteration, whether it goes on, and the carried values, which are returned."""
    builder = control.walker.builder
    builder.input("iteration", int64, ())
    builder.input("going", int1, ())
    placeholders = list(body.graph.find_nodes(op="placeholder"))
    shapes = [shape for _, shape in control.types([place.meta["val"] for place in placeholders[: len(first)]])]
    return [
        builder.input(f"carried_{number}", value.dtype, shape)
        for number, (value, shape) in enumerate(zip(first, shapes, strict=True))
    ]


def scan(control: _Control) -> tuple[Any, ...]:
    """`scan(body, first, lines, captured)`: the body takes what is carried, a row of each line, and what is captured;
    it gives what is carried on, and rows."""
    body, first, lines, *captured = control.node.args
    return _over_rows(control, body, first, lines, captured[0] if captured else ())


def map_rows(control: _Control) -> tuple[Any, ...]:
    """`map(body, lines, captured)`."""
    body, lines, captured = control.node.args[:3]
    return _over_rows(control, body, (), lines, captured)


def _over_rows(control: _Control, name: Any, first: Any, lines: Any, captured: Any) -> tuple[Any, ...]:
    body = control.module(name)
    start = control.carried(body, 0, control.operands(first))
    values, extra = control.operands(lines), control.operands(captured)
    length = values[0].shape[0]
    fakes = control.call.results
    if isinstance(length, int) and 0 < length <= _FEW_ROUNDS:
        return _unrolled(control, body, start, values, extra)
    outside, count = control.walker.builder, len(start)
    with control.inside("body") as call:
        inner = _round_inputs(control, body, start)
        iteration = call.builder.graph.inputs[0]
        wholes = [control.capture(outside, item, f"line_{number}") for number, item in enumerate(values)]
        rows = [call.op("gather", whole, iteration, axis=0) for whole in wholes]
        inside = [control.capture(outside, item, f"captured_{number}") for number, item in enumerate(extra)]
        results = control.results(body, [*inner, *rows, *inside])
        results = [call.value(item, _type_of(fake)) for item, fake in zip(results, fakes, strict=True)]
        going = call.constant(np.array(True), "going_on")
        graph = _Body(call.builder, call, [going, *_own(call, results)]).finish()
    types = [*control.types(fakes[:count]), *control.types(fakes[count:], (length,))]
    trips = control.call.value(length, int64)
    inputs = [trips, None, *start, *control.passed(outside, values), *control.passed(outside, extra)]
    made = outside.node("loop", inputs, source=control.call.source, body=graph, carried=count, types=tuple(types))
    return tuple(made.outputs)


def _unrolled(
    control: _Control, body: fx.GraphModule, carried: list[Value], lines: Sequence[Value], extra: Sequence[Any]
) -> tuple[Any, ...]:
    """The rounds one after the other in the graph itself."""
    count, call = len(carried), control.call
    fakes = call.results
    rows: list[list[Value]] = [[] for _ in fakes[count:]]
    for place in range(lines[0].shape[0]):  # type: ignore[arg-type]
        given = [call.select(line, 0, place) for line in lines]
        results = control.results(body, [*carried, *given, *extra])
        values = [call.value(item, _type_of(fake)) for item, fake in zip(results, fakes, strict=True)]
        carried = values[:count]
        for row, value in zip(rows, values[count:], strict=True):
            row.append(call.unsqueeze(value, 0))
    return (*carried, *(row[0] if len(row) == 1 else call.op("concat", *row, axis=0) for row in rows))


def associative_scan(control: _Control) -> tuple[Any, ...]:
    """`associative_scan(combine, lines, captured)`: the running combination of rows, one after the other."""
    body = control.module(control.node.args[0])  # type: ignore[arg-type]
    lines = control.operands(control.node.args[1])  # type: ignore[arg-type]
    extra = control.operands(control.node.args[2] if len(control.node.args) > 2 else ())  # type: ignore[arg-type]
    call, outside, count = control.call, control.walker.builder, len(lines)
    start = [call.select(line, 0, 0) for line in lines]
    length = simplify(lift(lines[0].shape[0]) - 1)
    with control.inside("body") as inner:
        carried = _round_inputs(control, body, start)
        place = inner.op("add", inner.builder.graph.inputs[0], 1)
        wholes = [control.capture(outside, item, f"line_{number}") for number, item in enumerate(lines)]
        rows = [inner.op("gather", whole, place, axis=0) for whole in wholes]
        inside = [control.capture(outside, item, f"captured_{number}") for number, item in enumerate(extra)]
        results = control.results(body, [*carried, *rows, *inside])
        going = inner.constant(np.array(True), "going_on")
        graph = _Body(inner.builder, inner, [going, *_own(inner, [*results, *results])]).finish()
    types = [(value.dtype, value.shape) for value in start]
    types += [(value.dtype, (length, *value.shape)) for value in start]
    inputs = [call.value(length, int64), None, *start, *control.passed(outside, lines), *control.passed(outside, extra)]
    made = outside.node("loop", inputs, source=call.source, body=graph, carried=count, types=tuple(types))
    return tuple(
        call.op("concat", call.unsqueeze(one, 0), rest, axis=0)
        for one, rest in zip(start, made.outputs[count:], strict=True)
    )


_RULES: dict[str, Callable[[_Control], tuple[Any, ...]]] = {
    "cond": branch, "while_loop": while_loop, "scan": scan, "map_impl": map_rows, "associative_scan": associative_scan,
}  # fmt: skip


CONTROL = frozenset(_RULES)


def import_control(walker: Walker, node: fx.Node) -> bool:
    """Import a node with graphs inside; whether it is one."""
    rule = _RULES.get(target_name(node.target)) if isinstance(node.target, torch._ops.HigherOrderOperator) else None
    if rule is None:
        return False
    control = _Control(walker, node)
    try:
        walker.values[node] = control.agreed(rule(control))
    except _Missing:
        pass  # reported where it was found
    return True


def import_control_whole(walker: Walker, node: fx.Node) -> bool:
    """As `import_control`; what is missing inside is the problem of the node itself, which stays as a whole."""
    problems = walker.report.problems
    reported = len(problems)
    found = import_control(walker, node)
    for place, problem in enumerate(problems[reported:], start=reported):
        if problem.node != node.name:
            problems[place] = replace(problem, node=node.name, reason=f"{problem.operation} inside: {problem.reason}")
    return found
