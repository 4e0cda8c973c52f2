"""The source graph inside an engine: JSON, with constants by reference into the engine's weights.

    {"graph": …, "constants": {"embed": ["embed", null], "dense.weight": ["dense.weight.panels", recipe]}}

A graph that was cut into parts is stored with them, each of this form: ``"parts": [{"graph": …, "constants": …}, …]``.
A part may have a member ``"at_zero"`` of the same form.

A constant that kernels read in another order is stored in that order alone; its recipe says how to get
the graph's order back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from tilewright.engine.bounded_json import read_json
from tilewright.engine.file import MOST_GRAPH_BYTES
from tilewright.engine.weights import Weights
from tilewright.errors import InvalidIRError
from tilewright.graph import serialize
from tilewright.graph.core import Graph
from tilewright.library import packing
from tilewright.library.packing import Recipe

# Where a constant's data is: the weight's name, and the recipe that it is packed by.
Placement = tuple[str, Recipe | None]


def graph_to_json(graph: Graph, placements: Mapping[str, Placement]) -> bytes:
    """The graph as JSON text; `placements` has an entry for every constant."""
    return json.dumps(graph_entry(graph, placements)).encode()


def graph_entry(graph: Graph, placements: Mapping[str, Placement]) -> dict[str, Any]:
    """The graph as JSON values."""
    data, arrays = serialize.to_data(graph)
    return {"graph": data, "constants": {name: placements[name] for name in arrays}}


def graph_from_json(text: bytes, weights: Weights, with_parts: bool = True) -> Graph:
    """The graph again, its constants views of the weights where they lie in the graph's order.

    Raises `InvalidIRError` when the text is malformed or does not fit the weights.
    """
    try:
        data = read_json(text, MOST_GRAPH_BYTES)
        entries = list(data.get("parts", ())) if with_parts else []
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        raise _malformed(error) from error
    graph = _read_entry(data, weights)
    graph.parts = [_read_part(entry, weights) for entry in entries]
    return graph


def part_from_json(text: bytes, weights: Weights, number: int) -> Graph:
    """Part `number` of a graph that was cut; raises `InvalidIRError` as `graph_from_json` does."""
    try:
        entry = read_json(text, MOST_GRAPH_BYTES)["parts"][number]
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        raise _malformed(error) from error
    return _read_part(entry, weights)


def _read_part(data: Any, weights: Weights) -> Graph:
    graph = _read_entry(data, weights)
    if "at_zero" in data:
        graph.at_zero = _read_entry(data["at_zero"], weights)
    return graph


def _read_entry(data: Any, weights: Weights) -> Graph:
    try:
        shapes = serialize.constant_shapes(data["graph"])
        arrays = {
            name: _constant(weights, weight, recipe, shapes[name])
            for name, (weight, recipe) in data["constants"].items()
        }
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        raise _malformed(error) from error
    return serialize.from_data(data["graph"], arrays)


def _malformed(error: Exception) -> InvalidIRError:
    return InvalidIRError(f"malformed graph data: {type(error).__name__}: {str(error)[:300]}")


def _constant(weights: Weights, name: str, recipe: Any, shape: Any) -> np.ndarray:
    array = weights.array(name)
    return array if recipe is None else packing.invert(_recipe(recipe), array, shape)


def _recipe(data: Any) -> Recipe:
    return tuple((key, tuple(value) if isinstance(value, list) else value) for key, value in data)
