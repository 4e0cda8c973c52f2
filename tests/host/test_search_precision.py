"""Formats by layer within a bound: what is taken and left out, held-back samples, the file, the command."""

from __future__ import annotations

import os
import sys
from io import StringIO
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from rich.console import Console
from typer.testing import CliRunner

import tilewright
from tilewright.cli.main import application
from tilewright.cli.precision import load_data, show_search
from tilewright.errors import InputError, PrecisionBoundError
from tilewright.insight.search import search_of
from tilewright.quant import metrics, search

TIMES = {
    "float": 8e-6, "int8": 2e-6, "int8-smooth": 2.5e-6, "int8-dynamic": 3.5e-6, "int8-weights": 4e-6,
    "int4-weights": 3e-6,
}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three products [128, 128], of which the second has a weight that is much larger than the others."""
    rng = np.random.default_rng(2)
    arrays = [(rng.standard_normal((128, 128)) / 11).astype(np.float32) for _ in range(3)]
    arrays[1][:, 0] *= np.where(np.arange(128) == 5, 3000.0, 1)
    constants = [numpy_helper.from_array(array, f"w{number}") for number, array in enumerate(arrays)]
    nodes = [helper.make_node("MatMul", [f"x{n}" if n else "x", f"w{n}"], [f"x{n + 1}" if n < 2 else "y"])
             for n in range(3)]  # fmt: skip
    value = helper.make_tensor_value_info
    graph = helper.make_graph(nodes, "net", [value("x", TensorProto.FLOAT, [4, 128])],
                              [value("y", TensorProto.FLOAT, [4, 128])], constants)  # fmt: skip
    path = tmp_path_factory.mktemp("model") / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]), path)
    return path


@pytest.fixture(autouse=True)
def known_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times of layers and engines that do not depend on the machine: narrow numbers are faster."""
    monkeypatch.setattr(
        search._Search, "_seconds", lambda self, node, x, schemes: {each: TIMES[each] for each in schemes}
    )
    monkeypatch.setattr(search, "_interleaved", lambda engines, inputs: [[1 / n] for n, _ in enumerate(engines, 1)])
    monkeypatch.setattr(search.StoredSearch, "value", lambda self, kind, parts, measure: measure())  # times are changed


def samples(rng: np.random.Generator, count: int = 6) -> list[np.ndarray]:
    return [rng.standard_normal((4, 128)).astype(np.float32) for _ in range(count)]


def test_within_the_bound(model: Path, tmp_path: Path) -> None:
    data = samples(np.random.default_rng(0))  # what each format loses depends on the samples
    tight, wide = (tilewright.search_precision(model, data, max_drop=bound, metric="mse") for bound in (4e-4, 0.2))
    assert 0 < tight.drop <= 4e-4 < wide.drop <= 0.2
    assert {row.chosen for row in wide.layers} == {"int8"} and len(wide.points) == 1
    taken = [row.chosen for row in tight.layers]
    assert "int8" in taken or "int8-weights" in taken
    for row in tight.layers:
        assert set(row.candidates) == set(TIMES) and row.candidates["float"] == (8e-6, 0.0)
        assert row.candidates["int4-weights"][1] > row.candidates["int8-weights"][1] > 0
    outputs = [engine.run({"x": data[1]})["y"] for engine in (tight.engine, tilewright.compile(model))]
    assert ((outputs[0] - outputs[1]) ** 2).sum() / (outputs[1] ** 2).sum() < 1e-3
    tight.engine.save(tmp_path / "t.engine")
    again = tilewright.load(tmp_path / "t.engine")
    assert search_of(again) == tight.as_data()
    page = CliRunner().invoke(application(), ["inspect", str(tmp_path / "t.engine")])
    assert page.exit_code == 0 and "mse drop" in page.output and "as fast" in page.output


def test_each_format_is_what_was_measured(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one format for all layers the engine loses what the graph did, which follows from what the layers lose."""
    data = samples(np.random.default_rng(1), 12)
    exact = tilewright.compile(model)
    for scheme in ("int8-smooth", "int8-dynamic"):
        times = {**dict.fromkeys(TIMES, 8e-6), scheme: 1e-6}
        monkeypatch.setattr(search._Search, "_seconds", lambda self, node, x, schemes, times=times: times)
        found = tilewright.search_precision(model, data, max_drop=0.2, metric="mse")
        assert {row.chosen for row in found.layers} == {scheme}
        expected = sum(row.candidates[scheme][1] ** 2 for row in found.layers)
        pairs = [[np.array(engine.run({"x": x})["y"]) for x in data[::2]] for engine in (exact, found.engine)]
        drop = ((np.array(pairs[0]) - pairs[1]) ** 2).sum() / (np.array(pairs[0]) ** 2).sum()
        assert drop == pytest.approx(found.points[-1].drop, rel=0.05) and expected / 4 < drop < expected * 4


@pytest.mark.parametrize("most", [1, 0])
def test_an_engine_that_is_no_faster_gives_formats_back(
    model: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Layers that are faster alone, where an engine with more than `most` of them is slower than floats."""
    times = {**dict.fromkeys(TIMES, 8e-6), "int8": 2e-6}
    monkeypatch.setattr(search._Search, "_seconds", lambda self, node, x, schemes: times)
    monkeypatch.setattr(
        search,
        "_interleaved",
        lambda engines, inputs: [[0.5 + count - most if count else 1.0] for count in map(narrow_products, engines)],
    )
    found = tilewright.search_precision(model, samples(rng), metric=lambda outputs, inputs: 1.0)
    assert [row.chosen for row in found.layers].count("int8") == narrow_products(found.engine) == most
    assert sum("alone it is faster" in row.why for row in found.layers) == 3 - most
    assert found.seconds < found.float_seconds if most else found.drop == 0


def test_layers_that_save_most_stay() -> None:
    candidates = {name: {"float": (8e-6, 0.0), "int8": (seconds, 0.01)}
                  for name, seconds in {"a": 6e-6, "b": 2e-6, "c": 7e-6}.items()}  # fmt: skip
    assert search._Search._that_save_most(dict.fromkeys("abc", "int8"), candidates) == {"b"}
    assert not search._Search._that_save_most({"b": "int8"}, candidates)


def narrow_products(engine: tilewright.Engine) -> int:
    return sum("cast" in step.name for step in engine.plan.steps if "matmul" in step.name)


def test_too_few_predictions_are_remarked(
    model: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(metrics.METRICS, "top1", lambda floats, narrow, samples: 0.0)
    data = samples(rng)
    few, enough = (tilewright.search_precision(model, data, max_drop=bound, metric="top1") for bound in (0.08, 0.09))
    assert "12 predictions were held back, of which one is 8.33%" in few.remarks[0] and not enough.remarks
    assert "at least 26 predictions" in few.remarks[0] and search_of(few.engine) == few.as_data()


def test_an_impossible_bound_says_how_near_it_came(model: Path, rng: np.random.Generator) -> None:
    with pytest.raises(PrecisionBoundError, match=r"within a drop of 0%: the least that was lost is [\d.e-]*[1-9]"):
        tilewright.search_precision(model, samples(rng), max_drop=0.0, metric="mse")


def test_samples_that_are_held_back(model: Path, rng: np.random.Generator) -> None:
    """A model that loses nothing on the half that decides, and all on the other, is refused."""
    data = [{"x": x, "label": np.full((), n % 2)} for n, x in enumerate(samples(rng))]
    exact = tilewright.compile(model)

    def score(outputs: metrics.Outputs, inputs: metrics.Outputs) -> float:
        if not inputs["label"]:
            return 1.0
        return float(np.allclose(outputs["y"], exact.run({"x": inputs["x"]})["y"], rtol=1e-4, atol=1e-3))

    with pytest.raises(PrecisionBoundError, match=r"within a drop of 0\.5%: the least that was lost is 40%"):
        tilewright.search_precision(model, data, metric=score)


def test_what_held_back_samples_show_decides_with_others_held_back(
    model: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Held-back samples are larger, so ranges of int8 do not hold; formats with ranges at run time do."""
    times = {**dict.fromkeys(TIMES, 8e-6), "int8": 2e-6, "int8-dynamic": 3e-6}
    monkeypatch.setattr(search._Search, "_seconds", lambda self, node, x, schemes: times)
    data = [x * (6 if number % 2 else 1) for number, x in enumerate(samples(rng, 12))]
    found = tilewright.search_precision(model, data, max_drop=0.02, metric="mse")
    assert {row.chosen for row in found.layers} <= {"int8-dynamic", "float"} and found.held_back == 3
    exact, unseen = tilewright.compile(model), [data[number] for number in (3, 7, 11)]
    pairs = [[np.array(engine.run({"x": x})["y"], np.float64) for x in unseen] for engine in (exact, found.engine)]
    drop = sum(((a - b) ** 2).sum() for a, b in zip(*pairs, strict=True)) / sum((a**2).sum() for a in pairs[0])
    assert found.drop == pytest.approx(drop, rel=1e-3) and drop <= 0.02


LABELS = {
    "a": (np.array(["a"] * 4), "indices of classes"), "half": (np.full(4, 0.5), "indices of classes"),
    "short": (np.zeros(3, int), "makes 4 predictions"), "class": (np.full(4, 128), "the class 128"),
    "negative": (np.full(4, -1), "the class -1"),
}  # fmt: skip


@pytest.mark.parametrize("name", LABELS)
def test_labels_that_do_not_fit(model: Path, rng: np.random.Generator, name: str) -> None:
    label, message = LABELS[name]
    with pytest.raises(InputError, match=message):
        tilewright.search_precision(model, [{"x": x, "label": label} for x in samples(rng)], metric="top1")


def test_labels_that_show_nothing(model: Path, rng: np.random.Generator) -> None:
    data = [{"x": x, "label": np.full(4, 0)} for x in samples(rng)]
    exact = tilewright.compile(model)
    for item in data:
        item["label"] = (np.array(exact.run({"x": item["x"]})["y"]).argmax(-1) + 1) % 128
    with pytest.raises(InputError, match="none of the model's 24 predictions"):
        tilewright.search_precision(model, data, metric="top1")
    del data[2]["label"]
    with pytest.raises(InputError, match="5 of 6 samples have a `label`"):
        tilewright.search_precision(model, data, metric="top1")


def test_right_labels_that_a_part_of_the_samples_has_not(model: Path, rng: np.random.Generator) -> None:
    """Only samples that decide, only ones that are held back have right predictions."""
    exact = tilewright.compile(model)
    for right in (0, 1):
        data = [{"x": x, "label": np.array(exact.run({"x": x})["y"]).argmax(-1)} for x in samples(rng)]
        for sample in data[1 - right :: 2]:
            sample["label"] = (sample["label"] + 1) % 128
        assert tilewright.search_precision(model, data, max_drop=0.5, metric="top1").drop <= 0.5
    assert metrics.top1([{"y": np.eye(2)}], [{"y": np.eye(2)[::-1]}], [{"label": np.array([1, 0])}]) == -1


@pytest.mark.parametrize("score", [lambda outputs, inputs: outputs["nope"], lambda outputs, inputs: None,
                                   lambda outputs, inputs: outputs["y"]])  # fmt: skip
def test_a_metric_that_fails(model: Path, rng: np.random.Generator, score: metrics.Score) -> None:
    with pytest.raises(InputError, match="the metric (raised KeyError: 'nope'; it is called with|gave [^,]*)"):
        tilewright.search_precision(model, samples(rng), metric=score)


@pytest.mark.parametrize("given", [
    [1, [2]], np.array("x"), np.array("1"), "1", 1j, np.complex64(1), np.array(1j), np.timedelta64(1), 10**400,
    np.array(None), np.array([1.0]), object,
], ids=range(12))  # fmt: skip
def test_scores_that_are_no_numbers(given: object) -> None:
    with pytest.raises(InputError, match=r"the metric gave .*, expected a number"):
        metrics._scored(lambda outputs, inputs: given, {}, {})  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize(
    "given", [2, True, 2.0, np.float16(2), np.bool_(1), np.array(2, np.int8), np.array(2.0), 2**70]
)
def test_scores_that_are_numbers(given: float) -> None:
    assert metrics._scored(lambda outputs, inputs: given, {}, {}) == float(given)


def test_shown_for_engines_without_a_count() -> None:
    data = {"layers": [], "points": [], "metric": "mse", "max_drop": 0.1, "drop": 0.0, "seconds": 1.0,
            "float_seconds": 1.0, "remarks": []}  # fmt: skip
    for count, text in ((0, "on samples that"), (7, "on 7 samples that")):
        console = Console(file=StringIO())
        show_search(console, {**data, "held_back": count})
        assert text in console.file.getvalue()  # type: ignore[attr-defined]


def test_samples_of_a_script(model: Path, tmp_path: Path) -> None:
    script, output = tmp_path / "data.py", tmp_path / "n.engine"
    script.write_text("import numpy as np\ndef samples():\n"
                      "    for seed in range(4):\n        yield np.full((4, 128), seed, np.float32)\n")  # fmt: skip
    for command in (["quantize", str(model)], ["build", str(model), "--precision", "auto", "--max-drop", "40%"]):
        result = CliRunner().invoke(application(), [*command, "--data", str(script), "-o", str(output)])
        assert result.exit_code == 0 and output.exists(), result.output
        output.unlink()
    for text, message in (("x = 1", "no function samples"), ("def samples(): return 1 / 0", "ZeroDivisionError"),
                          ("import nothing_of_this_name", "ModuleNotFoundError")):  # fmt: skip
        script.write_text(text)
        result = CliRunner().invoke(application(), ["quantize", str(model), "--data", str(script), "-o", str(output)])
        assert result.exit_code == 2 and message in " ".join(result.output.split()) and not output.exists()


def test_scripts_with_dataclasses(tmp_path: Path) -> None:
    """`dataclasses` looks for types in strings in the module, by its name; two files have modules of their own."""
    text = "from __future__ import annotations\nfrom dataclasses import dataclass\nfrom typing import ClassVar\n\n" \
           "@dataclass\nclass Row:\n    kind: ClassVar[int] = 1\n    value: int = {}\n\n" \
           "def samples():\n    import sys\n    return [Row().value, sys.modules[__name__].Row is Row]\n"  # fmt: skip
    scripts = [tmp_path / name / "data.py" for name in "ab"]
    for number, script in enumerate(scripts):
        script.parent.mkdir()
        script.write_text(text.format(number))
    assert [load_data(script) for script in scripts] == [[0, True], [1, True]]


def test_a_script_that_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's bytecode cache would give the old file: the times differ by less than a second, the sizes not at all."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    script = tmp_path / "data.py"
    for value in (1, 2):
        script.write_text(f"def samples():\n    return [{value}]\n")
        os.utime(script, (1e9, 1e9))
        assert load_data(script) == [value]


def test_a_file_that_was_cut_off(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, x=np.zeros((2, 4, 128), np.float32))
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InputError, match="is not what numpy.savez"):
        tilewright.search_precision(model, path)


def test_drops_are_distinguished() -> None:
    assert search._distinct_percentages(0.0, 3e-9) == ["0%", "3e-07%"]
    assert search._distinct_percentages(0.005, 0.0050000001) == ["0.5%", "0.50000001%"]
    assert len(set(search._distinct_percentages(0.1, float(np.nextafter(0.1, 1))))) == 2


def test_a_score_that_is_never_within_the_bound_ends(model: Path, rng: np.random.Generator) -> None:
    """A score that differs from call to call, with nothing left to take back; NaN for narrow numbers, for floats."""
    falling = iter(range(10_000, 0, -1))
    with pytest.raises(PrecisionBoundError):
        tilewright.search_precision(model, samples(rng), max_drop=0.0, metric=lambda outputs, inputs: next(falling))
    exact = [tilewright.compile(model)]

    def score(outputs: metrics.Outputs, inputs: metrics.Outputs) -> float:
        own = exact[0].run({"x": inputs["x"]})["y"]
        return 1.0 if np.allclose(outputs["y"], own, rtol=1e-4, atol=1e-3) else float("nan")

    with pytest.raises(PrecisionBoundError):
        tilewright.search_precision(model, samples(rng), metric=score)
    with pytest.raises(InputError, match="not a finite number"):
        tilewright.search_precision(model, samples(rng), metric=lambda outputs, inputs: float("nan"))


@pytest.mark.parametrize("name", list(metrics.METRICS))
def test_metrics_of_nan_and_of_no_floats(name: str) -> None:
    plain = [{"y": np.array([[2.0, 1.0]], np.float32)}]
    broken = [{"y": np.array([[np.nan, 1.0]], np.float32)}]
    assert not metrics.METRICS[name](plain, broken, [{}]) <= 0.5
    whole = [{"y": np.array([1, 2])}]
    with pytest.raises(InputError, match="no outputs of floats"):
        metrics.METRICS[name](whole, whole, [{}])


def test_metrics() -> None:
    floats = [{"y": np.array([[1.0, 2.0], [3.0, 0.0]], np.float32)}]
    narrow = [{"y": np.array([[2.0, 1.0], [3.0, 0.0]], np.float32)}]
    assert metrics.top1(floats, narrow, [{}]) == 0.5
    assert metrics.top1(floats, narrow, [{"label": np.array([0, 0])}]) == -0.5  # better than in floats
    assert metrics.mse(floats, narrow, [{}]) == pytest.approx(2 / 14)
    assert metrics.cosine(floats, narrow, [{}]) == pytest.approx(1 - 13 / 14)
    assert metrics.of_score(lambda outputs, sample: float(outputs["y"][0, 1]))(floats, narrow, [{}]) == 0.5


def test_command_and_bad_input(model: Path, rng: np.random.Generator, tmp_path: Path) -> None:
    folder, engine = tmp_path / "data", tmp_path / "net.engine"
    folder.mkdir()
    for number, x in enumerate(samples(rng)):
        np.savez(folder / f"{number}.npz", x=x, label=np.zeros(4, int))
    script = tmp_path / "metric.py"
    script.write_text("def score(outputs, inputs):\n    return float(abs(outputs['y']).mean() + inputs['x'].size)\n")
    command = ["build", str(model), "--precision", "auto", "--data", str(folder), "-o", str(engine)]
    done = CliRunner().invoke(application(), [*command, "--max-drop", "5%", "--metric", str(script)])
    assert done.exit_code == 0, done.output
    assert "score drop" in done.output and tilewright.load(engine).search is not None
    again = tmp_path / "again.engine"
    done = CliRunner().invoke(
        application(), ["build", str(engine), "--precision", "auto", "--data", str(folder), "-o", str(again)]
    )
    assert done.exit_code == 0, done.output
    first, second = tilewright.load(engine), tilewright.load(again)
    assert first.source == second.source == model.name and first.targets == second.targets
    for extra in (["--effort", "1"], ["--vendor", "allow"], ["--reproducible"], ["--timing-cache", "x.json"]):
        failed = CliRunner().invoke(application(), [*command, *extra])
        assert failed.exit_code == 2 and "cannot be combined with --precision" in failed.output, failed.output
    for extra in (["--max-drop", "1%"], ["--metric", "mse"], ["--data", str(folder)]):
        failed = CliRunner().invoke(application(), ["build", str(model), "-o", str(engine), *extra])
        assert failed.exit_code == 2 and "needs --precision auto" in failed.output, failed.output
    engine.unlink()
    for extra, message in {("--max-drop", "much"): "expected a part", ("--metric", "none.py"): "no such Python file",
                           ("--metric", "best"): "unknown metric"}.items():  # fmt: skip
        failed = CliRunner().invoke(application(), [*command, *extra])
        assert failed.exit_code != 0 and message in failed.output + str(failed.exception), failed.output
    assert not engine.exists()
    with pytest.raises(InputError, match="two samples at least"):
        tilewright.search_precision(model, samples(rng, 1))
    with pytest.raises(InputError, match="max_drop is 5"):
        tilewright.search_precision(model, samples(rng), max_drop=5)
