"""Scripts outside the package (demo, examples, benchmarks, tools): every name that they import from it exists."""

from __future__ import annotations

import ast
import importlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from tilewright.errors import MissingDependencyError

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("demo", "examples", "benchmarks", "tools")
OPTIONAL = ("onnx", "torch", "jax", "ray", "fastapi", "uvicorn", "starlette", "openvino", "transformers", "triton")


def imported(path: Path) -> Iterator[tuple[str, str]]:
    """The modules of tilewright that a script imports from, and the names; not those that it tries."""
    tree = ast.parse(path.read_text())
    tried = {node for block in ast.walk(tree) if isinstance(block, ast.Try) for node in ast.walk(block)}
    for node in ast.walk(tree):
        if node in tried:
            continue
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "tilewright":
            yield from ((node.module, alias.name) for alias in node.names)


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_imported_name_is_there(folder: str) -> None:
    missing = []
    trials = ROOT / "tools" / "changes"  # what their scripts import is there when the trial's change is
    for path in sorted(set((ROOT / folder).rglob("*.py")) - set(trials.rglob("*.py"))):
        for module, name in imported(path):
            try:
                found = importlib.import_module(module)
                there = hasattr(found, name) or importlib.util.find_spec(f"{module}.{name}") is not None
            except MissingDependencyError:
                there = True
            except ModuleNotFoundError as error:
                there = (error.name or "").split(".")[0] in OPTIONAL
            if not there:
                missing.append(f"{path.relative_to(ROOT)}: from {module} import {name}")
    assert not missing
