"""The pages of the documentation and their blocks of Python."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def pages() -> list[Path]:
    """Every page that users or contributors read."""
    own = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")]
    return [*own, *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> list[tuple[str | None, str]]:
    """The Python blocks of a page, each with the comment in front of it, if there is one: ``gpu`` for <!-- gpu -->."""
    text = page.read_text(encoding="utf-8")
    return [
        (match[1], match[2]) for match in re.finditer(r"(?:<!-- (\w+) -->\n+)?```python\n(.*?)```", text, re.DOTALL)
    ]
