"""Settings from the environment."""

from pathlib import Path

import pytest

from tilewright.settings import Settings


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
