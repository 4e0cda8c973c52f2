"""Pools, sums and interpolation that GPUs compute by other kernels than those of windows, rows and products."""

from __future__ import annotations

import numpy as np
import pytest

from tests.host.cuda_stand_in import Driver
from tests.rounding import graph_bounds
from tilewright.build.builder import build
from tilewright.dtypes import DType, float16, float32, int1, int8, int16, int32, int64, uint8
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph
from tilewright.graph.pipeline import optimize
from tilewright.graph.reference import run
from tilewright.importers import images
from tilewright.importers.emitter import Emitter
from tilewright.symbolic import floor_divide, lift, maximum
from tilewright.targets.registry import get_target, graph_passes


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


@pytest.mark.parametrize("op", ["reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "reduce_product"])
@pytest.mark.parametrize(("axis", "length", "step"), [(1, 8, 1), (2, 3, 2), (0, 2, 2), (1, 10, 1)])
@pytest.mark.parametrize("dtype", [float32, float16])
def test_few_neighbours_are_reduced_by_element(
    op: str, axis: int, length: int, step: int, dtype: DType, driver: Driver, rng: np.random.Generator
) -> None:
    b = GraphBuilder("moving")
    x = b.input("x", dtype, (4, 23, 7))
    count = (x.shape[axis] - length) // step + 1
    frames = b.op("frames", [x], axis=axis, count=count, length=length, step=step)
    last = b.op("permute", [frames], order=(*range(axis + 1), *range(axis + 2, 4), axis + 1))
    b.output(b.op(op, [last], axes=(3,), keepdims=length == 3), "y")
    graph = b.finish()
    check(graph, 1, rng)
    ops = [node.op for node in optimize(graph, graph_passes([get_target("cuda:sm_90a")])).nodes]
    assert (op in ops) == (length > 9)


@pytest.mark.parametrize("dtype", [float32, float16])
@pytest.mark.parametrize(("height", "width", "launches"), [(33, 37, 1), (16, 9, 1), (5, 60, 2)])
def test_interpolation_looks_pixels_up(
    height: int, width: int, launches: int, dtype: DType, driver: Driver, rng: np.random.Generator
) -> None:
    b = GraphBuilder("interpolation")
    x = b.input("x", dtype, (2, 3, 16, 20))
    emit = Emitter(b)
    for axis, size in ((2, height), (3, width)):
        places = (np.arange(size) + 0.5) * x.shape[axis] / size - 0.5
        x = images.resampled(emit, x, axis, images.interpolation_taps(places, x.shape[axis]))
    b.output(x, "y")
    graph = b.finish()
    check(graph, launches, rng)  # a line that is read many times is made first
    assert "matmul" not in [node.op for node in optimize(graph, graph_passes([get_target("cuda:sm_90a")])).nodes]


def test_products_with_few_or_many_numbers_stay(rng: np.random.Generator) -> None:
    b = GraphBuilder("products")
    x, wide = b.input("x", float32, (5, 3)), b.input("wide", float32, (5, 40))
    dense, empty = rng.standard_normal((40, 7)), np.eye(40)
    empty[:, 3] = 0
    for factor, given in ((np.diag([1.0, 2.0, 3.0]), x), (dense, wide), (empty, wide)):
        b.output(b.op("matmul", [given, b.constant(factor.astype(np.float32))]))
    ops = [node.op for node in optimize(b.finish(), graph_passes([get_target("cuda:sm_90a")])).nodes]
    assert ops.count("matmul") == 3


@pytest.mark.parametrize("shape", [(16, 10), (10, 16), (4, 3)])
def test_ones_on_the_diagonal_of_a_matrix_that_is_not_square(shape: tuple[int, int], rng: np.random.Generator) -> None:
    b = GraphBuilder("diagonal")
    x = b.input("x", float32, (5, shape[0]))
    b.output(b.op("matmul", [x, b.constant(np.eye(*shape, dtype=np.float32))]), "y")
    graph = b.finish()
    inputs = {"x": rng.standard_normal((5, shape[0])).astype(np.float32)}
    after = optimize(graph, graph_passes([get_target("cuda:sm_90a")]))
    np.testing.assert_allclose(run(after, inputs)["y"], run(graph, inputs)["y"], rtol=1e-6)


@pytest.mark.parametrize("least", [0, 1, 2, 5])
@pytest.mark.parametrize("step", [1, 2, 3])
def test_frames_of_dynamic_sizes(least: int, step: int, rng: np.random.Generator) -> None:
    """Few neighbours are elementwise where no size is shorter than a frame."""
    b = GraphBuilder("frames")
    size = b.symbol("size", least, 50)
    x = b.input("x", float32, (4, size))
    count = maximum(floor_divide(lift(size) - 3, step) + 1, 0)
    frames = b.op("frames", [x], axis=1, length=3, step=step, count=count)
    b.output(b.op("reduce_sum", [frames], axes=(2,), keepdims=False), "y")
    graph = b.finish()
    after = optimize(graph, graph_passes([get_target("cuda:sm_90a")]))
    assert ("frames" in [node.op for node in after.nodes]) == (least < 3)
    for extent in (5, 20):
        inputs = {"x": rng.standard_normal((4, extent)).astype(np.float32)}
        np.testing.assert_allclose(run(after, inputs)["y"], run(graph, inputs)["y"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize(("op", "places"), [("reduce_max", "argmax"), ("reduce_min", "argmin")])
@pytest.mark.parametrize("axis", [0, 1])
def test_extremes_whose_places_are_needed_are_looked_up(
    axis: int, op: str, places: str, keepdims: bool, driver: Driver, rng: np.random.Generator
) -> None:
    b = GraphBuilder("extremes")
    x, scaled = b.input("x", float16, (37, 21)), b.input("scaled", float32, (37, 21))
    double = b.op("multiply", [scaled, b.number(2.0, float32)])
    for name, value in (("given", x), ("computed", double)):
        b.output(b.op(op, [value], axes=(axis,), keepdims=keepdims), name)
        b.output(b.op(places, [value], axis=axis, keepdims=keepdims), f"{name}_places")
    graph = b.finish()
    ops = [node.op for node in optimize(graph, graph_passes([get_target("cuda:sm_90a")])).nodes]
    assert (ops.count(op), ops.count(places), ops.count("gather_elements")) == (1, 2, 1)
    inputs = {value.name: rng.standard_normal(value.shape).astype(value.dtype.numpy) for value in (x, scaled)}
    inputs["x"][5, 3] = inputs["x"][9, 3] = np.nan
    found, wanted = build(graph, "cuda:sm_90a").run(inputs), run(graph, inputs)
    for name in wanted:
        np.testing.assert_array_equal(found[name], wanted[name])


@pytest.mark.parametrize("op", ["argmax", "argmin"])
def test_searches_read_slices_where_they_lie(op: str, driver: Driver, rng: np.random.Generator) -> None:
    b = GraphBuilder("search")
    x = b.input("x", float32, (6, 8, 8))
    column = b.op("slice", [b.op("slice", [x], axis=1, start=2, stop=8)], axis=2, start=2, stop=3)
    found = b.op(op, [b.op("absolute", [b.op("permute", [column], order=(0, 2, 1))])], axis=2, keepdims=False)
    b.output(b.op("add", [found, 2]), "y")
    check(b.finish(), 1, rng)


@pytest.mark.parametrize(
    ("dtype", "rows", "narrow"),
    [(int8, 300, True), (uint8, 300, True), (int1, 300, True), (int16, (1 << 16) - 1, True), (int16, 1 << 16, False),
     (int32, 300, False)],
)  # fmt: skip
def test_sums_of_narrow_integers_are_in_32_bits(
    dtype: DType, rows: int, narrow: bool, driver: Driver, rng: np.random.Generator
) -> None:
    b = GraphBuilder("narrow")
    x = b.input("x", dtype, (rows, 3))
    b.output(b.op("reduce_sum", [b.op("cast", [x], dtype=int64)], axes=(0,), keepdims=False), "y")
    graph = b.finish()
    nodes = optimize(graph, graph_passes([get_target("cuda:sm_90a")])).nodes
    assert [node.output.dtype for node in nodes if node.op == "reduce_sum"] == [int32 if narrow else int64]
    least = np.iinfo(dtype.numpy).min if dtype.bits > 1 else True
    inputs = {"x": np.full(x.shape, least, dtype.numpy)}
    np.testing.assert_array_equal(build(graph, "cuda:sm_90a").run(inputs)["y"], run(graph, inputs)["y"])


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
