"""Triton's environment variables as settings of tilewright. A `TILEWRIGHT_` variable for the same setting wins."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tilewright.settings import PREFIX, settings

_TRUE = ("1", "true", "on", "yes", "y")
_saved: dict[str, Any] = {}


def is_set(variable: str) -> bool:
    """Whether a switch is on."""
    return os.environ.get(variable, "").lower() in _TRUE


def folder(variable: str, name: str) -> Path:
    """A folder of Triton's: from its variable, else below ``TRITON_HOME``."""
    given = os.environ.get(variable)
    home = Path(os.environ.get("TRITON_HOME") or Path.home())
    return Path(given) if given else home / ".triton" / name


def requested() -> dict[str, Any]:
    """Settings that the environment asks for under Triton's names."""
    found: dict[str, Any] = {}
    if is_set("TRITON_INTERPRET"):
        found["interpret"] = True
    if is_set("TRITON_DEBUG"):
        found["debug"] = True
    if is_set("TRITON_ALWAYS_COMPILE"):
        found["always_compile"] = True
    if is_set("TRITON_PRINT_AUTOTUNING"):
        found["print_autotuning"] = True
    if os.environ.get("TRITON_CACHE_DIR") or os.environ.get("TRITON_HOME"):
        found["cache_directory"] = folder("TRITON_CACHE_DIR", "cache")
    if is_set("TRITON_KERNEL_DUMP"):
        found["dump_directory"] = folder("TRITON_DUMP_DIR", "dump")
    return {name: value for name, value in found.items() if not os.environ.get(PREFIX + name.upper())}


def apply() -> None:
    """Take them over; `restore` puts the settings back."""
    for name, value in requested().items():
        _saved.setdefault(name, getattr(settings, name))
        setattr(settings, name, value)


def restore() -> None:
    """Undo `apply`."""
    for name, value in _saved.items():
        setattr(settings, name, value)
    _saved.clear()
