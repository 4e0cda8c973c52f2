"""The code of docs/guide/debugging.md runs and prints what the page shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "guide" / "debugging.md").read_text(encoding="utf-8")


def block(name: str) -> str:
    found = re.search(rf"<!-- {name} -->\n```(?:python)?\n(.*?)```", DOCUMENT, re.DOTALL)
    assert found is not None, name
    return found[1]


def output(folder: Path, mode: str, name: str, typed: str = "") -> str:
    """What the program in a block prints, the folder left out of its paths."""
    script = folder / "program.py"
    script.write_text(block(name), encoding="utf-8")
    environment = {**os.environ, "TILEWRIGHT_INTERPRET": mode, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(script)], input=typed, capture_output=True, text=True, env=environment, timeout=180
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.replace(f"{folder}{os.sep}", "")


def test_session(tmp_path: Path) -> None:
    shown = block("session")
    commands = re.findall(r"^\(Pdb\) (.*\n)", shown, re.MULTILINE)
    printed = output(tmp_path, "1", "breakpoint", typed="".join(commands))
    assert printed.rstrip() == re.sub(r"^\(Pdb\) .*\n", "(Pdb) ", shown, flags=re.MULTILINE).rstrip()


@pytest.mark.parametrize(("mode", "code", "shown"), [("check", "mistakes", "reports"), ("0", "explain", "explanation")])
def test_output(tmp_path: Path, mode: str, code: str, shown: str) -> None:
    assert output(tmp_path, mode, code) == block(shown)


def test_files_named_exist() -> None:
    for name in re.findall(r"`((?:frontend|launch|ir)/[\w/]+\.py)`", DOCUMENT):
        assert (ROOT / "tilewright" / name).exists(), name
