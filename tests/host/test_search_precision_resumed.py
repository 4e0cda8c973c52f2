"""A search for precisions that was interrupted goes on with what it had measured, and ends as it would have ended."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright.dtypes import DType, bfloat16, float16, float32
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph
from tilewright.quant import search, stored_search
from tilewright.quant.stored_search import StoredSearch
from tilewright.runtime import safe_files
from tilewright.settings import settings
from tilewright.targets.llvm.cache import ObjectCache
from tilewright.targets.registry import get_targets

SEVERAL_POINTS = 3e-4  # the bound of a search that tries nine, and lets more samples decide


@pytest.fixture(scope="module")
def graph() -> Graph:
    """Two products [64, 64], the second of which loses more."""
    rng = np.random.default_rng(5)
    b = GraphBuilder("net")
    value = b.input("x", float32, (4, 64))
    for number in range(2):
        weights = (rng.standard_normal((64, 64)) / 8).astype(np.float32)
        weights[:, 0] *= np.where(np.arange(64) == 5, 1 + 500 * number, 1)
        value = b.op("matmul", [value, b.constant(weights, f"w{number}")])
    b.output(value, "y")
    return b.finish()


@pytest.fixture(scope="module")
def samples() -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(6)
    return [{"x": rng.standard_normal((4, 64)).astype(np.float32)} for _ in range(8)]


@pytest.fixture(autouse=True)
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The measurements that were made, in a cache of this test; no two times are equal."""
    stored_in(tmp_path / "searches", monkeypatch)
    made: list[str] = []

    def seconds(self: Any, node: Any, x: Any, schemes: Any) -> dict[str, float]:
        made.append("times")
        return {scheme: (9 if scheme == "float" else 2) + len(made) / 100 + n / 1e3 for n, scheme in enumerate(schemes)}

    def interleaved(engines: Any, inputs: Any) -> list[list[float]]:
        made.append("engines")
        return [[(2 + len(made) / 1e3) / n] for n, _ in enumerate(engines, 1)]

    plain = search._Search._outputs

    def outputs(self: Any, narrow: Graph, sample: Any) -> Any:
        made.append("outputs")
        return plain(self, narrow, sample)

    monkeypatch.setattr(search._Search, "_seconds", seconds)
    monkeypatch.setattr(search, "_interleaved", interleaved)
    monkeypatch.setattr(search._Search, "_outputs", outputs)
    return made


def stored_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_search, "searches", lambda: ObjectCache(folder))


def run(graph: Graph, samples: Any, max_drop: float = 8e-4) -> dict[str, Any]:
    return search.search_precision(graph, samples, max_drop=max_drop, metric="mse", target="cpu").as_data()


def test_interrupted_anywhere(
    graph: Graph, samples: Any, measured: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A search that is stopped after each measurement in turn measures nothing twice, and reports that it resumes."""
    put, left = ObjectCache.put, [10**6]

    def interrupted(self: ObjectCache, *given: Any) -> bool:
        if "searches" in str(self.directory):
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt
        return put(self, *given)

    monkeypatch.setattr(ObjectCache, "put", interrupted)
    whole, count, stored = run(graph, samples, SEVERAL_POINTS), len(measured), 10**6 - left[0]
    assert stored > 40
    for number in range(0, stored, 6):
        stored_in(tmp_path / f"searches{number}", monkeypatch)
        measured.clear()
        left[0] = number
        with pytest.raises(KeyboardInterrupt):
            run(graph, samples, SEVERAL_POINTS)
        measured[:] = measured[: len(measured) - 1] if measured else []  # the one that was not stored
        left[0] = 10**6
        again = run(graph, samples, SEVERAL_POINTS)
        assert len(measured) in (count, count - 1)  # what was lost may have been a range or an error
        assert [row["chosen"] for row in again["layers"]] == [row["chosen"] for row in whole["layers"]]
        assert run(graph, samples, SEVERAL_POINTS) == again


def test_a_finished_search_measures_nothing_again(
    graph: Graph, samples: Any, measured: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    whole, count = run(graph, samples), len(measured)
    assert "goes on" not in caplog.text
    assert run(graph, samples) == whole and len(measured) == count
    assert "the search goes on with" in caplog.text and "cache clean --all" in caplog.text
    wide = run(graph, samples, max_drop=0.3)  # another bound asks for other points, of the same layers
    assert wide["layers"][0]["candidates"] == whole["layers"][0]["candidates"]


def test_another_model_data_target_or_version(graph: Graph, samples: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of equal names with one other weight, data, number of threads, CPU, and versions of what computes."""

    def prefix(model: Graph = graph, given: Any = samples, target: str = "cpu") -> str:
        return StoredSearch(model, given, get_targets([target])).prefix

    weight = next(value for value in graph.constants if value.name == "w1")
    other = graph.constants[weight].copy()
    other[-1, -1] += 1e-3
    prefixes = [
        prefix(), prefix(replace(graph, constants={**graph.constants, weight: other})),
        prefix(given=[*samples[:-1], {"x": samples[-1]["x"] + 1}]), prefix(given=samples[:-1]),
        prefix(given=samples[::-1]), prefix(target="cpu:x86-64-v2"), prefix(target="cpu:neoverse-n1"),
    ]  # fmt: skip
    with settings.scope(threads=settings.threads + 1):
        prefixes.append(prefix())
    for name in ("source_digest", "compiler_digest"):
        with monkeypatch.context() as patch:
            patch.setattr(stored_search, name, lambda *folders: "another")
            prefixes.append(prefix())
    assert len(set(prefixes)) == len(prefixes) and prefix() == prefixes[0]


@pytest.mark.parametrize("dtype", [bfloat16, float16], ids=str)
def test_models_of_16_bits(dtype: DType, measured: list[str]) -> None:
    rng = np.random.default_rng(5)
    b = GraphBuilder("half")
    weights = (rng.standard_normal((64, 64)) / 8).astype(dtype.numpy)
    b.output(b.op("matmul", [b.input("x", dtype, (4, 64)), b.constant(weights, "w")]), "y")
    model, data = b.finish(), [{"x": rng.standard_normal((4, 64)).astype(dtype.numpy)} for _ in range(4)]
    whole, count = run(model, data), len(measured)
    assert run(model, data) == whole and len(measured) == count


def test_floats_are_computed_once_where_nothing_can_be_stored(
    graph: Graph, samples: Any, measured: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: Any, **named: Any) -> None:
        raise OSError(28, "No space left on device")

    whole = run(graph, samples, SEVERAL_POINTS)
    computed: list[int] = []
    outputs = search._Search._outputs

    def counted(self: Any, narrow: Graph, sample: Any) -> Any:
        computed.extend([id(sample)] if narrow is self.graph else [])
        return outputs(self, narrow, sample)

    monkeypatch.setattr(search._Search, "_outputs", counted)
    monkeypatch.setattr(stored_search, "searches", lambda: ObjectCache(Path("/proc/none/searches")))
    monkeypatch.setattr(safe_files, "write", full)
    measured.clear()
    assert [row["chosen"] for row in run(graph, samples, SEVERAL_POINTS)["layers"]] == [
        row["chosen"] for row in whole["layers"]
    ]
    assert computed and len(computed) == len(set(computed))


@pytest.mark.parametrize("kind", ["empty", "half", "other"])
def test_damaged_entries_are_measured_again(
    graph: Graph, samples: Any, measured: list[str], caplog: pytest.LogCaptureFixture, tmp_path: Path, kind: str
) -> None:
    whole, count = run(graph, samples), len(measured)
    for path in (tmp_path / "searches").rglob("*.kernel"):
        if "-floats-" in path.name or "-outputs-" in path.name:
            data = path.read_bytes()
            path.write_bytes({"empty": b"", "half": data[: len(data) // 2], "other": data[:-1] + b"!"}[kind])
    caplog.set_level(logging.WARNING)
    assert run(graph, samples) == whole
    assert measured[count:] and set(measured[count:]) == {"outputs"} and "is damaged" in caplog.text


def test_arrays_of_all_types(graph: Graph, samples: Any, caplog: pytest.LogCaptureFixture) -> None:
    import ml_dtypes

    arrays = {
        "halves": np.arange(6).reshape(2, 3).astype(ml_dtypes.bfloat16), "truth": np.array([True, False]),
        "nothing": np.zeros((0, 3), np.int64), "number": np.array(3.5), "bytes": np.arange(3).astype(np.uint8),
        "eights": np.arange(3).astype(ml_dtypes.float8_e4m3fn),
    }  # fmt: skip
    store = StoredSearch(graph, samples, get_targets(["cpu"]))
    store.arrays("kind", 1, lambda: arrays)
    found = store.arrays("kind", 1, dict)
    assert list(found) == list(arrays) and "damaged" not in caplog.text
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype and found[name].shape == array.shape
        np.testing.assert_array_equal(found[name], array)
    texts = {"text": np.array(["a", "b"])}
    assert store.arrays("texts", 1, lambda: texts)["text"] is texts["text"]
    assert stored_search._LARGEST < store.cache.limit_bytes
