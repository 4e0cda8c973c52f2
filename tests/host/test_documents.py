"""Documents: links lead somewhere, every page is in the site's navigation, every Python block runs.

A page's blocks run in order, as a reader would type them. Blocks under a comment such as ``<!-- example -->`` belong to
the page's own test, which reads them by the name; those under ``<!-- gpu -->`` are run by tests/device, under
``<!-- shim -->`` in a process of their own.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents import ROOT, blocks, pages

PAGES = pages()


def _anchors(path: Path) -> set[str]:
    """Names of the headings of a page, as its site and its repository make them."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links(page: Path) -> None:
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        assert path.exists(), f"{page.name} links to {target}"
        if ROOT / "docs" in page.parents:  # the site has nothing else
            assert ROOT / "docs" in path.parents, f"{page.name} links out of the site: {target}"
        assert not anchor or anchor in _anchors(path), f"{page.name} links to {target}: no such heading"


def test_navigation() -> None:
    listed = set(re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE))
    assert listed == {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}


def test_reference_pages() -> None:
    command = [sys.executable, str(ROOT / "tools" / "reference_pages.py"), "--check"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = ""
    for marker, block in blocks(page):
        ast.parse(block)
        if marker is None:
            program += block + "\n"
    monkeypatch.chdir(tmp_path)
    path = tmp_path / f"document_{page.stem.replace('-', '_')}.py"
    path.write_text(program, encoding="utf-8")
    exec(compile(program, str(path), "exec"), {"__name__": "__main__"})


def test_blocks_with_a_name_have_a_test() -> None:
    tests = {path: path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")}
    for page in PAGES:
        readers = [text for text in tests.values() if page.name in text]
        for marker in {marker for marker, _ in blocks(page)} - {None, "gpu", "shim"}:
            names = (f'"{marker}"', f"<!-- {marker} -->", 're.findall(r"```python')
            assert any(name in text for name in names for text in readers), (page.name, marker)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_blocks_for_the_shim(page: Path, tmp_path: Path) -> None:
    """They replace modules, so each has a process of its own."""
    for marker, block in blocks(page):
        if marker == "shim":
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            command = [sys.executable, "-c", block]
            result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
            assert result.returncode == 0, result.stderr
