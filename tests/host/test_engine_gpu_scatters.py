"""Scatters of many updates on GPUs, on the stand-in for one: all updates at once, by atomic operations."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.build.builder import build
from tilewright.dtypes import DType, bfloat16, float16, float32, float64, int8, int32, int64, uint8, uint32
from tilewright.graph.build import GraphBuilder
from tilewright.graph.reference import run

COUNT = 700


def numbers(rng: np.random.Generator, dtype: DType, *shape: int) -> np.ndarray:
    if dtype.is_float:
        return rng.standard_normal(shape).astype(dtype.numpy)
    return rng.integers(-50 if dtype.is_signed else 0, 100, shape).astype(dtype.numpy)


@pytest.mark.parametrize("dtype", [float32, float16, float64, int8, int32, int64, uint8, uint32], ids=str)
@pytest.mark.parametrize("reduction", ["add", "maximum", "minimum", "none"])
@pytest.mark.parametrize("shape", [(40, 24), (3, 40, 5), (300,)], ids=str)
def test_many_updates(shape, dtype, reduction, driver, rng):
    """NaN is larger and smaller than all others; the last of equal indices wins; indices count from both ends."""
    axis = max(0, len(shape) - 2)
    given = (*shape[:axis], COUNT, *shape[axis + 1 :])
    b = GraphBuilder("updates")
    operands = [b.input("x", dtype, shape), b.input("index", int64, (COUNT,)), b.input("updates", dtype, given)]
    if reduction == "none":
        b.output(b.op("scatter_update", operands, axis=axis), "y")
    else:
        b.output(b.op("scatter_reduce", operands, axis=axis, reduction=reduction), "y")
    graph = b.finish()
    inputs = {"x": numbers(rng, dtype, *shape), "index": rng.integers(-shape[axis], shape[axis], COUNT)}
    inputs["updates"] = numbers(rng, dtype, *given)
    if dtype.is_float and reduction != "add":
        inputs["updates"].reshape(-1)[:: COUNT // 2] = np.nan
        inputs["updates"].reshape(-1)[3] = -np.inf
    with np.errstate(invalid="ignore"):
        found, wanted = build(graph, "cuda:sm_90a").run(inputs)["y"], run(graph, inputs)["y"]
    if not dtype.is_float or reduction != "add":
        np.testing.assert_array_equal(found, wanted)
        return
    exact = inputs["x"].astype(np.float64)
    np.add.at(exact, (slice(None),) * axis + (inputs["index"],), inputs["updates"].astype(np.float64))
    unit = np.finfo(np.float32 if dtype == float16 else dtype.numpy).eps
    bound = (
        COUNT * unit * np.abs(inputs["updates"].astype(np.float64)).max() + np.abs(exact) * np.finfo(dtype.numpy).eps
    )
    assert (np.abs(found - exact) <= bound).all()


def test_sums_in_order_are_those_of_the_reference(driver, rng):
    b = GraphBuilder("ordered")
    operands = [b.input("x", float32, (9,)), b.input("index", int64, (COUNT,)), b.input("updates", float32, (COUNT,))]
    b.output(b.op("scatter_reduce", operands, axis=0, reduction="add", ordered=True), "y")
    graph = b.finish()
    inputs = {"x": numbers(rng, float32, 9), "index": rng.integers(-9, 9, COUNT)}
    inputs["updates"] = numbers(rng, float32, COUNT)
    np.testing.assert_array_equal(build(graph, "cuda:sm_90a").run(inputs)["y"], run(graph, inputs, None)["y"])


def test_operands_are_computed_where_they_are_read(driver, rng):
    """Zeros, places and updates take no launches of their own; known neighbouring places are a concat."""
    b = GraphBuilder("computed")
    index, line = b.input("index", int64, (COUNT,)), b.input("line", float32, (5000,))
    zeros = b.op("full", [], shape=(120,), value=0.0, dtype=float32)
    places = b.op("add", [b.op("multiply", [index, 3]), 1])
    updates = b.op("cast", [index], dtype=float32)
    b.output(b.op("scatter_reduce", [zeros, places, updates], axis=0, reduction="add"), "sums")
    middle = b.op("iota", [], shape=(4000,), start=7)
    b.output(b.op("scatter_update", [line, middle, b.op("slice", [line], axis=0, start=0, stop=4000)], axis=0), "moved")
    graph = b.finish()
    engine = build(graph, "cuda:sm_90a")
    assert len(engine.plan.steps) == 3
    inputs = {"index": rng.integers(0, 39, COUNT), "line": numbers(rng, float32, 5000)}
    found, wanted = engine.run(inputs), run(graph, inputs)
    for name in ("sums", "moved"):
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-5)


@pytest.mark.parametrize("varying", [False, True])
@pytest.mark.parametrize("shape", [(8,), (8, 6)], ids=str)
def test_equal_known_indices_take_every_update(shape, varying, driver):
    """Places and updates may depend on no loop variable: each update counts nevertheless."""
    b = GraphBuilder("equal")
    x, index = b.input("x", float32, shape), b.constant(np.full(COUNT, 3))
    given = (COUNT, *shape[1:])
    ones = b.op("full", [], shape=given, value=1.0, dtype=float32)
    updates = b.input("updates", float32, given) if varying else ones
    b.output(b.op("scatter_reduce", [x, index, updates], axis=0, reduction="add"), "y")
    inputs = {"x": np.zeros(shape, np.float32), "updates": np.ones(given, np.float32)}
    found = build(b.finish(), "cuda:sm_90a").run({name: inputs[name] for name in ("x", "updates")[: 1 + varying]})["y"]
    wanted = np.zeros(shape)
    wanted[3] = COUNT
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("dtype", [float16, bfloat16, float32, float64], ids=str)
@pytest.mark.parametrize("reduction", ["maximum", "minimum"])
def test_what_no_update_changes_keeps_its_bits(dtype, reduction, driver):
    """Signs of zeros, and of NaN; an update that is a zero keeps its sign too."""
    b = GraphBuilder("bits")
    operands = [b.input("x", dtype, (8,)), b.input("index", int64, (3,)), b.input("updates", dtype, (3,))]
    b.output(b.op("scatter_reduce", operands, axis=0, reduction=reduction), "y")
    one = -1.0 if reduction == "maximum" else 1.0
    x = np.array([0.0, -0.0, one, one, 0.0, -0.0, np.nan, -np.nan], dtype.numpy)
    inputs = {"x": x, "index": np.array([2, 3, 0]), "updates": np.array([0.0, -0.0, 0.0], dtype.numpy)}
    wanted = np.array([0.0, -0.0, 0.0, -0.0, 0.0, -0.0, np.nan, -np.nan], dtype.numpy)
    found = build(b.finish(), "cuda:sm_90a").run(inputs)["y"]
    assert found.tobytes() == wanted.tobytes()
