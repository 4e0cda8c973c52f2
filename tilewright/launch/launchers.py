"""What launches kernels: a `Launching` for each family of targets (`targets.families`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from tilewright.launch.compiled import CompiledKernel
from tilewright.launch.driver import Driver
from tilewright.launch.launching import PreparedLaunch, RunTimeArguments
from tilewright.targets.base import Target
from tilewright.targets.families import FAMILIES, part


class DevicePlaces(Protocol):
    """The GPU that the arrays of a launch are on."""

    @property
    def target(self) -> Target:
        """What to compile for."""
        ...

    def prepared(
        self, kernel: CompiledKernel, interface: RunTimeArguments, describe: Callable[..., Any] | None
    ) -> PreparedLaunch:
        """A signature ready to run there; `describe` is the kernel's `launch_metadata`."""
        ...


@dataclass(frozen=True)
class Launching:
    """How kernels of a family are launched: the class that a binary becomes, and the device that host code sees."""

    kernel: type[CompiledKernel]
    driver: type[Driver]


@dataclass(frozen=True)
class DeviceLaunching(Launching):
    """The same for GPUs.

    `places` finds the one that a launch's arguments are on by the kernel's name, their classes and themselves, and
    raises `LaunchError` for several, and for arrays of the CPU's as well.  `target_of` is what to compile for a GPU by
    its number.
    """

    places: Callable[[str, Sequence[Any], Sequence[Any]], DevicePlaces]
    target_of: Callable[[int], Target]


def launching(family: str) -> Launching:
    """How the kernels of a family are launched."""
    return cast(Launching, part(FAMILIES[family].launching))


def device_launching(family: str) -> DeviceLaunching:
    """The same of a family of GPUs (`runtime.cuda.streams.DevicePlace.family`)."""
    return cast(DeviceLaunching, part(FAMILIES[family].launching))
