"""The worked example and the grammar of docs/internals/tile-ir.md are true."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from tilewright.errors import ExecutionError
from tilewright.ir import parser
from tilewright.ir.parser import parse_function
from tilewright.ir.printer import print_function

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "internals" / "tile-ir.md").read_text(encoding="utf-8")


def block(name: str) -> str:
    found = re.search(rf"<!-- {name} -->\n```\w*\n(.*?)```", DOCUMENT, re.DOTALL)
    assert found is not None, name
    return found.group(1)


def test_example_prints_as_written():
    assert print_function(parse_function(block("example"))) == block("example")


def test_example_runs():
    exec(block("run"), {"text": block("example")})


def test_example_error_is_as_written():
    wrong = block("run").replace("[x, y, 6]", "[x, y, 7]")
    with pytest.raises(ExecutionError) as caught:
        exec(wrong, {"text": block("example")})
    assert str(caught.value) == block("error").strip()


def test_the_rule_is_the_passes():
    source = (ROOT / "tilewright" / "passes" / "arithmetic_rules.py").read_text(encoding="utf-8")
    assert block("rule") in source


def test_grammar_is_the_parsers():
    assert parser.__doc__ is not None
    assert textwrap.indent(block("grammar"), "    ").strip() in parser.__doc__
