"""`--shapes` of the command line, and what it says about models and data that do not fit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.host.cli_support import tilewright

MODEL = """<ir_version: 8, opset_import: ["" : 17]> m (float[n, 4] x) => (float[n, 2] y) { y = MatMul (x, w) }"""

RESHAPED = """<ir_version: 8, opset_import: ["" : 17]>
    m (float[n, 4] x, int64[2] s) => (float[p, q] y) { y = Reshape (x, s) }"""


@pytest.fixture
def model() -> onnx.ModelProto:
    found = onnx.parser.parse_model(MODEL)
    found.graph.initializer.append(numpy_helper.from_array(np.ones((4, 2), np.float32), "w"))
    return found


@pytest.mark.parametrize("unknown", ["rank", "zero", "name"])
@pytest.mark.parametrize("command", ["run", "build", "bench"])
def test_sizes_that_the_model_leaves_open(command: str, unknown: str, model: onnx.ModelProto, tmp_path: Path) -> None:
    tensor = model.graph.input[0].type.tensor_type
    if unknown == "rank":
        tensor.ClearField("shape")
    elif unknown == "zero":
        tensor.shape.dim[0].dim_value = 0
    onnx.save(model, tmp_path / "m.onnx")
    more = {"run": [], "build": ["-o", str(tmp_path / "m.engine")], "bench": ["--seconds", "0"]}[command]
    done = tilewright(command, str(tmp_path / "m.onnx"), "--shapes", "x:3x4", *more)
    assert done.returncode == 0, done.stderr
    assert {"run": "[3, 2]", "build": "[3, 4]", "bench": "inputs x [3, 4]"}[command] in done.stdout


def test_what_is_wrong_and_what_to_do(model: onnx.ModelProto, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    assert "check the name" in tilewright("run", str(tmp_path / "other.onnx")).stderr
    assert "cannot be 5" in tilewright("build", str(path), "--shapes", "x:3x5", "-o", str(tmp_path / "e.engine")).stderr
    assert "cannot be 5" in tilewright("run", str(path), "--shapes", "x:3x5").stderr
    assert "--shapes are for models" in tilewright("run", str(tmp_path / "e.engine"), "--shapes", "x:3x4").stderr
    (tmp_path / "x.npy").write_bytes(b"no array")
    assert "it is not a .npy file" in tilewright("run", str(path), "--input", f"x={tmp_path / 'x.npy'}").stderr
    (tmp_path / "cut.onnx").write_bytes(path.read_bytes()[:-20])
    assert "it may be cut short" in tilewright("run", str(tmp_path / "cut.onnx")).stderr
    model.graph.node[0].op_type = "MatMull"
    onnx.save(model, path)
    assert "MatMul is the closest" in tilewright("run", str(path)).stderr
    model.graph.input[0].type.tensor_type.ClearField("shape")
    onnx.save(model, path)
    assert "--shapes x:1..8x128" in tilewright("run", str(path)).stderr


def test_the_length_of_a_list_that_is_a_shape(tmp_path: Path) -> None:
    lists = "m (float[3] x, int64[R] s, float[R] z) => (float[] y, float[R] d) { y = Expand (x, s) d = Neg (z) }"
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {lists}'), path)
    assert "--shapes s:3" in tilewright("run", str(path)).stderr
    np.save(tmp_path / "s.npy", np.array([2, 3]))
    done = tilewright("run", str(path), "--shapes", "s:2", "--input", f"s={tmp_path / 's.npy'}")
    assert done.returncode == 0 and "[2, 3]" in done.stdout, done.stderr
    done = tilewright("build", str(path), "--shapes", "s:2", "-o", str(tmp_path / "m.engine"))
    assert done.returncode == 0 and "z: float32 [2]" in done.stdout, done.stderr


def test_bench_says_which_sizes_it_ran(model: onnx.ModelProto, tmp_path: Path) -> None:
    onnx.save(model, tmp_path / "m.onnx")
    done = tilewright("bench", str(tmp_path / "m.onnx"), "--seconds", "0", "--size", "n=5")
    assert "inputs x [5, 4]" in done.stdout, done.stderr


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("command", ["run", "build", "bench", "inspect"])
def test_shapes_that_do_not_fit_are_refused(
    command: str, is_open: bool, model: onnx.ModelProto, tmp_path: Path
) -> None:
    path = tmp_path / "m.onnx"
    if is_open:
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 0
    onnx.save(model, path)
    more = ["-o", str(tmp_path / "m.engine")] if command == "build" else []
    for sizes, message in (("x:3", "give 2 sizes, not 1"), ("x:3x4x5", "give 2 sizes, not 3")):
        assert message in " ".join(tilewright(command, str(path), "--shapes", sizes, *more).stderr.split())
    if not is_open:
        assert "no input 'y'" in tilewright(command, str(path), "--shapes", "y:3x4", *more).stderr


def test_names_of_sizes_are_those_of_the_file(tmp_path: Path) -> None:
    """One name of two inputs' dimensions, with a range for one of them or for both."""
    text = """<ir_version: 8, opset_import: ["" : 17]> m (float[n, 4] x, float[n, 4] z) => (float[n, 4] y)
              { y = Add (x, z) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    for shapes in (["x:1..8x4"], ["x:1..8x4", "z:1..8x4"]):
        options = [part for shape in shapes for part in ("--shapes", shape)]
        done = tilewright("run", str(tmp_path / "m.onnx"), *options, "--size", "n=3")
        assert "[3, 4]" in done.stdout, done.stderr


def test_inputs_of_nothing(model: onnx.ModelProto, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    done = tilewright("run", str(path), "--shapes", "x:0x4")
    assert done.returncode == 0 and "[0, 2]" in done.stdout, done.stderr
    refused = tilewright("run", str(path), "--shapes", "x:0..8x4")
    assert refused.returncode == 2 and "begin it at 1" in " ".join(refused.stderr.split())


def test_numbers_that_are_a_shape_are_given(tmp_path: Path) -> None:
    path, page = tmp_path / "m.onnx", tmp_path / "page.html"
    onnx.save(onnx.parser.parse_model(RESHAPED), path)
    np.save(tmp_path / "s.npy", np.array([2, -1]))
    commands = (["run", "--random"], ["bench", "--seconds", "0"], ["inspect", "--html", str(page), "--profile"])
    for command, *options in commands:
        refused = tilewright(command, str(path), *options)
        assert refused.returncode == 1 and "--input s=FILE.npy" in refused.stderr
        options = [option for option in options if option != "--random"]
        done = tilewright(command, str(path), *options, "--input", f"s={tmp_path / 's.npy'}")
        assert done.returncode == 0, done.stderr
    assert "--profile" in tilewright("inspect", str(path), "--input", f"s={tmp_path / 's.npy'}").stderr
