"""The worked example of docs/internals/cpu-target.md is what the compiler makes of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import tilewright
import tilewright.language as tl

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "internals" / "cpu-target.md").read_text(encoding="utf-8")


def test_the_worked_example(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
    path = tmp_path / "document.py"
    path.write_text(code, encoding="utf-8")
    space: dict[str, Any] = {"tilewright": tilewright, "tl": tl}
    exec(compile(code, str(path), "exec"), space)
    types = {"x": "*f32", "out": "*f32", "rows": "i32", "columns": "i32"}
    kernel = space["softmax"].compile(types, {"R": 4, "C": 1024}, target="cpu:sapphirerapids")
    text = kernel.dump("llvm")
    (loop,) = re.findall(r"^    loop\.body\.1:\n(?:      .*\n)+", DOCUMENT, re.MULTILINE)
    for line in loop.splitlines():
        assert line.strip() in text, line
    assert "row by row with" in kernel.explanation and "in one loop nest with the reduction" in kernel.explanation


def test_files_named_exist() -> None:
    package = ROOT / "tilewright" / "targets" / "cpu"
    names = re.findall(r"`([\w./]+\.py)`", DOCUMENT[DOCUMENT.index("## Files") :])
    assert len(names) > 15
    for name in names:
        assert (package / name).exists() or (ROOT / name).exists(), name
