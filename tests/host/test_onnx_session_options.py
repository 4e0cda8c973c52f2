"""What a session's options change of its model, and the seed of random numbers."""

from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

import tilewright.onnx as tw  # noqa: E402
from tilewright.errors import ImportModelError, InputError, SettingsError  # noqa: E402


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
