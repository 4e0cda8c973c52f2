"""Results of the architectures become counts, reasons and Markdown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools.architectures import table


def test_counts_and_reasons(tmp_path: Path) -> None:
    refused = {
        "outcome": "refused",
        "reason": "model 'M'\n\n1. aten.rand.default (node)\n why: random numbers",
        "trace": "/x",
        "torch": "2.14.1",
    }
    right = {"outcome": "right", "torch": "2.14.1"}
    first = {
        "A": {"library": "timm", "static": {**right, "seconds": 1.0}, "dynamic": refused},
        "B": {"library": "torch", "compile": {**right, "kept": 0}},
        "C": {"library": "torch", "static": {"outcome": "setup", "reason": "no such thing"}},
    }
    second = {"B": {"library": "torch", "static": {"outcome": "timeout", "reason": "more than 9 s", "torch": "2.14.1"}}}
    for name, data in (("first.json", first), ("second.json", second)):
        (tmp_path / name).write_text(json.dumps(data))
    data = table.merged([tmp_path / "first.json", tmp_path / "second.json"], "Some.")
    assert list(data["architectures"]) == ["A", "B"]  # what was not made is no architecture
    assert data["architectures"]["A"]["dynamic"] == {"outcome": "refused", "why": "draws random numbers (aten.rand)"}
    text = table.markdown({"runs": [data, {**data, "torch": "2.13.0", "note": "Others."}]})
    assert text.index("### PyTorch 2.14.1") < text.index("Some.") < text.index("### PyTorch 2.13.0")
    assert "| timm | 1 | 1 of 1 | 0 of 1 | not run | not run | 0 |" in text
    assert "| all | 2 | 1 of 2 | 0 of 1 | not run | 1 of 1 | 1 |" in text
    assert "| refused | draws random numbers (aten.rand) | A (dynamic) |" in text
    assert "| timeout | takes too long | B (static) |" in text


def test_one_version_at_a_time(tmp_path: Path) -> None:
    ways = {
        way: {"outcome": "right", "torch": version} for way, version in (("static", "2.13.0"), ("dynamic", "2.14.1"))
    }
    (tmp_path / "mixed.json").write_text(json.dumps({"A": {"library": "timm", **ways}}))
    with pytest.raises(SystemExit, match=r"one PyTorch at a time, not of \['2.13.0', '2.14.1'\]"):
        table.merged([tmp_path / "mixed.json"], "")
