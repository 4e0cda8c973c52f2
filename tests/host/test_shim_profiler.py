"""Scopes under Proton's names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tilewright.shim import profiler


def test_sessions_write_a_tree_of_scopes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    profiler.start("work", hook="triton")

    @profiler.scope("inner", {"flops": 5.0})
    def inner() -> None:
        pass

    with profiler.scope("outer"):
        inner()
        inner()
    profiler.deactivate()
    inner()
    profiler.activate()
    inner()
    profiler.finalize()
    (root,) = json.loads((tmp_path / "work.hatchet").read_text())
    outer, alone = root["children"]
    assert outer["frame"]["name"] == "outer" and outer["metrics"]["count"] == 1
    (nested,) = outer["children"]
    assert nested["metrics"]["count"] == 2 and nested["metrics"]["flops"] == 10
    assert outer["metrics"]["time (ns)"] >= nested["metrics"]["time (ns)"] > 0
    assert alone["frame"]["name"] == "inner" and alone["metrics"]["count"] == 1


def test_another_format_is_refused() -> None:
    profiler.start("refused")
    with pytest.raises(ValueError, match="not as 'chrome_trace'"):
        profiler.finalize(output_format="chrome_trace")
    profiler._sessions.clear()
