"""Dimensions that are the same but spelled in two ways: conditions for each, and indices that follow them."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.build.builder import build
from tilewright.dtypes import float32
from tilewright.errors import ShapeError
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph
from tilewright.graph.passes.fuse import fuse
from tilewright.graph.pipeline import optimize
from tilewright.library.select import candidates, choose
from tilewright.symbolic import ceil_divide, simplify
from tilewright.targets.cpu.target import CPUTarget


def pyramid() -> Graph:
    """A coarse image, twice as large, added to a fine one, as detectors of text do for images of any size."""
    b = GraphBuilder("pyramid")
    n, m = b.symbol("n", 4, 4096), b.symbol("m", 4, 4096)
    b.input("x", float32, (n, m))
    half, quarter = ((simplify(ceil_divide(n, step)), simplify(ceil_divide(m, step))) for step in (2, 4))
    fine, coarse = b.input("fine", float32, (1, 24, *half)), b.input("coarse", float32, (1, 24, *quarter))
    rows, columns = quarter
    large = b.op("reshape", [coarse], shape=(1, 24, rows, 1, columns, 1))
    large = b.op("broadcast_to", [large], shape=(1, 24, rows, 2, columns, 2))
    large = b.op("reshape", [large], shape=(1, 24, simplify(rows * 2), simplify(columns * 2)))
    b.output(b.op("add", [fine, b.op("reshape", [large], shape=(1, 24, *half), same=True)]), "y")
    return b.finish()


def sizes(n: int, m: int) -> dict[str, tuple[int, ...]]:
    return {"x": (n, m), "fine": (1, 24, -(-n // 2), -(-m // 2)), "coarse": (1, 24, -(-n // 4), -(-m // 4))}


def test_each_dimension_is_followed_by_itself(rng: np.random.Generator) -> None:
    graph = optimize(pyramid())
    engine = build(graph, "cpu")
    for n, m in ((8, 12), (40, 7), (15, 64)):
        inputs = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in sizes(n, m).items()}
        wanted = inputs["fine"] + inputs["coarse"].repeat(2, axis=2).repeat(2, axis=3)
        np.testing.assert_array_equal(engine.run(inputs)["y"], wanted)
    (group,) = fuse(graph).groups
    (call,) = choose(candidates(group, graph, CPUTarget.named("x86-64-v4"))).stages[0].calls
    body = call.kernel.source.split("for index in")[1]
    assert body.count("//") == 2 and "%" not in body  # half of the row, half of the column


@pytest.mark.parametrize(("n", "m", "axis"), [(10, 8, 2), (8, 10, 3)])
def test_each_dimension_is_checked(rng: np.random.Generator, n: int, m: int, axis: int) -> None:
    inputs = {name: np.zeros(shape, np.float32) for name, shape in sizes(n, m).items()}
    with pytest.raises(ShapeError, match=f"dimension {axis} of"):
        build(pyramid(), "cpu").run(inputs)


def test_permutes_around_another_spelling_cancel() -> None:
    b = GraphBuilder("turned")
    n = b.symbol("n", 4, 100)
    x = b.input("x", float32, (3, simplify(ceil_divide(n, 4) * 2), 5))
    b.input("of", float32, (n,))
    y = b.op("permute", [x], order=(2, 0, 1))
    y = b.op("reshape", [y], shape=(5, 3, simplify(ceil_divide(n, 2))), same=True)
    b.output(b.op("exp", [b.op("permute", [y], order=(1, 2, 0))]), "y")
    assert sorted(node.op for node in optimize(b.finish()).nodes) == ["exp", "reshape"]


def test_the_range_of_all_of_a_tensor_is_found_in_the_order_in_which_it_lies(rng: np.random.Generator) -> None:
    b = GraphBuilder("range")
    n = b.symbol("n", 1, 64)
    x = b.input("x", float32, (n, 3, 8))
    turned = b.op("reshape", [b.op("permute", [x], order=(1, 0, 2))], shape=(3, simplify(n * 8)))
    b.output(b.op("reduce_max", [turned], axes=(0, 1), keepdims=True), "y")
    b.output(b.op("reduce_min", [turned], axes=(1,), keepdims=False), "z")  # of each row: the order counts
    graph = optimize(b.finish())
    largest = next(node for node in graph.nodes if node.op == "reduce_max")
    assert largest.inputs[0] is graph.inputs[0]
    array = rng.standard_normal((5, 3, 8)).astype(np.float32)
    found = build(graph, "cpu").run({"x": array})
    np.testing.assert_array_equal(found["y"], [[array.max()]])
    np.testing.assert_array_equal(found["z"], array.min(axis=(0, 2)))
