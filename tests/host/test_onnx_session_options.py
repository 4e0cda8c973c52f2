"""What a session's options change of its model, and the seed of random numbers."""

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

import tilewright.onnx as tw  # noqa: E402
from tilewright.errors import ImportModelError, InputError, RunEndedError, SettingsError  # noqa: E402


def test_constants_that_the_options_give(rng: np.random.Generator, tmp_path: Path) -> None:
    text = """<ir_version: 9, opset_import: ["" : 20]> g (float[N, 3] x) => (float[N, 3] y, float[2] z)
        <float[3] w = {1, 2, 3}, float[2] v = {4, 5}> { y = Mul(x, w) z = Neg(v) }"""
    model = onnx.parser.parse_model(text)
    model.graph.input[0].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights", size_threshold=0)
    weight = rng.standard_normal(3).astype(np.float32)
    options = tw.SessionOptions()
    options.add_external_initializers(["w"], [tw.OrtValue.ortvalue_from_numpy(weight)])
    options.add_free_dimension_override_by_denotation("DATA_BATCH", 2)
    session = tw.InferenceSession(path, options)
    assert session.get_inputs()[0].shape == [2, 3]
    x = rng.standard_normal((2, 3)).astype(np.float32)
    y, z = session.run(None, {"x": x})
    np.testing.assert_array_equal(y, x * weight)
    np.testing.assert_array_equal(z, [-4, -5])
    for name, value in (("u", weight), ("w", weight[:2]), ("w", weight.astype(np.float64))):
        options = tw.SessionOptions()
        options.add_initializer(name, tw.OrtValue(value))
        with pytest.raises(SettingsError, match=f"'{name}'"):
            tw.InferenceSession(model, options)
    with pytest.raises(InputError, match="dense"):
        tw.SparseTensor.sparse_coo_from_numpy([2], x, x, tw.OrtDevice.make("cpu", 0))


def test_runs_after_a_seed_repeat() -> None:
    node = onnx.helper.make_node("RandomNormal", [], ["y"], shape=[3])
    y = onnx.helper.make_tensor_value_info("y", 1, [3])
    opsets = [onnx.helper.make_opsetid("", 20)]
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", [], [y]), opset_imports=opsets, ir_version=9)
    session, drawn = tw.InferenceSession(model), []
    for _ in range(2):
        tw.set_seed(7)
        drawn.append([session.run(None, {})[0].tolist() for _ in range(2)])
    assert drawn[0] == drawn[1] and drawn[0][0] != drawn[0][1]


def test_a_pointer_of_git_lfs(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 5\n")
    with pytest.raises(ImportModelError, match="git lfs pull"):
        tw.InferenceSession(path)


def long_chain() -> Any:
    """Products that take minutes as one native call."""
    nodes = [onnx.helper.make_node("MatMul", [f"v{number}", "v0"], [f"v{number + 1}"]) for number in range(400)]
    entries = [onnx.helper.make_tensor_value_info(name, 1, [2048, 2048]) for name in ("v0", "v400")]
    graph = onnx.helper.make_graph(nodes, "chain", entries[:1], entries[1:])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9)


LONG_LOOP = """<ir_version: 9, opset_import: ["" : 17]> g (float[2048, 2048] v0) => (float[2048, 2048] y)
    <int64 n = {100000}, bool on = {1}> {
        y = Loop (n, on, v0) <body = b (int64 i, bool c, float[2048, 2048] a) => (bool d, float[2048, 2048] e) {
            d = Identity (c) e = MatMul (a, a) }> }"""


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kind", ["chain", "loop"])
def test_a_run_that_is_ended(kind: str, threads: int) -> None:
    options, run = tw.SessionOptions(), tw.RunOptions()
    options.intra_op_num_threads = threads
    session = tw.InferenceSession(long_chain() if kind == "chain" else onnx.parser.parse_model(LONG_LOOP), options)
    feeds = {"v0": np.zeros((2048, 2048), np.float32)}
    results: list[tuple[list[Any], str]] = []
    ended = threading.Event()

    def called(result: list[Any], data: Any, error: str) -> None:
        results.append((result, error))
        ended.set()

    session.run_async(None, feeds, called, None, run)
    time.sleep(0.5)
    assert not results
    run.terminate, begun = True, time.monotonic()
    assert ended.wait(30) and time.monotonic() - begun < 10
    assert not results[0][0] and "terminate" in results[0][1]
    with pytest.raises(RunEndedError):
        session.run(None, feeds, run)


def test_options_of_a_run_that_goes_on(rng: np.random.Generator) -> None:
    text = """<ir_version: 9, opset_import: ["" : 20]> g (float[N] x) => (float[N] y) { y = Neg(x) }"""
    session, run = tw.InferenceSession(onnx.parser.parse_model(text)), tw.RunOptions()
    x = rng.standard_normal(3).astype(np.float32)
    feeds = {"x": tw.OrtValue.from_dlpack(x)}
    np.testing.assert_array_equal(session.run(None, {"x": x}, run)[0], -x)
    fetched: list[tw.OrtValue] = []
    session.run_with_ortvaluevector(run, ["x"], [feeds["x"]], ["y"], fetched, [tw.OrtDevice.make("cpu", 0)])
    np.testing.assert_array_equal(np.asarray(fetched[0]), -x)
    np.testing.assert_array_equal(np.from_dlpack(fetched[0]), -x)
    target = tw.OrtValue.ortvalue_from_shape_and_type([3], np.float32)
    tw.copy_tensors(fetched, [target])
    np.testing.assert_array_equal(target.numpy(), -x)
    run.terminate = True
    for call in (session.run, session.run_with_ort_values):
        with pytest.raises(RunEndedError, match="terminate"):
            call(None, feeds, run)  # type: ignore[operator]
    run.terminate = False
    np.testing.assert_array_equal(session.run(None, {"x": x}, run)[0], -x)
    with pytest.raises(InputError, match="RunOptions"):
        session.run(None, {"x": x}, {"terminate": True})


def test_files_of_constants_in_memory(rng: np.random.Generator, tmp_path: Path) -> None:
    text = """<ir_version: 9, opset_import: ["" : 20]> g (float[N, 3] x) => (float[N, 3] y)
        { z = Mul(x, w) y = Add(z, v) }"""
    whole = onnx.parser.parse_model(text)
    for name, weights in (("w", [1, 2, 3]), ("v", [4, 5, 6])):
        whole.graph.initializer.append(onnx.numpy_helper.from_array(np.array(weights, np.float32), name))
    onnx.save(whole, tmp_path / "m.onnx", save_as_external_data=True, location="data", size_threshold=0)
    model, data = (tmp_path / "m.onnx").read_bytes(), (tmp_path / "data").read_bytes()
    options = tw.SessionOptions()
    options.add_external_initializers_from_files_in_memory(["data"], [data + b"more"], [len(data)])
    x = rng.standard_normal((2, 3)).astype(np.float32)
    (y,) = tw.InferenceSession(model, options).run(None, {"x": x})
    np.testing.assert_allclose(y, x * [1, 2, 3] + [4, 5, 6], rtol=1e-6)
    with pytest.raises(SettingsError, match="5 bytes, not 6"):
        options.add_external_initializers_from_files_in_memory(["data"], [b"12345"], [6])
    for buffer, length in (("abc", 3), (b"abc", "3"), (np.zeros(6, np.uint8)[::2], 3)):
        with pytest.raises(SettingsError, match="contiguous bytes"):
            options.add_external_initializers_from_files_in_memory(["data"], [buffer], [length])
    options.files["data"] = data[:-1]
    with pytest.raises(SettingsError, match="for that file"):
        tw.InferenceSession(model, options)


def test_providers_and_cancellation_by_the_options() -> None:
    text = """<ir_version: 9, opset_import: ["" : 20]> g (float[N] x) => (float[N] y) { y = Neg(x) }"""
    options = tw.SessionOptions()
    assert not options.has_providers()
    options.add_provider("NoSuchProvider", {})
    with pytest.raises(SettingsError, match="NoSuchProvider"):
        tw.InferenceSession(onnx.parser.parse_model(text), options)
    options.add_provider("CPUExecutionProvider", {})
    assert tw.InferenceSession(onnx.parser.parse_model(text), options).get_providers() == ["CPUExecutionProvider"]
    options.set_load_cancellation_flag(True)
    with pytest.raises(RunEndedError, match="set_load_cancellation_flag"):
        tw.InferenceSession(onnx.parser.parse_model(text), options)


def test_every_public_name_is_there_or_says_why_not() -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    own = {"capi", "contextlib", "import_capi_exception", "onnxruntime_validation", "package_name", "version"}
    for name in {name for name in dir(onnxruntime) if not name.startswith("_")} - own:
        if not hasattr(tw, name):
            with pytest.raises(AttributeError, match=f"'{name}', as onnxruntime has: "):
                getattr(tw, name)
    text = """<ir_version: 9, opset_import: ["" : 20]> g (float[N] x) => (float[N] y) { y = Neg(x) }"""
    model = onnx.parser.parse_model(text).SerializeToString()
    pairs = []
    for ort in (onnxruntime, tw):
        session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
        value, device = ort.OrtValue.ortvalue_from_numpy(np.zeros(2, np.float32)), ort.OrtDevice.make("cpu", 0)
        pairs.append(
            (session, ort.SessionOptions(), ort.RunOptions(), session.io_binding(), value, device,
             session.get_modelmeta(), session.get_inputs()[0], session.get_input_memory_infos()[0])
        )  # fmt: skip
    for theirs, ours in zip(*pairs, strict=True):
        absent = [name for name in dir(theirs) if not name.startswith("_") and not hasattr(ours, name)]
        assert absent in ([], ["create_v2"]), type(ours)  # which nobody needs to ask where values are
    for name in ("name", "device_id", "mem_type", "allocator_type", "device_mem_type", "device_vendor_id"):
        theirs, ours = (getattr(pair[-1], name) for pair in pairs)
        assert ours == theirs or int(ours) == int(theirs), name
