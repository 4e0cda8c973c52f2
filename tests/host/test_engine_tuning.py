"""Choosing kernels by time, on the stand-in for a GPU: what is timed, kept, shipped, and asked for again."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright import Engine
from tilewright.build import precompile, trials, tuning
from tilewright.build.builder import build
from tilewright.build.precompile import compile_ahead
from tilewright.build.tuning import Tuning
from tilewright.dtypes import DType, float16, float32
from tilewright.errors import (
    CompilationError,
    DeviceError,
    LaunchError,
    MissingDependencyError,
    MissingTimingError,
    SettingsError,
    UnsupportedOperationError,
)
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph, Value
from tilewright.graph.passes.fuse import fuse
from tilewright.graph.reference import run
from tilewright.library import select
from tilewright.library import vendor as library
from tilewright.library.makers import Makers
from tilewright.library.select import candidates
from tilewright.measure.choosing import Measured
from tilewright.measure.record import FILE_NAME, TimingCache
from tilewright.runtime.cuda import timing
from tilewright.runtime.cuda.device import Device, current_device
from tilewright.runtime.cuda.extern import extern_start
from tilewright.runtime.cuda.timing import shortened
from tilewright.runtime.extern import extern_key
from tilewright.settings import settings
from tilewright.targets.registry import get_target


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many candidates each call timed; the second always is the fastest."""
    counts: list[int] = []

    def replay_times(work: Sequence[Any], rounds: int) -> list[list[float]]:
        counts.append(len(work))
        return [[2.0 if number == 1 else 3.0] * rounds for number in range(len(work))]

    monkeypatch.setattr(timing, "replay_times", replay_times)
    return counts


def towers(rng: np.random.Generator, rows: int | str = 48) -> Graph:
    """Two equal products and a third."""
    b = GraphBuilder("towers")
    count = b.symbol("rows", 1, 900) if rows == "rows" else rows
    x = b.input("x", float32, (count, 64))
    for width in (64, 64, 32):
        w = rng.standard_normal((64, width)).astype(np.float32)
        x = b.op("relu", [b.op("matmul", [x, b.constant(w)])])
    b.output(x, "y")
    return b.finish()


def chosen(engine: Engine) -> list[dict[str, Any]]:
    return [step.evidence["choice"] for step in engine.plan.steps]


@pytest.mark.parametrize("rows", [48, "rows"])
def test_close_candidates_are_timed_once_for_equal_groups(driver, timed, rng, rows) -> None:
    graph = towers(rng, rows)
    engine = build(graph, "cuda:sm_90a", tuning=Tuning(1))
    assert len(timed) == (2 if rows == 48 else 6) and all(2 <= count <= 8 for count in timed)
    x = rng.standard_normal((48, 64), np.float32)
    np.testing.assert_allclose(engine(x), run(graph, {"x": x})["y"], rtol=1e-4, atol=1e-3)
    for step in engine.plan.steps:
        entries = step.evidence["candidates"]
        best = entries[step.evidence["choice"]["number"]]
        assert step.evidence["choice"]["source"] == "timed" and "stand-in" in step.evidence["choice"]["why"]
        measured = [entry["microseconds"] for entry in entries if "microseconds" in entry]
        assert best["microseconds"] == min(measured) < max(measured)
    timed.clear()
    again = build(graph, "cuda:sm_90a", tuning=Tuning(1))
    assert not timed and [entry["source"] for entry in chosen(again)] == ["recorded"] * 3
    assert [entry["number"] for entry in chosen(again)] == [entry["number"] for entry in chosen(engine)]


def test_calls_of_libraries_are_timed_whatever_their_estimates(driver, timed, rng) -> None:
    graph = towers(rng)
    build(graph, "cuda:sm_90a", tuning=Tuning(1))
    ours = list(timed)
    timed.clear()
    build(graph, "cuda:sm_90a", tuning=Tuning(1, libraries=True))
    assert [count - few for count, few in zip(timed, ours, strict=True)] == [1, 1]  # PyTorch's


def test_efforts_that_do_not_exist_are_refused() -> None:
    for effort in (-1, 4, "all"):
        with pytest.raises(SettingsError, match="expected 0 .* to 3"):
            Tuning(effort)


def test_nothing_is_timed_at_effort_0(driver, timed, rng) -> None:
    graph = towers(rng)
    assert {entry["source"] for entry in chosen(build(graph, "cuda:sm_90a", tuning=Tuning(0)))} == {"estimate"}
    build(graph, "cuda:sm_90a", tuning=Tuning(3))
    assert timed == [6, 6]
    assert {entry["source"] for entry in chosen(build(graph, "cuda:sm_90a", tuning=Tuning(0)))} == {"recorded"}


def test_a_reproducible_build_takes_recorded_times_alone(driver, timed, rng, tmp_path) -> None:
    graph = towers(rng)
    with pytest.raises(MissingTimingError, match=r"matmul\+relu f32\[48,64\].* --timing-cache"):
        build(graph, "cuda:sm_90a", tuning=Tuning(1, reproducible=True))
    engine = build(graph, "cuda:sm_90a", tuning=Tuning(1))
    timed.clear()
    assert build(graph, "cuda:sm_90a", tuning=Tuning(1, reproducible=True))._package.objects == engine._package.objects
    with settings.scope(cache_directory=tmp_path / "elsewhere"):
        shipped = build(graph, "cuda:sm_90a", tuning=Tuning(1, engine.timings, reproducible=True))
        recorded = TimingCache.read(tmp_path / FILE_NAME)
        named = build(graph, "cuda:sm_90a", tuning=Tuning(1, tuple(recorded), reproducible=True))
    for name, each in (("shipped", shipped), ("named", named)):
        each.save(tmp_path / name)
    assert (tmp_path / "shipped").read_bytes() == (tmp_path / "named").read_bytes()
    assert not timed and len(engine.timings) == 2
    assert [e["number"] for e in chosen(shipped)] == [e["number"] for e in chosen(named)] == \
        [e["number"] for e in chosen(engine)]  # fmt: skip


def test_recorded_times_choose_where_there_is_no_gpu(driver, timed, rng, monkeypatch, tmp_path) -> None:
    graph = towers(rng)
    engine = build(graph, "cuda:sm_90a", tuning=Tuning(1))
    timed.clear()

    def no_device() -> Any:
        raise DeviceError("no GPU")

    monkeypatch.setattr("tilewright.runtime.cuda.device.current_device", no_device)
    with settings.scope(cache_directory=tmp_path / "elsewhere"):
        estimated = build(graph, "cuda:sm_90a", tuning=Tuning(1))
        shipped = build(graph, "cuda:sm_90a", tuning=Tuning(1, engine.timings))
    assert not timed and all("no GPU" in entry["why"] for entry in chosen(estimated))
    assert [entry["number"] for entry in chosen(shipped)] == [entry["number"] for entry in chosen(engine)]
    assert all(entry["source"] == "recorded" and "stand-in" in entry["why"] for entry in chosen(shipped))


def test_candidates_that_do_not_run_are_left_out(driver, timed, rng, monkeypatch) -> None:
    real = trials.launcher
    refused: list[str] = []

    def launcher(program: Any, device: Any) -> Any:
        if refused and program.symbol != refused[0]:
            return real(program, device)
        refused.append(program.symbol)
        raise LaunchError("too large for this GPU")

    monkeypatch.setattr(trials, "launcher", launcher)
    engine = build(towers(rng), "cuda:sm_90a", tuning=Tuning(1))
    evidence = engine.plan.steps[0].evidence
    failed = [n for n, entry in enumerate(evidence["candidates"]) if "too large" in entry.get("failure", "")]
    # Equal blocks by other numbers of warps are the same code on the stand-in.
    assert 0 < len(failed) < len(evidence["candidates"]) and evidence["choice"]["number"] not in failed


def library_graph(rng: np.random.Generator, dtype: DType = float32) -> Graph:
    """A convolution with a bias and relu, a product with a bias, one alone, and one of batches."""
    b = GraphBuilder("library")
    x = b.input("x", dtype, (2, 9, 7, 8))
    weights = [
        (rng.standard_normal(shape) / 4).astype(dtype.numpy)
        for shape in ((12, 8, 3, 3), (12,), (12, 16), (16,), (16, 24))
    ]
    w, bias, v, c, u = (b.constant(array) for array in weights)
    window = {"strides": (2, 1), "padding": ((1, 1), (0, 0)), "dilation": (1, 1), "groups": 1, "layout": "NHWC"}
    y = b.op("reshape", [b.op("relu", [b.op("conv", [x, w, bias], **window)])], shape=(50, 12))
    y = b.op("matmul", [b.op("add", [b.op("matmul", [y, v]), c]), u])
    y = b.op("reshape", [y], shape=(2, 25, 24))
    b.output(b.op("matmul", [y, y], transpose_b=True), "y")
    return b.finish()


def test_library_calls_are_taken_where_they_are_allowed_and_faster(driver, timed, rng, monkeypatch, tmp_path) -> None:
    graph = library_graph(rng)
    x = rng.standard_normal((2, 9, 7, 8), np.float32)
    exact = run(graph, {"x": x})["y"]
    ours = build(graph, "cuda:sm_90a", tuning=Tuning(0))
    assert not any("PyTorch" == c["name"] for step in ours.plan.steps for c in step.evidence["candidates"])
    estimated = build(graph, "cuda:sm_90a", tuning=Tuning(0, libraries=True))
    assert not any(step.evidence["chosen"] == "PyTorch" for step in estimated.plan.steps)  # it must have been timed

    class Fastest(trials.Trials):
        def measure(self, candidates: Any, sizes: Any) -> Any:
            super().measure(candidates, sizes)
            return Measured({n: 1.0 if c.name == "PyTorch" else 2.0 for n, c in candidates.items()}, {}, "")

    monkeypatch.setattr(tuning, "Trials", Fastest)
    monkeypatch.setitem(tuning.CLOSE, 1, (1.5, 1))
    with settings.scope(cache_directory=tmp_path / "allowed"):
        engine = build(graph, "cuda:sm_90a", tuning=Tuning(1, libraries=True))
    names = [engine.kernel_name(step.choices[0].kernel) for step in engine.plan.steps]
    assert [name for name in names if name.startswith("torch.")] == [
        "torch.convolution",
        "torch.addmm",
        "torch.mm",
        "torch.mm",
    ]
    engine.save(tmp_path / "library.engine")
    for built in (ours, engine, Engine.load(tmp_path / "library.engine")):
        np.testing.assert_allclose(built(x), exact, rtol=1e-4, atol=1e-4 * np.max(np.abs(exact)))


def test_libraries_are_called_through_their_own_bindings(driver, timed, rng, monkeypatch, tmp_path) -> None:
    """Where these are installed: with bias and relu in one call, and PyTorch's functions beside them."""
    (torch,) = (each for each in library.installed() if each.name == "PyTorch")
    bindings = (
        library.Library("cuBLASLt", "nvmath-python", "1.0", {"matmul": library._cublaslt_product}),
        library.Library("cuDNN", "nvidia-cudnn-frontend", "1.0", {"conv": library._cudnn_convolution}),
    )
    monkeypatch.setattr(library, "installed", lambda: (*bindings, torch))

    class Bindings(trials.Trials):
        def measure(self, candidates: Any, sizes: Any) -> Any:
            super().measure(candidates, sizes)
            return Measured({n: 1.0 if c.name.startswith("cu") else 2.0 for n, c in candidates.items()}, {}, "")

    monkeypatch.setattr(tuning, "Trials", Bindings)
    graph = library_graph(rng, float16)
    x = rng.standard_normal((2, 9, 7, 8)).astype(np.float16)
    exact = run(graph, {"x": x})["y"]
    engine = build(graph, "cuda:sm_90a", tuning=Tuning(1, libraries=True))
    names = [engine.kernel_name(step.choices[0].kernel) for step in engine.plan.steps]
    assert names == ["cudnn.convolution", "cublaslt.product", "cublaslt.product", "cublaslt.product"]
    assert {each["name"] for each in engine.plan.steps[0].evidence["candidates"]} >= {"cuDNN", "PyTorch"}
    engine.save(tmp_path / "library.engine")
    for built in (engine, Engine.load(tmp_path / "library.engine")):
        np.testing.assert_allclose(built(x), exact, rtol=1e-2, atol=1e-2 * np.max(np.abs(exact)))
    monkeypatch.setattr(library, "installed", lambda: ())
    with pytest.raises(MissingDependencyError, match="nvmath-python, nvidia-cudnn-frontend or PyTorch"):
        build(graph, "cuda:sm_90a", tuning=Tuning(1, libraries=True))


@pytest.mark.parametrize(
    ("function", "module", "package"),
    [
        ("cublaslt.product", "nvmath.bindings.cublasLt", "nvmath-python"),
        ("cudnn.convolution", "cudnn", "nvidia-cudnn-frontend"),
        ("mm", "torch", "PyTorch"),
    ],
)
def test_what_a_librarys_calls_need_is_reported(monkeypatch, function: str, module: str, package: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    key = extern_key(function, ["f16"] * 3, {"bias": False, "relu": False})
    with pytest.raises(MissingDependencyError, match=f"{package}.*--vendor never"):
        extern_start(key, Device(0, "stand-in", (9, 0), 132, 50 << 20, 1 << 37, 227 << 10, True))


def test_kernels_for_sizes_that_are_not_timed_must_compile(driver, timed, rng, monkeypatch) -> None:
    graph = towers(rng, "rows")
    (group, *_) = fuse(graph).groups
    target = get_target("cuda:sm_90a")
    whole, other = candidates(group, graph, target)[:2]
    *_, large = whole.stages[0].calls
    assert large.condition is None and whole.stages[0].calls[1:]
    real = trials.KernelSet.choice

    def choice(kernels: Any, call: Any, place: Any) -> Any:
        if call is large:
            raise CompilationError("too much shared memory")
        return real(kernels, call, place)

    monkeypatch.setattr(trials.KernelSet, "choice", choice)
    found = {0: whole, 1: other}
    times, failures, *_ = trials.Trials(graph, target, current_device(), False).measure(found, {"rows": 1})
    assert list(times) == [1] and "shared memory" in str(failures[0])


def test_groups_without_candidates_are_refused(rng, monkeypatch) -> None:
    graph = towers(rng)
    (group, *_) = fuse(graph).groups
    monkeypatch.setitem(select.MAKERS, "cuda", lambda: Makers({group.kind: lambda group, graph, target: []}))
    with pytest.raises(UnsupportedOperationError, match=f"{group.name} .*no kernel fits it"):
        candidates(group, graph, get_target("cuda:sm_90a"))


def test_each_launch_has_weights_of_its_own_where_the_models_do_not_fit_the_cache(driver, rng, monkeypatch) -> None:
    graph = towers(rng)
    (group, *_) = fuse(graph).groups
    target = get_target("cuda:sm_90a")
    short = candidates(group, graph, target)[:2]
    long = [replace(each, cost=replace(each.cost, seconds=1e-3)) for each in short]
    weights = []
    for cold, found in ((False, short), (True, short), (True, long)):
        seen: list[Any] = []
        monkeypatch.setattr(trials.Launch, "__call__", lambda launch, stream, places, seen=seen: seen.append(places))
        monkeypatch.setattr(timing, "replay_times", lambda work, rounds: [work[0](0), work[1](0)] and [[1.0], [2.0]])
        times, failures, *_ = trials.Trials(graph, target, current_device(), cold).measure(dict(enumerate(found)), {})
        assert times[0] < times[1] and not failures
        weights.append([len({places[number] for places in seen}) for number in range(3)])
    assert [sorted(each) for each in weights] == [[1, 1, 1], [1, 1, 64], [1, 1, 5]]


def test_candidates_share_temporaries_of_one_name_and_several_extents(rng) -> None:
    """The sums of 2 and of 8 parts of a depth are one tensor for the trials, as large as the larger."""
    tensors = trials._TrialTensors(towers(rng), {})
    for parts in (2, 8, 4):
        tensors.place(Value("group.parts", float32, (parts, 16, 16)))
    assert [tensor.bytes for tensor in tensors.found.values()] == [8 * 16 * 16 * 4]


@pytest.mark.usefixtures("compile_processes")
def test_kernels_are_compiled_by_several_processes(tmp_path: Path) -> None:
    def job(number: int) -> None:
        if number == 3:
            raise ValueError("told by who needs it")
        (tmp_path / str(number)).write_text("done")

    compile_ahead([lambda number=number: job(number) for number in range(9)], workers=3)
    assert sorted(path.name for path in tmp_path.iterdir()) == [str(n) for n in range(9) if n != 3]
    compile_ahead([lambda: job(100)], workers=3)  # not worth a process
    assert not (tmp_path / "100").exists()


@pytest.mark.usefixtures("compile_processes")
def test_processes_that_hang_are_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    def job(number: int) -> None:
        (tmp_path / str(number)).write_text(str(os.getpid()))
        if number in (4, 5):
            time.sleep(60)

    monkeypatch.setattr(precompile, "_PATIENCE", 0.3)
    monkeypatch.setattr(precompile, "_GLANCE", 0.1)
    compile_ahead([partial(job, number) for number in range(8)], workers=2)
    assert "2 processes that compile kernels were given up" in caplog.text
    assert "The 4 kernels that are missing" in caplog.text
    for number in (4, 5):
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / str(number)).read_text()), 0)


@pytest.mark.usefixtures("compile_processes")
def test_a_process_that_dies_holds_nobody_up(tmp_path: Path, caplog) -> None:
    def job(number: int) -> None:
        if number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        (tmp_path / str(number)).write_text("done")

    compile_ahead([partial(job, number) for number in range(8)], workers=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == [str(n) for n in range(8) if n != 1]
    assert "given up" not in caplog.text


@pytest.mark.usefixtures("compile_processes")
def test_an_interrupted_build_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def job(number: int) -> None:
        (tmp_path / str(number)).write_text(str(os.getpid()))
        time.sleep(60)

    def interrupted(children: list[int], heard: int, given: int, told: object) -> int:
        while len(list(tmp_path.iterdir())) < 2:
            time.sleep(0.01)
        raise KeyboardInterrupt

    monkeypatch.setattr(precompile, "_wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compile_ahead([partial(job, number) for number in range(4)], workers=2)
    for path in tmp_path.iterdir():
        with pytest.raises(ProcessLookupError):
            os.kill(int(path.read_text()), 0)


def test_what_events_cost_is_taken_off_evenly() -> None:
    assert shortened([3.0, 4.0, 5.0], 9.0) == pytest.approx([2.0, 3.0, 4.0])
    assert shortened([3.0, 4.0], 8.0) == [3.0, 4.0]
    found = shortened([1.0, 10.0, 10.0], 12.0)
    assert found[0] == pytest.approx(0.1) and sum(found) == pytest.approx(12.0)
    assert shortened([], 1.0) == []


def test_each_range_of_rows_has_the_launch_that_was_fastest_there(driver, monkeypatch, rng) -> None:
    """Every example of sizes has another fastest candidate; the record alone gives the same launches again."""
    sizes: list[int] = []

    def replay_times(work: Sequence[Any], rounds: int) -> list[list[float]]:
        sizes.append(len(work))
        return [[2.0 if number == len(sizes) % 3 else 3.0] * rounds for number in range(len(work))]

    monkeypatch.setattr(timing, "replay_times", replay_times)
    b = GraphBuilder("product")
    x = b.input("x", float16, (b.symbol("rows", 1, 300), 1024))
    b.output(b.op("matmul", [x, b.constant(rng.standard_normal((1024, 512)).astype(np.float16))]), "y")
    graph = b.finish()
    engine = build(graph, "cuda:sm_90a", tuning=Tuning(1))
    assert len(sizes) == 6  # one example for each of the ranges
    (step,) = engine.plan.steps
    entries, choice = step.evidence["candidates"], step.evidence["choice"]
    assert (
        choice["number"] == len(entries) - 1 and choice["source"] == "timed" and "each range of rows" in choice["why"]
    )
    least = min(entry["microseconds"] for entry in entries[:-1] if "microseconds" in entry)
    assert entries[-1]["microseconds"] == pytest.approx(least * (2 / 3) ** (2 / 3), rel=1e-3)
    ends = [launch.at_most for launch in step.choices]
    assert ends == [8, 16, 64, 128, 256, None]
    told = [value for key, value in step.evidence["reasons"].items() if key.startswith("rows to")]
    assert len(told) == 6 and len(set(told)) >= 3
    again = build(graph, "cuda:sm_90a", tuning=Tuning(reproducible=True))
    assert len(sizes) == 6 and again.plan.steps[0].evidence["reasons"] == step.evidence["reasons"]
