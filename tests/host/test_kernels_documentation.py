"""The Python blocks of the pages on kernels and tactics run as they are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
BLOCKS = [
    (page, block)
    for page in ("internals/kernels.md", "internals/tactics.md")
    for block in re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)
]


@pytest.mark.parametrize(("page", "block"), BLOCKS, ids=[page for page, _ in BLOCKS])
def test_block_runs(page: str, block: str, tmp_path: Path) -> None:
    path = tmp_path / Path(page).with_suffix(".py").name
    path.write_text(block, encoding="utf-8")
    exec(compile(block, str(path), "exec"), {"__name__": "__main__"})
