"""`triton.backends`: the targets under the names that host code asks for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tilewright.errors import LaunchError, TargetError
from tilewright.launch.driver import Driver, GPUTarget
from tilewright.launch.jit import LAUNCH_OPTIONS
from tilewright.launch.launchers import launching
from tilewright.targets.families import FAMILIES
from tilewright.targets.registry import backend_of

DriverBase = Driver
Benchmarker = Callable[..., Any]


class Language(Enum):
    """What a source is written in."""

    TRITON = 0


class BaseBackend:
    """A target as a backend: `hash` names it, `parse_options` checks launch options."""

    name = ""
    binary_ext = "obj"

    def __init__(self, target: GPUTarget) -> None:
        if not self.supports_target(target):
            raise TargetError(f"the backend {self.name!r} does not compile for {target}")
        self.target = target

    @classmethod
    def supports_target(cls, target: GPUTarget) -> bool:
        """Whether this is the backend of a machine."""
        return target.backend == cls.name

    def hash(self) -> str:
        """Everything of the target that code depends on."""
        return backend_of(self.target.target()).key

    def parse_options(self, options: dict[str, Any]) -> Options:
        """Launch options as an object; raises `LaunchError` for an unknown one."""
        unknown = sorted(set(options) - LAUNCH_OPTIONS)
        if unknown:
            raise LaunchError(f"unknown options {', '.join(unknown)}: there are {', '.join(sorted(LAUNCH_OPTIONS))}")
        return Options(**options)


class Options:
    """Launch options as attributes."""

    def __init__(self, **given: Any) -> None:
        self.__dict__.update({"num_warps": 4, "num_stages": 3, "num_ctas": 1, "debug": False, **given})

    def __repr__(self) -> str:
        return f"Options({', '.join(f'{name}={value!r}' for name, value in sorted(self.__dict__.items()))})"


@dataclass(frozen=True)
class CompilerAndDriver:
    """A backend's compiler and driver."""

    compiler: type[BaseBackend]
    driver: type[Driver]


def _backend(family: str) -> CompilerAndDriver:
    found = launching(family)
    facts = {"__doc__": f"The targets {family}.", "name": family, "binary_ext": found.kernel.image_name}
    return CompilerAndDriver(type(f"Triton{family.title()}Backend", (BaseBackend,), facts), found.driver)


backends: dict[str, CompilerAndDriver] = {family: _backend(family) for family in FAMILIES}
