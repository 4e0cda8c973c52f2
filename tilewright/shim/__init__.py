"""Run Triton programs on tilewright: ``import triton`` and its submodules resolve to tilewright's modules.

python -m tilewright.shim script.py arguments…       # also: -m module arguments…, -c code arguments…

tilewright.shim.install()                            # in a program of one's own, before it imports triton
import triton, triton.language as tl
tilewright.shim.uninstall()

A finder answers for every module whose name begins with ``triton``; `tables.py` says which there are.  Nothing of
tilewright is imported before a program asks for it, and whether Triton is installed does not matter.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import logging
import os
import runpy
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from tilewright.shim import environment
from tilewright.shim.tables import ABSENT_NAMES, ALIASES, NAME_TABLES, TRITON_VERSION

ENABLED = "TILEWRIGHT_SHIM"  # 1: Python processes started with `site_directory` on their path have the shim
_log = logging.getLogger("tilewright.shim")
_replaced: dict[str, ModuleType] | None = None  # what was in `sys.modules` before; None while not installed


class ShimModule(ModuleType):
    """A module made of names that are looked up when they are asked for."""

    def __init__(self, name: str, table: dict[str, str]) -> None:
        super().__init__(name, "tilewright under Triton's names; see tilewright.shim.")
        self._table = table
        self.__path__: list[str] = []  # a package: the finder answers for its submodules
        self.__all__ = [*table, *_children(name)]
        if name == "triton":
            self.__version__ = TRITON_VERSION
            self.__file__ = __file__

    def __getattr__(self, name: str) -> Any:
        if name in self._table:
            owner, _, found = self._table[name].partition(":")
            value = getattr(importlib.import_module(owner), found)
            setattr(self, name, value)
            return value
        inner = f"{self.__name__}.{name}"
        if inner in NAME_TABLES or inner in ALIASES:
            return importlib.import_module(inner)
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}{_advice(inner)}")

    def __setattr__(self, name: str, value: Any) -> None:
        # As in Triton, `triton.runtime.driver` is the object, though there is a module of this name.
        if not (isinstance(value, ModuleType) and name in self.__dict__.get("_table", ())):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.__all__})


class _ModuleFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds and makes the modules of the tables."""

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != "triton" and not name.startswith("triton."):
            return None
        if name in NAME_TABLES or name in ALIASES:
            return ModuleSpec(name, self, is_package=name in NAME_TABLES)
        advice = _advice(name)
        module_name = None if advice and _names_a_member() else name
        raise ModuleNotFoundError(f"No module named {name!r} in tilewright{advice}", name=module_name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return ShimModule(spec.name, NAME_TABLES[spec.name]) if spec.name in NAME_TABLES else None

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        if name in ALIASES:  # the import system takes what it finds in `sys.modules`
            sys.modules[name] = importlib.import_module(ALIASES[name])
            for inner in ALIASES:  # not every alias is a package that could be asked for its submodules
                if inner.startswith(f"{name}."):
                    sys.modules[inner] = importlib.import_module(ALIASES[inner])


_finder = _ModuleFinder()


def _names_a_member() -> bool:
    """Whether ``from triton import x`` asks for a module: an error that names it would be replaced by a plainer one."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith("<frozen importlib"):
        if frame.f_code.co_name == "_handle_fromlist":
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _children(name: str) -> list[str]:
    prefix = f"{name}."
    names = (known[len(prefix) :] for known in (*NAME_TABLES, *ALIASES) if known.startswith(prefix))
    return [child for child in names if "." not in child]


def _advice(name: str) -> str:
    """What to use instead of a module that cannot be here, or of something inside it."""
    parts = name.split(".")
    for end in range(len(parts), 1, -1):
        known = ABSENT_NAMES.get(".".join(parts[:end]))
        if known is not None:
            return f": {known}"
    return ""


def install() -> None:
    """Make ``import triton`` resolve to tilewright in this process. Installing twice is installing once.

    Triton's modules that are imported already are set aside, and a warning tells so: what holds them keeps them.
    Triton's environment variables are read (`tilewright.shim.environment`).
    """
    global _replaced
    if _replaced is not None:
        return
    present = _present()
    if present:
        _log.warning(
            "triton was imported before the shim was installed: modules that hold it keep it; "
            "install the shim first, or start with python -m tilewright.shim"
        )
    _replaced = {name: sys.modules.pop(name) for name in present}
    sys.meta_path.insert(0, _finder)
    environment.apply()


def uninstall() -> None:
    """Take the modules out again, put back what they replaced, and the settings as they were."""
    global _replaced
    if _replaced is None:
        return
    sys.meta_path.remove(_finder)
    for name in _present():
        del sys.modules[name]
    sys.modules.update(_replaced)
    _replaced = None
    environment.restore()


def installed() -> bool:
    """Whether ``import triton`` gives tilewright's modules."""
    return _replaced is not None


def _present() -> list[str]:
    return [name for name in sys.modules if name == "triton" or name.startswith("triton.")]


def site_directory() -> str:
    """A folder for PYTHONPATH: Python processes that find it there, and `TILEWRIGHT_SHIM=1`, have the shim."""
    return str(Path(__file__).with_name("site"))


def cover_children() -> None:
    """Let the Python processes that this one starts have the shim too, through the environment."""
    os.environ[ENABLED] = "1"
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if site_directory() not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([site_directory(), *paths])
    if site_directory() not in sys.path:  # PyTorch's worker processes get this process's `sys.path` as PYTHONPATH
        sys.path.insert(1, site_directory())


_USAGE = """\
usage: python -m tilewright.shim script.py [arguments…]
       python -m tilewright.shim -m module [arguments…]
       python -m tilewright.shim -c code [arguments…]
       python -m tilewright.shim --site          (the folder that PYTHONPATH needs, along with TILEWRIGHT_SHIM=1)"""


def main(arguments: Sequence[str] | None = None) -> Any:
    """Run a script, a module or code as ``__main__`` with the shim installed, here and in the processes it starts."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given == ["--site"]:
        print(site_directory())
        return None
    short = given[:1] in (["-m"], ["-c"])
    if not given or given[0] in ("-h", "--help") or short and len(given) < 2:
        print(_USAGE, file=sys.stderr)
        raise SystemExit(0 if given and not short else 2)
    if given[0].startswith("-") and not short:
        print(f"tilewright.shim: unknown option {given[0]}\n{_USAGE}", file=sys.stderr)
        raise SystemExit(2)
    if not short and not Path(given[0]).exists():
        print(f"tilewright.shim: there is no file {given[0]}", file=sys.stderr)
        raise SystemExit(2)
    install()
    cover_children()
    return _run(given)


def _run(given: list[str]) -> Any:
    if given[0] == "-m":
        sys.argv = given[1:]
        sys.path[0:1] = [os.getcwd()]
        return runpy.run_module(given[1], run_name="__main__", alter_sys=True)
    if given[0] == "-c":
        sys.argv = ["-c", *given[2:]]
        sys.path[0:1] = [""]
        names: dict[str, Any] = {"__name__": "__main__"}
        exec(compile(given[1], "<string>", "exec"), names)
        return names
    sys.argv = given
    sys.path[0:1] = [str(Path(given[0]).resolve().parent)]
    return runpy.run_path(given[0], run_name="__main__")
