"""Engine files that change while they are in use, and places that must not be written to."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.host.handmade import COLUMNS, expected, make_package
from tilewright import Engine
from tilewright.engine import file
from tilewright.errors import EngineError

X = np.linspace(-2, 2, 3 * COLUMNS, dtype=np.float32).reshape(3, COLUMNS)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.engine"
    Engine(make_package()).save(path)
    return path


def check(engine: Engine) -> None:
    y, _ = engine(X, np.zeros(4, np.int64))
    np.testing.assert_array_equal(y, expected(X))


@pytest.mark.parametrize("read", [Engine.load, Engine.read], ids=["load", "read"])
def test_an_engine_does_not_see_its_file_overwritten(path: Path, read) -> None:
    engine = read(path)
    with open(path, "r+b") as handle:
        handle.write(b"\xff" * os.path.getsize(path))
    check(engine)
    np.testing.assert_array_equal(engine._package.weights.array("bias"), np.arange(COLUMNS))


@pytest.mark.parametrize("read", [Engine.load, Engine.read], ids=["load", "read"])
def test_an_engine_does_not_see_its_file_truncated(path: Path, read) -> None:
    engine = read(path)
    os.truncate(path, 0)
    check(engine)


@pytest.mark.parametrize("change", ["replace", "unlink"])
def test_a_mapped_engine_survives_what_does_not_write_to_its_file(path: Path, change: str) -> None:
    engine = Engine.load(path, mmap=True)
    if change == "replace":
        (path.parent / "other").write_bytes(b"other")
        os.replace(path.parent / "other", path)
    else:
        path.unlink()
    check(engine)


def test_a_file_that_shrinks_while_it_is_read_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = path.stat().st_size
    fstat = os.fstat

    def longer(descriptor: int) -> os.stat_result:
        values = list(fstat(descriptor))
        values[6] = size + 1
        return os.stat_result(values)

    monkeypatch.setattr(os, "fstat", longer)
    with pytest.raises(EngineError, match="became shorter while it was read"):
        Engine.load(path)


def test_weights_are_aligned_wherever_a_rewritten_file_has_them(path: Path, tmp_path: Path) -> None:
    import zipfile

    again = tmp_path / "again.engine"
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(again, "w") as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    for mapped in (False, True):
        package = file.read_package(again, mapped=mapped)
        assert package.weights.address % 64 == 0
        assert package.weights.data.tobytes() == make_package().weights.data.tobytes()
        check(Engine.load(again, mmap=mapped))


# -- What is no regular file --------------------------------------------------------------------------------------


@pytest.fixture(params=["fifo", "socket", "folder", "device", "link to device", "link to folder"])
def special(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "special"
    if request.param == "fifo":
        os.mkfifo(path)
    elif request.param == "folder":
        path.mkdir()
    elif request.param == "device":
        path = Path(os.devnull)
    elif request.param == "link to device":
        path.symlink_to(os.devnull)
    elif request.param == "link to folder":
        path.symlink_to(tmp_path)
    if request.param != "socket":
        yield path
        return
    with socket.socket(socket.AF_UNIX) as server:
        here = os.getcwd()
        os.chdir(tmp_path)  # the addresses of sockets are short
        try:
            server.bind("special")
        finally:
            os.chdir(here)
        yield path


def test_what_is_no_regular_file_is_not_replaced(special: Path) -> None:
    before = os.lstat(special)
    with pytest.raises(EngineError, match="not a regular file"):
        Engine(make_package()).save(special)
    assert (os.lstat(special).st_mode, os.lstat(special).st_ino) == (before.st_mode, before.st_ino)


def test_what_is_no_regular_file_is_not_read(special: Path) -> None:
    with pytest.raises(EngineError, match="not a regular file"):
        Engine.load(special)


@pytest.mark.parametrize("dangling", [False, True])
def test_a_link_to_a_file_is_replaced_and_the_file_is_kept(tmp_path: Path, dangling: bool) -> None:
    link, target = tmp_path / "link.engine", tmp_path / "target"
    if not dangling:
        target.write_bytes(b"kept")
    link.symlink_to(target)
    Engine(make_package()).save(link)
    check(Engine.load(link))
    assert not link.is_symlink()
    assert target.exists() != dangling and (dangling or target.read_bytes() == b"kept")
