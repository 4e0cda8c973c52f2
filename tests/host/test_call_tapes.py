"""Compiled parts and branches of an engine in parts as one native call: results, errors and threads."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from tilewright.build.builder import build
from tilewright.dtypes import float32, int1, int64
from tilewright.engine import schedule, taping
from tilewright.engine.engine import Engine
from tilewright.errors import InputError
from tilewright.graph import reference
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph, Value


def branch(name: str, high: int, scale: float, handed_on: bool = False) -> Graph:
    """x scaled, and x; with `handed_on` the first is x, too."""
    b = GraphBuilder(name)
    x = b.input("x", float32, (b.symbol("rows", 0, high), 3))
    b.output(x if handed_on else b.op("multiply", [x, scale]), "y")
    b.output(x, "same")
    return b.finish()


def chosen(handed_on: bool) -> Graph:
    """A branch by a number, its results added to rows of a table by indices, and where the sum is positive."""
    b = GraphBuilder("chosen")
    rows = b.symbol("rows", 0, 64)
    kind, x = b.input("kind", int64, ()), b.input("x", float32, (rows, 3))
    places, table = b.input("places", int64, (rows, 2)), b.input("table", float32, (5, 3))
    condition = b.op("equal", [kind, b.constant(np.array(7))])
    types = ((float32, (rows, 3)),) * 2
    chosen = b.node("if", [condition, x], then=branch("then", 64, 2.0),
                    otherwise=branch("otherwise", 64, -1.0, handed_on), types=types)  # fmt: skip
    place = b.op("reshape", [b.op("slice", [places], axis=1, start=1, stop=2)], shape=(rows,))
    total = b.op("add", [chosen.outputs[0], b.op("gather", [table, place], axis=0)])
    positive = b.op("greater", [total, 0.0])
    found = b.op("nonzero", [positive], shape=(2, b.run_time_symbol("count")))
    b.output(total, "total")
    b.output(chosen.outputs[1], "same")
    b.output(found, "found")
    b.output(b.op("multiply", [b.op("cast", [found], dtype=float32), 0.5]), "half")
    return b.finish()


def feeds(rng: np.random.Generator, rows: int, kind: int) -> dict[str, np.ndarray]:
    places = rng.integers(-5, 5, (rows, 2))
    places[:, 0] = 1000  # which nothing reads
    return {
        "kind": np.array(kind),
        "x": rng.standard_normal((rows, 3)).astype(np.float32),
        "places": places,
        "table": rng.standard_normal((5, 3)).astype(np.float32),
    }


def check(engine: Engine, graph: Graph, inputs: dict[str, np.ndarray]) -> None:
    wanted, found = reference.run(graph, inputs, None), engine.run(inputs)
    for name, result in wanted.items():
        assert found[name].dtype == result.dtype and found[name].flags.writeable
        np.testing.assert_allclose(found[name], result, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of every run of a tape whether it came to its end."""
    found: list[bool] = []
    original = taping.CallTape.run

    def counted(self: taping.CallTape, *arguments: object) -> object:
        results = original(self, *arguments)  # type: ignore[arg-type]
        found.append(results is not None)
        return results

    monkeypatch.setattr(schedule.CallTape, "run", counted)
    return found


@pytest.mark.parametrize("handed_on", [False, True])
def test_sizes_that_come_again(
    handed_on: bool, runs: list[bool], rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule, "_TAPED_FROM", 2)
    monkeypatch.setattr(schedule, "_TAPES", 3)
    graph = chosen(handed_on)
    engine = build(graph, "cpu")
    for _ in range(30):
        check(engine, graph, feeds(rng, int(rng.choice([1, 2, 5, 0])), int(rng.choice([7, 3]))))
    assert len(runs) > 5 and all(runs)


def test_results_stay_with_their_caller(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "_TAPED_FROM", 1)
    engine = build(chosen(True), "cpu")
    given = [feeds(rng, 4, kind) for kind in (7, 3, 7, 3)]
    found = [engine.run(inputs) for inputs in given]
    for inputs, results in zip(given, found, strict=True):
        np.testing.assert_array_equal(results["same"], inputs["x"])
        results["same"][...] = 0
    assert all((inputs["x"] != 0).any() for inputs in given)


def test_wrong_indices_and_threads(runs: list[bool], rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "_TAPED_FROM", 1)
    graph = chosen(False)
    engine = build(graph, "cpu")
    wrong = feeds(rng, 3, 7)
    wrong["places"][1, 1] = 5
    for _ in range(2):
        with pytest.raises(InputError, match="holds 5, an index out of range"):
            engine.run(wrong)
    failures: list[BaseException] = []

    def run(seed: int) -> None:
        generator = np.random.default_rng(seed)
        try:
            for _ in range(20):
                check(engine, graph, feeds(generator, 3, int(generator.choice([7, 3]))))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and sum(runs) >= 120


def test_nodes_run_one_by_one_where_no_further_tape_is_made(
    runs: list[bool], rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While other threads have all tapes of the same sizes."""

    original, busy = schedule._Stretch.run, False

    def without_idle_tapes(self: schedule._Stretch, *arguments: object) -> object:
        for tapes in self._tapes.values():
            if busy and tapes is not None:
                tapes.idle.clear()
        return original(self, *arguments)  # type: ignore[arg-type]

    def refused(*arguments: object) -> None:
        raise taping.NotFixedError("sizes that are checked at every call")

    monkeypatch.setattr(schedule._Stretch, "run", without_idle_tapes)
    monkeypatch.setattr(schedule, "_TAPED_FROM", 1)
    graph = chosen(False)
    engine = build(graph, "cpu")
    check(engine, graph, feeds(rng, 3, 7))
    assert runs
    busy = True
    monkeypatch.setattr(schedule.CallTape, "__init__", refused)
    del runs[:]
    check(engine, graph, feeds(rng, 3, 7))
    assert not runs


def test_large_memory_has_no_tape(runs: list[bool], rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "_TAPED_FROM", 1)
    monkeypatch.setattr(schedule, "_TAPE_BYTES", 0)
    graph = chosen(False)
    engine = build(graph, "cpu")
    for _ in range(3):
        check(engine, graph, feeds(rng, 4, 7))
    assert not runs


def sized(b: GraphBuilder, x: Value, count: Value) -> list[Value]:
    """Numbers of a size that is read and of one that is counted."""
    size = b.run_time_symbol("size")
    b.op("extent", [count], element=0, size=size, what="the count")
    list_of = b.op("reshape", [b.op("dimension", expression=size)], shape=(1,))
    stretched = b.op("broadcast_at", [x, list_of], shape=(size,), what="the shape of x")
    return [stretched, b.op("add", [list_of, b.constant(np.array([1]))])]


def test_numbers_of_sizes_that_are_read(rng: np.random.Generator) -> None:
    b = GraphBuilder("sized")
    x, count = b.input("x", float32, (1,)), b.input("count", int64, (1,))
    stretched, following = sized(b, x, count)
    b.output(b.op("exp", [stretched]), "y")
    b.output(following, "following")
    graph = b.finish()
    engine = build(graph, "cpu")
    for number in (3, 1, 0, 3, 8, 1, 8):
        check(engine, graph, {"x": rng.standard_normal(1).astype(np.float32), "count": np.array([number])})


def test_conditions_of_another_type() -> None:
    b = GraphBuilder("plain")
    x, flag = b.input("x", float32, (2, 3)), b.input("flag", int1, ())
    types = ((float32, (2, 3)),) * 2
    node = b.node("if", [flag, x], then=branch("then", 2, 2.0), otherwise=branch("other", 2, 3.0), types=types)
    b.output(node.outputs[0], "y")
    engine = build(b.finish(), "cpu")
    for flag_now in (True, False) * 6:
        found = engine.run({"x": np.ones((2, 3), np.float32), "flag": np.array(flag_now)})
        np.testing.assert_array_equal(found["y"], np.full((2, 3), 2.0 if flag_now else 3.0, np.float32))
