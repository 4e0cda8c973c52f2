"""Settings from the environment."""

import logging
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from tilewright.errors import SettingsError
from tilewright.settings import _CHOICES, Settings, settings


def test_a_user_without_a_home_has_a_cache_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("TILEWRIGHT_CACHE_DIRECTORY", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    first, second = Settings.from_environment(), Settings.from_environment()
    assert first.cache_directory.name.startswith("tilewright-")
    assert first.cache_directory != second.cache_directory  # nobody can put machine code there beforehand


@pytest.mark.parametrize("text", ["0", "-2", "many", ""])
def test_a_malformed_variable_is_named(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("TILEWRIGHT_THREADS", text)
    with pytest.raises(ValueError, match="TILEWRIGHT_THREADS"):
        Settings.from_environment()


@pytest.mark.parametrize("variable", ["TILEWRIGHT_PARALLEL", "TILEWRIGHT_LOG"])
def test_words_are_checked(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "abacus")
    with pytest.raises(SettingsError, match=f"{variable}='abacus': expected one of"):
        Settings.from_environment()


def test_empty_means_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CACHE_DIRECTORY", "DUMP_DIRECTORY", "PARALLEL", "VERIFY"):
        monkeypatch.setenv(f"TILEWRIGHT_{name}", "")
    found = Settings.from_environment()
    assert found.cache_directory.name.startswith("tilewright")
    assert (found.dump_directory, found.parallel, found.verify) == (None, "auto", False)


def test_unknown_variables_are_reported(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("TILEWRIGHT_THREAD", "2")
    with caplog.at_level(logging.WARNING, "tilewright"):
        Settings.from_environment()
    assert "TILEWRIGHT_THREAD has no meaning; did you mean TILEWRIGHT_THREADS?" in caplog.text


def test_a_dump_directory_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with settings.scope(dump_directory=tmp_path / "file"), pytest.raises(SettingsError, match="dump directory"):
        settings.dump("kernel.tile", "text")
    with settings.scope(dump_directory=tmp_path / "folder"):
        settings.dump("kernel.tile", "text")
    assert (tmp_path / "folder" / "kernel.tile").read_text() == "text"


def test_a_cpu_is_imitated_with_the_features_it_has() -> None:
    """And code for one that this CPU cannot stand for is refused: it would end the process."""
    from tilewright import host

    present = host.host_features()
    assert host._limited(present, "native") == present
    for name in _CHOICES["cpu"][1:]:
        features = host.NAMED_FEATURES[name]
        if features <= present:
            assert host._limited(present, name) == features
        else:
            with pytest.raises(SettingsError, match=f"TILEWRIGHT_CPU={name}: this CPU lacks .*name one that"):
                host._limited(present, name)
    with pytest.raises(SettingsError, match="lacks avx, .*native, x86-64, x86-64-v2[)]"):
        host._limited(host.NAMED_FEATURES["x86-64-v2"], "x86-64-v3")


def test_every_named_cpu_can_be_imitated() -> None:
    from tilewright.host import NAMED_FEATURES
    from tilewright.targets.cpu.target import CPUTarget

    assert sorted(_CHOICES["cpu"]) == sorted(["native", *NAMED_FEATURES])
    assert all(CPUTarget.named(name).features == tuple(sorted(features)) for name, features in NAMED_FEATURES.items())


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="levels of x86-64")
def test_the_level_reaches_the_machine_code() -> None:
    code = "from tilewright.targets.registry import get_target; print(get_target('cpu').features)"
    environment = {**os.environ, "TILEWRIGHT_CPU": "x86-64"}
    shown = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "('cmov', 'sse', 'sse2')"
