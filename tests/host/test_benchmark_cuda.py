"""The GPU benchmark's bookkeeping: records, means, the file that runs of single families are merged into."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from benchmarks import kernels_cuda
from benchmarks.gpu import compilers, harness
from benchmarks.gpu.harness import OURS, Case


class Silent:
    """A monitor that reads nothing."""

    def watch(self, into: dict[str, Any]) -> Any:
        from contextlib import nullcontext

        return nullcontext()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU whose calls take as many microseconds as they return."""

    def timer(case: Case, milliseconds: float) -> Any:
        return lambda name: float(case.runs[name](0))

    monkeypatch.setattr(harness, "_flushed", timer)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(harness, "FAMILIES", {})


def options() -> SimpleNamespace:
    return SimpleNamespace(quick=False, rounds=3, milliseconds=1.0)


def test_a_family_is_measured_against_its_best_peer(clock: None) -> None:
    @harness.family("sum", floor=1.5)
    def sums(quick: bool) -> Any:
        case = Case("4096", gflop=2.0, gigabytes=0.5)
        case.add(OURS, lambda copy: 100.0)
        case.add(f"{OURS} 8 warps", lambda copy: 90.0)
        case.add("torch", lambda copy: 150.0)
        case.add("slow", lambda copy: 400.0)
        yield case
        raise RuntimeError("no memory")

    records = harness.run_family(harness.FAMILIES["sum"], Silent(), options())
    assert (records[0]["best_peer"], records[0]["ratio"]) == ("torch", 1.5)
    assert records[0]["other_ratios"] == {f"{OURS} 8 warps": pytest.approx(150 / 90)}
    assert records[0]["tflops"][OURS] == pytest.approx(20) and records[0]["terabytes_a_second"][OURS] == pytest.approx(
        5
    )
    assert "torch / ours 1.500" in harness.line(records[0])
    assert "no memory" in records[1]["failed"]


def test_a_wrong_result_is_no_result(clock: None) -> None:
    case = Case("wrong")
    right, result = torch.arange(1.0, 9), torch.zeros(8)
    case.add(OURS, lambda copy: result.copy_(right), lambda: result)
    case.check(right, 1e-6)
    assert case.errors == {OURS: 0.0}
    case.add(OURS, lambda copy: None, lambda: result)  # writes nothing: the poison is found
    with pytest.raises(AssertionError, match="relative error nan"):
        case.check(right, 1e-6)


def test_runs_of_single_families_are_merged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    dates = iter(["Monday", "Tuesday"])
    here = {"device": "a GPU", "driver": "CUDA 13.0", "assembler": "ptxas", "versions": {"torch": "2"}}
    monkeypatch.setattr(kernels_cuda, "environment", lambda: {**here, "date": next(dates)})

    def record(family: str, ratio: float) -> dict[str, Any]:
        times = {name: {"median": number} for name, number in ((OURS, 10.0), ("torch", 10 * ratio))}
        facts = {"family": family, "name": "x", "protocol": "flush", "best_peer": "torch", "ratio": ratio}
        return {**facts, "microseconds": times}

    path = tmp_path / "kernels_cuda.json"
    kernels_cuda.save(path, [record("add", 1.0), record("add", 4.0), record("copy", 0.5)])
    kernels_cuda.save(path, [record("copy", 2.0)])
    data = json.loads(path.read_text())
    assert data["families"]["add"]["geometric_mean"] == pytest.approx(2) and data["families"]["add"]["smallest"] == 1
    assert data["families"]["copy"]["geometric_mean"] == pytest.approx(2)
    assert {name: place["date"] for name, place in data["environments"].items()} == {"add": "Monday", "copy": "Tuesday"}
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "tools")  # where scripts find each other
    import readme_tables

    table = readme_tables.gpu_table(data)
    assert "| copy | x, flush | 10.0 | 20.0 | torch | 2.00 |" in table and "Monday" in table and "Tuesday" in table


def test_what_models_miss_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "tools")
    import readme_tables

    def record(name: str, peer: str, theirs: float, error: float, **more: Any) -> dict[str, Any]:
        times = {OURS: {"median": 2.0}, peer: {"median": theirs}}
        facts = {"best_peer": peer, "ratio": 9.0, "floor": 1.1, "error_ratio": error, "milliseconds": times}
        sizes = {"arena_bytes": 3, "arena_least_bytes": 2, "build_warm_seconds": 1, "load_and_first_call_seconds": 1}
        return {"name": name, "notes": {}, **facts, **sizes, **more}

    notes = {"eager": "not captured: E: why. Do this.", "compiled": "not captured: E: why"}
    cases = [record("fast", "max-autotune", 4.0, 1.2), record("slow", "eager", 2.0, 1.6, notes=notes)]
    text = readme_tables.model_facts({"cases": [*cases, {"name": "none", "notes": {}}]})
    assert "Below the floor: slow (1.000 of 1.1)." in text and "Errors above 1.5 times the peer's: slow" in text
    assert "max-autotune was timed for 1 of the 2 models with floors, not for slow." in text
    assert "slow: eager and compiled: not captured: E: why.\n" in text and "at most 1.500 times" in text


def test_kernels_written_for_triton_are_ours_too() -> None:
    sizes = ("m", "n", "k", "stride_a", "stride_b", "stride_c")
    types = {**dict.fromkeys("abc", "*bf16"), **dict.fromkeys(sizes, "i32")}
    constants = {"ROWS": 64, "COLUMNS": 64, "DEPTH": 32, "GROUP": 8}
    function = compilers.TILEWRIGHT.by_pointers.trace(types, constants)
    assert any(operation.opcode == "dot" for operation in function.walk())
