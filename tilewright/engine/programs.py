"""What runs the programs of engines: a module for each family of targets (`targets.families`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol, cast

from tilewright.engine.file import Package
from tilewright.runtime.plan import Plan
from tilewright.runtime.session import PlanSession
from tilewright.targets.families import FAMILIES, part


class Programs(Protocol):
    """The functions of such a module."""

    def on_device(self) -> bool:
        """Whether programs run on a GPU, in its memory."""
        ...

    def misfit(self, target: Mapping[str, Any]) -> str | None:
        """Why this machine does not run a program for `target`; None when it does."""
        ...

    def symbol(self, program: Mapping[str, Any], weights: Mapping[str, int]) -> str:
        """What a program's machine code is named by: made of all that belongs together."""
        ...

    def session(self, program: Mapping[str, Any], signature: Plan, package: Package) -> PlanSession:
        """The program ready to run, on the current GPU if it is for one; `signature` is its plan, maybe without steps.

        Raises `DeviceError`, `RuntimeError` for code that does not link, and `ValueError` and the like for a manifest
        that is malformed.
        """
        ...

    def on_device_of(self, values: Iterable[Any]) -> AbstractContextManager[None]:
        """Make the GPU current on which the first of other libraries' tensors is."""
        ...

    def library_name(self, key: str) -> str | None:
        """The readable name of another library's function in a plan; None for kernels."""
        ...


def programs_of(target: Mapping[str, Any]) -> Programs | None:
    """What runs programs for a target of a manifest; None for a family that this runtime does not know."""
    family = FAMILIES.get(target["name"])
    return None if family is None else cast(Programs, part(family.programs))
