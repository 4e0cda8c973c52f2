"""Graphs as JSON data plus named arrays, which an engine embeds to be rebuilt elsewhere.

    data, arrays = to_data(graph)      # data is JSON; arrays maps a constant's name to its data
    graph = from_data(data, arrays)    # verified: malformed data raises `InvalidIRError`

Attributes are JSON values, except for element types and sizes, which are tagged: ``{"dtype": "f32"}``
and ``{"size": …}`` (see `symbolic.to_json`); tuples are lists.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from tilewright.dtypes import ANY_BY_TEXT, DType
from tilewright.errors import InvalidIRError, ShapeError
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.verifier import verify
from tilewright.symbolic import Expression, Size, SizeReader, Symbol, to_json

GRAPH_FORMAT = 1


def to_data(graph: Graph) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """JSON-able data and the constants' arrays by value name (the graph's own, not copies)."""
    arrays = {value.name: array for value, array in graph.constants.items()}
    data = {
        "format": GRAPH_FORMAT,
        "name": graph.name,
        "symbols": [[symbol.name, symbol.low, symbol.high] for symbol in graph.symbols.values()],
        "inputs": [_value_data(value) for value in graph.inputs],
        "constants": [_value_data(value) for value in graph.constants],
        "nodes": [_node_data(node, arrays) for node in graph.nodes],
        "outputs": [[name, v.name] for name, v in zip(graph.output_names, graph.outputs, strict=True)],
        "mutations": [[target.name, value.name] for target, value in graph.mutations.items()],
    }
    if graph.seed is not None:
        data["seed"] = graph.seed
    if graph.fixed:
        data["fixed"] = {name: [place, _attribute_data(item)] for name, (place, item) in graph.fixed.items()}
    return data, arrays


def constant_shapes(data: Any, prefix: str = "") -> dict[str, Any]:
    """The shapes of the constants by the names that `to_data` gives them, those of graphs inside too."""
    found = {f"{prefix}{name}": shape for name, _, shape in data["constants"]}
    for node in data["nodes"]:
        for item in node["attributes"].values():
            if isinstance(item, dict) and "graph" in item:
                found |= constant_shapes(item["graph"], f"{prefix}{item['constants']}")
    return found


def from_data(data: Any, arrays: Mapping[str, np.ndarray]) -> Graph:
    """The graph again; raises `InvalidIRError` for data that is malformed or breaks the IR's rules."""
    try:
        if data["format"] != GRAPH_FORMAT:
            raise InvalidIRError(f"graph data has format {data['format']!r}, this version reads {GRAPH_FORMAT}")
        graph = _graph(data, arrays)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError, RecursionError) as error:
        raise InvalidIRError(f"malformed graph data: {type(error).__name__}: {error}") from error
    try:
        verify(graph)
    except (
        KeyError,
        TypeError,
        ValueError,
        IndexError,
        AttributeError,
        ArithmeticError,
        AssertionError,
        ShapeError,
    ) as error:
        raise InvalidIRError(f"malformed graph data: {type(error).__name__}: {error}") from error
    return graph


def _value_data(value: Value) -> list[Any]:
    return [value.name, value.dtype.text, [to_json(extent) for extent in value.shape]]


def _node_data(node: Node, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """A node; the constants of the graphs inside it join `arrays`."""
    attributes = {key: _attribute_data(item) for key, item in node.attributes.items()}
    for key, item in node.attributes.items():
        if isinstance(item, Graph):
            inner, found = to_data(item)
            prefix = f"{node.outputs[0].name}.{key}/"
            attributes[key] = {"graph": inner, "constants": prefix}
            arrays |= {f"{prefix}{name}": array for name, array in found.items()}
    return {
        "op": node.op,
        "inputs": [None if item is None else item.name for item in node.inputs],
        "outputs": [_value_data(output) for output in node.outputs],
        "attributes": attributes,
        "source": node.source,
    }


def _attribute_data(item: Any) -> Any:
    if isinstance(item, DType):
        return {"dtype": item.text}
    if isinstance(item, Expression):
        return {"size": to_json(item)}
    if isinstance(item, tuple):
        return [_attribute_data(part) for part in item]
    if isinstance(item, float) and not math.isfinite(item):
        return {"float": repr(item)}  # JSON has no infinities
    return item


def _attribute(item: Any, sizes: SizeReader, arrays: Mapping[str, np.ndarray]) -> Any:
    if isinstance(item, list):
        return tuple(_attribute(part, sizes, arrays) for part in item)
    if isinstance(item, dict) and item.keys() == {"graph", "constants"}:
        prefix = _text(item["constants"])
        inner = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
        return _graph(item["graph"], inner)
    if isinstance(item, dict):
        ((kind, content),) = item.items()
        if kind == "dtype":
            return ANY_BY_TEXT[content]
        if kind == "float":
            return float(content)
        if kind == "size":
            return sizes.read(content)
        raise ValueError(f"unknown attribute tag {kind!r}")
    return item


def _graph(data: Any, arrays: Mapping[str, np.ndarray]) -> Graph:
    graph = Graph(_text(data["name"]))
    graph.symbols = {_text(name): _symbol(name, low, high) for name, low, high in data["symbols"]}
    sizes = SizeReader(graph.symbols)
    values: dict[str, Value] = {}

    def define(entry: Any) -> Value:
        name, dtype, shape = entry
        extents: tuple[Size, ...] = tuple(map(sizes.read, shape))
        if _text(name) in values:
            raise ValueError(f"%{name} is defined twice")
        values[name] = Value(name, ANY_BY_TEXT[dtype], extents)
        return values[name]

    graph.inputs = [define(entry) for entry in data["inputs"]]
    for entry in data["constants"]:
        value = define(entry)
        graph.constants[value] = arrays[value.name]
    for entry in data["nodes"]:
        inputs = [None if name is None else values[name] for name in entry["inputs"]]
        attributes = {_text(key): _attribute(item, sizes, arrays) for key, item in entry["attributes"].items()}
        outputs = [define(output) for output in entry["outputs"]]
        graph.nodes.append(Node(_text(entry["op"]), inputs, outputs, attributes, _text(entry["source"])))
    graph.outputs = [values[name] for _, name in data["outputs"]]
    graph.output_names = [_text(name) for name, _ in data["outputs"]]
    graph.mutations = {values[target]: values[name] for target, name in data["mutations"]}
    graph.seed = data.get("seed")
    fixed = data.get("fixed", {}).items()
    graph.fixed = {_text(name): (int(place), _fixed(_attribute(item, sizes, {}))) for name, (place, item) in fixed}
    return graph


def _symbol(name: str, low: Any, high: Any) -> Symbol:
    if not (type(low) is type(high) is int and 0 <= low <= high <= SizeReader.LARGEST):
        raise ValueError(f"the range of {name[:80]!r} is not one of sizes")
    return Symbol(name, low, high)


def _fixed(item: Any) -> bool | int | float | str | None:
    if not isinstance(item, (bool, int, float, str, type(None))):
        raise TypeError(f"expected an argument that is a number, text or None, got {item!r}")
    return item


def _text(item: Any) -> str:
    if not isinstance(item, str):
        raise TypeError(f"expected text, got {item!r}")
    return item
