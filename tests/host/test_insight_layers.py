"""What each kernel of an engine stores, compared with float64 and ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright
from tests.host.test_cli import tilewright as command
from tilewright.cli.peers import every_tensor
from tilewright.insight.layers import compare_layers, with_layers

FLOAT = TensorProto.FLOAT


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two convolutions, a softmax over channels: names with characters that graphs cannot hold."""
    generator = np.random.default_rng(3)
    weights = {
        "first": generator.normal(size=(8, 3, 3, 3)),
        "second": generator.normal(size=(5, 8, 1, 1)),
    }
    nodes = [
        helper.make_node("Conv", ["x", "first"], ["/body/conv:0"], name="/body/Conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["/body/conv:0"], ["/body/relu:0"], name="/body/Relu"),
        helper.make_node("Conv", ["/body/relu:0", "second"], ["/head/conv:0"], name="/head/Conv"),
        helper.make_node("Softmax", ["/head/conv:0"], ["scores"], name="/head/Softmax", axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "layers",
        [helper.make_tensor_value_info("x", FLOAT, ["batch", 3, 6, 7])],
        [helper.make_tensor_value_info("scores", FLOAT, ["batch", 5, 6, 7])],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()],
    )
    path = tmp_path_factory.mktemp("layers") / "layers.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def test_layers(model: Path, rng: np.random.Generator) -> None:
    engine = tilewright.compile(model)
    inputs = {"x": rng.normal(size=(2, 3, 6, 7)).astype(np.float32)}
    shown = with_layers(engine)
    assert [step.name for step in shown.plan.steps] == [step.name for step in engine.plan.steps]
    theirs = every_tensor(engine, model, 1, inputs)
    for peer in (None, theirs):
        layers = compare_layers(shown, inputs, peer)
        assert [layer.own for layer in layers] == sorted((layer.own for layer in layers), reverse=True)
        names = {layer.name.removesuffix(".permuted") for layer in layers}
        assert {"scores", "_body_relu_0" if peer is None else "/body/relu:0"} <= names
        assert all(layer.step for layer in layers)
        # Sums of 27 products at most, relative to the largest result.
        assert all(layer.own < 1e-5 and layer.difference is not None and layer.difference < 1e-5 for layer in layers)

    wrong = {**theirs, "/body/relu:0": theirs["/body/relu:0"] * 1.5}
    apart = {layer.source: layer.difference or 0 for layer in compare_layers(shown, inputs, wrong)}
    assert max(apart, key=lambda name: apart[name]) == "/body/Relu" and apart["/body/Relu"] > 0.3


def test_from_the_shell(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    finished = command("run", str(model), "--compare", "onnxruntime", "--layers", "all", "--size", "batch=1")
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "/body/relu:0.permuted" in finished.stdout and "own error" in finished.stdout
    for arguments in (
        ["--layers", "all"],
        ["--layers", "0", "--compare", "reference"],
        ["--layers", "3", "--compare", "torch"],
    ):
        refused = command("run", str(model), *arguments)
        assert refused.returncode == 2 and "--layers takes all or a number" in refused.stderr


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows that only the run knows, and a loop over them."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        parts (float[n, 4] x) => (float[m] y, float[4] total) <float[4, 4] w = {
            1.0, 0.5, 0.0, 2.0, 1.5, 0.25, 1.0, 0.0, 3.0, 1.0, 0.5, 0.5, 0.0, 1.0, 2.0, 0.75}> {
            scaled = MatMul(x, w) first = Relu(scaled) places = NonZero(first)
            rows = Transpose(places) kept = GatherND(first, rows) half = Sigmoid(kept) y = Softmax <axis = 0> (half)
            count = Shape <start = 0, end = 1> (places) trips = Squeeze(count) more = Constant <value = bool {1}> ()
            begin = Constant <value_floats = [0.0, 0.0, 0.0, 0.0]> ()
            total = Loop(trips, more, begin) <
                body = step (int64 i, bool go, float[4] before) => (bool on, float[4] after) {
                    on = Identity(go) sum = Add(before, begin) row = Cos(sum) after = Add(row, before) }> }""")
    path = tmp_path_factory.mktemp("parts") / "parts.onnx"
    onnx.save(model, path)
    return path


def test_layers_of_an_engine_in_parts(parts: Path, rng: np.random.Generator) -> None:
    engine = tilewright.compile(parts)
    shown, inputs = with_layers(engine), {"x": rng.standard_normal((3, 4)).astype(np.float32)}
    theirs = every_tensor(engine, parts, 1, inputs)
    for peer in (None, theirs):
        layers = {layer.name: layer for layer in compare_layers(shown, inputs, peer)}
        assert {"first", "y", "add_1"} <= layers.keys()  # the last one of the loop
        assert all(layer.own < 1e-5 and (layer.difference or 0) < 1e-5 for layer in layers.values())
        assert layers["y"].difference is not None and layers["first"].difference is not None
    wrong = {**theirs, "first": theirs["first"] * 1.5}
    apart = {layer.name: layer.difference or 0 for layer in compare_layers(shown, inputs, wrong)}
    assert apart["first"] > 0.3 and apart["y"] < 1e-5
    nothing = compare_layers(shown, {"x": -np.ones((3, 4), np.float32)})  # no row is left
    assert {"first"} <= {layer.name for layer in nothing}


def test_parts_from_the_shell(parts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    finished = command("run", str(parts), "--compare", "onnxruntime", "--layers", "all", "--size", "n=3")
    assert finished.returncode == 0 and "agrees" in finished.stdout, finished.stdout + finished.stderr
    assert "own error" in finished.stdout and "add_1" in finished.stdout


@pytest.mark.parametrize("peer", ["onnxruntime", "reference"])
def test_lists_and_text_are_no_layers(tmp_path: Path, peer: str) -> None:
    """The host moves them; their values are compared, as outputs."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        lists (float[4] x, string[2] t) => (seq(float[k]) s, string[2] u, float[4] y) {
            c = Cos(x) y = Exp(c) s = SplitToSequence <axis = 0> (y) u = Identity(t) }""")
    onnx.save(model, tmp_path / "lists.onnx")
    finished = command("run", str(tmp_path / "lists.onnx"), "--compare", peer, "--layers", "all")
    assert finished.returncode == 0 and "own error" in finished.stdout, finished.stdout + finished.stderr
    assert finished.stdout.count("agrees") == 6
