"""The command line with engines for GPUs, on the stand-in for one: built, run, timed step by step, shown as a page."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from tests.host.cuda_stand_in import Driver
from tilewright import Engine, load
from tilewright.build.builder import build
from tilewright.cli import doctor, peers, placement
from tilewright.cli.main import application
from tilewright.cli.peers import load_peer
from tilewright.dtypes import float16
from tilewright.errors import DeviceError, ImportModelError, TargetError
from tilewright.graph.build import GraphBuilder
from tilewright.measure.record import Timing, TimingCache
from tilewright.runtime.cuda import device as devices


def tilewright(*arguments: str) -> Result:
    return CliRunner().invoke(application(), arguments, catch_exceptions=False)


@pytest.fixture
def engine(driver: Driver, rng: np.random.Generator, tmp_path: Path) -> Path:
    """A product and a softmax, for the CPU and the stand-in."""
    b = GraphBuilder("scores")
    x = b.input("x", float16, (b.symbol("rows", 1, 64), 48))
    w = b.constant((rng.standard_normal((48, 32)) / 7).astype(np.float16))
    b.output(b.op("softmax", [b.op("matmul", [x, w])], axis=1), "y")
    path = tmp_path / "scores.engine"
    build(b.finish(), ["cpu", "cuda:sm_90a"]).save(path)
    return path


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_both_programs_of_an_engine_run(engine: Path, target: str) -> None:
    found = tilewright("run", str(engine), "--target", target, "--compare", "reference", "--size", "rows=7")
    assert found.exit_code == 0 and "agrees" in found.output


def test_bench_times_an_engine_on_tensors_in_the_gpus_memory(engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (placement, peers):  # also where a GPU is
        monkeypatch.setattr(module, "torch_with_gpu", lambda: None)
    arguments = ("bench", str(engine), "--target", "cuda", "--seconds", "0", "--profile", "--vs", "torch,onnxruntime")
    data = json.loads(tilewright(*arguments, "--json", "--model", __file__).output)
    assert "stand-in" in data["where"] and "in its memory" in data["where"]
    assert [step["bound"] for step in data["steps"]] and all(step["milliseconds"] >= 0 for step in data["steps"])
    assert "for a GPU" in data["missing"]["onnxruntime"] and "no PyTorch here that uses it" in data["missing"]["torch"]
    assert "softmax" in tilewright(*arguments).output
    there = json.loads(tilewright("bench", str(engine), "--target", "cpu", "--seconds", "0", "--json").output)
    assert there["where"].endswith("threads")


def test_the_page_of_an_engine_for_a_gpu(engine: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    for arguments in ((), ("--profile",)):
        assert tilewright("inspect", str(engine), "--target", "cuda", "--html", str(page), *arguments).exit_code == 0
        assert "softmax" in page.read_text() and "cuda:sm_90a" in page.read_text()


def test_an_engine_is_built_again_for_what_it_was_built_for(engine: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.engine"
    assert "for cpu, cuda:sm_90a" in tilewright("build", str(engine), "-o", str(again)).output
    assert Engine.read(again).targets == ("cpu", "cuda:sm_90a")
    assert "for cpu\n" in tilewright("build", str(engine), "-o", str(again), "--target", "auto").output
    damaged = tmp_path / "damaged.engine"
    damaged.write_bytes(engine.read_bytes().replace(b'"producer"', b'"producex"', 1))
    assert load(damaged, rebuild=True).targets == ("cpu", "cuda:sm_90a")
    assert load(damaged, rebuild=True, target="cuda").targets == ("cuda:sm_90a",)


def test_options_that_change_nothing_on_the_cpu_are_reported(engine: Path, tmp_path: Path) -> None:
    arguments = ("build", str(engine), "-o", str(tmp_path / "again.engine"), "--target", "cpu")
    assert "not timed" not in tilewright(*arguments).output
    for option in (("--effort", "3"), ("--vendor", "allow"), ("--reproducible",)):
        assert "kernels for cpu: by estimate (CPU kernels are not timed" in tilewright(*arguments, *option).output


def test_the_precision_is_part_of_what_an_engine_was_built_for(engine: Path, tmp_path: Path) -> None:
    fast, again, plain = (tmp_path / f"{name}.engine" for name in ("fast", "again", "plain"))
    options = ("--target", "cuda:sm_90a,cpu", "--precision", "tf32")
    assert tilewright("build", str(engine), "-o", str(fast), *options).exit_code == 0
    assert "target cuda:sm_90a  float32 as tf32" in tilewright("inspect", str(fast)).output
    assert [Engine.read(fast, name).precision for name in ("cuda", "cuda:sm_90a", "cpu")] == ["tf32", "tf32", "ieee"]
    assert tilewright("build", str(fast), "-o", str(again)).exit_code == 0
    assert Engine.read(again).targets == ("cuda:sm_90a", "cpu") and Engine.read(again).precision == "tf32"
    assert tilewright("build", str(fast), "-o", str(plain), "--precision", "ieee").exit_code == 0
    assert Engine.read(plain).precision == "ieee"
    with pytest.raises(TargetError, match="CPUs multiply float32 as float32"):
        tilewright("build", str(engine), "-o", str(again), "--target", "cpu", "--precision", "tf32")


def test_programs_are_found_by_the_old_spelling_of_the_precision(engine: Path, tmp_path: Path) -> None:
    both = tmp_path / "both.engine"
    with pytest.warns(FutureWarning, match="an argument of its own"):
        built = tilewright("build", str(engine), "-o", str(both), "--target", "cuda:sm_90a+tf32,cuda:sm_90a")
        assert built.exit_code == 0
        assert Engine.read(both, "cuda+tf32").precision == "tf32"


def test_an_engine_for_a_gpu_is_built_for_the_cpu_where_there_is_no_gpu(
    engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only = tmp_path / "only.engine"
    assert tilewright("build", str(engine), "-o", str(only), "--target", "cuda:sm_90a").exit_code == 0

    def missing() -> None:
        raise DeviceError("no GPU here")

    monkeypatch.setattr(devices, "current_device", missing)
    assert load(only, rebuild=True).targets == ("cpu",)


def test_brackets_are_text(driver: Driver, tmp_path: Path) -> None:
    """In tables too: shapes, and what to install."""
    path = tmp_path / "times.jsonl"
    TimingCache([Timing("GPU", "key", "softmax f16[batch,512]", {"row kernel": 1.0}, {}, "")]).write(path)
    assert "softmax f16[batch,512]" in tilewright("tune", "show", str(path)).output
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(doctor, "PACKAGES", {"no-such-package": ("nothing", "pip install 'none[at-all]'" + "x" * 80)})
        patch.setattr(doctor, "targets", list)
        found = tilewright("doctor").output
        assert "none[at-all]" in found and "\N{HORIZONTAL ELLIPSIS}" not in found  # nor is advice cut


def test_onnx_runtime_is_refused_what_it_takes_no_arrays_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.BFLOAT16, [4]) for name in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["x"], ["y"])], "same", [x], [y])
    path = tmp_path / "same.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9), path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ImportModelError, match=r"no arrays of tensor\(bfloat16\), which x of same.onnx is"):
        load_peer("onnxruntime", SimpleNamespace(source=path.name), None, 1)


@pytest.mark.parametrize("name", ["float32", "int8", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_arrays_become_tensors_of_pytorch_and_arrays_again(rng: np.random.Generator, name: str) -> None:
    torch = pytest.importorskip("torch")
    import ml_dtypes

    from tilewright.importers.torch_fx import to_numpy

    array = (rng.standard_normal((3, 5)) * 4).astype(getattr(ml_dtypes, name, name))
    tensor = placement.torch_tensor(torch, array.T)
    assert tensor.dtype == getattr(torch, name) and tuple(tensor.shape) == (5, 3)
    np.testing.assert_array_equal(tensor.float().numpy(), array.T.astype(np.float32))
    back = to_numpy(tensor)
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array.T)
    assert placement.torch_tensor(torch, array[:1, 0].reshape(())).shape == ()
