"""Factors after the epilogue of an integer product become part of its scales and biases."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.dtypes import float32, int8, int32, uint8
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph
from tilewright.graph.passes.fold_output_scales import fold_output_scales
from tilewright.graph.reference import run_graph
from tilewright.graph.verifier import verify


def layer(
    rng: np.random.Generator, residual: str = "", shared: bool = False, factor: float | np.ndarray = 7.5, rows: int = 6
) -> Graph:
    """relu(sums scale + bias [+ what is added]) factor."""
    b = GraphBuilder("layer")
    x, w = b.input("x", uint8, (rows, 16)), b.constant(rng.integers(-9, 9, (16, 8)).astype(np.int8))
    sums = b.op("matmul", [x, w], dtype=int32)
    scaled = b.op(
        "multiply", [b.op("cast", [sums], dtype=float32), b.constant(rng.uniform(0, 1, 8).astype(np.float32))]
    )
    y = b.op("add", [scaled, b.constant(rng.standard_normal(8).astype(np.float32))])
    if residual == "integers":
        more = b.op("cast", [b.input("r", int8, (6, 8))], dtype=float32)
        y = b.op("add", [y, b.op("multiply", [more, b.constant(np.array(0.3, np.float32))])])
    elif residual == "floats":
        y = b.op("add", [y, b.input("r", float32, (6, 8))])
    y = b.op("relu", [y])
    b.output(b.op("multiply", [y, b.constant(np.array(factor, np.float32))]))
    if shared:
        b.output(y)
    return b.finish()


@pytest.mark.parametrize("residual", ["", "integers"])
def test_no_factor_is_left(residual: str, rng: np.random.Generator) -> None:
    graph = layer(rng, residual)
    found = fold_output_scales(graph)
    verify(found)
    assert [node.op for node in found.nodes].count("multiply") == [node.op for node in graph.nodes].count(
        "multiply"
    ) - 1
    inputs = [rng.integers(0, 256, (6, 16)).astype(np.uint8)]
    inputs += [rng.integers(-128, 128, (6, 8)).astype(np.int8)] if residual else []
    (expected,), (given,) = (list(run_graph(each, inputs, {}).values())[-1:] for each in (graph, found))
    np.testing.assert_allclose(given, expected, rtol=1e-6, atol=1e-4)


@pytest.mark.parametrize(
    ("rows", "shape"), [(1, (3, 8)), (6, (4, 6, 8)), (6, (1, 6, 8)), (1, (3, 1)), (6, (6, 1)), (6, (1, 8))], ids=str
)
def test_factors_of_any_shape(rows: int, shape: tuple[int, ...], rng: np.random.Generator) -> None:
    """One that repeats what it multiplies stays, so that results have their shapes."""
    graph = layer(rng, factor=np.full(shape, 7.5, np.float32), rows=rows)
    found = fold_output_scales(graph)
    verify(found)
    repeats = np.broadcast_shapes(shape, (rows, 8)) != (rows, 8)
    assert (found is graph) == repeats
    x = rng.integers(0, 256, (rows, 16)).astype(np.uint8)
    ((expected,), (given,)) = (list(run_graph(each, [x], {}).values())[-1:] for each in (graph, found))
    assert given.shape == expected.shape
    np.testing.assert_allclose(given, expected, rtol=1e-6, atol=1e-4)


@pytest.mark.parametrize("kept", [{"residual": "floats"}, {"shared": True}, {"factor": -1.0}, {"factor": 0.0}], ids=str)
def test_others_stay(kept: dict[str, object], rng: np.random.Generator) -> None:
    """Floats are added that have no constant, others read what would change, or the factor turns the sign."""
    graph = layer(rng, **kept)  # type: ignore[arg-type]
    assert fold_output_scales(graph) is graph
