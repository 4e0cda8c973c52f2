"""`tilewright quantize`: samples from folders and files, its table, and bad data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

import tilewright
from tests.host import test_quantize
from tilewright.cli.main import application
from tilewright.errors import InputError, ShapeError

model, samples = test_quantize.model, test_quantize.samples


def command(*arguments: object) -> Any:
    return CliRunner().invoke(application(), ["quantize", *map(str, arguments)])


def test_command(model: Path, tmp_path: Path, rng: np.random.Generator) -> None:
    """From a folder of samples, and from one file of several; the file runs as any engine."""
    folder, engine = tmp_path / "data", tmp_path / "net.engine"
    folder.mkdir()
    for number, x in enumerate(samples(rng, 2)):
        np.savez(folder / f"{number}.npz", x=x)
    done = command(model, "--data", folder, "-o", engine)
    assert done.exit_code == 0, done.output
    assert "2 channels" in done.output and "output y differs by" in done.output
    first = tilewright.load(engine).run({"x": np.ones((1, 2, 12, 12), np.float32)})["y"]
    stacked = tmp_path / "stacked.npz"
    np.savez(stacked, x=np.stack(samples(np.random.default_rng(0), 2)))
    assert command(model, "--data", stacked, "-o", engine, "-q").exit_code == 0
    assert first.shape == (1, 10)


@pytest.mark.parametrize("kind", ["empty folder", "missing", "text"])
def test_nothing_is_written_when_data_is_bad(model: Path, tmp_path: Path, kind: str) -> None:
    path, engine = tmp_path / "data", tmp_path / "net.engine"
    if kind == "empty folder":
        path.mkdir()
    elif kind == "text":
        path = tmp_path / "data.npz"
        path.write_text("no arrays")
    done = command(model, "--data", path, "-o", engine)
    assert done.exit_code != 0 and isinstance(done.exception, InputError) and str(path) in str(done.exception)
    assert not engine.exists() and not [item for item in tmp_path.iterdir() if "engine" in item.name]


def test_samples_that_are_no_arrays(model: Path, tmp_path: Path) -> None:
    for text, message in {
        "[{'x': [[1, 2], [3]]}]": "sample 0: 'x' is no array", "[[[[1, 2], [3]]]]": "sample 0: 'x' is no array",
        "[{'x': object()}]": "sample 0: input 'x'", "[5]": "sample 0: input 'x'", "[(1, 2)]": "sample 0 has 2 arrays",
    }.items():  # fmt: skip
        script = tmp_path / "data.py"
        script.write_text(f"def samples():\n    return {text}\n")
        done = command(model, "--data", script, "-o", tmp_path / "net.engine")
        assert isinstance(done.exception, (InputError, ShapeError)) and message in str(done.exception), (
            text,
            done.exception,
        )
    with pytest.raises(InputError, match="the calibration data is 5"):
        tilewright.quantize(model, 5)


def test_samples_of_pytorch(model: Path, rng: np.random.Generator) -> None:
    """A tensor that requires a gradient is its numbers; one that NumPy has no type for is named."""
    torch = pytest.importorskip("torch")
    (x,) = samples(rng, 1)
    for data in ([{"x": torch.tensor(x).requires_grad_()}], [torch.tensor(x).requires_grad_()],
                 [torch.nn.Parameter(torch.tensor(x))], torch.nn.Parameter(torch.tensor(x))):  # fmt: skip
        tilewright.quantize(model, data)
    with pytest.raises(InputError, match="sample 1: 'x' is no array"):
        tilewright.quantize(model, [x, torch.tensor(x).bfloat16()])


def test_what_is_given_and_not_read(model: Path, tmp_path: Path, rng: np.random.Generator) -> None:
    """Labels, which `build --precision auto` reads, and an observer of ranges where there are none."""
    data, engine = tmp_path / "data", tmp_path / "net.engine"
    data.mkdir()
    for number, x in enumerate(samples(rng, 2)):
        np.savez(data / f"{number}.npz", x=x, label=np.array([number]))
    stacked = tmp_path / "stacked.npz"
    np.savez(stacked, x=np.stack(samples(rng, 2)), label=np.zeros((2, 1), np.int64))
    for path in (data, stacked):
        done = command(model, "--data", path, "-o", engine)
        assert done.exit_code == 0 and "`label` is not read" in done.output, done.output
    done = command(model, "--scheme", "int8-dynamic", "--observer", "entropy", "-o", engine)
    assert "observer entropy is not used" in done.output and "label" not in done.output
    done = command(model, "--data", data, "--observer", "mse", "-o", engine)
    assert "observer" not in done.output


@pytest.mark.parametrize(
    ("target", "reason"),
    [("cuda:sm_90a", "by float16 and bfloat16"), ("cuda:sm_80", "no kernels that read quantized weights"), ("cpu", "")],
)
def test_weights_that_are_stored_as_floats(target: str, reason: str, tmp_path: Path, rng: np.random.Generator) -> None:
    path = tmp_path / "net.onnx"
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, (3, size)) for name, size in (("x", 256), ("y", 320))
    ]
    weights = numpy_helper.from_array(rng.standard_normal((256, 320)).astype(np.float32), "w")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", ends[:1], ends[1:], [weights])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), str(path))
    found = tilewright.quantize(path, scheme="int4-weights", target=target)
    (row,) = found.layers
    assert row.reason is None and (row.stored_as_floats or "").count(reason) > 0 or not reason
    assert (row.stored_as_floats is None) == (not reason) == (found.engine.weight_bytes < 256 * 320)
    done = command(path, "--scheme", "int4-weights", "--target", target, "-o", tmp_path / "net.engine")
    assert ("weights stored as floats, of y: " in done.output) == bool(reason), done.output
