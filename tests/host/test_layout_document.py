"""The examples of docs/internals/layout.md print what the page says."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

from tilewright import layout

DOCUMENT = (Path(__file__).parents[2] / "docs" / "internals" / "layout.md").read_text(encoding="utf-8")
EXAMPLE = re.compile(r"```python\n(.*?)```(?:\n```text\n(.*?)```)?", re.DOTALL)


def test_examples_print_as_written():
    namespace: dict[str, object] = {}
    for code, expected in EXAMPLE.findall(DOCUMENT):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, namespace)
        assert printed.getvalue() == expected, code


def test_every_module_is_on_the_page():
    modules = {path.name for path in Path(layout.__path__[0]).glob("*.py")} - {"__init__.py"}
    assert {name for name in modules if name not in DOCUMENT} == set()
