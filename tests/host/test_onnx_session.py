"""`tilewright.onnx`: ONNX Runtime's and ONNX's interfaces for running models."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import tilewright
import tilewright.onnx as tw
from tilewright.dtypes import BY_NAME
from tilewright.errors import (
    EngineError,
    ImportModelError,
    InputError,
    SettingsError,
    ShapeError,
    UnknownRankError,
    UnsupportedOperationError,
)
from tilewright.onnx import backend

pytestmark = pytest.mark.usefixtures("quick_engines")

FLOAT = TensorProto.FLOAT


def affine() -> onnx.ModelProto:
    """relu(x w + b) and its sums over rows; the batch is dynamic."""
    generator = np.random.default_rng(1)
    weights = generator.normal(size=(6, 4)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["xw"]),
        helper.make_node("Add", ["xw", "b"], ["sum"]),
        helper.make_node("Relu", ["sum"], ["y"]),
        helper.make_node("ReduceSum", ["y", "axes"], ["total"], keepdims=0),
    ]
    tensors = [("w", weights), ("b", weights[0]), ("axes", np.array([1]))]
    graph = helper.make_graph(
        nodes,
        "affine",
        [helper.make_tensor_value_info("x", FLOAT, ["batch", 6])],
        [
            helper.make_tensor_value_info("y", FLOAT, ["batch", 4]),
            helper.make_tensor_value_info("total", FLOAT, ["batch"]),
        ],
        [onnx.numpy_helper.from_array(array, name) for name, array in tensors],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return affine()


@pytest.fixture(scope="module")
def session(model: onnx.ModelProto) -> tw.InferenceSession:
    return tw.InferenceSession(model.SerializeToString())


def feeds(rng: np.random.Generator, batch: int = 3) -> dict[str, np.ndarray]:
    return {"x": rng.normal(size=(batch, 6)).astype(np.float32)}


def check(found: list[np.ndarray], model: onnx.ModelProto, given: dict[str, np.ndarray], names=None) -> None:
    peer = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = peer.run(names, given)
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert type(ours) is np.ndarray and ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)  # sums of 6 products, then of 4 numbers


def test_inputs_and_outputs(session: tw.InferenceSession, model: onnx.ModelProto) -> None:
    peer = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    ours = {entry.name: entry for entry in (*session.get_inputs(), *session.get_outputs())}
    for entry in (*peer.get_inputs(), *peer.get_outputs()):
        assert (ours[entry.name].type, ours[entry.name].shape) == (entry.type, entry.shape)
    assert session.get_providers() == ["CPUExecutionProvider"]


@pytest.mark.parametrize("kind", ["fixed", "dynamic", "in parts"])
@pytest.mark.parametrize("name", ["sepal length (cm)", "x[0]", 'a="b"', " {%x}, ", "a\nb\x1b[31m\u2028", "\\"])
def test_inputs_and_outputs_keep_their_names(name: str, kind: str, rng: np.random.Generator, tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", [name], [f"y {name}"])]
    outputs = [helper.make_tensor_value_info(f"y {name}", TensorProto.FLOAT, None)]
    if kind == "in parts":
        nodes.append(helper.make_node("NonZero", [f"y {name}"], ["places"]))
        outputs.append(helper.make_tensor_value_info("places", TensorProto.INT64, None))
    shape = [4 if kind == "fixed" else "n", 3]
    graph = helper.make_graph(nodes, "names", [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)], outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    x = rng.standard_normal((4, 3)).astype(np.float32)
    session = tw.InferenceSession(model.SerializeToString())
    assert [entry.name for entry in session.get_inputs()] == [name]
    np.testing.assert_array_equal(session.run([f"y {name}"], {name: x})[0], np.maximum(x, 0))
    tilewright.compile(model.SerializeToString()).save(tmp_path / "names.engine")
    found = tilewright.load(tmp_path / "names.engine").run({name: x})
    np.testing.assert_array_equal(found[f"y {name}"], np.maximum(x, 0))


@pytest.mark.parametrize("names", [None, [], ["total"], ["total", "y"]])
def test_runs(session: tw.InferenceSession, model: onnx.ModelProto, names, rng: np.random.Generator) -> None:
    given = feeds(rng)
    check(session.run(names, given), model, given, names or None)


def test_feeds_that_are_no_arrays(session: tw.InferenceSession, rng: np.random.Generator) -> None:
    given = feeds(rng)
    (expected,) = session.run(["y"], given)
    for form in (given["x"].tolist(), tw.OrtValue(given["x"])):
        np.testing.assert_array_equal(session.run(["y"], {"x": form})[0], expected)
    torch = pytest.importorskip("torch")
    np.testing.assert_array_equal(session.run(["y"], {"x": torch.from_numpy(given["x"])})[0], expected)
    (value,) = session.run_with_ort_values(["y"], {"x": tw.OrtValue.ortvalue_from_numpy(given["x"])})
    assert value.shape() == [3, 4] and value.data_type() == "tensor(float)" and value.device_name() == "cpu"
    np.testing.assert_array_equal(value.numpy(), expected)


def test_mistakes(session: tw.InferenceSession, rng: np.random.Generator, tmp_path: Path) -> None:
    given = feeds(rng)
    with pytest.raises(InputError, match="there is no output 'z': this model gives y, total"):
        session.run(["z"], given)
    with pytest.raises(InputError, match="unknown: w2"):
        session.run(None, {**given, "w2": given["x"]})
    with pytest.raises(ShapeError, match="'x'"):
        session.run(None, {"x": given["x"][:, :5]})
    with pytest.raises(SettingsError, match="TensorrtExecutionProvider"):
        tw.InferenceSession(affine(), providers=["TensorrtExecutionProvider"])
    with pytest.raises(ImportModelError, match="the bytes given"):
        tw.InferenceSession(b"not a model")
    with pytest.raises(ImportModelError, match="nowhere.onnx"):
        tw.InferenceSession(tmp_path / "nowhere.onnx")
    with pytest.raises(ImportModelError, match="int"):
        tw.InferenceSession(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("form", [None, [], {"x": None}, {"x": ["a"]}, {"x": [[1], [1, 2]]}, {"x": [[1j] * 4]}])
def test_feeds_of_a_wrong_kind(session: tw.InferenceSession, form: Any) -> None:
    with pytest.raises(InputError):
        session.run(None, form)


@pytest.mark.parametrize("names", ["y", b"y", 5, [["y"]], [None]])
def test_names_of_a_wrong_kind(session: tw.InferenceSession, rng: np.random.Generator, names: Any) -> None:
    with pytest.raises(InputError, match="output"):
        session.run(names, feeds(rng))


@pytest.mark.parametrize("providers", ["CPUExecutionProvider", 5, [1], [()], [None]])
def test_providers_of_a_wrong_kind(model: onnx.ModelProto, providers: Any) -> None:
    with pytest.raises(SettingsError, match="provider"):
        tw.InferenceSession(model, providers=providers)


def test_options_of_a_wrong_kind(model: onnx.ModelProto, session: tw.InferenceSession) -> None:
    with pytest.raises(SettingsError, match="SessionOptions, not an int"):
        tw.InferenceSession(model, 5)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="threads"):
        tw.InferenceSession(model, tw.SessionOptions(intra_op_num_threads=-1))
    for size in ("x", -1, 1.5):
        with pytest.raises(SettingsError, match="'n' is fixed to"):
            tw.InferenceSession(model, tw.SessionOptions(dimensions={"n": size}))  # type: ignore[dict-item]
    with pytest.raises(InputError, match="callback"):
        session.run_async(None, {}, None, None)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="IOBinding"):
        session.run_with_iobinding(None)  # type: ignore[arg-type]


def test_the_profile_is_written_or_an_error(model: onnx.ModelProto, tmp_path: Path) -> None:
    options = tw.SessionOptions(enable_profiling=True, profile_file_prefix=str(tmp_path / "none" / "profile"))
    with pytest.raises(SettingsError, match="cannot be written"):
        tw.InferenceSession(model, options).end_profiling()


@pytest.mark.parametrize(
    ("kind", "shape", "address"),
    [
        (np.float32, (3, 4), 0),
        (np.float32, (3, 4), -8),
        (np.float32, (3, 4), 2**70),
        (np.float32, (-3, 4), 4096),
        (np.float32, (2**40, 2**40), 4096),
        (np.float32, ("a", 4), 4096),
        (np.float32, (3, 4), "a"),
        (np.float32, 5, 4096),
        ("no type", (3, 4), 4096),
        (object, (3, 4), 4096),
    ],
)
def test_addresses_that_are_none(session: tw.InferenceSession, kind: Any, shape: Any, address: Any) -> None:
    with pytest.raises(InputError, match="memory"):
        session.io_binding().bind_input("x", "cpu", 0, kind, shape, address)
    with pytest.raises(InputError, match="memory"):
        session.io_binding().bind_output("y", "cpu", 0, kind, shape, address)


def test_values_of_a_wrong_kind(session: tw.InferenceSession) -> None:
    torch = pytest.importorskip("torch")
    for tensor in (torch.ones(2, requires_grad=True), torch.ones(2, dtype=torch.bfloat16)):
        np.testing.assert_array_equal(tw.OrtValue(tensor).numpy().astype(np.float32), np.ones(2))
    with pytest.raises(InputError, match="OrtValue"):
        session.io_binding().bind_ortvalue_input("x", np.ones(2))  # type: ignore[arg-type]
    for shape, kind in (([-1], np.float32), ([2], "no type"), (["a"], np.float32)):
        with pytest.raises(InputError, match="no array has the shape"):
            tw.OrtValue.ortvalue_from_shape_and_type(shape, kind)
    locked = np.zeros(2)
    locked.flags.writeable = False
    for array, update, text in ((np.zeros(2), [1, 2], "got a list"), (locked, np.ones(2), "read-only")):
        with pytest.raises(InputError, match=text):
            tw.OrtValue(array).update_inplace(update)  # type: ignore[arg-type]


def test_element_types_are_spelled_as_onnx_does() -> None:
    for dtype in BY_NAME.values():
        if dtype.name == "float8e4b15":  # which ONNX has not
            continue
        kind = helper.np_dtype_to_tensor_dtype(dtype.numpy)
        assert tw.binding.element_text(dtype.numpy) == TensorProto.DataType.Name(kind).lower()


def test_an_engine_needs_no_onnx(model: onnx.ModelProto, tmp_path: Path) -> None:
    path = tmp_path / "affine.engine"
    tilewright.compile(model).save(path)
    program = (
        "import sys; sys.modules['onnx'] = None\n"
        "import numpy as np, tilewright.onnx as ort\n"
        f"session = ort.InferenceSession({str(path)!r})\n"
        "print(session.get_inputs()[0].type, session.run(None, {'x': np.ones((2, 6), 'f')})[0].shape)\n"
        "ort.InferenceSession('absent.onnx')\n"
    )
    (tmp_path / "absent.onnx").write_bytes(b"")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.stdout == "tensor(float) (2, 4)\n" and "pip install 'tilewright[onnx]'" in done.stderr


def test_options(model: onnx.ModelProto, rng: np.random.Generator, tmp_path: Path) -> None:
    onnx.save(model, tmp_path / "affine.onnx")
    options = tw.SessionOptions(
        intra_op_num_threads=1,
        enable_profiling=True,
        profile_file_prefix=str(tmp_path / "profile"),
        optimized_model_filepath=str(tmp_path / "affine.engine"),
    )
    options.add_free_dimension_override_by_name("batch", 2)
    session = tw.InferenceSession(str(tmp_path / "affine.onnx"), options, [("CPUExecutionProvider", {})])
    assert session.get_inputs()[0].shape == [2, 6]
    given = feeds(rng, 2)
    check(session.run(None, given), model, given)
    events = json.loads(Path(session.end_profiling()).read_text())
    assert [event["name"] for event in events][0] == "model_run" and len(events) > 1
    assert all(event["ph"] == "X" and event["dur"] >= 0 for event in events)
    again = tw.InferenceSession(tmp_path / "affine.engine")
    check(again.run(None, given), model, given)
    theirs = onnxruntime.SessionOptions()
    theirs.intra_op_num_threads = 2
    check(tw.InferenceSession(model, theirs).run(None, given), model, given)  # type: ignore[arg-type]


def test_asynchronous_runs(session: tw.InferenceSession, rng: np.random.Generator) -> None:
    given, done, results = feeds(rng), threading.Event(), []

    def callback(outputs: list[np.ndarray], data: str, error: str) -> None:
        results.append((outputs, data, error))
        if len(results) == 2:
            done.set()

    session.run_async(["y"], given, callback, "first")
    session.run_async(["y"], {"x": given["x"][0]}, callback, "second")
    assert done.wait(30)
    (outputs, data, error), (none, _, message) = results
    assert (data, error, none) == ("first", "", []) and "'x'" in message
    np.testing.assert_array_equal(outputs[0], session.run(["y"], given)[0])


def test_bindings(session: tw.InferenceSession, rng: np.random.Generator) -> None:
    x = feeds(rng)["x"]
    y, total = session.run(None, {"x": x})
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    memory = np.zeros((3, 4), np.float32)
    binding.bind_output("total")
    binding.bind_output("y", "cpu", 0, np.float32, memory.shape, memory.ctypes.data)
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(memory, y)
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], total)
    assert [value.shape() for value in binding.get_outputs()] == [[3], [3, 4]]

    binding.clear_binding_inputs()
    binding.clear_binding_outputs()
    twice = 2 * x
    binding.bind_input("x", "cpu", 0, np.float32, x.shape, twice.ctypes.data)
    out = tw.OrtValue.ortvalue_from_shape_and_type([3], np.float32)
    binding.bind_ortvalue_output("total", out)
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(out.numpy(), session.run(["total"], {"x": twice})[0])
    out.update_inplace(np.zeros(3, np.float32))
    assert not out.numpy().any()
    with pytest.raises(InputError, match=r"float32\[3\]"):
        out.update_inplace(np.zeros(4, np.float32))
    with pytest.raises(InputError, match="there is no input 'z'"):
        binding.bind_ortvalue_input("z", out)
    with pytest.raises(InputError, match="OrtValue"):
        binding.bind_input("x", "cuda", 0, np.float32, x.shape, 1)


# The interface of onnx.backend -------------------------------------------------------------------------


def test_the_backend(model: onnx.ModelProto, rng: np.random.Generator) -> None:
    given = feeds(rng)
    assert backend.supports_device("CPU") and not backend.supports_device("TPU")
    assert backend.is_compatible(model) and not backend.is_compatible(onnx.ModelProto())
    rep = backend.prepare(model)
    for inputs in ([given["x"]], given, given["x"]):
        check(list(rep.run(inputs)), model, given)
    check(list(backend.run_model(model, list(given.values()))), model, given)
    with pytest.raises(InputError, match="3 inputs given, the model takes 1: x"):
        rep.run([given["x"]] * 3)
    with pytest.raises(SettingsError, match="TPU"):
        backend.prepare(model, "TPU")
    node = helper.make_node("Sub", ["a", "b"], ["c"])
    outputs = backend.run_node(node, [np.float32([5, 7]), np.float32([1, 2])])
    np.testing.assert_array_equal(outputs["c"], [4, 5])  # type: ignore[call-overload]
    np.testing.assert_array_equal(outputs[0], [4, 5])
    with pytest.raises(UnsupportedOperationError):
        backend.run_node(helper.make_node("NoOperation", ["a"], ["b"], domain="com.example"), [np.zeros(9, np.uint8)])


def test_onnx_takes_it_for_a_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    import unittest

    import onnx.backend.test
    from onnx.backend.test import loader
    from onnx.backend.test.case.node import _NodeTestCases

    def few() -> list[Any]:
        """Cases of three operations: the data of all are computed for some seconds."""
        for name in ("relu", "add", "softmax"):
            importlib.import_module(f"onnx.backend.test.case.node.{name}")
        return _NodeTestCases

    monkeypatch.setattr(loader, "load_node_model_tests", few, raising=False)
    suite = onnx.backend.test.BackendTest(backend, __name__)
    for pattern in ("test_relu_cpu", "test_add_bcast_cpu", "test_softmax_axis_1_cpu", "test_Linear_no_bias_cpu"):
        suite.include(f"^{pattern}$")
    result = unittest.TestResult()
    suite.test_suite.run(result)
    failed = [text for _, text in (*result.failures, *result.errors)]
    assert not failed and result.testsRun - len(result.skipped) == 4, failed


# What `tilewright.compile` takes -----------------------------------------------------------------------


def test_compile_takes_bytes(model: onnx.ModelProto, rng: np.random.Generator) -> None:
    given = feeds(rng)
    for data in (model.SerializeToString(), bytearray(model.SerializeToString())):
        check(list(tilewright.compile(data).run(given).values()), model, given)
    with pytest.raises(ImportModelError, match="an empty file"):
        tilewright.compile(b"")


def test_compile_takes_functions_and_keywords(rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")

    def scaled(x, y=None, *, factor=2.0):
        return torch.relu(x) * factor - (0 if y is None else y)

    x, y = torch.from_numpy(rng.normal(size=(2, 3, 5)).astype(np.float32))
    for positional, named in (((x,), {"y": y}), ((x, y), None), (None, {"x": x, "y": y}), ({"x": x}, {"y": y})):
        engine = tilewright.compile(scaled, positional, example_kwargs=named)
        assert engine.name == "scaled" and [spec.name for spec in engine.inputs] == ["x", "y"]
        torch.testing.assert_close(engine(x, y), scaled(x, y))
    engine = tilewright.compile(lambda x: x + 1, x, {"x": {0: ("rows", 1, 9)}}, threads=1)
    assert engine.threads == 1
    torch.testing.assert_close(engine(x[:2]), x[:2] + 1)
    with pytest.raises(ImportModelError, match="'x' is in example_inputs and in example_kwargs"):
        tilewright.compile(scaled, {"x": x}, example_kwargs={"x": x})
    with pytest.raises(ImportModelError, match="type"):
        tilewright.compile(torch.nn.Linear, (x,))
    with pytest.raises(InputError, match="threads"):
        engine.threads = 0


# Models whose structure follows from values ------------------------------------------------------------


def transformed() -> onnx.ModelProto:
    """A Fourier transform whose length is an input, and a scale."""
    graph = helper.make_graph(
        [
            helper.make_node("DFT", ["signal", "length"], ["spectrum"], axis=1),
            helper.make_node("Mul", ["spectrum", "scale"], ["scaled"]),
            helper.make_node("Add", ["scaled", "offset"], ["y"]),
        ],
        "transformed",
        [
            helper.make_tensor_value_info("signal", FLOAT, [1, 64, 1]),
            helper.make_tensor_value_info("length", TensorProto.INT64, []),
            helper.make_tensor_value_info("scale", FLOAT, [1]),
        ],
        [helper.make_tensor_value_info("y", FLOAT, None)],
        [onnx.numpy_helper.from_array(np.float32([3, 5]), "offset")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_an_engine_for_each_set_of_values(
    rng: np.random.Generator, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    model = transformed()
    with pytest.raises(UnsupportedOperationError):
        tilewright.compile(model)
    session = tw.InferenceSession(model)
    assert "an engine is compiled for each set of values of length, scale" in caplog.text
    assert [entry.name for entry in session.get_inputs()] == ["signal", "length", "scale"]
    given = {"signal": rng.normal(size=(1, 64, 1)).astype(np.float32), "scale": np.float32([2])}
    for length in (8, 16, 8):
        given["length"] = np.array(length)
        check(session.run(None, given), model, given)
    for other in range(1, 6):
        session.run(None, {**given, "length": other})
    check(list(backend.prepare(model).run([given["signal"], given["length"], given["scale"]])), model, given)
    for length, error in ((np.array([8]), ShapeError), (np.array(8, np.int32), InputError), (8.5, InputError)):
        with pytest.raises(error, match="'length'"):
            session.run(None, {**given, "length": length})
    stored = transformed()
    onnx.save(stored, tmp_path / "outside.onnx", save_as_external_data=True, location="data", size_threshold=0)
    check(tw.InferenceSession(tmp_path / "outside.onnx").run(None, given), model, given)
    with pytest.raises(InputError, match="missing: length"):
        session.run(None, {"signal": given["signal"], "scale": given["scale"]})
    with pytest.raises(EngineError, match="make these inputs constants"):
        tw.InferenceSession(model, tw.SessionOptions(optimized_model_filepath=str(tmp_path / "none.engine")))


def test_values_do_not_help_what_is_refused_for_another_reason() -> None:
    node = helper.make_node("NoOperation", ["data"], ["image"], domain="com.example")
    entries = [helper.make_tensor_value_info("data", TensorProto.UINT8, [9])]
    outputs = [helper.make_tensor_value_info("image", TensorProto.UINT8, [None, None, 3])]
    graph = helper.make_graph([node], "graph", entries, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("com.example", 1)], ir_version=10)
    with pytest.raises(UnsupportedOperationError, match="NoOperation"):
        tw.InferenceSession(model)


def test_an_engine_for_sizes_that_are_one(rng: np.random.Generator) -> None:
    """A 1 that is stretched to the other size, or that a Squeeze without axes drops."""
    text = """<ir_version: 10, opset_import: ["" : 20]>
    main (float[n, 4] x, float[m, 4] y) => (float[k, 4] sum, float[a, b] z) { sum = Add(x, y)  z = Squeeze(sum) }"""
    model = onnx.parser.parse_model(text)
    model.graph.output[1].type.tensor_type.ClearField("shape")
    session = tw.InferenceSession(model)
    theirs = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for left, right in ((3, 3), (1, 3), (3, 1), (1, 1), (1, 3)):
        feeds = {name: rng.random((rows, 4), np.float32) for name, rows in (("x", left), ("y", right))}
        for mine, wanted in zip(session.run(None, feeds), theirs.run(None, feeds), strict=True):
            np.testing.assert_array_equal(mine, wanted)
    for left, right in ((2, 3), (2, 3)):  # nothing takes these
        with pytest.raises(ShapeError, match="m"):
            session.run(None, {"x": np.zeros((left, 4), np.float32), "y": np.zeros((right, 4), np.float32)})
    with pytest.raises(ShapeError):
        session.run(None, {"x": np.zeros((1, 5), np.float32), "y": np.zeros((3, 5), np.float32)})


def test_steps_of_a_decoder(rng: np.random.Generator, caplog: pytest.LogCaptureFixture) -> None:
    """The total length is an input, prompts have nothing before them: two engines for all lengths."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (float[B,S,16] q, float[B,S,8] k, float[B,S,8] v, float[B,1,P,8] pk, float[B,1,P,8] pv, int32[B] counts,
            int32 total) => (float[B,S,16] y, float[B,1,T,8] nk, float[B,1,T,8] nv) {
            y, nk, nv = com.microsoft.GroupQueryAttention <num_heads = 2, kv_num_heads = 1>
                (q, k, v, pk, pv, counts, total) }""")
    session = tw.InferenceSession(model.SerializeToString())
    peer = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    past = {name: np.zeros((1, 1, 0, 8), np.float32) for name in ("pk", "pv")}
    for rows, before in ((5, 0), (1, 5), (1, 6), (3, 0)):
        feeds = {name: rng.random((1, rows, width), np.float32) for name, width in (("q", 16), ("k", 8), ("v", 8))}
        feeds |= {name: array[:, :, :before] for name, array in past.items()}
        total = np.int32(before + rows)
        feeds |= {"counts": np.array([total - 1], np.int32), "total": np.array(total)}
        wanted = peer.run(None, feeds)
        for mine, theirs in zip(session.run(None, feeds), wanted, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)
        past = dict(zip(("pk", "pv"), wanted[1:], strict=True))
    assert [record.args[0] for record in caplog.records if record.args] == ["pk[2] = 0, pv[2] = 0"]


def test_inputs_that_are_declared_without_a_number_of_dimensions() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]> m (float[n] x, float[3] w) => (float[n] y) {
            s = ReduceMax <axes = [-1]> (x) t = Add(s, w) y = Relu(t) }""")
    model.graph.input[0].type.tensor_type.ClearField("shape")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    with pytest.raises(UnknownRankError, match="input 'x' is declared without a number of dimensions"):
        tilewright.compile(model)
    w = np.ones(3, np.float32)
    assert tilewright.compile(model, dynamic_shapes={"x": {0: "rows", 1: 4}}).inputs[0].shape[1] == 4
    session = tw.InferenceSession(model.SerializeToString())
    peer = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for shape in [(3, 5), (2, 3, 4), (1, 2), (7,)]:  # a dimension of 1 is stretched, so is a number
        feeds = {"x": np.random.default_rng(0).standard_normal(shape).astype(np.float32), "w": w}
        np.testing.assert_array_equal(session.run(None, feeds)[0], peer.run(None, feeds)[0])


RANKS = {
    "outputs": "t = If (c) <then_branch = a () => (p) { p = Reshape (x, all) }, "
    "else_branch = b () => (q) { q = Neg (x) }> y = Identity (t)",
    "nodes after it": "t = If (c) <then_branch = a () => (p) { p = Unsqueeze (x, zero) }, "
    "else_branch = b () => (p) { p = Neg (x) }> u = Relu (t) y = Add (u, u)",
    "inside another": "d = Less (least, half) t = If (c) <then_branch = a () => (t1) { t1 = If (d) <then_branch = "
    "e () => (p) { p = Reshape (x, all) }, else_branch = f () => (p) { p = Neg (x) }> }, "
    "else_branch = b () => (q) { q = Unsqueeze (x, zero) }> y = Identity (t)",
    "one size alone": "y = If (c) <then_branch = a () => (p) { p = Squeeze (x) }, "
    "else_branch = b () => (q) { q = Neg (x) }>",
}  # fmt: skip


@pytest.mark.parametrize("case", RANKS)
def test_branches_of_other_numbers_of_dimensions(case: str, rng: np.random.Generator) -> None:
    """Whose condition is computed: which branch a call takes is known only then."""
    text = f"""<ir_version: 8, opset_import: ["" : 17]> m (float[n, 3] x) => (float y)
        <float half = {{0.5}}, int64[1] all = {{-1}}, int64[1] zero = {{0}}> {{
        least = ReduceMin <keepdims = 0> (x) most = ReduceMax <keepdims = 0> (x) c = Greater (most, half)
        {RANKS[case]} }}"""
    model = onnx.parser.parse_model(text)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    session = tw.InferenceSession(model.SerializeToString())
    peer = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for rows, low, high in ((2, 1, 2), (2, 0, 0.4), (2, 0, 2), (1, 1, 2), (1, 0, 0.4)):
        feeds = {"x": np.linspace(low, high, rows * 3, dtype=np.float32).reshape(rows, 3)}
        np.testing.assert_array_equal(session.run(None, feeds)[0], peer.run(None, feeds)[0])


BROKEN = {
    "y = NoOperation (x)": (UnsupportedOperationError, "no operation of this name"),
    "y = Softmax <axes = 1> (x)": (UnsupportedOperationError, "the attributes axes"),
    "y = Gelu (x)": (ImportModelError, "opset 17 has no Gelu"),
    "y = MatMul (x)": (ImportModelError, "it has 1 inputs"),
    "y = Cast (x)": (ImportModelError, "'to' is missing"),
    "i = Shape (x) y = Sigmoid (i)": (ImportModelError, "is i64, which the operation does not take"),
    "i = Shape (x) y = Add (x, i)": (ImportModelError, "must have one element type"),
    "y = Shape (x)": (ImportModelError, "output 'y' is declared as FLOAT, but it is i64"),
    "c = Constant <value_int = 1> () b = Cast <to = 9> (c) "
    "y = If (b) <then_branch = t () => (float z) { z = Nothing (x) }, "
    "else_branch = e () => (float z) { z = Relu (x) }>": (UnsupportedOperationError, "no operation of this name"),
}  # fmt: skip


@pytest.mark.parametrize("nodes", BROKEN)
def test_what_no_number_of_dimensions_helps_is_refused_at_once(nodes: str) -> None:
    text = f'<ir_version: 8, opset_import: ["" : 17]> m (float[n] x) => (float[n] y) {{ {nodes} }}'
    model = onnx.parser.parse_model(text)
    model.graph.input[0].type.tensor_type.ClearField("shape")
    error, reason = BROKEN[nodes]
    with pytest.raises(error, match=reason):
        tw.InferenceSession(model)


def test_what_no_size_helps_is_refused_at_once() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> m (float[n, c] x) => (float[n, c] y) {
        y = LpNormalization <p = 3> (x) }"""
    with pytest.raises(UnsupportedOperationError, match="LpNormalization of order 3"):
        tw.InferenceSession(onnx.parser.parse_model(text))


def stretched(weight: float) -> onnx.ModelProto:
    """A model whose engine for all sizes does not take a single row, with its weights in other files."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]> stretched (float[n, 3] x, float[m, 3] w) => (float[k, 3] y) {
            s = Add(x, w) y = Mul(s, factor) }""")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.full((1, 3), weight, np.float32), "factor"))
    return model


def test_a_model_that_changes_after_the_session_was_made(tmp_path: Path) -> None:
    """What a session compiles later is of the same model, or refused."""
    feeds = {"x": np.ones((4, 3), np.float32), "w": np.ones((4, 3), np.float32)}
    single = {**feeds, "w": np.ones((1, 3), np.float32)}
    model = stretched(2.0)
    session = tw.InferenceSession(model)
    model.graph.initializer[0].CopyFrom(stretched(3.0).graph.initializer[0])
    for given in (feeds, single):
        assert (session.run(None, given)[0] == 4).all()
    path = tmp_path / "m.onnx"
    for changed in ("m.onnx", "weights"):
        onnx.save(stretched(2.0), path, save_as_external_data=True, location="weights", size_threshold=0)
        sessions = [tw.InferenceSession(path) for _ in range(2)]
        assert (sessions[0].run(None, single)[0] == 4).all()
        (tmp_path / changed).write_bytes(bytes((tmp_path / changed).stat().st_size + 1))
        assert (sessions[0].run(None, single)[0] == 4).all() and (sessions[1].run(None, feeds)[0] == 4).all()
        with pytest.raises(ImportModelError, match=f"{changed}: the file has changed since the session was made"):
            sessions[1].run(None, single)


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize("extent", ["0", "n"])
@pytest.mark.parametrize(
    "node", ["Hardmax <axis = 1> (x)", "LogSoftmax <axis = 1> (x)", "ArgMax <axis = 1> (x)", "ArgMin <axis = 2> (x)"]
)
def test_along_axes_without_elements(node: str, extent: str) -> None:
    rest = "0" if "ArgMax" in node else "3"
    kind, rows, columns = ("int64", "1", rest) if "ArgMax" in node else ("float", extent, rest)
    if "ArgMin" in node:
        kind, columns = "int64", "1"
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 18]>
        m (float[2, {extent}, {rest}] x) => ({kind}[2, {rows}, {columns}] y) {{ y = {node} }}""")
    feeds = {"x": np.zeros((2, 0, int(rest)), np.float32)}
    peer = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    session = tw.InferenceSession(model.SerializeToString())
    np.testing.assert_array_equal(session.run(None, feeds)[0], peer.run(None, feeds)[0], strict=True)


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("kind", ["float", "int64"])
def test_the_mean_of_no_elements(kind: str) -> None:
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
        m ({kind}[2, n] x) => ({kind}[2] y, {kind}[2] z) {{
            y = ReduceMean <axes = [1], keepdims = 0> (x) n = NonZero(x) m = CastLike(n, x)
            z = ReduceMean <axes = [1], keepdims = 0> (m) }}""")
    peer = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    session = tw.InferenceSession(model)
    for x in (np.zeros((2, 0)), np.zeros((2, 3)), np.ones((2, 3))):
        feeds = {"x": x.astype("float32" if kind == "float" else kind)}
        for mine, theirs in zip(session.run(None, feeds), peer.run(None, feeds), strict=True):
            np.testing.assert_array_equal(mine, theirs, strict=True)


ITEMS = {
    "joined": "y = ConcatFromSequence <axis = 0> (s)",
    "one": "i = Constant <value_int = -1> () t = SequenceAt(s, i) y = Neg(t)",
    "shape and rank": "t = ConcatFromSequence <axis = 0> (s) y = Reshape(t, k)",
}


@pytest.mark.parametrize("case", ITEMS)
def test_sequences_whose_items_have_any_number_of_dimensions(case: str, rng: np.random.Generator) -> None:
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
        m (float[1] s, int64[m] k) => (float[n] y) {{ {ITEMS[case]} }}""")
    model.graph.input[0].type.Clear()
    model.graph.input[0].type.sequence_type.elem_type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    model.graph.output[0].type.tensor_type.ClearField("shape")
    peer = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    session = tw.InferenceSession(model.SerializeToString())
    for shape in ((3,), (1, 4)):
        feeds = {"s": [rng.random(shape, np.float32) for _ in range(2)], "k": np.array([2, -1, 1][: 4 - len(shape)])}
        (mine,), (theirs,) = session.run(None, feeds), peer.run(None, feeds)
        np.testing.assert_array_equal(mine, theirs, strict=True)


FREE = {
    "Split": ("float[a, b] x", "s = Constant <value_ints = [2, 1]> () y, z = Split <axis = 1> (x, s)"),
    "BatchNormalization": ("float[a, b, c] x, float[3] w", "r = Relu(x) y = BatchNormalization(r, w, w, w, w)"),
    "InstanceNormalization": ("float[a, b, c] x, float[3] w", "y = InstanceNormalization(x, w, w)"),
    "PRelu": ("float[a, b, c] x, float[3, 1] w", "y = PRelu(x, w)"),
}


@pytest.mark.parametrize("operation", FREE)
def test_a_free_size_that_an_operation_fixes(operation: str, rng: np.random.Generator) -> None:
    inputs, nodes = FREE[operation]
    text = f"m ({inputs}) => (float[k, l] y) {{ {nodes} }}"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    model.graph.output[0].type.tensor_type.ClearField("shape")
    engine = tilewright.compile(model)
    shapes = {spec.name: [size if isinstance(size, int) else 3 for size in spec.shape] for spec in engine.inputs}
    feeds = {name: rng.random(shape, np.float32) for name, shape in shapes.items()}
    peer = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found = tw.InferenceSession(model.SerializeToString()).run(["y"], feeds)[0]
    np.testing.assert_allclose(found, peer.run(["y"], feeds)[0], rtol=1e-5, atol=1e-6)
    with pytest.raises(ShapeError):
        engine.run({**feeds, "x": np.zeros((3, 5, 3)[: feeds["x"].ndim], np.float32)})


def test_a_model_that_no_engine_of_all_sizes_runs(rng: np.random.Generator, caplog: pytest.LogCaptureFixture) -> None:
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        m (float[n, 3] x) => (float[n, 3] y) {
            b, c = Split <axis = 0> (x, sizes) y = Concat <axis = 0> (c, b) }""")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([0, 0]), "sizes"))
    with pytest.raises(UnsupportedOperationError, match="Split"):
        tilewright.compile(model)
    session = tw.InferenceSession(model.SerializeToString())
    assert caplog.messages == ["m: an engine is compiled for the sizes of each call (needed by Split 'b')"]
    assert session.get_inputs()[0].shape == ["n", 3]
    np.testing.assert_array_equal(session.run(None, {"x": np.zeros((0, 3), np.float32)})[0], np.zeros((0, 3)))
    with pytest.raises(UnsupportedOperationError, match="Split"):
        session.run(None, {"x": rng.random((2, 3), np.float32)})
    with pytest.raises(EngineError, match="the sizes of each call"):
        session.engine.save("m.engine")


def described(name: str) -> onnx.ModelProto:
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        m (float[rows, ?] x, float[4, 2] w) => (float[n, 2] y) <float[4, 2] w = {1, 2, 3, 4, 5, 6, 7, 8}> {
            y = MatMul(x, w) }""")
    model.producer_name, model.model_version, model.doc_string, model.domain = name, 7, "a product", "test"
    model.metadata_props.add(key="labels", value="a,b")
    return model


def options_are_taken(ort: Any, model: bytes, x: np.ndarray) -> Any:
    options, run = ort.SessionOptions(), ort.RunOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.execution_mode, options.log_severity_level = ort.ExecutionMode.ORT_SEQUENTIAL, 3
    options.enable_mem_pattern = options.enable_cpu_mem_arena = False
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    run.add_run_config_entry("gpu_graph_id", "-1")
    providers = [("CPUExecutionProvider", {"use_arena": "1"})]
    session = ort.InferenceSession(model, options, providers, disabled_optimizers=["ConstantFolding"])
    entry = options.get_session_config_entry("session.intra_op.allow_spinning")
    return session.run(["y"], {"x": x}, run), session.get_provider_options().keys(), entry


def models_are_described(ort: Any, model: bytes, x: np.ndarray) -> Any:
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    meta = session.get_modelmeta()
    shapes = [(entry.name, entry.type, entry.shape) for entry in session.get_inputs()]
    texts = meta.producer_name, meta.graph_name, meta.domain, meta.description, meta.graph_description
    return shapes, texts, meta.version, meta.custom_metadata_map


def constants_are_given(ort: Any, model: bytes, x: np.ndarray) -> Any:
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    known = [(entry.name, entry.type, entry.shape) for entry in session.get_overridable_initializers()]
    given = session.run(None, {"x": x, "w": np.ones((4, 2), np.float32)})
    return known, given, session.run(None, {"x": x})


def memory_is_bound_by_address(ort: Any, model: bytes, x: np.ndarray) -> Any:
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    values = {
        "x": ort.OrtValue.ortvalue_from_numpy(x),
        "y": ort.OrtValue.ortvalue_from_shape_and_type([3, 2], np.float32),
    }
    binding = session.io_binding()
    for name, bind in (("x", binding.bind_input), ("y", binding.bind_output)):
        bind(name, "cpu", 0, np.float32, values[name].shape(), values[name].data_ptr())
    session.run_with_iobinding(binding)
    y = values["y"]
    facts = y.data_type(), y.element_type(), y.tensor_size_in_bytes(), y.is_tensor_sequence(), y.is_sparse_tensor()
    bits = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(np.array([0x3F80], np.uint16), onnx.TensorProto.BFLOAT16)
    return y.numpy(), facts, bits.data_type()


PROGRAMS = (options_are_taken, models_are_described, constants_are_given, memory_is_bound_by_address)


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_change_one_import(program: Callable[..., Any]) -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    model = described("one").SerializeToString()
    np.testing.assert_equal(program(tw, model, x), program(onnxruntime, model, x))


def test_threads_that_give_a_constant_share_an_engine(caplog: pytest.LogCaptureFixture) -> None:
    session = tw.InferenceSession(described("one"))
    feeds = {"x": np.ones((1, 4), np.float32), "w": np.ones((4, 2), np.float32)}
    threads = [threading.Thread(target=session.run, args=(None, feeds)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert caplog.text.count("an engine is compiled that takes w") == 1


def test_providers_without_a_device(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("tilewright.onnx.session.has_gpu", lambda: False)
    session = tw.InferenceSession(described("one"), providers=["CUDAExecutionProvider", "CPUExecutionProvider"])
    assert session.get_providers() == ["CPUExecutionProvider"] and tw.get_device() == "CPU"
    assert "CUDAExecutionProvider is not available here: the model runs on CPUExecutionProvider" in caplog.text
    session.set_providers(["CPUExecutionProvider"])
    assert session.run(None, {"x": np.ones((1, 4), np.float32)})[0].tolist() == [[16, 20]]
    options = tw.SessionOptions()
    for wrong in (lambda: options.get_session_config_entry("none"), lambda: tw.set_default_logger_severity(7)):
        with pytest.raises(SettingsError):
            wrong()


def test_one_name_of_unequal_sizes() -> None:
    entries = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3]) for name in "xz"]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([helper.make_node("Concat", ["x", "z"], ["y"], axis=0)], "g", entries, [result])
    session = tw.InferenceSession(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()
    )
    for rows in ((4, 4), (2, 5)):
        feeds = {name: np.full((count, 3), count, np.float32) for name, count in zip("xz", rows, strict=True)}
        np.testing.assert_array_equal(session.run(None, feeds)[0], np.concatenate(list(feeds.values())))
