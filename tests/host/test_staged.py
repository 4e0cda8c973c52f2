"""Engines in parts: sizes that only the run knows, ops of the host, graphs inside, files, errors."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright import load
from tilewright.build.builder import build
from tilewright.dtypes import float32, float64, int1, int64
from tilewright.engine.engine import Engine, staged_symbol
from tilewright.errors import EngineDamagedError, InputError, InvalidIRError, OutOfMemoryError, ShapeError
from tilewright.graph import reference, serialize
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph
from tilewright.graph.partition import partition
from tilewright.graph.printer import print_graph


def reshaped() -> Graph:
    """exp(x) in a shape that is an input, the places where it is above 1, and a sum with a size."""
    b = GraphBuilder("reshaped")
    rows = b.symbol("rows", 1, 64)
    x, shape = b.input("x", float32, (rows, 4)), b.input("shape", int64, (2,))
    extents = b.op(
        "concat", [b.op("reshape", [b.op("dimension", expression=rows)], shape=(1,)), b.constant([4])], axis=0
    )
    target = b.op("resolved_shape", [shape, extents], count=2, what="the input 'shape'")
    sizes = [b.run_time_symbol("size") for _ in range(2)]
    for number, size in enumerate(sizes):
        b.op("extent", [target], element=number, size=size, what=f"element {number} of 'shape'")
    y = b.op("reshape", [b.op("exp", [x])], shape=sizes)
    places = b.op("nonzero", [b.op("greater", [y, 1.0])], shape=(2, b.run_time_symbol("count")))
    first = b.op("cast", [b.op("dimension", expression=sizes[0])], dtype=float32)
    b.output(b.op("add", [b.op("cast", [places], dtype=float32), first]), "places")
    b.output(y, "y")
    return b.finish()


def feeds(rng: np.random.Generator, rows: int, shape: list[int], sign: float = 1.0) -> dict[str, np.ndarray]:
    return {"x": sign * np.abs(rng.standard_normal((rows, 4))).astype(np.float32), "shape": np.array(shape)}


def check(engine: Engine, graph: Graph, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    expected, found = reference.run(graph, inputs, None), engine.run(inputs)
    assert found.keys() == expected.keys()
    for name, wanted in expected.items():
        assert found[name].dtype == wanted.dtype
        np.testing.assert_allclose(found[name], wanted, rtol=1e-5, atol=1e-6)
    return found


@pytest.fixture(scope="module")
def engine() -> Engine:
    return build(reshaped(), "cpu")


def test_the_graph_is_cut_where_sizes_are_computed():
    staged = partition(reshaped())
    assert [node.op for node in staged.nodes if node.op in ("part", "nonzero")] == ["part", "nonzero", "part"]
    assert len(staged.parts) == 2 and "%size.size_1: i1[size_1]" in print_graph(staged.parts[0])


def test_sizes_of_each_call(engine: Engine, rng: np.random.Generator):
    graph = reshaped()
    for rows, shape in ((6, [-1, 8]), (6, [24, 1]), (1, [2, 2]), (6, [0, 4]), (64, [16, -1]), (6, [3, 8])):
        check(engine, graph, feeds(rng, rows, shape))
        check(engine, graph, feeds(rng, rows, shape, -1.0))  # nothing is above 1: an empty result
    assert check(engine, graph, feeds(rng, 6, [4, 6], -1.0))["places"].shape == (2, 0)


def test_saved_loaded_and_built_again(engine: Engine, tmp_path: Path, rng: np.random.Generator):
    path = tmp_path / "parts.engine"
    engine.save(path)
    for loaded in (Engine.load(path), Engine.read(path), load(path, rebuild="always")):
        check(loaded, reshaped(), feeds(rng, 5, [2, -1]))
        check(loaded, reshaped(), feeds(rng, 5, [10, 2], -1.0))
        assert any("nonzero" in remark and "NumPy" in remark for remark in loaded.remarks)
        assert len(loaded.plan.steps) >= 2 and loaded.inputs == engine.inputs


def test_results_in_given_memory_and_of_torch(engine: Engine, rng: np.random.Generator):
    import torch

    given = feeds(rng, 6, [3, 8])
    y = np.empty((3, 8), np.float32)
    assert engine.run(given, {"y": y})["y"] is y
    np.testing.assert_allclose(y, np.exp(given["x"]).reshape(3, 8), rtol=1e-5)
    found = engine.run({name: torch.from_numpy(array) for name, array in given.items()})
    assert isinstance(found["y"], torch.Tensor) and isinstance(found["places"], torch.Tensor)
    np.testing.assert_array_equal(found["y"].numpy(), y)
    with pytest.raises(ShapeError, match="output 'y' has shape"):
        engine.run(given, {"y": np.empty((4, 6), np.float32)})


def test_errors_name_the_value(engine: Engine, rng: np.random.Generator):
    with pytest.raises(ShapeError, match=r"the input 'shape' is \[5, 5\], which has 25 elements"):
        engine.run(feeds(rng, 6, [5, 5]))
    with pytest.raises(ShapeError, match="nothing in the place of -1"):
        engine.run(feeds(rng, 6, [-1, 7]))
    with pytest.raises(ShapeError, match="one may be -1"):
        engine.run(feeds(rng, 6, [-1, -1]))
    with pytest.raises(ShapeError, match=r"1\.\.64"):
        engine.run(feeds(rng, 65, [-1, 1]))
    with pytest.raises(InputError, match="missing: shape"):
        engine.run({"x": np.zeros((1, 4), np.float32)})


def test_a_step_is_profiled(engine: Engine, rng: np.random.Generator):
    rows = engine.profile(feeds(rng, 64, [16, 16]), runs=2)
    assert len(rows) == len(engine.plan.steps) and all(row["milliseconds"] >= 0 for row in rows)


def test_a_damaged_file_is_refused(engine: Engine):
    package = engine._package
    (program,) = package.manifest["programs"]
    changed = {**program, "parts": program["parts"][::-1]}
    with pytest.raises(EngineDamagedError, match="belong"):
        Engine(
            type(package)({**package.manifest, "programs": [changed]}, package.weights, package.graph, package.objects)
        )


def test_serialized_graphs_inside():
    graph = loop_graph()
    data, arrays = serialize.to_data(graph)
    again = serialize.from_data(data, arrays)
    given = {"x": np.arange(3, dtype=np.float32), "count": np.array(2)}
    for name, wanted in reference.run(graph, given).items():
        np.testing.assert_array_equal(reference.run(again, given)[name], wanted)


def loop_graph() -> Graph:
    """x doubled and made one longer in each of `count` rounds; the sums of the rounds."""
    inner = GraphBuilder("round")
    size = inner.symbol("length", 0)
    iteration, going = inner.input("iteration", int64, ()), inner.input("going", int1, ())
    value = inner.input("value", float32, (size,))
    one = inner.constant(np.ones(1, np.float32), "one")
    longer = inner.op("concat", [inner.op("add", [value, value]), one], axis=0)
    inner.output(inner.op("copy", [going]), "going_on")
    inner.output(longer, "longer")
    inner.output(inner.op("reduce_sum", [longer], axes=(0,)), "sum")
    del iteration
    b = GraphBuilder("rounds")
    x, count = b.input("x", float32, (3,)), b.input("count", int64, ())
    sizes = b.run_time_symbol("final"), b.run_time_symbol("trips")
    types = ((float32, (sizes[0],)), (float32, (sizes[1],)))
    node = b.node("loop", [count, None, x], body=inner.finish(), carried=1, types=types)
    b.output(node.outputs[0], "x_out")
    b.output(b.op("add", [node.outputs[1], 1.0]), "sums")
    return b.finish()


def test_a_loop_with_growing_values(tmp_path: Path):
    graph, path = loop_graph(), tmp_path / "loop.engine"
    build(graph, "cpu").save(path)
    for engine in (Engine.load(path), load(path, rebuild="always")):
        for trips in (0, 1, 2, 7):
            x, sums = np.arange(3, dtype=np.float32), []
            for _ in range(trips):
                x = np.append(2 * x, np.float32(1))
                sums.append(x.sum() + 1)
            found = engine.run({"x": np.arange(3, dtype=np.float32), "count": np.array(trips)})
            np.testing.assert_allclose(found["x_out"], x)
            np.testing.assert_allclose(found["sums"], np.array(sums, np.float32))


def test_one_part_stays_one_program():
    b = GraphBuilder("plain")
    b.output(b.op("exp", [b.input("x", float32, (4,))]), "y")
    engine = build(b.finish(), "cpu")
    (program,) = engine._package.manifest["programs"]
    assert "parts" not in program and engine._package.manifest["version"] == 3


def test_an_op_without_a_kernel_is_run_by_numpy(tmp_path: Path):
    b = GraphBuilder("volumes")
    x = b.input("x", float32, (1, 2, 8, 4, 8, 4))
    windows = {"kernel": (2,) * 4, "strides": (2,) * 4, "padding": ((0, 0),) * 4, "dilation": (1,) * 4}
    b.output(b.op("exp", [b.op("max_pool", [b.op("negate", [x])], source="pool", **windows)]), "y")
    graph = b.finish()
    build(graph, "cpu").save(tmp_path / "volumes.engine")
    for engine in (
        Engine.load(tmp_path / "volumes.engine"),
        load(tmp_path / "volumes.engine", rebuild="always"),
    ):
        check(engine, graph, {"x": np.random.default_rng(1).standard_normal((1, 2, 8, 4, 8, 4)).astype(np.float32)})
        (remark,) = [remark for remark in engine.remarks if "max_pool" in remark]
        assert "(pool): run by NumPy, slowly: " in remark
    assert any("spatial dimensions" in remark for remark in Engine.read(tmp_path / "volumes.engine").remarks)


def test_a_tensor_without_elements_is_no_reason_to_refuse():
    b = GraphBuilder("empty")
    x, y = b.input("x", float32, (0, 4)), b.input("y", float32, (3, 4))
    b.output(b.op("concat", [b.op("exp", [x]), b.op("exp", [y])], axis=0), "z")
    b.output(b.op("reduce_max", [x], axes=(0,)), "none")
    engine = build(b.finish(), "cpu")
    found = engine.run({"x": np.zeros((0, 4), np.float32), "y": np.zeros((3, 4), np.float32)})
    np.testing.assert_array_equal(found["z"], np.ones((3, 4)))
    np.testing.assert_array_equal(found["none"], np.full(4, -np.inf))


def test_threads_share_an_engine(engine: Engine):
    from concurrent.futures import ThreadPoolExecutor

    graph = reshaped()
    calls = [feeds(np.random.default_rng(n), n + 1, [-1, 2]) for n in range(16)]
    expected = [reference.run(graph, call, None) for call in calls]
    with ThreadPoolExecutor(4) as pool:
        for wanted, found in zip(expected, pool.map(engine.run, calls), strict=True):
            for name, array in wanted.items():
                np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6)


def cache_graph() -> Graph:
    """How many of x are positive, added to a cache, which is also a result; x and the places as they are."""
    b = GraphBuilder("cache")
    cache, x = b.input("cache", float32, (4,)), b.input("x", float32, (3,))
    places = b.op("nonzero", [b.op("greater", [x, 0.0])], shape=(1, b.run_time_symbol("count")))
    total = b.op("reduce_sum", [b.op("cast", [places], dtype=float32)], axes=(0, 1))
    new = b.op("add", [cache, total])
    b.mutate(cache, new)
    b.output(b.op("copy", [total]), "total")
    b.output(places, "places")
    b.output(x, "same")
    b.output(new, "new")
    return b.finish()


@pytest.fixture(scope="module")
def cached() -> Engine:
    return build(cache_graph(), "cpu")


X = np.array([1, -1, 2], np.float32)


def test_an_updated_input(cached: Engine):
    import torch

    memory = np.zeros(4, np.float32)
    for _ in range(2):
        found = cached.run({"cache": memory, "x": X})
        assert found["new"] is memory and not np.shares_memory(found["same"], X)
    np.testing.assert_array_equal(memory, np.full(4, 4.0))
    tensor, total = torch.zeros(4), torch.zeros(())
    given = {"cache": tensor, "x": torch.from_numpy(X)}
    versions = tensor._version, total._version
    assert cached.run(given, {"total": total})["new"] is tensor and total.item() == 2
    assert tensor._version > versions[0] and total._version > versions[1]  # what autograd knows changes by


def test_memory_that_is_written_is_shared_with_none(cached: Engine):
    memory, places = np.zeros(7, np.float32), np.zeros((1, 2), np.int64)
    plain = {"cache": np.zeros(4, np.float32), "x": X}
    with pytest.raises(InputError, match="input 'cache' is written in place and shares memory with input 'x'"):
        cached.run({"cache": memory[:4], "x": memory[2:5]})
    with pytest.raises(InputError, match="output 'same' is written in place and shares memory with input 'x'"):
        cached.run(plain, {"same": X})
    with pytest.raises(InputError, match="output 'new' is the input 'cache'"):
        cached.run(plain, {"new": np.zeros(4, np.float32)})
    with pytest.raises(InputError, match="has no memory for it"):
        cached.run(plain, {"total": [0.0]})
    with pytest.raises(InputError, match="unknown output 'sum'"):
        cached.run(plain, {"sum": None})
    with pytest.raises(ShapeError, match="output 'places' has shape"):
        cached.run(plain, {"places": np.zeros((1, 3), np.int64)})
    np.testing.assert_array_equal(plain["cache"], np.zeros(4))  # a refused call changes nothing
    with pytest.raises(InputError, match="threads is a whole number"):
        cached.run(plain, threads=0)
    cached.run(plain, {"places": places})
    np.testing.assert_array_equal(places, [[0, 2]])


def test_updated_inputs_exchange_their_values():
    b = GraphBuilder("exchange")
    first, second, count = b.input("first", float32, (4,)), b.input("second", float32, (4,)), b.input("n", int64, (1,))
    size = b.run_time_symbol("size")
    b.op("extent", [count], element=0, size=size, what="n")
    b.mutate(first, second)
    b.mutate(second, first)
    b.output(b.op("broadcast_to", [b.constant(np.float32(1))], shape=(size,)), "ones")
    b.output(first, "before")
    engine = build(b.finish(), "cpu")
    x, y = np.arange(4, dtype=np.float32), np.arange(4, 8, dtype=np.float32)
    found = engine.run({"first": x, "second": y, "n": np.array([3])})
    np.testing.assert_array_equal(np.stack([x, y, found["before"]]), [[4, 5, 6, 7], [0, 1, 2, 3], [0, 1, 2, 3]])


def test_forged_graphs_are_refused(cached: Engine):
    """A plan that says other names, types or updates than the graph that the host runs, or another part's."""
    package = cached._package
    (program,) = package.manifest["programs"]

    def changes() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        for name in ("swap inputs", "type", "update", "part", "outputs", "operand"):
            entry, graph = copy.deepcopy(program), json.loads(package.graph)
            plan, (node,) = entry["plan"], [n for n in graph["graph"]["nodes"] if n["op"] == "part"]
            if name == "swap inputs":
                plan["inputs"].reverse()
            elif name == "type":
                plan["outputs"][1]["dtype"] = "int32"
            elif name == "update":
                del plan["inputs"][0]["mutates"], plan["outputs"][3]["mutates"]
            elif name == "part":
                node["attributes"]["number"] = 1
            elif name == "outputs":
                plan["outputs"][0]["mutates"] = "cache"
            else:
                node["inputs"][0] = node["inputs"][1]
            yield entry, graph

    for entry, graph in changes():
        text = json.dumps(graph).encode()
        entry["symbol"] = staged_symbol(entry["plan"], [part["symbol"] for part in entry["parts"]], text)
        forged = type(package)({**package.manifest, "programs": [entry]}, package.weights, text, package.objects)
        with pytest.raises((EngineDamagedError, InvalidIRError)):
            Engine(forged).run({"cache": np.zeros(4, np.float32), "x": X})


def test_absurd_sizes_are_refused_at_the_call():
    b = GraphBuilder("absurd")
    x, pads, limit = b.input("x", float32, (3, 4)), b.input("pads", int64, (4,)), b.input("limit", float64, ())
    shape = b.run_time_symbol("rows"), b.run_time_symbol("columns")
    b.output(b.op("pad_at", [x, pads], shape=shape, mode="constant", what="the pads"), "padded")
    count = b.op("range_count", [b.constant(np.float64(0)), limit, b.constant(np.float64(1))], what="the range")
    b.output(count, "count")
    engine = build(b.finish(), "cpu")

    def run(pad: int, limit: float) -> None:
        engine.run({"x": np.zeros((3, 4), np.float32), "pads": np.array([pad, 0, 0, 0]), "limit": np.array(limit)})

    run(1, 5.0)
    with pytest.raises(ShapeError, match="the pads: a tensor of shape .* has more than"):
        run(2**62, 5.0)
    for wrong in (1e300, np.inf, np.nan):
        with pytest.raises(ShapeError, match="the range: a"):
            run(1, wrong)


def test_memory_that_the_system_does_not_give(cached: Engine, monkeypatch: pytest.MonkeyPatch):
    def fail(*arguments: object) -> None:
        raise MemoryError("Unable to allocate 8.00 TiB")

    monkeypatch.setattr(cached._session, "run", fail)
    with pytest.raises(OutOfMemoryError, match=r"a run of the engine needs more memory .*8\.00 TiB"):
        cached.run({"cache": np.zeros(4, np.float32), "x": X})
