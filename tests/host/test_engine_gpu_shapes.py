"""Forms of GPU kernels that odd sizes, short rows and linear tables get, on the stand-in for a GPU."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.build.builder import build
from tilewright.dtypes import DType, bfloat16, float16, float32, int64
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph
from tilewright.graph.reference import run


def check(graph: Graph, inputs: dict[str, np.ndarray], tolerance: float = 0.0) -> list[str]:
    """Results as the reference's; gives the kernels of the plan."""
    engine = build(graph, "cuda:sm_90a")
    found, wanted = engine.run(inputs), run(graph, inputs)
    for name, expected in wanted.items():
        result, expected = found[name].astype(np.float64), expected.astype(np.float64)
        np.testing.assert_allclose(result, expected, rtol=tolerance, atol=tolerance)
    return [engine.kernel_name(step.choices[-1].kernel) for step in engine.plan.steps]


@pytest.mark.parametrize("columns", [1, 5, 16])
@pytest.mark.parametrize("dtype", [float16, int64], ids=str)
def test_short_rows_are_walked_by_threads(columns: int, dtype: DType, driver, rng) -> None:
    rows = 2 * 132 * 512 + 1
    b = GraphBuilder("short")
    x = b.input("x", dtype, (rows, columns))
    b.output(b.op("argmax", [x], axis=1, keepdims=False), "largest")
    b.output(b.op("argmin", [x], axis=1, keepdims=True), "least")
    values = rng.integers(-3, 4, (rows, columns)).astype(dtype.numpy)
    if dtype.is_float:
        values[::7, columns // 2] = np.nan
        values[3::7] = -np.inf
        b.output(b.op("reduce_log_sum_exp", [x], axes=(1,), keepdims=False), "sums")
    check(b.finish(), {"x": values}, 2e-3 if dtype.is_float else 0.0)


@pytest.mark.parametrize("total", [(1 << 18) + 1, 1027 * 258])
def test_the_last_program_alone_has_a_mask(total: int, driver, rng) -> None:
    b = GraphBuilder("odd")
    x, y = b.input("x", bfloat16, (total,)), b.input("y", float32, (total,))
    b.output(b.op("multiply", [x, 2.0]), "doubled")
    b.output(b.op("add", [b.op("cast", [x], dtype=float32), y]), "sum")
    check(b.finish(), {"x": rng.standard_normal(total).astype(bfloat16.numpy), "y": np.ones(total, np.float32)}, 1e-6)


def test_linear_tables_are_not_loaded(driver, rng) -> None:
    """Windows of an image as a gather at places that a table names: those of several dimensions merged into one."""
    rows, columns = (np.arange(3)[:, None] * 2 + np.arange(7) for _ in range(2))
    merged = (rows[:, :, None, None] * 11 + columns[None, None]).reshape(-1)
    uneven = merged.copy()
    uneven[5] += 1
    for name, table in (("linear", merged), ("uneven", uneven), ("plain", np.arange(4, 90, 3)), ("back", -merged - 1)):
        b = GraphBuilder(name)
        x = b.input("x", float32, (2, 5, 121))
        b.output(b.op("gather", [x, b.constant(table, "table")], axis=2), "windows")
        check(b.finish(), {"x": rng.standard_normal((2, 5, 121)).astype(np.float32)})


def test_places_are_computed_where_they_are_looked_up(driver, rng) -> None:
    b = GraphBuilder("places")
    x, i, j = b.input("x", float32, (40, 6)), b.input("i", int64, (9, 1)), b.input("j", int64, (7,))
    place = b.op("remainder", [b.op("add", [b.op("multiply", [i, 3]), j]), 40])
    b.output(b.op("multiply", [b.op("gather", [x, place], axis=0), 2.0]), "y")
    inputs = {"x": rng.standard_normal((40, 6)).astype(np.float32)}
    inputs |= {"i": rng.integers(0, 40, (9, 1)), "j": rng.integers(0, 40, 7)}
    assert len(check(b.finish(), inputs)) == 1


@pytest.mark.parametrize(
    "shape, order",
    [((300, 8, 8), (0, 2, 1)), ((301, 9, 5), (0, 2, 1)), ((11, 700, 3), (2, 1, 0)), ((3, 90, 16, 16), (0, 1, 3, 2))],
)
def test_many_small_matrices_share_programs(shape: tuple[int, ...], order: tuple[int, ...], driver, rng) -> None:
    """A tile for each would be a program of few elements each."""
    b = GraphBuilder("turned")
    turned = b.op("permute", [b.input("x", float16, shape)], order=order)
    b.output(b.op("multiply", [turned, 2.0]), "y")
    graph = b.finish()
    values = rng.integers(-50, 50, shape).astype(np.float16)
    check(graph, {"x": values})
    (step,) = build(graph, "cuda:sm_90a").plan.steps
    programs = np.prod([int(extent) for extent in step.choices[-1].grid])
    assert programs * 64 <= values.size
