"""Products of bfloat16 by constant weights on CPUs that sum pairs of them (vdpbf16ps), with what follows them."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.build.builder import build
from tilewright.dtypes import bfloat16
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph
from tilewright.graph.passes.fuse import fuse
from tilewright.library.candidate import PackedConstant
from tilewright.library.select import candidates, choose
from tilewright.targets.cpu.target import CPUTarget

MOST = 65


def layer(weights: np.ndarray, bias: np.ndarray, transposed: bool) -> Graph:
    """relu(x W + bias) + residual, for 1 to 65 rows."""
    b = GraphBuilder("layer")
    rows = b.symbol("rows", 1, MOST)
    columns, depth = weights.shape if transposed else weights.T.shape
    x, residual = b.input("x", bfloat16, (rows, depth)), b.input("residual", bfloat16, (rows, columns))
    product = b.op("matmul", [x, b.constant(weights, "w")], transpose_b=transposed)
    b.output(b.op("add", [b.op("relu", [b.op("add", [product, b.constant(bias, "bias")])]), residual]), "y")
    return b.finish()


def random(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(bfloat16.numpy)


@pytest.mark.parametrize("depth", [34, 35, 1026])
@pytest.mark.parametrize("columns", [7, 48, 1000])
def test_rows_of_any_number_with_an_epilogue(columns: int, depth: int, rng: np.random.Generator) -> None:
    """Against float64: sums are in float32, so only the rounding of results to bfloat16 is seen."""
    weights, bias, transposed = random(rng, columns, depth), random(rng, columns), bool(depth % 4)
    engine = build(layer(weights if transposed else weights.T.copy(), bias, transposed), CPUTarget.host())
    for rows in (1, 3, 17, MOST):
        x, residual = random(rng, rows, depth), random(rng, rows, columns)
        found = engine.run({"x": x, "residual": residual})["y"]
        wide = [array.astype(np.float64) for array in (x, weights, bias, residual)]
        product = wide[0] @ wide[1].T
        expected = np.maximum(product + wide[2], 0) + wide[3]
        # each of three results may be rounded to bfloat16 on the way, which is half of 2**-7 of its size
        sizes = np.abs(product) + np.abs(wide[2]) + np.abs(expected) + np.abs(wide[3])
        assert (np.abs(found.astype(np.float64) - expected) <= 2.0**-7 * sizes).all(), rows


@pytest.mark.parametrize(
    ("name", "depth", "group"),
    [("znver4", 896, 2), ("znver4", 895, 1), ("x86-64-v4", 896, 1), ("sapphirerapids", 896, 1)],
)
def test_weights_lie_in_pairs_where_the_cpu_sums_pairs(name: str, depth: int, group: int) -> None:
    """One form for every number of rows, since weights are packed once."""
    weights = np.ones((40, depth), bfloat16.numpy)
    graph = layer(weights, np.ones(40, bfloat16.numpy), transposed=True)
    found = choose(candidates(fuse(graph).groups[0], graph, CPUTarget.named(name)))
    (stage,) = found.stages
    for call in stage.calls:
        packed = call.operands["b"]
        assert isinstance(packed, PackedConstant) and dict(packed.recipe).get("group", 1) == group
        assert call.constants["GROUP"] == group and (group == 1 or call.constants["BLOCK_K"] == depth)
