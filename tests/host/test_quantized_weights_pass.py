"""Integers that a model makes of its weights at run time become constants."""

from __future__ import annotations

import numpy as np

from tilewright.dtypes import float32, int8
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph
from tilewright.graph.passes.quantized_weights import quantized_weights
from tilewright.graph.reference import run_graph

WEIGHTS = np.random.default_rng(5).standard_normal((6, 8)).astype(np.float32)


def _graph(rounds: bool) -> Graph:
    """x times weights that are scaled, and rounded or not."""
    builder = GraphBuilder("layer")
    x = builder.input("x", float32, (3, 8))
    weights = builder.op(
        "multiply", [builder.constant(WEIGHTS, "w"), builder.constant(np.array(0.5, np.float32), "factor")]
    )
    scale = builder.constant(np.full((6, 1), 0.0125, np.float32), "scales")
    if rounds:
        weights = builder.op("quantize", [weights, scale], dtype=int8)
    else:
        weights = builder.op("cast", [weights], dtype=int8)
    near = builder.op("dequantize", [weights, scale])
    builder.output(builder.op("matmul", [x, near], transpose_b=True), "y")
    return builder.finish()


def test_rounded_weights_become_constants() -> None:
    graph = _graph(rounds=True)
    result = quantized_weights(graph)
    assert [node.op for node in result.nodes] == ["dequantize", "matmul"]
    (codes,) = [data for data in result.constants.values() if data.dtype == np.int8]
    np.testing.assert_array_equal(codes, np.clip(np.rint(WEIGHTS * np.float32(0.5) / np.float32(0.0125)), -128, 127))
    x = np.random.default_rng(6).standard_normal((3, 8)).astype(np.float32)
    found, wanted = (next(iter(run_graph(each, [x], {}).values())) for each in (result, graph))
    np.testing.assert_array_equal(found, wanted)


def test_others_stay() -> None:
    for graph in (_graph(rounds=False), quantized_weights(_graph(rounds=True))):
        assert quantized_weights(graph) is graph
