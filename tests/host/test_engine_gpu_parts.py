"""Row operations, reductions, scans and searches on GPUs of any aspect ratio, on the stand-in for a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.host.cuda_stand_in import Driver
from tests.rounding import graph_bounds
from tilewright.build.builder import build
from tilewright.dtypes import DType, bfloat16, float16, float32, int32
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph
from tilewright.graph.passes.fuse import fuse
from tilewright.graph.pipeline import optimize
from tilewright.graph.reference import run
from tilewright.library.select import candidates, choose
from tilewright.symbolic import product
from tilewright.targets.registry import get_target, graph_passes

ROWS = [  # op, attributes, shape, whether the row is divided
    ("softmax", {"axis": 1}, (3, 40001), True),
    ("log_softmax", {"axis": 1}, (1, 65537), True),
    ("softmax", {"axis": 0}, (40000, 2), True),
    ("softmax", {"axis": 1}, (265, 16500), False),
    ("layer_norm", {"axis": 1, "epsilon": 1e-5}, (2, 70001), True),
    ("rms_norm", {"axis": 1, "epsilon": 1e-5}, (2, 50000), True),
    ("layer_norm", {"axis": 1, "epsilon": 1e-5}, (3, 5, 9001), True),
    ("layer_norm", {"axis": 1, "epsilon": 1e-5}, (265, 16500), False),
    ("softmax", {"axis": 1}, (2001, 3), False),
    ("softmax", {"axis": 1}, (501, 13), False),
    ("reduce_log_sum_exp", {"axes": (1,)}, (2, 30011), True),
    ("reduce_log_sum_exp", {"axes": (1,)}, (3001, 2), False),
    ("reduce_log_sum_exp", {"axes": (1,)}, (300, 1000), False),
    ("reduce_sum", {"axes": (0, 1)}, (301, 307), True),
    ("reduce_mean", {"axes": (1,)}, (2, 100003), True),
    ("reduce_max", {"axes": (1,)}, (1, 40009), True),
    ("reduce_min", {"axes": (0,)}, (10007, 3), True),
    ("reduce_mean", {"axes": (0,)}, (1009, 37), True),
    ("reduce_mean", {"axes": (1,)}, (2, 1009, 37), True),
    ("reduce_product", {"axes": (1,)}, (2, 20001), True),
]


def one(op: str, attributes: dict[str, Any], shape: tuple[int, ...], dtype: DType, around: bool = False) -> Graph:
    """A graph of one op, with something to compute before and after it where `around`."""
    b = GraphBuilder(op)
    x = b.input("x", dtype, shape)
    y = b.op(op, [b.op("multiply", [x, x]) if around else x], **attributes)
    b.output(b.op("add", [y, b.number(1.0, dtype)]) if around else y, "y")
    return b.finish()


def drawn(shape: tuple[int, ...], dtype: DType, rng: np.random.Generator, op: str = "") -> np.ndarray:
    x = rng.standard_normal(shape)
    return (1 + 1e-3 * x if op == "reduce_product" else x + 3).astype(dtype.numpy)


@pytest.mark.slow(but_every=4)
@pytest.mark.parametrize(("op", "attributes", "shape", "divided"), ROWS, ids=lambda value: str(value))
def test_rows(
    op: str, attributes: dict[str, Any], shape: tuple[int, ...], divided: bool, driver: Driver, rng: np.random.Generator
) -> None:
    """With something to compute before and after, or by itself."""
    graph = one(op, attributes, shape, float32, around=bool(rng.integers(2)))
    inputs = {"x": drawn(shape, float32, rng, op)}
    engine = build(graph, "cuda:sm_90a")
    exact, bound = run(graph, inputs)["y"], graph_bounds(graph, inputs)["y"]
    assert (np.abs(engine.run(inputs)["y"] - exact) <= bound).all()
    assert any("parts" in step.evidence["reasons"] for step in engine.plan.steps) == divided


@pytest.mark.parametrize("target", ["cuda:sm_90a", "cpu"])
@pytest.mark.parametrize(
    ("op", "attributes"), [("cumprod", {"axis": 1, "reverse": False}), ("reduce_product", {"axes": (1,)})]
)
def test_errors_of_many_factors_near_1_do_not_add_up(
    op: str, attributes: dict[str, Any], target: str, driver: Driver, rng: np.random.Generator
) -> None:
    """Pairs of factors, one above 1 and one below, are rounded down in float32."""
    factors = (1 + 1e-4 * rng.standard_normal((1, 60001))).astype(np.float32)
    exact = np.cumprod(factors.astype(np.float64), axis=1)
    found = build(one(op, attributes, factors.shape, float32), target).run({"x": factors})["y"]
    expected = exact if op == "cumprod" else exact[:, -1]
    assert (np.abs(found / expected - 1) < 1e-6).all()  # each pair rounded down: 3e-4


@pytest.mark.parametrize("dtype", [float16, bfloat16])
@pytest.mark.parametrize("op", ["softmax", "layer_norm", "reduce_mean", "reduce_max"])
def test_short_types(op: str, dtype: DType, driver: Driver, rng: np.random.Generator) -> None:
    attributes = {"axes": (1,)} if op.startswith("reduce") else {"axis": 1}
    graph = one(op, attributes | ({"epsilon": 1e-5} if op == "layer_norm" else {}), (3, 33003), dtype)
    inputs = {"x": drawn((3, 33003), dtype, rng)}
    exact, bound = run(graph, inputs)["y"], graph_bounds(graph, inputs)["y"]
    found = build(graph, "cuda:sm_90a").run(inputs)["y"].astype(np.float64)
    assert (np.abs(found - exact) <= bound).all()


@pytest.mark.parametrize("op", ["softmax", "layer_norm", "reduce_sum", "reduce_log_sum_exp", "argmax", "cumsum"])
def test_sizes_of_the_call(op: str, driver: Driver, rng: np.random.Generator) -> None:
    """One engine for rows of any length: parts may be empty."""
    b = GraphBuilder(op)
    x = b.input("x", float32, (b.symbol("rows", 1, 9), b.symbol("columns", 1, 200000)))
    attributes: dict[str, Any] = {"axes": (1,)} if op.startswith("reduce") else {"axis": 1}
    b.output(b.op(op, [x], **attributes, **({"epsilon": 1e-5} if op == "layer_norm" else {})), "y")
    graph = b.finish()
    engine = build(graph, "cuda:sm_90a")
    for shape in ((1, 1), (2, 5), (3, 4096), (1, 4097), (9, 10001), (2, 130000)):
        inputs = {"x": drawn(shape, float32, rng)}
        exact, bound = run(graph, inputs)["y"], graph_bounds(graph, inputs)["y"]
        assert (np.abs(engine.run(inputs)["y"] - exact) <= bound).all(), shape


@pytest.mark.slow(but_every=4)
@pytest.mark.parametrize("dtype", [float32, float16, int32])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((3, 50001), 1), ((2003, 3), 0), ((501, 70), 1), ((40003, 2), 0), ((1, 9), 0), ((6, 4001), 0), ((3, 140001), 0)],
)
def test_positions_of_extremes(
    shape: tuple[int, int], axis: int, dtype: DType, driver: Driver, rng: np.random.Generator
) -> None:
    """The first of equal elements, NaN before all others; rows of minus infinity have a first element too."""
    b = GraphBuilder("extremes")
    x = b.input("x", dtype, shape)
    for op in ("argmax", "argmin"):
        b.output(b.op(op, [x], axis=axis, keepdims=False), op)
    graph = b.finish()
    engine = build(graph, "cuda:sm_90a")
    values = rng.integers(-9, 9, shape).astype(dtype.numpy)
    for filled in (values, values * 0):
        inputs = {"x": filled}
        for name, expected in run(graph, inputs).items():
            assert np.array_equal(engine.run(inputs)[name], expected)
    if dtype.is_float:
        values[:, 0] = -np.inf
        values[0] = np.inf
        values[rng.integers(0, shape[0], 3), rng.integers(0, shape[1], 3)] = np.nan
        for name, expected in run(graph, {"x": values}).items():
            assert np.array_equal(engine.run({"x": values})[name], expected)


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", [(3, 50001), (20003, 3), (501, 70), (1, 9), (2, 100, 300), (3, 140001)])
def test_running_combinations(shape: tuple[int, ...], axis: int, driver: Driver, rng: np.random.Generator) -> None:
    b = GraphBuilder("running")
    x = b.input("x", float32, shape)
    near = b.op("add", [b.op("multiply", [x, b.number(1e-3, float32)]), b.number(1.0, float32)])
    for op in ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"):
        b.output(b.op(op, [near if op == "cumprod" else x], axis=axis), op)
    graph = b.finish()
    inputs = {"x": rng.standard_normal(shape).astype(np.float32)}
    exact, bounds = run(graph, inputs), graph_bounds(graph, inputs)
    for name, found in build(graph, "cuda:sm_90a").run(inputs).items():
        assert (np.abs(found - exact[name]) <= bounds[name]).all(), name


@pytest.mark.slow(but_every=2)
@pytest.mark.parametrize("op", ["cumsum", "argmax"])
@pytest.mark.parametrize(("shape", "axis"), [((3, 50001), 1), ((20003, 3), 0), ((501, 70), 0)])
def test_what_comes_before_and_after_is_computed_in_the_same_kernels(
    shape: tuple[int, ...], axis: int, op: str, driver: Driver, rng: np.random.Generator
) -> None:
    b = GraphBuilder(op)
    x, scale = b.input("x", float32, shape), b.input("scale", float32, (shape[1],))
    attributes = {"keepdims": False} if op.startswith("arg") else {}
    y = b.op(op, [b.op("multiply", [x, scale])], axis=axis, **attributes)
    b.output(b.op("multiply", [y, y if attributes else x]), "y")
    graph = b.finish()
    engine = build(graph, "cuda:sm_90a")
    assert len(engine.plan.steps) <= 2
    whole = rng.integers(-9, 9, shape).astype(np.float32)
    inputs = {"x": whole, "scale": rng.integers(1, 3, shape[1]).astype(np.float32)}
    expected = run(graph, inputs)["y"]
    assert np.array_equal(engine.run(inputs)["y"], expected)


@pytest.mark.parametrize("op", ["max_pool", "average_pool"])
@pytest.mark.parametrize(
    ("shape", "window"),
    [((2, 3, 800), (200,)), ((2, 3, 12, 11), (12, 11)), ((2, 3, 24, 70), (1, 70)), ((1, 2, 9, 40), (3, 40))],
)
def test_large_windows_are_reductions(shape: tuple[int, ...], window: Any, op: str, rng: np.random.Generator) -> None:
    b = GraphBuilder(op)
    x = b.input("x", float32, shape)
    n = len(window)
    y = b.op(op, [x], kernel=window, strides=window, padding=((0, 0),) * n, dilation=(1,) * n)
    b.output(y, "y")
    graph = b.finish()
    assert not any("pool" in node.op for node in optimize(graph, graph_passes([get_target("cpu")])).nodes)
    inputs = {"x": rng.standard_normal(shape).astype(np.float32)}
    exact, bound = run(graph, inputs)["y"], graph_bounds(graph, inputs)["y"]
    assert (np.abs(build(graph).run(inputs)["y"] - exact) <= bound).all()


def test_long_rows_of_windows_are_no_long_code(driver: Driver, rng: np.random.Generator) -> None:
    """Windows of 3,001 elements that overlap."""
    b = GraphBuilder("long")
    x = b.input("x", float32, (1, 2, 9000))
    for op in ("max_pool", "average_pool"):
        b.output(b.op(op, [x], kernel=(3001,), strides=(1000,), padding=((7, 7),), dilation=(1,)), op)
    graph = b.finish()
    inputs = {"x": rng.standard_normal((1, 2, 9000)).astype(np.float32)}
    engine, exact, bounds = build(graph, "cuda:sm_90a"), run(graph, inputs), graph_bounds(graph, inputs)
    for name, result in engine.run(inputs).items():
        assert (np.abs(result - exact[name]) <= bounds[name]).all()


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize("op", ["max_pool", "average_pool"])
@pytest.mark.parametrize(
    ("shape", "kernel", "strides", "padding"),
    [
        ((2, 5, 19, 23), (3, 3), (2, 2), ((1, 1), (1, 1))),
        ((3, 7, 16, 16), (2, 2), (2, 2), ((0, 0), (0, 0))),
        ((2, 3, 301), (5,), (3,), ((2, 2),)),
        ((2, 4, 9, 11, 10), (3, 2, 3), (2, 2, 1), ((1, 1), (0, 0), (1, 1))),
        ((2, 3, 8, 9, 7), (2, 2, 2), (2, 2, 2), ((0, 0),) * 3),
        ((1, 3, 9, 8, 10), (4, 4, 4), (4, 4, 4), ((1, 1), (2, 2), (1, 1))),
        ((1, 2, 9, 8, 10), (3, 3, 3), (1, 1, 1), ((1, 1),) * 3),
    ],
)
def test_pools_of_channels_first_images_move_nothing(
    shape: tuple[int, ...], kernel: Any, strides: Any, padding: Any, op: str, driver: Driver, rng: np.random.Generator
) -> None:
    b = GraphBuilder(op)
    x = b.input("x", float32, shape)
    b.output(b.op("relu", [b.op(op, [x], kernel=kernel, strides=strides, padding=padding,
                               dilation=(1,) * len(kernel))]), "y")  # fmt: skip
    graph = b.finish()
    engine = build(graph, "cuda:sm_90a")
    names = [engine.kernel_name(step.choices[-1].kernel) for step in engine.plan.steps]
    separate = product(strides) == 1  # of volumes: windows overlap much, and the depth is done first
    volumes = {"fused_relu", op if separate else "pool_of_volumes"}
    assert set(names) <= (volumes if len(shape) == 5 else {op})
    inputs = {"x": rng.standard_normal(shape).astype(np.float32)}
    exact, bound = run(graph, inputs)["y"], graph_bounds(graph, inputs)["y"]
    assert (np.abs(engine.run(inputs)["y"] - exact) <= bound).all()


def test_the_estimate_of_two_launches_is_that_of_the_larger_one() -> None:
    """The second launch has one CTA; the first reads everything with all processors, in many parts where it is long."""
    graph = optimize(one("reduce_sum", {"axes": (0, 1)}, (16384, 16384), float32))
    target = get_target("cuda:sm_90a")
    (group,) = fuse(graph).groups
    found = candidates(group, graph, target)
    first = choose(found)
    floor = 4 * 16384**2 / target.machine().memory
    assert floor <= first.cost.seconds < 1.2 * floor
    assert first.reasons["parts"] == max(candidate.reasons["parts"] for candidate in found)
