"""Loops of an engine whose rounds run natively: against the reference, with errors, signals and threads."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable

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

Body = Callable[[GraphBuilder, Value, Value, list[Value]], list[Value]]


def body(name: str, shapes: list[tuple[int, ...]], write: Body) -> Graph:
    """A graph inside: `write` gets the number of the round, the flag and the values, and gives the flag and results."""
    b = GraphBuilder(name)
    number, going = b.input("number", int64, ()), b.input("going", int1, ())
    results = write(b, number, going, [b.input(f"v{n}", float32, shape) for n, shape in enumerate(shapes)])
    for position, result in enumerate(results):
        b.output(result, f"r{position}")
    return b.finish()


def branch(name: str, write: Callable[[GraphBuilder, Value], Value]) -> Graph:
    b = GraphBuilder(name)
    b.output(write(b, b.input("x", float32, (2, 3))), "y")
    return b.finish()


def everything() -> Graph:
    """Values that change places, rows, a captured value, a branch and a loop inside, an early end."""
    shape = (2, 3)
    types = ((float32, shape),)

    def inner(b: GraphBuilder, number: Value, going: Value, values: list[Value]) -> list[Value]:
        return [going, b.op("tanh", [b.op("add", [values[0], b.op("cast", [number], dtype=float32)])])]

    def outer(b: GraphBuilder, number: Value, going: Value, values: list[Value]) -> list[Value]:
        x, y, z, fixed = values
        positive = b.op("greater", [b.op("reduce_sum", [x], axes=(0, 1)), 0.0])
        then = branch("then", lambda b, x: b.op("multiply", [x, 0.5]))
        chosen = b.node("if", [positive, x], then=then, otherwise=branch("other", lambda b, x: x), types=types)
        trips = b.op("remainder", [number, b.constant(np.array(3))])
        twisted = b.node("loop", [trips, None, y], body=body("inner", [shape], inner), carried=1, types=types)
        new = b.op("tanh", [b.op("add", [b.op("subtract", [chosen.outputs[0], twisted.outputs[0]]), fixed])])
        going_on = b.op("less", [b.op("reduce_max", [b.op("absolute", [new])], axes=(0, 1)), 0.9999])
        return [going_on, y, new, new, x, b.op("reduce_sum", [new], axes=(0,))]

    b = GraphBuilder("everything")
    count, *values = b.input("count", int64, ()), *(b.input(name, float32, shape) for name in "xyzf")
    rows = b.run_time_symbol("rows")
    given = (*types * 3, (float32, (rows, *shape)), (float32, (rows, 3)))
    loop = b.node("loop", [count, None, *values], body=body("outer", [shape] * 4, outer), carried=3, types=given)
    for position, output in enumerate(loop.outputs):
        b.output(output, f"y{position}")
    return b.finish()


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The first round of every run of a tape."""
    found: list[int] = []
    original = taping.LoopTape.run

    def counted(self: taping.LoopTape, *arguments: object) -> taping.Rounds:
        found.append(int(arguments[2]))  # type: ignore[call-overload]
        return original(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(schedule.LoopTape, "run", counted)
    return found


def test_rounds_run_natively(runs: list[int], rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taping, "_MOST_ROWS", 16)
    graph = everything()
    engine = build(graph, "cpu")
    for count, begun in ((0, []), (5, []), (40, [8, 24]), (7, [0]), (23, [0, 16])):
        feeds = {name: 0.1 * rng.standard_normal((2, 3)).astype(np.float32) for name in "xyzf"}
        feeds["count"] = np.array(count)
        wanted, found = reference.run(graph, feeds, None), engine.run(feeds)
        for name, result in wanted.items():
            np.testing.assert_allclose(found[name], result, rtol=1e-4, atol=1e-5, err_msg=f"{name}, {count} rounds")
        assert runs == begun[: len(runs)] and len(wanted["y3"]) <= count
        runs.clear()


def walk(most: int | None = None) -> Engine:
    """Rounds that look up a table by a number that each of them raises by one; without end where `most` is None."""

    def step(b: GraphBuilder, number: Value, going: Value, values: list[Value]) -> list[Value]:
        place = b.op("cast", [values[1]], dtype=int64)
        total = b.op("add", [values[0], b.op("gather", [values[2], place], axis=0)])
        following = values[1] if most is None else b.op("add", [values[1], 1.0])
        return [going, total, following]

    b = GraphBuilder("walk")
    start, table = b.input("start", float32, ()), b.input("table", float32, (20,))
    count = None if most is None else b.constant(np.array(most))
    loop = b.node("loop", [count, None, b.constant(np.float32(0)), start, table],
                  body=body("step", [(), (), (20,)], step), carried=2, types=((float32, ()),) * 2)  # fmt: skip
    b.output(loop.outputs[0], "total")
    return build(b.finish(), "cpu")


def test_an_endless_loop_is_interrupted() -> None:
    engine, begun = walk(), time.monotonic()

    def stop(*arguments: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(TimeoutError):
            engine.run({"start": np.float32(2), "table": np.ones(20, np.float32)})
    finally:
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - begun < 5


def numbered() -> Engine:
    """Rows of a table by integers that a round raises by one."""
    b = GraphBuilder("step")
    number, going = b.input("number", int64, ()), b.input("going", int1, ())
    place, total = b.input("place", int64, (1,)), b.input("total", float32, (1, 4))
    table = b.input("table", float32, (20, 4))
    del number
    results = going, b.op("add", [place, b.constant(np.array([1]))])
    for position, result in enumerate((*results, b.op("add", [total, b.op("gather", [table, place], axis=0)]))):
        b.output(result, f"r{position}")
    inside = b.finish()
    b = GraphBuilder("numbered")
    count, place, table = b.input("count", int64, ()), b.input("place", int64, (1,)), b.input("table", float32, (20, 4))
    loop = b.node("loop", [count, None, place, b.constant(np.zeros((1, 4), np.float32)), table], body=inside,
                  carried=2, types=((int64, (1,)), (float32, (1, 4))))  # fmt: skip
    b.output(loop.outputs[1], "total")
    return build(b.finish(), "cpu")


def test_wrong_indices_and_threads(runs: list[int]) -> None:
    engine, table = numbered(), np.arange(80, dtype=np.float32).reshape(20, 4)
    for count in (12, 20):
        found = engine.run({"count": np.array(count), "place": np.array([0]), "table": table})
        np.testing.assert_allclose(found["total"], table[:count].sum(0, keepdims=True))
    with pytest.raises(InputError, match="holds 20, an index out of range"):
        engine.run({"count": np.array(21), "place": np.array([0]), "table": table})
    assert runs == [8, 0, 0]
    results: dict[int, np.ndarray] = {}

    def run(first: int) -> None:
        for _ in range(20):
            results[first] = engine.run({"count": np.array(10), "place": np.array([first]), "table": table})["total"]

    threads = [threading.Thread(target=run, args=(first,)) for first in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for first, total in results.items():
        np.testing.assert_allclose(total, table[first : first + 10].sum(0, keepdims=True))
