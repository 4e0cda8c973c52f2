"""`triton.profiler`: named scopes, timed on the clock and written as a tree when a session ends.

    session = proton.start("matmul")
    with proton.scope("warm", {"flops": 2e9}):
        matmul(a, b)
    proton.finalize()          # writes matmul.hatchet

A launch on the CPU is done when it returns, so that a scope's time is that of the work inside.  Kernels are not
recorded by themselves: launches outside every scope are not in the tree.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

_COUNT, _TIME = "count", "time (ns)"


@dataclass
class _ScopeFrame:
    """One scope, by its name inside the scope around it; metrics of repeated visits are added up."""

    name: str
    metrics: dict[str, float] = field(default_factory=lambda: {_COUNT: 0, _TIME: 0})
    children: dict[str, _ScopeFrame] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """The frame as Hatchet's literal form."""
        children = [child.document() for child in self.children.values()]
        return {"frame": {"name": self.name, "type": "function"}, "metrics": self.metrics, "children": children}


@dataclass
class _Session:
    path: Path
    active: bool = True
    root: _ScopeFrame = field(default_factory=lambda: _ScopeFrame("ROOT"))


_sessions: dict[int, _Session] = {}
_open: list[str] = []  # names of the scopes around the present place


def start(name: str | None = None, **options: Any) -> int:
    """Begin a session, which is written to ``NAME.hatchet``; gives its number. Options of GPU back ends are ignored."""
    number = max(_sessions, default=-1) + 1
    _sessions[number] = _Session(Path(f"{name or 'proton'}.hatchet"))
    return number


def activate(session: int | None = None) -> None:
    """Record in a session, or in all, from here on."""
    for found in _chosen(session):
        found.active = True


def deactivate(session: int | None = None, flushing: bool = False) -> None:
    """Stop recording in a session, or in all."""
    for found in _chosen(session):
        found.active = False


def finalize(session: int | None = None, output_format: str = "") -> None:
    """End a session, or all, and write what was recorded; only the format "hatchet" is known.

    Raises `ValueError` for another format.
    """
    if output_format not in ("", "hatchet"):
        raise ValueError(f"sessions are written as hatchet, not as {output_format!r}")
    for number in [session] if session is not None else list(_sessions):
        found = _sessions.pop(number)
        found.path.write_text(json.dumps([found.root.document()]) + "\n", encoding="utf-8")


def _chosen(session: int | None) -> list[_Session]:
    return list(_sessions.values()) if session is None else [_sessions[session]]


class scope:
    """``with scope("name", {"flops": 1e9}):``, or a decorator: a frame whose time and metrics are added up."""

    def __init__(self, name: str, metrics: Mapping[str, float] | None = None) -> None:
        self.name = name
        self.metrics = dict(metrics or {})
        self.begun: list[int] = []

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*arguments: Any, **keywords: Any) -> Any:
            with self:
                return function(*arguments, **keywords)

        return timed

    def __enter__(self) -> scope:
        _open.append(self.name)
        self.begun.append(time.perf_counter_ns())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        spent = time.perf_counter_ns() - self.begun.pop()
        for session in _sessions.values():
            if not session.active:
                continue
            frame = session.root
            for name in _open:
                frame = frame.children.setdefault(name, _ScopeFrame(name))
            for metric, value in {_COUNT: 1, _TIME: spent, **self.metrics}.items():
                frame.metrics[metric] = frame.metrics.get(metric, 0) + value
        _open.pop()


__all__ = ["activate", "deactivate", "finalize", "scope", "start"]
