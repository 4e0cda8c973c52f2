"""Engines: the file, trust, loading and running (`engine.engine`). Building them is `tilewright.build`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilewright.engine.engine import Engine

__all__ = ["Engine"]


def __getattr__(name: str) -> Any:
    if name == "Engine":  # loaded when it is asked for: parts of the package are used without it
        return importlib.import_module("tilewright.engine.engine").Engine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
