"""The source graph inside an engine: JSON, with constants by reference into the engine's weights.

    {"graph": …, "constants": {"embed": ["embed", null], "dense.weight": ["dense.weight.panels", recipe]}}

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
from tilewright.kernels import packing
from tilewright.kernels.packing import Recipe

# Where a constant's data is: the weight's name, and the recipe that it is packed by.
Placement = tuple[str, Recipe | None]


def graph_to_json(graph: Graph, placements: Mapping[str, Placement]) -> bytes:
    """The graph as JSON text; `placements` has an entry for every constant."""
    data, arrays = serialize.to_data(graph)
    return json.dumps({"graph": data, "constants": {name: placements[name] for name in arrays}}).encode()


def graph_from_json(text: bytes, weights: Weights) -> Graph:
    """The graph again, its constants views of the weights where they lie in the graph's order.

    Raises `InvalidIRError` when the text is malformed or does not fit the weights.
    """
    try:
        data = read_json(text, MOST_GRAPH_BYTES)
        shapes = {name: shape for name, _, shape in data["graph"]["constants"]}
        arrays = {
            name: _constant(weights, weight, recipe, shapes[name])
            for name, (weight, recipe) in data["constants"].items()
        }
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        raise InvalidIRError(f"malformed graph data: {type(error).__name__}: {str(error)[:300]}") from error
    return serialize.from_data(data["graph"], arrays)


def _constant(weights: Weights, name: str, recipe: Any, shape: Any) -> np.ndarray:
    array = weights.array(name)
    return array if recipe is None else packing.invert(_recipe(recipe), array, shape)


def _recipe(data: Any) -> Recipe:
    return tuple((key, tuple(value) if isinstance(value, list) else value) for key, value in data)
