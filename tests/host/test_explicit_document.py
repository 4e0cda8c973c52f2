"""docs/guide/explicit.md: its example runs, its mistake is told as written, and its vocabulary is complete."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from tilewright.errors import ExecutionError
from tilewright.language import explicit
from tilewright.language.function import SourceFunction

DOCUMENT = (Path(__file__).parents[2] / "docs" / "guide" / "explicit.md").read_text(encoding="utf-8")
PROGRAM = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)[0]


def execute(text: str, path: Path) -> None:
    path.write_text(text, encoding="utf-8")
    exec(compile(text, str(path), "exec"), {"__name__": "document"})


def test_example_runs(tmp_path: Path):
    execute(PROGRAM, tmp_path / "document.py")


def test_mistake_is_reported_as_written(tmp_path: Path):
    right = "        if k > 0:\n            ring.release(before)\n"
    assert right in PROGRAM
    wrong = PROGRAM.replace(right, "        ring.release(position)\n")
    path = tmp_path / "program.py"
    with pytest.raises(ExecutionError) as caught:
        execute(wrong, path)
    (expected,) = re.findall(r"<!-- mistake -->\n```\n(.*?)\n```", DOCUMENT, re.DOTALL)
    assert str(caught.value).replace(str(path), "program.py") == expected


def test_vocabulary_is_complete():
    classes = {"barrier", "barrier_array", "ring_barriers", "ring_position", "shared_tile"}
    assert {name for name in set(explicit.__all__) - classes if f"{name}" not in DOCUMENT} == set()


def test_arguments_may_be_named_as_in_the_vocabulary():
    table = DOCUMENT.split("| `tx` | does |")[1].split("\n\n")[0]
    objects = {"bar": explicit.barrier, "tile": explicit.shared_tile}
    checked = 0
    for owner, name, arguments in re.findall(r"`(?:(bar|tile)\.)?(\w+)\(([^)]*)\)`", table):
        function = getattr(objects[owner] if owner else explicit, name)
        known = (
            function.argument_names if isinstance(function, SourceFunction) else inspect.signature(function).parameters
        )
        named = [word.strip().lstrip("*") for word in arguments.split(",") if word.strip()]
        assert [word for word in named if word not in known] == [], name
        checked += 1
    assert checked > 30


def test_files_named_exist():
    root = Path(__file__).parents[2]
    for name in re.findall(r"`(tilewright/[\w/]+(?:\.py|/))`", DOCUMENT):
        assert (root / name).exists(), name
