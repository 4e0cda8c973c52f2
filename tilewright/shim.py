"""Run Triton programs on tilewright: ``import triton`` and its submodules resolve to tilewright's modules.

python -m tilewright.shim script.py arguments…

tilewright.shim.install()            # in a program of one's own, before it imports triton
import triton, triton.language as tl
tilewright.shim.uninstall()

Nothing is searched on disk: the modules of the tables below are put into `sys.modules`, whether or not Triton
is installed.  A submodule that is not in a table raises `ModuleNotFoundError` when it is imported.
"""

from __future__ import annotations

import importlib
import runpy
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

# Modules that are tilewright's own, under another name.
ALIASES = {
    "triton.language": "tilewright.language",
    "triton.language.core": "tilewright.language.core",
    "triton.language.math": "tilewright.language.math",
    "triton.language.random": "tilewright.language.random",
    "triton.language.standard": "tilewright.language.standard",
    "triton.language.extra": "tilewright.language.extra",
    "triton.language.extra.libdevice": "tilewright.language.extra.libdevice",
    "triton.language.extra.cuda": "tilewright.language.extra.cuda",
    "triton.language.extra.hip": "tilewright.language.extra.hip",
    "triton.language.extra.cuda.libdevice": "tilewright.language.extra.libdevice",
    "triton.language.extra.hip.libdevice": "tilewright.language.extra.libdevice",
    "triton.testing": "tilewright.testing",
    "triton.runtime.driver": "tilewright.frontend.driver",
}
# Modules made of names found elsewhere: name -> where it is ("module:attribute").
_AUTOTUNER = {
    "Autotuner": "tilewright.frontend.autotune:Autotuner",
    "Config": "tilewright.frontend.autotune:Config",
    "Heuristics": "tilewright.frontend.heuristics:Heuristics",
    "autotune": "tilewright.frontend.autotune:autotune",
    "heuristics": "tilewright.frontend.heuristics:heuristics",
}
_JIT = {"JITFunction": "tilewright.frontend.jit:JITFunction", "jit": "tilewright.frontend.jit:jit"}
_ERRORS = {"AutotunerError": "tilewright.errors:AutotunerError", "TritonError": "tilewright.errors:TilewrightError"}
_COMPILER_ERRORS = {"CompilationError": "tilewright.errors:CompilationError"}
_COMPILED = {"CompiledKernel": "tilewright.frontend.compiled:CompiledKernel"}
_TARGET = {"GPUTarget": "tilewright.frontend.driver:GPUTarget"}
_SIZES = {
    "cdiv": "tilewright.frontend.sizes:cdiv",
    "next_power_of_2": "tilewright.frontend.sizes:next_power_of_2",
}
_ALLOCATOR = {"set_allocator": "tilewright.frontend.driver:set_allocator"}
TABLES: dict[str, dict[str, str]] = {
    "triton": {
        **_AUTOTUNER, **_JIT, **_COMPILER_ERRORS, **_ERRORS, **_SIZES, **_ALLOCATOR,
        "constexpr_function": "tilewright.language.function:constexpr_function",
    },
    "triton.runtime": {**_AUTOTUNER, **_JIT, **_ERRORS},
    "triton.runtime.autotuner": _AUTOTUNER,
    "triton.runtime.jit": _JIT,
    "triton.runtime.errors": _ERRORS,
    "triton.compiler": {**_COMPILED, **_COMPILER_ERRORS},
    "triton.compiler.compiler": _COMPILED,
    "triton.compiler.errors": _COMPILER_ERRORS,
    "triton.backends": {},
    "triton.backends.compiler": _TARGET,
}  # fmt: skip
VERSION = "3.5.0"  # the release whose names the language has

_replaced: dict[str, ModuleType] | None = None  # what was in `sys.modules` before; None while not installed


def install() -> None:
    """Make ``import triton`` resolve to tilewright in this process. Installing twice is installing once."""
    global _replaced
    if _replaced is not None:
        return
    built = {name: _build(name, table) for name, table in TABLES.items()}
    built.update({name: importlib.import_module(target) for name, target in ALIASES.items()})
    for name, module in built.items():
        parent, _, last = name.rpartition(".")
        if parent in TABLES:
            setattr(built[parent], last, module)
    built["triton"].__dict__["__version__"] = VERSION
    _replaced = {name: sys.modules.pop(name) for name in _present()}
    sys.modules.update(built)


def uninstall() -> None:
    """Take the modules out again, and put back what they replaced."""
    global _replaced
    if _replaced is None:
        return
    for name in _present():
        del sys.modules[name]
    sys.modules.update(_replaced)
    _replaced = None


def _present() -> list[str]:
    return [name for name in sys.modules if name == "triton" or name.startswith("triton.")]


def _build(name: str, table: dict[str, str]) -> ModuleType:
    module = ModuleType(name, "tilewright under Triton's names; see tilewright.shim.")
    module.__spec__ = ModuleSpec(name, None, is_package=True)
    module.__path__ = []  # a package, so that its submodules are looked for in `sys.modules`
    for attribute, place in table.items():
        owner, _, found = place.partition(":")
        setattr(module, attribute, getattr(importlib.import_module(owner), found))
    return module


def main(arguments: Sequence[str] | None = None) -> Any:
    """``python -m tilewright.shim script.py arguments…``: run a script as ``__main__`` with the shim installed."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help"):
        print("usage: python -m tilewright.shim script.py [arguments…]", file=sys.stderr)
        raise SystemExit(0 if given else 2)
    script = Path(given[0])
    if not script.is_file():
        print(f"tilewright.shim: there is no file {script}", file=sys.stderr)
        raise SystemExit(2)
    from tilewright import shim  # the module that programs import; this one may be called __main__

    shim.install()
    sys.argv = given
    sys.path.insert(0, str(script.resolve().parent))
    return runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    main()
