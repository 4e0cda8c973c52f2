"""The keys of a server, a file with one a line."""

from __future__ import annotations

from pathlib import Path

from tilewright.errors import InputError

_LEAST = 16  # characters


def read_keys(path: Path | None) -> list[str]:
    """The keys in a file, none without one; raises `InputError` for a file that has none, or short ones."""
    if path is None:
        return []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from error
    keys = [line.strip() for line in lines if line.strip()]
    if not keys or any(len(key) < _LEAST for key in keys):
        raise InputError(f"{path}: expected keys of at least {_LEAST} characters, one a line")
    return keys
