"""Engines for GPUs on a machine without one: building, the file, and sessions on the stand-in for a GPU."""

from __future__ import annotations

import gc
import json
from dataclasses import replace

import numpy as np
import pytest

from tests.host.random_graphs import RandomGraph
from tests.host.test_engine_concurrent_branches import experts
from tests.rounding import graph_bounds
from tilewright import Engine
from tilewright.build.builder import build
from tilewright.dtypes import bfloat16, float16, float32, float64, int32, int64, uint8, uint32
from tilewright.engine import file
from tilewright.engine.file import Package, write_package
from tilewright.errors import EngineDamagedError, EngineTargetError, InputError, ShapeError
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph
from tilewright.graph.reference import run
from tilewright.runtime.cuda import session
from tilewright.targets.gpu.binary import GpuBinary
from tilewright.targets.nvidia.target import NvidiaTarget


def perceptron(rng: np.random.Generator, dtype=float32, width: int = 40) -> Graph:
    b = GraphBuilder("perceptron")
    batch = b.symbol("batch", 1, 200)
    x = b.input("x", dtype, (batch, 24))
    w, v = (rng.standard_normal(shape).astype(dtype.numpy) for shape in ((24, width), (width, 16)))
    hidden = b.op("gelu", [b.op("add", [b.op("matmul", [x, b.constant(w)]), b.constant(w[0])])])
    b.output(b.op("softmax", [b.op("matmul", [hidden, b.constant(v)])], axis=1), "y")
    return b.finish()


def cached(rng: np.random.Generator) -> Graph:
    """An input that is updated in place."""
    b = GraphBuilder("cached")
    x, cache, index = b.input("x", float32, (1, 8)), b.input("cache", float32, (5, 8)), b.input("index", int64, (1,))
    new = b.op("scatter_update", [cache, index, x], axis=0)
    b.mutate(cache, new)
    b.output(b.op("reduce_sum", [new], axes=(0,), keepdims=False), "total")
    return b.finish()


@pytest.mark.parametrize("shape", [(40, 24), (3, 40, 5), (2, 9)], ids=str)
def test_the_last_of_equal_indices_wins(shape, driver, rng):
    """Among many updates, some of them counted from the end."""
    axis = len(shape) - 2
    b = GraphBuilder("updates")
    n = b.symbol("n", 1, 1000)
    x, index = b.input("x", float32, shape), b.input("index", int64, (n,))
    updates = b.input("updates", float32, (*shape[:axis], n, *shape[axis + 1 :]))
    b.output(b.op("scatter_update", [x, index, updates], axis=axis), "y")
    graph = b.finish()
    engine = build(graph, "cuda:sm_90a")
    for number in (1, 16, 300):
        inputs = {
            "x": rng.standard_normal(shape).astype(np.float32),
            "index": rng.integers(-shape[axis], shape[axis], number),
            "updates": rng.standard_normal((*shape[:axis], number, *shape[axis + 1 :])).astype(np.float32),
        }
        np.testing.assert_array_equal(engine.run(inputs)["y"], run(graph, inputs)["y"])


def test_grids_that_are_too_long_along_z(driver, rng, monkeypatch):
    """Planes of a permute are along z, of which a launch has few; x has many."""
    monkeypatch.setattr(NvidiaTarget, "largest_grid", (1 << 30, 5, 5))
    b = GraphBuilder("planes")
    x = b.input("x", float32, (40, 17, 33))
    b.output(b.op("permute", [x], order=(0, 2, 1)), "y")
    graph = b.finish()
    engine = build(graph, "cuda:sm_90a")
    grids = [choice.grid for step in engine.plan.steps for choice in step.choices]
    assert all(grid[1] <= 5 and grid[2] <= 5 for grid in grids) and max(grid[0] for grid in grids) > 5
    inputs = {"x": rng.standard_normal((40, 17, 33)).astype(np.float32)}
    np.testing.assert_array_equal(engine.run(inputs)["y"], run(graph, inputs)["y"])


def test_the_last_of_many_equal_indices_wins(driver, rng):
    """More updates than are compared with each other."""
    b = GraphBuilder("many")
    n = b.symbol("n", 1, 1 << 20)
    given = [b.input("x", float32, (2, 70, 3)), b.input("index", int32, (n,)), b.input("updates", float32, (2, n, 3))]
    b.output(b.op("scatter_update", given, axis=1), "y")
    graph = b.finish()
    engine = build(graph, "cuda:sm_90a")
    for number in (1, 500, 5000):
        inputs = {
            "x": rng.standard_normal((2, 70, 3)).astype(np.float32),
            "index": rng.integers(-70, 70, number).astype(np.int32),
            "updates": rng.standard_normal((2, number, 3)).astype(np.float32),
        }
        np.testing.assert_array_equal(engine.run(inputs)["y"], run(graph, inputs)["y"])


@pytest.mark.parametrize("dtype", [float32, float16, bfloat16, float64, int32, int64, uint32], ids=str)
@pytest.mark.parametrize("reduction", ["add", "multiply", "maximum", "minimum"])
def test_updates_are_combined_in_memory(reduction, dtype, driver, rng):
    """In no fixed order, with NaN among what is compared; `ordered` keeps the order of the indices."""
    b = GraphBuilder("combined")
    n = b.symbol("n", 1, 1000)
    given = [b.input("x", dtype, (2, 9, 5)), b.input("index", int64, (n,)), b.input("updates", dtype, (2, n, 5))]
    b.output(b.op("scatter_reduce", given, axis=1, reduction=reduction), "y")
    b.output(b.op("scatter_reduce", given, axis=1, reduction=reduction, ordered=True), "ordered")
    graph = b.finish()
    engine = build(graph, "cuda:sm_90a")
    x, updates = (rng.integers(-2, 3, (2, number, 5)).astype(dtype.numpy) for number in (9, 30))
    inputs = {"x": x, "updates": updates, "index": rng.integers(-9, 9, 30)}
    if dtype.is_float and reduction != "add":
        updates[0, 3, 2] = np.nan
    results, expected = engine.run(inputs), run(graph, inputs)
    for name in ("y", "ordered"):
        np.testing.assert_array_equal(results[name].astype(np.float64), expected[name].astype(np.float64))


def test_updates_that_do_not_meet_join_what_computes_them(driver, rng):
    """Of a tensor in place, in one launch with another result; its blocks are larger where there are many elements."""
    b = GraphBuilder("distinct")
    n = b.symbol("n", 1, 1 << 14)
    state, index = b.input("state", float32, (b.symbol("slots", 1, 1 << 20), 3, 40)), b.input("index", int32, (n,))
    x = b.op("multiply", [b.input("x", float32, (n, 3, 40)), 2.0])
    b.mutate(state, b.op("scatter_update", [state, index, x], axis=0, distinct=True))
    b.output(b.op("add", [x, 1.0]), "y")
    graph = b.finish()
    engine = build(graph, "cuda:sm_90a")
    (step,) = engine.plan.steps
    assert [choice.at_most for choice in step.choices] != [None] and len(step.choices) == 2
    for number, slots in ((1, 1), (70, 90), (9000, 9001)):
        inputs = {
            "state": rng.standard_normal((slots, 3, 40)).astype(np.float32),
            "x": rng.integers(-99, 100, (number, 3, 40)).astype(np.float32),
            "index": rng.permutation(slots)[:number].astype(np.int32),
        }
        np.testing.assert_array_equal(engine.run(inputs)["y"], 2 * inputs["x"] + 1)
        np.testing.assert_array_equal(inputs["state"][inputs["index"]], 2 * inputs["x"])


def test_indices_of_8_bits_need_not_hold_the_extent(driver, rng):
    """Steps beyond the indices are none of an index: 256 of 8 bits would be 0."""
    b = GraphBuilder("narrow")
    given = [b.input("x", float32, (256, 3)), b.input("index", uint8, (5,)), b.input("updates", float32, (5, 3))]
    b.output(b.op("scatter_update", given, axis=0), "replaced")
    b.output(b.op("scatter_reduce", given, axis=0, reduction="add"), "added")
    graph = b.finish()
    inputs = {
        "x": rng.standard_normal((256, 3)).astype(np.float32),
        "index": np.array([0, 7, 255, 7, 3], np.uint8),
        "updates": rng.standard_normal((5, 3)).astype(np.float32),
    }
    results, expected = build(graph, "cuda:sm_90a").run(inputs), run(graph, inputs)
    for name in ("replaced", "added"):
        np.testing.assert_allclose(results[name], expected[name], rtol=1e-6, atol=1e-6)


def test_engines_for_gpus_are_built_without_one(assembler, rng, tmp_path):
    engine = build(perceptron(rng, bfloat16), ["cpu", "cuda:sm_90a"])
    assert engine.targets == ("cpu", "cuda:sm_90a") and engine.target == "cpu"
    engine.save(tmp_path / "two.engine")
    loaded = Engine.read(tmp_path / "two.engine", "cuda")
    assert loaded.target == "cuda:sm_90a" and loaded.features == ("sm_90a",)
    assert [len(step.choices) for step in loaded.plan.steps][-1] == 1
    names = [candidate["name"] for candidate in loaded.plan.steps[0].evidence["candidates"]]
    assert set(names) == {"tiled matmul", "hopper matmul"}
    x = np.ones((3, 24), bfloat16.numpy)
    assert Engine.load(tmp_path / "two.engine")(x).shape == (3, 16)
    with pytest.raises(EngineTargetError, match="has no program for cuda:sm_80: it has cpu, cuda:sm_90a"):
        Engine.read(tmp_path / "two.engine", "cuda:sm_80")


def test_equal_builds_give_equal_files(assembler, rng, tmp_path):
    graph = perceptron(rng)
    for name in ("a", "b"):
        build(graph, ["cpu", "cuda:sm_80"]).save(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_files_of_version_2_are_read(rng, tmp_path):
    package = build(perceptron(rng))._package
    write_package(Package({**package.manifest, "version": 2}, package.weights, package.graph, package.objects),
                  tmp_path / "old.engine")  # fmt: skip
    assert Engine.load(tmp_path / "old.engine").target == "cpu"
    assert file.READABLE == (2, file.VERSION, file.VERSION_OF_PARTS)


def test_a_launch_of_another_program_is_refused(driver, rng):
    package = build(perceptron(rng), "cuda:sm_90a")._package
    manifest = json.loads(json.dumps(package.manifest))
    for kernel in manifest["programs"][0]["kernels"].values():
        kernel["launch"]["shared_bytes"] += 16
    with pytest.raises(EngineDamagedError, match="the machine code belongs to another plan"):
        Engine(Package(manifest, package.weights, package.graph, package.objects)).run({})


@pytest.mark.parametrize("length", [6, 12, 18])
def test_random_graphs_through_the_kernels_for_gpus(driver, rng, length):
    drawn = RandomGraph(int(rng.integers(2**32)), length)
    engine = build(drawn.graph, "cuda:sm_90a")
    for batch, sequence in ((1, 1), (2, 3), (5, 8)):
        inputs = {name: array.astype(np.float32) for name, array in drawn.inputs(batch, sequence).items()}
        results, wanted = engine.run(inputs), run(drawn.graph, inputs)
        bounds = graph_bounds(drawn.graph, inputs, wanted)
        for name, exact in wanted.items():
            error = np.max(np.abs(np.asarray(results[name]) - exact))
            assert error <= bounds[name], (name, error, bounds[name])


@pytest.mark.parametrize("batch", [37, "batch"])
def test_hopper_products_in_an_engine(driver, rng, batch):
    """With an epilogue of several operands, for a known and a run-time number of rows."""
    b = GraphBuilder("product")
    rows = b.symbol("batch", 1, 100) if batch == "batch" else batch
    x, r = b.input("x", bfloat16, (rows, 72)), b.input("r", bfloat16, (rows, 24))
    w = rng.standard_normal((72, 24)).astype(bfloat16.numpy)
    y = b.op("add", [b.op("relu", [b.op("add", [b.op("matmul", [x, b.constant(w)]), b.constant(w[0])])]), r])
    b.output(y, "y")
    graph = b.finish()
    engine = build(graph, "cuda:sm_90a")
    assert engine.plan.steps[0].evidence["chosen"] == "hopper matmul"
    for count in (37,) if batch == 37 else (1, 70):
        inputs = {name: rng.standard_normal((count, n)).astype(bfloat16.numpy) for name, n in (("x", 72), ("r", 24))}
        exact = run(graph, inputs)["y"]
        found = engine.run(inputs)["y"].astype(np.float64)
        assert np.max(np.abs(found - exact)) <= 2.0**-7 * np.max(np.abs(exact))


@pytest.mark.parametrize("rows", [37, "rows"])
def test_gated_products_in_an_engine(driver, rng, rows):
    """Both halves in one kernel whose weights are interleaved, with forms for ranges of rows."""
    b = GraphBuilder("gated")
    count = b.symbol("rows", 1, 300) if rows == "rows" else rows
    x = b.input("x", bfloat16, (count, 64))
    gate, up = (b.constant(rng.standard_normal((64, 48)).astype(bfloat16.numpy)) for _ in range(2))
    y = b.op("multiply", [b.op("silu", [b.op("matmul", [x, gate])]), b.op("matmul", [x, up])])
    b.output(b.op("gelu", [y]), "y")
    graph = b.finish()
    engine = build(graph, "cuda:sm_90a")
    (step,) = engine.plan.steps
    assert step.evidence["chosen"] == "hopper gated matmul" and (len(step.choices) > 1) == (rows == "rows")
    for number in (37,) if rows == 37 else (1, 70):
        inputs = {"x": rng.standard_normal((number, 64)).astype(bfloat16.numpy)}
        exact = run(graph, inputs)["y"]
        found = engine.run(inputs)["y"].astype(np.float64)
        assert np.max(np.abs(found - exact)) <= 2.0**-7 * np.max(np.abs(exact))


def test_gelu_of_half_precision_products(driver, rng):
    """With an exact tanh, what is left of the error is that of the polynomial and one rounding."""
    b = GraphBuilder("gelu")
    x = b.input("x", float16, (64, 64))
    w = b.constant((rng.standard_normal((64, 64)) * np.geomspace(0.01, 1, 64)).astype(np.float16))
    b.output(b.op("gelu", [b.op("matmul", [x, w])]), "y")
    graph = b.finish()
    engine = build(graph, "cuda:sm_90a")
    assert engine.plan.steps[0].evidence["chosen"] == "hopper matmul"
    inputs = {"x": rng.standard_normal((64, 64)).astype(np.float16)}
    exact = run(graph, inputs)["y"]
    error = np.abs(engine.run(inputs)["y"].astype(np.float64) - exact)
    argument = np.abs(inputs["x"].astype(np.float64) @ graph.constants[w].astype(np.float64))
    assert np.all(error <= 2.0**-11 * np.abs(exact) + 6e-5 * argument + 1e-6)


def test_a_graph_for_each_shape(driver, rng):
    graph = perceptron(rng)
    engine = build(graph, "cuda:sm_90a")
    for batch in (3, 130, 3, 17, 130, 3, 17):
        x = rng.standard_normal((batch, 24), np.float32)
        np.testing.assert_allclose(engine(x), run(graph, {"x": x})["y"], rtol=1e-4, atol=1e-5)
    captures = engine._session.graphs.captures
    assert captures == 3  # when they came for the second time
    again = rng.standard_normal((17, 24), np.float32)
    engine(again)
    assert engine._session.graphs.captures == captures


@pytest.mark.parametrize("fail", [False, True])
def test_graphs_follow_memory_that_moves(driver, rng, fail):
    from tilewright.runtime.cuda.memory import DeviceArray

    driver.updates_fail = fail
    graph = perceptron(rng)
    engine = build(graph, "cuda:sm_90a")
    engine._session.graphs.variants = 1
    out, kept = DeviceArray((5, 16), np.float32), []
    for _ in range(3):
        x = rng.standard_normal((5, 24), np.float32)
        kept.append(DeviceArray.from_numpy(x))
        for _ in range(2):
            assert engine.run({"x": kept[-1]}, out={"y": out})["y"] is out
            np.testing.assert_allclose(out.numpy(), run(graph, {"x": x})["y"], rtol=1e-4, atol=1e-5)
    assert driver.calls["cuGraphExecUpdate"] == 2
    assert driver.calls["cuGraphInstantiate"] == (3 if fail else 1)


def test_memory_in_a_few_places_in_turn(driver, rng):
    from tilewright.runtime.cuda.memory import DeviceArray

    graph = perceptron(rng)
    engine = build(graph, "cuda:sm_90a")
    x, outs = rng.standard_normal((5, 24), np.float32), [DeviceArray((5, 16), np.float32) for _ in range(3)]
    given = DeviceArray.from_numpy(x)
    for _ in range(3):
        for out in outs:
            engine.run({"x": given}, out={"y": out})
            np.testing.assert_allclose(out.numpy(), run(graph, {"x": x})["y"], rtol=1e-4, atol=1e-5)
    assert engine._session.graphs.captures == 3 and "cuGraphExecUpdate" not in driver.calls


@pytest.mark.parametrize("inference", [False, True])
def test_tensors_that_were_seen_before(driver, rng, monkeypatch, inference):
    """A repeated call looks nothing up again; other tensors, sizes and types are checked as the first ones were."""
    torch = pytest.importorskip("torch")
    from tilewright.runtime.cuda import repeated_calls, streams

    graph = cached(rng)
    engine = build(graph, "cuda:sm_90a")
    session = engine._session
    # To the stand-in the host's tensors, whose GPU has the number -1, are those of a GPU.
    session._repeats = repeated_calls.Repeats(session.plan, -1)
    monkeypatch.setattr(streams, "current_stream", lambda library: lambda ordinal: 7)
    with torch.inference_mode(inference):
        cache, index = torch.from_numpy(rng.standard_normal((5, 8), np.float32)).clone(), torch.tensor([2])
        x = torch.ones(1, 8)
    engine.run({"x": x, "cache": cache, "index": index})
    bound = 0
    original = session._bind

    def counted(*arguments):
        nonlocal bound
        bound += 1
        return original(*arguments)

    monkeypatch.setattr(session, "_bind", counted)
    for number in range(3):
        with torch.inference_mode(inference):
            x.fill_(number)
        results = engine.run({"cache": cache, "index": index, "x": x})
        assert list(results) == [spec.name for spec in engine.outputs]
        assert results["total"].tolist() == pytest.approx(cache.sum(0).tolist(), abs=1e-5)
        assert cache[2].tolist() == [number] * 8
    assert bound == 0
    with pytest.raises(InputError, match="built for float32"):
        engine.run({"x": x.double(), "cache": cache, "index": index})
    with pytest.raises(ShapeError):
        engine.run({"x": x.reshape(8), "cache": cache, "index": index})
    other = torch.full((1, 8), 9.0)
    engine.run({"x": other, "cache": cache, "index": index})
    assert bound == 3 and cache[2].tolist() == [9.0] * 8
    session.graphs.limit = 1  # a graph that is remembered may be given up for another
    for number in range(4):
        for given in (x, other):
            engine.run({"x": given, "cache": cache, "index": index})
            assert cache[2].tolist() == given[0].tolist(), number
    assert bound == 3 and len(session.graphs._graphs) == 1
    with torch.inference_mode(inference):
        other.resize_(8)
    with pytest.raises(ShapeError):
        engine.run({"x": other, "cache": cache, "index": index})
    passing = torch.ones(1, 8)
    engine.run({"x": passing, "cache": cache, "index": index})
    del passing
    with pytest.raises(InputError, match="cannot read"):
        engine.run({"x": None, "cache": cache, "index": index})
    with pytest.raises(InputError, match="on meta, the engine runs on cuda:0"):
        engine.run({"x": torch.ones(1, 8, device="meta"), "cache": cache, "index": index})


def test_sizes_within_the_range_allocate_nothing(driver, rng):
    from tilewright.runtime.cuda.memory import DeviceArray

    engine = build(perceptron(rng), "cuda:sm_90a")
    calls = [
        (DeviceArray.from_numpy(rng.standard_normal((n, 24), np.float32)), DeviceArray((n, 16), np.float32))
        for n in (1, 3, 80, 200)
    ]
    engine.run({"x": calls[0][0]}, out={"y": calls[0][1]})
    before = driver.calls["cuMemAlloc"]
    for given, out in calls:
        engine.run({"x": given}, out={"y": out})
    assert driver.calls["cuMemAlloc"] == before


def test_memory_goes_back_with_the_last_user(driver, rng):
    """At once, not when Python looks for cycles: the next engine may need it."""
    gc.collect()
    gc.disable()
    try:
        before = len(driver.memory)
        engine = build(perceptron(rng), "cuda:sm_90a")
        found = engine.run({"x": rng.standard_normal((3, 24)).astype(np.float32)})
        assert len(driver.memory) > before
        del engine, found
        assert len(driver.memory) == before
    finally:
        gc.enable()


def test_bounded_cache_of_graphs(driver, rng):
    engine = build(perceptron(rng), "cuda:sm_90a")
    engine(np.zeros((200, 24), np.float32))
    engine._session.graphs.limit = 2
    for batch in (1, 2, 3, 4):
        engine(np.zeros((batch, 24), np.float32))
    assert len(engine._session.graphs._graphs) <= 2


def test_inputs_that_are_updated(driver, rng):
    engine = build(cached(rng), "cuda:sm_90a")
    cache, x = rng.standard_normal((5, 8), np.float32), np.ones((1, 8), np.float32)
    wanted = cache.copy()
    wanted[2] = 1
    total = engine.run({"x": x, "cache": cache, "index": np.array([2])})["total"]
    np.testing.assert_array_equal(cache, wanted)
    np.testing.assert_allclose(total, wanted.sum(0), rtol=1e-5, atol=1e-6)
    with pytest.raises(InputError, match="index out of range"):
        engine.run({"x": x, "cache": cache, "index": np.array([7])})


def test_what_is_wrong_is_reported(driver, rng):
    engine = build(perceptron(rng), "cuda:sm_90a")
    with pytest.raises(ShapeError, match="outside the engine's range"):
        engine(np.zeros((201, 24), np.float32))
    with pytest.raises(InputError, match="built for float32"):
        engine(np.zeros((2, 24)))
    with pytest.raises(ShapeError, match="2 dimensions|1 dimensions"):
        engine(np.zeros(24, np.float32))
    out = np.empty((2, 16), np.float32)
    assert engine.run({"x": np.ones((2, 24), np.float32)}, out={"y": out})["y"] is out
    np.testing.assert_allclose(out.sum(1), 1, rtol=1e-5)


def test_steps_are_timed(driver, rng):
    engine = build(perceptron(rng), "cuda:sm_90a")
    rows = engine.profile({"x": np.ones((2, 24), np.float32)}, runs=3)
    assert len(rows) == len(engine.plan.steps)
    # Every pair of events is half a millisecond apart there, those around the whole graph, too.
    assert sum(row["milliseconds"] for row in rows) == pytest.approx(0.5)


@pytest.mark.parametrize("lanes", [False, True])
def test_the_first_kernels_of_a_call_wait_for_all_calls_before(lanes, driver, rng, monkeypatch):
    """The others may start early: they meet kernels of their own call alone."""
    started: list[bool] = []
    stand_in, program = session.launcher, GpuBinary.program

    def launcher(found, device):
        start = stand_in(found, device)
        return lambda *arguments: (started.append(found.dependent_launch), start(*arguments))

    monkeypatch.setattr(session, "launcher", launcher)
    monkeypatch.setattr(GpuBinary, "program", lambda *given: replace(program(*given), dependent_launch=True))
    graph = experts(rng) if lanes else perceptron(rng)
    engine = build(graph, "cuda:sm_90a")
    inputs = {"x": rng.standard_normal((16, 512) if lanes else (3, 24)).astype(np.float32)}
    engine.run(inputs)
    begun = [not step.after and step.lane not in {other.lane for other in engine.plan.steps[:number]}
             for number, step in enumerate(engine.plan.steps)]  # fmt: skip
    assert sum(begun) == len({step.lane for step in engine.plan.steps}) == (3 if lanes else 1) < len(begun)
    assert started[: len(begun)] == [not first for first in begun]
