"""Building engines from small graphs: where tensors lie, mutations, dynamic sizes, rebuilding, evidence."""

import json
import logging
import threading

import numpy as np
import pytest

from tilewright import Engine, load
from tilewright.build import kernels
from tilewright.build.builder import build
from tilewright.dtypes import float32, int64
from tilewright.errors import EngineDamagedError, EngineTargetError, ShapeError, TargetError
from tilewright.graph import reference
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph
from tilewright.host import host_cpu
from tilewright.passes.grid_axes import SAME_AXES
from tilewright.settings import settings
from tilewright.symbolic import floor_divide, lift, simplify
from tilewright.targets.registry import get_target


@pytest.fixture
def generator():
    seed = int(np.random.SeedSequence().entropy % 2**32)
    print(f"seed {seed}")
    return np.random.default_rng(seed)


def perceptron(generator: np.random.Generator) -> Graph:
    """Two layers with a residual: x [batch, 24] -> [batch, 24]."""
    b = GraphBuilder("perceptron")
    batch = b.symbol("batch", 1, 300)
    x = b.input("x", float32, (batch, 24))
    up = b.constant(generator.standard_normal((40, 24), np.float32), "up.weight")
    down = b.constant(generator.standard_normal((40, 24), np.float32), "down.weight")
    bias = b.constant(generator.standard_normal(40, np.float32), "up.bias")
    hidden = b.op("relu", [b.op("add", [b.op("matmul", [x, up], transpose_b=True, source="up"), bias])])
    b.output(b.op("add", [b.op("matmul", [hidden, down], source="down"), x]), "y")
    return b.finish()


def check(engine: Engine, graph: Graph, inputs: dict[str, np.ndarray], tolerance: float = 1e-5) -> None:
    """The engine's outputs and mutated inputs against the float64 reference."""
    wanted = reference.run(graph, inputs)
    given = {name: array.copy() for name, array in inputs.items()}
    outputs = engine.run(given)
    for name in graph.output_names:
        scale = max(1.0, float(np.abs(wanted[name]).max(initial=0)))
        np.testing.assert_allclose(outputs[name], wanted[name], rtol=0, atol=tolerance * scale, err_msg=name)
    for target in graph.mutations:
        np.testing.assert_allclose(given[target.name], wanted[target.name], rtol=0, atol=tolerance, err_msg=target.name)
    for name in inputs.keys() - {target.name for target in graph.mutations}:
        np.testing.assert_array_equal(given[name], inputs[name])


def test_one_engine_for_every_batch(generator):
    graph = perceptron(generator)
    engine = build(graph)
    for batch in (1, 3, 17, 64, 300):
        check(engine, graph, {"x": generator.standard_normal((batch, 24), np.float32)})
    with pytest.raises(ShapeError, match=r"1\.\.300"):
        engine(np.zeros((301, 24), np.float32))


def test_saved_engine_and_its_source_graph(generator, tmp_path):
    graph = perceptron(generator)
    build(graph, source="somewhere").save(tmp_path / "p.engine")
    engine = Engine.load(tmp_path / "p.engine")
    inputs = {"x": generator.standard_normal((5, 24), np.float32)}
    check(engine, graph, inputs)
    assert (engine.source, engine.name, engine.target) == ("somewhere", "perceptron", "cpu")
    again = engine.source_graph()
    for name, array in reference.run(graph, inputs).items():
        np.testing.assert_allclose(reference.run(again, inputs)[name], array, rtol=1e-12, atol=1e-12)
    stored = {value.name: array for value, array in again.constants.items()}
    for value, array in graph.constants.items():  # packed constants come back bit by bit
        np.testing.assert_array_equal(stored[value.name], array)


def test_evidence_is_kept(generator):
    engine = build(perceptron(generator))
    steps = engine.plan.steps
    assert len(steps) == 2
    for step in steps:
        assert step.evidence["chosen"] in [entry["name"] for entry in step.evidence["candidates"]]
        assert any("matmul" in operation for operation in step.operations)
        assert engine.kernel_name(step.choices[-1].kernel) == "matmul"
    json.dumps([step.evidence for step in steps])


def test_engines_show_what_they_take_and_give(generator):
    text = repr(build(perceptron(generator)))
    assert text == "<Engine perceptron for cpu: (x: float32 [batch, 24]) -> (y: float32 [batch, 24])>"


def test_errors_name_the_part_of_the_model(generator, monkeypatch):
    def fail(*arguments, **keywords):
        raise RuntimeError("no luck")

    monkeypatch.setattr("tilewright.build.kernels.KernelSet.choice", fail)
    with pytest.raises(RuntimeError, match="no luck") as caught:
        build(perceptron(generator))
    assert caught.value.__notes__ == ["while building 000-matmul-add-relu: matmul %matmul (up), add %add, relu %relu"]


def test_progress_names_stages_and_kernels(generator):
    events = []
    build(perceptron(generator), progress=lambda stage, item, seconds: events.append((stage, item, seconds)))
    stages = list(dict.fromkeys(stage for stage, _, _ in events))
    assert stages == ["optimize", "fuse", "choose kernels", "plan memory", "compile", "link"]
    assert any(item == "matmul" and seconds > 0 for _, item, seconds in events)


def test_views_inputs_and_constants_as_outputs(generator):
    b = GraphBuilder("odd outputs")
    n = b.symbol("n", 1, 50)
    x = b.input("x", float32, (n, 6))
    table = b.constant(generator.standard_normal((4, 3), np.float32), "table")
    doubled = b.op("add", [x, x])
    for name, value in {
        "same": x,
        "constant": table,
        "doubled": doubled,
        "doubled_again": doubled,
        "flat": b.op("reshape", [doubled], shape=(n * 6,)),
        "input_flat": b.op("reshape", [x], shape=(n * 6,)),
    }.items():
        b.output(value, name)
    graph = b.finish()
    engine = build(graph)
    for rows in (1, 7, 50):
        check(engine, graph, {"x": generator.standard_normal((rows, 6), np.float32)})
    outputs = engine.run({"x": np.ones((2, 6), np.float32)})
    outputs["doubled"][:] = 0
    np.testing.assert_array_equal(outputs["doubled_again"], 2)


def cache_graph(read_old: bool, read_new: bool, return_new: bool, return_old: bool) -> Graph:
    """A static cache [1, 8, 4] whose rows at `position` are replaced."""
    b = GraphBuilder("cache")
    cache = b.input("cache", float32, (1, 8, 4))
    update = b.input("update", float32, (1, 2, 4))
    position = b.input("position", int64, (2,))
    new = b.op("scatter_update", [cache, position, b.op("add", [update, 1.0])], axis=1)
    b.mutate(cache, new)
    result = b.op("reduce_sum", [update], axes=(0, 1, 2), keepdims=False)
    if read_old:
        result = b.op("add", [result, b.op("reduce_sum", [cache], axes=(0, 1, 2), keepdims=False)])
    if read_new:
        result = b.op("multiply", [result, b.op("reduce_max", [new], axes=(0, 1, 2), keepdims=False)])
    b.output(result, "result")
    if return_new:
        b.output(new, "new")
    if return_old:
        b.output(cache, "old")
    return b.finish()


@pytest.mark.parametrize("case", range(16))
def test_a_static_cache_is_updated_in_place(generator, case):
    graph = cache_graph(*(bool(case & bit) for bit in (1, 2, 4, 8)))
    inputs = {
        "cache": generator.standard_normal((1, 8, 4), np.float32),
        "update": generator.standard_normal((1, 2, 4), np.float32),
        "position": np.array([5, 2]),
    }
    engine = build(graph)
    check(engine, graph, inputs)
    assert engine.inputs[0].mutates == "cache"
    if "new" in graph.output_names:
        assert engine.run(inputs)["new"] is inputs["cache"]


def test_an_old_value_read_through_the_new_one(generator):
    """new + old can only be computed after the update: the old value must have been saved."""
    b = GraphBuilder("both")
    cache = b.input("cache", float32, (8, 4))
    update = b.input("update", float32, (1, 4))
    position = b.input("position", int64, (1,))
    new = b.op("scatter_update", [cache, position, update], axis=0)
    b.mutate(cache, new)
    b.output(b.op("add", [new, cache]), "sum")
    graph = b.finish()
    inputs = {
        "cache": generator.standard_normal((8, 4), np.float32),
        "update": generator.standard_normal((1, 4), np.float32),
        "position": np.array([3]),
    }
    check(build(graph), graph, inputs)


@pytest.mark.parametrize("read_later", [False, True])
def test_a_computed_value_replaces_an_input(generator, read_later):
    b = GraphBuilder("counter")
    state = b.input("state", float32, (3, 5))
    x = b.input("x", float32, (3, 5))
    new = b.op("exp", [x])
    b.mutate(state, new)
    scaled = b.op("matmul", [x, b.op("permute", [new], order=(1, 0))])
    b.output(b.op("add", [scaled, b.op("reduce_sum", [state], axes=(0, 1))]) if read_later else scaled, "y")
    graph = b.finish()
    inputs = {name: generator.standard_normal((3, 5), np.float32) for name in ("state", "x")}
    check(build(graph), graph, inputs)


def test_two_inputs_exchange_their_contents(generator):
    b = GraphBuilder("swap")
    left, right = (b.input(name, float32, (4,)) for name in ("left", "right"))
    b.mutate(left, right)
    b.mutate(right, left)
    b.output(b.op("add", [left, right]), "sum")
    graph = b.finish()
    check(build(graph), graph, {name: generator.standard_normal(4, np.float32) for name in ("left", "right")})


def test_sizes_that_no_input_tells_are_refused():
    b = GraphBuilder("lost")
    n = b.symbol("n", 1, 8)
    b.output(b.op("iota", shape=(n,), axis=0, dtype=float32), "y")
    with pytest.raises(ShapeError, match="n are in no input's shape"):
        build(b.finish())


def test_unknown_targets_are_refused():
    b = GraphBuilder("double")
    x = b.input("x", float32, (4,))
    b.output(b.op("add", [x, x]))
    with pytest.raises(TargetError, match="unknown GPU architecture"):
        build(b.finish(), target="cuda:sm_1")


def test_reshapes_that_would_leave_elements_out_are_refused(generator, tmp_path):
    b = GraphBuilder("pairs")
    n = b.symbol("n", 2, 300)
    x = b.input("x", float32, (n, 4))
    pairs = b.op("reshape", [x], shape=(floor_divide(n, 2), 2, 4), source="pair (Pair), model.py:7")
    b.output(b.op("reduce_sum", [b.op("reshape", [pairs], shape=(2 * floor_divide(n, 2), 4))], axes=(1,)), "y")
    graph = b.finish()
    engine = build(graph)
    engine.save(tmp_path / "pairs.engine")
    for each in (engine, Engine.load(tmp_path / "pairs.engine")):
        check(each, graph, {"x": generator.standard_normal((6, 4), np.float32)})
        with pytest.raises(ShapeError, match=r"sizes n = 7: elements of the reshape .*model\.py:7\): 28, not 24;"):
            each.run({"x": np.zeros((7, 4), np.float32)})
    assert len(engine.plan.conditions) == 1


def test_engines_run_in_several_threads(generator):
    graph = perceptron(generator)
    engine = build(graph)
    failures = []

    def work(seed: int) -> None:
        own = np.random.default_rng(seed)
        for _ in range(20):
            try:
                check(engine, graph, {"x": own.standard_normal((int(own.integers(1, 300)), 24), np.float32)})
            except AssertionError as error:
                failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failures


def change_member(path, name: str, change) -> None:
    """Replace a member of an engine's zip, leaving the manifest as it is."""
    from tests.host.test_engine_fuzz import read_members, write_members

    members = read_members(path.read_bytes())
    members[name] = change(members[name])
    path.write_bytes(write_members(members))


def test_damaged_engines_are_built_again_on_request(generator, tmp_path):
    graph = perceptron(generator)
    path = tmp_path / "p.engine"
    build(graph, source="p.onnx").save(path)
    change_member(path, "kernels/plan.o", lambda data: data[:-1])
    with pytest.raises(EngineDamagedError, match=r"plan\.o has changed"):
        Engine.load(path)
    engine = load(path, rebuild=True)
    assert engine.source == "p.onnx"
    check(engine, graph, {"x": generator.standard_normal((9, 24), np.float32)})
    engine.save(path)
    check(Engine.load(path), graph, {"x": generator.standard_normal((9, 24), np.float32)})


def test_a_damaged_manifest_or_another_version_does_not_hinder_rebuilding(generator, tmp_path):
    graph = perceptron(generator)
    for name, change in [
        ("manifest.json", lambda data: data.replace(b'"version": 2', b'"version": 9')),
        ("manifest.sha256", lambda data: b""),
        ("manifest.json", lambda data: b"{}"),
    ]:
        path = tmp_path / "p.engine"
        build(graph).save(path)
        change_member(path, name, change)
        check(load(path, rebuild=True), graph, {"x": generator.standard_normal((2, 24), np.float32)})


def test_what_cannot_be_built_again_says_so(generator, tmp_path):
    path = tmp_path / "p.engine"
    build(perceptron(generator)).save(path)
    whole = path.read_bytes()
    change_member(path, "graph.json", lambda data: data.replace(b"matmul", b"natmul"))
    with pytest.raises(EngineDamagedError, match="cannot be built again"):
        load(path, rebuild=True)
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(EngineDamagedError, match="no complete zip"):
        load(path, rebuild=True)
    data = bytearray(whole)
    data[data.rindex(b'"up.')] ^= 1  # in the weights' header, which lies after the graph
    path.write_bytes(bytes(data))
    with pytest.raises(EngineDamagedError, match=r"weights\.safetensors has changed"):
        load(path, rebuild=True)


@pytest.mark.skipif(host_cpu().triple.startswith(("aarch64", "arm64")), reason="builds for another architecture")
def test_engines_for_other_cpus_are_built_saved_and_refused(generator, tmp_path):
    graph = perceptron(generator)
    engine = build(graph, target="cpu:neoverse-n1")
    inputs = {"x": generator.standard_normal((2, 24), np.float32)}
    assert "neon" in engine.features
    with pytest.raises(EngineTargetError, match="aarch64"):
        engine.run(inputs)
    engine.save(tmp_path / "arm.engine")
    with pytest.raises(EngineTargetError, match="aarch64"):
        Engine.load(tmp_path / "arm.engine")
    assert Engine.read(tmp_path / "arm.engine").plan == engine.plan
    check(load(tmp_path / "arm.engine", rebuild=True), graph, inputs)


@pytest.mark.usefixtures("compile_processes")
def test_kernels_are_compiled_in_processes_once_and_to_the_same_engine(generator, tmp_path, caplog, monkeypatch):
    b = GraphBuilder("tower")
    x = b.input("x", float32, (3, 16))
    for width in (16, 24, 40, 56, 72):
        weight = b.constant(generator.standard_normal((x.shape[1], width), np.float32))
        x = b.op("relu", [b.op("matmul", [x, weight])])
    b.output(x, "y")
    graph = b.finish()
    events: list[str] = []
    caplog.set_level(logging.INFO, "tilewright.engine")
    saved = []
    for name in ("together", "together", "alone"):
        if name == "alone":
            monkeypatch.setattr(kernels, "compile_ahead", lambda jobs, report: None)
        with settings.scope(cache_directory=tmp_path / name, threads=2):
            build(graph, progress=lambda stage, item, seconds: events.append(item)).save(tmp_path / "x.engine")
            saved.append((tmp_path / "x.engine").read_bytes())
    compiled = [record.getMessage() for record in caplog.records if "processes" in record.getMessage()]
    assert len(compiled) == 1 and compiled[0].startswith("5 of 5 kernels in 2 processes"), compiled
    assert events.count("5 of 5 kernels") == 1
    assert saved[0] == saved[1] == saved[2]


@pytest.mark.parametrize("rows", [3, "batch"])
def test_steps_of_a_recurrent_layer_share_their_kernels(generator, rows):
    def layer(steps: int) -> Graph:
        b = GraphBuilder("recurrent")
        batch = b.symbol("batch", 1, 20) if rows == "batch" else rows
        x = b.input("x", float32, (batch, steps, 24))
        first = b.constant(generator.standard_normal((24, 32), np.float32))
        again = b.constant(generator.standard_normal((32, 32), np.float32) / 8)
        products = b.op("matmul", [x, first])
        state = b.constant(np.zeros((1, 32), np.float32))
        for step in range(steps):
            part = b.op("slice", [products], axis=1, start=step, stop=step + 1, step=1)
            part = b.op("reshape", [part], shape=(batch, 32))
            state = b.op("tanh", [b.op("add", [part, b.op("matmul", [state, again]) if step else state])])
        b.output(state, "y")
        return b.finish()

    kernels_of = {}
    for steps in (7, 12):
        graph = layer(steps)
        engine = build(graph)
        kernels_of[steps] = {choice.kernel for step in engine.plan.steps for choice in step.choices}
        for batch in (1, 3, 20) if rows == "batch" else (rows,):
            check(engine, graph, {"x": generator.standard_normal((batch, steps, 24), np.float32)})
    assert len(kernels_of[12]) == len(kernels_of[7])


def test_axes_of_a_grid_change_places_only_where_x_may_be_longer() -> None:
    """A CPU takes as many programs along each axis, whatever sizes a run may have."""
    size = GraphBuilder("sizes").symbol("n", 1, 2**31 - 1)
    grid = (1, simplify(lift(size) * size), 1)
    assert kernels.grid_axes(grid, get_target("cpu").largest_grid) == SAME_AXES
    assert kernels.grid_axes(grid, get_target("cuda:sm_90a").largest_grid) == (1, 0, 2)
