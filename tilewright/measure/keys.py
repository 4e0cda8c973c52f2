"""The keys of recorded times: of problems, and of the devices."""

from __future__ import annotations

import hashlib
from functools import lru_cache

from tilewright.runtime.cuda.device import Device
from tilewright.runtime.cuda.driver import version
from tilewright.targets.base import Target
from tilewright.targets.llvm.cache import kernel_digest, source_digest
from tilewright.targets.registry import backend_of


def problem_key(kind: str, target: Target, sources: tuple[str, ...], *parts: object) -> str:
    """The key of a problem that is described by `parts`: it is another after any change that a time may depend on.

    That is the target with its assembler, the sources of compiler and timers, and those in the folders `sources`.
    """
    text = repr((backend_of(target).key, kernel_digest(target.name), _digest(sources), *parts))
    return f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:40]}"


@lru_cache
def _digest(folders: tuple[str, ...]) -> str:
    return source_digest("measure", *folders)


def device_name(device: Device) -> str:
    """A GPU with its driver."""
    return f"{device.name}, CUDA {version() // 1000}.{version() % 1000 // 10}"
