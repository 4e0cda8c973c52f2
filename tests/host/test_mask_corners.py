"""Attention with masks that are corners of constants, for lengths known at run time: recognised, and never wrongly."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from tilewright.dtypes import float32
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.pipeline import optimize
from tilewright.graph.reference import run
from tilewright.symbolic import Size, lift, simplify

LONGEST, WIDTH = 40, 8
TRIANGLE = np.tri(LONGEST, dtype=np.float32)
Mask = Callable[[GraphBuilder, Value, Size], Value]  # of scores and where their rows begin, masked


def corner(b: GraphBuilder, array: np.ndarray, scores: Value, first: Size) -> Value:
    """The rows from `first` on, and the first columns, that scores have."""
    rows, keys = scores.shape[-2:]
    value = b.op("slice", [b.constant(array)], axis=0, start=first, stop=simplify(lift(first) + rows))
    return b.op("slice", [value], axis=1, start=0, stop=keys)


def hidden_where(condition: Callable[[GraphBuilder, Value], Value], array: np.ndarray, low: float) -> Mask:
    def mask(b: GraphBuilder, scores: Value, first: Size) -> Value:
        hidden = condition(b, corner(b, array, scores, first))
        return b.op("where", [hidden, b.constant(np.array(low, np.float32)), scores])

    return mask


def added(array: np.ndarray) -> Mask:
    return lambda b, scores, first: b.op("add", [scores, corner(b, array.astype(np.float32), scores, first)])


def is_zero(b: GraphBuilder, x: Value) -> Value:
    return b.op("equal", [x, b.constant(np.array(0, x.dtype.numpy))])


def opposite(b: GraphBuilder, x: Value) -> Value:
    return b.op("logical_not", [x])


def one_row(b: GraphBuilder, scores: Value, first: Size) -> Value:
    """The first row of the triangle for all queries: they see the first key alone."""
    row = b.op("slice", [b.constant(TRIANGLE[:1])], axis=1, start=0, stop=scores.shape[-1])
    return b.op("where", [is_zero(b, row), b.constant(np.array(-np.inf, np.float32)), scores])


def graph_of(mask: Mask, appended: bool) -> Graph:
    """Attention of two heads; with `appended` of fewer queries than keys, whose rows are the last ones."""
    b = GraphBuilder("masked")
    keys: Size = b.symbol("keys", 1, LONGEST)
    rows = b.symbol("rows", 1, LONGEST) if appended else keys
    q = b.input("q", float32, (1, 2, rows, WIDTH))
    k, v = (b.input(name, float32, (1, 2, keys, WIDTH)) for name in "kv")
    scores = b.op("matmul", [q, b.op("permute", [k], order=(0, 1, 3, 2))])
    masked = mask(b, scores, simplify(lift(keys) - rows))
    b.output(b.op("matmul", [b.op("softmax", [masked], axis=3), v]), "y")
    return b.finish()


with np.errstate(divide="ignore"):
    CAUSAL: dict[str, Mask] = {
        "equal to zero": hidden_where(is_zero, TRIANGLE, -math.inf),
        "not": hidden_where(opposite, TRIANGLE.astype(bool), -math.inf),
        "itself": hidden_where(lambda b, x: x, TRIANGLE == 0, -math.inf),
        "the least number": hidden_where(is_zero, TRIANGLE, float(np.finfo(np.float32).min)),
        "added": added(np.log(TRIANGLE)),
        "added, finite": added((1 - TRIANGLE) * -1e9),
        "integers": hidden_where(is_zero, TRIANGLE.astype(np.int8), -math.inf),
    }
OTHER: dict[str, Mask] = {
    "the upper triangle": hidden_where(lambda b, x: x, TRIANGLE.T == 0, -math.inf),
    "one key more": hidden_where(is_zero, np.tri(LONGEST, k=1, dtype=np.float32), -math.inf),
    "without the own key": hidden_where(is_zero, np.maximum(np.tri(LONGEST, k=-1), np.eye(1, LONGEST)), -math.inf),
    "a hole": hidden_where(is_zero, TRIANGLE - np.eye(LONGEST, k=-5, dtype=np.float32), -9e9),
    "small numbers": added((1 - TRIANGLE) * -3),
    "one row": one_row,
}  # fmt: skip


def attention_of(graph: Graph) -> Node | None:
    return next((node for node in optimize(graph).nodes if node.op == "attention"), None)


def agree(graph: Graph, sizes: list[tuple[int, int]]) -> None:
    rng = np.random.default_rng(0)
    for rows, keys in sizes:
        shapes = {"q": rows, "k": keys, "v": keys}
        inputs = {name: rng.standard_normal((1, 2, count, WIDTH), np.float32) for name, count in shapes.items()}
        np.testing.assert_allclose(run(optimize(graph), inputs)["y"], run(graph, inputs)["y"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("appended", [False, True])
@pytest.mark.parametrize("name", CAUSAL)
def test_causal_masks(name: str, appended: bool) -> None:
    graph = graph_of(CAUSAL[name], appended)
    found = attention_of(graph)
    # A row without keys, of which there may be some where there are fewer keys than queries, is the mean of all values.
    finite = name in ("the least number", "added, finite")
    assert found is not None and found.attributes["causal"] == (not (finite and appended))
    assert (len(found.inputs) < 4) == found.attributes["causal"]
    agree(graph, [(1, 1), (7, 7), (40, 40)] if not appended else [(1, 1), (3, 7), (1, 40), (40, 40)])


@pytest.mark.parametrize("name", OTHER)
def test_other_masks(name: str) -> None:
    graph = graph_of(OTHER[name], False)
    found = attention_of(graph)
    assert found is None or not found.attributes["causal"]
    agree(graph, [(1, 1), (7, 7), (40, 40)])


def test_windows() -> None:
    band = TRIANGLE - np.tri(LONGEST, k=-5, dtype=np.float32)
    graph = graph_of(hidden_where(is_zero, band, -math.inf), False)
    found = attention_of(graph)
    assert found is not None and found.attributes["causal"] and found.attributes["window"] == 5
    agree(graph, [(1, 1), (4, 4), (6, 6), (40, 40)])
