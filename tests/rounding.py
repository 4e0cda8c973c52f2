"""How far rounding may carry a correct program from the exact result: from dtype, depth and condition alone.

Two forms.  `product_bound` is for one product or sum: the terms' magnitudes times the unit roundoff times the
growth of a sum of that depth.  `graph_bounds` is for a whole graph: it runs the graph in float64 and disturbs every
operation as a rounding would, so that the spread of the results shows what rounding does to these inputs.  No other
library's result enters, so a bound does not depend on how well that library rounds on this machine.
"""

from __future__ import annotations

from collections.abc import Mapping

import ml_dtypes
import numpy as np

from tilewright.dtypes import DType, float32, float64
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.ops import kind_of
from tilewright.graph.reference import bind_symbols, run, run_node

# The largest of a few random errors varies by about two; orders of summation and approximations of functions
# (up to 4 units) take the rest.
MARGIN = 2.0


def unit(dtype: DType | np.dtype | type) -> float:
    """The unit roundoff of a float type: the largest relative error of one rounding."""
    return float(ml_dtypes.finfo(dtype.numpy if isinstance(dtype, DType) else dtype).eps) / 2


def growth(depth: int) -> float:
    """By how many units a sum of `depth` terms is off, relative to the sum of their magnitudes.

    The probabilistic bound of Higham and Mary (A New Approach to Probabilistic Rounding Error Analysis, 2019):
    the square root of the depth, times a constant for how improbable an exception is; here 4.
    """
    return 4.0 * float(np.sqrt(max(depth, 1)))


def product_bound(
    left: np.ndarray, right: np.ndarray, dtype: DType | np.dtype | type = np.float32, accumulator: type = np.float32
) -> np.ndarray:
    """Elementwise bound of |left @ right - exact|, accumulated in `accumulator` and rounded once to `dtype`."""
    a, b = np.abs(left.astype(np.float64)), np.abs(right.astype(np.float64))
    exact = left.astype(np.float64) @ right.astype(np.float64)
    return unit(dtype) * np.abs(exact) + unit(accumulator) * growth(a.shape[-1]) * (a @ b)


def graph_bounds(
    graph: Graph, inputs: Mapping[str, np.ndarray], exact: Mapping[str, np.ndarray] | None = None, runs: int = 4
) -> dict[str, float]:
    """The greatest absolute error that each result may have, by name (mutated inputs by the input's name).

    `exact` holds the results in float64 and is computed when it is not given.  The disturbances come from a fixed
    seed: the same graph and inputs have the same bounds on every machine.
    """
    exact = run(graph, inputs) if exact is None else exact
    random = np.random.default_rng(0)
    squares = {name: np.zeros(np.shape(array)) for name, array in exact.items()}
    for _ in range(runs):
        for name, array in _disturbed(graph, inputs, random).items():
            squares[name] += (array.astype(np.float64) - exact[name]) ** 2
    types = {target.name: value.dtype for target, value in graph.mutations.items()}
    types |= {name: value.dtype for name, value in zip(graph.output_names, graph.outputs, strict=True)}
    bounds = {}
    for name, square in squares.items():
        last = unit(types[name]) * float(np.abs(exact[name]).max(initial=0.0)) if types[name].is_float else 0.0
        bounds[name] = MARGIN * float(np.sqrt(square.max(initial=0.0) / runs)) + 2 * last
    return bounds


def _disturbed(graph: Graph, inputs: Mapping[str, np.ndarray], random: np.random.Generator) -> dict[str, np.ndarray]:
    """The results in float64 of a graph whose operations are rounded at random."""
    symbols = bind_symbols(graph, inputs)
    values: dict[Value, np.ndarray] = {value: _wide(np.asarray(inputs[value.name])) for value in graph.inputs}
    constants = {value: _wide(data) for value, data in graph.constants.items()}
    for node in graph.nodes:
        arrays = [None if item is None else values.get(item, constants.get(item)) for item in node.inputs]
        disturb = node.output.dtype.is_float and kind_of(node.op) not in ("view", "movement", "source")
        depth = _depth(node, arrays) if disturb else 1
        if depth > 1:  # as if every term of the sum were rounded as often as it may be
            each = unit(float32 if node.output.dtype.bits < 32 else node.output.dtype) * float(np.sqrt(depth))
            arrays = [None if array is None else _shaken(array, each, random) for array in arrays]
        result = run_node(node, arrays, symbols, float64)
        values[node.output] = _rounded(result, node, random) if disturb else result
    values = constants | values
    results = {target.name: values[value] for target, value in graph.mutations.items()}
    return results | {name: values[value] for name, value in zip(graph.output_names, graph.outputs, strict=True)}


def _depth(node: Node, arrays: list[np.ndarray | None]) -> int:
    """How many terms one element of the result adds up; 1 for what works element by element."""
    first, second = ([*arrays, None, None])[:2]
    assert first is not None
    if node.op == "attention":  # over the channels of a head, then over the keys
        return max(first.shape[-1], second.shape[-2])
    if node.op == "conv":
        return second.size // second.shape[0]
    if kind_of(node.op) == "contraction":
        return first.shape[-1]
    if node.op == "group_norm":
        return first[0].size // node.attributes["groups"]
    if node.op in ("layer_norm", "rms_norm"):
        return int(np.prod(first.shape[node.attributes["axis"] :]))
    if node.op == "batch_norm":
        return 2  # scale and mean become part of weights
    if kind_of(node.op) == "pool":
        return int(np.prod(node.attributes["kernel"]))
    if "axes" in node.attributes:
        return int(np.prod([first.shape[axis] for axis in node.attributes["axes"]]))
    return first.shape[node.attributes["axis"]] if kind_of(node.op) == "reduction" else 1


def _rounded(result: np.ndarray, node: Node, random: np.random.Generator) -> np.ndarray:
    """A result with the error of its last rounding; element by element, numbers that the type holds are exact."""
    shaken = _shaken(result, 2 * unit(node.output.dtype), random)
    if kind_of(node.op) != "elementwise":
        return shaken
    with np.errstate(all="ignore"):
        return np.where(result.astype(node.output.dtype.numpy) == result, result, shaken)


def _shaken(array: np.ndarray, relative: float, random: np.random.Generator) -> np.ndarray:
    """A copy with an independent relative error on every element; other types than floats as they are."""
    if array.dtype != np.float64:
        return array
    noise = random.standard_normal(array.shape, np.float32).astype(np.float64)
    noise *= relative
    noise += 1
    noise *= array
    return noise


def _wide(array: np.ndarray) -> np.ndarray:
    floats = array.dtype.kind == "f" or array.dtype.kind == "V" or array.dtype.name.startswith(("bfloat", "float"))
    return array.astype(np.float64) if floats else array
