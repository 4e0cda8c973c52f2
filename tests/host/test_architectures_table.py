"""Results of the architectures become counts, reasons and Markdown."""

from __future__ import annotations

import json
from pathlib import Path

from tools.architectures import table


def test_counts_and_reasons(tmp_path: Path) -> None:
    refused = {
        "outcome": "refused",
        "reason": "model 'M'\n\n1. aten.rand.default (node)\n why: random numbers",
        "trace": "/x",
    }
    first = {
        "A": {"library": "timm", "static": {"outcome": "right", "seconds": 1.0}, "dynamic": refused},
        "B": {"library": "torch", "compile": {"outcome": "right", "kept": 0}},
        "C": {"library": "torch", "static": {"outcome": "setup", "reason": "no such thing"}},
    }
    second = {"B": {"library": "torch", "static": {"outcome": "timeout", "reason": "more than 9 s"}}}
    for name, data in (("first.json", first), ("second.json", second)):
        (tmp_path / name).write_text(json.dumps(data))
    data = table.merged([tmp_path / "first.json", tmp_path / "second.json"], "Some.")
    assert list(data["architectures"]) == ["A", "B"]  # what was not made is no architecture
    assert data["architectures"]["A"]["dynamic"] == {"outcome": "refused", "why": "draws random numbers (aten.rand)"}
    text = table.markdown(data)
    assert "| timm | 1 | 1 of 1 | 0 of 1 | not run | not run | 0 |" in text
    assert "| all | 2 | 1 of 2 | 0 of 1 | not run | 1 of 1 | 1 |" in text
    assert "| refused | draws random numbers (aten.rand) | A (dynamic) |" in text
    assert "| timeout | takes too long | B (static) |" in text
