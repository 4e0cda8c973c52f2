"""Shared code of the Hopper kernels: shared memory of a CTA, swizzles, and when a config can be built."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Protocol, TypeVar

from tilewright.errors import LaunchError
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
