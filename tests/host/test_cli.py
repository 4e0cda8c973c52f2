"""The command line as a user meets it: a model file in, an engine out, and clear refusals."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from rich.console import Console

import tilewright as tilewright_package
from tests.host.cli_support import tilewright
from tilewright.cli.comparison import compare_outputs
from tilewright.cli.tensors import parse_sizes
from tilewright.errors import ImportModelError, InputError
from tilewright.graph.build import GraphBuilder
from tilewright.host import host_cpu
from tilewright.runtime.plan import Condition, Plan, TensorSpec
from tilewright.settings import settings
from tilewright.symbolic import lift
from tilewright.targets.llvm.cache import ObjectCache, rounded_weights, searches


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A two-layer network with a dynamic batch, as ONNX."""
    generator = np.random.default_rng(7)
    weights = [generator.standard_normal(shape).astype(np.float32) / 8 for shape in ((64, 96), (96,), (96, 10))]
    names = ("weight", "bias", "last")
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "weight"], ["product"]),
            helper.make_node("Add", ["product", "bias"], ["sum"]),
            helper.make_node("Relu", ["sum"], ["hidden"]),
            helper.make_node("MatMul", ["hidden", "last"], ["scores"]),
        ],
        "classifier",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 64])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 10])],
        [numpy_helper.from_array(array, name) for array, name in zip(weights, names, strict=True)],
    )
    path = tmp_path_factory.mktemp("models") / "classifier.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path


@pytest.fixture(scope="session")
def engine(model: Path) -> Path:
    """The model's engine, built by the command line."""
    path = model.parent / "classifier.engine"
    finished = started("build", str(model), "-o", str(path), "--shapes", "x:1..32x64")
    assert finished.returncode == 0, finished.stderr
    assert "1 steps" not in finished.stdout
    assert path.exists()
    return path


def started(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "tilewright", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


def test_an_engine_of_another_cpu_is_inspected_and_built_again(model: Path, tmp_path: Path) -> None:
    other, ours = tmp_path / "other.engine", tmp_path / "ours.engine"
    target = "cpu:apple-m1" if "arm" not in host_cpu().triple and "aarch" not in host_cpu().triple else "cpu:skylake"
    assert tilewright("build", str(model), "--target", target, "-o", str(other), "-q").returncode == 0
    assert "steps" in tilewright("inspect", str(other)).stdout
    refused = tilewright("run", str(other))
    assert refused.returncode == 1 and "tilewright build OLD.engine -o NEW.engine" in refused.stderr
    built = tilewright("build", str(other), "-o", str(ours), "-q")
    assert built.returncode == 0, built.stderr
    compared = tilewright("run", str(ours), "--compare", "onnxruntime")  # the source is still known
    assert compared.returncode == 0, compared.stdout + compared.stderr


def test_malformed_settings_are_reported() -> None:
    finished = started("doctor", TILEWRIGHT_THREADS="0")
    assert finished.returncode == 1 and "TILEWRIGHT_THREADS='0'" in finished.stderr
    assert "Traceback" not in finished.stderr
    assert "parallel provider" in started("doctor", TILEWRIGHT_LOG="debug").stderr


def test_sizes_must_fit_the_arrays_given(engine: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((3, 64), np.float32))
    finished = tilewright("run", str(engine), "--size", "batch=7", "--input", f"x={tmp_path / 'x.npy'}")
    assert finished.returncode == 1 and "--size batch=7, but dimension 0" in finished.stderr


@pytest.mark.parametrize(
    ("ours", "theirs", "agree"),
    [
        ({"a": [1, np.nan, np.inf]}, {"a": [1, np.nan, np.inf]}, True),
        ({"a": [1, np.nan]}, {"a": [1, 2]}, False),
        ({"a": [1], "b": [2]}, {"b": [2], "0": [1]}, True),
        ({"a": [1], "b": [2]}, {"a": [1]}, False),
        ({"a": [1]}, {"a": [1], "b": [2]}, False),
        ({"a": [1], "cache": [2]}, {"0": [1]}, True),
        ({"a": []}, {"a": []}, True),
    ],
)
def test_comparing_outputs(ours: dict[str, list[float]], theirs: dict[str, list[float]], agree: bool) -> None:
    arrays = [{name: np.array(values, np.float32) for name, values in side.items()} for side in (ours, theirs)]
    assert compare_outputs(Console(quiet=True), "torch", arrays[0], arrays[1], 1e-3, {"cache"}) == agree


@pytest.mark.parametrize(("dtype", "agree"), [("float32", False), ("float16", True), ("bfloat16", True)])
def test_the_tolerance_is_that_of_the_outputs_type(dtype: str, agree: bool) -> None:
    ours, theirs = (np.array([number, 1]).astype(getattr(ml_dtypes, dtype, dtype)) for number in (0.5, 0.508))
    assert compare_outputs(Console(quiet=True), "torch", {"y": ours}, {"y": theirs}, None) == agree
    assert not compare_outputs(Console(quiet=True), "torch", {"y": ours}, {"y": theirs}, 1e-3)


def test_run_compares_with_other_runtimes(engine: Path, tmp_path: Path) -> None:
    for peer in ("reference", "onnxruntime"):
        finished = tilewright("run", str(engine), "--size", "batch=5", "--compare", peer, "--save", str(tmp_path))
        assert finished.returncode == 0, finished.stdout + finished.stderr
        assert "agrees" in finished.stdout
    assert np.load(tmp_path / "scores.npy").shape == (5, 10)


def test_a_model_that_the_engine_was_not_built_from(engine: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.onnx"
    onnx.save(onnx.parser.parse_model('''<ir_version: 8, opset_import: ["" : 17]>
        other (float[1, 2] image) => (float[1, 2] row) { row = Neg (image) }'''), other)  # fmt: skip
    for command in (("run", "--compare"), ("bench", "--vs")):
        finished = tilewright(command[0], str(engine), command[1], "onnxruntime", "--model", str(other))
        assert finished.returncode == 1 and "Traceback" not in finished.stderr
        assert "is not the model that the engine was built from: it takes image" in " ".join(finished.stderr.split())


def test_sizes_that_are_not_given_are_some_that_the_model_takes() -> None:
    builder = GraphBuilder("sizes")
    batch, length = builder.symbol("batch", 1, 64), builder.symbol("length", 1, 512)
    whole = Condition(lift(batch) * length, length, "reshape")
    plan = Plan(builder.graph.symbols, [], [], [], 0, 0, conditions=[whole])
    assert parse_sizes([], plan) == {"batch": 1, "length": 64}
    assert parse_sizes(["batch=3"], plan) == {"batch": 3, "length": 64}


def test_a_model_of_text_and_maps(tmp_path: Path) -> None:
    """As classifiers of scikit-learn have them."""
    path = tmp_path / "labels.onnx"
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 3]>
        m (string[2, 3] words, float[1, 2] x) => (string[2, 3] same, float[1, 2] row, float probabilities) {
            same = Identity (words) row = Neg (x) s = Softmax (x)
            probabilities = ai.onnx.ml.ZipMap <classlabels_strings = ["a", "b"]> (s) }""")
    probabilities = helper.make_map_type_proto(TensorProto.STRING, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    model.graph.output[2].type.CopyFrom(helper.make_sequence_type_proto(probabilities))
    onnx.save(model, path)
    out = tmp_path / "out"
    finished = tilewright("run", str(path), "--compare", "onnxruntime", "--layers", "all", "--save", str(out))
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "equal text" in finished.stdout and "differs" not in finished.stdout
    assert np.load(out / "same.npy").shape == (2, 3) and np.load(out / "row.npy").shape == (1, 2)
    assert np.load(out / "probabilities__a__.npy").shape == (1,)
    np.save(tmp_path / "words.npy", np.array([["über", "b", "c"]] * 2))
    given = ("--input", f"words={tmp_path / 'words.npy'}", "--save", str(out))
    assert tilewright("run", str(path), *given).returncode == 0
    assert np.load(out / "same.npy")[0, 0] == "über"


def test_a_model_is_built_on_the_way(model: Path) -> None:
    finished = tilewright("run", str(model), "--compare", "onnxruntime", "--size", "batch=2", "--threads", "1")
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "agrees" in finished.stdout and "compile" in finished.stderr
    quick = tilewright("run", str(model), "--effort", "0", "--compare", "onnxruntime", "--size", "batch=2")
    assert quick.returncode == 0, quick.stderr
    data = json.loads(tilewright("bench", str(model), "--vs", "onnxruntime", "--seconds", "0", "--json").stdout)
    assert set(data["milliseconds"]) == {"tilewright", "onnxruntime"}
    assert json.loads(tilewright("inspect", str(model), "--json").stdout)["steps"]


def test_run_takes_arrays(engine: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((3, 64), np.float32))
    finished = tilewright("run", str(engine), "--input", f"x={tmp_path / 'x.npy'}", "--save", str(tmp_path))
    assert finished.returncode == 0, finished.stderr
    assert np.load(tmp_path / "scores.npy").shape == (3, 10)


def test_bench_as_json(engine: Path) -> None:
    finished = tilewright("bench", str(engine), "--vs", "onnxruntime,torch", "--seconds", "0.2", "--profile", "--json")
    assert finished.returncode == 0, finished.stderr
    data = json.loads(finished.stdout)
    assert set(data["milliseconds"]) == {"tilewright", "onnxruntime"}
    assert "torch" in data["missing"]
    assert data["milliseconds"]["tilewright"]["min"] <= data["milliseconds"]["tilewright"]["p99"]
    assert len(data["steps"]) >= 1


def test_inspect_tells_the_plan(engine: Path) -> None:
    data = json.loads(tilewright("inspect", str(engine), "--json").stdout)
    assert data["ranges"] == {"batch": [1, 32]}
    assert sum(step["flops"] for step in data["steps"]) >= 2 * data["sizes"]["batch"] * (64 * 96 + 96 * 10)
    assert all(step["kernel"] and step["operations"] for step in data["steps"])
    assert "matmul" in tilewright("inspect", str(engine), "--evidence").stdout


def test_the_program_of_an_engine_is_chosen(engine: Path) -> None:
    assert tilewright("run", str(engine), "--target", "cpu").returncode == 0
    for command in ("run", "bench", "inspect"):
        refused = tilewright(command, str(engine), "--target", "cuda")
        assert refused.returncode == 1 and "has no program for cuda: it has cpu" in refused.stderr


def test_doctor_runs_a_kernel() -> None:
    finished = tilewright("doctor", "--json")
    assert finished.returncode == 0, finished.stderr
    (cpu,) = (target for target in json.loads(finished.stdout)["targets"] if target["target"] == "cpu")
    assert cpu["state"] == "compiles and runs", cpu


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["build", "absent.onnx"], 1, "absent.onnx"),
        (["run", "absent.engine"], 1, "absent.engine"),
        (["build", "{model}", "--shapes", "x:0..4x64"], 2, "starts at 0"),
        (["build", "{model}", "--shapes", "x:4..2x64"], 2, "empty"),
        (["build", "{model}", "-o", "/nodir/x.engine"], 2, "no folder"),
        (["build", "{engine}"], 2, "-o NEW.engine"),
        (["build", "{model}", "--shapes", "y:1x64"], 1, "no input 'y'"),
        (["run", "{engine}", "--size", "batch=33"], 1, "1..32"),
        (["run", "{engine}", "--size", "length=3"], 2, "batch"),
        (["run", "{model}", "--rebuild"], 2, "go with engines"),
        (["run", "README.md"], 1, "is no engine"),
        (["inspect", "{engine}", "--profile"], 2, "bench --profile"),
        (["run", "{engine}", "--seed", "-1"], 2, "seed"),
        (["run", "{engine}", "--input", "x={model}"], 1, "not a .npy file"),
        (["build", "{model}", "--target", "abacus"], 1, "unknown target 'abacus'"),
        (["build", "{model}", "--target", "cpu:abacus"], 1, "unknown CPU 'abacus'"),
        (["bench", "{engine}", "--threads", "0"], 2, "threads"),
        (["bench", "{engine}", "--vs", "tensorrt"], 2, "tensorrt"),
    ],
)
def test_mistakes_are_reported(model: Path, engine: Path, arguments: list[str], code: int, message: str) -> None:
    finished = tilewright(*(text.format(model=model, engine=engine) for text in arguments))
    assert finished.returncode == code, finished.stdout + finished.stderr
    assert message in finished.stderr
    assert "Traceback" not in finished.stderr


def test_output_names_do_not_lead_out_of_the_folder(tmp_path: Path) -> None:
    from tilewright.cli.tensors import save_outputs

    save_outputs({"../x": np.ones(1), "/y/z": np.zeros(1)}, tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [".._x.npy", "_y_z.npy"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_outputs_whose_names_are_spelled_alike_have_files_of_their_own(tmp_path: Path) -> None:
    from tilewright.cli.tensors import save_outputs

    save_outputs({"a/b": np.full(1, 1.0), "a:b": np.full(1, 2.0), "a_b_2": np.full(1, 3.0)}, tmp_path)
    assert {path.name: np.load(path).item() for path in tmp_path.iterdir()} == {
        "a_b.npy": 1.0, "a_b_2.npy": 2.0, "a_b_2_2.npy": 3.0
    }  # fmt: skip


def test_inputs_whose_names_hold_equals_signs_are_given(tmp_path: Path) -> None:
    from tilewright.cli.tensors import gather_inputs

    np.save(tmp_path / "x.npy", np.arange(2, dtype=np.float32))
    specs = [TensorSpec(name, "float32", (2,)) for name in ("a", "a=b")]
    found = gather_inputs(specs, [f"a=b={tmp_path / 'x.npy'}"], {}, 0, [])
    assert found["a=b"].tolist() == [0, 1] and found["a"].tolist() != [0, 1]


def test_version_and_completion() -> None:
    assert started("--version").stdout == f"tilewright {tilewright_package.__version__}\n"
    shown = started("--show-completion", "bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert shown.returncode == 0 and "COMPREPLY" in shown.stdout


def test_help_names_every_command() -> None:
    text = tilewright("--help").stdout
    assert all(command in text for command in ("build", "run", "bench", "inspect", "doctor"))


def test_an_engine_is_shown_as_a_page_with_its_times(engine: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    finished = tilewright("inspect", str(engine), "--html", str(page), "--profile", "--size", "batch=4")
    assert finished.returncode == 0, finished.stderr
    data = json.loads(page.read_text(encoding="utf-8").split('id="report">')[1].split("</script>")[0])
    assert {step["time_source"] for step in data["steps"]} == {"profiled"} and data["sizes"] == {"batch": 4}
    profiled = tilewright("bench", str(engine), "--profile", "--json", "--seconds", "0", "--size", "batch=4")
    steps = json.loads(profiled.stdout)["steps"]
    assert {step["bound"] for step in steps} <= {"memory", "arithmetic", "launch"}
    # Data in caches are read faster than from memory: then there is nothing to tell.
    assert all(step["of_roofline"] is None or 0 < step["of_roofline"] <= 1 for step in steps)


def test_recorded_times_are_merged_and_shown(engine: Path, tmp_path: Path) -> None:
    line = {
        "device": "gpu",
        "key": "k",
        "what": "matmul f16",
        "context": "",
        "microseconds": {"x": 2.0},
        "failures": {},
    }
    for name, time in (("a", 3.0), ("b", 2.5)):
        text = json.dumps({**line, "microseconds": {name: time}})
        (tmp_path / name).write_text(text + "\n", encoding="utf-8")
    merged = tmp_path / "merged"
    finished = tilewright("tune", "merge", *(str(tmp_path / name) for name in "ab"), str(engine), "-o", str(merged))
    assert finished.returncode == 0 and "1 problems" in finished.stdout, finished.stderr
    assert json.loads(merged.read_text(encoding="utf-8"))["microseconds"] == {"a": 3.0, "b": 2.5}
    assert "2.50" in tilewright("tune", "show", str(merged)).stdout
    refused = tilewright("tune", "merge", str(tmp_path / "missing"), "-o", str(merged))
    assert refused.returncode == 1 and "TimingCacheError" in refused.stderr


def test_stages_that_take_turns_are_timed_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright.cli import progress

    now = 10.0
    monkeypatch.setattr(progress, "time", SimpleNamespace(perf_counter=lambda: now))
    shown = progress.BuildProgress("Building", Console(quiet=True))
    with shown:
        for stage, seconds in (("choose", 1.0), ("compile", 20.0), ("choose", 3.0), ("compile", 40.0)):
            shown(stage, "item", 0.0)
            now += seconds
            shown(stage, "item", seconds)
    assert shown._stages == {"choose": (4.0, 2), "compile": (60.0, 2)}


def test_engines_hold_no_paths_of_the_builder(model: Path, tmp_path: Path) -> None:
    """Neither the folder of the model nor that of the compiler; the model is still found by the one who built it."""
    path = tmp_path / "it.engine"
    assert tilewright("build", str(model), "-o", str(path), "-q").returncode == 0
    data = path.read_bytes()
    for place in (model.parent, tmp_path, Path.cwd(), Path.home(), Path(tempfile.gettempdir())):
        assert os.fsencode(place) + b"/" not in data
    assert tilewright("run", str(path), "--compare", "onnxruntime").returncode == 0
    moved = path.rename(tmp_path / "moved.engine")
    refused = tilewright("run", str(moved), "--compare", "onnxruntime")
    assert refused.returncode == 1 and "Name it with --model" in refused.stderr
    (tmp_path / model.name).write_bytes(model.read_bytes())
    assert tilewright("run", str(moved), "--compare", "onnxruntime").returncode == 0


def test_the_cache_is_shown_and_cleaned(tmp_path: Path) -> None:
    with settings.scope(cache_directory=tmp_path / "cache"):
        assert "0 entries" in tilewright("cache", "show").stdout
        ObjectCache(tmp_path / "cache").put("key", {}, bytes(2_000_000))
        rounded_weights().put("key", {}, bytes(3_000_000))
        searches().put("key", {}, bytes(4_000_000))
        (tmp_path / "cache/ey/.write-abc").write_bytes(bytes(1_000_000))
        state = json.loads(tilewright("cache", "show", "--json").stdout)
        assert (state["entries"], state["leftovers"], state["leftover_bytes"]) == (1, 1, 1_000_000)
        shown = tilewright("doctor").stdout
        assert (state["rounded"], state["rounded_bytes"] > 3_000_000, state["other_files"]) == (1, True, 0)
        assert (state["measured"], state["measured_bytes"] > 4_000_000) == (1, True)
        weights = "rounded weights of 1 layers, 3.0 MB; 1 measurements of searches, 4.0 MB"
        assert f"1 entries, 2.0 MB; {weights}; 1 files of killed writers, 1.0 MB (tilewright cache clean)" in shown
        assert "removed 1 files" in tilewright("cache", "clean").stdout
        assert (tmp_path / "cache/ey/key.kernel").exists() and not (tmp_path / "cache/ey/.write-abc").exists()
        assert (tmp_path / "cache/rounded/ey/key.kernel").exists()
        tilewright("cache", "clean", "--all")
        assert not (tmp_path / "cache/rounded/ey/key.kernel").exists()
        assert not (tmp_path / "cache/searches/ey/key.kernel").exists()
        assert "0 entries, 0.0 MB\n" in tilewright("cache", "show").stdout
        (tmp_path / "cache").chmod(0o777)
    named = {"TILEWRIGHT_CACHE_DIRECTORY": str(tmp_path / "cache")}
    assert "not used: others may write to it" in started("cache", "show", **named).stdout


def test_what_a_language_model_cannot_do_is_reported_first(tmp_path):
    pytest.importorskip("tokenizers")
    pytest.importorskip("jinja2")
    from tilewright.llm.requests import tokens_of
    from tilewright.llm.tokenizer import Tokenizer

    demo = Path(__file__).resolve().parents[2] / "demo" / "model"
    refused = tilewright("chat", str(demo))  # nobody writes a message
    assert refused.returncode == 1 and "has no chat template" in refused.stderr
    with pytest.raises(ImportModelError, match=r"lists of tokens$") as missing:
        Tokenizer(tmp_path)
    assert "bench llm" in str(missing.value)
    with pytest.raises(InputError, match="the prompt is empty"):
        tokens_of([], 5)
