"""Pools that GPUs compute by other kernels than those of windows: parts of an axis, padded images, few windows."""

from __future__ import annotations

import numpy as np
import pytest

from tests.host.cuda_stand_in import Driver
from tests.rounding import graph_bounds
from tilewright.build.builder import build
from tilewright.dtypes import DType, float16, float32
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph
from tilewright.graph.reference import run


def check(graph: Graph, launches: int, rng: np.random.Generator) -> None:
    """The engine's results, and how many launches it has."""
    engine = build(graph, "cuda:sm_90a")
    assert len(engine.plan.steps) == launches
    inputs = {value.name: rng.standard_normal(value.shape).astype(value.dtype.numpy) for value in graph.inputs}
    exact, bound = run(graph, inputs)["y"], graph_bounds(graph, inputs)["y"]
    assert (np.abs(engine.run(inputs)["y"] - exact) <= bound).all()


@pytest.mark.parametrize("op", ["reduce_max", "reduce_min"])
@pytest.mark.parametrize(("extent", "parts"), [(50, 5), (53, 5), (11, 7), (9, 13)])
@pytest.mark.parametrize("axis", [2, 3])
def test_extremes_of_parts_are_one_reduction(
    extent: int, parts: int, axis: int, op: str, driver: Driver, rng: np.random.Generator
) -> None:
    b = GraphBuilder("parts")
    shape = [2, 3, 7, 6]
    shape[axis] = extent
    x = b.input("x", float32, tuple(shape))
    edges = [(place * extent // parts, -(-(place + 1) * extent // parts)) for place in range(parts)]
    seen = [b.op("slice", [x], axis=axis, start=start, stop=stop) for start, stop in edges]
    b.output(b.op("concat", [b.op(op, [part], axes=(axis,), keepdims=True) for part in seen], axis=axis), "y")
    check(b.finish(), 1, rng)


@pytest.mark.parametrize("dtype", [float32, float16])
def test_responses_of_neighbours_are_one_launch(dtype: DType, driver: Driver, rng: np.random.Generator) -> None:
    b = GraphBuilder("responses")
    x = b.input("x", dtype, (2, 6, 9, 7))
    square = b.op("reshape", [b.op("multiply", [x, x])], shape=(2, 1, 6, 9, 7))
    padded = b.op("pad", [square], pads=((0, 0), (0, 0), (2, 2), (0, 0), (0, 0)))
    window = {"kernel": (5, 1, 1), "strides": (1, 1, 1), "padding": ((0, 0),) * 3, "dilation": (1, 1, 1)}
    mean = b.op("reshape", [b.op("average_pool", [padded], **window)], shape=x.shape)
    b.output(b.op("divide", [x, b.op("add", [mean, b.number(1.0, dtype)])]), "y")
    check(b.finish(), 1, rng)


@pytest.mark.parametrize("dilation", [1, 2])
def test_padded_images_with_few_taps(dilation: int, driver: Driver, rng: np.random.Generator) -> None:
    b = GraphBuilder("padded")
    x = b.input("x", float32, (2, 3, 9, 8))
    padded = b.op("pad", [x], pads=((0, 0), (0, 0), (1, 2), (0, 1)), value=2.0)
    window = {"kernel": (3, 2), "strides": (2, 1), "padding": ((0, 0),) * 2, "dilation": (dilation, 1)}
    b.output(b.op("relu", [b.op("average_pool", [padded], **window)]), "y")
    check(b.finish(), 1, rng)


@pytest.mark.parametrize("op", ["max_pool", "average_pool"])
def test_few_large_windows_are_reductions_of_one_axis_after_the_other(
    op: str, driver: Driver, rng: np.random.Generator
) -> None:
    b = GraphBuilder("tiles")
    x = b.input("x", float32, (2, 3, 48, 60))
    y = b.op(op, [x], kernel=(12, 15), strides=(12, 15), padding=((0, 0),) * 2, dilation=(1, 1))
    b.output(y, "y")
    check(b.finish(), 2, rng)


def test_few_large_windows_of_volumes_are_reductions(driver: Driver, rng: np.random.Generator) -> None:
    b = GraphBuilder("volumes")
    x = b.input("x", float32, (1, 2, 10, 20, 15))
    window = {"kernel": (5, 5, 5), "strides": (5, 5, 5), "padding": ((0, 0),) * 3, "dilation": (1, 1, 1)}
    b.output(b.op("average_pool", [x], **window), "y")
    check(b.finish(), 3, rng)


@pytest.mark.parametrize("op", ["max_pool", "average_pool"])
def test_volumes_that_may_have_more_places_than_32_bits_count(
    op: str, driver: Driver, rng: np.random.Generator
) -> None:
    """They are pooled along the depth first, and then as images."""
    b = GraphBuilder("volumes")
    sizes = tuple(b.symbol(name, 2, 4096) for name in ("depth", "height", "width"))
    x = b.input("x", float32, (1, 2, *sizes))
    y = b.op(op, [x], kernel=(2, 2, 2), strides=(1, 1, 1), padding=((0, 0),) * 3, dilation=(1, 1, 1))
    b.output(y, "y")
    graph = b.finish()
    inputs = {"x": rng.standard_normal((1, 2, 5, 6, 7)).astype(np.float32)}
    exact, bound = run(graph, inputs)["y"], graph_bounds(graph, inputs)["y"]
    assert (np.abs(build(graph, "cuda:sm_90a").run(inputs)["y"] - exact) <= bound).all()
