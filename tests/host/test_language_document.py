"""The code of docs/guide/tile-language.md runs."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import tilewright.language as tl

DOCUMENT = (Path(__file__).parents[2] / "docs" / "guide" / "tile-language.md").read_text(encoding="utf-8")


def test_code_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
    assert len(blocks) == 5
    path = tmp_path / "document.py"
    path.write_text("\n".join(blocks), encoding="utf-8")
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), {"__name__": "document"})
    assert capsys.readouterr().out


def test_files_named_exist() -> None:
    package = Path(__file__).parents[2] / "tilewright"
    for name in re.findall(r"`((?:language|frontend|launch|ir)/[\w/]+\.py)`", DOCUMENT):
        assert (package / name).exists(), name


def test_every_name_is_in_the_reference() -> None:
    names = {
        name for name, value in vars(tl).items()
        if not name.startswith("_") and name not in ("explicit", "language")
        and not (inspect.ismodule(value) and name not in ("math", "core", "extra", "random", "standard", "target_info"))
    }  # fmt: skip
    words = set(re.findall(r"\w+", DOCUMENT[DOCUMENT.index("## Names") : DOCUMENT.index("## How a kernel is traced")]))
    assert sorted(names - words) == []
