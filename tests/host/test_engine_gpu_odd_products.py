"""Products of sizes that tensor copies cannot read, on the stand-in for a GPU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.host.cuda_stand_in import Driver
from tests.rounding import product_bound
from tilewright.build.builder import build
from tilewright.build.tuning import Tuning
from tilewright.dtypes import DType, bfloat16, float16, float32
from tilewright.graph.build import GraphBuilder
from tilewright.targets.library_facts import GPU_KERNELS
from tilewright.targets.nvidia import target as nvidia


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    ("rows", "depth", "columns"),
    [(700, 257, 200), (301, 512, 303), (1001, 203, 205), (40, 1001, 999), (16, 1501, 1401)],
)
def test_odd_sizes(
    rows: int, depth: int, columns: int, transposed: bool, constant: bool, driver: Driver, rng: np.random.Generator
) -> None:
    """A Hopper product between copies; a constant operand is copied in the build, one of few rows not in each call."""
    shape = (columns, depth) if transposed else (depth, columns)
    w = (rng.standard_normal(shape) / depth**0.5).astype(bfloat16.numpy)
    b = GraphBuilder("odd")
    x = b.input("x", bfloat16, (rows, depth))
    right = b.constant(w) if constant else b.input("w", bfloat16, shape)
    b.output(b.op("matmul", [x, right], transpose_b=transposed), "y")
    engine = build(b.finish(), "cuda:sm_90a")
    aligned = any("hopper" in step.evidence["chosen"] for step in engine.plan.steps)
    assert aligned is (rows > 16 or constant)
    inputs = {"x": rng.standard_normal((rows, depth)).astype(bfloat16.numpy), **({} if constant else {"w": w})}
    left, right = (each.astype(np.float64) for each in (inputs["x"], w.T if transposed else w))
    found = engine.run(inputs)["y"]
    assert (np.abs(found.astype(np.float64) - left @ right) <= product_bound(inputs["x"], right, bfloat16)).all()


@pytest.mark.parametrize(("dtype", "rows", "depth"), [(float32, 512, 257), (float16, 4, 257), (float16, 16, 31)])
def test_products_that_stay(dtype, rows: int, depth: int, assembler: None) -> None:
    """Small ones, and those of a few rows."""
    b = GraphBuilder("stays")
    x, w = b.input("x", dtype, (rows, depth)), b.input("w", dtype, (depth, 256))
    b.output(b.op("matmul", [x, w]), "y")
    assert len(build(b.finish(), "cuda:sm_90a").plan.steps) == 1


@pytest.mark.parametrize("transposed", [False, True])
def test_large_products_of_float32(
    transposed: bool, driver: Driver, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As tf32 their depth is filled up, and columns where rows of the right operand run along them."""
    monkeypatch.setattr(nvidia, "GPU_KERNELS", replace(GPU_KERNELS, padded_work_single=1 << 20))
    w = rng.standard_normal((259, 61) if transposed else (61, 259)).astype(np.float32)
    b = GraphBuilder("odd")
    product = b.op("matmul", [b.input("x", float32, (257, 61)), b.constant(w)], transpose_b=transposed)
    b.output(b.op("relu", [product]), "y")
    engine = build(b.finish(), "cuda:sm_90a", precision="tf32", tuning=Tuning(effort=0))
    assert len(engine.plan.steps) == (2 if transposed else 3)
    x = rng.standard_normal((257, 61)).astype(np.float32)
    exact = np.maximum(x.astype(np.float64) @ (w.T if transposed else w), 0)
    assert np.max(np.abs(engine.run({"x": x})["y"] - exact)) <= 2.0**-9 * np.max(exact)


@pytest.mark.parametrize(
    ("rows", "depth", "columns", "steps"),
    [(72, 61, 40, 1), (75, 61, 21, 1), (75, 64, 24, 1), (72, 61, 43, 3), (75, 61, 131, None)],
)
def test_transposed_left_operands_of_any_depth(
    rows: int, depth: int, columns: int, steps: int | None, driver: Driver, rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Depths of operands without rows along them are not filled up, and odd rows are read as they lie if columns are
    few; else there are copies."""
    monkeypatch.setattr(nvidia, "GPU_KERNELS", replace(GPU_KERNELS, padded_work=1, padded_use=1))
    b = GraphBuilder("turned")
    x, w = b.input("x", float16, (depth, rows)), b.input("w", float16, (depth, columns))
    b.output(b.op("matmul", [b.op("permute", [x], order=(1, 0)), w]), "y")
    engine = build(b.finish(), "cuda:sm_90a", tuning=Tuning(effort=0))
    assert steps is None or len(engine.plan.steps) == steps
    left, right = (rng.standard_normal((depth, extent)).astype(np.float16) for extent in (rows, columns))
    exact = left.astype(np.float64).T @ right.astype(np.float64)
    found = engine.run({"x": left, "w": right})["y"].astype(np.float64)
    assert (np.abs(found - exact) <= product_bound(np.ascontiguousarray(left.T), right, float16)).all()


@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=str)
@pytest.mark.parametrize(("batches", "rows", "depth"), [(1, 37, 1001), (65, 5, 9), (3, 64, 512)])
def test_matrices_times_vectors_are_sums_of_float32_terms(
    batches: int, rows: int, depth: int, dtype: DType, driver: Driver, rng: np.random.Generator
) -> None:
    b = GraphBuilder("vector")
    x, v = b.input("x", dtype, (batches, rows, depth)), b.input("v", dtype, (batches, depth, 1))
    b.output(b.op("matmul", [x, v]), "y")
    engine = build(b.finish(), "cuda:sm_90a", tuning=Tuning(effort=0))
    assert "of products" in engine.plan.steps[0].evidence["chosen"]
    left, right = (
        rng.standard_normal(shape).astype(dtype.numpy) for shape in ((batches, rows, depth), (batches, depth, 1))
    )
    exact = left.astype(np.float64) @ right.astype(np.float64)
    found = engine.run({"x": left, "v": right})["y"].astype(np.float64)
    for number in range(batches):
        bound = product_bound(left[number], right[number], dtype)
        assert (np.abs(found[number] - exact[number]) <= bound).all()
