"""Names that kernels also reach through ``tl.core``, ``tl.standard`` and ``tl.math``.

Other modules define them, of which those three know nothing: the last one that `tilewright.language` imports adds them.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from tilewright.language import core, internals, math, standard
from tilewright.language.extra import libdevice


def add_names(language: ModuleType) -> None:
    """Let the three modules answer for what is not their own; `language` has the names of ``tl``."""

    def of_core(name: str) -> Any:
        return vars(language)[name] if name in vars(language) else getattr(internals, name, _NONE)

    def of_standard(name: str) -> Any:
        return standard.NAMES_OF_TRITON.get(name, vars(language).get(name, _NONE))

    def of_math(name: str) -> Any:
        """Functions of `tl.extra.libdevice` under their old names: ``tl.math.log1p``."""
        return getattr(libdevice, name) if name in libdevice.__all__ else _NONE

    for module, find in ((core, of_core), (standard, of_standard), (math, of_math)):
        vars(module)["__getattr__"] = _attributes(module.__name__, find)


_NONE = object()


def _attributes(module: str, find: Callable[[str], Any]) -> Callable[[str], Any]:
    def __getattr__(name: str) -> Any:
        found = _NONE if name.startswith("__") else find(name)
        if found is _NONE:
            raise AttributeError(f"module '{module}' has no attribute '{name}'")
        return found

    return __getattr__
