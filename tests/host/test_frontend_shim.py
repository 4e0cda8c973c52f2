"""The import shim: Triton's module names resolve to tilewright, and programs written for Triton run."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import tilewright
from tilewright import shim

SCRIPTS = Path(__file__).parent / "shim_scripts"


@pytest.fixture
def installed() -> Iterator[None]:
    shim.install()
    yield
    shim.uninstall()


@pytest.mark.parametrize("name", [*shim.TABLES, *shim.ALIASES])
def test_modules_import(installed: None, name: str) -> None:
    module = importlib.import_module(name)
    value = sys.modules["triton"]
    for part in name.split(".")[1:]:
        value = getattr(value, part)
    assert value is module
    for attribute in shim.TABLES.get(name, ()):
        assert getattr(module, attribute) is not None


def test_names_are_tilewrights(installed: None) -> None:
    names: dict[str, object] = {}
    exec("import triton\nimport triton.language as tl\nfrom triton.runtime import driver", names)
    assert names["tl"] is tilewright.language and names["triton"].jit is tilewright.jit  # type: ignore[attr-defined]
    assert importlib.util.find_spec("triton") is not None
    with pytest.raises(ModuleNotFoundError, match=r"triton\.unheard_of"):
        importlib.import_module("triton.unheard_of")


def test_what_was_there_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    other, inner = ModuleType("triton"), ModuleType("triton.inner")
    monkeypatch.setitem(sys.modules, "triton", other)
    monkeypatch.setitem(sys.modules, "triton.inner", inner)
    shim.install()
    shim.install()
    assert sys.modules["triton"] is not other and "triton.inner" not in sys.modules
    shim.uninstall()
    shim.uninstall()
    assert sys.modules["triton"] is other and sys.modules["triton.inner"] is inner
    assert "triton.language" not in sys.modules


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tilewright.shim", *arguments], capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize(
    ("arguments", "said"), [(["vector_add.py", "5000"], "vector add agrees"), (["row_kernels.py"], "rows agree")]
)
def test_programs_run(arguments: list[str], said: str) -> None:
    pytest.importorskip("torch")
    done = run(str(SCRIPTS / arguments[0]), *arguments[1:])
    assert done.returncode == 0, done.stderr
    assert said in done.stdout


def test_command_line_mistakes() -> None:
    assert run().returncode == 2
    missing = run("nowhere.py")
    assert missing.returncode == 2 and "no file nowhere.py" in missing.stderr
