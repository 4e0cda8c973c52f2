"""The programs of docs/guide/language-models.md run, on small checkpoints under the names that they have there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")
pytest.importorskip("llguidance")

from tests.documents import ROOT, blocks
from tests.host.llm_support import text_checkpoint
from tests.host.test_llm_adapters import write_adapter
from tests.host.test_llm_embeddings import checkpoint

PAGE = ROOT / "docs" / "guide" / "language-models.md"


@pytest.mark.slow
def test_blocks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "adapters").mkdir()
    base = text_checkpoint(tmp_path / "models" / "small")
    checkpoint(tmp_path / "models" / "minilm")
    for seed, name in enumerate(("legal", "poems")):
        write_adapter(tmp_path / "adapters" / name, base, ["q_proj", "v_proj"], 2, 4, seed)
    program = [block for marker, block in blocks(PAGE) if marker == "models"]
    assert len(program) == len(blocks(PAGE)) and "AsyncLLM" in program[1]
    monkeypatch.chdir(tmp_path)
    space: dict[str, Any] = {"__name__": "__main__"}
    for block in program:
        exec(compile(block, PAGE.name, "exec"), space)
    assert space["vectors"].shape[0] == 2 and len(space["answers"]) == 2
