"""The blocks of the documentation that need a GPU run there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.documents import ROOT, blocks, pages

BLOCKS = [(page, block) for page in pages() for marker, block in blocks(page) if marker == "gpu"]


@pytest.mark.parametrize(("page", "block"), BLOCKS, ids=[page.relative_to(ROOT).as_posix() for page, _ in BLOCKS])
def test_block_runs(page: Path, block: str, tmp_path: Path) -> None:
    path = tmp_path / f"{page.stem.replace('-', '_')}.py"
    path.write_text(block, encoding="utf-8")
    exec(compile(block, str(path), "exec"), {"__name__": "__main__"})
