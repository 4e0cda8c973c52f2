"""What a fuzzing target is, and what may come of a case."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from pathlib import Path
from typing import Protocol

from tools.fuzz import targets


class Failed(Exception):
    """A case shows a fault: ``raise Failed("wrong", "y is 3, expected 4")``.

    `kind` is one word for the tally: "wrong" for a wrong answer, "uncaught" for an error that is no class of
    `tilewright.errors`, "changed" for a refused call that altered the caller's data, and so on.  `signature` groups
    the failures of one cause; without one, the start of the text does.
    """

    def __init__(self, kind: str, text: str, signature: str = "") -> None:
        super().__init__(text)
        self.kind, self.text, self.signature = kind, text, signature or text[:80]


class Target(Protocol):
    """A module's `TARGET`: cases by number.  The same seed makes the same case on every machine."""

    seconds: float  # of CPU time: a case that takes more, or twenty times as long by the clock, is a hang
    megabytes: int  # a worker that grows by more is a memory failure

    def prepare(self, folder: Path) -> None:
        """Called once in each worker, with a folder of its own: build what cases start from."""

    def run(self, seed: int) -> str:
        """Run one case and return a word for the tally, such as "right" or "loaded".

        A `TilewrightError` that leaves it counts as refused, under its class; `Failed` is a failure; every other
        exception is an uncaught error, which is a failure as well.
        """


class Base:
    """The usual limits, for targets to inherit."""

    seconds = 10.0
    megabytes = 2048

    def prepare(self, folder: Path) -> None:
        return None


def names() -> list[str]:
    """The targets there are."""
    return sorted(module.name for module in pkgutil.iter_modules(targets.__path__))


def _exists(module: str) -> bool:
    """Whether there is such a module; the packages around it are imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # a package around it is missing
        return False


def load(name: str) -> Target:
    """The target of a module: one in tools/fuzz/targets, or any by its dotted name.  Raises `ValueError`."""
    module = name if "." in name else f"{targets.__name__}.{name}"
    if not _exists(module):
        raise ValueError(f"there is no target {name!r}: choose one of {', '.join(names())}, or name a module with dots")
    found = importlib.import_module(module)
    if not hasattr(found, "TARGET"):
        raise ValueError(f"the module {module} is no target: it has no TARGET")
    target: Target = found.TARGET
    return target
