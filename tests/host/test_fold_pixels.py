"""Convolutions along one dimension to few channels: pixels of the result as channels."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.build.builder import build
from tilewright.build.tuning import Tuning
from tilewright.dtypes import float32
from tilewright.graph import reference
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph
from tilewright.graph.kernel_facts import KernelFacts
from tilewright.graph.passes.fold_constants import fold_constants
from tilewright.graph.passes.fold_pixels import fold_pixels

KERNELS = KernelFacts(channels=16)


def filtered(
    rng: np.random.Generator,
    weight: tuple[int, ...],
    stride: int,
    padding: tuple[int, int],
    bias: bool = False,
    **options: object,
) -> Graph:
    b = GraphBuilder("filter")
    between = (1,) * (len(weight) - 3)
    x = b.input("x", float32, (b.symbol("batch", 1, 8), weight[1], *between, b.symbol("n", weight[-1], 100_000)))
    w = b.constant(rng.standard_normal(weight).astype(np.float32), "w")
    settings = {"strides": (*between, stride), "padding": (*((0, 0),) * len(between), padding),
                "dilation": (*between, 1)} | options  # fmt: skip
    shift = b.constant(rng.standard_normal(weight[0]).astype(np.float32), "shift")
    b.output(b.op("conv", [x, w, shift] if bias else [x, w], **settings), "y")
    return b.finish()


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("weight", "stride", "padding"),
    [((1, 1, 28), 2, (13, 15)), ((2, 1, 1, 15), 1, (7, 8)), ((1, 3, 1, 41), 3, (0, 5)), ((5, 2, 30), 4, (0, 0)),
     ((7, 1, 64), 1, (1, 0))],
)  # fmt: skip
def test_neighbours_become_channels(
    rng: np.random.Generator, weight: tuple[int, ...], stride: int, padding: tuple[int, int], bias: bool
) -> None:
    graph = filtered(rng, weight, stride, padding, bias)
    folded = fold_pixels(graph, KERNELS)
    channels = {node.output.shape[1] for node in folded.nodes if node.op == "conv"}
    assert channels == {16 // weight[0] * weight[0]}
    assert folded.outputs[0].shape == graph.outputs[0].shape
    engine = build(graph, "cpu", tuning=Tuning(effort=0))
    for batch, length in ((1, weight[-1]), (2, weight[-1] + 1), (1, 1000), (3, 331)):
        x = rng.standard_normal((batch, weight[1], *(1,) * (len(weight) - 3), length)).astype(np.float32)
        (wanted,) = reference.run(graph, {"x": x.astype(np.float64)}).values()
        (plain,) = reference.run(folded, {"x": x}).values()
        found = engine.run({"x": x})["y"]
        for result in (plain, found):
            assert result.shape == wanted.shape
            np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=3e-5)


@pytest.mark.parametrize(
    ("weight", "stride", "options"),
    [((1, 1, 28), 2, {"dilation": (2,)}), ((9, 1, 28), 1, {}), ((1, 1, 5), 4, {}), ((2, 1, 28), 1, {"groups": 2}),
     ((1, 1, 28), 40, {})],
)  # fmt: skip
def test_others_stay(rng: np.random.Generator, weight: tuple[int, ...], stride: int, options: dict) -> None:
    if options.get("groups") == 2:
        b = GraphBuilder("groups")
        x = b.input("x", float32, (1, 2, 100))
        w = b.constant(rng.standard_normal(weight).astype(np.float32))
        b.output(b.op("conv", [x, w], strides=(1,), padding=((0, 0),), dilation=(1,), groups=2), "y")
        graph = b.finish()
    else:
        graph = filtered(rng, weight, stride, (0, 0), **options)
    assert fold_pixels(graph, KERNELS) is graph


def test_filters_computed_of_few_numbers_are_known_when_the_engine_is_built(rng: np.random.Generator) -> None:
    """As resamplers have them: of 1 MB, from two lines."""
    b = GraphBuilder("sinc")
    x = b.input("x", float32, (1, 1, 1, b.symbol("n", 500, 50_000)))
    rows, columns = (b.constant(rng.standard_normal(shape).astype(np.float32)) for shape in ((600, 1, 1, 1), (400,)))
    w = b.op("cos", [b.op("add", [rows, columns])])
    b.output(b.op("conv", [x, w], strides=(1, 400), padding=((0, 0), (0, 0)), dilation=(1, 1)), "y")
    assert [node.op for node in fold_constants(b.finish()).nodes] == ["conv"]
