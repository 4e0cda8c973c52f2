"""Checkpoint folders in 4 and 8 bits: what they hold, stopped runs that go on, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from typer.testing import CliRunner

from tests.host.llm_support import checkpoint_of, write_checkpoint
from tilewright.cli.main import application
from tilewright.errors import InputError
from tilewright.importers.huggingface import Checkpoint
from tilewright.importers.quantized_checkpoints import reader_of
from tilewright.importers.quantized_weights import nearest
from tilewright.llm.model import step_graph
from tilewright.llm.step_graph import Limits
from tilewright.quant import checkpoint as quantizer
from tilewright.quant.checkpoint import quantize_checkpoint


class Calls:
    """Progress that stops the run at a call."""

    def __init__(self, last: int = 0) -> None:
        self.items: list[str] = []
        self.last = last

    def __call__(self, stage: str, item: str, seconds: float) -> None:
        self.items.append(item)
        if len(self.items) == self.last:
            raise KeyboardInterrupt


@pytest.fixture(autouse=True)
def small_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantizer, "_LEAST_WEIGHTS", 1)


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.parametrize(("scheme", "bits", "group"), [("int4-weights", 4, 16), ("int8-weights", 8, 0)])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_what_is_read_is_the_nearest(scheme: str, bits: int, group: int, dtype: type, tmp_path: Path) -> None:
    source = checkpoint_of("llama", tmp_path, 2, dtype)
    (source / "tokenizer.json").write_text("{}")
    found = quantize_checkpoint(source, tmp_path / "q", scheme, group=group)
    plain, stored = Checkpoint(source), Checkpoint(tmp_path / "q")
    read = reader_of(stored)
    assert read is not None and (tmp_path / "q" / "tokenizer.json").is_file()
    for layer in found.layers:
        weights = plain.tensors[f"{layer.name}.weight"].astype(np.float32)
        matrix = read(layer.name, *layer.shape).matrix  # type: ignore[union-attr]
        half = np.abs(matrix.scales.astype(np.float32)).max() / 2 + np.finfo(np.float32).eps * np.abs(weights).max()
        cut = float(np.abs(weights).max()) * float(ml_dtypes.finfo(dtype).eps)  # scales that were rounded down
        assert np.abs(matrix.numbers() - weights).max() <= half + cut
        if dtype == np.float32:
            np.testing.assert_array_equal(matrix.numbers(), nearest(weights, bits, group).numbers())
    assert found.bytes_after < found.bytes_before
    ops = [node.op for node in step_graph(tmp_path / "q", Limits(page=8, tokens=16, sequences=2, length=32)).nodes]
    assert ops.count("dequantize") == len(found.layers)
    assert not any("embed" in layer.name or "norm" in layer.name or layer.name == "lm_head" for layer in found.layers)


def test_a_stopped_run_goes_on(tmp_path: Path) -> None:
    source = checkpoint_of("llama", tmp_path, 2)
    quantize_checkpoint(source, tmp_path / "whole", group=16)
    for last in (1, 9, 30):
        target, first, second = tmp_path / f"cut{last}", Calls(last), Calls()
        with pytest.raises(KeyboardInterrupt):
            quantize_checkpoint(source, target, group=16, progress=first)
        part = max((tmp_path / f"cut{last}.part").glob("*.safetensors"))
        with part.open("r+b") as file:
            file.truncate(max(0, part.stat().st_size - 3))  # within a tensor, or the header
        assert not target.exists()
        quantize_checkpoint(source, target, group=16, progress=second)
        assert contents(target) == contents(tmp_path / "whole")
        assert not (tmp_path / f"cut{last}.part").exists()
        assert len(set(first.items) & set(second.items)) <= 2


def test_other_settings_begin_again(tmp_path: Path) -> None:
    source = checkpoint_of("llama", tmp_path)
    with pytest.raises(KeyboardInterrupt):
        quantize_checkpoint(source, tmp_path / "q", group=8, progress=Calls(1))
    quantize_checkpoint(source, tmp_path / "q", group=16)
    quantize_checkpoint(source, tmp_path / "other", group=16)
    assert contents(tmp_path / "q") == contents(tmp_path / "other")


def test_what_is_refused_leaves_nothing(tmp_path: Path) -> None:
    source, target = checkpoint_of("llama", tmp_path), tmp_path / "q"

    def refused(where: Path, match: str, **settings: object) -> None:
        with pytest.raises(InputError, match=match):
            quantize_checkpoint(where, target, **{"group": 16, **settings})  # type: ignore[arg-type]
        assert not target.exists() and not (tmp_path / "q.part").exists()

    refused(source, "scheme int8-weights or int4-weights; int8 is for engines", scheme="int8")
    refused(source, "multiple of 8 inputs", group=12)
    refused(source, "no linear layer is called 'l'", exclude=["l"])
    broken = write_checkpoint(tmp_path / "broken", {"model_type": "llama"}, {"a.up_proj.weight": (8, 16)}, dtype="f4")
    with (broken / "model.safetensors").open("r+b") as file:
        file.seek(-4, 2)
        file.write(np.array([np.nan], np.float32).tobytes())
    refused(broken, "a.up_proj.weight has numbers that are infinite or not a number")
    quantize_checkpoint(source, tmp_path / "done", group=16)
    with pytest.raises(InputError, match="quantized already"):
        quantize_checkpoint(tmp_path / "done", target)
    with pytest.raises(InputError, match="exists; name a folder that does not"):
        quantize_checkpoint(source, tmp_path / "done")
    (tmp_path / "q.part").mkdir()
    (tmp_path / "q.part" / "mine").touch()
    with pytest.raises(InputError, match="is no unfinished work of this command"):
        quantize_checkpoint(source, target, group=16)
    assert (tmp_path / "q.part" / "mine").exists()
    (tmp_path / "file.part").touch()
    (tmp_path / "link.part").symlink_to(tmp_path / "done")
    for name in ("file", "link"):
        with pytest.raises(InputError, match="is no unfinished work of this command"):
            quantize_checkpoint(source, tmp_path / name, group=16)
    assert (tmp_path / "done" / "config.json").exists()


def test_command(tmp_path: Path) -> None:
    source = checkpoint_of("llama", tmp_path)

    def command(*arguments: object) -> tuple[int, str]:
        done = CliRunner().invoke(application(), ["quantize", *map(str, arguments)])
        return done.exit_code, " ".join(done.output.split())

    code, text = command(source, "-o", tmp_path / "q", "--scheme", "int4-weights", "--group", 16)
    assert code == 0 and "MB of weights" in text
    assert json.loads((tmp_path / "q" / "config.json").read_text())["quantization_config"]["ignore"] == ["lm_head"]
    assert command(source, "-o", tmp_path / "r", "--scheme", "int4-weights", "--data", tmp_path)[0] == 2
    code, text = command(source, "-o", tmp_path / "r.engine", "--scheme", "int4-weights")
    assert code == 2 and "writes a checkpoint folder" in text.replace("│ │ ", "")
