"""Shared code of the Hopper kernels: shared memory of a CTA, swizzles, parameters, and when a config can be built."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, TypeVar, runtime_checkable

from tilewright.errors import LaunchError
from tilewright.ir.types import TensorMapType, scalar
from tilewright.targets.registry import get_target

_SM = get_target("cuda:sm_90a").machine()  # all of the architecture have these
SHARED_BYTES = _SM.shared_bytes - 1024  # of a CTA, less what alignment may take
RESERVED_BYTES = _SM.shared_bytes_reserved  # of shared memory, that the GPU takes for each CTA
REGISTERS, THREADS = _SM.registers, _SM.threads  # of an SM
ATOM = 128  # bytes: a row of the widest swizzle
Config = TypeVar("Config")


def swizzle_of(row_bytes: int) -> int:
    """The widest swizzle that rows of so many bytes are made of; 0 for none."""
    return next((width for width in (128, 64, 32) if row_bytes % width == 0), 0)


@dataclass(frozen=True)
class Parameters:
    """What a kernel is given, in order, before the operands of its epilogue: the one description of a launch, for
    tensors of a graph and for arrays.

    `tiled` are moved in tiles by tensor copies, and have two properties of a config by name: the size of a tile and the
    type of an element.  `others` have these types, in which ``{0}`` stands for the config.
    """

    tiled: Mapping[str, tuple[str, str]]
    others: Mapping[str, str]

    def block(self, config: object, name: str) -> tuple[int, ...]:
        """The size of a parameter's tiles."""
        found: tuple[int, ...] = getattr(config, self.tiled[name][0])
        return found

    def types(self, config: object, operands: tuple[str, ...] = ()) -> dict[str, Any]:
        """The types of all parameters, and those of an epilogue's operands."""
        types: dict[str, Any] = {
            name: scalar(TensorMapType(getattr(config, block), getattr(config, dtype).element))
            for name, (block, dtype) in self.tiled.items()
        }
        types |= {name: kind.format(config) for name, kind in self.others.items()}
        return {**types, "extra": operands} if operands else types

    @property
    def numbers(self) -> dict[str, str]:
        """The types of those that are numbers."""
        return {name: kind for name, kind in self.others.items() if not kind.startswith("*")}


@runtime_checkable
class Checked(Protocol):
    """A config of one of the kernels."""

    def check(self) -> object:
        """The config itself; raises `LaunchError` with the reason when it cannot be built."""


def checked(config: Config, rules: Iterable[tuple[bool, str]]) -> Config:
    """A config that keeps all rules, each of which is said in words; raises `LaunchError` with the first that it
    breaks."""
    for holds, reason in rules:
        if not holds:
            raise LaunchError(f"{config}: {reason}")
    return config


@lru_cache(maxsize=8192)
def is_possible(config: Checked) -> bool:
    """Whether a config can be built."""
    try:
        config.check()
    except LaunchError:
        return False
    return True
