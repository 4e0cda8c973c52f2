"""`tilewright quantize`: samples from folders and files, its table, and bad data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import tilewright
from tests.host import test_quantize
from tilewright.cli.main import application
from tilewright.errors import InputError

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
    assert "3 channels" in done.output and "output y differs by" in done.output
    first = tilewright.load(engine).run({"x": np.ones((1, 3, 12, 12), np.float32)})["y"]
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
