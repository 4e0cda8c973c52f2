"""The README's Python blocks run as they are."""

import re
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[2] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("index", range(len(BLOCKS)))
def test_block_runs(index: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / f"readme_{index}.py"
    path.write_text(BLOCKS[index], encoding="utf-8")
    exec(compile(BLOCKS[index], str(path), "exec"), {"__name__": "__main__"})
