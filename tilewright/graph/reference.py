"""The NumPy reference: runs a graph node by node, by the meanings in the op table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from tilewright.dtypes import HOST_ONLY, DType, float8e4nv, float8e5, from_numpy
from tilewright.errors import ShapeError
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.host_values import host_array, returned
from tilewright.graph.ops import ON_HOST, definition
from tilewright.symbolic import Expression, Size, evaluate, free_symbols, plain_symbol

# Runs a compiled part: its node, the arrays that go in, the symbols' values.
PartRunner = Callable[[Node, Sequence[Any], Mapping[str, int]], "list[np.ndarray]"]


def run(graph: Graph, inputs: Mapping[str, Any], dtype: Any = np.float64) -> dict[str, Any]:
    """The outputs of a graph by name; mutated inputs are returned under the input's name as well.

    Floating-point values are computed in `dtype` throughout (float64: a reference for any format), but 8-bit ones,
    which are numbers of quantized tensors; None keeps each value's own element type.  Symbols are bound from the
    inputs' shapes, and from those of what ops of the host give.  Raises `ShapeError` for missing inputs and shapes that
    do not match.
    """
    read = {value.name: read_input(inputs, value) for value in graph.inputs if value.name in inputs}
    symbols = bind_symbols(graph, read)
    working = None if dtype is None else from_numpy(np.dtype(dtype))
    arrays = [read[value.name] for value in graph.inputs]
    found = run_graph(graph, arrays, symbols, working, _interpreter(graph, working))
    results = {target.name: found[value] for target, value in graph.mutations.items()}
    results.update(
        {
            name: returned(found[value], value.dtype)
            for name, value in zip(graph.output_names, graph.outputs, strict=True)
        }
    )
    return results


def read_input(inputs: Mapping[str, Any], value: Value) -> np.ndarray:
    """An input as an array."""
    item = inputs[value.name]
    return host_array(item, value.dtype, value.name) if value.dtype in HOST_ONLY else np.asarray(item)


def run_graph(
    graph: Graph,
    arrays: Sequence[np.ndarray],
    symbols: dict[str, int],
    working: DType | None = None,
    run_part: PartRunner | None = None,
) -> dict[Value, np.ndarray]:
    """The results of a graph for its inputs in order; symbols that its nodes give values are added to `symbols`.

    `run_part` runs the compiled parts.
    """
    values: dict[Value, np.ndarray] = {}
    for value, array in zip(graph.inputs, arrays, strict=True):
        values[value] = _convert(array, value.dtype, working)
    for value, data in graph.constants.items():
        values[value] = _convert(data, value.dtype, working)
    last_use = last_uses(graph)
    for position, node in enumerate(graph.nodes):
        given = [None if item is None else values[item] for item in node.inputs]
        kind = definition(node.op).kind
        if kind == "part":
            assert run_part is not None
            results = run_part(node, given, symbols)
        elif kind == "control":
            run_control = _branch if node.op == "if" else _loop
            results = run_control(node, given, symbols, working, run_part)
        else:
            results = [run_node(node, given, symbols, working)]
        for output, result in zip(node.outputs, results, strict=True):
            if kind == "control":
                bind(output.shape, result.shape, symbols, partial(described, node, output))
            values[output] = result
        for item in last_use.get(position, ()):
            del values[item]
    return {value: values[value] for value in graph.results()}


def _interpreter(graph: Graph, working: DType | None) -> PartRunner:
    """Runs the parts of a graph node by node."""

    def run_part(node: Node, arrays: Sequence[Any], symbols: Mapping[str, int]) -> list[np.ndarray]:
        return interpret_part(graph.parts[node.attributes["number"]], arrays, symbols, working)

    return run_part


def interpret_part(
    part: Graph, arrays: Sequence[Any], symbols: Mapping[str, int], working: DType | None = None
) -> list[np.ndarray]:
    """The outputs of a part, node by node: the inputs that only stand for sizes are left out of `arrays`."""
    part = part.at_zero or part
    carried = [np.broadcast_to(np.False_, (evaluate(value.shape[0], symbols),)) for value in part.inputs[len(arrays) :]]
    found = run_graph(part, [*arrays, *carried], dict(symbols), working)
    return [found[value] for value in part.outputs]


def run_node(
    node: Node, arrays: list[np.ndarray | None], symbols: dict[str, int], working: DType | None = None
) -> np.ndarray:
    """One node's output; raises `ShapeError` when the result has another shape than the node says.

    An op of the host gives symbols that have no value yet theirs, which are added to `symbols`.
    """
    attributes = {key: concrete(item, symbols, working) for key, item in node.attributes.items()}
    return PreparedNode(node).run(arrays, attributes, symbols, working)


class PreparedNode:
    """A node that runs many times: what no call changes is worked out once."""

    def __init__(self, node: Node) -> None:
        row, output = definition(node.op), node.output
        self.node, self._on_host, self._compute = node, row.kind == "host", row.compute
        self._numbers = output.shape if all(isinstance(size, int) for size in output.shape) else None
        self._dtype = output.dtype.numpy

    def run(
        self,
        arrays: Sequence[np.ndarray | None],
        attributes: Mapping[str, Any],
        symbols: dict[str, int],
        working: DType | None = None,
    ) -> np.ndarray:
        """As `run_node`, for attributes in which sizes are numbers already, as far as they are known."""
        try:
            result = self._compute(arrays, attributes)
        except ShapeError as error:
            if not self._on_host:
                raise
            raise ShapeError(f"{error} ({described(self.node)})") from None
        if working is None and type(result) is np.ndarray and result.dtype == self._dtype:
            if result.shape == self._numbers:
                return result
        elif isinstance(result, str):  # of a tensor without dimensions
            result = np.array(result, object)
        node, output = self.node, self.node.outputs[0]
        if result.shape == self._numbers:
            pass
        elif self._on_host:
            bind(output.shape, result.shape, symbols, lambda: described(node, subject=attributes.get("what", "")))
        elif result.shape != (expected := tuple([evaluate(extent, symbols) for extent in output.shape])):
            raise ShapeError(f"{node.op} -> {output!r} gave the shape {list(result.shape)}, not {list(expected)}")
        if working is None and type(result) is np.ndarray and result.dtype == self._dtype:
            return result
        return _convert(result, output.dtype, working)


def described(node: Node, output: Value | None = None, subject: str = "") -> str:
    """A node for messages."""
    text = f"{node.op} %{(output or node.outputs[0]).name}" + (f", from {node.source}" if node.source else "")
    return f"{subject} ({text})" if subject else text


def bind(shape: Sequence[Size], actual: tuple[int, ...], symbols: dict[str, int], describe: Callable[[], str]) -> None:
    """Give symbols without a value those of a result's dimensions; raises `ShapeError`, which calls the result
    `describe()`, for what does not fit."""
    if len(shape) != len(actual):
        raise ShapeError(f"{describe()} gave {len(actual)} dimensions {list(actual)}, not {len(shape)}")
    for axis, (size, extent) in enumerate(zip(shape, actual, strict=True)):
        if size == extent:  # a number
            continue
        found = plain_symbol(size)
        known = evaluate(size, symbols) if found is None else symbols.get(found.name)
        if found is not None and known is None:
            if not found.low <= extent <= found.high:
                raise ShapeError(f"{describe()}: the size {found} is {extent}, outside {found.low}..{found.high}")
            symbols[found.name] = extent
        elif known != extent:
            needed = f"the model needs {size}"
            if not isinstance(size, int):
                needed += f", which is {evaluate(size, symbols)}"
            raise ShapeError(f"{describe()}: dimension {axis} is {extent}, and {needed}")


def bind_all(
    shapes: Sequence[Sequence[Size]],
    actual: Sequence[tuple[int, ...]],
    symbols: dict[str, int],
    describe: Sequence[Callable[[], str]],
) -> None:
    """As `bind`, for values of which one may have a size that follows from those of a later one."""
    mixed = any(not isinstance(size, int) and plain_symbol(size) is None for shape in shapes for size in shape)
    for shape, extents, text in zip(shapes, actual, describe, strict=True):
        if mixed and len(shape) == len(extents):
            plain = {
                size: extent for size, extent in zip(shape, extents, strict=True) if plain_symbol(size) is not None
            }
            fresh = {size: extent for size, extent in plain.items() if str(size) not in symbols}
            bind([*fresh], tuple(fresh.values()), symbols, text)
    for shape, extents, text in zip(shapes, actual, describe, strict=True):
        if extents != shape:
            bind(shape, extents, symbols, text)


# Graphs inside --------------------------------------------------------------------------------------


def _body(
    body: Graph,
    arrays: Sequence[np.ndarray],
    symbols: Mapping[str, int],
    working: DType | None,
    run_part: PartRunner | None,
) -> list[np.ndarray]:
    """The outputs of a graph inside: it sees the symbols outside, and has those of its inputs' dimensions anew."""
    inner = dict(symbols)
    for value in body.inputs:
        for size in value.shape:
            own = plain_symbol(size)
            if own is not None:
                inner.pop(own.name, None)
    described_inputs = [partial("%{} of {}".format, value.name, body.name) for value in body.inputs]
    bind_all([value.shape for value in body.inputs], [array.shape for array in arrays], inner, described_inputs)
    found = run_graph(body, arrays, inner, working, run_part)
    return [found[value] for value in body.outputs]


def _branch(
    node: Node,
    arrays: Sequence[Any],
    symbols: Mapping[str, int],
    working: DType | None,
    run_part: PartRunner | None,
) -> list[np.ndarray]:
    chosen = node.attributes["then" if arrays[0].reshape(-1)[0] else "otherwise"]
    return _body(chosen, arrays[1:], symbols, working, run_part)


def _loop(
    node: Node,
    arrays: Sequence[Any],
    symbols: Mapping[str, int],
    working: DType | None,
    run_part: PartRunner | None,
) -> list[np.ndarray]:
    count, condition = arrays[:2]
    body, carried = node.attributes["body"], node.attributes["carried"]
    trips = None if count is None else int(count.reshape(-1)[0])
    going = condition is None or bool(condition.reshape(-1)[0])
    values, captured = list(arrays[2 : 2 + carried]), list(arrays[2 + carried :])
    rows: list[list[np.ndarray]] = [[] for _ in node.outputs[carried:]]
    iteration = 0
    while going and (trips is None or iteration < trips):
        given = [np.array(iteration, np.int64), np.array(True), *values, *captured]
        following, *results = _body(body, given, symbols, working, run_part)
        values = results[:carried]
        for row, result in zip(rows, results[carried:], strict=True):
            row.append(result[None])
        going, iteration = bool(following.reshape(-1)[0]), iteration + 1
    return [
        *values,
        *(stacked(row, output, symbols) for row, output in zip(rows, node.outputs[carried:], strict=True)),
    ]


def stacked(rows: list[np.ndarray], output: Value, symbols: Mapping[str, int]) -> np.ndarray:
    """Arrays of rows as one; of none, an empty one whose unknown sizes are 0."""
    if not rows:
        known = [free_symbols(size) <= {s for s in free_symbols(size) if s.name in symbols} for size in output.shape]
        shape = [evaluate(size, symbols) if ok else 0 for size, ok in zip(output.shape, known, strict=True)]
        return np.zeros([0, *shape[1:]], output.dtype.numpy)
    if any(row.shape[1:] != rows[0].shape[1:] for row in rows):
        shapes = ", ".join(str(list(row.shape[1:])) for row in rows[:8])
        raise ShapeError(f"the rows of %{output.name} have different shapes: {shapes}")
    return rows[0] if len(rows) == 1 else np.concatenate(rows)


def bind_symbols(graph: Graph, inputs: Mapping[str, np.ndarray]) -> dict[str, int]:
    """The value of every symbol, from the shapes of the inputs.

    Raises `ShapeError` for a missing input, a wrong rank or size, or a value outside its range.
    """
    symbols: dict[str, int] = {}
    for value in graph.inputs:
        if value.name not in inputs:
            raise ShapeError(f"input {value.name!r} is missing; the graph needs {[v.name for v in graph.inputs]}")
        shape = np.shape(inputs[value.name])
        if len(shape) != value.rank:
            raise ShapeError(f"input {value.name!r} has shape {list(shape)}, expected {value!r}")
        for extent, actual in zip(value.shape, shape, strict=True):
            name = plain_symbol(extent)
            if name is not None:
                symbols.setdefault(name.name, actual)
    later = run_time_symbols(graph)
    for symbol in graph.symbols.values():
        if symbol.name in later and symbol.name not in symbols:
            continue
        actual = symbols.get(symbol.name, symbol.low)
        if not symbol.low <= actual <= symbol.high:
            raise ShapeError(f"{symbol.name} is {actual}, outside {symbol.low} to {symbol.high}")
        symbols[symbol.name] = actual
    for value in graph.inputs:
        expected = tuple(evaluate(extent, symbols) for extent in value.shape)
        if np.shape(inputs[value.name]) != expected:
            raise ShapeError(f"input {value.name!r} has shape {list(np.shape(inputs[value.name]))}, not {expected}")
    return symbols


def run_time_symbols(graph: Graph) -> set[str]:
    """The symbols that nodes give their values: dimensions of what is computed between the parts."""
    found = {symbol.name for value in graph.inputs for size in value.shape for symbol in free_symbols(size)}
    given = set()
    for node in graph.nodes:
        if definition(node.op).kind in ON_HOST:
            sizes = [plain_symbol(size) for output in node.outputs for size in output.shape]
            given |= {size.name for size in sizes if size is not None and size.name not in found}
    return given


def concrete(item: Any, symbols: Mapping[str, int], working: DType | None) -> Any:
    if isinstance(item, Expression):
        try:
            return evaluate(item, symbols)
        except KeyError:
            return item  # a symbol that this node will give its value
    if isinstance(item, tuple):
        return tuple(concrete(part, symbols, working) for part in item)
    if isinstance(item, DType) and working is not None and _widens(item):
        return working
    return item


def _widens(dtype: DType) -> bool:
    """Whether values are computed in the reference's own type: 8-bit floats of quantized tensors stay what they are."""
    return dtype.is_float and dtype not in (float8e4nv, float8e5)


def _convert(array: np.ndarray, dtype: DType, working: DType | None) -> np.ndarray:
    target = working if working is not None and _widens(dtype) else dtype
    return np.asarray(array).astype(target.numpy, copy=False)


def last_uses(graph: Graph) -> dict[int, list[Value]]:
    """For each node position, the values that nobody reads after it."""
    last: dict[Value, int] = {}
    for position, node in enumerate(graph.nodes):
        for item in [*node.inputs, *node.outputs]:
            if item is not None:
                last[item] = position
    results = set(graph.results())
    found: dict[int, list[Value]] = {}
    for value, position in last.items():
        if value not in results:
            found.setdefault(position, []).append(value)
    return found
