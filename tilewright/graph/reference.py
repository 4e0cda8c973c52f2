"""The NumPy reference: runs a graph node by node, by the meanings in the op table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tilewright.dtypes import DType, from_numpy
from tilewright.errors import ShapeError
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.ops import definition
from tilewright.symbolic import Expression, evaluate, plain_symbol


def run(graph: Graph, inputs: Mapping[str, np.ndarray], dtype: Any = np.float64) -> dict[str, np.ndarray]:
    """The outputs of a graph by name; mutated inputs are returned under the input's name as well.

    Floating-point values are computed in `dtype` throughout (float64: a reference for any format);
    None keeps each value's own element type.  Symbols are bound from the inputs' shapes.
    Raises `ShapeError` for missing inputs and shapes that do not match.
    """
    symbols = bind_symbols(graph, inputs)
    working = None if dtype is None else from_numpy(np.dtype(dtype))
    values: dict[Value, np.ndarray] = {}
    for value in graph.inputs:
        values[value] = _convert(np.asarray(inputs[value.name]), value.dtype, working)
    for value, data in graph.constants.items():
        values[value] = _convert(data, value.dtype, working)
    last_use = _last_uses(graph)
    for position, node in enumerate(graph.nodes):
        arrays = [None if item is None else values[item] for item in node.inputs]
        values[node.output] = run_node(node, arrays, symbols, working)
        for item in last_use.get(position, ()):
            del values[item]
    results = {target.name: values[value] for target, value in graph.mutations.items()}
    results.update({name: values[value] for name, value in zip(graph.output_names, graph.outputs, strict=True)})
    return results


def run_node(
    node: Node, arrays: list[np.ndarray | None], symbols: Mapping[str, int], working: DType | None = None
) -> np.ndarray:
    """One node's output; raises `ShapeError` when the result has another shape than the node says."""
    attributes = {key: _concrete(item, symbols, working) for key, item in node.attributes.items()}
    result = definition(node.op).compute(arrays, attributes)
    expected = tuple(evaluate(extent, symbols) for extent in node.output.shape)
    if result.shape != expected:
        raise ShapeError(f"{node.op} -> {node.output!r} gave the shape {list(result.shape)}, not {list(expected)}")
    return _convert(result, node.output.dtype, working)


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
    for symbol in graph.symbols.values():
        actual = symbols.get(symbol.name, symbol.low)
        if not symbol.low <= actual <= symbol.high:
            raise ShapeError(f"{symbol.name} is {actual}, outside {symbol.low} to {symbol.high}")
        symbols[symbol.name] = actual
    for value in graph.inputs:
        expected = tuple(evaluate(extent, symbols) for extent in value.shape)
        if np.shape(inputs[value.name]) != expected:
            raise ShapeError(f"input {value.name!r} has shape {list(np.shape(inputs[value.name]))}, not {expected}")
    return symbols


def _concrete(item: Any, symbols: Mapping[str, int], working: DType | None) -> Any:
    if isinstance(item, Expression):
        return evaluate(item, symbols)
    if isinstance(item, tuple):
        return tuple(_concrete(part, symbols, working) for part in item)
    if isinstance(item, DType) and item.is_float and working is not None:
        return working
    return item


def _convert(array: np.ndarray, dtype: DType, working: DType | None) -> np.ndarray:
    target = working if working is not None and dtype.is_float else dtype
    return np.asarray(array).astype(target.numpy, copy=False)


def _last_uses(graph: Graph) -> dict[int, list[Value]]:
    """For each node position, the values that nobody reads after it."""
    last: dict[Value, int] = {}
    for position, node in enumerate(graph.nodes):
        for item in [*node.inputs, *node.outputs]:
            if item is not None:
                last[item] = position
    kept = set(graph.results())
    found: dict[int, list[Value]] = {}
    for value, position in last.items():
        if value not in kept:
            found.setdefault(position, []).append(value)
    return found
