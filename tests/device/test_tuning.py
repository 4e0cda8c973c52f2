"""Choosing kernels by time on a GPU: what is timed, kept and asked for again, and how steps are profiled."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright import Engine
from tilewright.build import trials, tuning
from tilewright.build.builder import build
from tilewright.build.tuning import Tuning
from tilewright.dtypes import DType, bfloat16, float16
from tilewright.errors import MissingTimingError
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph
from tilewright.graph.reference import run
from tilewright.runtime.cuda import timing
from tilewright.runtime.cuda.memory import DeviceArray
from tilewright.settings import settings
from tilewright.targets.registry import get_target


def towers(rng: np.random.Generator, rows: int | None = None, width: int = 512) -> Graph:
    """A norm, two equal products and a third."""
    b = GraphBuilder("towers")
    count = b.symbol("rows", 1, 900) if rows is None else rows
    x = b.input("x", float16, (count, width))
    x = b.op("layer_norm", [x, b.constant(np.ones(width, np.float16))], epsilon=1e-5, axis=1)
    for _ in range(2):
        w = (rng.standard_normal((width, width)) / width**0.5).astype(np.float16)
        x = b.op("relu", [b.op("matmul", [x, b.constant(w)])])
    w = (rng.standard_normal((width, 96)) / width**0.5).astype(np.float16)
    b.output(b.op("add", [b.op("matmul", [x, b.constant(w)]), b.constant(w[0])]), "y")
    return b.finish()


def largest_error(engine: Any, graph: Graph, rows: int, rng: np.random.Generator) -> float:
    x = rng.standard_normal((rows, graph.inputs[0].shape[1])).astype(np.float16)
    exact = run(graph, {"x": x})["y"]
    found = engine(DeviceArray.from_numpy(x)).numpy().astype(np.float64)
    return float(np.max(np.abs(found - exact)) / np.max(np.abs(exact)))


def test_the_fastest_of_the_close_candidates_is_taken_and_kept(
    rng, caplog, monkeypatch, compile_processes, tmp_path: Path
) -> None:
    graph = towers(rng, 300)
    with caplog.at_level(logging.INFO, logger="tilewright.engine"):
        engine = build(graph, "cuda", tuning=Tuning(1))
    assert settings.threads == 1 or "processes" in caplog.text
    assert largest_error(engine, graph, 300, rng) <= 2.0**-8
    compared = 0
    for step in engine.plan.steps:
        times = {n: c["microseconds"] for n, c in enumerate(step.evidence["candidates"]) if "microseconds" in c}
        if times:
            compared += 1
            assert step.evidence["choice"]["number"] == min(times, key=lambda number: times[number])
            assert all(0.3 < time < 300 for time in times.values()), times
    assert compared >= 3
    monkeypatch.setattr(timing, "replay_times", None)  # nothing is timed again
    again = build(graph, "cuda", tuning=Tuning(1))
    assert again._package.objects == engine._package.objects
    with settings.scope(cache_directory=tmp_path / "elsewhere"):
        shipped = build(graph, "cuda", tuning=Tuning(1, engine.timings, reproducible=True))
        assert shipped._package.objects.keys() == engine._package.objects.keys()
        with pytest.raises(MissingTimingError, match="a reproducible build times nothing"):
            build(graph, "cuda", tuning=Tuning(1, reproducible=True))


@pytest.mark.parametrize("effort", [0, 3])
def test_every_effort_gives_right_results(rng, effort: int) -> None:
    graph = towers(rng, width=256)
    engine = build(graph, "cuda", tuning=Tuning(effort))
    for rows in (1, 17, 900):
        assert largest_error(engine, graph, rows, rng) <= 2.0**-8, rows
    counts = [sum("microseconds" in c for c in step.evidence["candidates"]) for step in engine.plan.steps]
    assert max(counts) == (0 if effort == 0 else max(len(step.evidence["candidates"]) for step in engine.plan.steps))


def test_weights_are_timed_cold_where_the_model_does_not_fit_the_cache(rng) -> None:
    graph = towers(rng, 16, 1024)
    times = {}
    for l2_bytes in (1 << 20, 1 << 40):
        target = dataclasses.replace(get_target("cuda"), l2_bytes=l2_bytes)
        engine = build(graph, target, tuning=Tuning(1))
        product = max(engine.timings, key=lambda timing: timing.problem.count("1024"))
        times[product.context] = min(product.microseconds.values())
    assert sorted("cold" in context for context in times) == [False, True]
    assert all(time > 0 for time in times.values())


def test_steps_are_timed_inside_the_plans_graph(rng) -> None:
    graph = towers(rng, 300)
    engine = build(graph, "cuda", tuning=Tuning(0))
    rows = engine.profile({"x": rng.standard_normal((300, 512)).astype(np.float16)}, runs=5)
    assert len(rows) == len(engine.plan.steps) and all(1e-4 < row["milliseconds"] < 1 for row in rows)


def test_library_calls_work_inside_plans(torch: Any, rng, monkeypatch, tmp_path: Path) -> None:
    """Products and convolutions of PyTorch as steps: in trials, in graphs, after loading, beside our kernels."""

    class LibraryFirst(trials.Trials):
        def measure(self, candidates: Any, sizes: Any) -> Any:
            found = super().measure(candidates, sizes)
            assert not found.failures, found.failures
            times = {n: t / 1e3 if candidates[n].name == "PyTorch" else t for n, t in found.microseconds.items()}
            return found._replace(microseconds=times)

    monkeypatch.setattr(tuning, "Trials", LibraryFirst)
    b = GraphBuilder("library")
    count = b.symbol("batch", 1, 16)
    x = b.input("x", float16, (count, 14, 14, 32))
    w, bias, v, c = (
        (rng.standard_normal(shape) / 8).astype(np.float16) for shape in ((64, 32, 3, 3), (64,), (64, 48), (48,))
    )
    window = {"strides": (2, 1), "padding": ((1, 1), (0, 0)), "dilation": (1, 1), "groups": 1, "layout": "NHWC"}
    y = b.op("relu", [b.op("conv", [x, b.constant(w), b.constant(bias)], **window)])
    y = b.op("add", [b.op("matmul", [y, b.constant(v)]), b.constant(c)])
    b.output(y, "y")
    graph = b.finish()
    engine = build(graph, "cuda", tuning=Tuning(1, libraries=True))
    names = [engine.kernel_name(step.choices[0].kernel) for step in engine.plan.steps]
    assert [name for name in names if name.startswith("torch.")] == ["torch.convolution", "torch.addmm"]
    engine.save(tmp_path / "library.engine")
    for built in (engine, Engine.load(tmp_path / "library.engine")):
        for batch in (3, 16, 3):
            given = (rng.standard_normal((batch, 14, 14, 32))).astype(np.float16)
            exact = run(graph, {"x": given})["y"]
            found = built(torch.from_numpy(given).cuda()).double().cpu().numpy()
            assert np.max(np.abs(found - exact)) <= 2.0**-8 * np.max(np.abs(exact))


@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=str)
def test_bindings_of_libraries_work_inside_plans(rng, monkeypatch, tmp_path: Path, dtype: DType) -> None:
    """cuBLASLt and cuDNN without PyTorch: with epilogues, batches, turned operands, sizes known at run time."""
    pytest.importorskip("nvmath.bindings")
    pytest.importorskip("cudnn")

    class BindingsFirst(trials.Trials):
        def measure(self, candidates: Any, sizes: Any) -> Any:
            found = super().measure(candidates, sizes)
            assert not found.failures, found.failures
            times = {n: t / 1e3 if candidates[n].name.startswith("cu") else t for n, t in found.microseconds.items()}
            return found._replace(microseconds=times)

    monkeypatch.setattr(tuning, "Trials", BindingsFirst)
    b = GraphBuilder("bindings")
    count = b.symbol("batch", 1, 16)
    x = b.input("x", dtype, (count, 14, 14, 32))
    w, bias, v, c, u = (
        b.constant((rng.standard_normal(shape) / 8).astype(dtype.numpy))
        for shape in ((64, 32, 3, 3), (64,), (64, 48), (48,), (40, 48))
    )
    window = {"strides": (2, 1), "padding": ((1, 1), (0, 0)), "dilation": (1, 1), "groups": 1, "layout": "NHWC"}
    y = b.op("relu", [b.op("conv", [x, w, bias], **window)])
    y = b.op("relu", [b.op("add", [b.op("matmul", [y, v]), c])])
    y = b.op("reshape", [b.op("matmul", [y, u], transpose_b=True)], shape=(count, 84, 40))
    b.output(b.op("matmul", [y, y], transpose_b=True), "y")
    graph = b.finish()
    engine = build(graph, "cuda", tuning=Tuning(1, libraries=True))
    names = [engine.kernel_name(step.choices[0].kernel) for step in engine.plan.steps]
    assert names == ["cudnn.convolution", "cublaslt.product", "cublaslt.product", "cublaslt.product"]
    engine.save(tmp_path / "bindings.engine")
    for built in (engine, Engine.load(tmp_path / "bindings.engine")):
        for batch in (3, 16, 3, 3):
            given = rng.standard_normal((batch, 14, 14, 32)).astype(dtype.numpy)
            exact, rounded = run(graph, {"x": given})["y"], run(graph, {"x": given}, dtype=None)["y"]
            found = built(DeviceArray.from_numpy(given)).numpy().astype(np.float64)
            own = np.max(np.abs(np.asarray(rounded, np.float64) - exact))
            assert np.max(np.abs(found - exact)) <= 3 * own


def experts(rng: np.random.Generator, width: int = 1024) -> Graph:
    """Three chains of small products with softmax between them, added up."""
    b = GraphBuilder("experts")
    x = b.input("x", float16, (16, width))
    results = []
    for _ in range(3):
        hidden = x
        for _ in range(3):
            w = (rng.standard_normal((width, width)) / width**0.5).astype(np.float16)
            hidden = b.op("softmax", [b.op("matmul", [hidden, b.constant(w)])], axis=1)
        results.append(hidden)
    b.output(b.op("add", [b.op("add", results[:2]), results[2]]), "y")
    return b.finish()


def test_branches_next_to_each_other_are_right(rng) -> None:
    graph = experts(rng)
    engine = build(graph, "cuda", tuning=Tuning(0))
    assert len({step.lane for step in engine.plan.steps}) > 1
    for _ in range(30):
        given = rng.standard_normal((16, 1024)).astype(np.float16)
        exact = run(graph, {"x": given})["y"]
        found = engine(DeviceArray.from_numpy(given)).numpy().astype(np.float64)
        assert np.max(np.abs(found - exact)) <= 2.0**-7 * np.max(np.abs(exact))
