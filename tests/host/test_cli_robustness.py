"""The command line where the system does not do as asked: full disks, closed pipes, odd names, interrupts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import tilewright
from tests.host import cli_support
from tilewright import Engine
from tilewright.cli.tensors import _load_array
from tilewright.engine.file import check_replaceable
from tilewright.errors import EngineError, ImportModelError, InputError, TimingCacheError
from tilewright.measure.record import TimingCache

pytestmark = pytest.mark.skipif(os.name != "posix", reason="devices, pipes and signals of POSIX")
COMMAND = [sys.executable, "-m", "tilewright"]


def shell(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    line = line.replace("tilewright", f"{sys.executable} -m tilewright", 1)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", line], cwd=folder, env=environment, capture_output=True, text=True,
        errors="replace", timeout=120, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("tilewright doctor --json | head -c 1 > /dev/null", (0, 1, 141)),
        ("tilewright cache show >&-", (0, 1)),
        ("tilewright cache show --json > /dev/full", (1,)),
        ("tilewright cache show > /dev/full", (1,)),
        ("tilewright inspect $'caf\\xe9.engine'", (1,)),
        ("tilewright inspect absent.engine", (1,)),
        ("tilewright compile syntax.py -n kernel -s ''", (1,)),
        ("tilewright compile raising.py -n kernel -s ''", (1,)),
    ],
)
def test_one_message_and_a_code(line: str, code: tuple[int, ...], tmp_path: Path) -> None:
    (tmp_path / "syntax.py").write_text("def kernel(:\n")
    (tmp_path / "raising.py").write_text("raise ValueError('on its own')\n")
    check(shell(line, tmp_path), code)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["inspect", "x" * 5000], (1,)),
        (["inspect", "loop"], (1,)),
        (["inspect", "folder"], (1,)),
        (["inspect", "file/x"], (1,)),
        (["inspect", "caf\udce9.engine"], (1,)),
        (["build", "caf\udce9.onnx"], (1,)),
        (["build", "loop"], (1, 2)),
        (["build", "file.onnx", "--shapes", "x:²"], (2,)),
        (["build", "file.onnx", "--shapes", f"x:{'9' * 5000}"], (2,)),
        (["build", "file.onnx", "--shapes", ":"], (2,)),
        (["build", "file.onnx", "--target", ""], (1,)),
        (["build", "file.onnx", "-o", "/dev/null"], (1, 2)),
        (["build", "file.onnx", "--timing-cache", "absent/times.json"], (2,)),
        (["build", "file.onnx", "--timing-cache", "folder"], (2,)),
        (["compile", "file", "-n", "kernel", "-s", ""], (2,)),
        (["bench", "file", "--threads", "100000"], (2,)),
        (["tune", "show", "file"], (1,)),
        (["tune", "show", "/dev/zero"], (1,)),
        (["run", "file", "--size", "x=²"], (1, 2)),
        (["build", "pipe.onnx"], (1,)),
        (["build", "pipe.pt2"], (1,)),
        (["inspect", "endless.onnx"], (1,)),
    ],
    ids=lambda value: " ".join(map(ascii, value))[:40],
)
def test_one_message_and_a_code_for_odd_arguments(
    arguments: list[str], code: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "folder").mkdir()
    (tmp_path / "endless.onnx").symlink_to("/dev/zero")
    for name in ("pipe.onnx", "pipe.pt2"):
        os.mkfifo(tmp_path / name)
    for name in ("file", "file.onnx"):
        (tmp_path / name).write_bytes(b"\xff\x00text")
    monkeypatch.chdir(tmp_path)
    check(cli_support.tilewright(*arguments), code)


@pytest.mark.parametrize(
    "arguments",
    [
        ["build", "file.onnx", "-o", "\x1b[31m\u202e/new.engine"],
        ["compile", "\x1b[31m\u202e.py", "-n", "kernel", "-s", ""],
        ["run", "\x1b[31m\u202e.onnx", "--rebuild"],
        ["build", "file.onnx", "--vendor", "\x1b[31m\u202e"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_wrong_usage_shows_control_characters_as_escapes(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file.onnx").write_bytes(b"text")
    monkeypatch.chdir(tmp_path)
    found = cli_support.tilewright(*arguments)
    assert found.returncode == 2 and "\\u202e" in found.stderr
    assert "\x1b" not in found.stderr and "\u202e" not in found.stderr


def check(found: subprocess.CompletedProcess[str], code: tuple[int, ...]) -> None:
    assert found.returncode in code, found.stderr
    assert "tilewright/cli" not in found.stderr and "Traceback" not in found.stderr, found.stderr


def test_an_interrupt_ends_quietly(tmp_path: Path) -> None:
    process = subprocess.Popen([*COMMAND, "doctor"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode in (0, 1, 130, -signal.SIGINT)
    assert process.returncode == -signal.SIGINT or b"Traceback" not in errors


def test_inputs_are_read_from_regular_files_alone(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.npy")
    with pytest.raises(InputError, match="no regular file"):
        _load_array("x", tmp_path / "pipe.npy")
    with pytest.raises(InputError, match="No such file"):
        _load_array("x", tmp_path / "none.npy")
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1125899906842624,), }"
    text = header + b" " * (-(len(header) + 11) % 64) + b"\n"
    (tmp_path / "bomb.npy").write_bytes(b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text)
    with pytest.raises(InputError, match="bomb.npy cannot be read"):
        _load_array("x", tmp_path / "bomb.npy")


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "a\0b.onnx", "\ud800.pt2", "x" * 5000])
def test_names_that_no_file_has(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ImportModelError):
        tilewright.compile(name)
    for read in (Engine.load, Engine.read, check_replaceable_path):
        with pytest.raises(EngineError):
            read(name)
    with pytest.raises(TimingCacheError):
        TimingCache.read(Path(name))


def check_replaceable_path(name: str) -> None:
    check_replaceable(Path(name))


@pytest.mark.parametrize("value", [None, 5, b"x", object()])
def test_things_that_name_no_file(value: Any) -> None:
    for read in (Engine.load, Engine.read):
        with pytest.raises(EngineError, match="is named by a text or a path"):
            read(value)
